//! Network interfaces of Linux: what they are, and who notices when that changes.

mod interface;
mod watch;

pub(crate) use interface::{Interface, Reports, ask};
pub(crate) use watch::{State, Watch};
