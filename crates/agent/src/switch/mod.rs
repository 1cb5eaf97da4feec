//! What a switch is: tables of entries, groups, meters, ports, and controllers with their roles. It compiles what controllers ask for
//! into rules of the flow table, and answers them.
//!
//! - [`datapath`]: what it asks of whoever moves the packets; [`fields`]: fields of messages and of the flow table.
//! - `compile`: instructions as actions of the flow table; `entries`, `flows`: flow entries and their changes; `groups`,
//!   `balance`, `meters`.
//! - `batch`: changes that go to the datapath together; `bundles`: those that controllers want to be done together.
//! - [`tunnels`]: ports that are tunnels.
//! - `controllers`: roles, and who wants what; `answers`: questions about all of it; `features`: what it can do; `packets`: in and out;
//!   `through`: those of controllers that go through the tables.
//!
//! Changes of entries are collected until [`Switch::settle`], or until somebody asks something: a datapath that takes a thousand at once is quicker
//! than one that takes each by itself. If it refuses them, they are taken back and done one by one, so that each has its own answer.

mod answers;
mod balance;
mod batch;
mod bundles;
mod changes;
mod compile;
mod controllers;
pub mod datapath;
mod entries;
mod features;
pub mod fields;
mod flows;
mod groups;
mod kept;
mod meters;
mod packets;
mod ports;
mod through;
pub mod tunnels;

use crate::wire::error::{ErrorMessage, Refusal, flow_mod, group_mod, hello, meter_mod, request, switch_config};
use crate::wire::flow::{NO_BUFFER, command};
use crate::wire::group::GroupMod;
use crate::wire::hello::Hello;
use crate::wire::meter::MeterMod;
use crate::wire::oxm::ONF;
use crate::wire::switch::Config;
use crate::wire::{Header, Message};
use batch::{Batch, Item, Leaving, MOST_ITEMS, Undo};
use compile::World;
use controllers::Controller;
use datapath::{Change, Datapath, FlowKey, PortInfo, QueueInfo, Rejected, Snapshot};
use entries::Entries;
use groups::Groups;
use meters::Meters;
use millrace_flow::rule::TABLES;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;
use tunnels::TunnelPort;

pub use packets::{Heard, Losses, PUNTS};

/// Who the switch says that it is.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Its number, unique in the network.
    pub datapath: u64,
    /// Version of the software.
    pub version: String,
    /// Its serial number.
    pub serial: String,
    /// For people.
    pub description: String,
}

/// What is to become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Go,
    /// It ends, when it has got what is there for it.
    End,
}

/// A message for a controller.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Which controller.
    pub controller: u64,
    /// The number of what is answered; 0: nothing is.
    pub xid: u32,
    /// What.
    pub message: Message,
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    identity: Identity,
    entries: Entries,
    groups: Groups,
    meters: Meters,
    ports: Vec<PortInfo>,
    /// What controllers have said of ports, by their numbers for controllers; see [`wire::port::config`](crate::wire::port::config).
    port_configs: BTreeMap<u32, u32>,
    /// Ports of the datapath where nothing goes out, because of that.
    closed: Vec<u32>,
    /// Rules that close ports and that somebody has deleted; when they are tried again.
    torn: HashSet<FlowKey>,
    closes_from: Option<Duration>,
    /// Entries that were looked at for packets of controllers.
    looked_at: usize,
    tunnels: Vec<TunnelPort>,
    port_numbers: Vec<u32>,
    live: Vec<u32>,
    queues: Vec<QueueInfo>,
    controllers: BTreeMap<u64, Controller>,
    generation: Option<u64>,
    config: Config,
    batch: Batch,
    /// Entries that have been deleted and of which the datapath will tell what they have had; of one place the oldest first.
    leaving: HashMap<FlowKey, VecDeque<Leaving>>,
    sequence: u64,
    packets: packets::Packets,
    kept: kept::Kept,
    /// Entries that have gone and of which nobody knows what they had.
    untold: u64,
    /// Entries that could not be what the ports ask for, when these were looked at last.
    behind: usize,
    /// When entries that could not follow the ports try again, and how long it is until then.
    follows: Option<(Duration, Duration)>,
    outgoing: Vec<Outgoing>,
    now: Duration,
    /// What was done since [`Switch::take_done`] was asked.
    done: Vec<Message>,
}

impl Switch {
    /// A switch with nothing in it.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            entries: Entries::default(),
            groups: Groups::default(),
            meters: Meters::default(),
            ports: Vec::new(),
            port_configs: BTreeMap::new(),
            closed: Vec::new(),
            torn: HashSet::new(),
            closes_from: None,
            looked_at: 0,
            tunnels: Vec::new(),
            port_numbers: Vec::new(),
            live: Vec::new(),
            queues: Vec::new(),
            controllers: BTreeMap::new(),
            generation: None,
            config: Config { flags: 0, miss_send_len: 128 },
            batch: Batch::default(),
            leaving: HashMap::new(),
            sequence: 0,
            packets: packets::Packets::default(),
            kept: kept::Kept::default(),
            untold: 0,
            behind: 0,
            follows: None,
            outgoing: Vec::new(),
            now: Duration::ZERO,
            done: Vec::new(),
        }
    }

    /// The same with ports that are tunnels.
    #[must_use]
    pub fn with_tunnels(self, tunnels: Vec<TunnelPort>) -> Self {
        Self { tunnels, ..self }
    }

    /// How many tables there are: the first one of the datapath may be taken.
    fn tables(&self) -> u8 {
        TABLES - u8::from(!self.tunnels.is_empty())
    }

    /// How many entries were looked at for packets of controllers since this was asked last: whoever has used up a turn by that waits for the next.
    pub fn take_looked_at(&mut self) -> usize {
        std::mem::take(&mut self.looked_at)
    }

    /// What time it is, by any clock that goes on.
    pub fn set_now(&mut self, now: Duration) {
        self.now = now;
    }

    /// Messages for controllers, in order.
    pub fn take_outgoing(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.outgoing)
    }

    /// How many there are: who asks for long lists is not heard again before they are on their way.
    pub fn outgoing(&self) -> usize {
        self.outgoing.len()
    }

    /// How many entries, groups and meters there are.
    pub fn counts(&self) -> [usize; 3] {
        [self.entries.len(), self.groups.len(), self.meters.len()]
    }

    /// Changes that were done since this was asked last, in order: whoever keeps them has what [`Switch::messages`] says.
    pub fn take_done(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.done)
    }

    /// Takes up what another switch has done; what the datapath is to have then. If it `is_known`, entries with a time to live that it has not got
    /// any more have gone by themselves.
    ///
    /// # Errors
    /// The datapath does not answer.
    pub fn restore(
        &mut self,
        messages: &[Message],
        is_known: bool,
        datapath: &mut dyn Datapath,
    ) -> Result<Vec<Change>, Rejected> {
        for message in messages {
            match message {
                Message::PortMod(change) => self.configure(change),
                other => match self.apply(other) {
                    Ok(()) => self.kept.forget(other),
                    Err(_) => self.kept.keep(other),
                },
            }
            self.batch = Batch::default();
        }
        if is_known {
            let there: HashSet<_> = datapath.snapshot()?.rules.into_iter().map(|(key, _)| key).collect();
            let mortal = |entry: &entries::Entry| entry.idle_timeout > 0 || entry.hard_timeout > 0;
            let over = self.entries.iter().filter(|(key, entry)| mortal(entry) && !there.contains(key));
            for key in over.map(|(key, _)| *key).collect::<Vec<_>>() {
                self.entries.put(key, None);
                // It has gone while nobody heard what it had.
                self.untold += 1;
            }
        }
        self.done.clear();
        let groups = self
            .groups
            .iter()
            .filter_map(|group| Some(Change::Group(group.desc.group, group.spread.as_ref()?.spec().clone())));
        let meters = self.meters.iter().map(|meter| Change::Meter(meter.config.meter, meter.spec));
        let mut changes: Vec<_> = groups.chain(meters).chain(self.barring().map(Change::Add)).collect();
        let mut keys: Vec<_> = self.entries.iter().map(|(key, entry)| (entry.sequence, *key)).collect();
        keys.sort_by_key(|(sequence, _)| *sequence);
        for (_, key) in keys {
            changes.extend(self.rule_of(&key).map(Change::Add));
            if let Some(entry) = self.entries.get_mut(&key) {
                // Whatever happens to it happens later.
                entry.added = 0;
            }
        }
        Ok(changes)
    }

    /// The messages that make a new switch the same: meters and groups before the entries that use them.
    pub fn messages(&self) -> impl Iterator<Item = Message> {
        use crate::wire::{group, meter};
        let meters = self.meters.iter().map(|one| {
            let config = &one.config;
            let (flags, meter, bands) = (config.flags, config.meter, config.bands.clone());
            Message::MeterMod(MeterMod { command: meter::command::ADD, flags, meter, bands })
        });
        let groups = self.groups.iter().map(|one| {
            let desc = &one.desc;
            let (kind, group, buckets) = (desc.kind, desc.group, desc.buckets.clone());
            Message::GroupMod(GroupMod { command: group::command::ADD, kind, group, buckets })
        });
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_key(|(_, entry)| entry.sequence);
        let entries = entries.into_iter().map(|(key, entry)| Message::FlowMod(entry.message(key)));
        let ports =
            self.port_configs.iter().map(|(number, config)| Message::PortMod(self.port_message(*number, *config)));
        meters.chain(groups).chain(ports).chain(entries).chain(self.kept.iter().cloned())
    }

    /// How many changes that [`Switch::restore`] was given cannot be now, such as entries for a port that is not there. [`Switch::messages`] has them.
    pub fn left_out(&self) -> usize {
        self.kept.iter().count()
    }

    /// Entries that are as they were, since they cannot be what the ports as they are ask for: one sends to a port that has gone.
    pub fn behind(&self) -> usize {
        self.behind
    }

    /// What was lost.
    pub fn losses(&self) -> Losses {
        Losses { untold: self.untold, ..self.packets.losses }
    }

    fn world(&self) -> World<'_> {
        World {
            groups: &self.groups,
            meters: &self.meters,
            tables: self.tables(),
            ports: &self.port_numbers,
            tunnels: &self.tunnels,
            live: &self.live,
            closed: &self.closed,
            queues: self.queues.len() as u32,
            all_buckets: false,
        }
    }

    /// A message of a controller; `bytes` is all of it.
    pub fn handle(&mut self, controller: u64, header: &Header, bytes: &[u8], datapath: &mut dyn Datapath) -> Verdict {
        let message = match Message::decode(header, bytes) {
            Ok(message) => message,
            Err(refusal) => {
                self.refuse(controller, header.xid, refusal, bytes);
                let greeted = self.controllers.get(&controller).is_some_and(|known| known.greeted);
                return if greeted { Verdict::Go } else { Verdict::End };
            }
        };
        if let Message::Hello(hello) = &message {
            return self.greet(controller, header, hello);
        }
        let Some(known) = self.controllers.get(&controller).filter(|known| known.greeted) else { return Verdict::End };
        if known.is_slave() && controllers::is_for_masters(&message) {
            self.refuse(controller, header.xid, request::IS_SLAVE, bytes);
            return Verdict::Go;
        }
        // Changes of entries wait for one another; all else finds them done.
        if matches!(message, Message::FlowMod(_)) {
            self.collect(controller, header.xid, message, bytes, datapath);
            return Verdict::Go;
        }
        self.settle(datapath);
        if let Err(refusal) = self.answer(controller, header.xid, message, datapath) {
            self.refuse(controller, header.xid, refusal, bytes);
        }
        Verdict::Go
    }

    fn greet(&mut self, controller: u64, header: &Header, hello: &Hello) -> Verdict {
        let Some(known) = self.controllers.get_mut(&controller) else { return Verdict::End };
        if hello.agrees(header.version) {
            known.greeted = true;
            return Verdict::Go;
        }
        let data = b"this switch speaks OpenFlow 1.3 (version 0x04)".to_vec();
        let error = ErrorMessage { refusal: hello::INCOMPATIBLE, experimenter: 0, data };
        self.say(controller, header.xid, Message::Error(error));
        Verdict::End
    }

    fn answer(
        &mut self,
        controller: u64,
        xid: u32,
        message: Message,
        datapath: &mut dyn Datapath,
    ) -> Result<(), Refusal> {
        let answer = match message {
            // What the other end answers is of no interest; that it does so is.
            Message::Hello(_) | Message::Error(_) | Message::EchoReply(_) => return Ok(()),
            Message::EchoRequest(data) => Message::EchoReply(data),
            Message::FeaturesRequest => Message::FeaturesReply(self.features()),
            Message::GetConfigRequest => Message::GetConfigReply(self.config),
            Message::SetConfig(config) => {
                if config.flags != 0 {
                    return Err(switch_config::BAD_FLAGS);
                }
                self.config = config;
                return Ok(());
            }
            Message::FlowMod(_) | Message::GroupMod(_) | Message::MeterMod(_) => return self.change(message, datapath),
            Message::PortMod(change) => {
                self.change(message, datapath)?;
                self.tell_of_port(change.number);
                return Ok(());
            }
            Message::TableMod(change) => return features::table_mod(&change, self.tables()),
            Message::PacketOut(packet) => return self.packet_out(&packet, datapath),
            Message::MultipartRequest(flags, question) => {
                return self.multipart(controller, xid, flags, question, datapath);
            }
            Message::BarrierRequest => Message::BarrierReply,
            Message::QueueConfigRequest(port) => self.queue_config(port)?,
            Message::RoleRequest(role) => self.role(controller, role)?,
            Message::WantsRequest => Message::WantsReply(self.wants(controller)),
            Message::SetWants(wants) => {
                self.set_wants(controller, wants);
                return Ok(());
            }
            Message::BundleControl(control) => self.bundle_control(controller, control, datapath)?,
            Message::BundleAdd(add) => return self.bundle_add(controller, xid, add),
            Message::Experimenter(..) => return Err(request::BAD_EXPERIMENTER),
            _ => return Err(request::BAD_TYPE),
        };
        self.say(controller, xid, answer);
        Ok(())
    }

    /// Does a change by itself.
    fn change(&mut self, message: Message, datapath: &mut dyn Datapath) -> Result<(), Refusal> {
        self.apply(&message)?;
        self.commit(datapath).map_err(|rejected| refusal_of(&message, &rejected))?;
        Ok(())
    }

    /// Does a change to the switch; the datapath comes later. If it is refused, nothing was done.
    fn apply(&mut self, message: &Message) -> Result<(), Refusal> {
        let mark = self.batch.mark();
        let done = match message {
            Message::FlowMod(change) => self.flow_mod(change),
            Message::GroupMod(change) => self.group_mod(change),
            Message::MeterMod(change) => self.meter_mod(change),
            Message::PortMod(change) => self.port_mod(change),
            _ => Err(request::BAD_TYPE),
        };
        match done {
            Ok(()) => self.batch.messages.push(message.clone()),
            Err(_) => {
                let undo = self.batch.back_to(mark);
                self.undo(undo);
            }
        }
        done
    }

    fn undo(&mut self, undo: Vec<Undo>) {
        for one in undo {
            match one {
                Undo::Flow(key, old) => drop(self.entries.put(*key, old.map(|entry| *entry))),
                Undo::Group(number, old) => drop(self.groups.put(number, old.map(|group| *group))),
                Undo::Meter(number, old) => drop(self.meters.put(number, old.map(|meter| *meter))),
                Undo::Port(number, old) => self.configure_port(number, old),
            }
        }
    }

    /// Does a change of entries, together with others.
    fn collect(&mut self, controller: u64, xid: u32, mut message: Message, bytes: &[u8], datapath: &mut dyn Datapath) {
        // A packet that waits for the entry goes when that is there; what is kept of the change does not name it.
        if let Message::FlowMod(change) = &mut message
            && change.buffer != NO_BUFFER
            && matches!(change.command, command::ADD | command::MODIFY | command::MODIFY_STRICT)
        {
            let kept = self.packets.take(std::mem::replace(&mut change.buffer, NO_BUFFER));
            self.settle(datapath);
            let done = kept.and_then(|kept| match self.change(message, datapath) {
                Ok(()) => {
                    self.send_kept(&kept, datapath);
                    Ok(())
                }
                Err(refusal) => {
                    self.packets.put_back(kept);
                    Err(refusal)
                }
            });
            if let Err(refusal) = done {
                self.refuse(controller, xid, refusal, bytes);
            }
            return;
        }
        match self.apply(&message) {
            Ok(()) => self.batch.items.push(Item { controller, xid, message, head: head(bytes) }),
            Err(refusal) => self.refuse(controller, xid, refusal, bytes),
        }
        if self.batch.items.len() >= MOST_ITEMS || self.batch.changes.len() >= MOST_ITEMS {
            self.settle(datapath);
        }
    }

    /// Does at the datapath what was collected.
    pub fn settle(&mut self, datapath: &mut dyn Datapath) {
        self.close(datapath);
        let items = std::mem::take(&mut self.batch.items);
        match self.commit(datapath) {
            // Nobody knows what was done: done again, it could be done twice.
            Ok(()) | Err(Rejected::Gone(_)) => return,
            Err(_) => {}
        }
        // Each by itself, so that those that can be are done, and each has its own answer.
        for item in items {
            if let Err(refusal) = self.change(item.message, datapath) {
                self.refuse(item.controller, item.xid, refusal, &item.head);
            }
        }
    }

    /// All that is collected, or nothing.
    fn commit(&mut self, datapath: &mut dyn Datapath) -> Result<(), Rejected> {
        let batch = std::mem::take(&mut self.batch);
        if batch.changes.is_empty() {
            batch.messages.iter().for_each(|message| self.kept.forget(message));
            self.done.extend(batch.messages);
            return Ok(());
        }
        let succeeded = batch.succeeded();
        // What those have had whom the datapath will not tell of is known before only.
        let had = if succeeded.is_empty() { Ok(Snapshot::default()) } else { datapath.snapshot() };
        match datapath.commit(&batch.changes) {
            Ok(version) => {
                batch.messages.iter().for_each(|message| self.kept.forget(message));
                self.done.extend(batch.messages);
                self.packets.forget_numbers();
                for key in batch.added {
                    if let Some(entry) = self.entries.get_mut(&key) {
                        entry.added = version;
                    }
                }
                self.leave(batch.leaving, &succeeded, version, had.unwrap_or_default());
                Ok(())
            }
            Err(rejected) => {
                self.undo(batch.undo.into_iter().rev().collect());
                Err(rejected)
            }
        }
    }

    fn say(&mut self, controller: u64, xid: u32, message: Message) {
        self.outgoing.push(Outgoing { controller, xid, message });
    }

    fn refuse(&mut self, controller: u64, xid: u32, refusal: Refusal, bytes: &[u8]) {
        let experimenter = if refusal.kind == crate::wire::error::EXPERIMENTER { ONF } else { 0 };
        self.say(controller, xid, Message::Error(ErrorMessage { refusal, experimenter, data: head(bytes) }));
    }
}

/// What an error message has of the message that it is about.
fn head(bytes: &[u8]) -> Vec<u8> {
    bytes[..bytes.len().min(64)].to_vec()
}

/// What is said when the datapath does not take a change.
fn refusal_of(message: &Message, rejected: &Rejected) -> Refusal {
    match (message, rejected) {
        (Message::GroupMod(_), Rejected::Full(_)) => group_mod::OUT_OF_GROUPS,
        (Message::GroupMod(_), Rejected::Denied(_)) => group_mod::EPERM,
        (Message::GroupMod(_), _) => group_mod::INVALID_GROUP,
        (Message::MeterMod(_), Rejected::Full(_)) => meter_mod::OUT_OF_METERS,
        (Message::MeterMod(_), _) => meter_mod::UNKNOWN,
        (_, Rejected::Full(_)) => flow_mod::TABLE_FULL,
        (_, Rejected::Denied(_)) => flow_mod::EPERM,
        (_, _) => flow_mod::UNKNOWN,
    }
}
