//! Changes of groups and meters (sections 6.5, 6.6 and 7.3.4), and entries that have gone by themselves.

use super::Switch;
use super::batch::Undo;
use super::compile::Use;
use super::datapath::{Change, Counts, Datapath, Gone, Why};
use super::groups::{Group, MOST_GROUPS};
use super::meters::{MOST_METERS, Metering};
use crate::wire::Message;
use crate::wire::error::{Refusal, group_mod, meter_mod};
use crate::wire::flow::{FlowMod, FlowRemoved, Lifetime, command as flow_command, flag, removed};
use crate::wire::group::{GroupDesc, GroupMod, command, number as group_number};
use crate::wire::meter::{MeterConfig, MeterMod, command as meter_command, number as meter_number};
use std::collections::HashSet;

impl Switch {
    pub(super) fn group_mod(&mut self, change: &GroupMod) -> Result<(), Refusal> {
        let is_there = self.groups.get(change.group).is_some();
        match change.command {
            command::ADD if is_there => Err(group_mod::GROUP_EXISTS),
            command::ADD if self.groups.len() >= MOST_GROUPS => Err(group_mod::OUT_OF_GROUPS),
            command::MODIFY if !is_there => Err(group_mod::UNKNOWN_GROUP),
            command::ADD | command::MODIFY => {
                let desc = GroupDesc { kind: change.kind, group: change.group, buckets: change.buckets.clone() };
                self.set_group(Group::new(desc, self.now, self.queues.len() as u32)?)
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
        if let Some(spread) = spread.clone() {
            self.batch.changes.push(Change::Group(number, spread));
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
        for gone in rules {
            let reason = match gone.why {
                Why::Idle => removed::IDLE_TIMEOUT,
                Why::Hard => removed::HARD_TIMEOUT,
                Why::Delete => removed::DELETE,
            };
            // It was deleted here; or had gone by itself just before.
            if self.leaving.get(&gone.key).is_some_and(|leaving| gone.version <= leaving.version) {
                if let Some(leaving) = self.leaving.remove(&gone.key) {
                    let reason = if gone.version == leaving.version { leaving.reason } else { reason };
                    self.tell_removed(gone, &leaving.entry, reason);
                }
                continue;
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

    /// Something has gone of which nobody has told: looks for what the datapath has not got any more. What those entries had is not known.
    pub fn look_for_gone(&mut self, datapath: &mut dyn Datapath) {
        self.settle(datapath);
        let Ok(snapshot) = datapath.snapshot() else { return };
        let there: HashSet<_> = snapshot.rules.iter().map(|(key, _)| *key).collect();
        let missing = self.entries.iter().map(|(key, _)| *key).filter(|key| !there.contains(key));
        let mut gone: Vec<_> = missing.map(|key| (key, u64::MAX)).collect();
        gone.extend(self.leaving.iter().map(|(key, leaving)| (*key, leaving.version)));
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
