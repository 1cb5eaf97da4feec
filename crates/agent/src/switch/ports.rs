//! Ports: what is told of them, and that they have changed (sections 7.2.1, 7.4.3).

use super::Switch;
use super::batch::Undo;
use super::compile::Use;
use super::datapath::{Change, Datapath, FlowKey, PortInfo, Rejected};
use super::fields::{number_of_port, port_of};
use crate::wire::Message;
use crate::wire::error::{Refusal, port_mod as refused};
use crate::wire::port::{Port, PortMod, PortStatus, config, number, state, status};
use millrace_flow::Match;
use millrace_flow::field::{Field, LOCAL};
use millrace_flow::rule::RuleSpec;
use std::collections::HashSet;
use std::time::Duration;

/// Feature bits: 10 Gb/s, fibre. What a software port is nearest to; nobody measures it.
const FEATURES: u32 = 1 << 6 | 1 << 12;
/// In kilobits per second.
const SPEED: u32 = 10_000_000;

/// How long until entries that could not follow try again: from the first time to the longest.
const SOON: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_secs(32);

impl Switch {
    /// Reads ports and queues; without an answer they stay as they are known.
    fn read_ports(&mut self, datapath: &mut dyn Datapath) -> Vec<PortInfo> {
        let Ok((mut ports, queues)) = datapath.ports() else { return self.ports.clone() };
        ports.extend(self.tunnels.iter().map(|tunnel| tunnel.info(&ports)).collect::<Vec<_>>());
        self.port_numbers = ports.iter().map(|port| port.port).collect();
        self.queues = queues;
        let before = std::mem::replace(&mut self.ports, ports);
        self.find_live();
        before
    }

    /// What has come in at ports that are tunnels; what has gone out there is not known.
    pub(super) fn count_tunnels(&mut self, datapath: &mut dyn Datapath) {
        if self.tunnels.is_empty() {
            return;
        }
        let Ok(snapshot) = datapath.snapshot() else { return };
        for port in &mut self.ports {
            let had = snapshot.tunnels.iter().find(|(number, _)| *number == port.port).map(|(_, had)| had);
            let tunnel = self.tunnels.iter().find(|tunnel| tunnel.port == port.port);
            if let (Some(had), Some(tunnel)) = (had, tunnel) {
                port.counters[0] = had.packets;
                port.counters[2] = had.bytes.saturating_sub(had.packets * tunnel.overhead());
            }
        }
    }

    /// Looks at the ports: tells controllers of what has changed, and lets entries follow. Asked from time to time, and whenever somebody asks what ports have
    /// had: whoever reads them has to do this, as what he finds is nothing new afterwards.
    pub fn look_at_ports(&mut self, datapath: &mut dyn Datapath) {
        self.settle(datapath);
        let (queues, live) = (self.queues.len(), self.live.clone());
        let before = self.read_ports(datapath);
        let same = |one: &PortInfo, other: &PortInfo| {
            (&one.name, one.plugged, one.link) == (&other.name, other.plugged, other.link)
        };
        let now = self.ports.clone();
        let mut changed: Vec<(u8, Port)> = Vec::new();
        for port in &now {
            match before.iter().find(|old| old.port == port.port) {
                None => changed.push((status::ADD, self.description(port))),
                Some(old) if !same(old, port) => changed.push((status::MODIFY, self.description(port))),
                Some(_) => {}
            }
        }
        let gone = before.iter().filter(|old| now.iter().all(|port| port.port != old.port));
        changed.extend(gone.map(|old| (status::DELETE, self.description(old))));
        if queues != self.queues.len() {
            changed.push((status::MODIFY, self.host()));
        }
        let moved = live != self.live || changed.iter().any(|(reason, _)| *reason != status::MODIFY);
        for (reason, port) in changed {
            self.tell(Message::PortStatus(PortStatus { reason, port }), |wants| wants.port_status, reason);
        }
        if moved || self.follows.is_some_and(|(at, _)| self.now >= at) {
            self.follow_ports(datapath);
        }
    }

    /// Entries that depend on which ports there are, and which are alive. Those that the datapath does not take now are tried again.
    fn follow_ports(&mut self, datapath: &mut dyn Datapath) {
        let keys = self.entries.users(Use::Ports);
        self.behind = 0;
        self.follow_groups();
        let mut done = self.follow(&keys, datapath);
        if done.as_ref().is_err_and(|why| !matches!(why, Rejected::Gone(_))) {
            // One that cannot be keeps no other where it is.
            self.follow_groups();
            let groups = self.commit(datapath);
            self.behind = 0;
            done = keys.iter().map(|key| self.follow(&[*key], datapath)).fold(groups, Result::and);
        }
        let wait = self.follows.map_or(SOON, |(_, wait)| (wait * 2).min(LATE));
        self.follows = done.is_err().then_some((self.now + wait, wait));
    }

    fn follow(&mut self, keys: &[FlowKey], datapath: &mut dyn Datapath) -> Result<(), Rejected> {
        self.behind += self.renew_for_ports(keys);
        self.commit(datapath)
    }

    /// All ports, and the host.
    pub(super) fn descriptions(&self) -> Vec<Port> {
        self.ports.iter().map(|port| self.description(port)).chain([self.host()]).collect()
    }

    fn description(&self, port: &PortInfo) -> Port {
        let config = self.config_of(port.port);
        let up = port.plugged && port.link && config & config::PORT_DOWN == 0;
        Port {
            number: port.port + 1,
            mac: self.mac(port.port as u16 + 1),
            name: port.name.clone(),
            config,
            state: if up { state::LIVE } else { state::LINK_DOWN },
            features: [FEATURES, 0, 0, 0],
            speed: SPEED,
            max_speed: SPEED,
        }
    }

    /// The host: its queues are the card's RX queues.
    fn host(&self) -> Port {
        let config = self.config_of(LOCAL);
        let state = if config & config::PORT_DOWN == 0 { state::LIVE } else { state::LINK_DOWN };
        Port { number: number::LOCAL, mac: self.mac(0), name: "host".to_owned(), config, state, ..Port::default() }
    }

    /// A locally administered address, from the number of the switch and that of the port.
    fn mac(&self, port: u16) -> [u8; 6] {
        let [.., a, b, c] = self.identity.datapath.to_be_bytes();
        let [high, low] = port.to_be_bytes();
        [0x02, a, b, c, high, low]
    }

    /// Configures a port (section 7.3.4.3); the datapath comes later.
    pub(super) fn port_mod(&mut self, change: &PortMod) -> Result<(), Refusal> {
        let known = self.descriptions().into_iter().find(|port| port.number == change.number);
        let port = known.ok_or(refused::BAD_PORT)?;
        match change {
            PortMod { mac, .. } if *mac != port.mac => return Err(refused::BAD_HW_ADDR),
            PortMod { mask, .. } if *mask & !config::ALL != 0 => return Err(refused::BAD_CONFIG),
            PortMod { advertise, .. } if *advertise != 0 => return Err(refused::BAD_ADVERTISE),
            _ => {}
        }
        self.configure(change);
        Ok(())
    }

    /// The same without a look at whether there is such a port, and with what address: what a controller has closed is closed when it comes, and
    /// whatever this switch is called by then.
    pub(super) fn configure(&mut self, change: &PortMod) {
        let (number, mask) = (change.number, change.mask & config::ALL);
        let before = self.port_configs.get(&number).copied().unwrap_or(0);
        let after = before & !mask | change.config & mask;
        self.batch.undo.push(Undo::Port(number, before));
        self.configure_port(number, after);
        match (self.barrier(number, before), self.barrier(number, after)) {
            (None, Some(rule)) => self.batch.changes.push(Change::Add(rule)),
            (Some(rule), None) => self.batch.changes.push(Change::Delete(FlowKey::of(&rule))),
            _ => {}
        }
        if (before ^ after) & (config::PORT_DOWN | config::NO_FWD) != 0 {
            self.follow_groups();
            let users = self.entries.users(Use::Ports);
            self.behind = self.renew_for_ports(&users);
        }
    }

    pub(super) fn configure_port(&mut self, number: u32, new: u32) {
        match new {
            0 => self.port_configs.remove(&number),
            new => self.port_configs.insert(number, new),
        };
        let closed = self.port_configs.iter().filter(|(_, config)| *config & (config::PORT_DOWN | config::NO_FWD) != 0);
        self.closed = closed.filter_map(|(number, _)| port_of(*number)).collect();
        self.find_live();
    }

    fn find_live(&mut self) {
        let is_up = |port: &&PortInfo| port.plugged && port.link && self.config_of(port.port) & config::PORT_DOWN == 0;
        self.live = self.ports.iter().filter(is_up).map(|port| port.port).collect();
    }

    /// What controllers have said of a port of the datapath.
    pub(super) fn config_of(&self, port: u32) -> u32 {
        self.port_configs.get(&number_of_port(port)).copied().unwrap_or(0)
    }

    /// The message that makes a port what it is.
    pub(super) fn port_message(&self, number: u32, config: u32) -> PortMod {
        let mac = self.mac(if number == number::LOCAL { 0 } else { number as u16 });
        PortMod { number, mac, config, mask: config::ALL, advertise: 0 }
    }

    /// The rule that drops what comes in at a port from which nothing is to be taken. It comes before all entries: none matches as much, all of which
    /// is so for every packet.
    pub(super) fn barrier(&self, number: u32, config: u32) -> Option<RuleSpec> {
        let port = port_of(number).filter(|_| config & (config::PORT_DOWN | config::NO_RECV) != 0)?;
        let mut matching = Match::ANY.with(Field::InPort, u64::from(port)).ok()?;
        for field in [Field::Metadata, Field::Reg0, Field::Reg1, Field::Reg2, Field::Reg3] {
            matching = matching.with(field, 0).ok()?;
        }
        Some(RuleSpec { priority: u16::MAX, matching, ..RuleSpec::default() })
    }

    /// The rules that close ports.
    pub(super) fn barring(&self) -> impl Iterator<Item = RuleSpec> {
        self.port_configs.iter().filter_map(|(number, config)| self.barrier(*number, *config))
    }

    pub(super) fn barriers(&self) -> HashSet<FlowKey> {
        self.barring().map(|rule| FlowKey::of(&rule)).collect()
    }

    /// Closes ports again whose rules have gone. They come by themselves, and again until the datapath takes them: controllers were told that
    /// these ports are closed.
    pub(super) fn close(&mut self, datapath: &mut dyn Datapath) {
        if self.torn.is_empty() || self.closes_from.is_some_and(|at| self.now < at) {
            return;
        }
        let torn: Vec<_> =
            self.barring().filter(|rule| self.torn.contains(&FlowKey::of(rule))).map(Change::Add).collect();
        if torn.is_empty() || datapath.commit(&torn).is_ok() {
            self.torn.clear();
            self.closes_from = None;
        } else {
            self.closes_from = Some(self.now + SOON);
        }
    }

    /// Tells controllers how a port is.
    pub(super) fn tell_of_port(&mut self, number: u32) {
        if let Some(port) = self.descriptions().into_iter().find(|port| port.number == number) {
            let reason = status::MODIFY;
            self.tell(Message::PortStatus(PortStatus { reason, port }), |wants| wants.port_status, reason);
        }
    }
}
