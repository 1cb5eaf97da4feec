//! Changes that go to the datapath together, and how they are taken back when it does not take them.

use super::datapath::{Change, FlowKey};
use super::entries::Entry;
use super::groups::Group;
use super::meters::Metering;
use crate::wire::Message;
use std::collections::{HashMap, HashSet};

/// What was there before.
#[derive(Debug)]
pub(super) enum Undo {
    Flow(Box<FlowKey>, Option<Box<Entry>>),
    Group(u32, Option<Box<Group>>),
    Meter(u32, Option<Box<Metering>>),
    /// The configuration of a port.
    Port(u32, u32),
}

/// An entry that goes, and of which somebody wants to know.
#[derive(Debug)]
pub(super) struct Leaving {
    pub entry: Entry,
    pub reason: u8,
    /// With which version.
    pub version: u64,
    /// Behind how many changes of the batch.
    pub at: usize,
}

/// A message that is a part of a batch.
#[derive(Debug)]
pub(super) struct Item {
    pub controller: u64,
    pub xid: u32,
    pub message: Message,
    /// Its beginning, for an error.
    pub head: Vec<u8>,
}

/// Most messages of a batch.
pub(super) const MOST_ITEMS: usize = 512;

/// What has been done to the switch and not yet to the datapath.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub changes: Vec<Change>,
    pub undo: Vec<Undo>,
    pub added: Vec<FlowKey>,
    pub leaving: Vec<(FlowKey, Leaving)>,
    pub items: Vec<Item>,
    /// All that is in it, as it was asked for.
    pub messages: Vec<Message>,
}

/// How far it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub changes: usize,
    pub undo: usize,
    pub added: usize,
    pub leaving: usize,
    pub messages: usize,
}

impl Batch {
    /// Those that leave and have a successor at the same place, by their place in `leaving`: the datapath exchanges one for the other and does not
    /// tell of it.
    pub fn succeeded(&self) -> HashSet<usize> {
        if self.leaving.is_empty() {
            return HashSet::new();
        }
        let added = self.changes.iter().enumerate().filter_map(|(at, change)| match change {
            Change::Add(rule) | Change::Renew(rule) => Some((FlowKey::of(rule), at)),
            _ => None,
        });
        let last: HashMap<FlowKey, usize> = added.collect();
        let leaving = self.leaving.iter().enumerate();
        let succeeded = leaving.filter(|(_, (key, leaving))| last.get(key).is_some_and(|at| *at >= leaving.at));
        succeeded.map(|(place, _)| place).collect()
    }

    pub fn mark(&self) -> Mark {
        Mark {
            changes: self.changes.len(),
            undo: self.undo.len(),
            added: self.added.len(),
            leaving: self.leaving.len(),
            messages: self.messages.len(),
        }
    }

    /// Forgets what came since; what is to be undone, the last first.
    pub fn back_to(&mut self, mark: Mark) -> Vec<Undo> {
        self.changes.truncate(mark.changes);
        self.added.truncate(mark.added);
        self.leaving.truncate(mark.leaving);
        self.messages.truncate(mark.messages);
        let mut undo = self.undo.split_off(mark.undo);
        undo.reverse();
        undo
    }
}
