//! What a worker counts for one queue, readable from anywhere without stopping it.

use crate::published::Published;

/// Why a frame did not pass a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum QueueDrop {
    /// RX: the ring had no room and the queue was started to discard.
    NoRoom,
    /// RX: longer than the buffer posted for it; TX: longer than the card sends.
    TooLong,
    /// TX: shorter than the card sends.
    TooShort,
    /// RX: the queue was not running.
    Stopped,
    /// RX: the queue was stopped by a fault, or the fault struck with this frame.
    Faulted,
    /// TX: loopback without an RX queue of this index: it leads nowhere.
    NoRxQueue,
    /// DD TX: a launch time further ahead than the card waits.
    LaunchTooFar,
    /// DD TX: later behind its launch time than the queue sends.
    LaunchTooLate,
    /// TX: longer than any window of its class in the schedule of the port.
    NoWindow,
}

impl QueueDrop {
    /// All reasons, in the order in which they are printed.
    pub const ALL: [QueueDrop; 9] = [
        QueueDrop::NoRoom,
        QueueDrop::TooLong,
        QueueDrop::TooShort,
        QueueDrop::Stopped,
        QueueDrop::Faulted,
        QueueDrop::NoRxQueue,
        QueueDrop::LaunchTooFar,
        QueueDrop::LaunchTooLate,
        QueueDrop::NoWindow,
    ];

    /// The name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            QueueDrop::NoRoom => "no-room",
            QueueDrop::TooLong => "too-long",
            QueueDrop::TooShort => "too-short",
            QueueDrop::Stopped => "queue-stopped",
            QueueDrop::Faulted => "queue-faulted",
            QueueDrop::NoRxQueue => "no-rx-queue",
            QueueDrop::LaunchTooFar => "launch-too-far",
            QueueDrop::LaunchTooLate => "launch-too-late",
            QueueDrop::NoWindow => "no-window",
        }
    }
}

const DROPS: usize = QueueDrop::ALL.len();

/// Counts of one queue. A plain value: the worker's own copy, and what a reader gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub passed: u64,
    pub passed_bytes: u64,
    pub dropped_bytes: u64,
    /// Copies of frames: RX between the port queue and the queue's memory, TX between the queue's memory and the port
    /// queue. What the kernel does is not among them.
    pub copies: u64,
    pub drops: [u64; DROPS],
    pub iotlb_hits: u64,
    pub iotlb_misses: u64,
    pub iotlb_faults: u64,
    /// HDP or HW, and HHP: the pointers as registers show them.
    pub pointers: [u32; 2],
}

impl Counts {
    #[inline(always)]
    pub fn drop_frame(&mut self, reason: QueueDrop, bytes: usize) {
        self.drops[reason as usize] += 1;
        self.dropped_bytes += bytes as u64;
    }

    /// What was counted elsewhere before; not the pointers.
    pub fn add(&mut self, before: &Self) {
        let (now, more, pointers) = (self.to_words(), before.to_words(), self.pointers);
        let mut sum = now;
        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        *self = Self { pointers, ..Self::from_words(sum) };
    }

    /// As words, for another card.
    pub fn save(self) -> Vec<u64> {
        self.to_words().to_vec()
    }

    /// From the words of another card, which may know fewer or more of them.
    pub fn restore(words: &[u64]) -> Self {
        let mut all = [0; WORDS];
        all.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
        Self::from_words(all)
    }

    pub fn dropped(&self) -> u64 {
        self.drops.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    fn to_words(self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[..7].copy_from_slice(&[
            self.passed,
            self.passed_bytes,
            self.dropped_bytes,
            self.iotlb_hits,
            self.iotlb_misses,
            self.iotlb_faults,
            self.copies,
        ]);
        words[7] = u64::from(self.pointers[0]) | u64::from(self.pointers[1]) << 32;
        words[8..].copy_from_slice(&self.drops);
        words
    }

    fn from_words(words: [u64; WORDS]) -> Self {
        let mut drops = [0; DROPS];
        drops.copy_from_slice(&words[8..]);
        Self {
            passed: words[0],
            passed_bytes: words[1],
            dropped_bytes: words[2],
            iotlb_hits: words[3],
            iotlb_misses: words[4],
            iotlb_faults: words[5],
            copies: words[6],
            pointers: [words[7] as u32, (words[7] >> 32) as u32],
            drops,
        }
    }
}

const WORDS: usize = 8 + DROPS;

/// The counts of a queue, published by the worker that serves it.
#[derive(Default)]
pub(crate) struct SharedCounts(Published<WORDS>);

impl SharedCounts {
    /// Publishes; for the worker that owns the queue only.
    #[inline]
    pub fn publish(&self, counts: &Counts) {
        self.0.publish(&counts.to_words());
    }

    /// All counts of one moment.
    pub fn read(&self) -> Counts {
        Counts::from_words(self.0.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_survive_their_words() {
        let mut counts = Counts { passed: 1, passed_bytes: 2, dropped_bytes: 3, copies: 4, ..Counts::default() };
        counts.pointers = [7, 9];
        counts.drops = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(Counts::from_words(counts.to_words()), counts);
        assert_eq!(counts.dropped(), 45);
    }
}
