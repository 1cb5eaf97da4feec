//! Completion queues (volume 1, 10.4 and 11.2.8).

use super::{Completion, Status};
use std::collections::VecDeque;

/// What wakes a sleeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Armed {
    /// Nothing.
    #[default]
    No,
    /// What the sender wants that it wakes, and everything that failed.
    Solicited,
    /// Any completion.
    Any,
}

/// What came of adding a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// It is there.
    Quietly,
    /// It is there, and a sleeper is to be woken.
    Waking,
    /// There is no room for it.
    Overrun,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    lines: VecDeque<Completion>,
    depth: usize,
    armed: Armed,
    /// It was overrun, and its queue pairs know.
    told: bool,
    /// It is among those that were [filled](crate::engine::Engine::take_filled).
    pub listed: bool,
    /// Slots of queue pairs that use it, once for each of their queues that does.
    pub users: Vec<u32>,
}

impl CompletionQueue {
    pub fn new(depth: usize) -> Self {
        Self {
            lines: VecDeque::with_capacity(depth),
            depth,
            armed: Armed::No,
            told: false,
            listed: false,
            users: Vec::new(),
        }
    }

    #[inline]
    pub fn add(&mut self, completion: Completion) -> Added {
        if self.lines.len() >= self.depth {
            return Added::Overrun;
        }
        let wakes = match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => completion.solicited || completion.status != Status::Success,
        };
        self.lines.push_back(completion);
        if wakes {
            self.armed = Armed::No;
            return Added::Waking;
        }
        Added::Quietly
    }

    #[inline]
    pub fn has_some(&self) -> bool {
        !self.lines.is_empty()
    }

    #[inline]
    pub fn poll(&mut self, to: &mut [Completion]) -> usize {
        let mut places = to.iter_mut();
        self.take(places.len(), |line| {
            if let Some(place) = places.next() {
                *place = *line;
            }
        })
    }

    /// Takes the oldest lines, `most` of them. How many they were.
    #[inline]
    pub fn take(&mut self, most: usize, mut each: impl FnMut(&Completion)) -> usize {
        let count = most.min(self.lines.len());
        for _ in 0..count {
            if let Some(line) = self.lines.pop_front() {
                each(&line);
            }
        }
        if self.lines.is_empty() {
            // The places that were used last are in the caches: `clear` begins with the first ones again.
            self.lines.clear();
        }
        count
    }

    /// The next completion wakes; one that was asked for any does not become one for solicited only (volume 1,
    /// 11.4.2.2).
    pub fn arm(&mut self, solicited_only: bool) {
        self.armed = match (self.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
    }

    /// Whether there is room for `depth` and what it has; then it has that depth.
    pub fn resize(&mut self, depth: usize) -> bool {
        if self.lines.len() > depth {
            return false;
        }
        self.lines.reserve_exact(depth - self.lines.len());
        self.lines.shrink_to(depth);
        self.depth = depth;
        true
    }

    /// Takes away what belongs to a queue pair that does not exist any more.
    pub fn forget(&mut self, of: impl Fn(&Completion) -> bool) {
        self.lines.retain(|line| !of(line));
    }

    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Whether it is known that it was overrun.
    pub fn is_told(&self) -> bool {
        self.told
    }

    pub fn set_told(&mut self) {
        self.told = true;
    }
}
