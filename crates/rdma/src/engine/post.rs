//! Requests and buffers.

use super::{Engine, Error};
use crate::local::Outcome;
use crate::memory::Memory;
use crate::number::{Key, Moment, Qpn};
use crate::transport::{QueuePair, State};
use crate::wire::Service;
use crate::work::{Completion, Data, Ended, Operation, Piece, Request, Status};

impl<M: Memory> Engine<M> {
    /// Adds a request to a send queue. Bytes given inline are copied now, others when they are sent.
    ///
    /// # Errors
    /// There is no such queue pair, it is in the state RESET, INIT or RTR, it does not do that, the queue is full, or the
    /// request does not fit. A queue pair that has failed takes it, and ends it at once.
    #[inline]
    pub fn post_send(&mut self, qpn: Qpn, request: &Request<'_>) -> Result<(), Error> {
        let (slot, len, signaled) = self.check(qpn, request)?;
        self.post_checked(slot, request, len, signaled)
    }

    /// Does a WRITE of bytes given inline at once, if the two before it went to the same region of another process of this host: then
    /// it is known where they go. False: nothing was done, and it is to be posted.
    #[inline(always)]
    pub fn write_again(&mut self, qpn: Qpn, id: u64, to: (u64, Key), bytes: &[u8], signaled: bool) -> bool {
        let Some(slot) = self.numbers.slot(qpn) else { return false };
        let Some(pair) = self.pairs.get(slot as usize) else { return false };
        let Some(kept) = pair.kept.as_ref().filter(|kept| kept.rkey == to.1) else { return false };
        let fits = bytes.len() <= pair.requester.queue.inline_stride() && !bytes.is_empty();
        if !fits || pair.config.is_alone || !pair.may_reach() || !self.memory.write_again(kept, to.0, bytes) {
            return false;
        }
        self.counters.reached += 1;
        if signaled || pair.config.init.signal_all {
            self.end_again(slot, id);
        }
        true
    }

    /// Tells that a WRITE of [`Engine::write_again`] has ended.
    fn end_again(&mut self, slot: u32, id: u64) {
        let (pairs, mut env) = self.split(Moment::new(0));
        let Some(pair) = pairs.get(slot as usize) else { return };
        let ended = Completion { id, ended: Ended::Write, qpn: pair.config.number(), ..Completion::default() };
        env.complete(pair.config.init.send_queue, ended);
        if !self.events.overrun.is_empty() {
            self.fail_overrun(Moment::new(0));
        }
    }

    /// Whether a request is taken: by which queue pair, how many bytes it has, and whether it is told when it ends.
    #[inline(always)]
    pub(super) fn check(&self, qpn: Qpn, request: &Request<'_>) -> Result<(u32, u32, bool), Error> {
        let slot = self.slot(qpn)?;
        let pair = self.pairs.get(slot as usize).ok_or(Error::Missing("queue pair"))?;
        if matches!(pair.config.state, State::Reset | State::Init | State::ReadyToReceive) {
            return Err(Error::State);
        }
        let limit = self.longest(pair);
        let len = check(pair, request, limit)?;
        if pair.requester.queue.is_full() {
            return Err(Error::Full);
        }
        Ok((slot, len, request.flags.signaled || pair.config.init.signal_all))
    }

    #[inline]
    pub(super) fn post_checked(
        &mut self,
        slot: u32,
        request: &Request<'_>,
        len: u32,
        signaled: bool,
    ) -> Result<(), Error> {
        let pair = self.pairs.get(slot as usize).ok_or(Error::Missing("queue pair"))?;
        if pair.may_reach() && is_one_sided(&request.operation) && self.reach_at_once(slot, request, len, signaled) {
            return Ok(());
        }
        let pair = self.pairs.get_mut(slot as usize).ok_or(Error::Missing("queue pair"))?;
        pair.requester.post(request, len, signaled);
        self.counters.inline_copied += if matches!(request.data, Data::Inline(_)) { len.into() } else { 0 };
        if matches!(pair.config.state, State::Error | State::SendError) {
            self.end_at_once(slot);
        } else if !pair.scheduled {
            pair.scheduled = true;
            self.turns.add(pair.group, slot);
        }
        Ok(())
    }

    /// Whether all of these would be taken, if they were posted now: for programs that post all of a list or nothing.
    ///
    /// # Errors
    /// As [`Engine::post_send`], of the first that would be refused.
    pub fn would_post<'r>(&self, qpn: Qpn, requests: impl Iterator<Item = Request<'r>>) -> Result<(), Error> {
        let slot = self.slot(qpn)?;
        let pair = self.pairs.get(slot as usize).ok_or(Error::Missing("queue pair"))?;
        if matches!(pair.config.state, State::Reset | State::Init | State::ReadyToReceive) {
            return Err(Error::State);
        }
        let limit = self.longest(pair);
        for (number, request) in (1..).zip(requests) {
            check(pair, &request, limit)?;
            if number > pair.requester.queue.room() {
                return Err(Error::Full);
            }
        }
        Ok(())
    }

    /// Bytes of the longest message of a queue pair.
    #[inline(always)]
    fn longest(&self, pair: &QueuePair) -> u32 {
        match pair.config.init.service {
            Service::UnreliableDatagram => u32::from(self.options.datagram_mtu),
            _ => self.options.max_message,
        }
    }

    /// Adds a buffer to a receive queue.
    ///
    /// # Errors
    /// There is no such queue pair, it is in the state RESET, it has a shared receive queue, the queue is full, or there are too
    /// many pieces.
    #[inline]
    pub fn post_receive(&mut self, qpn: Qpn, id: u64, pieces: &[Piece]) -> Result<(), Error> {
        let slot = self.slot(qpn)?;
        let pair = self.pairs.get_mut(slot as usize).ok_or(Error::Missing("queue pair"))?;
        if pair.config.state == State::Reset {
            return Err(Error::State);
        }
        if pair.config.init.shared_receive_queue.is_some() {
            return Err(Error::Operation);
        }
        if pieces.len() > pair.responder.queue.stride() {
            return Err(Error::Range("pieces"));
        }
        if !pair.responder.queue.post(id, pieces) {
            return Err(Error::Full);
        }
        if pair.config.state == State::Error {
            self.end_at_once(slot);
        } else if pair.responder.has_buffers(&pair.config) {
            self.schedule(slot);
        }
        Ok(())
    }

    /// Does the request in the other end's memory, if that can be reached.
    #[inline]
    fn reach_at_once(&mut self, slot: u32, request: &Request<'_>, len: u32, signaled: bool) -> bool {
        let (pairs, mut env) = self.split(Moment::new(0));
        let Some(pair) = pairs.get_mut(slot as usize) else { return false };
        if pair.config.is_alone || request.operation.asks() && pair.config.max_rd_atomic == 0 {
            return false;
        }
        match env.memory.reach(&pair.far(), request.operation, request.data, len) {
            Outcome::No => return false,
            Outcome::Done => pair.keep(env.memory, request),
            Outcome::Failed(status) => {
                self.fail_at_once(slot, request, len, status);
                return true;
            }
        }
        if signaled {
            pair.requester.ended_at_once(&pair.config, &mut env, request, len);
            if !self.events.overrun.is_empty() {
                self.fail_overrun(Moment::new(0));
            }
        } else {
            env.counters.reached += 1;
        }
        true
    }

    #[cold]
    fn fail_at_once(&mut self, slot: u32, request: &Request<'_>, len: u32, status: Status) {
        let (pairs, mut env) = self.split(Moment::new(0));
        let Some(pair) = pairs.get_mut(slot as usize) else { return };
        pair.requester.post(request, len, true);
        pair.fail_first(&mut env, status);
        self.fail_overrun(Moment::new(0));
    }

    fn end_at_once(&mut self, slot: u32) {
        let (pairs, mut env) = self.split(Moment::new(0));
        if let Some(pair) = pairs.get_mut(slot as usize) {
            pair.flush(&mut env);
        }
        self.fail_overrun(Moment::new(0));
    }
}

/// Whether the other end has no part in it but its memory.
#[inline]
fn is_one_sided(operation: &Operation) -> bool {
    matches!(operation, Operation::Write { immediate: None, .. }) || operation.asks()
}

/// Whether a queue pair does that; how many bytes it is.
#[inline(always)]
fn check(pair: &QueuePair, request: &Request<'_>, limit: u32) -> Result<u32, Error> {
    use Operation::{Bind, CompareSwap, FetchAdd, LocalInvalidate, Read, Send, SendImmediate, SendInvalidate, Write};
    let fits = match pair.config.init.service {
        Service::ReliableConnection => true,
        Service::UnreliableConnection => {
            matches!(request.operation, Send | SendImmediate(_) | Write { .. } | LocalInvalidate(_) | Bind(_))
        }
        Service::UnreliableDatagram => matches!(request.operation, Send | SendImmediate(_)),
    };
    if !fits {
        return Err(Error::Operation);
    }
    if pair.config.init.service == Service::UnreliableDatagram && request.target.is_none() {
        return Err(Error::Target);
    }
    let len = match request.data {
        Data::Pieces(pieces) => {
            if pieces.len() > pair.requester.queue.piece_stride() {
                return Err(Error::Range("pieces"));
            }
            pieces.iter().map(|piece| u64::from(piece.len)).sum::<u64>()
        }
        Data::Inline(parts) => {
            let len = parts.iter().fold(0_u64, |len, part| len.saturating_add(part.len() as u64));
            if len > pair.requester.queue.inline_stride() as u64 {
                return Err(Error::Range("inline"));
            }
            if !request.operation.sends() {
                return Err(Error::Operation);
            }
            len
        }
    };
    match request.operation {
        CompareSwap { .. } | FetchAdd { .. } if len < 8 => Err(Error::Range("length")),
        CompareSwap { .. } | FetchAdd { .. } => Ok(8),
        LocalInvalidate(_) | Bind(_) => Ok(0),
        Send | SendImmediate(_) | SendInvalidate(_) | Write { .. } | Read { .. } => {
            u32::try_from(len).ok().filter(|len| *len <= limit).ok_or(Error::Range("length"))
        }
    }
}
