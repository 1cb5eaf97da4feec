//! The half of a queue pair that does what the other end asks (volume 1, 9.7.4 and 9.8.3).
//!
//! * `request`: what comes in order; `execute` does it.
//! * `duplicate`: what comes again.
//! * `kept`: what comes too early, from ends of our kind (decision 54).
//! * `answer`: what is said to it, in order: what was read, refusals, acknowledgements.
//! * `unreliable`: requests that are not answered.

mod answer;
mod datagram;
mod duplicate;
mod execute;
mod kept;
mod request;
mod unreliable;

use super::{Config, Environment, Event};
use crate::number::{Key, Moment, Psn};
use crate::wire::{Headers, Reth, Syndrome};
use crate::work::{Completion, Ended, Extra, ReceiveQueue, Status, Taken};
use kept::Kept;
pub(crate) use kept::Pool;
use std::collections::VecDeque;

/// The message that is coming.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Message {
    /// None.
    #[default]
    None,
    /// To a posted buffer, where so many bytes are already.
    Send { received: u64 },
    /// To memory.
    Write { address: u64, rkey: Key, remaining: u64, len: u32 },
}

/// An answer that takes more than a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// What is read, from packet `next` on.
    Read { psn: Psn, address: u64, rkey: Key, len: u32, packets: u32, next: u32 },
    /// What an atomic operation found.
    Atomic { psn: Psn, original: u64 },
}

/// Something that is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    psn: Psn,
    why: Syndrome,
}

/// The half that answers.
#[derive(Debug)]
pub(crate) struct Responder {
    pub queue: ReceiveQueue,
    pub(super) taken: Taken,
    /// The number of the next request.
    pub(super) expected: Psn,
    /// Messages done, modulo 2^24.
    pub(super) msn: u32,
    message: Message,
    /// It was said that something is missing; that is enough until it comes.
    pub(super) is_silent: bool,
    /// An acknowledgement is to be sent.
    acknowledge: bool,
    /// Something was kept since the other end was told what is missing.
    tell_kept: bool,
    /// Which part of what was kept is told next.
    told: u32,
    refusal: Option<Refusal>,
    /// Why the queue pair failed: said again when asked again.
    last_words: Option<Refusal>,
    jobs: VecDeque<Job>,
    /// What atomic operations found, for the case that they come again.
    replay: VecDeque<(Psn, u64)>,
    /// READs that came again and have no access, each to something else; and the last of them.
    guesses: (u8, Option<Reth>),
    kept: Option<Box<Kept>>,
    /// Credits were promised for messages before this one.
    promised: u32,
    /// Something came before the queue pair was ready to send.
    pub established: bool,
    /// The other end is to be told that routers are congested; and when it was, last.
    notify: bool,
    notified: Option<Moment>,
}

/// The other end is told of congestion no more often than that, in nanoseconds (SIGCOMM 2015, section 3.1).
const NOTIFY_INTERVAL: u64 = 50_000;

impl Responder {
    pub fn new(queue: ReceiveQueue, taken: Taken) -> Self {
        Self {
            queue,
            taken,
            expected: Psn::new(0),
            msn: 0,
            message: Message::None,
            is_silent: false,
            acknowledge: false,
            tell_kept: false,
            told: 0,
            refusal: None,
            last_words: None,
            jobs: VecDeque::new(),
            replay: VecDeque::new(),
            guesses: (0, None),
            kept: None,
            promised: 0,
            established: false,
            notify: false,
            notified: None,
        }
    }

    /// From now on it receives, this number first.
    pub fn begin(&mut self, psn: Psn, config: &Config) {
        self.expected = psn;
        let count = usize::from(config.max_dest_rd_atomic);
        self.jobs = VecDeque::with_capacity(2 * count);
        self.replay = VecDeque::with_capacity(count);
    }

    /// The number of the next request.
    pub fn expected(&self) -> Psn {
        self.expected
    }

    /// Forgets everything.
    pub fn reset(&mut self, pool: &mut Pool) {
        self.drop_kept(pool);
        self.queue.clear();
        self.taken.in_use = false;
        let queue = core::mem::replace(&mut self.queue, ReceiveQueue::new(0, 0));
        let taken = core::mem::replace(&mut self.taken, Taken::new(0));
        *self = Self::new(queue, taken);
    }

    /// Ends everything that waits for something to come, or as much as may end now. What the other end is still to be told stays. Whether that
    /// was all.
    pub fn flush<M>(&mut self, config: &Config, env: &mut Environment<'_, M>) -> bool {
        env.counters.kept_dropped += self.drop_kept(env.pool);
        self.message = Message::None;
        self.acknowledge = false;
        self.tell_kept = false;
        if self.taken.in_use {
            self.end_taken(config, env, Status::Flushed, 0, None);
        }
        while self.queue.len() > 0
            && env.flushes.take()
            && let Some(id) = self.queue.drop_first()
        {
            let line = Completion {
                id,
                status: Status::Flushed,
                ended: Ended::Receive,
                qpn: config.number(),
                ..Completion::default()
            };
            env.complete(config.init.receive_queue, line);
        }
        self.queue.len() == 0
    }

    /// Forgets what it wanted to say. For when the program, not the other end, has ended it.
    pub fn fall_silent(&mut self) {
        self.jobs.clear();
        (self.refusal, self.last_words) = (None, None);
    }

    /// The queue pair has failed, and the other end asks again: it is told why again.
    pub fn say_again(&mut self, psn: Psn) {
        if let Some(last) = self.last_words
            && last.psn == psn
        {
            self.refusal = Some(last);
        }
    }

    /// What was taken is acknowledged once more, if anything was. Returns whether.
    pub fn acknowledge_again(&mut self) -> bool {
        self.acknowledge |= self.msn != 0;
        self.msn != 0
    }

    /// A router has marked a packet of the other end.
    pub fn congested(&mut self, now: Moment) {
        let is_due = self.notified.is_none_or(|last| now.nanoseconds() >= last.nanoseconds() + NOTIFY_INTERVAL);
        if is_due {
            (self.notify, self.notified) = (true, Some(now));
        }
    }

    /// Takes a buffer for a message, unless it has one.
    #[inline]
    pub(super) fn take<M>(&mut self, config: &Config, env: &mut Environment<'_, M>) -> bool {
        if self.taken.in_use {
            return true;
        }
        let Some(shared) = config.init.shared_receive_queue else { return self.queue.take(&mut self.taken) };
        let Some(queue) = env.shared.get_mut(shared as usize) else { return false };
        if !queue.queue.take(&mut self.taken) {
            return false;
        }
        if queue.limit > 0 && queue.queue.len() < queue.limit {
            queue.limit = 0;
            env.events.add(Event::SharedReceiveLimit(shared));
        }
        true
    }

    /// Tells that the buffer taken is filled, or will not be.
    #[inline]
    fn end_taken<M>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        status: Status,
        len: u32,
        headers: Option<&Headers>,
    ) {
        let what = headers.map_or((Ended::Receive, Extra::None, false), |headers| {
            let extra = match (headers.immediate, headers.invalidate) {
                (Some(data), _) => Extra::Immediate(data),
                (None, Some(key)) => Extra::Invalidated(key),
                (None, None) => Extra::None,
            };
            let is_write = matches!(headers.opcode, crate::wire::Opcode::Write { .. });
            (if is_write { Ended::ReceiveWrite } else { Ended::Receive }, extra, headers.solicited)
        });
        self.end_taken_with(config, env, status, len, what);
    }

    /// The same: what ended, what came with it, and whether it was solicited.
    #[inline]
    pub(super) fn end_taken_with<M>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        status: Status,
        len: u32,
        (ended, extra, solicited): (Ended, Extra, bool),
    ) {
        self.taken.in_use = false;
        let (id, qpn) = (self.taken.id, config.number());
        let line = Completion { id, status, ended, len, extra, qpn, solicited, ..Completion::default() };
        env.complete(config.init.receive_queue, line);
    }

    /// Whether a request of that number is the next one, and nothing is on the way but that.
    #[inline]
    pub(super) fn is_simple(&self, psn: Psn) -> bool {
        psn == self.expected
            && self.message == Message::None
            && self.kept.as_ref().is_none_or(|kept| kept.is_empty())
            && self.refusal.is_none()
    }
}
