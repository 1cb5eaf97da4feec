//! Changes of flow entries (section 6.4).

use super::Switch;
use super::batch::{Leaving, Undo};
use super::compile::{self, Compiled, World};
use super::datapath::{Change, FlowKey};
use super::entries::Entry;
use super::fields;
use super::packets::PUNTS;
use crate::wire::error::{Refusal, flow_mod as refused, request};
use crate::wire::flow::{ALL_TABLES, FlowMod, FlowQuestion, NO_BUFFER, command, flag, removed};
use crate::wire::group::kind::FAST_FAILOVER;
use crate::wire::group::number::ANY as ANY_GROUP;
use crate::wire::instruction::Instruction;
use crate::wire::port::number::ANY as ANY_PORT;
use millrace_flow::Match;
use millrace_flow::rule::RuleSpec;

impl Switch {
    /// Does a change to the entries; the datapath comes later.
    pub(super) fn flow_mod(&mut self, change: &FlowMod) -> Result<(), Refusal> {
        let matching = fields::matching(&change.matching)?;
        let all = change.table == ALL_TABLES;
        let deletes = matches!(change.command, command::DELETE | command::DELETE_STRICT);
        if change.table >= self.tables() && !(all && deletes) {
            return Err(refused::BAD_TABLE_ID);
        }
        if change.flags & !flag::ALL != 0 {
            return Err(refused::BAD_FLAGS);
        }
        if change.buffer != NO_BUFFER && !deletes {
            return Err(request::BUFFER_UNKNOWN);
        }
        match change.command {
            command::ADD => self.add(change, matching),
            command::MODIFY | command::MODIFY_STRICT => {
                let keys = self.meant(change, matching);
                keys.into_iter().try_for_each(|key| self.modify(key, change))
            }
            command::DELETE | command::DELETE_STRICT => {
                let keys = self.meant(change, matching);
                keys.into_iter().for_each(|key| self.remove(key, removed::DELETE));
                Ok(())
            }
            _ => Err(refused::BAD_COMMAND),
        }
    }

    fn add(&mut self, change: &FlowMod, matching: Match) -> Result<(), Refusal> {
        let key = FlowKey { table: change.table, priority: change.priority, matching };
        if change.flags & flag::CHECK_OVERLAP != 0 && self.overlaps(&key) {
            return Err(refused::OVERLAP);
        }
        let compiled = self.possible(&key, &change.instructions)?;
        self.sequence += 1;
        let entry = Entry {
            cookie: change.cookie,
            flags: change.flags,
            idle_timeout: change.idle_timeout,
            hard_timeout: change.hard_timeout,
            matching: change.matching.clone(),
            instructions: change.instructions.clone(),
            uses: compiled.uses.clone(),
            told: compiled.told,
            sequence: self.sequence,
            added: u64::MAX,
        };
        if self.entries.is_full(&entry) {
            return Err(refused::TABLE_FULL);
        }
        let rule = rule(&key, &entry, compiled);
        // An entry that takes the place of another has its counters, unless it says that it does not want them; its time begins anew.
        let old = self.entries.get(&key).filter(|_| change.flags & flag::RESET_COUNTS == 0);
        let (sequence, change) = match old {
            Some(old) => (old.sequence, Change::Renew(rule)),
            None => (entry.sequence, Change::Add(rule)),
        };
        self.batch.changes.push(change);
        self.batch.added.push(key);
        self.put_flow(key, Some(Entry { sequence, ..entry }));
        Ok(())
    }

    fn modify(&mut self, key: FlowKey, change: &FlowMod) -> Result<(), Refusal> {
        let compiled = self.possible(&key, &change.instructions)?;
        let Some(old) = self.entries.get(&key) else { return Ok(()) };
        // The rule's cookie says whether it sends to controllers: it is modified, too.
        let (instructions, uses) = (change.instructions.clone(), compiled.uses.clone());
        let entry = Entry { instructions, uses, told: compiled.told, ..old.clone() };
        if self.entries.is_full(&entry) {
            return Err(refused::TABLE_FULL);
        }
        let rule = rule(&key, &entry, compiled);
        let resets = change.flags & flag::RESET_COUNTS != 0;
        if resets {
            self.batch.added.push(key);
        }
        self.batch.changes.push(if resets { Change::Add(rule) } else { Change::Modify(rule) });
        self.put_flow(key, Some(entry));
        Ok(())
    }

    /// Takes an entry away.
    pub(super) fn remove(&mut self, key: FlowKey, reason: u8) {
        let Some(entry) = self.put_flow(key, None) else { return };
        self.batch.changes.push(Change::Delete(key));
        if entry.flags & flag::SEND_FLOW_REM != 0 {
            let at = self.batch.changes.len();
            self.batch.leaving.push((key, Leaving { entry, reason, version: u64::MAX, at }));
        }
    }

    /// Compiles an entry again, since something that it uses is another.
    pub(super) fn renew(&mut self, key: FlowKey) -> Result<(), Refusal> {
        let Some(entry) = self.entries.get(&key).cloned() else { return Ok(()) };
        let compiled = self.possible(&key, &entry.instructions)?;
        self.renew_as(key, entry, compiled);
        Ok(())
    }

    /// Compiles entries again, since ports are not what they were. One that sends to a port that has gone stays as it is: how many do.
    pub(super) fn renew_for_ports(&mut self, keys: &[FlowKey]) -> usize {
        let mut behind = 0;
        for key in keys {
            let Some(entry) = self.entries.get(key).cloned() else { continue };
            match self.compiled(key, &entry.instructions) {
                Ok(compiled) => self.renew_as(*key, entry, compiled),
                Err(_) => behind += 1,
            }
        }
        behind
    }

    fn renew_as(&mut self, key: FlowKey, entry: Entry, compiled: Compiled) {
        let entry = Entry { uses: compiled.uses.clone(), told: compiled.told, ..entry };
        self.batch.changes.push(Change::Modify(rule(&key, &entry, compiled)));
        self.put_flow(key, Some(entry));
    }

    /// The rule of an entry that is there.
    pub(super) fn rule_of(&self, key: &FlowKey) -> Option<RuleSpec> {
        let entry = self.entries.get(key)?;
        let compiled = self.compiled(key, &entry.instructions).ok()?;
        Some(rule(key, entry, compiled))
    }

    fn put_flow(&mut self, key: FlowKey, entry: Option<Entry>) -> Option<Entry> {
        let old = self.entries.put(key, entry);
        self.batch.undo.push(Undo::Flow(Box::new(key), old.clone().map(Box::new)));
        old
    }

    fn compiled(&self, key: &FlowKey, instructions: &[Instruction]) -> Result<Compiled, Refusal> {
        compile::entry(key, instructions, &self.world())
    }

    /// What becomes of an entry now, if it can be whatever ports come up, go down, or are opened.
    fn possible(&self, key: &FlowKey, instructions: &[Instruction]) -> Result<Compiled, Refusal> {
        let compiled = self.compiled(key, instructions)?;
        let fails_over = |of: &compile::Use| match of {
            compile::Use::Group(number) => {
                self.groups.get(*number).is_some_and(|group| group.desc.kind == FAST_FAILOVER)
            }
            _ => false,
        };
        if !self.closed.is_empty() || compiled.uses.iter().any(fails_over) {
            compile::entry(key, instructions, &World { closed: &[], all_buckets: true, ..self.world() })?;
        }
        Ok(compiled)
    }

    fn overlaps(&self, key: &FlowKey) -> bool {
        let mut others = self.entries.of_table(key.table).filter(|(other, _)| *other != key);
        others.any(|(other, _)| other.priority == key.priority && meet(&other.matching, &key.matching))
    }

    /// The entries that a change of what is there means.
    fn meant(&self, change: &FlowMod, matching: Match) -> Vec<FlowKey> {
        let strict = matches!(change.command, command::MODIFY_STRICT | command::DELETE_STRICT);
        let deletes = matches!(change.command, command::DELETE | command::DELETE_STRICT);
        let is_meant = |entry: &Entry| {
            let filtered = !deletes
                || (change.out_port == ANY_PORT || entry.sends(change.out_port))
                    && (change.out_group == ANY_GROUP || entry.has_group(change.out_group));
            filtered && (entry.cookie ^ change.cookie) & change.cookie_mask == 0
        };
        if strict {
            // Controllers delete in all tables: one of each is found without looking at the others.
            let tables = (0..self.tables()).filter(|table| change.table == ALL_TABLES || change.table == *table);
            let keys = tables.filter(|table| self.entries.in_table(*table) > 0);
            let keys = keys.map(|table| FlowKey { table, priority: change.priority, matching });
            return keys.filter(|key| self.entries.get(key).is_some_and(is_meant)).collect();
        }
        let all = self.entries.of_table(change.table);
        let meant = all.filter(|(key, entry)| key.matching.within(&matching) && is_meant(entry));
        meant.map(|(key, _)| *key).collect()
    }

    /// The entries that somebody asks about, table after table, the one that wins first.
    pub(super) fn asked(&self, question: &FlowQuestion) -> Result<Vec<FlowKey>, Refusal> {
        let matching = fields::matching(&question.matching)?;
        let mut asked: Vec<_> = self
            .entries
            .of_table(question.table)
            .filter(|(key, entry)| {
                (question.out_port == ANY_PORT || entry.sends(question.out_port))
                    && (question.out_group == ANY_GROUP || entry.has_group(question.out_group))
                    && (entry.cookie ^ question.cookie) & question.cookie_mask == 0
                    && key.matching.within(&matching)
            })
            .map(|(key, entry)| ((key.table, std::cmp::Reverse(key.priority), entry.sequence), *key))
            .collect();
        asked.sort_by_key(|(order, _)| *order);
        Ok(asked.into_iter().map(|(_, key)| key).collect())
    }
}

/// The rule of an entry.
fn rule(key: &FlowKey, entry: &Entry, compiled: Compiled) -> RuleSpec {
    let punts = if entry.uses.contains(&compile::Use::Controller) { PUNTS } else { 0 };
    RuleSpec {
        table: key.table,
        priority: key.priority,
        matching: key.matching,
        actions: compiled.actions,
        cookie: entry.cookie & !PUNTS | punts,
        idle_timeout: entry.idle_timeout,
        hard_timeout: entry.hard_timeout,
    }
}

/// Whether a packet can match both.
fn meet(one: &Match, other: &Match) -> bool {
    let words = one.key().words().iter().zip(other.key().words());
    let masks = one.mask().words().iter().zip(other.mask().words());
    words.zip(masks).all(|((one, other), (mask, other_mask))| (one ^ other) & mask & other_mask == 0)
}
