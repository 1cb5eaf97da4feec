//! Requests and buffers of queue pairs that have failed end one by one, each with a completion. With an engine for many programs not more of them
//! in a turn than a few, so that nobody waits for another's: the others end in the turns that come, by group and then by queue pair.

use crate::number::Qpn;
use std::collections::VecDeque;

/// What is still to end, and how much of it now.
#[derive(Debug)]
pub(crate) struct Flushes {
    /// How many may end before the next turn.
    left: u32,
    /// Queue pairs whose requests have not all ended, of each group.
    waiting: Vec<VecDeque<Qpn>>,
    /// Groups that have some, in the order of their turns.
    groups: VecDeque<u32>,
}

impl Flushes {
    /// So many may end before the first turn.
    pub fn new(budget: u32) -> Self {
        Self { left: budget, waiting: Vec::new(), groups: VecDeque::new() }
    }

    /// From now on so many may end.
    pub fn set_left(&mut self, left: u32) {
        self.left = left;
    }

    /// How many more may end.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// One is about to end. False: not now.
    #[inline]
    pub fn take(&mut self) -> bool {
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }

    /// A queue pair goes on in a later turn.
    pub fn add(&mut self, group: u32, qpn: Qpn) {
        if self.waiting.len() <= group as usize {
            self.waiting.resize_with(group as usize + 1, VecDeque::new);
        }
        let of = &mut self.waiting[group as usize];
        if of.is_empty() {
            self.groups.push_back(group);
        }
        of.push_back(qpn);
    }

    /// The queue pair whose turn it is. It is added again if that was not all.
    pub fn next(&mut self) -> Option<Qpn> {
        let group = self.groups.pop_front()?;
        let of = self.waiting.get_mut(group as usize)?;
        let qpn = of.pop_front();
        if !of.is_empty() {
            self.groups.push_back(group);
        }
        qpn
    }

    /// Whether everything has ended.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Whether something of a group has not ended.
    #[inline]
    pub fn has(&self, group: u32) -> bool {
        !self.is_empty() && self.waiting.get(group as usize).is_some_and(|of| !of.is_empty())
    }
}
