//! Rings of fixed buffers: packet `i` of a queue always lies in buffer `i mod n`. What a driver allocates, as opposed to
//! buffers that an application brings along.

use super::host::{HostRx, HostTx};
use super::layout::{RxHeader, upper_of};
use millrace_dma::Iova;

/// RX descriptors are posted again this many at a time (§3.2.4), or a quarter of the buffers or headers where that is
/// less.
pub const REFILL: u32 = 64;

/// An RX queue over fixed buffers.
pub struct FixedRx {
    host: HostRx,
    buffers: Box<[Iova]>,
    size: u16,
    refill: u32,
    // Packets counted from the start, modulo 2^32: given back by the reader, and posted (again) to the card.
    returned: u32,
    posted: u32,
    // Packets given back since the doorbell moved.
    owed: u32,
}

impl FixedRx {
    /// Posts the buffers (a power of two of them) and moves the doorbell. `first` is the buffer to begin with.
    ///
    /// `None` when the number of buffers is no power of two, or the ring has no room for a buffer and its upper address.
    pub fn new(host: HostRx, buffers: Box<[Iova]>, size: u16, first: u32) -> Option<Self> {
        let count = u32::try_from(buffers.len()).ok().filter(|count| count.is_power_of_two())?;
        if host.entries() < 4 {
            return None;
        }
        // Headers are released together with the descriptors: waiting for more than there are would be for ever.
        let refill = REFILL.min(count / 4).min(host.header_entries() / 4).max(1);
        let mut queue = Self { host, buffers, size, refill, returned: first, posted: first, owed: 0 };
        queue.post_all();
        queue.host.flush();
        Some(queue)
    }

    fn count(&self) -> u32 {
        self.buffers.len() as u32
    }

    fn post_all(&mut self) {
        // Never further than one whole ring of buffers ahead of the reader.
        while self.posted.wrapping_sub(self.returned) < self.count() {
            let iova = self.buffers[(self.posted & (self.count() - 1)) as usize];
            if !self.host.post(iova, self.size) {
                break;
            }
            self.posted = self.posted.wrapping_add(1);
        }
    }

    /// How many packets wait. Never more than buffers were posted, whatever the card says.
    #[inline(always)]
    pub fn ready(&mut self) -> u32 {
        self.host.ready().min(self.posted.wrapping_sub(self.returned))
    }

    /// Number of the first packet that was not given back; its buffer is this modulo the number of buffers.
    #[inline(always)]
    pub fn first(&self) -> u32 {
        self.returned
    }

    /// Header of the packet `ahead` of the first.
    #[inline(always)]
    pub fn header(&self, ahead: u32) -> RxHeader {
        self.host.header(ahead)
    }

    /// Gives the first `count` packets back. `true` when that moved the doorbell.
    #[inline(always)]
    pub fn put(&mut self, count: u32) -> bool {
        self.host.release(count);
        self.returned = self.returned.wrapping_add(count);
        self.owed = self.owed.wrapping_add(count);
        let waiting = self.count().wrapping_sub(self.posted.wrapping_sub(self.returned));
        if waiting < self.refill {
            return false;
        }
        self.flush();
        true
    }

    /// Whether anything has been given back that the card does not know of.
    pub fn owes(&self) -> bool {
        self.owed > 0
    }

    /// Posts what has been given back, without waiting for a whole batch.
    pub fn flush(&mut self) {
        self.post_all();
        self.host.flush();
        self.owed = 0;
    }
}

/// A TX queue over fixed buffers.
pub struct FixedTx {
    host: HostTx,
    buffers: Box<[Iova]>,
    // Packets counted from the start, modulo 2^32: handed out, posted, and sent by the card.
    taken: u32,
    posted: u32,
    sent: u32,
    // Most packets in flight for which the ring has descriptors whatever the addresses are.
    limit: u32,
}

impl FixedTx {
    /// A queue that begins with buffer `first`. `None` when the number of buffers is no power of two, or the ring has no
    /// room for all the changes of the upper address among them.
    pub fn new(host: HostTx, buffers: Box<[Iova]>, first: u32) -> Option<Self> {
        let count = u32::try_from(buffers.len()).ok().filter(|count| count.is_power_of_two())?;
        let previous = buffers.iter().cycle().skip(buffers.len() - 1);
        let changes = buffers.iter().zip(previous).filter(|(b, a)| upper_of(**a) != upper_of(**b)).count() as u32;
        // One entry stays empty, one sets the upper address for the first time.
        let limit = host.entries().checked_sub(2 + changes).filter(|&limit| limit > 0)?.min(count);
        Some(Self { host, buffers, taken: first, posted: first, sent: first, limit })
    }

    fn count(&self) -> u32 {
        self.buffers.len() as u32
    }

    #[inline(always)]
    fn room(&self) -> u32 {
        self.limit - self.taken.wrapping_sub(self.sent)
    }

    /// Takes `count` buffers, all or none, and returns the number of the first.
    #[inline(always)]
    pub fn take(&mut self, count: u32) -> Option<u32> {
        if self.room() < count {
            self.reclaim();
            if self.room() < count {
                return None;
            }
        }
        let first = self.taken;
        self.taken = first.wrapping_add(count);
        Some(first)
    }

    /// Gives back what was taken and not posted, as if it had not been taken.
    pub fn untake(&mut self) {
        self.taken = self.posted;
    }

    /// Posts the next buffer that was taken, with `len` bytes in it; `false` when the ring is full.
    #[inline(always)]
    pub fn post(&mut self, len: u16) -> bool {
        let iova = self.buffers[(self.posted & (self.count() - 1)) as usize];
        let posted = self.host.post(iova, len);
        self.posted = self.posted.wrapping_add(u32::from(posted));
        posted
    }

    /// Posts the next buffers that were taken, with these lengths.
    #[inline(always)]
    pub fn post_all(&mut self, lengths: impl ExactSizeIterator<Item = u16> + Clone) {
        let mut done = 0;
        // As many as were taken, so the ring has room for them.
        let count = lengths.len().min(self.taken.wrapping_sub(self.posted) as usize);
        while done < count {
            let (mask, posted, buffers) = (self.count() - 1, self.posted, &self.buffers);
            let iovas = (0u32..).map(|i| buffers[(posted.wrapping_add(i) & mask) as usize]);
            let run = self.host.post_run(iovas.zip(lengths.clone().skip(done).take(count - done)));
            self.posted = self.posted.wrapping_add(run);
            done += run as usize;
            if done < count {
                // The upper address changes here: one packet with all that belongs to it.
                let Some(len) = lengths.clone().nth(done) else { return };
                if !self.post(len) {
                    return;
                }
                done += 1;
            }
        }
    }

    /// Moves the doorbell.
    #[inline(always)]
    pub fn flush(&mut self) {
        self.host.flush();
    }

    /// Looks which buffers the card is done with.
    #[inline(always)]
    pub fn reclaim(&mut self) {
        self.sent = self.sent.wrapping_add(self.host.completed());
    }

    /// Packets handed to the card that it has not sent, as far as is known without looking.
    pub fn in_flight(&self) -> u32 {
        self.posted.wrapping_sub(self.sent)
    }

    /// Number of the next buffer to be taken: where the next owner of the queue goes on.
    pub fn next(&self) -> u32 {
        self.taken
    }

    /// Most buffers that can be taken at once.
    pub fn most(&self) -> u32 {
        self.limit
    }

    /// How many buffers could be taken, after a look at the card.
    pub fn available(&mut self) -> u32 {
        self.reclaim();
        self.room()
    }
}
