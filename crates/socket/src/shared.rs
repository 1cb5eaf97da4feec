//! The memory that both ends of a connection have.
//!
//! ```text
//! 0     which kind of memory this is
//! 8     bytes of a ring
//! 16    0 offered, 1 taken, 2 withdrawn
//! 24    two words that only this offer has
//! 40    the kernel's number of the socket that connected
//! 48    the kernel's number of the socket that accepted
//! 128   the connecting end: who sends, who receives (a line each)
//! 256   the accepting end: the same
//! 384   the connecting end: bytes received from the kernel; how many sleep; 1: it resets the connection
//! 448   the accepting end: the same
//! 4096  the stream to the accepting end (`millrace_ring::stream`)
//! ...   the stream to the connecting end
//! ```
//!
//! The file is a memfd that cannot shrink. Each process of an end keeps it open, under a high number, for programs that it
//! becomes.

use crate::counters::Reason;
use crate::lock::Common;
use crate::sys;
use millrace_dma::{Ordering, OutOfRange, Protection, Region, Word64};
use millrace_ring::stream::{Reader, Writer, bytes_of};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::{AsFd, AsRawFd, RawFd};

const MAGIC: u64 = u64::from_le_bytes(*b"mr-strm1");
const HEAD: usize = 4096;

const OFFERED: u64 = 0;
const TAKEN: u64 = 1;
const WITHDRAWN: u64 = 2;

/// Which end of a connection a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It has called `connect`.
    Connecting,
    /// It has called `accept`.
    Accepting,
}

/// How far two ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    Offered,
    Taken,
    Withdrawn,
}

/// A name for one offer.
pub(crate) type Token = [u64; 2];

fn stream_bytes(size: usize) -> usize {
    bytes_of(size).next_multiple_of(HEAD)
}

fn all_bytes(size: usize) -> usize {
    HEAD + 2 * stream_bytes(size)
}

/// The memory of a connection, seen from one end.
pub(crate) struct Shared {
    region: Option<Region>,
    file: RawFd,
    pub(crate) size: usize,
    pub(crate) end: End,
    state: Word64,
    accepted: Word64,
    connected: Word64,
    /// Who sends from this end.
    pub(crate) sending: Common,
    /// Who receives at this end.
    pub(crate) receiving: Common,
    /// Bytes of the program's that this end has received from the kernel.
    pub(crate) from_kernel: Word64,
    sleepers: Word64,
    resets: Word64,
    resets_us: Word64,
    pub(crate) writer: Writer,
    pub(crate) reader: Reader,
}

impl Shared {
    /// New memory, offered by the socket with this number.
    pub(crate) fn offer(size: usize, token: Token, cookie: u64) -> Result<Self, Reason> {
        let fd = memfd_create("millrace-stream", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let fd = fd.and_then(sys::move_away).map_err(|_| Reason::Files)?;
        let sized = ftruncate(&fd, all_bytes(size) as u64)
            .and_then(|()| fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW));
        if sized.is_err() {
            sys::close(fd);
            return Err(Reason::Memory);
        }
        let shared = Self::map(fd, size, End::Connecting)?;
        let window = shared.window();
        let words = [(0, MAGIC), (8, size as u64), (24, token[0]), (32, token[1]), (40, cookie)];
        for (at, value) in words {
            window.word64(at).map_err(|_| Reason::Memory)?.store(value, Ordering::Relaxed);
        }
        // From the first byte on, a doorbell is rung: nobody has looked yet whether it is there.
        shared.reader.mark_asleep();
        Ok(shared)
    }

    /// Memory that somebody has offered under this name.
    pub(crate) fn open(fd: OwnedFd, token: Option<Token>, end: End) -> Result<Self, Reason> {
        let Some((size, found)) = look(&fd) else {
            sys::close(fd);
            return Err(Reason::Foreign);
        };
        if token.is_some_and(|token| token != found) {
            sys::close(fd);
            return Err(Reason::Foreign);
        }
        Self::map(fd, size, end)
    }

    fn map(fd: OwnedFd, size: usize, end: End) -> Result<Self, Reason> {
        let file = fd.as_raw_fd();
        crate::table::protect(file, true);
        let region = Region::map(fd, all_bytes(size), Protection::ReadWrite, false).map_err(|_| Reason::Memory)?;
        Self::over(region, file, size, end).map_err(|_| Reason::Memory)
    }

    fn over(region: Region, file: RawFd, size: usize, end: End) -> Result<Self, OutOfRange> {
        let window = region.window();
        let streams = [HEAD, HEAD + stream_bytes(size)].map(|at| window.part(at, stream_bytes(size)));
        let [to_accepting, to_connecting] = streams;
        let (out, into, at) = match end {
            End::Connecting => (to_accepting?, to_connecting?, 0),
            End::Accepting => (to_connecting?, to_accepting?, 1),
        };
        Ok(Self {
            file,
            size,
            end,
            state: window.word64(16)?,
            connected: window.word64(40)?,
            accepted: window.word64(48)?,
            sending: Common::new(window.word64(128 + at * 128)?),
            receiving: Common::new(window.word64(192 + at * 128)?),
            from_kernel: window.word64(384 + at * 64)?,
            sleepers: window.word64(392 + at * 64)?,
            resets: window.word64(400 + at * 64)?,
            resets_us: window.word64(400 + (1 - at) * 64)?,
            writer: Writer::new(&out, size)?,
            reader: Reader::new(&into, size)?,
            region: Some(region),
        })
    }

    fn window(&self) -> &millrace_dma::Window {
        self.region.as_ref().expect("it is dropped last").window()
    }

    /// How far the ends are.
    #[inline]
    pub(crate) fn agreement(&self) -> Agreement {
        // Acquire pairs with the AcqRel of the exchanges below.
        match self.state.load(Ordering::Acquire) {
            OFFERED => Agreement::Offered,
            TAKEN => Agreement::Taken,
            _ => Agreement::Withdrawn,
        }
    }

    /// Takes the offer for the socket with this number. Whether it is taken, now or before, for this socket.
    pub(crate) fn take(&self, cookie: u64) -> bool {
        if self.agreement() == Agreement::Offered {
            self.accepted.store(cookie, Ordering::Relaxed);
        }
        let _ = self.state.compare_exchange(OFFERED, TAKEN);
        self.agreement() == Agreement::Taken && self.accepted.load(Ordering::Relaxed) == cookie
    }

    /// Takes the offer back. Whether nobody has taken it before.
    pub(crate) fn withdraw(&self) -> bool {
        let _ = self.state.compare_exchange(OFFERED, WITHDRAWN);
        self.agreement() == Agreement::Withdrawn
    }

    /// The end that the socket with this number is.
    pub(crate) fn end_of(&self, cookie: u64) -> Option<End> {
        if self.connected.load(Ordering::Relaxed) == cookie {
            Some(End::Connecting)
        } else {
            (self.accepted.load(Ordering::Relaxed) == cookie).then_some(End::Accepting)
        }
    }

    /// The same memory, seen from that end.
    pub(crate) fn into_end(mut self, end: End) -> Option<Self> {
        let region = self.region.take()?;
        let (file, size) = (self.file, self.size);
        drop(self);
        crate::table::protect(file, true);
        Self::over(region, file, size, end).ok()
    }

    /// The number of the file, in this process.
    pub(crate) fn file(&self) -> RawFd {
        self.file
    }

    /// Whether everything that went through the kernel has been received.
    #[inline]
    pub(crate) fn receives_here(&self) -> bool {
        self.reader.before().is_some_and(|before| self.from_kernel.load(Ordering::Relaxed) >= before)
    }

    /// Of `count` bytes that the kernel has just given, the program's: what comes after those is doorbells.
    pub(crate) fn of_program(&self, count: usize) -> usize {
        let rest = |before: u64| before.saturating_sub(self.from_kernel.load(Ordering::Relaxed));
        self.reader.before().map_or(count, |before| count.min(usize::try_from(rest(before)).unwrap_or(usize::MAX)))
    }

    /// The program has so many bytes from the kernel before the ends meet. Of two processes that take an offer at once, the first says.
    pub(crate) fn begin_behind(&self, count: u64) {
        let _ = self.from_kernel.compare_exchange(0, count);
    }

    /// The program has so many bytes more from the kernel. By the holder of `receiving`.
    pub(crate) fn count_from_kernel(&self, count: usize) {
        let all = self.from_kernel.load(Ordering::Relaxed).wrapping_add(count as u64);
        self.from_kernel.store(all, Ordering::Relaxed);
    }

    /// Somebody of this end is about to sleep in the kernel, or is awake again. How many sleep then.
    pub(crate) fn sleeper(&self, begins: bool) -> u64 {
        let mut count = self.sleepers.load(Ordering::Relaxed);
        loop {
            let next = if begins { count.wrapping_add(1) } else { count.saturating_sub(1) };
            match self.sleepers.compare_exchange(count, next) {
                Ok(_) => return next,
                Err(other) => count = other,
            }
        }
    }

    /// This end is about to be closed so that the other one hears of an error (`SO_LINGER`).
    pub(crate) fn reset(&self) {
        // Release pairs with the Acquire in `was_reset`.
        self.resets.store(1, Ordering::Release);
    }

    /// Whether an error of the connection is the program's: the other end has reset it, or left what we sent unread. Else it has
    /// left a doorbell unread, of which programs know nothing.
    pub(crate) fn was_reset(&self) -> bool {
        // Acquire pairs with the Release in `reset`.
        self.resets_us.load(Ordering::Acquire) != 0 || self.writer.unread() != Ok(0)
    }

    /// How many processes and threads of this end sleep. One that was killed meanwhile is counted for ever.
    pub(crate) fn sleepers(&self) -> u64 {
        self.sleepers.load(Ordering::Relaxed)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        crate::table::protect(self.file, false);
        // Closes the file too, by way of the program's `close`, which is ours and now knows nothing of it.
        self.region = None;
    }
}

/// The size of the rings and the name of the offer, if the file is memory of this kind. What is there is checked by
/// `Region::map` once more.
fn look(fd: &OwnedFd) -> Option<(usize, Token)> {
    let mut bytes = [0; 40];
    let seals = rustix::fs::fcntl_get_seals(fd.as_fd()).ok()?;
    if !seals.contains(SealFlags::SHRINK) || rustix::io::pread(fd, &mut bytes, 0).ok()? < bytes.len() {
        return None;
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let size = usize::try_from(word(8)).ok()?;
    let is_ours = word(0) == MAGIC && size.is_power_of_two() && crate::config::RINGS.contains(&size);
    is_ours.then(|| (size, [word(24), word(32)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_who_take_an_offer_count_the_same_bytes_once() {
        let offered = Shared::offer(4096, [1, 2], 3).unwrap();
        let file = rustix::io::fcntl_dupfd_cloexec(sys::borrow(offered.file()), 0).unwrap();
        let taken = Shared::open(file, Some([1, 2]), End::Accepting).unwrap();
        taken.begin_behind(7);
        taken.begin_behind(7);
        assert!(taken.take(5) && taken.take(5) && !taken.take(6));
        assert_eq!((taken.from_kernel.load(Ordering::Relaxed), offered.from_kernel.load(Ordering::Relaxed)), (7, 0));
        taken.count_from_kernel(2);
        assert_eq!(taken.from_kernel.load(Ordering::Relaxed), 9);
    }
}
