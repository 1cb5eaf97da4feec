//! What a program is told without having asked.

use crate::number::Qpn;
use std::collections::VecDeque;

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A completion came to a queue that was armed.
    Completion(u32),
    /// A completion queue was overrun; its queue pairs have failed.
    CompletionQueueError(u32),
    /// A shared receive queue has fewer buffers than its limit.
    SharedReceiveLimit(u32),
    /// A shared receive queue did not take a buffer, and whoever posted it could not be told.
    SharedReceiveError(u32),
    /// A queue pair failed, and no completion says so.
    QueuePairFatal(Qpn),
    /// The other end asked for something that is not a request.
    RequestError(Qpn),
    /// The other end asked for something that it has no access to.
    AccessError(Qpn),
    /// Something came to a queue pair that was not ready to send yet.
    Established(Qpn),
    /// The send queue is drained.
    SendQueueDrained(Qpn),
    /// A failed queue pair takes nothing more from its shared receive queue.
    LastBufferReached(Qpn),
}

/// Events that wait. Each kind waits at most once for each object.
#[derive(Debug, Default)]
pub(crate) struct Events {
    waiting: VecDeque<Event>,
    /// Completion queues that were overrun, and whose queue pairs do not know yet; each once.
    pub overrun: Vec<u32>,
    /// Completion queues that have lines which nobody has asked for yet, each once.
    pub filled: VecDeque<u32>,
}

impl Events {
    /// Adds an event. The caller knows that it does not wait already, or that this is rare.
    pub fn add(&mut self, event: Event) {
        self.waiting.push_back(event);
    }

    /// The same, unless it waits already.
    pub fn add_once(&mut self, event: Event) {
        if !self.waiting.contains(&event) {
            self.waiting.push_back(event);
        }
    }

    pub fn take(&mut self) -> Option<Event> {
        self.waiting.pop_front()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn forget(&mut self, of: impl Fn(&Event) -> bool) {
        self.waiting.retain(|event| !of(event));
    }
}
