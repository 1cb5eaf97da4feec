//! Answers to questions with long answers (section 7.3.5).

use super::compile::Use;
use super::datapath::{Counts, Datapath, Snapshot};
use super::{Switch, features};
use crate::wire::error::{Refusal, group_mod, meter_mod, queue_op, request, table_features};
use crate::wire::flow::{FlowQuestion, FlowStats, Lifetime};
use crate::wire::group::{GroupStats, kind, number as group_number};
use crate::wire::instruction::Instruction;
use crate::wire::meter::{MeterStats, number as meter_number};
use crate::wire::multipart::{Answer, MORE, Question};
use crate::wire::port::{PortStats, QueueConfig, QueueStats, UNKNOWN, number};
use crate::wire::table::TableStats;
use crate::wire::{HEADER, LONGEST, Message};
use millrace_flow::rule::TABLES;
use std::collections::HashMap;

/// All queues of a port, as `OFPQ_ALL`.
const ALL_QUEUES: u32 = u32::MAX;

impl Switch {
    pub(super) fn multipart(
        &mut self,
        controller: u64,
        xid: u32,
        flags: u16,
        question: Question,
        datapath: &mut dyn Datapath,
    ) -> Result<(), Refusal> {
        // Only features of tables could be as long as that, and nobody may set them.
        if flags & MORE != 0 {
            return Err(request::MULTIPART_BUFFER_OVERFLOW);
        }
        match question {
            Question::Desc => self.reply(controller, xid, Answer::Desc(self.desc())),
            Question::Flow(question) => {
                let flows = self.flow_stats(&question, datapath)?;
                self.reply_in_parts(controller, xid, flows, Answer::Flow);
            }
            Question::Aggregate(question) => {
                let flows = self.flow_stats(&question, datapath)?;
                let sum = |count: fn(&FlowStats) -> u64| flows.iter().map(count).fold(0, u64::wrapping_add);
                let answer = Answer::Aggregate(sum(|flow| flow.packets), sum(|flow| flow.bytes), flows.len() as u32);
                self.reply(controller, xid, answer);
            }
            Question::Table => {
                let tables = self.table_stats(datapath);
                self.reply(controller, xid, Answer::Table(tables));
            }
            Question::PortStats(port) => {
                let ports = self.port_stats(port, datapath)?;
                self.reply_in_parts(controller, xid, ports, Answer::PortStats);
            }
            Question::Queue(port, queue) => {
                let queues = self.queue_stats(port, queue, datapath)?;
                self.reply_in_parts(controller, xid, queues, Answer::Queue);
            }
            Question::Group(group) => {
                let groups = self.group_stats(group, datapath)?;
                self.reply_in_parts(controller, xid, groups, Answer::Group);
            }
            Question::GroupDesc => {
                let groups: Vec<_> = self.groups.iter().map(|group| group.desc.clone()).collect();
                self.reply_in_parts(controller, xid, groups, Answer::GroupDesc);
            }
            Question::GroupFeatures => {
                self.reply(controller, xid, Answer::GroupFeatures(features::group_features()));
            }
            Question::Meter(meter) => {
                let meters = self.meter_stats(meter, datapath)?;
                self.reply_in_parts(controller, xid, meters, Answer::Meter);
            }
            Question::MeterConfig(meter) => {
                let all = meter == meter_number::ALL;
                let meters: Vec<_> = self.meters.iter().map(|one| one.config.clone()).collect();
                let meant: Vec<_> = meters.into_iter().filter(|one| all || one.meter == meter).collect();
                if !all && meant.is_empty() {
                    return Err(meter_mod::UNKNOWN_METER);
                }
                self.reply_in_parts(controller, xid, meant, Answer::MeterConfig);
            }
            Question::MeterFeatures => {
                self.reply(controller, xid, Answer::MeterFeatures(features::meter_features()));
            }
            Question::TableFeatures(wanted) if !wanted.is_empty() => return Err(table_features::EPERM),
            Question::TableFeatures(_) => {
                self.reply_in_parts(controller, xid, features::table_features(self.tables()), Answer::TableFeatures);
            }
            Question::PortDesc => {
                let ports = self.descriptions();
                self.reply_in_parts(controller, xid, ports, Answer::PortDesc);
            }
            Question::Experimenter { .. } => return Err(request::BAD_EXPERIMENTER),
        }
        Ok(())
    }

    fn reply(&mut self, controller: u64, xid: u32, answer: Answer) {
        self.say(controller, xid, Message::MultipartReply(0, answer));
    }

    /// As many messages as it takes.
    fn reply_in_parts<T: Clone>(&mut self, controller: u64, xid: u32, all: Vec<T>, answer: fn(Vec<T>) -> Answer) {
        let len = |answer: &Answer| {
            let mut bytes = Vec::new();
            Message::MultipartReply(0, answer.clone()).encode(0, &mut bytes);
            bytes.len()
        };
        let empty = len(&answer(Vec::new()));
        let (mut part, mut size) = (Vec::new(), empty);
        for one in all {
            let more = len(&answer(vec![one.clone()])) - empty;
            if size + more > LONGEST {
                let full = std::mem::take(&mut part);
                self.say(controller, xid, Message::MultipartReply(MORE, answer(full)));
                size = empty;
            }
            size += more;
            part.push(one);
        }
        self.say(controller, xid, Message::MultipartReply(0, answer(part)));
    }

    /// What everything has had; nothing of it, if the datapath does not answer.
    fn look(&mut self, datapath: &mut dyn Datapath) -> (HashMap<super::FlowKey, Counts>, Snapshot) {
        let snapshot = datapath.snapshot().unwrap_or_default();
        self.learn(&snapshot);
        (snapshot.rules.iter().copied().collect(), snapshot)
    }

    fn flow_stats(&mut self, question: &FlowQuestion, datapath: &mut dyn Datapath) -> Result<Vec<FlowStats>, Refusal> {
        if question.table >= self.tables() && question.table != crate::wire::flow::ALL_TABLES {
            return Err(request::BAD_TABLE_ID);
        }
        let asked = self.asked(question)?;
        let (counts, _) = self.look(datapath);
        let stats = |key: &super::FlowKey| {
            let entry = self.entries.get(key)?;
            let counts = counts.get(key).copied().unwrap_or_default();
            Some(FlowStats {
                table: key.table,
                lifetime: Lifetime::of_ns(counts.age_ns),
                priority: key.priority,
                idle_timeout: entry.idle_timeout,
                hard_timeout: entry.hard_timeout,
                flags: entry.flags,
                cookie: entry.cookie,
                packets: counts.packets,
                bytes: counts.bytes,
                matching: entry.matching.clone(),
                instructions: entry.instructions.clone(),
            })
        };
        Ok(asked.iter().filter_map(stats).collect())
    }

    /// How many packets were looked up is known of table 0 as long as no other has entries, and of the others by the entries that send there, unless
    /// those have meters.
    fn table_stats(&mut self, datapath: &mut dyn Datapath) -> Vec<TableStats> {
        let (counts, snapshot) = self.look(datapath);
        let mut matched = [0u64; TABLES as usize];
        counts.iter().for_each(|(key, counts)| matched[usize::from(key.table)] += counts.packets);
        let only_first = self.entries.in_table(0) == self.entries.len();
        let mut sent = [Some(0u64); TABLES as usize];
        for (key, counts) in &counts {
            let instructions = self.entries.get(key).map_or(&[][..], |entry| &entry.instructions);
            let is_metered = instructions.iter().any(|one| matches!(one, Instruction::Meter(_)));
            for instruction in instructions {
                if let Instruction::GotoTable(to) = instruction
                    && let Some(sum) = sent.get_mut(usize::from(*to))
                {
                    *sum = sum.filter(|_| !is_metered).map(|sum| sum + counts.packets);
                }
            }
        }
        (0..self.tables())
            .map(|table| {
                let had = matched[usize::from(table)];
                let lookups = match table {
                    0 if only_first => had + snapshot.unmatched,
                    0 => UNKNOWN,
                    _ => sent[usize::from(table)].unwrap_or(UNKNOWN),
                };
                TableStats { table, active: self.entries.in_table(table) as u32, lookups, matched: had }
            })
            .collect()
    }

    fn port_stats(&mut self, wanted: u32, datapath: &mut dyn Datapath) -> Result<Vec<PortStats>, Refusal> {
        self.look_at_ports(datapath);
        self.count_tunnels(datapath);
        let lifetime = Lifetime::of_ns(self.now.as_nanos() as u64);
        let all = self.ports.iter().map(|port| {
            let mut counters = [UNKNOWN; 12];
            counters[..6].copy_from_slice(&port.counters);
            PortStats { number: port.port + 1, counters, lifetime }
        });
        let mut all: Vec<_> = all.collect();
        let sum = |count: fn(&super::QueueInfo) -> u64| self.queues.iter().map(count).fold(0, u64::wrapping_add);
        let mut counters = [UNKNOWN; 12];
        // The host takes what the switch sends to it.
        [counters[1], counters[3], counters[5]] =
            [sum(|queue| queue.packets), sum(|queue| queue.bytes), sum(|queue| queue.errors)];
        all.push(PortStats { number: number::LOCAL, counters, lifetime });
        all.retain(|port| wanted == number::ANY || port.number == wanted);
        if all.is_empty() { Err(request::BAD_PORT) } else { Ok(all) }
    }

    fn queue_stats(&mut self, port: u32, wanted: u32, datapath: &mut dyn Datapath) -> Result<Vec<QueueStats>, Refusal> {
        self.look_at_ports(datapath);
        if port != number::LOCAL && port != number::ANY {
            let known = self.ports.iter().any(|known| known.port + 1 == port);
            // It has none, and that is an answer for whoever asks for all.
            return match (known, wanted) {
                (true, ALL_QUEUES) => Ok(Vec::new()),
                (true, _) => Err(queue_op::BAD_QUEUE),
                (false, _) => Err(queue_op::BAD_PORT),
            };
        }
        let lifetime = Lifetime::of_ns(self.now.as_nanos() as u64);
        let meant = self.queues.iter().filter(|queue| wanted == ALL_QUEUES || queue.queue == wanted);
        let stats: Vec<_> = meant
            .map(|queue| QueueStats {
                port: number::LOCAL,
                queue: queue.queue,
                bytes: queue.bytes,
                packets: queue.packets,
                errors: queue.errors,
                lifetime,
            })
            .collect();
        if stats.is_empty() && wanted != ALL_QUEUES { Err(queue_op::BAD_QUEUE) } else { Ok(stats) }
    }

    pub(super) fn queue_config(&self, port: u32) -> Result<Message, Refusal> {
        let queues: Vec<_> = match port {
            number::LOCAL | number::ANY => self.queues.iter().map(|queue| (queue.queue, number::LOCAL)).collect(),
            _ if self.ports.iter().any(|known| known.port + 1 == port) => Vec::new(),
            _ => return Err(queue_op::BAD_PORT),
        };
        // The answer is one message: queues that it has no room for are not told.
        let most = (LONGEST - HEADER - QueueConfig::HEAD) / QueueConfig::QUEUE;
        let queues = queues.into_iter().take(most).collect();
        Ok(Message::QueueConfigReply(QueueConfig { port, queues }))
    }

    /// A group has had what the entries have had that use it. Which bucket a packet met is known where there is only one, or all get it.
    fn group_stats(&mut self, wanted: u32, datapath: &mut dyn Datapath) -> Result<Vec<GroupStats>, Refusal> {
        let (counts, _) = self.look(datapath);
        let all = wanted == group_number::ALL;
        if !all && self.groups.get(wanted).is_none() {
            return Err(group_mod::UNKNOWN_GROUP);
        }
        let stats = |group: &super::groups::Group| {
            let number = group.desc.group;
            let had = self.entries.users(Use::Group(number));
            let had = had.iter().filter_map(|key| counts.get(key));
            let (packets, bytes) = had.fold((0, 0), |sum, one| (sum.0 + one.packets, sum.1 + one.bytes));
            let each = match group.desc.kind {
                kind::ALL | kind::INDIRECT => (packets, bytes),
                _ => (UNKNOWN, UNKNOWN),
            };
            GroupStats {
                group: number,
                references: self.entries.count_users(Use::Group(number)) as u32,
                packets,
                bytes,
                lifetime: Lifetime::of_ns(self.now.saturating_sub(group.since).as_nanos() as u64),
                buckets: vec![each; group.desc.buckets.len()],
            }
        };
        Ok(self.groups.iter().filter(|group| all || group.desc.group == wanted).map(stats).collect())
    }

    fn meter_stats(&mut self, wanted: u32, datapath: &mut dyn Datapath) -> Result<Vec<MeterStats>, Refusal> {
        let (counts, snapshot) = self.look(datapath);
        let all = wanted == meter_number::ALL;
        if !all && !self.meters.has(wanted) {
            return Err(meter_mod::UNKNOWN_METER);
        }
        let stats = |meter: &super::meters::Metering| {
            let number = meter.config.meter;
            let had = self.entries.users(Use::Meter(number));
            let had = had.iter().filter_map(|key| counts.get(key));
            let (packets, bytes) = had.fold((0, 0), |sum, one| (sum.0 + one.packets, sum.1 + one.bytes));
            let dropped = snapshot.metered.iter().find(|(id, _)| *id == number).map_or(0, |(_, dropped)| *dropped);
            MeterStats {
                meter: number,
                flows: self.entries.count_users(Use::Meter(number)) as u32,
                packets,
                bytes,
                lifetime: Lifetime::of_ns(self.now.saturating_sub(meter.since).as_nanos() as u64),
                bands: vec![(dropped, UNKNOWN)],
            }
        };
        Ok(self.meters.iter().filter(|meter| all || meter.config.meter == wanted).map(stats).collect())
    }
}
