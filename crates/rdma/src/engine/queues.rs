//! Protection domains, completion queues, shared receive queues.

use super::{Engine, Error, Event, Leftover};
use crate::memory::{Memory, ProtectionDomain};
use crate::number::Moment;
use crate::work::{Completion, CompletionQueue, Piece, ReceiveQueue, SharedReceiveQueue};
use slab::Slab;

const DOMAIN: &str = "protection domain";
const QUEUE: &str = "completion queue";
const SHARED: &str = "shared receive queue";

/// What a shared receive queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveQuery {
    /// Buffers that it has room for.
    pub depth: u32,
    /// Pieces of a buffer.
    pub pieces: u32,
    /// With fewer buffers than that there is an event, once; 0: none, or it was already.
    pub limit: u32,
}

fn add<T>(slab: &mut Slab<T>, value: T, limit: u32, name: &'static str) -> Result<u32, Error> {
    if slab.len() >= limit as usize {
        return Err(Error::Limit(name));
    }
    Ok(slab.insert(value) as u32)
}

impl<M: Memory> Engine<M> {
    /// A protection domain.
    ///
    /// # Errors
    /// There are as many as there may be.
    pub fn create_domain(&mut self) -> Result<ProtectionDomain, Error> {
        add(&mut self.domains, 0, self.options.max_objects, "protection domains").map(ProtectionDomain)
    }

    /// Ends a protection domain. Whether regions belong to it, its owner knows.
    ///
    /// # Errors
    /// There is none, or queue pairs or shared receive queues use it.
    pub fn destroy_domain(&mut self, domain: ProtectionDomain) -> Result<(), Error> {
        match self.domains.get(domain.0 as usize) {
            None => Err(Error::Missing(DOMAIN)),
            Some(users) if *users > 0 => Err(Error::Busy(DOMAIN)),
            Some(_) => {
                self.domains.remove(domain.0 as usize);
                Ok(())
            }
        }
    }

    pub(super) fn use_domain(&mut self, domain: ProtectionDomain) -> Result<&mut u32, Error> {
        self.domains.get_mut(domain.0 as usize).ok_or(Error::Missing(DOMAIN))
    }

    /// A completion queue with room for `depth` lines.
    ///
    /// # Errors
    /// `depth` is 0 or above the limit, or there are as many as there may be.
    pub fn create_cq(&mut self, depth: u32) -> Result<u32, Error> {
        if depth == 0 || depth > self.options.max_completions {
            return Err(Error::Range("depth"));
        }
        let queue = CompletionQueue::new(depth as usize);
        add(&mut self.queues, queue, self.options.max_objects, "completion queues")
    }

    pub(super) fn queue(&mut self, cq: u32) -> Result<&mut CompletionQueue, Error> {
        self.queues.get_mut(cq as usize).ok_or(Error::Missing(QUEUE))
    }

    /// Takes lines, the oldest first. How many they are.
    ///
    /// # Errors
    /// There is no such queue.
    #[inline]
    pub fn poll(&mut self, cq: u32, to: &mut [Completion]) -> Result<usize, Error> {
        self.queue(cq).map(|queue| queue.poll(to))
    }

    /// Adds a line that did not come of a request here.
    pub fn complete(&mut self, cq: u32, completion: Completion) {
        let (_, mut env) = self.split(Moment::new(0));
        env.complete(cq, completion);
        self.fail_overrun(Moment::new(0));
    }

    /// Takes the oldest lines, `most` of them. How many they were.
    #[inline]
    pub fn take_completions(&mut self, cq: u32, most: usize, each: impl FnMut(&Completion)) -> usize {
        self.queues.get_mut(cq as usize).map_or(0, |queue| queue.take(most, each))
    }

    /// A queue that was empty and has lines; with [`Options::lists_filled`](super::Options::lists_filled). Whoever leaves some of them
    /// says so by [`Engine::list_filled`].
    pub fn take_filled(&mut self) -> Option<u32> {
        let cq = self.events.filled.pop_front()?;
        if let Some(queue) = self.queues.get_mut(cq as usize) {
            queue.listed = false;
        }
        Some(cq)
    }

    /// How many queues [`Engine::take_filled`] would find.
    pub fn filled(&self) -> usize {
        self.events.filled.len()
    }

    /// The queue has lines that were left: it is to be found again.
    pub fn list_filled(&mut self, cq: u32) {
        if let Some(queue) = self.queues.get_mut(cq as usize)
            && !core::mem::replace(&mut queue.listed, true)
        {
            self.events.filled.push_back(cq);
        }
    }

    /// Whether there are lines to take.
    #[inline]
    pub fn has_completions(&self, cq: u32) -> bool {
        self.queues.get(cq as usize).is_some_and(|queue| queue.has_some())
    }

    /// The next line makes an [`Event::Completion`], once; or the next one that wants to wake or failed. What is there already
    /// does not: poll once more afterwards (volume 1, 11.4.2.2).
    ///
    /// # Errors
    /// There is no such queue.
    pub fn arm(&mut self, cq: u32, solicited_only: bool) -> Result<(), Error> {
        self.queue(cq).map(|queue| queue.arm(solicited_only))
    }

    /// How many lines a completion queue has room for.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn cq_depth(&mut self, cq: u32) -> Result<u32, Error> {
        self.queue(cq).map(|queue| queue.depth() as u32)
    }

    /// Gives a completion queue another depth; its lines stay.
    ///
    /// # Errors
    /// There is no such queue, `depth` is 0 or above the limit, or there are more lines than that.
    pub fn resize_cq(&mut self, cq: u32, depth: u32) -> Result<(), Error> {
        let is_in_range = (1..=self.options.max_completions).contains(&depth);
        let queue = self.queue(cq)?;
        if is_in_range && queue.resize(depth as usize) { Ok(()) } else { Err(Error::Range("depth")) }
    }

    /// Ends a completion queue.
    ///
    /// # Errors
    /// There is no such queue, or queue pairs use it.
    pub fn destroy_cq(&mut self, cq: u32) -> Result<(), Error> {
        self.take_cq(cq).map(drop)
    }

    /// The same, with what is left of it, as with [`Engine::take_qp`].
    ///
    /// # Errors
    /// As [`Engine::destroy_cq`].
    pub fn take_cq(&mut self, cq: u32) -> Result<Leftover, Error> {
        if !self.queue(cq)?.users.is_empty() {
            return Err(Error::Busy(QUEUE));
        }
        let queue = self.queues.remove(cq as usize);
        if queue.listed {
            self.events.filled.retain(|filled| *filled != cq);
        }
        self.events
            .forget(|event| matches!(event, Event::Completion(of) | Event::CompletionQueueError(of) if *of == cq));
        Ok(Box::new(queue))
    }

    /// A receive queue that queue pairs share: `depth` buffers of at most `pieces` pieces.
    ///
    /// # Errors
    /// There is no such domain, a number is 0 or above its limit, or there are as many as there may be.
    pub fn create_srq(&mut self, domain: ProtectionDomain, depth: u32, pieces: u32) -> Result<u32, Error> {
        if depth == 0 || depth > self.options.max_requests {
            return Err(Error::Range("depth"));
        }
        if pieces > self.options.max_pieces {
            return Err(Error::Range("pieces"));
        }
        self.use_domain(domain)?;
        let queue = ReceiveQueue::new(depth, pieces.max(1));
        let shared = SharedReceiveQueue { queue, limit: 0, domain, users: 0 };
        let srq = add(&mut self.shared, shared, self.options.max_objects, "shared receive queues")?;
        *self.use_domain(domain)? += 1;
        Ok(srq)
    }

    pub(super) fn shared(&mut self, srq: u32) -> Result<&mut SharedReceiveQueue, Error> {
        self.shared.get_mut(srq as usize).ok_or(Error::Missing(SHARED))
    }

    /// With fewer buffers than `limit` there is an [`Event::SharedReceiveLimit`], once; 0: none.
    ///
    /// # Errors
    /// There is no such queue, or the limit is above its depth.
    pub fn set_srq_limit(&mut self, srq: u32, limit: u32) -> Result<(), Error> {
        let shared = self.shared(srq)?;
        if limit > shared.queue.depth() {
            return Err(Error::Range("limit"));
        }
        shared.limit = limit;
        // Who sets a limit when there are fewer already wants to know that too.
        if limit > 0 && shared.queue.len() < limit {
            shared.limit = 0;
            self.events.add_once(Event::SharedReceiveLimit(srq));
        }
        Ok(())
    }

    /// What a shared receive queue is.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn query_srq(&self, srq: u32) -> Result<SharedReceiveQuery, Error> {
        let shared = self.shared.get(srq as usize).ok_or(Error::Missing(SHARED))?;
        let (depth, pieces) = (shared.queue.depth(), shared.queue.stride() as u32);
        Ok(SharedReceiveQuery { depth, pieces, limit: shared.limit })
    }

    /// Adds a buffer to a shared receive queue.
    ///
    /// # Errors
    /// There is no such queue, it is full, or there are too many pieces.
    pub fn post_srq_receive(&mut self, srq: u32, id: u64, pieces: &[Piece]) -> Result<(), Error> {
        let shared = self.shared(srq)?;
        if pieces.len() > shared.queue.stride() {
            return Err(Error::Range("pieces"));
        }
        if shared.queue.post(id, pieces) { Ok(()) } else { Err(Error::Full) }
    }

    /// Ends a shared receive queue, and forgets its buffers.
    ///
    /// # Errors
    /// There is no such queue, or queue pairs use it.
    pub fn destroy_srq(&mut self, srq: u32) -> Result<(), Error> {
        self.take_srq(srq).map(drop)
    }

    /// The same, with what is left of it, as with [`Engine::take_qp`].
    ///
    /// # Errors
    /// As [`Engine::destroy_srq`].
    pub fn take_srq(&mut self, srq: u32) -> Result<Leftover, Error> {
        let shared = self.shared(srq)?;
        if shared.users > 0 {
            return Err(Error::Busy(SHARED));
        }
        let domain = shared.domain;
        let shared = self.shared.remove(srq as usize);
        *self.use_domain(domain)? -= 1;
        self.events.forget(|event| *event == Event::SharedReceiveLimit(srq));
        Ok(Box::new(shared))
    }
}
