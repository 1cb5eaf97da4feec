//! Receive-side scaling: a hash over addresses and ports chooses a queue.
//!
//! - [`toeplitz`]: the hash, by its definition and fast.
//! - [`Group`]: key, indirection table, and which fields count for which protocol.

mod group;
#[cfg(test)]
mod tests;
pub mod toeplitz;

pub use group::{Choices, Group, GroupError, GroupSpec, MAX_TABLE, Tuple};
pub use toeplitz::{KEY_LEN, MICROSOFT_KEY, Toeplitz};
