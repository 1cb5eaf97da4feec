//! Flow entries: which there are, by table, priority and match, and what they depend on.

use super::compile::Use;
use super::datapath::FlowKey;
use crate::wire::flow::{ALL_TABLES, FlowMod};
use crate::wire::instruction::Instruction;
use crate::wire::oxm::Oxm;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A flow entry.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub cookie: u64,
    pub flags: u16,
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    /// As it was asked for.
    pub matching: Vec<Oxm>,
    pub instructions: Vec<Instruction>,
    pub uses: Vec<Use>,
    /// How many bytes of a packet it sends to controllers, if it does: as much as any of its actions, and of those of its groups.
    pub told: u16,
    /// The order in which entries were added.
    pub sequence: u64,
    /// The version with which it was added; `u64::MAX` until it is known.
    pub added: u64,
}

impl Entry {
    /// The message that adds it.
    pub fn message(&self, key: &FlowKey) -> FlowMod {
        FlowMod {
            cookie: self.cookie,
            cookie_mask: 0,
            table: key.table,
            command: crate::wire::flow::command::ADD,
            idle_timeout: self.idle_timeout,
            hard_timeout: self.hard_timeout,
            priority: key.priority,
            buffer: crate::wire::flow::NO_BUFFER,
            out_port: crate::wire::port::number::ANY,
            out_group: crate::wire::group::number::ANY,
            flags: self.flags,
            matching: self.matching.clone(),
            instructions: self.instructions.clone(),
        }
    }

    /// About how much memory it takes.
    fn bytes(&self) -> usize {
        let actions = self.instructions.iter().map(|instruction| match instruction {
            Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => actions.len(),
            _ => 0,
        });
        256 + 48 * (self.matching.len() + actions.sum::<usize>())
    }

    /// Whether it sends to a port.
    pub fn sends(&self, port: u32) -> bool {
        use crate::wire::action::Action;
        self.any_action(|action| matches!(action, Action::Output { port: to, .. } if *to == port))
    }

    /// Whether it uses a group.
    pub fn has_group(&self, group: u32) -> bool {
        self.any_action(|action| matches!(action, crate::wire::action::Action::Group(used) if *used == group))
    }

    fn any_action(&self, mut is: impl FnMut(&crate::wire::action::Action) -> bool) -> bool {
        self.instructions.iter().any(|instruction| match instruction {
            Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => actions.iter().any(&mut is),
            _ => false,
        })
    }
}

/// All entries.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// By table.
    all: BTreeMap<u8, HashMap<FlowKey, Entry>>,
    len: usize,
    users: HashMap<Use, HashSet<FlowKey>>,
    bytes: usize,
}

/// Most bytes of all entries: a million of the usual ones.
const MOST_BYTES: usize = 512 << 20;

impl Entries {
    pub fn get(&self, key: &FlowKey) -> Option<&Entry> {
        self.all.get(&key.table)?.get(key)
    }

    pub fn get_mut(&mut self, key: &FlowKey) -> Option<&mut Entry> {
        self.all.get_mut(&key.table)?.get_mut(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&FlowKey, &Entry)> {
        self.all.values().flatten()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no room for one more.
    pub fn is_full(&self, more: &Entry) -> bool {
        self.bytes + more.bytes() > MOST_BYTES
    }

    /// How many there are in a table.
    pub fn in_table(&self, table: u8) -> usize {
        self.all.get(&table).map_or(0, HashMap::len)
    }

    /// Those of a table, or of [all](ALL_TABLES).
    pub fn of_table(&self, table: u8) -> impl Iterator<Item = (&FlowKey, &Entry)> {
        let tables = if table == ALL_TABLES { 0..=ALL_TABLES } else { table..=table };
        self.all.range(tables).flat_map(|(_, entries)| entries)
    }

    /// Those that depend on something.
    pub fn users(&self, of: Use) -> Vec<FlowKey> {
        self.users.get(&of).map(|keys| keys.iter().copied().collect()).unwrap_or_default()
    }

    pub fn count_users(&self, of: Use) -> usize {
        self.users.get(&of).map_or(0, HashSet::len)
    }

    /// Adds an entry, exchanges it or takes it away; what was there.
    pub fn put(&mut self, key: FlowKey, entry: Option<Entry>) -> Option<Entry> {
        self.len += usize::from(entry.is_some());
        for of in entry.iter().flat_map(|entry| &entry.uses) {
            self.users.entry(*of).or_default().insert(key);
        }
        self.bytes += entry.as_ref().map_or(0, Entry::bytes);
        let kept: Vec<Use> = entry.as_ref().map(|entry| entry.uses.clone()).unwrap_or_default();
        let old = match entry {
            Some(entry) => self.all.entry(key.table).or_default().insert(key, entry),
            None => self.all.get_mut(&key.table).and_then(|table| table.remove(&key)),
        };
        if let Some(old) = &old {
            self.len -= 1;
            self.bytes -= old.bytes();
            for of in old.uses.iter().filter(|of| !kept.contains(of)) {
                if let Some(keys) = self.users.get_mut(of) {
                    keys.remove(&key);
                    if keys.is_empty() {
                        self.users.remove(of);
                    }
                }
            }
        }
        old
    }
}
