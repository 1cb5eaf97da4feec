//! The control page: one page that the guest grants first, with a ring of requests and one of answers.
//!
//! | Byte | What | Who writes |
//! |---|---|---|
//! | 0 | `MILLSPLT`, little endian | guest, before it is granted |
//! | 8 | version of the protocol, 32 bits | guest, before it is granted |
//! | 16 | 1 while the program lives | guest; its kernel clears it when the program ends |
//! | 64 | 1 while the backend serves it | backend; its kernel clears it when the backend ends |
//! | 1024 | ring of requests ([`lines`](millrace_ring::lines)), 16 lines | guest, and what it has taken: backend |
//! | 2304 | ring of answers and of what is told, 16 lines | backend, and what it has taken: guest |
//!
//! Nothing that the other side has written is believed: each word is loaded once and checked, and a ring with nonsense ends the
//! connection.

use crate::{Error, PAGE};
use millrace_dma::{Ordering, OutOfRange, Window, Word32};
use millrace_ring::lines::{Receiver, Sender, bytes_of};

/// The version of everything here.
pub const VERSION: u32 = 4;
const MAGIC: u64 = u64::from_le_bytes(*b"MILLSPLT");
const VERSION_AT: usize = 8;
/// Where the byte is that says that the guest's program lives, and that of the backend.
pub const GUEST_LIVES: usize = 16;
/// See [`GUEST_LIVES`].
pub const BACKEND_LIVES: usize = 64;
const LINES: u32 = 16;
const REQUESTS: usize = 1024;
const ANSWERS: usize = REQUESTS + bytes_of(LINES);
/// Most words of a message: a ring has room for no longer one.
pub const MOST_WORDS: usize = LINES as usize * millrace_ring::lines::ROOM;

const _: () = assert!(ANSWERS + bytes_of(LINES) <= PAGE);

/// The guest's side.
pub struct GuestSide {
    /// What is asked for.
    pub requests: Sender,
    /// What is answered and told.
    pub answers: Receiver,
    backend_lives: Word32,
}

/// The backend's side.
pub struct BackendSide {
    /// What is asked for.
    pub requests: Receiver,
    /// What is answered and told.
    pub answers: Sender,
    guest_lives: Word32,
    backend_lives: Word32,
}

impl GuestSide {
    /// Of a page of zeros that is about to be granted.
    ///
    /// # Errors
    /// The window is too short.
    pub fn new(page: &Window) -> Result<Self, OutOfRange> {
        page.word32(VERSION_AT)?.store(VERSION, Ordering::Relaxed);
        page.word32(GUEST_LIVES)?.store(1, Ordering::Relaxed);
        // Whoever tells the backend of the page does so behind this, by a system call.
        page.word64(0)?.store(MAGIC, Ordering::Release);
        Ok(Self {
            requests: Sender::new(&page.part(REQUESTS, bytes_of(LINES))?, LINES)?,
            answers: Receiver::new(&page.part(ANSWERS, bytes_of(LINES))?, LINES)?,
            backend_lives: page.word32(BACKEND_LIVES)?,
        })
    }

    /// Whether a backend serves it.
    pub fn is_served(&self) -> bool {
        // Acquire pairs with the Release in `BackendSide::new`; a kernel that clears it rings behind that.
        self.backend_lives.load(Ordering::Acquire) & 0xff != 0
    }
}

impl BackendSide {
    /// Of a page that a guest has granted.
    ///
    /// # Errors
    /// [`Error::Version`]: it is no such page, or one of another version.
    pub fn new(page: &Window) -> Result<Self, Error> {
        // Acquire pairs with the Release in `GuestSide::new`.
        let magic = page.word64(0)?.load(Ordering::Acquire);
        if magic != MAGIC || page.word32(VERSION_AT)?.load(Ordering::Relaxed) != VERSION {
            return Err(Error::Version);
        }
        let side = Self {
            requests: Receiver::new(&page.part(REQUESTS, bytes_of(LINES))?, LINES)?,
            answers: Sender::new(&page.part(ANSWERS, bytes_of(LINES))?, LINES)?,
            guest_lives: page.word32(GUEST_LIVES)?,
            backend_lives: page.word32(BACKEND_LIVES)?,
        };
        // Release pairs with the Acquire in `GuestSide::is_served`.
        side.backend_lives.store(1, Ordering::Release);
        Ok(side)
    }

    /// Whether the program lives, by what it and its kernel say.
    pub fn guest_lives(&self) -> bool {
        // Relaxed: nothing is read because of it but that.
        self.guest_lives.load(Ordering::Relaxed) & 0xff != 0
    }

    /// It is not served any more.
    pub fn end(&self) {
        // Release: what was answered before is seen before it.
        self.backend_lives.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_dma::Region;

    #[test]
    fn two_sides_meet_and_another_version_is_refused() {
        let region = Region::heap(PAGE);
        assert!(matches!(BackendSide::new(region.window()), Err(Error::Version)), "a page of zeros");
        let mut guest = GuestSide::new(region.window()).unwrap();
        assert!(!guest.is_served());
        let mut backend = BackendSide::new(region.window()).unwrap();
        assert!(guest.is_served() && backend.guest_lives());
        let long: Vec<u64> = (0..MOST_WORDS as u64).collect();
        assert!(guest.requests.send(&long) && backend.answers.send(&long));
        let mut to = [0; millrace_ring::lines::MOST_WORDS];
        assert_eq!(backend.requests.take(&mut to), Ok(Some(MOST_WORDS)));
        assert_eq!(to[..MOST_WORDS], long);
        assert_eq!(guest.answers.take(&mut to), Ok(Some(MOST_WORDS)));
        // As a kernel does when its program ends.
        region.window().span_mut(GUEST_LIVES, 1).unwrap().write_from(&[0]);
        assert!(!backend.guest_lives());
        backend.end();
        assert!(!guest.is_served());
        region.window().word32(VERSION_AT).unwrap().store(VERSION + 1, Ordering::Relaxed);
        assert!(matches!(BackendSide::new(region.window()), Err(Error::Version)));
        assert!(BackendSide::new(Region::heap(PAGE - 8).window()).is_err());
    }
}
