//! Tables, searched, and what comes of it.
//!
//! - [`Tables`]: all tables of one version, never changed while anybody reads them.
//! - [`Verdict`]: what the rules along the way say together.
//! - [`Classifier`]: what a worker has: a cache of whole keys in front of the search, and the counters of its frames.
//! - `search`: one table; `tuple`: its rules with one mask; `shape`: hash and comparison of masked keys.

mod cache;
mod classifier;
mod search;
mod shape;
mod tables;
#[cfg(test)]
mod tests;
mod tuple;
mod verdict;
mod verdicts;

pub use classifier::{BURST, CacheStats, Classifier, VerdictId};
pub(crate) use search::Table;
pub(crate) use shape::{mix, seed};
pub(crate) use tables::{End, Walk};
pub use tables::{Miss, Tables};
pub use verdict::{Again, Verdict};
