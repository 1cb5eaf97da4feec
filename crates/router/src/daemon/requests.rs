//! What clients ask, answered.

use std::time::Instant;

use super::flows;
use super::protocol::{Answer, Counter, Filter, PAGE, Request, RuleInfo};
use super::router::State;
use super::standing::Standing;
use crate::engine::layout::{hop_flag, rule_flag};
use crate::engine::{self, Engine, Rule};

/// Rules that are looked at for one answer.
const LOOKED_AT: u64 = 32 << 10;

impl State {
    /// Answers one request.
    pub(super) fn answer(&mut self, engine: &Engine, request: Request) -> Answer {
        match request {
            Request::Status => Answer::Status(Box::new(self.status(engine))),
            Request::Counters => counters(engine),
            Request::Rules { from, filter } => self.rules(engine, from, &filter),
            Request::Shadow => Answer::Shadow(self.compared.told(self.options.compare, self.tally)),
            Request::Compare(share) => {
                self.options.compare = share;
                engine.set_shadow(share);
                Answer::Done
            }
            Request::Only(parts) => {
                self.options.parts = parts;
                engine.set_parts(parts.0);
                Answer::Done
            }
            Request::Switch { on, interface: None } => {
                self.options.is_on = on;
                self.set_mode(engine);
                Answer::Done
            }
            Request::Switch { on, interface: Some(which) } => match self.interfaces.switch(on, &which) {
                true => self.settled(engine),
                false => Answer::Refused(format!(
                    "no interface of the router is called {which}; `millrace router status` lists them"
                )),
            },
            Request::Add(more) => {
                self.interfaces.add(more);
                self.settled(engine)
            }
            Request::Remove(less) => match self.interfaces.remove(&less) {
                true => self.settled(engine),
                false => Answer::Refused(
                    "none of these was asked for; names are to be as they were given at the start".to_owned(),
                ),
            },
            Request::Flush => {
                engine.bump(engine::Change::Ruleset);
                // They are out of date by now; what is left is to make room.
                let jiffies = engine.jiffies().unwrap_or_default();
                for rule in engine.rules() {
                    let _ = engine.kill_at(&rule, jiffies);
                }
                Answer::Done
            }
            Request::Stop => {
                self.is_stopping = true;
                Answer::Done
            }
            Request::Session(told) => match self.sessions.tell(told.clone(), Instant::now()) {
                Ok(_) => self.session_told(engine, &told.name),
                Err(why) => Answer::Refused(why),
            },
            Request::NoSession(name) => {
                self.sessions.over(&name);
                self.session_told(engine, &name)
            }
            Request::Ipsec(_) => Answer::Refused(
                "this router has no associations of IPsec; `millrace router ipsec start` starts a gateway that has"
                    .to_owned(),
            ),
        }
    }

    /// Tells the engine of a session, or that there is none; what it knows already is not told again.
    pub(super) fn session_told(&mut self, engine: &Engine, name: &str) -> Answer {
        let index = self.sight.mirror.links.values().find(|link| link.name == name).map(|link| link.index);
        match index.map(|index| self.told.device(index, &self.sight, &self.sessions, engine)) {
            Some(Err(error)) => Answer::Refused(error.to_string()),
            // Where the interface comes later, its event does it.
            _ => Answer::Done,
        }
    }

    fn settled(&mut self, engine: &Engine) -> Answer {
        self.interfaces.settle(&mut self.sight, engine);
        Answer::Done
    }

    fn rules(&mut self, engine: &Engine, from: u64, filter: &Filter) -> Answer {
        let (first, second) = (u64::from(self.room[0]), u64::from(self.room[1]));
        let end = from.saturating_add(LOOKED_AT).min(first + second);
        let (now, clock) = (engine.jiffies().unwrap_or_default(), monotonic());
        let mut rules = Vec::new();
        for at in from..end {
            let (is_v6, number) = if at < first { (false, at) } else { (true, at - first) };
            let Some(rule) = engine.rule(is_v6, number as u32).filter(|rule| rule.state != engine::State::Dead) else {
                continue;
            };
            if filter.fits(rule.key.protocol, rule.key.ends(), rule.new_ends()) {
                rules.push(self.told(engine, &rule, at, now, clock));
            }
            if rules.len() == PAGE {
                return Answer::Rules { rules, next: Some(at + 1) };
            }
        }
        Answer::Rules { rules, next: (end < first + second).then_some(end) }
    }

    fn told(&mut self, engine: &Engine, rule: &Rule, id: u64, now: u32, clock: u64) -> RuleInfo {
        let key = &rule.key;
        let ([source, destination], [new_source, new_destination]) = (key.ends(), rule.new_ends());
        let (packets, bytes) = self.flows.add_up(rule);
        // Of an echo on trial Linux alone knows where it leaves.
        let is_known = match rule.state {
            engine::State::Active => true,
            engine::State::Trial => rule.flags & rule_flag::SHOWN == 0,
            _ => false,
        };
        let hop = engine.hop(rule.hop).filter(|_| is_known);
        let Standing { state, why } = self.standing(engine, rule);
        let (age_s, since_s) = self.flows.age(rule, clock);
        let idle_s = flows::idle(rule, now, self.hz).as_secs_f64();
        let name = |index: u32| self.sight.mirror.name_of(index);
        let bridged = rule.flags & rule_flag::BRIDGED != 0;
        RuleInfo {
            id,
            state: state.to_owned(),
            // Of a bridged flow the VLAN is above bit 20.
            input: name(if bridged { key.input & 0xf_ffff } else { key.input }),
            protocol: key.protocol,
            source,
            destination,
            is_echo_reply: key.is_echo_reply(),
            new_source,
            new_destination,
            dscp: key.dscp,
            new_dscp: rule.new_dscp,
            output: hop.map_or_else(String::new, |hop| name(hop.logical)),
            is_bridged: bridged,
            packets,
            bytes,
            idle_s,
            age_s,
            state_s: match state {
                "active" => since_s,
                // Of one that is not in force, `seen` is since when.
                "trial" | "refused" => Some(idle_s),
                _ => None,
            },
            step: why.as_ref().map_or(0, |(reason, _)| reason.step() as u8),
            reason: why.as_ref().map_or_else(String::new, |(reason, _)| reason.name().to_owned()),
            meaning: why.map_or_else(String::new, |(_, said)| said),
            is_user: self.told.is_tunnel(key.input) || hop.is_some_and(|hop| hop.flags & hop_flag::USER != 0),
        }
    }
}

fn counters(engine: &Engine) -> Answer {
    let told = |counter: engine::Counter| Counter {
        step: counter.reason.step() as u8,
        reason: counter.reason.name().to_owned(),
        meaning: counter.reason.sentence().to_owned(),
        packets: counter.packets,
    };
    match engine.counters() {
        Ok(all) => Answer::Counters(all.into_iter().map(told).collect()),
        Err(error) => Answer::Refused(error.to_string()),
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub(super) fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
