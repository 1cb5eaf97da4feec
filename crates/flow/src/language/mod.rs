//! Rules as text, close to that of `ovs-ofctl`, and as JSON.
//!
//! ```text
//! # comment
//! table=0,priority=100,ip,nw_src=10.0.0.0/8,tcp_dst=80,actions=set_field:10.0.0.1->nw_dst,queue:3
//! ```
//!
//! Commas or blanks separate. Before `actions=` stand `table`, `priority`, `cookie`, `idle_timeout`, `hard_timeout`, the words
//! of [`KEYWORDS`](crate::field::needs::KEYWORDS) and the names of [fields](crate::field). What is printed parses to the
//! same rule.
//!
//! - [`parse_rule`], [`parse_filter`], [`parse_modification`]: from text. A [`ParseError`] points at the place.
//! - [`RuleFile`]: a file of rules, RSS groups and meters, a line for each [`Item`], as text or JSON.
//! - `Display` of [`RuleSpec`](crate::RuleSpec), [`Match`](crate::Match) and [`Action`](crate::Action): to text.
//! - `Serialize` and `Deserialize` of the same: JSON, with values and actions in the words of the language.

mod actions;
mod error;
mod file;
mod filter;
mod group;
mod json;
mod list;
mod meter;
mod print;
mod quic;
mod rule;
mod scan;
#[cfg(test)]
mod tests;

pub use error::ParseError;
pub use file::{Item, RuleFile};
pub use filter::{parse_filter, parse_modification};
pub(crate) use print::action;
pub use rule::parse_rule;
#[cfg(test)]
pub(crate) use rule::parse_unchecked;

/// Longest line of rules, in bytes.
pub const MAX_LINE: usize = 16 * 1024;
