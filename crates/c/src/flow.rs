//! The flow table for C: changes and answers as text.

use crate::failure::Failure;
use crate::types::millrace_flow_flags;
use host::flow::{FlowChange, FlowCommitted};
use host::Device;
use std::ffi::CString;
use std::fmt::Display;

const KEEP: u32 = millrace_flow_flags::MILLRACE_FLOW_KEEP as u32;
const EVERYONE: u32 = millrace_flow_flags::MILLRACE_FLOW_EVERYONE as u32;
const REPLACE: u32 = millrace_flow_flags::MILLRACE_FLOW_REPLACE as u32;
const DRY_RUN: u32 = millrace_flow_flags::MILLRACE_FLOW_DRY_RUN as u32;

/// How many better rules an explanation names for each table.
pub const BETTER: u32 = 10;

/// Does the changes of a text, one on a line, or none of them.
pub fn change(device: &Device, text: &str, flags: u32) -> Result<FlowCommitted, Failure> {
    if flags & !(KEEP | EVERYONE | REPLACE | DRY_RUN) != 0 {
        return Err(Failure::invalid(format!("flags {flags:#x}: only MILLRACE_FLOW_... can be set")));
    }
    let mut transaction = device.flows().transaction().changes(text.lines().filter_map(FlowChange::of_line));
    if flags & KEEP != 0 {
        transaction = transaction.keep();
    }
    if flags & EVERYONE != 0 {
        transaction = transaction.everyone();
    }
    if flags & REPLACE != 0 {
        transaction = transaction.replace();
    }
    Ok(if flags & DRY_RUN != 0 { transaction.try_out() } else { transaction.commit() }?)
}

/// Text as C has it.
pub fn text(text: impl Into<Vec<u8>>) -> Result<CString, Failure> {
    CString::new(text).map_err(|error| cannot(&error))
}

/// A value as JSON.
pub fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<CString, Failure> {
    text(serde_json::to_string(value).map_err(|error| cannot(&error))?)
}

fn cannot(what: &dyn Display) -> Failure {
    Failure::invalid(format!("the answer cannot be written: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_changes_all_or_none() {
        let device = Device::open("embedded:queues=2").unwrap();
        let done = change(&device, "# two\nin_port=0,actions=queue:1\n\nadd arp,actions=drop\n", 0).unwrap();
        assert_eq!((done.added, done.modified, done.removed), (2, 0, 0));
        let done = change(&device, "delete arp\nmodify in_port=0,actions=drop", 0).unwrap();
        assert_eq!((done.added, done.modified, done.removed), (0, 1, 1));
        assert!(change(&device, "tcp,actions=drop\nactions=rss:7", 0).is_err());
        assert!(change(&device, "tcp,actions=drop", 1 << 9).is_err());
        assert_eq!(change(&device, "tcp,actions=drop", DRY_RUN | REPLACE).unwrap().removed, 1);
        assert_eq!(device.flows().info().unwrap().rules, 1);
    }
}
