//! What a rule has to be before it may be in a table.

use super::{MAX_ACTIONS, RuleSpec, TABLES};
use crate::action::{Action, MAX_NOTE, MAX_VNI, Vxlan};
use crate::field::{Field, Wide, needs::Needs};
use crate::matching::MatchError;

/// Why a rule cannot be in a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// There is no such table.
    #[error("there is no table {0}: tables are 0 to {last}", last = TABLES - 1)]
    NoTable(u8),
    /// A goto that does not go forward.
    #[error("goto_table:{to} in table {from}: only later tables can be gone to, up to {last}", last = TABLES - 1)]
    Backward {
        /// The table of the rule.
        from: u8,
        /// Where it wants to go.
        to: u8,
    },
    /// An action behind `goto_table`.
    #[error("goto_table has to be the last action")]
    AfterGoto,
    /// `drop` beside other actions.
    #[error("drop cannot be with other actions")]
    DropNotAlone,
    /// No action at all.
    #[error("a rule does something: write drop if it is nothing")]
    NoAction,
    /// Too many actions.
    #[error("{0} actions are too many: at most {MAX_ACTIONS}")]
    TooManyActions(usize),
    /// A field that cannot be written.
    #[error("{} cannot be set", .0.name())]
    NotSettable(Field),
    /// A value that does not fit the field or has bits outside its mask.
    #[error("the value for {} does not fit", .0.name())]
    SetValue(Field),
    /// An action on something that the frames of this rule may not have.
    #[error("{action} means nothing for what the rule matches: write {} as well", .needs.hint())]
    Needs {
        /// The action.
        action: String,
        /// What is missing.
        needs: Needs,
    },
    /// A number out of range.
    #[error("{what} is out of range: {range}")]
    Range {
        /// Of what.
        what: &'static str,
        /// What is right.
        range: &'static str,
    },
    /// The match has bits that no field stands for, or that mean nothing together.
    #[error("the match has bits that mean nothing with what else it asks for")]
    Meaningless,
    /// The match is wrong.
    #[error(transparent)]
    Match(#[from] MatchError),
}

impl RuleSpec {
    /// Checks everything that does not depend on what else there is.
    ///
    /// # Errors
    /// What is wrong, for the author of the rule.
    pub fn check(&self) -> Result<(), RuleError> {
        if self.table >= TABLES {
            return Err(RuleError::NoTable(self.table));
        }
        self.check_match()?;
        self.check_actions(&self.actions)
    }

    /// Every bit of the match belongs to a field that means something.
    fn check_match(&self) -> Result<(), RuleError> {
        let mut named = crate::Match::ANY;
        for (field, value, mask) in self.matching.fields() {
            named.add(field, value, mask)?;
        }
        if named == self.matching { Ok(()) } else { Err(RuleError::Meaningless) }
    }

    /// Checks actions for a rule that matches as this one does.
    pub(crate) fn check_actions(&self, actions: &[Action]) -> Result<(), RuleError> {
        if actions.len() > MAX_ACTIONS {
            return Err(RuleError::TooManyActions(actions.len()));
        }
        if actions.is_empty() {
            return Err(RuleError::NoAction);
        }
        if actions.contains(&Action::Drop) && actions.len() > 1 {
            return Err(RuleError::DropNotAlone);
        }
        // What the frame is after other headers came first is not known here; such an action finds nothing to do then.
        let mut known = true;
        for (at, action) in actions.iter().enumerate() {
            let needs = needed(action);
            if known && !needs.met(&self.matching) {
                return Err(RuleError::Needs { action: crate::language::action(action), needs });
            }
            known &= !action.changes_layers();
            match action {
                Action::GotoTable(_) if at + 1 < actions.len() => return Err(RuleError::AfterGoto),
                Action::GotoTable(to) if *to <= self.table || *to >= TABLES => {
                    return Err(RuleError::Backward { from: self.table, to: *to });
                }
                _ => check_numbers(action)?,
            }
        }
        Ok(())
    }
}

/// What the frame has to be for an action.
fn needed(action: &Action) -> Needs {
    match action {
        Action::SetField { field, .. } => field.row().needs,
        Action::DecTtl => Needs::Ip,
        Action::PopPppoe => Needs::Pppoe,
        Action::PushPppoe(_) => Needs::Ip,
        Action::DecapVxlan { .. } | Action::Quic(_) => Needs::Udp,
        _ => Needs::None,
    }
}

fn range(good: bool, what: &'static str, range: &'static str) -> Result<(), RuleError> {
    if good { Ok(()) } else { Err(RuleError::Range { what, range }) }
}

fn check_outer(outer: &Vxlan) -> Result<(), RuleError> {
    range(outer.vni.is_none_or(|vni| vni <= MAX_VNI), "the VNI", "0 to 16777215")?;
    range(outer.src.is_ipv4() == outer.dst.is_ipv4(), "encap_vxlan", "both addresses of one IP version")?;
    let macs = [outer.dl_src, outer.dl_dst];
    range(macs.iter().flatten().all(|mac| mac >> 48 == 0), "a MAC address of encap_vxlan", "48 bits")?;
    range(outer.ttl > 0, "the TTL of encap_vxlan", "1 to 255")
}

fn check_numbers(action: &Action) -> Result<(), RuleError> {
    match action {
        Action::SetField { field, .. } if !field.row().settable => Err(RuleError::NotSettable(*field)),
        Action::SetField { field, value, mask } => {
            let fits = value.and(*mask) == *value && mask.and(field.full()) == *mask && *mask != Wide::ZERO;
            if fits { Ok(()) } else { Err(RuleError::SetValue(*field)) }
        }
        Action::PushVlan(tpid) => range([0x8100, 0x88a8].contains(tpid), "the TPID of push_vlan", "0x8100 or 0x88a8"),
        Action::EncapVxlan(outer) => check_outer(outer),
        Action::VxlanPort(port) => check_outer(&port.outer),
        Action::Sample { probability, .. } => range(*probability > 0, "the probability of sample", "1 to 65535"),
        Action::Note(bytes) => range((1..=MAX_NOTE).contains(&bytes.len()), "the length of a note", "1 to 256 bytes"),
        _ => Ok(()),
    }
}
