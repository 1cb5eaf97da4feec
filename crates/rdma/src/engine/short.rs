//! Short SENDs: those of one packet to another process of this host, without answers ([`Short`]).

use super::{Engine, Error};
use crate::local::{Receiver, Sender, Short, Taken, What};
use crate::memory::{Memory, Refused};
use crate::number::{Moment, Psn, Qpn};
use crate::transport::{Origin, Sent, State, copy_out};
use crate::wire::{Headers, Packet, Path};
use crate::work::{Data, Request};

/// The way of short SENDs.
pub trait Near {
    /// One of `source`, a queue pair of this end, with `len` bytes, which `fill` writes. [`Sent::Full`]: it does not go this way,
    /// now or ever.
    fn short<F>(&mut self, path: &Path, source: Qpn, short: &Short, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>;
}

/// While nothing comes, it is looked only so often which short SENDs were done: each look takes the line of that word from the other
/// end, which writes there next.
const LOOKS: u32 = 4;

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
            let Taken { what, gids, payload } = match receiver.take() {
                Ok(Some(taken)) => taken,
                Ok(None) => break,
                Err(_) => {
                    (came.malformed, came.is_broken) = (came.malformed + 1, true);
                    break;
                }
            };
            came.packets += 1;
            came.bytes += payload.len() as u64;
            let code = gids.0 << 4 | gids.1;
            if last.0 != code || last.1.is_none() {
                *last = (code, origin(gids));
            }
            let Some(from) = &last.1 else {
                came.malformed += 1;
                if let What::Short { ticket, .. } = what {
                    receiver.done(ticket, false);
                }
                continue;
            };
            let (short, heard, counts, ticket) = match what {
                What::Short { short, heard, counts, ticket } => (short, heard, counts, ticket),
                What::Packet(headers) => {
                    if let Some(seen) = &mut seen {
                        seen(from, &Packet { headers, payload });
                    }
                    self.receive(now(), &Packet { headers, payload }, from);
                    continue;
                }
            };
            if let Some(seen) = &mut seen {
                seen(from, &Packet { headers: short.headers(), payload });
            }
            sender.hear(heard, |source, psn| {
                (has_heard, came.settled) = (true, came.settled + 1);
                self.settle(now(), source, psn);
            });
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
        if sender.has_unsettled() && !has_heard && (came.packets > 0 || quiet.is_multiple_of(LOOKS)) {
            sender.settle(|source, psn| {
                came.settled += 1;
                self.settle(now(), source, psn);
            });
        }
        came
    }

    /// Learns which short SENDs the other process has done so far, whatever has come. How often it was told.
    pub fn settle_ring(&mut self, now: Moment, rings: &mut Rings) -> u64 {
        let mut settled = 0;
        rings.sender.settle(|source, psn| {
            settled += 1;
            self.settle(now, source, psn);
        });
        settled
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
        let (pairs, env) = self.split(Moment::new(0));
        let Some(pair) = pairs.get_mut(slot as usize) else { return false };
        let Some(short) = pair.as_short(&env, request, len) else { return false };
        let (config, memory) = (&pair.config, env.memory);
        let fill = |to: &mut [u8]| copy_out(memory, config, request.data, to);
        if near.short(&config.path, config.number(), &short, len as usize, fill) != Sent::Taken {
            return false;
        }
        pair.requester.post_short(request, len, signaled);
        env.counters.sent += 1;
        env.counters.sent_bytes += u64::from(len);
        env.counters.inline_copied += if matches!(request.data, Data::Inline(_)) { len.into() } else { 0 };
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
    #[inline]
    fn settle(&mut self, now: Moment, qpn: Qpn, psn: Psn) {
        let Some(slot) = self.numbers.slot(qpn) else { return };
        let (pairs, mut env) = self.split(now);
        let Some(pair) = pairs.get_mut(slot as usize) else { return };
        pair.settled(&mut env, psn);
        let has_more = pair.requester.has_more();
        if has_more {
            self.schedule(slot);
        }
        if !self.events.overrun.is_empty() {
            self.fail_overrun(now);
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
