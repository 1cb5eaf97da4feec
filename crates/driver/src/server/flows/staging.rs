//! A transaction that is being sent: read as it comes, and paid for, so that nobody fills the card's memory with rules that are
//! never set up.

use super::super::quotas::Charge;
use super::super::replies::Refusal;
use super::words;
use millrace_abi::flow::{FlowChange, FlowOptions};
use millrace_abi::message::ErrorCode;
use millrace_flow::rule::units;
use millrace_flow::version::Change;

/// Most changes of one transaction: a table full of rules, and as many others.
const MOST_CHANGES: usize = 1 << 21;

/// A transaction that is being sent.
pub(super) struct Staged {
    pub options: FlowOptions,
    pub changes: Vec<Change>,
    /// For as long as it is being sent.
    pub charge: Option<Charge>,
}

impl Staged {
    pub fn new(options: FlowOptions) -> Self {
        Self { options, changes: Vec::new(), charge: None }
    }

    /// Takes more changes.
    pub fn add(
        &mut self,
        more: &[FlowChange],
        charge: impl FnOnce(u64) -> Result<Charge, String>,
    ) -> Result<(), Refusal> {
        if self.changes.len() + more.len() > MOST_CHANGES {
            let text = format!("a transaction has at most {MOST_CHANGES} changes");
            return Err(Refusal::new(ErrorCode::Quota, text));
        }
        let mut cost = 0;
        for change in more {
            let wrong =
                |text: String| Refusal::new(ErrorCode::Invalid, format!("change {}: {text}", self.changes.len() + 1));
            let change = words::change(change).map_err(wrong)?;
            cost += match &change {
                Change::Add(rule) | Change::Renew(rule) => units(&rule.actions),
                Change::Modify { actions, .. } => units(actions),
                _ => 1,
            };
            self.changes.push(change);
        }
        let charge = charge(cost as u64).map_err(|text| Refusal::new(ErrorCode::Quota, text))?;
        match &mut self.charge {
            Some(paid) => paid.merge(charge),
            None => self.charge = Some(charge),
        }
        Ok(())
    }
}
