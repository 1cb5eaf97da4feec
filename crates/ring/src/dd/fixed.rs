//! DD over as many buffers as the ring has descriptors, which a driver has allocated at equal distances: what queues are
//! made of whose software knows nothing of pools.

use super::host::{Frame, HostRx, HostTx, Received};
use millrace_dma::Iova;

/// RX buffers are posted again this many at a time, or a quarter of them where that is less.
const REFILL: u32 = 64;

/// Where the buffers lie.
#[derive(Clone, Copy)]
struct Buffers {
    first: Iova,
    stride: u32,
    mask: u32,
}

impl Buffers {
    #[inline(always)]
    fn iova(&self, number: u32) -> Iova {
        self.first.plus(u64::from(number & self.mask) * u64::from(self.stride))
    }

    /// The buffer that begins at `iova`, if one does.
    #[inline(always)]
    fn number(&self, iova: Iova, guess: u32) -> Option<u32> {
        if iova == self.iova(guess) {
            return Some(guess);
        }
        let offset = iova.get().checked_sub(self.first.get())?;
        let (number, rest) = (offset / u64::from(self.stride), offset % u64::from(self.stride));
        u32::try_from(number).ok().filter(|&number| rest == 0 && number <= self.mask)
    }
}

/// A frame that an RX queue found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Number of its buffer.
    pub buffer: u32,
    /// Its length, not more than a buffer holds.
    pub len: u16,
    /// The rest of what the descriptor says.
    pub received: Received,
}

/// An RX queue over its own buffers.
pub struct FixedRx {
    host: HostRx,
    buffers: Buffers,
    size: u16,
    refill: u32,
    // The software's ring beside the hardware's: which buffer came back in which descriptor.
    places: Box<[u32]>,
    // Buffers that the card has and owes us.
    owed: Box<[bool]>,
    // Frames released whose buffers were not posted again: the next to be posted, as a place from the start.
    returned: u32,
}

impl FixedRx {
    /// Posts all buffers: of `size` bytes each, at `first` and every `stride` bytes behind it.
    ///
    /// `None` when there is no distance between the buffers.
    pub fn new(host: HostRx, first: Iova, stride: u32, size: u16) -> Option<Self> {
        let entries = host.entries();
        let buffers = Buffers { first, stride, mask: entries - 1 };
        let (places, owed) = ((0..entries).collect(), vec![false; entries as usize].into_boxed_slice());
        let refill = REFILL.min(entries / 4).max(1);
        let mut queue = Self { host, buffers, size, refill, places, owed, returned: 0 };
        queue.flush();
        (stride > 0).then_some(queue)
    }

    /// How many frames are there that were not put back. Looks for no more than make `most`.
    #[inline(always)]
    pub fn ready(&mut self, most: u32) -> u32 {
        self.host.ready(most)
    }

    /// Place of the first frame that was not put back.
    #[inline(always)]
    pub fn first(&self) -> u32 {
        self.host.first()
    }

    /// Number of the buffer that the next frame which is not [ready](FixedRx::ready) yet will most likely come in: the one
    /// that was posted with its descriptor.
    #[inline(always)]
    pub fn expected(&self) -> u32 {
        self.places[(self.host.seen() & self.buffers.mask) as usize]
    }

    /// The frame `ahead` of the first, which must be ready. To be asked for once.
    ///
    /// # Errors
    /// The descriptor, when it names no buffer that the card owes us, or more bytes than one holds.
    #[inline(always)]
    pub fn find(&mut self, ahead: u32) -> Result<Found, Received> {
        let received = self.host.received(ahead);
        let place = (self.host.first().wrapping_add(ahead) & self.buffers.mask) as usize;
        let buffer = self.buffers.number(received.iova, self.places[place]).ok_or(received)?;
        if received.len > self.size || !core::mem::take(&mut self.owed[buffer as usize]) {
            return Err(received);
        }
        self.places[place] = buffer;
        Ok(Found { buffer, len: received.len, received })
    }

    /// Puts the first `count` frames back, which were all found. `true` when the card was given their buffers.
    #[inline(always)]
    pub fn put(&mut self, count: u32) -> bool {
        self.host.release(count);
        let far = self.host.room() >= self.refill;
        if far {
            self.flush();
        }
        far
    }

    /// Whether anything has been put back that the card was not given.
    pub fn owes(&self) -> bool {
        self.host.room() > 0
    }

    /// Gives the card the buffers that were put back.
    pub fn flush(&mut self) {
        for _ in 0..self.host.room() {
            let number = self.places[(self.returned & self.buffers.mask) as usize];
            self.host.post(self.buffers.iova(number), self.size, number.into());
            self.owed[number as usize] = true;
            self.returned = self.returned.wrapping_add(1);
        }
        self.host.show_tail();
    }
}

/// A TX queue over its own buffers: frame `i` lies in buffer `i` modulo their number.
pub struct FixedTx {
    host: HostTx,
    buffers: Buffers,
    // Handed out, counted from the start modulo 2^32.
    taken: u32,
}

impl FixedTx {
    /// A queue over buffers at `first` and every `stride` bytes behind it.
    pub fn new(host: HostTx, first: Iova, stride: u32) -> Self {
        let buffers = Buffers { first, stride, mask: host.entries() - 1 };
        Self { host, buffers, taken: 0 }
    }

    #[inline(always)]
    fn unposted(&self) -> u32 {
        self.taken.wrapping_sub(self.host.posted())
    }

    #[inline(always)]
    fn room(&self) -> u32 {
        self.host.room() - self.unposted()
    }

    /// Takes `count` buffers, all or none, and returns the number of the first.
    #[inline(always)]
    pub fn take(&mut self, count: u32) -> Option<u32> {
        if self.room() < count {
            self.host.reclaim();
            if self.room() < count {
                return None;
            }
        }
        let first = self.taken;
        self.taken = first.wrapping_add(count);
        if self.unposted() == count {
            self.host.prepare();
        }
        Some(first)
    }

    /// Gives back what was taken and not posted, as if it had not been taken.
    pub fn untake(&mut self) {
        self.taken = self.host.posted();
    }

    /// Posts the next buffer that was taken, with `len` bytes in it; `false` when none was.
    #[inline(always)]
    pub fn post(&mut self, len: u16) -> bool {
        let iova = self.buffers.iova(self.host.posted());
        self.unposted() > 0 && self.host.post(Frame { iova, len, ..Frame::default() })
    }

    /// Gives everything that was posted to the card.
    #[inline(always)]
    pub fn flush(&mut self) {
        self.host.flush();
    }

    /// Number of the next buffer to be taken.
    pub fn next(&self) -> u32 {
        self.taken
    }

    /// Most buffers that can be taken at once.
    pub fn most(&self) -> u32 {
        self.host.entries()
    }

    /// How many buffers could be taken, after a look at the card.
    pub fn available(&mut self) -> u32 {
        self.host.reclaim();
        self.room()
    }

    /// Frames handed to the card that have not come back, as far as is known without looking.
    pub fn in_flight(&self) -> u32 {
        self.host.in_flight()
    }
}
