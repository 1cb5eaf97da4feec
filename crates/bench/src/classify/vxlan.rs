//! What VXLAN costs: frames between two vhost-user sockets, put into packets one way and taken out the other, beside the same without, and
//! beside Open vSwitch's tunnels.

use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Row, note};
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use super::Metric;
use crate::matrix::single_sizes;
use crate::median::median;
use crate::pages::HugePages;
use crate::peers::forwarder::{Peer, Wiring};
use crate::peers::samples::Samples;
use crate::peers::source::{Ends, Way};
use crate::peers::start;
use crate::peers::switches::PAGES;
use crate::peers::traffic::{Change, Frames, Traffic, udp, vxlan};
use crate::rig::Cores;
use crate::steady;

/// Packet sizes unless `--size` says otherwise: the inner frame, without FCS.
const SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1518];
/// Flows at once: one in each buffer of the sender, so that sending costs nothing.
const FLOWS: u16 = 256;

/// Columns of the samples.
const ON: usize = 0;
const OFF: usize = 1;
const OVS: usize = 2;

/// Everything measured so far.
pub struct Comparison {
    cells: Vec<Cell>,
    pages: Option<HugePages>,
    /// Why Open vSwitch cannot be measured here.
    absent: Option<String>,
}

/// One size.
struct Cell {
    samples: Samples<3, u16>,
    /// Each way by itself: ours, one per sample of `ON`.
    encap: Vec<f64>,
    decap: Vec<f64>,
}

impl Comparison {
    /// Nothing yet, and nothing to be measured unless it is `wanted`.
    pub fn new(shared: &Shared, wanted: bool) -> Result<Self, Failure> {
        let sizes = if wanted { single_sizes(shared, &SIZES)? } else { Vec::new() };
        let cell = |size| Cell { samples: Samples::new(size), encap: Vec::new(), decap: Vec::new() };
        Ok(Self { cells: sizes.into_iter().map(cell).collect(), pages: None, absent: None })
    }

    /// How many sizes.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Measures every size once.
    pub fn measure(&mut self, cores: Cores, seconds: f64, steps: &Steps) -> Result<(), Failure> {
        if !self.cells.is_empty() && self.pages.is_none() && self.absent.is_none() {
            match HugePages::reserve(PAGES) {
                Ok(pages) => self.pages = Some(pages),
                Err(why) => self.leave_out(why),
            }
        }
        for at in 0..self.cells.len() {
            if stop::asked() {
                break;
            }
            let size = self.cells[at].samples.metric;
            steps.next(format!("vxlan_ratio, {size} bytes"));
            self.cells[at].samples.begin();
            self.cells[at].ours(cores, seconds).map_err(Failure::Found)?;
            if self.absent.is_none()
                && !stop::asked()
                && let Err(why) = self.cells[at].theirs(cores, seconds)
            {
                self.leave_out(why);
            }
        }
        Ok(())
    }

    fn leave_out(&mut self, why: String) {
        if !stop::asked() {
            note(format!("ovs_dpdk is left out: {why}"));
        }
        self.absent = Some(why);
    }

    /// A row for each size.
    pub fn rows(&self) -> Vec<Row> {
        self.cells.iter().map(Cell::row).collect()
    }
}

impl Cell {
    fn ours(&mut self, cores: Cores, seconds: f64) -> Result<(), String> {
        let size = self.samples.metric;
        let mut ways = Vec::new();
        let on = steady::take(cores, &format!("vxlan_ratio {size}, on"), shown, || {
            let (encap, decap) = both_ways(Peer::Millrace, size, cores, seconds)?;
            ways.push((encap, decap));
            Ok::<_, String>(Some(together(encap, decap)))
        })?;
        let kept = on.and_then(|_| ways.pop());
        self.encap.extend(kept.map(|(encap, _)| encap));
        self.decap.extend(kept.map(|(_, decap)| decap));
        let off = steady::take(cores, &format!("vxlan_ratio {size}, off"), shown, || {
            let mut forwarder = start::start(Peer::Millrace, Wiring::Ruled, cores)?;
            let traffic = Traffic::new(frames(size), Change::None);
            Ends::connect(&forwarder)?.rate(&mut forwarder, Way::There, &traffic, seconds).map(Some)
        })?;
        self.samples.add(ON, on);
        self.samples.add(OFF, off);
        Ok(())
    }

    fn theirs(&mut self, cores: Cores, seconds: f64) -> Result<(), String> {
        let size = self.samples.metric;
        let sample = steady::take(cores, &format!("vxlan_ratio {size}, ovs"), shown, || {
            both_ways(Peer::OvsDpdk, size, cores, seconds).map(|(encap, decap)| Some(together(encap, decap)))
        })?;
        self.samples.add(OVS, sample);
        Ok(())
    }

    fn row(&self) -> Row {
        let chosen = self.samples.choose();
        let (name, unit, decimals, goal) = Metric::VxlanRatio.words();
        let row = Row::new()
            .tag("bench", "classify")
            .text("metric", name)
            .count("size", self.samples.metric.into())
            .tag("unit", unit)
            .maybe("value", chosen.ratio(ON, OFF), decimals)
            .text("goal", goal.unwrap_or("-"))
            .maybe("on", chosen.values[ON], 3)
            .maybe("off", chosen.values[OFF], 3)
            .maybe("encap", median(&self.encap), 3)
            .maybe("decap", median(&self.decap), 3)
            .maybe("ovs", chosen.values[OVS], 3)
            .maybe("ratio_to_ovs", chosen.ratio(ON, OVS), 3);
        chosen.end(row)
    }
}

fn shown(value: f64) -> String {
    format!("{value:.3} Mpps")
}

/// What a frame that takes both ways is worth: twice as many frames as come through both.
fn together(encap: f64, decap: f64) -> f64 {
    2.0 / (1.0 / encap + 1.0 / decap)
}

fn frames(size: u16) -> Frames {
    Frames::many(FLOWS.into(), |flow| udp::frame(size, flow as u16))
}

/// Millions of frames per second into packets, and out of them. Errors are sentences.
fn both_ways(peer: Peer, size: u16, cores: Cores, seconds: f64) -> Result<(f64, f64), String> {
    let mut forwarder = start::start(peer, Wiring::Vxlan, cores)?;
    let mut ends = Ends::connect(&forwarder)?;
    let encap = Traffic::new(frames(size), Change::Encapsulated);
    let encap = ends.rate(&mut forwarder, Way::There, &encap, seconds)?;
    let packets = Frames::many(FLOWS.into(), |flow| vxlan::packet(&udp::frame(size, flow as u16), flow as u16));
    let decap = ends.rate(&mut forwarder, Way::Back, &Traffic::new(packets, Change::Opened), seconds)?;
    Ok((encap, decap))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_count_as_much_as_one_that_takes_their_time() {
        assert!((together(10.0, 10.0) - 10.0).abs() < 1e-9);
        assert!((together(6.0, 12.0) - 8.0).abs() < 1e-9);
    }
}
