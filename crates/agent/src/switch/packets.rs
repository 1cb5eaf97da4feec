//! Packets to controllers and from them (sections 6.1.1, 7.3.7, 7.4.1). Of those of which a controller wants a part, the whole is kept for a while.

use super::datapath::{Datapath, FlowKey, Rejected, Snapshot};
use super::entries::Entry;
use super::fields::{self, came_in, port_of};
use super::through::{self, Traveller};
use super::{Switch, compile};
use crate::wire::Message;
use crate::wire::action::Action;
use crate::wire::error::{Refusal, action as action_refused, request};
use crate::wire::flow::NO_BUFFER;
use crate::wire::instruction::Instruction;
use crate::wire::packet::{PacketIn, PacketOut, reason};
use crate::wire::port::{config, number};
use millrace_flow::Tunnel;
use millrace_flow::field::LOCAL;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Most bytes of a packet in a message, which has 64 KiB.
const MOST_BYTES: usize = 60_000;

/// Most packets that are kept for controllers; the oldest makes room.
pub const MOST_BUFFERS: usize = 256;
/// Their numbers begin again behind this one.
const LAST_BUFFER: u32 = i32::MAX as u32;

/// A bit of the cookies of rules at the datapath: the rule sends packets to controllers. What controllers see is the cookie that they have given.
pub const PUNTS: u64 = 1 << 63;

/// A packet that rules have sent to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The port of the datapath where it came in.
    pub port: u32,
    /// The tunnel out of which it came.
    pub tunnel: Option<Tunnel>,
    /// Numbers of the rules that it met, in order.
    pub rules: Vec<u64>,
    /// A rule has found its time to live at its end.
    pub is_expired: bool,
    /// Its length, of which `bytes` may be the beginning.
    pub len: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A packet that is kept until a controller says what becomes of it.
#[derive(Debug)]
pub(super) struct Buffered {
    number: u32,
    /// The port of the datapath where it came in.
    pub port: u32,
    pub bytes: Vec<u8>,
}

/// Which rule has which number, and the packets that are kept.
#[derive(Debug, Default)]
pub(super) struct Packets {
    numbers: HashMap<u64, FlowKey>,
    buffers: VecDeque<Buffered>,
    last: u32,
    /// When the numbers were learned; `None`: something was changed since.
    learned: Option<Duration>,
    pub losses: Losses,
}

/// What was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Packets for controllers whose rule had gone before they were heard.
    pub unknown: u64,
    /// Packets that were kept and made room for others.
    pub kept: u64,
    /// Entries that have gone and of which it is not known what they had.
    pub untold: u64,
}

/// How long rules that are not known are not looked for again when nothing has changed.
const LEARNED: Duration = Duration::from_millis(100);

impl Packets {
    /// Keeps a packet; its number.
    fn keep(&mut self, port: u32, bytes: Vec<u8>) -> u32 {
        self.last = if self.last >= LAST_BUFFER { 1 } else { self.last + 1 };
        if self.buffers.len() >= MOST_BUFFERS {
            self.buffers.pop_front();
            self.losses.kept += 1;
        }
        self.buffers.push_back(Buffered { number: self.last, port, bytes });
        self.last
    }

    /// Rules have changed, and with them their numbers.
    pub fn forget_numbers(&mut self) {
        self.learned = None;
    }

    /// A packet that was kept: it is so once only.
    pub fn take(&mut self, number: u32) -> Result<Buffered, Refusal> {
        let at = self.buffers.iter().position(|kept| kept.number == number);
        let was_there = (1..=self.last).contains(&number);
        let gone = if was_there { request::BUFFER_EMPTY } else { request::BUFFER_UNKNOWN };
        at.and_then(|at| self.buffers.remove(at)).ok_or(gone)
    }

    /// What was to become of it cannot be: it is kept for another try, as the oldest.
    pub fn put_back(&mut self, kept: Buffered) {
        self.buffers.push_front(kept);
    }
}

/// What can be done to a packet of a controller: it goes to ports.
pub(super) fn goes(action: &millrace_flow::Action) -> bool {
    use millrace_flow::Action::{Output, Punt, Queue, Rss};
    !matches!(action, Queue(_) | Rss(_) | Punt(_) | Output(LOCAL))
}

/// Values and masks that instructions write into the metadata, in order; of those that send the packet, what they write before.
fn writes(instructions: &[Instruction], sends: bool) -> impl Iterator<Item = (u64, u64)> {
    use Instruction::{ApplyActions, WriteMetadata};
    let applied =
        instructions.iter().find_map(|one| if let ApplyActions(actions) = one { Some(&actions[..]) } else { None });
    let applied = applied.unwrap_or_default();
    let ends = |action: &Action| matches!(action, Action::Output { port: number::CONTROLLER, .. } | Action::DecNwTtl);
    let end = applied.iter().rposition(ends).filter(|_| sends).unwrap_or(applied.len());
    let applied = applied[..end].iter().filter_map(|action| match action {
        Action::SetField(oxm) => fields::metadata(oxm),
        _ => None,
    });
    let written = instructions.iter().filter_map(move |one| match one {
        WriteMetadata { metadata, mask } if !sends => Some((metadata & mask, *mask)),
        _ => None,
    });
    applied.chain(written)
}

/// Through the tables, and not out of a port.
fn to_tables(action: &Action) -> bool {
    matches!(action, Action::Output { port: number::TABLE, .. })
}

impl Switch {
    /// Learns which rule has which number.
    pub(super) fn learn(&mut self, snapshot: &Snapshot) {
        self.packets.learned = Some(self.now);
        self.packets.numbers = snapshot.rules.iter().map(|(key, counts)| (counts.number, *key)).collect();
    }

    /// Whether there is an entry that sends packets to controllers, and one of these wants them.
    pub fn wants_packets(&self) -> bool {
        let wants = |reason| !self.listeners(|wants| wants.packet_in, reason).is_empty();
        self.entries.count_users(compile::Use::Controller) > 0 && (wants(reason::NO_MATCH) || wants(reason::ACTION))
    }

    /// Whether there is an entry that counts the time to live of packets down, and a controller that wants those at its end.
    pub fn wants_expired(&self) -> bool {
        let wants = || !self.listeners(|wants| wants.packet_in, reason::INVALID_TTL).is_empty();
        self.entries.count_users(compile::Use::Expires) > 0 && wants()
    }

    /// A packet that rules have sent to the controller.
    pub fn packet_in(&mut self, heard: Heard, datapath: &mut dyn Datapath) {
        let is_fresh = self.packets.learned.is_some_and(|at| self.now.saturating_sub(at) < LEARNED);
        if !is_fresh
            && heard.rules.iter().any(|rule| !self.packets.numbers.contains_key(rule))
            && let Ok(snapshot) = datapath.snapshot()
        {
            self.learn(&snapshot);
        }
        let of = if heard.is_expired { compile::Use::Expires } else { compile::Use::Controller };
        let is_meant = |key: &FlowKey| self.entries.get(key).is_some_and(|entry| entry.uses.contains(&of));
        let met: Vec<_> = heard.rules.iter().filter_map(|rule| self.packets.numbers.get(rule)).copied().collect();
        // The first that counts down has found it so, the last that sends has sent it as it is.
        let at = if heard.is_expired { met.iter().position(is_meant) } else { met.iter().rposition(is_meant) };
        let Some(at) = at else {
            self.packets.losses.unknown += 1;
            return;
        };
        let metadata = self.metadata(&met[..at], &met[at]);
        self.tell_packet(&met[at], heard, metadata);
    }

    /// What the entries that a packet has met have written into its metadata before the last of them has sent it.
    fn metadata(&self, before: &[FlowKey], last: &FlowKey) -> u64 {
        let instructions = |key| self.entries.get(key).map_or(&[][..], |entry: &Entry| &entry.instructions);
        let written = before.iter().flat_map(|key| writes(instructions(key), false));
        let written = written.chain(writes(instructions(last), true));
        written.fold(0, |now, (value, mask)| now & !mask | value)
    }

    /// Tells controllers of a packet, because of an entry.
    fn tell_packet(&mut self, key: &FlowKey, heard: Heard, metadata: u64) {
        let told = |entry: &Entry| (entry.cookie, usize::from(entry.told));
        let Some((cookie, most)) = self.entries.get(key).map(told) else { return };
        let (why, most) = match heard.is_expired {
            // No action says how much (section 7.3.2).
            true => (reason::INVALID_TTL, usize::from(self.config.miss_send_len)),
            false if key.is_miss() => (reason::NO_MATCH, most),
            false => (reason::ACTION, most),
        };
        let port = heard.tunnel.and_then(|tunnel| tunnel.port).unwrap_or(heard.port);
        if self.config_of(port) & config::NO_PACKET_IN != 0 {
            return;
        }
        let mut data = heard.bytes;
        data.truncate(MOST_BYTES);
        let mut buffer = NO_BUFFER;
        // One of which the end is not there is told as it is.
        if data.len() > most && data.len() == heard.len as usize {
            let part = data[..most].to_vec();
            buffer = self.packets.keep(port, std::mem::replace(&mut data, part));
        }
        let packet = PacketIn {
            buffer,
            len: u16::try_from(heard.len).unwrap_or(u16::MAX),
            reason: why,
            table: key.table,
            cookie,
            matching: came_in(heard.port, metadata, heard.tunnel, self.local_of(port)),
            data,
        };
        self.tell(Message::PacketIn(packet), |wants| wants.packet_in, why);
    }

    /// The IPv4 address of this end of the tunnel that is a port.
    fn local_of(&self, port: u32) -> Option<Ipv4Addr> {
        match self.tunnels.iter().find(|tunnel| tunnel.port == port)?.local {
            IpAddr::V4(local) => Some(local),
            IpAddr::V6(_) => None,
        }
    }

    pub(super) fn packet_out(&mut self, packet: &PacketOut, datapath: &mut dyn Datapath) -> Result<(), Refusal> {
        let kept = match packet.buffer {
            NO_BUFFER => None,
            number => Some(self.packets.take(number)?),
        };
        let data = kept.as_ref().map_or(&packet.data, |kept| &kept.bytes);
        let done = self.send_packet(packet, data, datapath);
        if let (Err(_), Some(kept)) = (&done, kept) {
            self.packets.put_back(kept);
        }
        done
    }

    fn send_packet(&mut self, packet: &PacketOut, data: &[u8], datapath: &mut dyn Datapath) -> Result<(), Refusal> {
        let port = match packet.in_port {
            number::CONTROLLER | number::LOCAL => LOCAL,
            other => port_of(other).ok_or(request::BAD_PORT)?,
        };
        if data.len() < 14 {
            return Err(request::BAD_PACKET);
        }
        if packet.actions.iter().any(to_tables) {
            return self.packet_to_tables(data, port, &packet.actions, datapath);
        }
        let actions = compile::packet(&packet.actions, Some(port), &self.world())?;
        if !actions.iter().all(goes) {
            return Err(action_refused::BAD_OUT_PORT);
        }
        self.send_out(data, port, &actions, datapath).map_err(|_| action_refused::BAD_OUT_PORT)
    }

    /// Actions among which one is that the packet goes through the tables. What these do to it is not done for what comes behind.
    fn packet_to_tables(
        &mut self,
        data: &[u8],
        port: u32,
        actions: &[Action],
        datapath: &mut dyn Datapath,
    ) -> Result<(), Refusal> {
        let mut parts = actions.split(to_tables);
        let (before, behind) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        // Each way through the tables looks at all their entries: one packet has one.
        if parts.next().is_some() {
            return Err(action_refused::TOO_MANY);
        }
        let before = compile::packet(before, Some(port), &self.world())?;
        let behind = compile::packet(behind, Some(port), &self.world())?;
        if !before.iter().chain(&behind).all(goes) {
            return Err(action_refused::BAD_OUT_PORT);
        }
        let mut heard = Vec::new();
        let mut buffer = through::buffer(data.len());
        let mut traveller = Traveller::new(data, &mut buffer, port, datapath);
        if traveller.undergo(&before, &self.groups) {
            heard = self.through_tables(&mut traveller);
        }
        let mut buffer = through::buffer(data.len());
        let mut traveller = Traveller::new(data, &mut buffer, port, datapath);
        // What was sent before is not sent again.
        let done: Vec<_> = before.into_iter().filter(|action| !millrace_flow::execute::emits(action)).collect();
        if traveller.undergo(&done, &self.groups) {
            traveller.undergo(&behind, &self.groups);
        }
        heard.into_iter().for_each(|(key, heard, metadata)| self.tell_packet(&key, heard, metadata));
        Ok(())
    }

    /// A packet that was kept goes through the tables, when the entry that it has waited for is there (section 7.3.4.2).
    pub(super) fn send_kept(&mut self, kept: &Buffered, datapath: &mut dyn Datapath) {
        let through = [Action::Output { port: number::TABLE, max_len: 0 }];
        // One that no entry wants is dropped, as any other.
        let _ = self.packet_to_tables(&kept.bytes, kept.port, &through, datapath);
    }

    /// Sends a packet as actions say.
    fn send_out(
        &self,
        data: &[u8],
        port: u32,
        actions: &[millrace_flow::Action],
        datapath: &mut dyn Datapath,
    ) -> Result<(), Rejected> {
        let chooses = |action: &millrace_flow::Action| matches!(action, millrace_flow::Action::Balance(_));
        if !actions.iter().any(chooses) {
            return if actions.is_empty() { Ok(()) } else { datapath.send(data, port, actions) };
        }
        let mut buffer = through::buffer(data.len());
        Traveller::new(data, &mut buffer, port, datapath).undergo(actions, &self.groups);
        Ok(())
    }
}
