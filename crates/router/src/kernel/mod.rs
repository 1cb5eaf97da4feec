//! What Linux has decided and been told, read from it by netlink.
//!
//! - here: nothing but the list; `wire`: messages as bytes; `socket`, `join`: how they come and go;
//! - `link`, `address`, `neighbour`, `route`: one kind of thing each; `mirror`: all of them, kept up to date by events;
//! - `netfilter`, `conntrack`, `policy`, `shaping`, `tcx`: who else looks at forwarded packets; `pppoe`: sessions;
//! - `offloads`, `settings`: how cards and the namespace are set; `every`: all that reads messages, for tests with bytes that no kernel has sent.
//!
//! Why no crate does this: decision 86.

pub mod address;
pub mod conntrack;
mod every;
mod join;
pub mod link;
pub mod mirror;
pub mod neighbour;
pub mod netfilter;
pub mod offloads;
pub mod policy;
pub mod pppoe;
pub mod route;
pub mod ruleset;
pub mod settings;
pub mod shaping;
pub mod socket;
#[cfg(feature = "bpf")]
pub mod tcx;
pub mod wire;

pub use every::{KINDS, read_all};
