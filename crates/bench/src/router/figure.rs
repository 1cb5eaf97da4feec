//! The figures that goals are set for, out of what was measured.

use millrace_tool::output::Row;

use super::cell::Cell;
use super::delay::Delays;
use super::path::Path;
use super::streams::Stream;
use super::work::{Protocol, Traffic, Work};

/// A figure, and what it should be.
pub struct Figure {
    pub metric: &'static str,
    value: Option<f64>,
    goal: &'static str,
}

impl Figure {
    /// Whether it was measured.
    pub fn is_known(&self) -> bool {
        self.value.is_some()
    }

    pub fn row(&self) -> Row {
        Row::new()
            .tag("bench", "router")
            .text("metric", self.metric)
            .maybe("value", self.value, 3)
            .text("goal", self.goal)
    }
}

/// All of them; those that could not be measured have no value. `single` are those with one core that sends, `beside` those of the engine
/// alone.
pub fn figures(
    single: &[Cell],
    beside: &[Cell],
    off: Option<&Cell>,
    double: Option<&Cell>,
    streams: &[Stream],
    delays: Option<&Delays>,
) -> Vec<Figure> {
    let cell = |protocol, size, flows| {
        let traffic = Traffic { work: Work::Snat, protocol, size, flows };
        single.iter().find(|cell| cell.traffic == traffic)
    };
    let ratio = |protocol, size, flows| cell(protocol, size, flows)?.ratio(Path::Xdp);
    let gain = |ratio: Option<f64>| ratio.map(|ratio| 100.0 * (ratio - 1.0));
    let stream = |protocol, offloads| {
        let found = streams.iter().find(|one| one.kind.protocol == protocol && one.kind.offloads == offloads)?;
        found.gbps(found.kind.fast()).zip(found.gbps(Path::Kernel)).map(|(fast, kernel)| fast / kernel)
    };
    let ns = |flows| cell(Protocol::Udp, 64, flows)?.ns(Path::Xdp);
    let two_cores = || {
        let (one, two) = (ns(1_000)?, double?.ns(Path::Xdp)?);
        Some(one / two)
    };
    let by_engine = |work| beside.iter().find(|cell| cell.traffic.work == work)?.ns(Path::Xdp);
    let to_route = |work| by_engine(Work::Route).zip(by_engine(work)).map(|(route, ns)| route / ns);
    let figure = |metric, value, goal| Figure { metric, value, goal };
    vec![
        figure("nat_64", ratio(Protocol::Udp, 64, 1), ">= 3.7"),
        figure("nat_1400", ratio(Protocol::Udp, 1400, 1), ">= 3.9"),
        figure("nat_64_100000", ratio(Protocol::Udp, 64, 100_000), ">= 3.2"),
        figure("tcp_1400_gain_percent", gain(ratio(Protocol::Tcp, 1400, 1)), ">= 250"),
        figure("udp_1400_gain_percent", gain(ratio(Protocol::Udp, 1400, 1)), ">= 250"),
        figure("iperf3_tcp_gain_percent", gain(stream(Protocol::Tcp, false)), ">= 30"),
        figure("iperf3_udp_gain_percent", gain(stream(Protocol::Udp, false)), ">= 0"),
        figure("iperf3_tcp_offloads_gain_percent", gain(stream(Protocol::Tcp, true)), ">= 0"),
        figure("flows_100000_to_1", ns(1).zip(ns(100_000)).map(|(one, many)| one / many), ">= 0.75"),
        figure("two_cores_to_one", two_cores(), ">= 1.8"),
        figure("vlan_to_route", to_route(Work::Vlan), "-"),
        figure("pppoe_to_route", to_route(Work::Pppoe), "-"),
        figure("rule_delay_p50_ms", delays.and_then(|delays| delays.quantile(0.5)), "<= 0.05"),
        figure("rule_delay_p99_ms", delays.and_then(|delays| delays.quantile(0.99)), "<= 1"),
        figure(
            "off_cost_percent",
            off.and_then(|cell| cell.ratio(Path::Off)).map(|ratio| 100.0 * (1.0 / ratio - 1.0)),
            "<= 3",
        ),
    ]
}
