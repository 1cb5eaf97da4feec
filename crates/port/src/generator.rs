//! `generator`: a wire on which structured frames come in, for tests and measurements without a sender.
//!
//! Frame `n` is [`structured::fill`] with sequence number `n`, so the receiver finds loss, repetition, reordering and
//! damage with [`structured::Checker`]. Frames that the card sends are fetched and forgotten, as with `null`.

use crate::{
    Accept, PortCounters, PortQueue, Sink, TxOutcome, null::Void, pacing::Stopwatch, spec::GeneratorSpec, spec::Rate,
};
use millrace_dma::Span;
use millrace_packet::structured::{self, Sequence};
use std::{ops::Range, sync::Arc, time::Instant};

/// Frames that are offered together, if they are short. Long ones come one at a time from the same few lines, which stay
/// in the nearest cache.
const BURST: usize = 64;
const SHORT: usize = 128;

/// A source of structured frames that waits for whoever takes them.
pub struct GeneratorPort {
    /// Room for a burst of frames, one after the other; frame `n` has place `n` modulo their number.
    frames: Box<[u8]>,
    size: usize,
    places: usize,
    /// The frame to be offered next.
    next: Sequence,
    /// Frames from `next` on that lie there already, because the card was full when they were offered.
    filled: usize,
    count: Option<u64>,
    rate: Option<Rate>,
    watch: Stopwatch,
    /// Nanoseconds that the schedule has been moved because the card was full.
    delay_ns: u64,
    wire: Void,
    counters: Arc<PortCounters>,
}

impl GeneratorPort {
    /// A generator that starts with its first call to [`PortQueue::receive`].
    ///
    /// # Panics
    /// When `spec.size` is longer than [`MAX_FRAME_LEN`](crate::MAX_FRAME_LEN); a parsed one never is.
    pub fn new(spec: &GeneratorSpec) -> Self {
        assert!(spec.size <= crate::MAX_FRAME_LEN, "a frame of {} bytes", spec.size);
        let places = if spec.size <= SHORT { BURST } else { 1 };
        Self {
            frames: vec![0; places * spec.size].into(),
            size: spec.size,
            places,
            next: Sequence::ZERO,
            filled: 0,
            count: spec.count,
            rate: spec.rate,
            watch: Stopwatch::new(),
            delay_ns: 0,
            wire: Void::new(),
            counters: Arc::default(),
        }
    }

    fn left(&self) -> u64 {
        self.count.map_or(u64::MAX, |count| count.saturating_sub(self.next.number()))
    }

    /// When the frame `ahead` of the next is due.
    fn due_ns(&self, rate: Rate, ahead: u64) -> u64 {
        rate.due_ns(self.next.number() + ahead).saturating_add(self.delay_ns)
    }

    /// How many of the next `most` frames are due now.
    fn due(&self, most: usize, now: u64) -> usize {
        let Some(rate) = self.rate else { return most };
        (0..most as u64).take_while(|&ahead| self.due_ns(rate, ahead) <= now).count()
    }

    /// Bytes of the frame `ahead` of the next.
    fn place(&self, ahead: usize) -> Range<usize> {
        let place = (self.next.number() % self.places as u64) as usize + ahead;
        let first = place % self.places * self.size;
        first..first + self.size
    }

    /// Offers the next `count` frames, and returns how many of them were taken.
    fn offer(&mut self, count: usize, sink: &mut dyn Sink) -> usize {
        for ahead in self.filled..count {
            let (place, sequence) = (self.place(ahead), self.next.offset(ahead as i64));
            structured::fill(&mut self.frames[place], sequence);
        }
        self.filled = self.filled.max(count);
        if count == 1 {
            let frame = Span::from_slice(&self.frames[self.place(0)]);
            return self.pass(usize::from(sink.take(frame) == Accept::Taken));
        }
        let mut burst = [Span::EMPTY; BURST];
        for (ahead, span) in burst[..count].iter_mut().enumerate() {
            *span = Span::from_slice(&self.frames[self.place(ahead)]);
        }
        let taken = sink.take_burst(&burst[..count]);
        self.pass(taken)
    }

    fn pass(&mut self, taken: usize) -> usize {
        self.filled -= taken;
        self.next = self.next.offset(taken as i64);
        taken
    }
}

impl PortQueue for GeneratorPort {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        self.wire.transmit(frame, &self.counters)
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let now = match self.rate {
            Some(_) => self.watch.elapsed_ns(),
            None => 0,
        };
        let allowed = usize::try_from(self.left()).unwrap_or(usize::MAX).min(budget);
        let mut taken = 0;
        loop {
            let count = self.due(self.places.min(allowed - taken), now);
            let accepted = if count > 0 { self.offer(count, sink) } else { 0 };
            taken += accepted;
            if accepted < count {
                // A frame that was held back moves all that follow it: a rate is no promise to catch up in a burst.
                if let Some(rate) = self.rate {
                    self.delay_ns += now.saturating_sub(self.due_ns(rate, 0));
                }
                break;
            }
            if count == 0 {
                break;
            }
        }
        if taken > 0 {
            self.counters.count_rx(taken as u64, (taken * self.size) as u64);
        }
        taken
    }

    fn can_wait(&self) -> bool {
        true
    }

    fn next_due(&self) -> Option<Instant> {
        if self.left() == 0 {
            return None;
        }
        // Without a rate nothing starts the watch, so it says "now".
        Some(self.watch.at(self.rate.map_or(0, |rate| self.due_ns(rate, 0))))
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_packet::structured::{Checker, Stamping};
    use std::time::Duration;

    fn generator(spec: &str) -> GeneratorPort {
        match format!("generator:{spec}").parse().unwrap() {
            crate::PortSpec::Generator(spec) => GeneratorPort::new(&spec),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn all_frames_come_once_and_in_order_even_if_the_card_is_often_full() {
        let mut port = generator("size=100,count=1000");
        let mut checker = Checker::new(Stamping::Off);
        let mut bytes = [0; 100];
        let mut calls = 0;
        while port.next_due().is_some() {
            port.receive(7, &mut |frame: Span<'_>| {
                calls += 1;
                if calls % 3 == 0 {
                    return Accept::Full;
                }
                assert_eq!(frame.len(), 100);
                frame.read_into(&mut bytes);
                let _ = checker.check(&bytes);
                Accept::Taken
            });
        }
        let found = checker.finish(Sequence::new(1000));
        assert!(found.is_clean(), "{found:?}");
        assert_eq!(found.in_order, 1000);
        assert_eq!((port.counters().rx_frames(), port.counters().rx_bytes()), (1000, 100_000));
        assert_eq!(port.counters().rx_offered(), 1000);
        assert_eq!(port.receive(7, &mut |_: Span<'_>| panic!("one too many")), 0);
    }

    #[test]
    fn a_rate_holds_frames_back_until_they_are_due() {
        let mut port = generator("rate=4,count=2");
        let take = |port: &mut GeneratorPort| port.receive(32, &mut |_: Span<'_>| Accept::Taken);
        assert!(port.next_due().unwrap() <= Instant::now());
        let before = Instant::now();
        assert_eq!(take(&mut port), 1);
        let due = port.next_due().unwrap();
        assert!(due >= before + Duration::from_millis(250));
        while port.next_due().is_some() {
            if take(&mut port) > 0 {
                assert!(Instant::now() >= due);
            }
        }
        assert_eq!(port.counters().rx_frames(), 2);
    }

    #[test]
    fn a_rate_does_not_catch_up_after_the_card_was_full() {
        let mut port = generator("rate=1000");
        assert_eq!(port.receive(1, &mut |_: Span<'_>| Accept::Taken), 1);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(port.receive(32, &mut |_: Span<'_>| Accept::Full), 0);
        // 30 ms after the first frame the second is due now, and not 29 ms ago.
        assert!(port.delay_ns >= 29_000_000, "{}", port.delay_ns);
        assert_eq!(port.next_due(), Some(port.watch.at(1_000_000 + port.delay_ns)));
    }

    #[test]
    fn frames_towards_the_wire_are_counted() {
        let mut port = generator("");
        assert_eq!(port.transmit(Span::from_slice(&[0; 60])), TxOutcome::Sent);
        assert_eq!((port.counters().tx_frames(), port.counters().tx_bytes()), (1, 60));
    }
}
