//! Ports that are tunnels of VXLAN (RFC 7348), as Open vSwitch has them: what comes out of a tunnel has come in at its port, with the tunnel's id;
//! what is sent there goes into a packet for the other end.
//!
//! Where there are such ports, table 0 of the datapath takes packets out of their tunnels, and tables of controllers are one further.

use super::datapath::{Change, FlowKey, PortInfo};
use crate::wire::port::UNKNOWN;
use millrace_flow::action::{Action, Vxlan, VxlanPort};
use millrace_flow::field::{Field, LOCAL, Wide};
use millrace_flow::language::parse_rule;
use millrace_flow::rule::RuleSpec;
use std::net::IpAddr;

/// A port that is a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelPort {
    /// Its name.
    pub name: String,
    /// Its number at the datapath, from 0, which none of its ports has. The controller sees one more.
    pub port: u32,
    /// The port of the datapath where its packets come in and leave.
    pub uplink: u32,
    /// The address of this end.
    pub local: IpAddr,
    /// That of the other end; `None`: where packets come from and go to is said by entries (`tun_src`, `tun_dst`).
    pub remote: Option<IpAddr>,
    /// Its network; `None`: the tunnel id of each packet.
    pub vni: Option<u32>,
    /// The port of UDP.
    pub udp_dst: u16,
    /// Whether packets have a checksum of UDP.
    pub checksum: bool,
}

/// A port at which nothing comes in.
const NOWHERE: u32 = u32::MAX;

impl TunnelPort {
    /// The rule that takes packets out of it. Who says more comes before who says less.
    ///
    /// # Errors
    /// What cannot be, for whoever has described the port.
    pub fn rule(&self) -> Result<RuleSpec, String> {
        let (udp, src, dst) =
            if self.local.is_ipv4() { ("udp", "nw_src", "nw_dst") } else { ("udp6", "ipv6_src", "ipv6_dst") };
        let remote = self.remote.map_or_else(String::new, |remote| format!(",{src}={remote}"));
        let vni = self.vni.map_or_else(String::new, |vni| format!(",tun_id={vni}"));
        let priority = 10 + 2 * u16::from(self.remote.is_some()) + u16::from(self.vni.is_some());
        let Self { port, uplink, local, udp_dst, .. } = self;
        let text = format!(
            "priority={priority},in_port={uplink},{udp},{dst}={local}{remote},udp_dst={udp_dst}{vni},\
             actions=decap_vxlan(port={port}),goto_table:1"
        );
        parse_rule(&text).map_err(|wrong| wrong.to_string())
    }

    /// A rule that no packet meets: it tells the datapath that the address of this end is its own, so that it answers for it from the beginning.
    fn announcement(&self) -> Result<RuleSpec, String> {
        let to = self.send(self.remote.unwrap_or(self.local), false);
        parse_rule(&format!("priority=1,in_port={},actions={to}", self.port)).map_err(|wrong| wrong.to_string())
    }

    /// Bytes that its headers have.
    pub(super) fn overhead(&self) -> u64 {
        if self.local.is_ipv4() { 50 } else { 70 }
    }

    /// What is told of it: it is as alive as the port where its packets leave.
    pub(super) fn info(&self, ports: &[PortInfo]) -> PortInfo {
        let uplink = ports.iter().find(|port| port.port == self.uplink);
        let link = uplink.is_some_and(|uplink| uplink.plugged && uplink.link);
        PortInfo { port: self.port, name: self.name.clone(), plugged: true, link, counters: [UNKNOWN; 6] }
    }

    /// The outer headers of packets for an address.
    pub(super) fn outer(&self, remote: IpAddr) -> Vxlan {
        Vxlan { vni: self.vni, udp_dst: self.udp_dst, checksum: self.checksum, ..Vxlan::new(0, self.local, remote) }
    }

    /// Sends a copy there, unless the packet came in there; if it `may_return`, in any case.
    pub(super) fn send(&self, remote: IpAddr, may_return: bool) -> Action {
        let number = if may_return { NOWHERE } else { self.port };
        Action::VxlanPort(Box::new(VxlanPort { number, output: self.uplink, outer: self.outer(remote) }))
    }
}

/// Whose a rule of the datapath is.
#[expect(clippy::large_enum_variant, reason = "nobody keeps it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// An entry's, with this key.
    Entry(FlowKey),
    /// That of a tunnel, by the number of its port.
    Tunnel(u32),
    /// It sends on what comes out of no tunnel.
    Rest,
}

/// The first table of the datapath, in front of those of controllers.
#[derive(Clone, Debug)]
pub struct FirstTable {
    rules: Vec<(RuleSpec, Whose)>,
}

impl FirstTable {
    /// That of these ports. Without any there is none, and tables of controllers are those of the datapath.
    ///
    /// # Errors
    /// As [`TunnelPort::rule`].
    pub fn new(tunnels: &[TunnelPort]) -> Result<Option<Self>, String> {
        if tunnels.is_empty() {
            return Ok(None);
        }
        let rest = parse_rule("priority=0,actions=goto_table:1").map_err(|wrong| wrong.to_string())?;
        let mut rules = vec![(rest, Whose::Rest)];
        for tunnel in tunnels {
            let rule = tunnel.rule()?;
            if rules.iter().any(|(other, _)| FlowKey::of(other) == FlowKey::of(&rule)) {
                return Err(format!("{}: another tunnel has the same ends and the same key", tunnel.name));
            }
            rules.push((rule, Whose::Tunnel(tunnel.port)));
            rules.push((tunnel.announcement()?, Whose::Rest));
        }
        Ok(Some(Self { rules }))
    }

    /// Its rules.
    pub fn rules(&self) -> impl Iterator<Item = &RuleSpec> {
        self.rules.iter().map(|(rule, _)| rule)
    }

    /// Whose a rule is.
    pub fn whose(&self, key: &FlowKey) -> Whose {
        match self.rules.iter().find(|(rule, _)| FlowKey::of(rule) == *key) {
            Some((_, whose)) => *whose,
            None if is_of_host(key) => Whose::Entry(*key),
            None => Whose::Entry(FlowKey { table: key.table.saturating_sub(1), ..*key }),
        }
    }

    /// A change of the rules of entries, as the datapath gets it.
    pub fn behind(&self, change: &Change) -> Change {
        match change {
            Change::Add(rule) => Change::Add(rule_behind(rule)),
            Change::Renew(rule) => Change::Renew(rule_behind(rule)),
            Change::Modify(rule) => Change::Modify(rule_behind(rule)),
            Change::Delete(key) => Change::Delete(key_behind(key)),
            other => other.clone(),
        }
    }
}

/// Whose a rule was of an agent that was there before, perhaps with other tunnels: if `is_behind`, it had a first table of its own.
pub fn whose_before(key: &FlowKey, is_behind: bool) -> Whose {
    match (is_behind, key.table) {
        (false, _) => Whose::Entry(*key),
        (true, 0) if !is_of_host(key) => Whose::Rest,
        (true, table) => Whose::Entry(FlowKey { table: table.saturating_sub(1), ..*key }),
    }
}

/// Frames of programs meet rules only while table 0 has rules for them, so those stay there.
fn is_of_host(key: &FlowKey) -> bool {
    key.table == 0 && key.matching.key().get(Field::InPort) == Wide::from(u64::from(LOCAL))
}

fn key_behind(key: &FlowKey) -> FlowKey {
    FlowKey { table: key.table + u8::from(!is_of_host(key)), ..*key }
}

fn rule_behind(rule: &RuleSpec) -> RuleSpec {
    let actions = rule.actions.iter().map(|action| match action {
        Action::GotoTable(table) => Action::GotoTable(table + 1),
        other => other.clone(),
    });
    RuleSpec { table: key_behind(&FlowKey::of(rule)).table, actions: actions.collect(), ..rule.clone() }
}
