//! Letting frames in, and counting them: the data path of the receiving half.

use super::port_queues::{Drops, PortQueueCounts};
use super::rules::{FCS, Refusal, Rules, Traits};
use crate::published::{Published, Tally};
use millrace_dma::Span;
use millrace_port::DropReason;
use millrace_ring::Accept;

/// Sizes with FCS that are counted apart (§2.4): under 64, 64, 65-127, 128-255, 256-511, 512-1023, 1024-1518,
/// 1519-2047, 2048-4095, 4096-8191, 8192 and more.
pub(super) const SIZES: usize = 11;

// Places of the counters in their block, behind the sizes.
const OCTETS: usize = SIZES;
const BROADCAST: usize = SIZES + 1;
const MULTICAST: usize = SIZES + 2;
const UNDER_MIN: usize = SIZES + 3;
const OVER_MAX: usize = SIZES + 4;
const DROPPED_OCTETS: usize = SIZES + 5;
const OVERFLOW: usize = SIZES + 6;
const LINK_DOWN: usize = SIZES + 7;
const LOOPED: usize = SIZES + 8;
const REFUSED: usize = SIZES + 9; // By `Refusal`.
pub(super) const WORDS: usize = REFUSED + 4;

/// Which of the sizes a length with FCS is.
#[inline(always)]
pub(super) fn size_of(length: usize) -> usize {
    // By the number of bits of the length: the first size that it can be, and the length above which it is the next.
    const FIRST: [u8; 15] = [0, 0, 0, 0, 0, 0, 0, 1, 3, 4, 5, 6, 8, 9, 10];
    const ABOVE: [usize; 15] = {
        let mut above = [usize::MAX; 15];
        (above[7], above[11]) = (64, 1518);
        above
    };
    let bits = ((usize::BITS - length.leading_zeros()) as usize).min(14);
    usize::from(FIRST[bits]) + usize::from(length > ABOVE[bits])
}

/// The lowest bit of the first byte on the wire tells addresses of groups.
#[inline(always)]
fn is_to_group(frame: &Span<'_>) -> bool {
    frame.first_u32().unwrap_or(0) & 1 != 0
}

/// The worker's side of a receiving half.
pub(crate) struct Receiver {
    tally: Tally<WORDS>,
}

impl Receiver {
    pub fn new() -> Self {
        Self { tally: Tally::new() }
    }

    /// Lets a frame in by giving it to `queue`, or drops it, and counts what became of it. A frame for which the queue
    /// has no room was not received yet if its source waits, and is an overflow otherwise.
    #[inline(always)]
    pub fn admit(
        &mut self,
        rules: &Rules,
        frame: Span<'_>,
        source_waits: bool,
        queue: impl FnOnce(Span<'_>) -> Accept,
    ) -> Accept {
        self.admit_as(rules, frame, frame.len(), source_waits, queue)
    }

    /// As [`Receiver::admit`], for a frame that is still to be cut into segments of at most `longest` bytes: the bounds
    /// of lengths are for what goes over a wire.
    #[inline(always)]
    pub fn admit_as(
        &mut self,
        rules: &Rules,
        frame: Span<'_>,
        longest: usize,
        source_waits: bool,
        queue: impl FnOnce(Span<'_>) -> Accept,
    ) -> Accept {
        let len = frame.len();
        let mut traits = None;
        if !rules.is_easy(longest) | is_to_group(&frame) {
            let (refusal, found) = rules.judge(frame, longest);
            if let Some(refusal) = refusal {
                self.refuse(len, refusal, found);
                return Accept::Taken;
            }
            traits = Some(found);
        }
        let verdict = queue(frame);
        if verdict == Accept::Taken {
            self.count(len);
            if let Some(traits) = traits {
                self.note(traits);
            }
        } else if !source_waits {
            self.overflow(len, traits);
        }
        verdict
    }

    /// Lets frames in from the front, as [`Receiver::admit`] does one by one, and returns how many; fewer than there are
    /// means that `queue` has no room for the next. `queue` takes frames from the front and returns how many.
    #[inline(always)]
    pub fn admit_burst(
        &mut self,
        rules: &Rules,
        frames: &[Span<'_>],
        source_waits: bool,
        mut queue: impl FnMut(&[Span<'_>]) -> usize,
    ) -> usize {
        let mut done = 0;
        while let Some(&next) = frames.get(done) {
            let rest = &frames[done..];
            let easy = rest.iter().take_while(|frame| rules.is_easy(frame.len()) && !is_to_group(frame)).count();
            if easy == 0 {
                let taken = |frame: Span<'_>| if queue(&[frame]) == 1 { Accept::Taken } else { Accept::Full };
                if self.admit(rules, next, source_waits, taken) == Accept::Full {
                    if !source_waits {
                        self.overrun(&rest[1..]);
                    }
                    return done;
                }
                done += 1;
                continue;
            }
            let taken = queue(&rest[..easy]);
            rest[..taken].iter().for_each(|frame| self.count(frame.len()));
            done += taken;
            if taken < easy {
                if !source_waits {
                    self.overrun(&frames[done..]);
                }
                return done;
            }
        }
        done
    }

    #[inline(always)]
    fn count(&mut self, len: usize) {
        self.tally.add(size_of(len + FCS as usize), 1);
        self.tally.add(OCTETS, len as u64);
    }

    #[inline(never)]
    fn note(&mut self, traits: Traits) {
        let Traits { broadcast, multicast, under_min, over_max } = traits;
        for (has, place) in
            [(broadcast, BROADCAST), (multicast, MULTICAST), (under_min, UNDER_MIN), (over_max, OVER_MAX)]
        {
            if has {
                self.tally.add(place, 1);
            }
        }
    }

    #[inline(never)]
    fn refuse(&mut self, len: usize, refusal: Refusal, mut traits: Traits) {
        // Only good frames count as broadcast or multicast (RFC 2819, etherStatsBroadcastPkts).
        if matches!(refusal, Refusal::TooShort | Refusal::TooLong) {
            (traits.broadcast, traits.multicast) = (false, false);
        }
        self.count(len);
        self.note(traits);
        self.tally.add(REFUSED + refusal as usize, 1);
        self.tally.add(DROPPED_OCTETS, len as u64);
    }

    #[cold]
    fn overflow(&mut self, len: usize, traits: Option<Traits>) {
        self.count(len);
        self.note(traits.unwrap_or_default());
        self.tally.add(OVERFLOW, 1);
        self.tally.add(DROPPED_OCTETS, len as u64);
    }

    /// A frame came over a wire that the PMA does not listen to: its own loopback is on, or the link is down.
    #[cold]
    pub fn ignore(&mut self, rules: &Rules) {
        self.tally.add(if rules.link_up { LOOPED } else { LINK_DOWN }, 1);
    }

    /// Frames of a source that does not wait, for which the queue has no room; nobody looks at them any more.
    #[cold]
    pub fn overrun(&mut self, frames: &[Span<'_>]) {
        frames.iter().for_each(|frame| self.overflow(frame.len(), None));
    }

    #[inline(always)]
    pub fn publish(&mut self, to: &Published<WORDS>) {
        self.tally.publish(to);
    }
}

/// What came in, over all lanes of a port and with what its wires have dropped before anybody saw it, since the card
/// started or the counters were reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    words: [u64; WORDS],
    port_queues: Drops,
}

impl Default for Received {
    fn default() -> Self {
        Self { words: [0; WORDS], port_queues: Drops::default() }
    }
}

impl Received {
    pub(super) fn sum(lanes: impl Iterator<Item = [u64; WORDS]>, port_queues: &PortQueueCounts) -> Self {
        let words = lanes.fold([0; WORDS], |sum, lane| core::array::from_fn(|at| sum[at] + lane[at]));
        Self { words, port_queues: port_queues.rx_drops }
    }

    pub(super) fn minus(&self, zero: &Self) -> Self {
        let words = core::array::from_fn(|at| self.words[at].wrapping_sub(zero.words[at]));
        Self { words, port_queues: self.port_queues.minus(&zero.port_queues) }
    }

    fn port(&self, reason: DropReason) -> u64 {
        self.port_queues.of(reason)
    }

    fn refused(&self, refusal: Refusal) -> u64 {
        self.words[REFUSED + refusal as usize]
    }

    // Frames whose bytes were seen here.
    fn seen(&self) -> u64 {
        self.words[..SIZES].iter().sum()
    }

    /// What the port could not read to the end, or not finish, is a fragment with a wrong CRC; of its length nothing is
    /// known.
    pub fn fragments(&self) -> u64 {
        [DropReason::Truncated, DropReason::Damaged, DropReason::Offload].map(|reason| self.port(reason)).iter().sum()
    }

    /// The port failed to read: something was wrong with the medium.
    pub fn mii_errors(&self) -> u64 {
        self.port(DropReason::ReadFailed)
    }

    pub fn length_errors(&self) -> u64 {
        let by_rule = self.refused(Refusal::TooShort) + self.refused(Refusal::TooLong);
        by_rule + self.port(DropReason::TooShort) + self.port(DropReason::TooLong)
    }

    pub fn errors(&self) -> u64 {
        self.fragments() + self.mii_errors() + self.length_errors()
    }

    pub fn filtered(&self) -> u64 {
        self.refused(Refusal::Filtered)
    }

    pub fn disabled(&self) -> u64 {
        self.refused(Refusal::Disabled)
    }

    pub fn overflowed(&self) -> u64 {
        self.words[OVERFLOW]
    }

    pub fn dropped(&self) -> u64 {
        self.errors() + self.filtered() + self.disabled() + self.overflowed()
    }

    pub fn total(&self) -> u64 {
        self.sizes().iter().sum()
    }

    /// Frames that were let in.
    pub fn passed(&self) -> u64 {
        self.total() - self.dropped()
    }

    /// Bytes of the frames that were let in, without FCS.
    pub fn passed_bytes(&self) -> u64 {
        self.words[OCTETS] - self.words[DROPPED_OCTETS]
    }

    /// Bytes of all frames with FCS, as far as their length is known.
    pub fn octets(&self) -> u64 {
        self.words[OCTETS] + u64::from(FCS) * self.seen()
    }

    pub fn passed_octets(&self) -> u64 {
        self.passed_bytes() + u64::from(FCS) * self.passed()
    }

    pub fn broadcast(&self) -> u64 {
        self.words[BROADCAST]
    }

    pub fn multicast(&self) -> u64 {
        self.words[MULTICAST]
    }

    pub fn under_min(&self) -> u64 {
        self.words[UNDER_MIN] + self.port(DropReason::TooShort)
    }

    pub fn over_max(&self) -> u64 {
        self.words[OVER_MAX] + self.port(DropReason::TooLong)
    }

    /// All frames by size; fragments are under 64 bytes.
    pub fn sizes(&self) -> [u64; SIZES] {
        let mut sizes = [0; SIZES];
        sizes.copy_from_slice(&self.words[..SIZES]);
        sizes[0] += self.fragments() + self.mii_errors() + self.port(DropReason::TooShort);
        sizes[SIZES - 1] += self.port(DropReason::TooLong);
        sizes
    }

    /// Every frame of the wire that was not let in, by name. Those that never came to the MAC are among them.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let by_port = DropReason::ALL.into_iter().map(|reason| {
            let count = self.port(reason);
            let count = match reason {
                // The port has counted as well what the queue had no room for.
                DropReason::NoRoom => self.overflowed(),
                DropReason::TooLong => count + self.refused(Refusal::TooLong),
                DropReason::TooShort => count + self.refused(Refusal::TooShort),
                DropReason::LinkDown => count + self.words[LINK_DOWN],
                _ => count,
            };
            (reason.name(), count)
        });
        let by_mac =
            [("disabled", self.disabled()), ("filtered", self.filtered()), ("pma-loopback", self.words[LOOPED])];
        by_port.chain(by_mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_begin_and_end_where_the_registers_say() {
        let edges = [
            (0, 63),
            (64, 64),
            (65, 127),
            (128, 255),
            (256, 511),
            (512, 1023),
            (1024, 1518),
            (1519, 2047),
            (2048, 4095),
            (4096, 8191),
            (8192, 100_000),
        ];
        for (size, (first, last)) in edges.into_iter().enumerate() {
            for length in first..=last {
                assert_eq!(size_of(length), size, "{length}");
            }
        }
        assert_eq!(size_of(usize::MAX), SIZES - 1);
    }

    proptest! {
        #[test]
        fn a_burst_is_as_its_frames_one_by_one(
            lens in prop::collection::vec(prop_oneof![9 => 60..1515usize, 1 => 0..3000usize], 0..70),
            groups: u64,
            room in 0..90usize,
            waits: bool,
            // Enabled, promiscuous, link up; or anything.
            flags in prop_oneof![3 => Just(0b111u64), 1 => 0..256u64],
        ) {
            let mut rules = [0; super::super::rules::WORDS];
            rules[..2].copy_from_slice(&[flags, 1518 << 32 | 64]);
            let rules = Rules::decode(&rules);
            let frames: Vec<Vec<u8>> = lens.iter().zip(0..).map(|(&len, at)| vec![(groups >> (at % 64)) as u8 & 1; len]).collect();
            let spans: Vec<Span<'_>> = frames.iter().map(|bytes| Span::from_slice(bytes)).collect();

            let (mut one, mut left, mut taken) = (Receiver::new(), room, 0);
            for &span in &spans {
                let queue = |_: Span<'_>| if left > 0 { left -= 1; Accept::Taken } else { Accept::Full };
                if one.admit(&rules, span, waits, queue) == Accept::Full {
                    if !waits {
                        one.overrun(&spans[taken + 1..]);
                    }
                    break;
                }
                taken += 1;
            }
            let (mut many, mut left) = (Receiver::new(), room);
            let queue = |frames: &[Span<'_>]| {
                let count = frames.len().min(left);
                left -= count;
                count
            };
            prop_assert_eq!(many.admit_burst(&rules, &spans, waits, queue), taken);
            prop_assert_eq!(many.tally.words(), one.tally.words());
        }
    }
}
