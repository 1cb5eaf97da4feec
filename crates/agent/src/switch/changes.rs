//! Changes of groups and meters (sections 6.5, 6.6 and 7.3.4), and entries that have gone by themselves.

use super::Switch;
use super::balance::Ports;
use super::batch::{Leaving, Undo};
use super::compile::Use;
use super::datapath::{Change, Counts, Datapath, FlowKey, Gone, Snapshot, Why};
use super::groups::{Group, MOST_GROUPS};
use super::meters::{MOST_METERS, Metering};
use crate::wire::Message;
use crate::wire::error::{Refusal, group_mod, meter_mod};
use crate::wire::flow::{FlowMod, FlowRemoved, Lifetime, command as flow_command, flag, removed};
use crate::wire::group::{GroupDesc, GroupMod, command, number as group_number};
use crate::wire::meter::{MeterConfig, MeterMod, command as meter_command, number as meter_number};
use std::collections::{HashMap, HashSet, VecDeque};

/// Most places of which entries are waited for; the card keeps as many events.
const MOST_LEAVING: usize = 1 << 17;

impl Switch {
    pub(super) fn group_mod(&mut self, change: &GroupMod) -> Result<(), Refusal> {
        let is_there = self.groups.get(change.group).is_some();
        match change.command {
            command::ADD if is_there => Err(group_mod::GROUP_EXISTS),
            command::ADD if self.groups.len() >= MOST_GROUPS => Err(group_mod::OUT_OF_GROUPS),
            command::ADD | command::MODIFY if self.groups.is_full(&change.buckets) => Err(group_mod::OUT_OF_BUCKETS),
            command::MODIFY if !is_there => Err(group_mod::UNKNOWN_GROUP),
            command::ADD | command::MODIFY => {
                let desc = GroupDesc { kind: change.kind, group: change.group, buckets: change.buckets.clone() };
                self.set_group(Group::new(desc, self.now, self.queues.len() as u32, &self.card_ports())?)
            }
            command::DELETE => {
                let all = change.group == group_number::ALL;
                let numbers: Vec<_> = self.groups.iter().map(|group| group.desc.group).collect();
                let meant = numbers.into_iter().filter(|number| all || *number == change.group);
                meant.for_each(|number| self.remove_group(number));
                Ok(())
            }
            _ => Err(group_mod::BAD_COMMAND),
        }
    }

    /// Ports that are no tunnels.
    fn card_ports(&self) -> Ports<'_> {
        let count = self.port_numbers.len().saturating_sub(self.tunnels.len());
        Ports { all: &self.port_numbers[..count], live: &self.live, closed: &self.closed }
    }

    /// Groups that select among ports follow those that are alive.
    pub(super) fn follow_groups(&mut self) {
        let ports = self.card_ports();
        let others = self.groups.iter().filter_map(|group| group.over(&ports)).collect::<Vec<_>>();
        for group in others {
            let number = group.desc.group;
            self.batch.changes.extend(group.spread.as_ref().map(|spread| Change::Group(number, spread.spec().clone())));
            let old = self.groups.put(number, Some(group));
            self.batch.undo.push(Undo::Group(number, old.map(Box::new)));
        }
    }

    fn set_group(&mut self, group: Group) -> Result<(), Refusal> {
        let number = group.desc.group;
        let buckets = group.desc.buckets.clone();
        let spread = group.spread.clone();
        let old = self.groups.get(number).cloned();
        let since = old.as_ref().map_or(group.since, |old| old.since);
        self.groups.put(number, Some(Group { since, ..group }));
        let spread_before = old.as_ref().is_some_and(Group::spreads);
        self.batch.undo.push(Undo::Group(number, old.map(Box::new)));
        // What no entry uses yet is looked at all the same.
        for bucket in &buckets {
            super::compile::packet(&bucket.actions, None, &self.world())?;
        }
        if let Some(spread) = &spread {
            self.batch.changes.push(Change::Group(number, spread.spec().clone()));
        }
        for key in self.entries.users(Use::Group(number)) {
            self.renew(key)?;
        }
        if spread_before && spread.is_none() {
            self.batch.changes.push(Change::DeleteGroup(number));
        }
        Ok(())
    }

    /// Entries that use it go with it (section 6.5).
    fn remove_group(&mut self, number: u32) {
        for key in self.entries.users(Use::Group(number)) {
            self.remove(key, removed::GROUP_DELETE);
        }
        let old = self.groups.put(number, None);
        if old.as_ref().is_some_and(Group::spreads) {
            self.batch.changes.push(Change::DeleteGroup(number));
        }
        self.batch.undo.push(Undo::Group(number, old.map(Box::new)));
    }

    pub(super) fn meter_mod(&mut self, change: &MeterMod) -> Result<(), Refusal> {
        let is_there = self.meters.has(change.meter);
        match change.command {
            meter_command::ADD if is_there => Err(meter_mod::METER_EXISTS),
            meter_command::ADD if self.meters.len() >= MOST_METERS => Err(meter_mod::OUT_OF_METERS),
            meter_command::MODIFY if !is_there => Err(meter_mod::UNKNOWN_METER),
            meter_command::ADD | meter_command::MODIFY => {
                let config = MeterConfig { flags: change.flags, meter: change.meter, bands: change.bands.clone() };
                let meter = Metering::new(config, self.now)?;
                self.batch.changes.push(Change::Meter(change.meter, meter.spec));
                let since = self.meters.get(change.meter).map_or(meter.since, |old| old.since);
                let old = self.meters.put(change.meter, Some(Metering { since, ..meter }));
                self.batch.undo.push(Undo::Meter(change.meter, old.map(Box::new)));
                Ok(())
            }
            meter_command::DELETE => {
                let all = change.meter == meter_number::ALL;
                let numbers: Vec<_> = self.meters.iter().map(|meter| meter.config.meter).collect();
                for number in numbers.into_iter().filter(|number| all || *number == change.meter) {
                    for key in self.entries.users(Use::Meter(number)) {
                        self.remove(key, removed::DELETE);
                    }
                    self.batch.changes.push(Change::DeleteMeter(number));
                    let old = self.meters.put(number, None);
                    self.batch.undo.push(Undo::Meter(number, old.map(Box::new)));
                }
                Ok(())
            }
            _ => Err(meter_mod::BAD_COMMAND),
        }
    }

    /// Rules have gone from the datapath, because somebody here has deleted them or by themselves. What was collected has to be settled before.
    pub fn gone(&mut self, rules: &[Gone]) {
        let barriers = self.barriers();
        for gone in rules {
            let reason = match gone.why {
                Why::Idle => removed::IDLE_TIMEOUT,
                Why::Hard => removed::HARD_TIMEOUT,
                Why::Delete => removed::DELETE,
            };
            if self.has_left(gone, reason) {
                continue;
            }
            // One that closes a port comes back.
            if barriers.contains(&gone.key) {
                self.torn.insert(gone.key);
            }
            if self.entries.get(&gone.key).is_some_and(|entry| entry.added < gone.version)
                && let Some(entry) = self.entries.put(gone.key, None)
            {
                let change = FlowMod { command: flow_command::DELETE_STRICT, ..entry.message(&gone.key) };
                self.done.push(Message::FlowMod(change));
                if entry.flags & flag::SEND_FLOW_REM != 0 {
                    self.tell_removed(gone, &entry, reason);
                }
            }
        }
    }

    /// What a rule has had that was deleted here, or had gone by itself just before: whether it was such a one.
    fn has_left(&mut self, gone: &Gone, reason: u8) -> bool {
        while let Some(first) = self.leaving.get_mut(&gone.key).and_then(|all| all.pop_front()) {
            let (entry, version) = (&first.entry, first.version);
            if gone.version < entry.added {
                // One that was there before it.
                self.leaving.entry(gone.key).or_default().push_front(first);
                return false;
            }
            if gone.version <= version {
                let reason = if gone.version == version { first.reason } else { reason };
                self.tell_removed(gone, entry, reason);
                self.forget_empty(&gone.key);
                return true;
            }
            // Of this one nothing came, and nothing will: what it had is not known.
            self.untold += 1;
            let unknown = Gone { key: gone.key, version, why: Why::Delete, counts: Counts::default() };
            self.tell_removed(&unknown, entry, first.reason);
        }
        self.forget_empty(&gone.key);
        false
    }

    fn forget_empty(&mut self, key: &FlowKey) {
        if self.leaving.get(key).is_some_and(VecDeque::is_empty) {
            self.leaving.remove(key);
        }
    }

    /// Entries that somebody wants to hear of have been deleted with that version: most wait for the datapath, which tells what they have had. Those
    /// with a successor have had what was seen just before.
    pub(super) fn leave(
        &mut self,
        leaving: Vec<(FlowKey, Leaving)>,
        succeeded: &HashSet<usize>,
        version: u64,
        had: Snapshot,
    ) {
        let had: HashMap<_, _> = had.rules.into_iter().collect();
        for (at, (key, mut one)) in leaving.into_iter().enumerate() {
            one.version = version;
            // Added and deleted at once.
            one.entry.added = one.entry.added.min(version);
            if succeeded.contains(&at) {
                let counts = had.get(&key).copied().unwrap_or_default();
                self.tell_removed(&Gone { key, version, why: Why::Delete, counts }, &one.entry, one.reason);
            } else {
                self.leaving.entry(key).or_default().push_back(one);
            }
        }
    }

    /// Whether more entries wait for word of the datapath than it can have to tell: it is to be looked for them.
    pub fn waits_in_vain(&self) -> bool {
        self.leaving.len() > MOST_LEAVING
    }

    /// Something has gone of which nobody has told: looks for what the datapath has not got any more. What those entries had is not known.
    pub fn look_for_gone(&mut self, datapath: &mut dyn Datapath) {
        self.settle(datapath);
        let Ok(snapshot) = datapath.snapshot() else { return };
        let there: HashSet<_> = snapshot.rules.iter().map(|(key, _)| *key).collect();
        let torn = self.barriers().into_iter().filter(|key| !there.contains(key));
        self.torn.extend(torn);
        let missing = self.entries.iter().map(|(key, _)| *key).filter(|key| !there.contains(key));
        let mut gone: Vec<_> = missing.map(|key| (key, u64::MAX)).collect();
        let leaving = self.leaving.iter().flat_map(|(key, all)| all.iter().map(|one| (*key, one.version)));
        gone.extend(leaving);
        self.untold += gone.len() as u64;
        let of = |(key, version)| Gone { key, version, why: Why::Delete, counts: Counts::default() };
        self.gone(&gone.into_iter().map(of).collect::<Vec<_>>());
    }

    fn tell_removed(&mut self, gone: &Gone, entry: &super::entries::Entry, reason: u8) {
        let message = FlowRemoved {
            cookie: entry.cookie,
            priority: gone.key.priority,
            reason,
            table: gone.key.table,
            lifetime: Lifetime::of_ns(gone.counts.age_ns),
            idle_timeout: entry.idle_timeout,
            hard_timeout: entry.hard_timeout,
            packets: gone.counts.packets,
            bytes: gone.counts.bytes,
            matching: entry.matching.clone(),
        };
        self.tell(Message::FlowRemoved(message), |wants| wants.flow_removed, reason);
    }
}
