//! Frames through vhost-user sockets, forwarded by Millrace, by OVS-DPDK and by `dpdk-testpmd`.

use millrace_tool::failure::Failure;
use millrace_tool::output::Row;
use millrace_tool::stop;

use super::forwarder::{Peer, Wiring};
use super::metric::Metric;
use super::samples::{self, Samples};
use super::setting::Bench;
use super::source::{Ends, Way};
use super::traffic::{Change, Traffic};
use super::{rules, source, start};
use crate::pages::HugePages;

/// Huge pages that the largest forwarder and the source need, with some to spare.
pub const PAGES: u64 = 80;
/// Flows of [`Metric::ClassifiedMpps64`].
const FLOWS: usize = 100_000;

/// All who forward.
const COLUMNS: usize = Peer::ALL.len();

/// Everything measured so far.
pub struct Comparison {
    samples: Vec<Samples<COLUMNS>>,
    /// Reserved in the first round.
    pages: Option<HugePages>,
    /// What went wrong with Millrace itself: the others are still measured, but the run has failed.
    failed: Option<String>,
}

impl Comparison {
    /// Nothing yet.
    pub fn new(metrics: impl Iterator<Item = Metric>) -> Self {
        Self { samples: metrics.map(Samples::new).collect(), pages: None, failed: None }
    }

    /// Measures everything once.
    pub fn measure(&mut self, bench: &mut Bench<'_>) {
        if self.samples.is_empty() {
            return;
        }
        self.prepare(bench);
        for samples in &mut self.samples {
            let metric = samples.metric;
            samples.begin();
            for (at, peer) in Peer::ALL.into_iter().enumerate() {
                let has_no_rules = metric == Metric::ClassifiedMpps64 && peer == Peer::Testpmd;
                if stop::asked() || bench.is_absent(peer.word()) || has_no_rules {
                    continue;
                }
                let cores = bench.cores;
                match samples::take(cores, metric, peer.word(), || measure(bench, peer, metric).map(Some)) {
                    Ok(sample) => samples.add(at, sample),
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
        self.samples.iter().map(row).collect()
    }
}

fn row(samples: &Samples<COLUMNS>) -> Row {
    let (metric, chosen) = (samples.metric, samples.choose());
    let values = Peer::ALL.into_iter().zip(chosen.values);
    let start = chosen.row(metric, metric.size());
    values
        .fold(start, |row, (peer, value)| row.maybe(peer.word(), value, metric.decimals()))
        .maybe("ratio_to_ovs", chosen.ratio(0, 1), 3)
        .maybe("ratio_to_testpmd", chosen.ratio(0, 2), 3)
}

/// One measurement. Errors are sentences.
fn measure(bench: &Bench<'_>, peer: Peer, metric: Metric) -> Result<f64, String> {
    if metric == Metric::ReflectRttP50 {
        let mut forwarder = start::start(peer, Wiring::Back, bench.cores)?;
        let times = source::round_trips(&mut forwarder, metric.size(), bench.seconds)?;
        return times.quantile(0.5).map(|time| time as f64).ok_or_else(|| "no frame came back in time".to_owned());
    }
    if metric == Metric::ClassifiedMpps64 {
        let mut forwarder = start::start(peer, Wiring::Classified, bench.cores)?;
        let traffic = Traffic::new(rules::classified_frames(FLOWS), Change::None);
        return Ends::connect(&forwarder)?.rate(&mut forwarder, Way::There, &traffic, bench.seconds);
    }
    let mut forwarder = start::start(peer, Wiring::Through, bench.cores)?;
    source::forward(&mut forwarder, metric.size(), bench.seconds)
}

#[cfg(test)]
mod tests {
    use super::super::samples::of_rounds;
    use super::*;

    #[test]
    fn ratios_are_ours_to_theirs_and_missing_where_they_are() {
        let round = |ours| [Some((ours, 110.0)), Some((10.0, 110.0)), None];
        let samples = of_rounds(Metric::ForwardMpps64, &[round(20.0), round(30.0), round(25.0)]);
        let json = row(&samples).to_json();
        let wanted = r#""millrace":25.0,"ovs_dpdk":10.0,"testpmd":null,"ratio_to_ovs":2.5,"ratio_to_testpmd":null}"#;
        assert!(json.ends_with(wanted), "{json}");
    }
}
