//! Short SENDs (`crate::local::Short`): the same numbers, buffers and completions as those of packets, with what can be left
//! out where nothing is lost. What is not simple is left to packets.

use super::{Broken, Config, Environment, Options, Origin, QueuePair, Requester, Responder, State, pieces};
use crate::local::Short;
use crate::memory::{Memory, Refused};
use crate::number::Psn;
use crate::wire::Service;
use crate::work::{Data, Ended, Extra, Operation, Progress, Request, Status};

/// Whether both ends may send and take short SENDs. They have met: the other end is one of ours.
#[inline]
fn is_open(config: &Config) -> bool {
    config.extended
        && config.init.service == Service::ReliableConnection
        && matches!(config.state, State::ReadyToSend | State::Drained)
}

impl QueuePair {
    /// What a SEND would be as a short one, if it may be one: nothing before it waits to be sent.
    #[inline(always)]
    pub fn as_short(&self, options: &Options, request: &Request<'_>, len: u32) -> Option<Short> {
        let immediate = match request.operation {
            Operation::Send => None,
            Operation::SendImmediate(data) => Some(data),
            _ => return None,
        };
        let config = &self.config;
        let may = is_open(config)
            && config.state == State::ReadyToSend
            && !config.is_alone
            && len <= config.mtu()
            && self.rate.is_none()
            && self.requester.may_send_short(options.window, request.operation);
        let psn = self.requester.end();
        may.then_some(Short { destination: config.remote, psn, immediate, solicited: request.flags.solicited })
    }

    /// Takes a short SEND. False: nothing was done, and it is to be treated as a packet.
    #[inline]
    pub fn take_short<M: Memory>(
        &mut self,
        env: &mut Environment<'_, M>,
        short: &Short,
        payload: &[u8],
        origin: &Origin,
    ) -> bool {
        let Self { config, responder, .. } = self;
        is_open(config) && config.is_from_peer(origin) && responder.take_short(config, env, short, payload)
    }

    /// Short SENDs up to that number were done. Whether there are more, whose time begins anew.
    #[inline(always)]
    pub fn settled<M: Memory>(&mut self, env: &mut Environment<'_, M>, psn: Psn) -> bool {
        if !is_open(&self.config) {
            return false;
        }
        let Ok(has_unsettled) = self.requester.settled(&self.config, env, psn) else {
            self.fail(env);
            return false;
        };
        if self.config.state == State::Drained {
            self.look_drained(env);
        }
        has_unsettled
    }
}

impl Requester {
    /// Whether a SEND that is posted now may go at once.
    #[inline(always)]
    fn may_send_short(&self, window: u32, operation: Operation) -> bool {
        self.cursor == self.queue.end
            && self.packet == 0
            && self.waiting.is_none()
            && self.reads == 0
            && self.end.since(self.una).unsigned_abs() < window
            && !self.selective.as_ref().is_some_and(|selective| selective.wants())
            && self.has_credit(operation)
    }

    /// Adds a request that was sent as a short SEND.
    #[inline(always)]
    pub fn post_short(&mut self, request: &Request<'_>, len: u32, signaled: bool) {
        let position = self.queue.end;
        self.queue.post(request, len, signaled);
        let (first, message) = (self.end, self.messages);
        if let Some(slot) = self.queue.slot_mut(position) {
            (slot.first, slot.packets, slot.message, slot.progress) = (first, 1, message, Progress::Begun);
        }
        self.messages = (message + 1) & super::requester::MESSAGES;
        self.end = first.next();
        self.cursor = self.queue.end;
        self.unasked = 0;
    }

    /// Short SENDs went out; the clock was not read then. Rings lose nothing, so that it is not asked early whether they have come.
    pub fn watch_short<M>(&mut self, config: &Config, env: &Environment<'_, M>) {
        if self.una != self.end {
            self.start_timer(config, env);
        }
    }

    /// Ends what was done. Whether there is more, whose timer is to be started: the clock was not read.
    ///
    /// # Errors
    /// [`Broken`]: what comes next had failed already, and waited for those before it.
    #[inline(always)]
    fn settled<M>(&mut self, config: &Config, env: &mut Environment<'_, M>, psn: Psn) -> Result<bool, Broken> {
        if psn.since(self.una) < 0 || psn.since(self.end) >= 0 {
            return Ok(false);
        }
        self.advance(config, env, psn.next())?;
        self.forget_times();
        if self.queue.first == self.queue.end && self.cursor == self.queue.end {
            // The places that were used last are in the caches.
            self.queue.rewind();
            self.cursor = self.queue.first;
        }
        self.stop_timer();
        Ok(self.una != self.end)
    }
}

impl Responder {
    #[inline]
    fn take_short<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        short: &Short,
        payload: &[u8],
    ) -> bool {
        if !self.is_simple(short.psn) || payload.len() > config.mtu() as usize || !self.take(config, env) {
            return false;
        }
        let len = payload.len() as u64;
        if len > self.taken.room || pieces::scatter(env.memory, config.asker, self.taken.pieces(), 0, payload).is_err()
        {
            return false;
        }
        self.expected = short.psn.next();
        self.is_silent = false;
        self.msn = (self.msn + 1) & super::requester::MESSAGES;
        let extra = short.immediate.map_or(Extra::None, Extra::Immediate);
        self.end_taken_with(config, env, Status::Success, len as u32, (Ended::Receive, extra, short.solicited));
        true
    }
}

/// Copies the bytes of a request.
#[inline(always)]
pub(crate) fn copy_out<M: Memory>(
    memory: &mut M,
    config: &Config,
    data: Data<'_>,
    to: &mut [u8],
) -> Result<(), Refused> {
    match data {
        Data::Pieces(pieces) => pieces::gather(memory, config.asker, pieces, 0, to),
        Data::Inline(parts) => {
            let mut at = 0;
            for part in parts {
                to.get_mut(at..at + part.len()).ok_or(Refused::Bounds)?.copy_from_slice(part);
                at += part.len();
            }
            Ok(())
        }
    }
}
