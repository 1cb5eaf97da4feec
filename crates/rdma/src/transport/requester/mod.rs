//! The half of a queue pair that asks (volume 1, 9.7.2 to 9.7.6 for reliable connections).
//!
//! ```text
//!   ended | first ... una ......... end ...... | posted
//!           oldest     no answer     nothing
//!           request    from here     sent yet
//!                          ^ cursor: what is sent next; behind `end` once more after something was lost
//! ```
//!
//! * `send`: the next packet.
//! * `answers`: acknowledgements and what was read.
//! * `time`: retries when nothing comes, and when the other end has no buffer.
//! * `datagram`: the next packet of those that are not connected.
//! * `selective`: what the other end has beyond what is missing (decision 54).

mod answers;
mod datagram;
mod selective;
mod send;
mod time;

use super::{Broken, Config, Environment};
use crate::number::{Moment, Psn};
use crate::work::{Completion, Progress, Request, SendQueue, Status};
pub(super) use answers::credit_code;
pub(crate) use selective::SPAN;
use selective::Selective;

/// The half that asks.
#[derive(Debug)]
pub(crate) struct Requester {
    pub queue: SendQueue,
    /// The request that is sent next.
    pub(super) cursor: u32,
    /// How many packets of it are behind the cursor.
    pub(super) packet: u32,
    /// The oldest number without an answer.
    pub(super) una: Psn,
    /// One behind the last that was ever sent.
    pub(super) end: Psn,
    /// READs and atomic operations that have begun.
    pub(super) reads: u32,
    /// Numbers that answers to those have, which the window does not count.
    read_packets: u32,
    /// Messages that have begun, modulo 2^24.
    pub(super) messages: u32,
    /// What the other end has buffers for: messages before this one. None: it does not say.
    credit: Option<u32>,
    /// Packets since one that is to be answered.
    pub(super) unasked: u32,
    retries: u8,
    rnr_retries: u8,
    timer: Option<Moment>,
    /// The other end has no buffer until then.
    pub(super) waiting: Option<Moment>,
    /// Something was lost there, and was sent again once.
    went_back_at: Option<Psn>,
    pub(super) selective: Option<Box<Selective>>,
}

/// How a message goes on with credits: volume 1, 9.7.7.2 counts modulo 2^24.
pub(in crate::transport) const MESSAGES: u32 = 0xff_ffff;

impl Requester {
    pub fn new(queue: SendQueue) -> Self {
        Self {
            queue,
            cursor: 0,
            packet: 0,
            una: Psn::new(0),
            end: Psn::new(0),
            reads: 0,
            read_packets: 0,
            messages: 0,
            credit: None,
            unasked: 0,
            retries: 0,
            rnr_retries: 0,
            timer: None,
            waiting: None,
            went_back_at: None,
            selective: None,
        }
    }

    /// From now on it sends, with this number first.
    pub fn begin(&mut self, psn: Psn, config: &Config) {
        (self.una, self.end) = (psn, psn);
        (self.cursor, self.packet) = (self.queue.first, 0);
        (self.reads, self.read_packets, self.messages, self.unasked) = (0, 0, 0, 0);
        (self.credit, self.timer, self.waiting, self.went_back_at) = (None, None, None, None);
        self.selective = None;
        self.refill(config);
    }

    /// Retries begin anew.
    pub fn refill(&mut self, config: &Config) {
        (self.retries, self.rnr_retries) = (config.retry_count, config.rnr_retry);
    }

    /// Whether something of it is on its way, or half a message was sent, or one has its numbers and goes next.
    pub fn has_begun(&self) -> bool {
        let is_next_begun = || self.queue.slot(self.cursor).is_some_and(|slot| slot.progress == Progress::Begun);
        self.una != self.end || self.packet != 0 || is_next_begun()
    }

    /// Whether all that was posted has ended.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.queue.first == self.queue.end && self.una == self.end && self.waiting.is_none()
    }

    /// Tells of a request that was done without having been in the queue.
    #[inline]
    pub fn ended_at_once<M>(&self, config: &Config, env: &mut Environment<'_, M>, request: &Request<'_>, len: u32) {
        env.counters.reached += 1;
        env.complete(
            config.init.send_queue,
            Completion {
                id: request.id,
                ended: request.operation.ended(),
                len: if request.operation.asks() { len } else { 0 },
                qpn: config.number(),
                ..Completion::default()
            },
        );
    }

    /// The oldest request has failed.
    pub fn fail_first<M>(&mut self, config: &Config, env: &mut Environment<'_, M>, status: Status) {
        self.end_first(config, env, status);
    }

    /// Nobody answers any more.
    pub fn give_up<M>(&mut self, config: &Config, env: &mut Environment<'_, M>) -> Result<(), Broken> {
        self.retire(config, env)?;
        if self.queue.len() == 0 { Ok(()) } else { self.fail(config, env, Status::RetryExceeded) }
    }

    /// One behind the last number that was ever sent.
    pub fn end(&self) -> Psn {
        self.end
    }

    /// Whether something is on its way.
    #[inline]
    pub fn has_unanswered(&self) -> bool {
        self.una != self.end
    }

    /// Whether there is something that was not sent.
    pub fn has_more(&self) -> bool {
        self.cursor != self.queue.end || self.selective.as_ref().is_some_and(|selective| selective.wants())
    }

    /// Adds a request that was checked.
    #[inline]
    pub fn post(&mut self, request: &Request<'_>, len: u32, signaled: bool) {
        self.queue.post(request, len, signaled);
    }

    /// Ends the oldest request.
    #[inline]
    fn end_first<M>(&mut self, config: &Config, env: &mut Environment<'_, M>, status: Status) {
        let Some(slot) = self.queue.slot(self.queue.first) else { return };
        if slot.signaled || status != Status::Success {
            let len = if slot.operation.asks() { slot.len } else { 0 };
            env.complete(
                config.init.send_queue,
                Completion {
                    id: slot.id,
                    status,
                    ended: slot.operation.ended(),
                    len,
                    qpn: config.number(),
                    ..Completion::default()
                },
            );
        }
        if self.cursor == self.queue.first {
            (self.cursor, self.packet) = (self.cursor.wrapping_add(1), 0);
        }
        self.queue.first = self.queue.first.wrapping_add(1);
    }

    /// Ends requests at the front that need no answer.
    #[inline]
    fn retire<M>(&mut self, config: &Config, env: &mut Environment<'_, M>) -> Result<(), Broken> {
        while let Some(slot) = self.queue.slot(self.queue.first) {
            match slot.progress {
                Progress::Done => self.end_first(config, env, Status::Success),
                Progress::Failed(status) => {
                    self.end_first(config, env, status);
                    return Err(Broken);
                }
                Progress::Posted | Progress::Begun => break,
            }
        }
        Ok(())
    }

    /// The oldest request cannot be done.
    fn fail<M>(&mut self, config: &Config, env: &mut Environment<'_, M>, status: Status) -> Result<(), Broken> {
        self.end_first(config, env, status);
        Err(Broken)
    }

    /// A request at the cursor cannot be done; what is before it goes on.
    fn fail_at_cursor<M>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        status: Status,
    ) -> Result<(), Broken> {
        if let Some(slot) = self.queue.slot_mut(self.cursor) {
            slot.progress = Progress::Failed(status);
        }
        self.retire(config, env)
    }

    /// Ends everything, in order, or as much as may end now. Whether that was all.
    pub fn flush<M>(&mut self, config: &Config, env: &mut Environment<'_, M>) -> bool {
        while self.queue.len() > 0 && env.flushes.take() {
            self.end_first(config, env, Status::Flushed);
        }
        let psn = self.end;
        self.begin(psn, config);
        self.queue.len() == 0
    }
}
