//! How a rule stands: what its next packet finds. A rule that is in force in the table may not be used: something is switched off, or has changed since.

use super::parts::Part;
use super::router::State;
use crate::Reason;
use crate::engine::layout::rule_flag;
use crate::engine::{self, Engine, Mode, Rule};
use crate::kernel::link::Kind;
use crate::kernel::netfilter::Family;

/// Why one is in doubt.
const CHANGED: &str =
    "something has changed in Linux since its last packet: the next one shows anew what Linux does with it";

/// Why all of them are off though nobody has switched them off.
const UNREAD: &str = "Linux could not be asked, and everything goes through it until it can";

/// A state, and why.
pub(super) struct Standing {
    /// `active`, `trial`, `refused`, `off` or `doubt`.
    pub state: &'static str,
    /// Why its packets go through Linux, if they do and it is known.
    pub why: Option<(Reason, String)>,
}

impl State {
    pub(super) fn standing(&self, engine: &Engine, rule: &Rule) -> Standing {
        if let Some(why) = self.why_off(rule) {
            return Standing { state: "off", why: Some(why) };
        }
        let (_, ruleset) = engine.epochs();
        let said = |reason: Reason| (reason, reason.sentence().to_owned());
        match rule.state {
            // Older than the last change that concerns all rules.
            engine::State::Active if (rule.epoch.wrapping_sub(ruleset) as i32) < 0 => {
                Standing { state: "doubt", why: Some((Reason::Epoch, CHANGED.to_owned())) }
            }
            engine::State::Active => Standing { state: "active", why: None },
            engine::State::Trial => Standing { state: "trial", why: None },
            _ => Standing { state: "refused", why: Reason::from_number(rule.reason).map(said) },
        }
    }

    /// What is switched off of what a rule needs.
    fn why_off(&self, rule: &Rule) -> Option<(Reason, String)> {
        if !self.options.is_on {
            return Some((Reason::Off, "the router is off; `millrace router on` switches it on".to_owned()));
        }
        let mode = if rule.key.source.is_ipv4() { self.modes.0 } else { self.modes.1 };
        if mode == Mode::Off {
            let family = if rule.key.source.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
            let queue = self.sight.hooks.queue(family);
            let said =
                queue.map(|chain| format!("chain {chain} gives packets to a program, which is to see all of them"));
            return Some((Reason::Off, said.unwrap_or_else(|| UNREAD.to_owned())));
        }
        let is_bridged = rule.flags & rule_flag::BRIDGED != 0;
        let part = match () {
            () if is_bridged => (Part::Fdb, Reason::FdbOff),
            () if rule.key.source.is_ipv4() => (Part::Ipv4, Reason::FamilyOff),
            () => (Part::Ipv6, Reason::FamilyOff),
        };
        if !self.options.parts.has(part.0) {
            let name = part.0.name();
            let said = format!("the part {name} is switched off; `millrace router only all` switches it on");
            return Some((part.1, said));
        }
        // Of a bridged flow the VLAN is above bit 20.
        let input = if is_bridged { rule.key.input & 0xf_ffff } else { rule.key.input };
        self.why_not_carried(input).map(|said| (Reason::Off, said))
    }

    /// Why nothing that comes by an interface passes the program.
    fn why_not_carried(&self, index: u32) -> Option<String> {
        const DEPTH: u32 = 4;
        if self.is_carried(index, DEPTH) {
            return None;
        }
        let name = self.sight.mirror.name_of(index);
        Some(match self.interfaces.why_off(index) {
            Some(why) => format!("the fast path is off at {name}: {why}"),
            None => format!("{name} is no interface of the router; `millrace router add {name}` makes it one"),
        })
    }

    /// Whether the program is on an interface, or on one that it lies on.
    fn is_carried(&self, index: u32, depth: u32) -> bool {
        let mirror = &self.sight.mirror;
        if self.interfaces.is_attached(index) || self.told.is_tunnel(index) {
            return true;
        }
        let Some(link) = mirror.links.get(&index).filter(|_| depth > 0) else { return false };
        let is_carried = |index: u32| self.is_carried(index, depth - 1);
        match link.kind {
            Kind::Vlan(_) => link.parent.is_some_and(is_carried),
            Kind::Bridge { .. } => {
                mirror.links.values().any(|port| port.master == Some(index) && is_carried(port.index))
            }
            _ => self.sessions.of(&link.name, mirror).is_some_and(|session| is_carried(session.lower)),
        }
    }
}
