//! Transactions and versions.
//!
//! ```text
//! Change, Change, ...  ->  checked against the Store; all or nothing  ->  Op, Op, ...
//!                                                                          |
//!     spare copy of the tables  <- the ops of the versions that it missed -+-> log of the last versions
//!          |
//!     Published: one pointer is exchanged; workers take it at their next lookup
//! ```
//!
//! Nobody waits for anybody. A worker holds the version of its last lookup; the writer brings a copy up to date that no
//! worker holds, and makes another one where all are held. So there are at most as many copies as workers, and two more.

mod author;
mod change;
mod commit;
mod history;
mod op;
mod published;
mod store;
#[cfg(test)]
mod tests;
mod writer;

pub use author::{Author, Everybody, Part};
pub use change::{Change, Filter};
pub use commit::{CommitError, Refusal};
pub use history::{HISTORY, VersionError};
pub use op::Op;
pub use published::Published;
pub use writer::{Committed, Limits, Writer};
