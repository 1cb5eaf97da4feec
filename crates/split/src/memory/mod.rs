//! The transport between two processes: a file in memory, whose pages are granted by their numbers, and bells.
//!
//! The guest's program calls at a socket, and hands its file over; the backend hands over a bell for each direction. After that the socket
//! says only who has ended. The file is sealed against shrinking, and holes in it are read as zeros.

mod back;
mod front;
mod pages;

pub use back::MemoryDoor;
pub use front::{MemoryGrants, connect};
pub use pages::{MOST_PAGES, Pages};

/// What the first record says, besides the version of [`millrace_served::wire`].
const HELLO: u64 = u64::from_le_bytes(*b"MILLGRNT");
