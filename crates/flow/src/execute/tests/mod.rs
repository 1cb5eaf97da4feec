//! What is done to frames: against checksums computed anew and the keys of the tables, byte by byte, and who gets what.

pub(crate) mod build;
mod bytes;
mod edits;
mod emissions;
mod open_vswitch;
mod quic;
mod tunnels;

use super::{Emission, Emissions, Environment, Frame, HEADROOM, Stop, execute};
use crate::action::Action;
use crate::extract::Ingress;
use crate::rss::{Group, GroupSpec, MICROSOFT_KEY};
use millrace_packet::parse::MacAddress;
use std::net::IpAddr;

/// A small world: group 1 over four queues, group 2 by what is within tunnels, meters that admit so many frames, and one
/// neighbour.
struct World {
    groups: [Group; 2],
    admitted: u32,
    random: u32,
    neighbour: Option<MacAddress>,
    /// Where QUIC groups are, if there are any.
    quic: Option<std::sync::Arc<crate::table::Tables>>,
}

const NEIGHBOUR: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);
const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 8]);

impl World {
    fn new() -> Self {
        let spec = GroupSpec::spread(&MICROSOFT_KEY, 4, 4);
        let inner = GroupSpec { inner: true, ..spec.clone() };
        let groups = [spec, inner].map(|spec| Group::new(&spec).unwrap());
        Self { groups, admitted: 1, random: 0, neighbour: Some(NEIGHBOUR), quic: None }
    }
}

impl Environment for World {
    fn group(&self, group: u32) -> Option<&Group> {
        self.groups.get(group.checked_sub(1)? as usize)
    }

    fn quic(&self, group: u32) -> Option<&crate::quic::Group> {
        self.quic.as_ref()?.quic(group).map(|group| &**group)
    }

    fn now_ns(&self) -> u64 {
        0
    }

    fn admit(&mut self, _: u32, _: usize) -> bool {
        let left = self.admitted > 0;
        self.admitted = self.admitted.saturating_sub(1);
        left
    }

    /// Meters from 8 on mark packets: meter 9 makes precedences one step worse.
    fn remark(&self, meter: u32) -> Option<u8> {
        meter.checked_sub(8).map(|steps| steps as u8)
    }

    fn random(&mut self) -> u32 {
        self.random
    }

    fn neighbour(&mut self, _: IpAddr) -> Option<MacAddress> {
        self.neighbour
    }

    fn own_mac(&mut self, _: IpAddr) -> Option<MacAddress> {
        Some(OWN)
    }
}

/// Actions as they are written, whether or not a rule could have them.
fn actions(text: &str) -> Vec<Action> {
    let mut depth = 0;
    let pieces = text.split(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ',' && depth == 0
    });
    pieces.map(|action| action.parse().unwrap_or_else(|error| panic!("{action}: {error}"))).collect()
}

/// What is left of a frame that came in at port 7.
fn edited(frame: &[u8], actions: &[Action]) -> Result<Vec<u8>, Stop> {
    let mut buffer = vec![0xee; frame.len() + HEADROOM];
    let mut frame = Frame::new(frame, &mut buffer, Ingress { port: 7, ..Ingress::default() });
    execute(actions, &mut frame, &mut World::new(), &mut Emissions::new(64, 0))?;
    Ok(frame.bytes().to_vec())
}

/// Emissions with their bytes.
type Sent = Vec<(Emission, Vec<u8>)>;

/// Who gets what.
fn emitted(frame: &[u8], actions: &[Action], world: &mut World) -> (Sent, Result<(), Stop>) {
    let mut buffer = vec![0xee; frame.len() + HEADROOM];
    let mut frame = Frame::new(frame, &mut buffer, Ingress { port: 7, ..Ingress::default() });
    let mut out = Emissions::new(64, 4096);
    let done = execute(actions, &mut frame, world, &mut out);
    assert_eq!(out.lost(), 0);
    let list = out.list().iter().map(|emission| (emission.clone(), out.bytes(emission, &frame).to_vec())).collect();
    (list, done)
}
