//! Packets to controllers and from them (sections 6.1.1, 7.3.7, 7.4.1). None is buffered: controllers get all of each, and send all of each.

use super::datapath::{Datapath, FlowKey, Snapshot};
use super::entries::Entry;
use super::fields::{in_port, port_of};
use super::{Switch, compile};
use crate::wire::Message;
use crate::wire::error::{Refusal, action as action_refused, request};
use crate::wire::flow::NO_BUFFER;
use crate::wire::packet::{PacketIn, PacketOut, reason};
use crate::wire::port::number;
use millrace_flow::field::LOCAL;
use std::collections::HashMap;

/// Most bytes of a packet in a message, which has 64 KiB.
const MOST_BYTES: usize = 60_000;

/// A bit of the cookies of rules at the datapath: the rule sends packets to controllers. What controllers see is the cookie that they have given.
pub const PUNTS: u64 = 1 << 63;

/// A packet that rules have sent to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The port of the datapath where it came in.
    pub port: u32,
    /// Numbers of the rules that it met, in order.
    pub rules: Vec<u64>,
    /// Its length, of which `bytes` may be the beginning.
    pub len: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Which rule has which number.
#[derive(Debug, Default)]
pub(super) struct Packets {
    numbers: HashMap<u64, FlowKey>,
}

impl Switch {
    /// Learns which rule has which number.
    pub(super) fn learn(&mut self, snapshot: &Snapshot) {
        self.packets.numbers = snapshot.rules.iter().map(|(key, counts)| (counts.number, *key)).collect();
    }

    /// Whether there is an entry that sends packets to controllers, and one of these wants them.
    pub fn wants_packets(&self) -> bool {
        let wants = |reason| !self.listeners(|wants| wants.packet_in, reason).is_empty();
        self.entries.count_users(compile::Use::Controller) > 0 && (wants(reason::NO_MATCH) || wants(reason::ACTION))
    }

    /// A packet that rules have sent to the controller.
    pub fn packet_in(&mut self, heard: Heard, datapath: &mut dyn Datapath) {
        if heard.rules.iter().any(|rule| !self.packets.numbers.contains_key(rule))
            && let Ok(snapshot) = datapath.snapshot()
        {
            self.learn(&snapshot);
        }
        let sends =
            |key: &FlowKey| self.entries.get(key).is_some_and(|entry| entry.uses.contains(&compile::Use::Controller));
        let met = heard.rules.iter().rev().filter_map(|rule| self.packets.numbers.get(rule)).copied();
        let Some(key) = met.into_iter().find(sends) else { return };
        let Some(cookie) = self.entries.get(&key).map(|entry: &Entry| entry.cookie) else { return };
        let why = if key.is_miss() { reason::NO_MATCH } else { reason::ACTION };
        let mut data = heard.bytes;
        data.truncate(MOST_BYTES);
        let packet = PacketIn {
            buffer: NO_BUFFER,
            len: u16::try_from(heard.len).unwrap_or(u16::MAX),
            reason: why,
            table: key.table,
            cookie,
            matching: vec![in_port(heard.port)],
            data,
        };
        self.tell(Message::PacketIn(packet), |wants| wants.packet_in, why);
    }

    pub(super) fn packet_out(&mut self, packet: &PacketOut, datapath: &mut dyn Datapath) -> Result<(), Refusal> {
        if packet.buffer != NO_BUFFER {
            return Err(request::BUFFER_UNKNOWN);
        }
        let port = match packet.in_port {
            number::CONTROLLER | number::LOCAL => LOCAL,
            other => port_of(other).ok_or(request::BAD_PORT)?,
        };
        if packet.data.len() < 14 {
            return Err(request::BAD_PACKET);
        }
        let actions = compile::packet(&packet.actions, &self.world())?;
        // What comes from a controller goes to ports.
        let goes = |action: &millrace_flow::Action| {
            use millrace_flow::Action::{Output, Punt, Queue, Rss};
            !matches!(action, Queue(_) | Rss(_) | Punt(_) | Output(LOCAL))
        };
        if !actions.iter().all(goes) {
            return Err(action_refused::BAD_OUT_PORT);
        }
        if actions.is_empty() {
            return Ok(());
        }
        datapath.send(&packet.data, port, &actions).map_err(|_| action_refused::BAD_OUT_PORT)
    }
}
