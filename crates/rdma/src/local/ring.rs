//! A ring of packets from one process to another. The sender writes payload, then the line with the headers, whose first word
//! comes last; the receiver says up to where it has taken both.
//!
//! Payload stands in lines of 64 bytes behind one another, and never around the end of the ring: both sides leave out the
//! same lines there. Up to eight bytes stand in the headers themselves.

use super::layout::{HEADERS, LINE, MOST_PAYLOAD, PAYLOADS, Side};
use super::line::{self, Malformed, Words};
use crate::wire::Headers;
use millrace_dma::{Ordering, OutOfRange, Slots64, Window, Word64, fence};

/// Where a packet of `len` bytes has its payload, if `at` lines were used before it: first line, and lines used behind it.
#[inline]
fn payload_at(at: u32, len: usize) -> (u32, u32) {
    if len <= 8 {
        return (at, at);
    }
    let lines = len.div_ceil(64) as u32;
    let left = PAYLOADS - at % PAYLOADS;
    let first = if lines > left { at.wrapping_add(left) } else { at };
    (first, first.wrapping_add(lines))
}

/// What a line says first: its number in the ring, so that no older one is taken for it, and bytes of payload.
#[inline]
fn stamp(number: u32, len: usize) -> u64 {
    u64::from(number.wrapping_add(1)) | (len as u64) << 32
}

/// Whether there was room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The packet is in the ring.
    Sent,
    /// There is none now.
    None,
    /// Such a packet does not go this way.
    Never,
}

/// The sender's side.
pub struct Sender {
    headers: Slots64,
    payload: Window,
    taken: Word64,
    asleep: Word64,
    /// Lines written, of headers and of payload.
    written: u32,
    used: u32,
    /// Up to where the receiver has taken, as we know it.
    free: (u32, u32),
}

impl Sender {
    /// Of an empty ring, whose sender is `side`.
    ///
    /// # Errors
    /// The window is shorter than a channel.
    pub fn new(window: &Window, side: Side) -> Result<Self, OutOfRange> {
        Ok(Self {
            headers: window.slots64(side.headers(), HEADERS * LINE)?,
            payload: window.part(side.payload(), PAYLOADS as usize * 64)?,
            taken: window.word64(side.other().taken())?,
            asleep: window.word64(side.other().asleep())?,
            written: 0,
            used: 0,
            free: (0, 0),
        })
    }

    /// Whether a packet of `len` bytes has room.
    #[inline]
    pub fn has_room(&mut self, len: usize) -> Room {
        if len > MOST_PAYLOAD {
            return Room::Never;
        }
        if self.fits(len) {
            return Room::Sent;
        }
        // Acquire pairs with the Release in `Receiver::take`: what is overwritten was read before.
        let taken = self.taken.load(Ordering::Acquire);
        self.free = (taken as u32, (taken >> 32) as u32);
        if self.fits(len) { Room::Sent } else { Room::None }
    }

    /// A receiver that says nonsense gets nothing: then neither difference is one that there may be.
    fn fits(&self, len: usize) -> bool {
        let (_, end) = payload_at(self.used, len);
        self.written.wrapping_sub(self.free.0) < HEADERS && end.wrapping_sub(self.free.1) <= PAYLOADS
    }

    /// Adds a packet, for which [`Sender::has_room`] has found some, between two of the GIDs of both ends.
    #[inline]
    pub fn send(&mut self, headers: &Headers, gids: (u8, u8), payload: &[u8]) -> Room {
        let Some(words) = line::write(headers, gids) else { return Room::Never };
        if !self.fits(payload.len()) {
            return Room::None;
        }
        let (first, end) = payload_at(self.used, payload.len());
        let mut short = [0; 8];
        if let Some(short) = short.get_mut(..payload.len()) {
            short.copy_from_slice(payload);
        } else if let Some(span) = self.payload.span_mut((first % PAYLOADS) as usize * 64, payload.len()) {
            span.write_from(payload);
        }
        self.used = end;
        let at = self.written.wrapping_mul(LINE);
        for (place, word) in (1..).zip(words) {
            self.headers.store(at + place, word);
        }
        self.headers.store(at + 7, u64::from_le_bytes(short));
        // Release pairs with the Acquire in `Receiver::take`.
        self.headers.store_release(at, stamp(self.written, payload.len()));
        self.written = self.written.wrapping_add(1);
        Room::Sent
    }

    /// Whether the receiver is to be woken, after something was sent. It says so once.
    #[inline]
    pub fn must_wake(&self) -> bool {
        // Pairs with the fence in `Receiver::doze`: either we see that it sleeps, or it sees what we have sent.
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) != 0 && self.asleep.compare_exchange(1, 0).is_ok()
    }

    /// How many packets the other side has not taken.
    pub fn waiting(&self) -> u32 {
        self.written.wrapping_sub(self.taken.load(Ordering::Relaxed) as u32)
    }
}

/// A packet that was taken: headers, which GIDs of that end and of this one it went by, payload.
pub type Taken<'a> = (Headers, (u8, u8), &'a [u8]);

/// The receiver's side.
pub struct Receiver {
    headers: Slots64,
    payload: Window,
    taken: Word64,
    asleep: Word64,
    /// Lines read, of headers and of payload.
    read: u32,
    used: u32,
    /// The packet that is looked at: nothing is believed that the sender could still change.
    bytes: Box<[u8]>,
}

impl Receiver {
    /// Of an empty ring, whose receiver is `side`.
    ///
    /// # Errors
    /// The window is shorter than a channel.
    pub fn new(window: &Window, side: Side) -> Result<Self, OutOfRange> {
        let sender = side.other();
        Ok(Self {
            headers: window.slots64(sender.headers(), HEADERS * LINE)?,
            payload: window.part(sender.payload(), PAYLOADS as usize * 64)?,
            taken: window.word64(side.taken())?,
            asleep: window.word64(side.asleep())?,
            read: 0,
            used: 0,
            bytes: vec![0; MOST_PAYLOAD].into_boxed_slice(),
        })
    }

    /// Whether there is a packet.
    #[inline]
    pub fn has_more(&self) -> bool {
        // Relaxed: whoever takes it looks again.
        self.headers.load(self.read.wrapping_mul(LINE)) as u32 == self.read.wrapping_add(1)
    }

    /// The next packet. Its room is the sender's again with the next call of
    /// [`Receiver::give_back`].
    ///
    /// # Errors
    /// [`Malformed`]: nothing more is to be taken from this ring.
    #[inline]
    pub fn take(&mut self) -> Result<Option<Taken<'_>>, Malformed> {
        let at = self.read.wrapping_mul(LINE);
        // Acquire pairs with the Release in `Sender::send`.
        let first = self.headers.load_acquire(at);
        if first as u32 != self.read.wrapping_add(1) {
            return Ok(None);
        }
        let len = (first >> 32) as usize;
        if len > MOST_PAYLOAD {
            return Err(Malformed);
        }
        let word = |place: u32| self.headers.load(at + place);
        let words: Words = [word(1), word(2), word(3), word(4), word(5), word(6)];
        let (headers, gids) = line::read(&words)?;
        let (line, end) = payload_at(self.used, len);
        let to = &mut self.bytes[..len];
        if len <= 8 {
            to.copy_from_slice(&self.headers.load(at + 7).to_le_bytes()[..len]);
        } else if let Some(span) = self.payload.span((line % PAYLOADS) as usize * 64, len) {
            span.read_into(to);
        }
        (self.read, self.used) = (self.read.wrapping_add(1), end);
        Ok(Some((headers, gids, to)))
    }

    /// The sender may use the places of all that was taken.
    #[inline]
    pub fn give_back(&self) {
        // Release pairs with the Acquire in `Sender::has_room`.
        self.taken.store(u64::from(self.read) | u64::from(self.used) << 32, Ordering::Release);
    }

    /// Says that the sender is to wake this side. Returns whether it may sleep: nothing has come meanwhile.
    pub fn doze(&self) -> bool {
        self.asleep.store(1, Ordering::Relaxed);
        // Pairs with the fence in `Sender::must_wake`.
        fence(Ordering::SeqCst);
        !self.has_more()
    }

    /// Is awake.
    pub fn awake(&self) {
        self.asleep.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::CHANNEL_LEN;
    use super::*;
    use crate::number::{Psn, Qpn};
    use crate::wire::{Opcode, Place, Service};
    use millrace_dma::Region;
    use proptest::prelude::*;

    fn headers(psn: u32) -> Headers {
        let send = Opcode::Send { place: Place::Only, immediate: false, invalidate: false };
        Headers::new(Service::ReliableConnection, send, Qpn::new(77), Psn::new(psn))
    }

    fn ring() -> (Region, Sender, Receiver) {
        let region = Region::heap(CHANNEL_LEN);
        let sender = Sender::new(region.window(), Side::Maker).unwrap();
        let receiver = Receiver::new(region.window(), Side::Taker).unwrap();
        (region, sender, receiver)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Any sizes and any turns: what comes is what went, in order, and a full ring says so.
        #[test]
        fn packets_come_as_they_went(turns in prop::collection::vec((0usize..=MOST_PAYLOAD, 1usize..40, 0usize..60), 1..60)) {
            let (_region, mut sender, mut receiver) = ring();
            let (mut sent, mut taken) = (0_u32, 0_u32);
            let payload = |number: u32, len: usize| (0..len).map(|i| (i as u32 * 31 + number) as u8).collect::<Vec<_>>();
            let mut lens = std::collections::VecDeque::new();
            for (len, sends, takes) in turns {
                for _ in 0..sends {
                    if sender.has_room(len) != Room::Sent {
                        prop_assert!(lens.len() > 100, "full with {} packets", lens.len());
                        break;
                    }
                    prop_assert_eq!(sender.send(&headers(sent), (0, 1), &payload(sent, len)), Room::Sent);
                    lens.push_back(len);
                    sent += 1;
                }
                for _ in 0..takes {
                    let Some((found, gids, bytes)) = receiver.take().unwrap() else { break };
                    let len = lens.pop_front().unwrap();
                    prop_assert_eq!((found, gids), (headers(taken), (0, 1)));
                    prop_assert!(bytes == &payload(taken, len)[..]);
                    taken += 1;
                }
                receiver.give_back();
                prop_assert_eq!(sender.waiting(), sent - taken);
                prop_assert_eq!(receiver.has_more(), sent != taken);
            }
        }

        /// Whatever the other process writes, the receiver takes packets or says that they are none, and the sender stays
        /// within its ring.
        #[test]
        fn nonsense_does_no_harm(words in prop::collection::vec((0u32..HEADERS * LINE, any::<u64>()), 0..400), taken: u64) {
            let (region, mut sender, mut receiver) = ring();
            let slots = region.window().slots64(Side::Maker.headers(), HEADERS * LINE).unwrap();
            for (at, word) in words {
                let number = u64::from(at / LINE) + 1;
                slots.store(at, if at % LINE == 0 { word << 32 & 0x1fff_0000_0000 | number } else { word });
            }
            while let Ok(Some(_)) = receiver.take() {}
            region.window().word64(Side::Taker.taken()).unwrap().store(taken, Ordering::Relaxed);
            for number in 0..2 * HEADERS {
                if sender.has_room(100) == Room::Sent {
                    sender.send(&headers(number), (0, 0), &[0; 100]);
                }
            }
        }
    }

    #[test]
    fn two_threads_agree() {
        let (_region, mut sender, mut receiver) = ring();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..20_000_u32 {
                    let len = number as usize * 37 % 300;
                    while sender.has_room(len) != Room::Sent {
                        std::thread::yield_now();
                    }
                    sender.send(&headers(number), (0, 0), &vec![number as u8; len]);
                }
            });
            let mut next = 0;
            while next < 20_000_u32 {
                match receiver.take().unwrap() {
                    Some((found, _, bytes)) => {
                        assert_eq!(found.psn.value(), next);
                        assert!(
                            bytes.len() == next as usize * 37 % 300 && bytes.iter().all(|&byte| byte == next as u8)
                        );
                        next += 1;
                    }
                    None => {
                        receiver.give_back();
                        std::thread::yield_now();
                    }
                }
            }
        });
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let (_region, mut sender, receiver) = ring();
        assert!(!sender.must_wake());
        assert!(receiver.doze());
        sender.send(&headers(0), (0, 0), &[]);
        assert!(sender.must_wake() && !sender.must_wake());
        assert!(!receiver.doze(), "something is there");
        receiver.awake();
        assert!(!sender.must_wake());
    }
}
