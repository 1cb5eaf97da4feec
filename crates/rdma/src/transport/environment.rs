//! What queue pairs need of the engine.

use super::responder::Pool;
use super::{Counters, Event, Events, Flushes, Options};
use crate::number::Moment;
use crate::work::{Added, Completion, CompletionQueue, SharedReceiveQueue};
use slab::Slab;

/// What queue pairs need of the engine, and when it is.
pub(crate) struct Environment<'a, M> {
    pub memory: &'a mut M,
    pub queues: &'a mut Slab<CompletionQueue>,
    pub shared: &'a mut Slab<SharedReceiveQueue>,
    pub events: &'a mut Events,
    pub counters: &'a mut Counters,
    pub pool: &'a mut Pool,
    pub flushes: &'a mut Flushes,
    pub options: &'a Options,
    pub now: Moment,
}

impl<M> Environment<'_, M> {
    /// Tells that something has ended.
    #[inline]
    pub fn complete(&mut self, queue: u32, completion: Completion) {
        let Some(lines) = self.queues.get_mut(queue as usize) else { return };
        if self.options.lists_filled && !core::mem::replace(&mut lines.listed, true) {
            self.events.filled.push_back(queue);
        }
        match lines.add(completion) {
            Added::Quietly => {}
            Added::Waking => self.events.add(Event::Completion(queue)),
            Added::Overrun => {
                self.counters.completions_lost += 1;
                if !self.events.overrun.contains(&queue) {
                    self.events.overrun.push(queue);
                }
            }
        }
    }
}
