//! The transport over memory that virtual machines of stock QEMU share (`ivshmem-doorbell`, the crate `millrace_ivshmem`): no Xen, no driver.
//!
//! What the rings of the server leave of the memory is divided into equal slices of whole pages, one for each peer. A peer grants pages of
//! its own slice, by their numbers in it. The first page of a slice says who its peer is:
//!
//! | Byte | Of a program | Of a backend | Who writes |
//! |---|---|---|---|
//! | 0 | which program of this peer it is, a random number; 0: none | `MILLBACK`, little endian | peer |
//! | 8 | the page of its control page | which of those that have had its number it is, as the server says | peer |
//! | 16 | a number that another thread of the program raises every second | | peer |
//! | 24 | which of its programs, that has ended, is served no more | | backend |
//!
//! Everybody writes everywhere: what is read is checked, and backend and guests are as safe from those who share the memory with them as their
//! own memory and time are. Machines that do not trust one another get servers of their own, and a backend serves several.

mod back;
mod front;
mod pace;

pub use back::IvshmemDoor;
pub use front::{IvshmemGrants, IvshmemLand, connect};

use crate::PAGE;
use millrace_dma::{OutOfRange, Window};
use millrace_ivshmem::layout::bytes_of;

const BACKEND: u64 = u64::from_le_bytes(*b"MILLBACK");
const WHO: usize = 0;
const CONTROL: usize = 8;
const PRESENCE: usize = 8;
const BEAT: usize = 16;
const ENDED: usize = 24;
/// A slice that is smaller holds no rings.
const LEAST: usize = 64;

/// The slices of the memory that is left.
#[derive(Clone)]
struct Slices {
    rest: Window,
    /// Bytes before the first slice: the rest begins anywhere.
    skip: usize,
    /// Pages of each.
    pages: usize,
}

impl Slices {
    /// `None`: they would be too small.
    fn of(rest: &Window, peers: u16) -> Option<Self> {
        let at = bytes_of(peers);
        let skip = at.next_multiple_of(PAGE) - at;
        let pages = rest.len().checked_sub(skip)? / PAGE / usize::from(peers.max(1));
        (pages >= LEAST).then(|| Self { rest: rest.clone(), skip, pages })
    }

    /// Pages of the slice of a peer, one behind the other.
    fn part(&self, peer: u16, first: usize, pages: usize) -> Result<Window, OutOfRange> {
        if first.checked_add(pages).is_none_or(|end| end > self.pages) {
            return Err(OutOfRange { offset: first, len: pages, window: self.pages });
        }
        let first = usize::from(peer) * self.pages + first;
        self.rest.part(self.skip + first * PAGE, pages * PAGE)
    }

    /// The first page.
    fn head(&self, peer: u16) -> Result<Window, OutOfRange> {
        self.part(peer, 0, 1)
    }
}
