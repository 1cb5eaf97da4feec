//! Short SENDs: those of one packet to another process of this host, without answers ([`Short`]).

use super::{Engine, Error};
use crate::local::{Receiver, Sender, Short, Source, Taken, TakenShort};
use crate::memory::Memory;
use crate::number::{Moment, Psn, Qpn};
use crate::transport::{Origin, State, copy_out};
use crate::wire::{Headers, Packet, Path};
use crate::work::{Data, Request};

/// The way of short SENDs.
pub trait Near {
    /// One of a queue pair of this end. False: it does not go this way, now or ever.
    fn short(&mut self, path: &Path, source: Source, short: &Short, payload: &[u8]) -> bool;

    /// Something of that queue pair waits for short SENDs that are on their way.
    fn hurry(&mut self, path: &Path, qpn: Qpn);
}

/// Bytes of a short SEND that are gathered from several places, or from registered memory, at most; more go as packets.
pub(super) const MOST_SHORT: usize = 4096;

/// While nothing comes, it is looked only so often which short SENDs were done, with a program that waits for that and without: each
/// look takes the line of that word from the other end, which writes there next.
const LOOKS: u32 = 4;
const LOOKS_OF_NOBODY: u32 = 64;

/// Both rings between this process and another one.
pub struct Rings {
    /// To the other one.
    pub sender: Sender,
    /// From it.
    pub receiver: Receiver,
    /// Looks in a row in which nothing came.
    quiet: u32,
    /// Where packets between these two GIDs come from, as it was asked last.
    last: (u8, Option<Origin>),
}

impl Rings {
    /// From which nothing has come.
    pub fn new(sender: Sender, receiver: Receiver) -> Self {
        Self { sender, receiver, quiet: 0, last: (u8::MAX, None) }
    }
}

/// Where packets come from that went between these two of the GIDs of that end and of this one.
#[inline(always)]
fn sender_of(
    last: &mut (u8, Option<Origin>),
    gids: (u8, u8),
    origin: impl Fn((u8, u8)) -> Option<Origin>,
) -> Option<&Origin> {
    let code = gids.0 << 4 | gids.1;
    if last.0 != code || last.1.is_none() {
        *last = (code, origin(gids));
    }
    last.1.as_ref()
}

/// Who is shown each packet that came, and where it came from.
pub type Seen<'s> = &'s mut dyn FnMut(&Origin, &Packet<'_>);

/// What came from another process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Came {
    /// Packets and short SENDs.
    pub packets: u64,
    /// Bytes of payload in them.
    pub bytes: u64,
    /// Short SENDs that were done and not answered.
    pub shorts: u64,
    /// What was no packet, or between GIDs that there are not.
    pub malformed: u64,
    /// It was told so often that short SENDs of this end were done.
    pub settled: u64,
    /// Nothing more is to be taken from it.
    pub is_broken: bool,
}

impl<M: Memory> Engine<M> {
    /// Takes at most `budget` packets of another process, and learns which short SENDs it has done. The time is asked for when it
    /// is needed. `origin` says where a packet comes from, by which of the GIDs of both ends it went; `seen` is shown it.
    #[inline]
    pub fn take_from_ring(
        &mut self,
        now: &mut impl FnMut() -> Moment,
        rings: &mut Rings,
        budget: u64,
        origin: impl Fn((u8, u8)) -> Option<Origin>,
        mut seen: Option<Seen<'_>>,
    ) -> Came {
        let Rings { sender, receiver, quiet, last } = rings;
        let mut came = Came::default();
        let mut has_heard = false;
        while came.packets < budget {
            let Some(TakenShort { short, gids, payload, heard, counts, ticket }) = receiver.take_short() else {
                // What it answers has ended before it comes: the other end has said so before it sent it.
                if sender.has_unsettled() && receiver.has_more() {
                    (has_heard, came.settled) = (true, came.settled + self.settle_by_word(sender));
                }
                match receiver.take() {
                    Ok(Some(taken)) => self.take_packet(now, taken, last, &origin, (&mut came, seen.as_mut())),
                    Ok(None) => break,
                    Err(_) => {
                        (came.malformed, came.is_broken) = (came.malformed + 1, true);
                        break;
                    }
                }
                continue;
            };
            came.packets += 1;
            came.bytes += payload.len() as u64;
            let Some(from) = sender_of(last, gids, &origin) else {
                came.malformed += 1;
                receiver.done(ticket, false);
                continue;
            };
            if let Some(seen) = &mut seen {
                seen(from, &Packet { headers: short.headers(), payload });
            }
            let says = sender.hear(heard, |source, psn| {
                (has_heard, came.settled) = (true, came.settled + 1);
                self.settle(source, psn);
            });
            if !says && sender.has_unsettled() {
                (has_heard, came.settled) = (true, came.settled + self.settle_by_word(sender));
            }
            let is_done = counts && self.receive_short(&short, payload, from);
            came.shorts += u64::from(is_done);
            if !is_done {
                // As the packet that it would have been, which wants an answer.
                let headers = Headers { ack_request: true, ..short.headers() };
                self.receive(now(), &Packet { headers, payload }, from);
            }
            receiver.done(ticket, is_done);
        }
        if came.packets > 0 {
            receiver.give_back();
        }
        *quiet = if came.packets > 0 { 0 } else { quiet.wrapping_add(1) };
        let looks = if sender.is_awaited() { LOOKS } else { LOOKS_OF_NOBODY };
        if sender.has_unsettled() && !has_heard && (came.packets > 0 || quiet.is_multiple_of(looks)) {
            came.settled += self.settle_by_word(sender);
        }
        came
    }

    #[inline]
    fn settle_by_word(&mut self, sender: &mut Sender) -> u64 {
        let mut settled = 0;
        sender.settle(|source, psn| {
            settled += 1;
            self.settle(source, psn);
        });
        settled
    }

    /// A packet has come by a ring.
    #[inline(never)]
    fn take_packet(
        &mut self,
        now: &mut impl FnMut() -> Moment,
        Taken { headers, gids, payload }: Taken<'_>,
        last: &mut (u8, Option<Origin>),
        origin: impl Fn((u8, u8)) -> Option<Origin>,
        (came, seen): (&mut Came, Option<&mut Seen<'_>>),
    ) {
        came.packets += 1;
        came.bytes += payload.len() as u64;
        let Some(from) = sender_of(last, gids, origin) else {
            came.malformed += 1;
            return;
        };
        let packet = Packet { headers, payload };
        if let Some(seen) = seen {
            seen(from, &packet);
        }
        self.receive(now(), &packet, from);
    }

    /// Learns which short SENDs the other process has done so far, whatever has come. How often it was told.
    pub fn settle_ring(&mut self, rings: &mut Rings) -> u64 {
        self.settle_by_word(&mut rings.sender)
    }

    /// As [`Engine::post_send`]; what can be sent as a short SEND is sent at once.
    ///
    /// # Errors
    /// The same.
    #[inline(always)]
    pub fn post_send_near<N: Near>(&mut self, qpn: Qpn, request: &Request<'_>, near: &mut N) -> Result<(), Error> {
        let (slot, len, signaled) = self.check(qpn, request)?;
        if !request.operation.takes_buffer() || !self.send_short(slot, request, (len, signaled), near) {
            self.post_checked(slot, request, len, signaled)?;
            if let Some(pair) = self.pairs.get(slot as usize)
                && pair.requester.has_unanswered()
            {
                near.hurry(&pair.config.path, pair.config.number());
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn send_short<N: Near>(
        &mut self,
        slot: u32,
        request: &Request<'_>,
        (len, signaled): (u32, bool),
        near: &mut N,
    ) -> bool {
        let Some(pair) = self.pairs.get_mut(slot as usize) else { return false };
        let Some(short) = pair.as_short(&self.options, request, len) else { return false };
        let config = &pair.config;
        let (payload, is_inline) = match request.data {
            // Nearly always it is one.
            Data::Inline(&[part]) => (part, true),
            data => {
                let Some(to) = self.gathered.get_mut(..len as usize) else { return false };
                if copy_out(&mut self.memory, config, data, to).is_err() {
                    return false;
                }
                (&*to, matches!(data, Data::Inline(_)))
            }
        };
        let source = Source { qpn: config.number(), is_awaited: signaled };
        if !near.short(&config.path, source, &short, payload) {
            return false;
        }
        pair.requester.post_short(request, len, signaled);
        self.counters.sent += 1;
        self.counters.sent_bytes += u64::from(len);
        self.counters.inline_copied += if is_inline { len.into() } else { 0 };
        if !core::mem::replace(&mut pair.is_late, true) {
            self.late.push(slot);
        }
        true
    }

    /// A short SEND has come. False: nothing was done; it is to be received as a packet that wants an answer.
    #[inline]
    fn receive_short(&mut self, short: &Short, payload: &[u8], from: &Origin) -> bool {
        let Some(slot) = self.numbers.slot(short.destination) else { return false };
        let (pairs, mut env) = self.split(Moment::new(0));
        let Some(pair) = pairs.get_mut(slot as usize) else { return false };
        let is_done = pair.take_short(&mut env, short, payload, from);
        self.counters.received += u64::from(is_done);
        if !self.events.overrun.is_empty() {
            self.fail_overrun(Moment::new(0));
        }
        is_done
    }

    /// The other end has done the short SENDs of a queue pair up to that number.
    #[inline(always)]
    fn settle(&mut self, qpn: Qpn, psn: Psn) {
        let Some(slot) = self.numbers.slot(qpn) else { return };
        let (pairs, mut env) = self.split(Moment::new(0));
        let Some(pair) = pairs.get_mut(slot as usize) else { return };
        let has_unsettled = pair.settled(&mut env, psn);
        let has_more = pair.requester.has_more();
        if has_unsettled && !core::mem::replace(&mut pair.is_late, true) {
            self.late.push(slot);
        }
        if has_more {
            self.schedule(slot);
        }
        if !self.events.overrun.is_empty() {
            self.fail_overrun(Moment::new(0));
        }
    }

    /// Queue pairs that have sent short SENDs since the clock was read: from now on their time runs.
    #[cold]
    pub(super) fn start_late_timers(&mut self, now: Moment) {
        while let Some(slot) = self.late.pop() {
            let (pairs, env) = self.split(now);
            let Some(pair) = pairs.get_mut(slot as usize) else { continue };
            pair.is_late = false;
            if matches!(pair.config.state, State::ReadyToSend | State::Drained) {
                pair.requester.watch_short(&pair.config, &env);
            }
            if let Some(time) = pair.deadline(now) {
                self.timers.want(slot, time);
            }
        }
    }
}
