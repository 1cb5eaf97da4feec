//! Keys of QUIC connections that a program has handed over: they go with it, with their connections and with their groups, and each
//! connection of which there are any counts as a rule in its quota. They are never listed, logged or told.

use super::super::quotas::Charge;
use super::super::replies::Refusal;
use super::paid::Paid;
use super::{Applicant, words};
use millrace_abi::flow::{FlowKeyLog, FlowKeys, MAX_FLOW_TEXT};
use millrace_abi::message::ErrorCode;
use millrace_card::{Belongs, Card, Owner};
use millrace_flow::quic::{Group, HandedOver, KeyLogLine};
use millrace_flow::version::Part;
use std::sync::Arc;

/// What a program has handed over.
#[derive(Default)]
pub(super) struct Keys {
    /// The groups that may have keys of it, by number.
    groups: Vec<(u32, Arc<Group>)>,
    charge: Option<Charge>,
}

/// The group with this number, if somebody may hand over keys of its connections: who has set it up, or somebody of the same user.
fn group(card: &Card, applicant: Applicant, number: u32) -> Result<Arc<Group>, Refusal> {
    let found = card.flows_and_owners(|writer, owner| {
        let group = writer.quic(number)?;
        Some((Arc::clone(group), owner(Belongs::Part(Part::Quic(number)))))
    });
    let text = format!("there is no QUIC group {number}: `millrace flow list` shows those that there are");
    let (group, owner) = found.ok_or_else(|| Refusal::new(ErrorCode::NotFound, text))?;
    let is_own = match owner {
        Owner::Card => false,
        Owner::User(uid) | Owner::Program { uid, .. } => uid == applicant.account.uid,
    };
    if !is_own && !applicant.admin {
        let text =
            format!("QUIC group {number} is somebody else's: keys are taken from its user, root and the card's user");
        return Err(Refusal::new(ErrorCode::Denied, text));
    }
    if !group.spec().keys {
        let text =
            format!("QUIC group {number} takes no keys: write `keys` into it, as in group={number},quic,...,keys");
        return Err(Refusal::new(ErrorCode::Invalid, text));
    }
    Ok(group)
}

impl Keys {
    /// Takes lines of a key log. `unknown`, `full` and so on are no errors: others of the lines may be taken.
    pub fn take(
        &mut self,
        card: &Card,
        paid: &Paid,
        applicant: Applicant,
        number: u32,
        log: &FlowKeyLog,
    ) -> Result<FlowKeys, Refusal> {
        let group = group(card, applicant, number)?;
        if log.0.len() > MAX_FLOW_TEXT {
            return Err(Refusal::new(
                ErrorCode::Invalid,
                format!("at most {MAX_FLOW_TEXT} bytes of lines in one message"),
            ));
        }
        let mut told = FlowKeys::default();
        let lines: Vec<KeyLogLine> = log
            .0
            .lines()
            .filter_map(|line| KeyLogLine::parse(line).inspect_err(|_| told.malformed += 1).ok().flatten())
            .collect();
        // As if each were of another connection; what is too much is given back.
        let charge =
            paid.charge(applicant.account, lines.len() as u64).map_err(|text| Refusal::new(ErrorCode::Quota, text))?;
        match &mut self.charge {
            Some(paid) => paid.merge(charge),
            None => self.charge = Some(charge),
        }
        if !self.groups.iter().any(|(_, other)| other.shares_with(&group)) {
            self.groups.push((number, Arc::clone(&group)));
        }
        let owner = applicant.asker.connection;
        for line in &lines {
            let counter = match group.hand_over(owner, line) {
                HandedOver::Taken => &mut told.taken,
                HandedOver::Unknown => &mut told.unknown,
                HandedOver::Full => &mut told.full,
                HandedOver::Foreign => &mut told.foreign,
                HandedOver::Invalid => &mut told.malformed,
            };
            *counter += 1;
        }
        told.connections = self.settle(owner);
        Ok(told)
    }

    /// Lets go of keys whose group is not in force any more, or whose connection is over. Returns whether there are others.
    pub fn look_after(&mut self, card: &Card, owner: u64) -> bool {
        if self.groups.is_empty() {
            return false;
        }
        let now_ns = words::now_ns();
        self.groups.retain(|(number, group)| {
            let is_there = card.flows(|writer| {
                writer.quic(*number).is_some_and(|newest| newest.shares_with(group) && newest.spec().keys)
            });
            if is_there {
                group.expire(now_ns);
            } else {
                group.forget_keys(owner);
            }
            is_there
        });
        self.settle(owner);
        !self.groups.is_empty()
    }

    /// The program has gone.
    pub fn end(self, owner: u64) {
        self.groups.iter().for_each(|(_, group)| group.forget_keys(owner));
    }

    /// Gives back what was charged for connections that have gone. Returns how many there are.
    fn settle(&mut self, owner: u64) -> u64 {
        let has = self.groups.iter().map(|(_, group)| group.keys_of(owner) as u64).sum();
        if let Some(charge) = &mut self.charge {
            Paid::shrink(charge, has);
        }
        has
    }
}
