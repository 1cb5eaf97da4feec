//! The switch, over a datapath that keeps what it is told and refuses what it is told to refuse.

use millrace_agent::switch::datapath::{Change, Counts, Datapath, FlowKey, PortInfo, QueueInfo, Rejected, Snapshot};
use millrace_agent::switch::{Identity, Switch, Verdict};
use millrace_agent::wire::action::Action;
use millrace_agent::wire::error::Refusal;
use millrace_agent::wire::flow::{FlowMod, command, flag};
use millrace_agent::wire::hello::Hello;
use millrace_agent::wire::instruction::Instruction;
use millrace_agent::wire::oxm::Oxm;
use millrace_agent::wire::port::number;
use millrace_agent::wire::{Message, first};
use std::collections::HashMap;

#[derive(Default)]
pub struct Table {
    pub rules: HashMap<FlowKey, String>,
    /// Whom groups of the datapath choose.
    pub groups: HashMap<u32, Vec<u16>>,
    pub version: u64,
    /// Refuses rules of this priority.
    pub full: Option<u16>,
    pub down: Vec<u32>,
    /// Rules have the numbers of their tables, and not all the same.
    pub numbered: bool,
    /// Ports that are not there.
    pub absent: Vec<u32>,
    pub commits: usize,
    /// Commits, done or not.
    pub tried: usize,
    /// Does not answer.
    pub silent: bool,
    /// Refuses other actions for rules of this priority.
    pub stuck: Option<u16>,
    /// Changes of the last commit.
    pub last: Vec<Change>,
    pub sent: Vec<(usize, u32, String)>,
}

impl Datapath for Table {
    fn commit(&mut self, changes: &[Change]) -> Result<u64, Rejected> {
        self.tried += 1;
        if self.silent {
            return Err(Rejected::Gone("as told".to_owned()));
        }
        if changes.iter().any(|change| matches!(change, Change::Modify(rule) if Some(rule.priority) == self.stuck)) {
            return Err(Rejected::Denied("as told".to_owned()));
        }
        let refused = |change: &Change| matches!(change, Change::Add(rule) | Change::Renew(rule) if Some(rule.priority) == self.full);
        if changes.iter().any(refused) {
            return Err(Rejected::Full("as told".to_owned()));
        }
        for change in changes {
            match change {
                Change::Add(rule) | Change::Renew(rule) => drop(self.rules.insert(FlowKey::of(rule), rule.to_string())),
                Change::Modify(rule) => {
                    let old = self.rules.get_mut(&FlowKey::of(rule));
                    old.into_iter().for_each(|old| *old = rule.to_string());
                }
                Change::Delete(key) => drop(self.rules.remove(key)),
                Change::Group(number, spec) => drop(self.groups.insert(*number, spec.table.clone())),
                Change::DeleteGroup(number) => drop(self.groups.remove(number)),
                _ => {}
            }
        }
        (self.version, self.commits) = (self.version + 1, self.commits + 1);
        self.last = changes.to_vec();
        Ok(self.version)
    }

    fn snapshot(&mut self) -> Result<Snapshot, Rejected> {
        let counts = Counts { packets: 3, bytes: 180, age_ns: 1_500_000_000, number: 7 };
        let number = |key: &FlowKey| if self.numbered { key.table.into() } else { counts.number };
        let rules = self.rules.keys().map(|key| (*key, Counts { number: number(key), ..counts })).collect();
        Ok(Snapshot { rules, metered: vec![(1, 5)], unmatched: 2, ..Snapshot::default() })
    }

    fn ports(&mut self) -> Result<(Vec<PortInfo>, Vec<QueueInfo>), Rejected> {
        let port = |port| {
            let link = !self.down.contains(&port);
            PortInfo { port, name: format!("p{port}"), plugged: true, link, counters: [1; 6] }
        };
        let queue = |queue| QueueInfo { queue, ..QueueInfo::default() };
        let there = (0..3).filter(|port| !self.absent.contains(port));
        Ok((there.map(port).collect(), (0..4).map(queue).collect()))
    }

    fn send(&mut self, frame: &[u8], port: u32, actions: &[millrace_flow::Action]) -> Result<(), Rejected> {
        let actions: Vec<_> = actions.iter().map(ToString::to_string).collect();
        self.sent.push((frame.len(), port, actions.join(",")));
        Ok(())
    }
}

/// A switch with one controller that has said hello, and more if asked.
pub struct World {
    pub switch: Switch,
    pub table: Table,
}

impl World {
    pub fn new() -> Self {
        let mut world = Self { switch: Switch::new(Identity::default()), table: Table::default() };
        world.switch.look_at_ports(&mut world.table);
        world.join(1);
        world
    }

    pub fn join(&mut self, controller: u64) {
        self.switch.connected(controller);
        assert_eq!(self.send(controller, &Message::Hello(Hello::own())), Verdict::Go);
        self.switch.take_outgoing();
    }

    pub fn send(&mut self, controller: u64, message: &Message) -> Verdict {
        let mut bytes = Vec::new();
        message.encode(9, &mut bytes);
        let (header, whole) = first(&bytes).unwrap().unwrap();
        self.switch.handle(controller, &header, whole, &mut self.table)
    }

    pub fn said(&mut self) -> Vec<Message> {
        self.switch.settle(&mut self.table);
        self.switch.take_outgoing().into_iter().map(|outgoing| outgoing.message).collect()
    }

    /// What is answered with an error; `None`: nothing.
    pub fn refused(&mut self, message: &Message) -> Option<Refusal> {
        self.send(1, message);
        self.said()
            .into_iter()
            .find_map(|said| if let Message::Error(error) = said { Some(error.refusal) } else { None })
    }

    pub fn rules(&self) -> Vec<String> {
        let mut rules: Vec<_> = self.table.rules.values().cloned().collect();
        rules.sort();
        rules
    }
}

pub fn output(port: u32) -> Action {
    Action::Output { port, max_len: 0xffff }
}

pub fn flow(priority: u16, matching: Vec<Oxm>, actions: Vec<Action>) -> FlowMod {
    FlowMod {
        cookie: 5,
        cookie_mask: 0,
        table: 0,
        command: command::ADD,
        idle_timeout: 0,
        hard_timeout: 0,
        priority,
        buffer: 0xffff_ffff,
        out_port: number::ANY,
        out_group: 0xffff_ffff,
        flags: flag::SEND_FLOW_REM,
        matching,
        instructions: vec![Instruction::ApplyActions(actions)],
    }
}

pub fn ip() -> Vec<Oxm> {
    vec![Oxm::basic(5, &[8, 0])]
}

pub fn tcp(port: u16) -> Vec<Oxm> {
    vec![Oxm::basic(5, &[8, 0]), Oxm::basic(10, &[6]), Oxm::basic(14, &port.to_be_bytes())]
}
