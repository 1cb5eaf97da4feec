//! A ring of packets from one process to another. The sender writes payload, then the line with the headers, whose first word
//! comes last; the receiver says up to where it has taken both.
//!
//! Payload stands in lines of 64 bytes behind one another, and never around the end of the ring: both sides leave out the
//! same lines there. Up to eight bytes of a packet, and 40 of a short SEND, stand in the headers themselves.

use super::layout::{HEADERS, LINE, MOST_PAYLOAD, PAYLOADS, Side};
use super::line::{self, Malformed, Words};
use super::short::{Settled, Short, Source, Unsettled, line_heard};
use crate::number::{Psn, Qpn};
use crate::wire::Headers;
use millrace_dma::{Ordering, OutOfRange, Slots64, Window, Word64, fence};

/// Bytes of payload that stand in the headers: of a packet, and of a short SEND.
const WITHIN: usize = 8;
const WITHIN_SHORT: usize = 40;

/// Where a packet of `len` bytes has its payload, if `at` lines were used before it: first line, and lines used behind it.
/// Up to `within` bytes stand in the headers.
#[inline]
fn payload_at(at: u32, len: usize, within: usize) -> (u32, u32) {
    if len <= within {
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
    /// What the receiver says of short SENDs.
    settled: Word64,
    unsettled: Unsettled,
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
            settled: window.word64(side.other().settled())?,
            unsettled: Unsettled::default(),
        })
    }

    /// Whether a packet of `len` bytes has room.
    #[inline(always)]
    pub fn has_room(&mut self, len: usize) -> Room {
        if len > MOST_PAYLOAD {
            return Room::Never;
        }
        let (_, end) = payload_at(self.used, len, WITHIN);
        if self.has_room_to(end) { Room::Sent } else { Room::None }
    }

    /// Whether there is room for one more packet, whose payload ends before that line.
    #[inline(always)]
    fn has_room_to(&mut self, end: u32) -> bool {
        if !self.fits_to(end) {
            // Acquire pairs with the Release in `Receiver::give_back`: what is overwritten was read before.
            let taken = self.taken.load(Ordering::Acquire);
            self.free = (taken as u32, (taken >> 32) as u32);
        }
        self.fits_to(end)
    }

    /// A receiver that says nonsense gets nothing: then neither difference is one that there may be.
    #[inline(always)]
    fn fits_to(&self, end: u32) -> bool {
        self.written.wrapping_sub(self.free.0) < HEADERS && end.wrapping_sub(self.free.1) <= PAYLOADS
    }

    /// Adds a packet, for which [`Sender::has_room`] has found some, between two of the GIDs of both ends.
    #[inline]
    pub fn send(&mut self, headers: &Headers, gids: (u8, u8), payload: &[u8]) -> Room {
        let Some(words) = line::write(headers, gids) else { return Room::Never };
        let place = payload_at(self.used, payload.len(), WITHIN);
        if !self.fits_to(place.1) {
            return Room::None;
        }
        let at = self.written.wrapping_mul(LINE);
        for (place, word) in (1..).zip(words) {
            self.headers.store(at + place, word);
        }
        self.put::<{ WITHIN / 8 }>(payload, place);
        Room::Sent
    }

    /// Adds a short SEND of a queue pair, if there is room; `heard` is what the receiver of this side says ([`Receiver::heard`]).
    #[inline(always)]
    pub fn send_short(&mut self, source: Source, short: &Short, gids: (u8, u8), heard: u16, payload: &[u8]) -> Room {
        let place = payload_at(self.used, payload.len(), WITHIN_SHORT);
        if payload.len() > MOST_PAYLOAD || !self.unsettled.has_room() || !self.has_room_to(place.1) {
            return Room::None;
        }
        let words = line::write_short(short, gids, self.unsettled.epoch, heard);
        self.unsettled.add(self.written, source.qpn, short.psn, source.is_awaited);
        let at = self.written.wrapping_mul(LINE);
        self.headers.store(at + 1, words[0]);
        self.headers.store(at + 2, words[1]);
        self.put::<{ WITHIN_SHORT / 8 }>(payload, place);
        Room::Sent
    }

    /// Payload and first word of the next line. Up to `WORDS` words of payload stand at its end, more where [`payload_at`] says.
    #[inline(always)]
    fn put<const WORDS: usize>(&mut self, payload: &[u8], (first, end): (u32, u32)) {
        let at = self.written.wrapping_mul(LINE);
        if payload.len() <= WORDS * 8 {
            let mut words = [[0; 8]; WORDS];
            words.as_flattened_mut()[..payload.len()].copy_from_slice(payload);
            for (place, word) in (LINE - WORDS as u32..).zip(words) {
                self.headers.store(at + place, u64::from_le_bytes(word));
            }
        } else if let Some(span) = self.payload.span_mut((first % PAYLOADS) as usize * 64, payload.len()) {
            span.write_from(payload);
        }
        self.used = end;
        // Release pairs with the Acquire in `Receiver::take`.
        self.headers.store_release(at, stamp(self.written, payload.len()));
        self.written = self.written.wrapping_add(1);
    }

    /// Whether the other side has not said yet of some short SENDs what became of them.
    #[inline]
    pub fn has_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Whether somebody waits for one of them.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.unsettled.is_awaited()
    }

    /// Something waits for all short SENDs that are on their way.
    pub fn hurry(&mut self) {
        self.unsettled.hurry();
    }

    /// Looks which short SENDs were done: the last one of each run of a queue pair.
    #[inline]
    pub fn settle(&mut self, each: impl FnMut(Qpn, Psn)) {
        // Acquire pairs with the Release in `Receiver::give_back`: what comes of it is not seen before.
        self.unsettled.hear(self.settled.load(Ordering::Acquire), each);
    }

    /// The same, by what came with a short SEND of the other side. False: that says nothing.
    #[inline]
    pub fn hear(&mut self, heard: u16, each: impl FnMut(Qpn, Psn)) -> bool {
        let line = line_heard(heard, self.written);
        line.inspect(|line| self.unsettled.settle(*line, each)).is_some()
    }

    /// A queue pair begins anew: what it has sent before does not count.
    pub fn forget(&mut self, source: Qpn) {
        self.unsettled.forget(source);
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

/// A packet that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken<'a> {
    /// Its headers.
    pub headers: Headers,
    /// Which of the GIDs of that end and of this one it went by.
    pub gids: (u8, u8),
    /// Its bytes.
    pub payload: &'a [u8],
}

/// A short SEND that was taken. It has no headers, which would be copied for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenShort<'a> {
    /// What it says.
    pub short: Short,
    /// As of [`Taken`].
    pub gids: (u8, u8),
    /// Its bytes.
    pub payload: &'a [u8],
    /// What its sender has taken, for [`Sender::hear`].
    pub heard: u16,
    /// It needs no answer if it is done; otherwise it is a packet that wants one.
    pub counts: bool,
    /// For [`Receiver::done`].
    pub ticket: Ticket,
}

/// Which short SEND it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    line: u32,
    epoch: u8,
}

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
    /// What is said of short SENDs, and where.
    said: Settled,
    settled: Word64,
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
            said: Settled::default(),
            settled: window.word64(side.settled())?,
        })
    }

    /// Whether there is a packet.
    #[inline]
    pub fn has_more(&self) -> bool {
        // Payload of the next packet most likely begins there: its line is on its way while the headers' is.
        if let Some(span) = self.payload.span((self.used % PAYLOADS) as usize * 64, 64) {
            span.prefetch();
        }
        // Relaxed: whoever takes it looks again.
        self.headers.load(self.read.wrapping_mul(LINE)) as u32 == self.read.wrapping_add(1)
    }

    /// The next line, if it is a short SEND. Its room is the sender's again with the next call of [`Receiver::give_back`].
    #[inline(always)]
    pub fn take_short(&mut self) -> Option<TakenShort<'_>> {
        let at = self.read.wrapping_mul(LINE);
        // Acquire pairs with the Release in `Sender::put`.
        let first = self.headers.load_acquire(at);
        if first as u32 != self.read.wrapping_add(1) {
            return None;
        }
        let (kind, len) = (self.headers.load(at + 1), (first >> 32) as usize);
        if !line::is_short(kind) || len > MOST_PAYLOAD {
            return None;
        }
        let (short, gids, epoch, heard) = line::read_short([kind, self.headers.load(at + 2)]);
        let (counts, ticket) = (self.said.counts(epoch), Ticket { line: self.read, epoch });
        self.copy::<{ WITHIN_SHORT / 8 }>(len);
        Some(TakenShort { short, gids, payload: &self.bytes[..len], heard, counts, ticket })
    }

    /// The next line, if it is a packet. Its room is the sender's again with the next call of [`Receiver::give_back`].
    ///
    /// # Errors
    /// [`Malformed`]: nothing more is to be taken from this ring.
    #[inline]
    pub fn take(&mut self) -> Result<Option<Taken<'_>>, Malformed> {
        let at = self.read.wrapping_mul(LINE);
        // Acquire pairs with the Release in `Sender::put`.
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
        if line::is_short(words[0]) {
            return Ok(None);
        }
        let (headers, gids) = line::read(&words)?;
        self.copy::<{ WITHIN / 8 }>(len);
        // What the other side hears in 16 bits is never as far behind as they count.
        self.said.pass(self.read);
        Ok(Some(Taken { headers, gids, payload: &self.bytes[..len] }))
    }

    /// Copies the payload of the line that is looked at, and goes on to the next one.
    #[inline(always)]
    fn copy<const WORDS: usize>(&mut self, len: usize) {
        let at = self.read.wrapping_mul(LINE);
        let (line, end) = payload_at(self.used, len, WORDS * 8);
        if len <= WORDS * 8 {
            // All words, whatever the length: there is room for them.
            for (place, bytes) in (LINE - WORDS as u32..LINE).zip(self.bytes.chunks_exact_mut(8)) {
                bytes.copy_from_slice(&self.headers.load(at + place).to_le_bytes());
            }
        } else if let Some(span) = self.payload.span((line % PAYLOADS) as usize * 64, len) {
            span.read_into(&mut self.bytes[..len]);
        }
        (self.read, self.used) = (self.read.wrapping_add(1), end);
    }

    /// It was done, or (`false`) is to be treated as a packet.
    #[inline]
    pub fn done(&mut self, ticket: Ticket, is_done: bool) {
        if is_done {
            self.said.done(ticket.line);
        } else {
            self.said.stick(ticket.epoch);
        }
    }

    /// What was done so far, for [`Sender::send_short`].
    #[inline]
    pub fn heard(&self) -> u16 {
        self.said.heard()
    }

    /// The sender may use the places of all that was taken.
    #[inline]
    pub fn give_back(&self) {
        // Release pairs with the Acquire in `Sender::settle`: what is answered by packets was said before.
        self.settled.store(self.said.word(), Ordering::Release);
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
    use crate::wire::{Opcode, Place, Service};
    use millrace_dma::Region;
    use proptest::prelude::*;

    fn headers(psn: u32) -> Headers {
        let send = Opcode::Send { place: Place::Only, immediate: false, invalidate: false };
        Headers::new(Service::ReliableConnection, send, Qpn::new(77), Psn::new(psn))
    }

    fn short(psn: u32) -> Short {
        let immediate = psn.is_multiple_of(2).then_some(psn.to_le_bytes());
        Short { destination: Qpn::new(77), psn: Psn::new(psn), immediate, solicited: psn.is_multiple_of(4) }
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
            let source = Source { qpn: Qpn::new(9), is_awaited: false };
            let payload = |number: u32, len: usize| (0..len).map(|i| (i as u32 * 31 + number) as u8).collect::<Vec<_>>();
            let mut lens = std::collections::VecDeque::new();
            for (len, sends, takes) in turns {
                for _ in 0..sends {
                    if sender.has_room(len) != Room::Sent {
                        prop_assert!(lens.len() > 100, "full with {} packets", lens.len());
                        break;
                    }
                    let room = match sent % 3 {
                        0 => sender.send_short(source, &short(sent), (0, 1), 0, &payload(sent, len)),
                        _ => sender.send(&headers(sent), (0, 1), &payload(sent, len)),
                    };
                    prop_assert_eq!(room, Room::Sent);
                    lens.push_back(len);
                    sent += 1;
                }
                for _ in 0..takes {
                    if let Some(TakenShort { short, ticket, gids, payload: bytes, .. }) = receiver.take_short() {
                        prop_assert_eq!((short, gids), (self::short(taken), (0, 1)));
                        prop_assert!(bytes == &payload(taken, lens.pop_front().unwrap())[..]);
                        receiver.done(ticket, true);
                    } else if let Some(Taken { headers: found, gids, payload: bytes }) = receiver.take().unwrap() {
                        prop_assert_eq!((found, gids), (headers(taken), (0, 1)));
                        prop_assert!(bytes == &payload(taken, lens.pop_front().unwrap())[..]);
                    } else {
                        break;
                    }
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
            while receiver.take_short().is_some() || matches!(receiver.take(), Ok(Some(_))) {}
            region.window().word64(Side::Taker.taken()).unwrap().store(taken, Ordering::Relaxed);
            for number in 0..2 * HEADERS {
                if sender.has_room(100) == Room::Sent {
                    sender.send(&headers(number), (0, 0), &[0; 100]);
                }
            }
        }
    }

    /// However many packets come between two short SENDs, what is heard of these says nothing of others.
    #[test]
    fn what_is_heard_is_right_behind_many_packets() {
        let (_region, mut sender, mut receiver) = ring();
        let source = Source { qpn: Qpn::new(9), is_awaited: false };
        let mut settled = Vec::new();
        for round in 0..3_u32 {
            receiver.give_back();
            assert_eq!(sender.send_short(source, &short(round), (0, 0), 0, &[]), Room::Sent);
            let ticket = receiver.take_short().unwrap().ticket;
            receiver.done(ticket, true);
            for number in 0..32_767 {
                while sender.has_room(0) != Room::Sent {
                    receiver.give_back();
                }
                sender.send(&headers(number), (0, 0), &[]);
                receiver.take().unwrap().unwrap();
            }
            sender.hear(receiver.heard(), |_, psn| settled.push(psn.value()));
            assert_eq!(settled.len() as u32, round + 1);
            receiver.give_back();
            assert_eq!(sender.send_short(source, &short(7), (0, 0), 0, &[]), Room::Sent);
            sender.hear(receiver.heard(), |_, _| panic!("it was not taken"));
            let ticket = receiver.take_short().unwrap().ticket;
            receiver.done(ticket, true);
            sender.hear(receiver.heard(), |_, psn| assert_eq!(psn.value(), 7));
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
                    Some(Taken { headers: found, payload: bytes, .. }) => {
                        assert_eq!(found.psn.value(), next);
                        assert!(
                            bytes.len() == next as usize * 37 % 300 && bytes.iter().all(|&byte| byte == next as u8)
                        );
                        next += 1;
                    }
                    _ => {
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
