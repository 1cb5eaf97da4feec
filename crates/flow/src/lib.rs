//! Where a frame goes: keys, rules, tables, RSS, meters, versions, explanations.
//!
//! ```text
//! control    text, JSON -> RuleSpec -> transaction -> Writer -- publishes --> Tables, version N
//!                                                                                |
//! worker     frame -> Key -> exact-match cache -> tuple-space search, goto -> Verdict: actions, class, rules hit
//!            Verdict, frame -> execute -> the frame as it is then, and who gets it
//! ```
//!
//! - [`field`]: the one table of fields. Parser, printer, JSON and explanations take from it.
//! - [`key`]: what is looked at of a frame, as words with fixed places; masks and shapes over them.
//! - [`extract`]: the key of a frame.
//! - [`action`], [`rule`]: what is done, and when; counters of a rule.
//! - [`language`]: rules as text in the manner of `ovs-ofctl`, files of rules, JSON.
//! - [`table`]: tuple-space search, several tables, the cache of a worker, verdicts.
//! - [`version`]: transactions, published so that no reader waits or sees half of one; old versions.
//! - [`execute`]: what the actions of a verdict do to a frame.
//! - [`rss`], [`meter`]: hash to queue; token buckets.
//! - [`quic`]: which instance of a server a QUIC datagram belongs to.
//! - [`explain`]: which rule a key meets, and why not a better one.
//!
//! Nothing here sends anything: [`execute`](execute::execute) says who gets which bytes, and the card does it.
#![forbid(unsafe_code)]

pub mod action;
pub mod execute;
pub mod explain;
pub mod extract;
pub mod field;
#[cfg(test)]
mod generate;
pub mod key;
pub mod language;
pub mod matching;
pub mod meter;
pub mod neighbour;
pub mod quic;
pub mod rss;
pub mod rule;
pub mod table;
pub mod version;
pub mod vni_map;

pub use action::Action;
pub use extract::{Ingress, Tunnel};
pub use field::Field;
pub use key::Key;
pub use matching::Match;
pub use rule::{Rule, RuleSpec};
