//! One application and one card, against DPDK's ways to do that, a bare ring and a cache line.
//!
//! The others are programs of their own in `bench/peers`.

use millrace_abi::queue::{Mode, QueueId};
use millrace_tool::failure::Failure;
use millrace_tool::list::Sizes;
use millrace_tool::output::Row;
use millrace_tool::trips::{self, round_trips};
use millrace_tool::{send, stop};

use super::flows;
use super::metric::{Flow, Metric};
use super::programs::Programs;
use super::samples::{self, Samples};
use super::setting::Bench;
use crate::choice::first_queue;
use crate::rig::Rig;
use crate::throughput::{self, transmit};

/// Frames per call when many are on their way.
const BURST: u16 = 64;

/// The port of the card that a metric needs.
fn port(metric: Metric) -> String {
    match metric.flow() {
        Flow::Trip | Flow::Both => "loopback".to_owned(),
        Flow::Tx => "null".to_owned(),
        Flow::Rx => format!("generator:size={}", metric.size()),
    }
}

/// The better of two values, if there are any.
fn better(metric: Metric, one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) if metric.is_time() => Some(one.min(other)),
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    }
}

/// The others, by the names that their programs print.
const PEERS: [&str; 4] = ["dpdk_vhost", "dpdk_memif", "bare_ring", "cacheline"];

/// Millrace, and the others.
const COLUMNS: usize = PEERS.len() + 1;

/// Everything measured so far.
pub struct Comparison {
    samples: Vec<Samples<COLUMNS>>,
}

impl Comparison {
    /// Nothing yet.
    pub fn new(metrics: impl Iterator<Item = Metric>) -> Self {
        Self { samples: metrics.map(Samples::new).collect() }
    }

    /// Measures everything once.
    pub fn measure(&mut self, bench: &mut Bench<'_>, programs: &Programs) -> Result<(), Failure> {
        for samples in &mut self.samples {
            let (metric, cores) = (samples.metric, bench.cores);
            samples.begin();
            if stop::asked() {
                break;
            }
            let ours = || measure_ours(bench, metric).map(Some);
            samples.add(0, samples::take(cores, metric, "millrace", ours)?);
            for (at, peer) in PEERS.into_iter().enumerate().filter(|(_, peer)| has(peer, metric)) {
                let theirs = || programs.measure(bench, peer, metric, &[]);
                samples.add(at + 1, samples::take(cores, metric, peer, theirs)?);
            }
        }
        Ok(())
    }

    /// What came of it.
    pub fn rows(&self, engine: &str, mode: Mode) -> Vec<Row> {
        self.samples.iter().map(|samples| row(samples, engine, mode)).collect()
    }
}

/// A cache line has only a round trip.
fn has(peer: &str, metric: Metric) -> bool {
    peer != "cacheline" || metric.is_time()
}

fn row(samples: &Samples<COLUMNS>, engine: &str, mode: Mode) -> Row {
    let (metric, chosen) = (samples.metric, samples.choose());
    let [ours, vhost, memif, ..] = chosen.values;
    let decimals = metric.decimals();
    let row = chosen.row(metric, metric.size()).tag("engine", engine).tag("mode", mode);
    let row = row.maybe("millrace", ours, decimals);
    let row = PEERS.iter().zip(&chosen.values[1..]).fold(row, |row, (peer, value)| row.maybe(peer, *value, decimals));
    let dpdk = better(metric, vhost, memif);
    row.maybe("ratio_to_dpdk", ours.zip(dpdk).map(|(ours, dpdk)| ours / dpdk), 3).maybe(
        "ratio_to_bare",
        chosen.ratio(0, 3),
        3,
    )
}

/// One measurement of Millrace, with a card process of its own as the others have.
fn measure_ours(bench: &Bench<'_>, metric: Metric) -> Result<f64, Failure> {
    let &Bench { shared, cores, engine, mode, seconds, .. } = bench;
    let card = Rig::start(shared, cores, engine, &port(metric))?;
    let rig = card.in_mode(mode);
    let session = rig.session()?;
    let (queue, burst) = (first_queue(shared), shared.burst_or(BURST));
    let flow = match metric.flow() {
        Flow::Trip => {
            let median = median_trip(bench, &rig, metric.size())?;
            card.end()?;
            return Ok(median);
        }
        Flow::Tx => {
            let sizes = Sizes::one(u32::from(metric.size()));
            let extent = throughput::Extent { count: u64::MAX, seconds };
            transmit(&session, queue, &sizes, burst, extent)?
        }
        Flow::Rx => flows::receive(&mut session.rx(queue)?, burst, seconds)?,
        Flow::Both => {
            let (mut rx, mut tx) = rig.pair(&session)?;
            let flow = flows::both(&mut rx, &mut tx, metric.size(), burst, seconds)?;
            send::finish(tx)?;
            flow
        }
    };
    sound(flow.lost, flow.corrupt)?;
    session.engine(QueueId::tx(queue))?;
    drop(session);
    card.end()?;
    Ok(if metric.unit() == "Mpps" { flow.mpps() } else { flow.gbps() })
}

/// The median round trip of a frame of that size, in ns.
pub fn median_trip(bench: &Bench<'_>, rig: &Rig, size: u16) -> Result<f64, Failure> {
    let session = rig.session()?;
    let (mut rx, mut tx) = rig.pair(&session)?;
    let extent = trips::Extent { count: bench.shared.count.unwrap_or(1_000_000), seconds: Some(bench.seconds) };
    let trips = round_trips(&mut rx, &mut tx, size, extent)?;
    send::finish(tx)?;
    sound(trips.lost, trips.corrupt)?;
    Ok(trips.times.quantile(0.5).unwrap_or(0) as f64)
}

fn sound(lost: u64, corrupt: u64) -> Result<(), Failure> {
    if lost + corrupt == 0 || stop::asked() {
        return Ok(());
    }
    Err(Failure::Found(format!("{lost} packets lost, {corrupt} corrupt: such a measurement is none")))
}

#[cfg(test)]
mod tests {
    use super::super::samples::of_rounds;
    use super::*;

    #[test]
    fn ratios_are_to_the_better_one() {
        let at = |value| Some((value, 110.0));
        let samples = of_rounds(Metric::RttP50, &[[at(500.0), at(1000.0), at(2000.0), at(400.0), None]]);
        let json = row(&samples, "medusa", Mode::Direct).to_json();
        assert!(
            json.ends_with(
                r#""millrace":500.0,"dpdk_vhost":1000.0,"dpdk_memif":2000.0,"bare_ring":400.0,"cacheline":null,"ratio_to_dpdk":0.5,"ratio_to_bare":1.25}"#
            ),
            "{json}"
        );
        let of_both = |metric: Metric| better(metric, Some(1.0), Some(2.0));
        assert_eq!([Metric::RttP50, Metric::TxMpps64].map(of_both), [Some(1.0), Some(2.0)]);
        assert_eq!(better(Metric::TxMpps64, None, Some(2.0)), Some(2.0));
    }
}
