//! Frames through vhost-user sockets, forwarded by Millrace, by OVS-DPDK and by `dpdk-testpmd`.

use millrace_tool::failure::Failure;
use millrace_tool::output::Row;
use millrace_tool::stop;

use super::forwarder::{Peer, Wiring};
use super::metric::Metric;
use super::setting::Bench;
use super::{source, start};
use crate::median::median;
use crate::pages::HugePages;

/// Huge pages that the largest forwarder and the source need, with some to spare.
const PAGES: u64 = 80;

/// Everything measured so far.
pub struct Comparison {
    samples: Vec<Samples>,
    /// Reserved in the first round.
    pages: Option<HugePages>,
    /// What went wrong with Millrace itself: the others are still measured, but the run has failed.
    failed: Option<String>,
}

/// All values of one metric.
struct Samples {
    metric: Metric,
    rounds: usize,
    values: [Vec<f64>; Peer::ALL.len()],
}

impl Comparison {
    /// Nothing yet.
    pub fn new(metrics: impl Iterator<Item = Metric>) -> Self {
        let samples = metrics.map(|metric| Samples { metric, rounds: 0, values: Default::default() });
        Self { samples: samples.collect(), pages: None, failed: None }
    }

    /// Measures everything once.
    pub fn measure(&mut self, bench: &mut Bench<'_>) {
        if self.samples.is_empty() {
            return;
        }
        self.prepare(bench);
        for samples in &mut self.samples {
            samples.rounds += 1;
            for (peer, values) in Peer::ALL.into_iter().zip(&mut samples.values) {
                if stop::asked() || bench.is_absent(peer.word()) {
                    continue;
                }
                match measure(bench, peer, samples.metric) {
                    Ok(value) => values.push(value),
                    Err(_) if stop::asked() => {}
                    Err(why) if peer == Peer::Millrace => {
                        bench.leave_out(peer.word(), &why);
                        self.failed.get_or_insert(why);
                    }
                    Err(why) => bench.leave_out(peer.word(), why),
                }
            }
        }
    }

    /// An error when Millrace could not be measured.
    pub fn check(&self) -> Result<(), Failure> {
        self.failed.clone().map_or(Ok(()), |why| Err(Failure::Found(why)))
    }

    /// Reserves huge pages, without which the others do not run.
    fn prepare(&mut self, bench: &mut Bench<'_>) {
        if self.pages.is_some() {
            return;
        }
        match HugePages::reserve(PAGES) {
            Ok(pages) => self.pages = Some(pages),
            Err(why) => {
                [Peer::OvsDpdk, Peer::Testpmd].iter().for_each(|peer| bench.leave_out(peer.word(), &why));
            }
        }
    }

    /// What came of it.
    pub fn rows(&self) -> Vec<Row> {
        self.samples.iter().map(Samples::row).collect()
    }
}

impl Samples {
    fn row(&self) -> Row {
        let [ours, ovs, testpmd] = self.values.each_ref().map(|values| median(values));
        let ratio = |other: Option<f64>| Some(ours? / other?);
        let decimals = self.metric.decimals();
        self.metric
            .row(self.rounds)
            .maybe(Peer::Millrace.word(), ours, decimals)
            .maybe(Peer::OvsDpdk.word(), ovs, decimals)
            .maybe(Peer::Testpmd.word(), testpmd, decimals)
            .maybe("ratio_to_ovs", ratio(ovs), 3)
            .maybe("ratio_to_testpmd", ratio(testpmd), 3)
    }
}

/// One measurement. Errors are sentences.
fn measure(bench: &Bench<'_>, peer: Peer, metric: Metric) -> Result<f64, String> {
    if metric == Metric::ReflectRttP50 {
        let mut forwarder = start::start(peer, Wiring::Back, bench.cores)?;
        let times = source::round_trips(&mut forwarder, metric.size(), bench.seconds)?;
        return times.quantile(0.5).map(|time| time as f64).ok_or_else(|| "no frame came back in time".to_owned());
    }
    let mut forwarder = start::start(peer, Wiring::Through, bench.cores)?;
    source::forward(&mut forwarder, metric.size(), bench.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_ours_to_theirs_and_missing_where_they_are() {
        let mut samples = Samples { metric: Metric::ForwardMpps64, rounds: 3, values: Default::default() };
        samples.values = [vec![20.0, 30.0, 25.0], vec![10.0], vec![]];
        let json = samples.row().to_json();
        let wanted = r#""millrace":25.0,"ovs_dpdk":10.0,"testpmd":null,"ratio_to_ovs":2.5,"ratio_to_testpmd":null}"#;
        assert!(json.ends_with(wanted), "{json}");
    }
}
