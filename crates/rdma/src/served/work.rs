//! What a program asks of an engine in another process, as words of a message.
//!
//! | Word | |
//! |---|---|
//! | 0 | kind (8 bits), flags (8), operation (8), pieces (8), number of the queue pair or queue (32) |
//! | 1 | what the request is called; of an arming: whether solicited ones only (bit 0), how many were taken (from bit 32 on) |
//! | then | what the operation needs: immediate data or key; address and key; operands |
//! | then, of a datagram | to whom it goes: eight words |
//! | then | two words for each piece: address; length and key. Or bytes given inline: how many, and they |

use super::MOST_INLINE;
use crate::memory::Binding;
use crate::number::{Gid, Key, Qpn};
use crate::wire::{Format, Path};
use crate::work::{Access, Data, Flags, Operation, Piece, Request, Target};
use millrace_ring::lines::{MOST_WORDS, Malformed, ROOM};

/// Most pieces of a request.
pub const MOST_PIECES: usize = 16;

const SIGNALED: u64 = 1;
const SOLICITED: u64 = 2;
const FENCE: u64 = 4;
const INLINE: u64 = 8;
const IMMEDIATE: u64 = 16;
const DATAGRAM: u64 = 32;

mod kind {
    pub const SEND: u64 = 1;
    pub const RECEIVE: u64 = 2;
    pub const RECEIVE_SHARED: u64 = 3;
    pub const ARM: u64 = 4;
}

mod operation {
    pub const SEND: u64 = 0;
    pub const SEND_IMMEDIATE: u64 = 1;
    pub const SEND_INVALIDATE: u64 = 2;
    pub const WRITE: u64 = 3;
    pub const READ: u64 = 4;
    pub const COMPARE_SWAP: u64 = 5;
    pub const FETCH_ADD: u64 = 6;
    pub const LOCAL_INVALIDATE: u64 = 7;
    pub const BIND: u64 = 8;
}

// The longest: an operation of four words, to whom it goes, the length, and the bytes; pieces take fewer.
const _: () =
    assert!(2 + 4 + 8 + 1 + MOST_INLINE.div_ceil(8) <= MOST_WORDS && 2 + 4 + 8 + 2 * MOST_PIECES <= MOST_WORDS);

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// A request for the send queue of a queue pair.
    Send(Qpn, Request<'a>),
    /// A buffer for the receive queue of a queue pair.
    Receive(Qpn, u64, &'a [Piece]),
    /// A buffer for a shared receive queue.
    ReceiveShared(u32, u64, &'a [Piece]),
    /// The next completion of a queue is to be told of; or (`solicited_only`) the next that wants to be.
    Arm {
        /// The queue.
        queue: u32,
        /// Which completions.
        solicited_only: bool,
        /// How many the program has taken from the queue, modulo 2^32: if more have come, it is told at once, because it may
        /// have looked before they came.
        taken: u32,
    },
}

/// Bytes of the longest [`ShortWrite`]: with them it is a line of the ring.
pub const MOST_SHORT: usize = 16;

/// A WRITE of bytes given inline, without immediate data, fence or solicitation, whose message is one line.
pub struct ShortWrite {
    pub qpn: Qpn,
    pub id: u64,
    pub address: u64,
    pub rkey: Key,
    pub len: usize,
    pub bytes: [u8; MOST_SHORT],
    pub signaled: bool,
}

const SHORT: u64 = kind::SEND | operation::WRITE << 16 | INLINE << 8;

impl ShortWrite {
    /// The words that [`Words::of`] makes of the same request, and how many they are.
    #[inline(always)]
    pub fn words(&self) -> ([u64; ROOM], usize) {
        let signaled = if self.signaled { SIGNALED << 8 } else { 0 };
        let head = SHORT | signaled | u64::from(self.qpn.value()) << 32;
        let (low, high) = self.bytes.split_at(8);
        let word = |half: &[u8]| half.try_into().map_or(0, u64::from_le_bytes);
        let key = self.rkey.value().into();
        ([head, self.id, self.address, key, self.len as u64, word(low), word(high)], 5 + self.len.div_ceil(8))
    }

    /// If these are such.
    #[inline(always)]
    pub fn read(words: &[u64]) -> Option<Self> {
        let (&[head, id, address, key, len], data) = words.split_first_chunk::<5>()?;
        let len = usize::try_from(len).ok().filter(|len| (1..=MOST_SHORT).contains(len))?;
        if head as u32 & !(SIGNALED << 8) as u32 != SHORT as u32 || key >> 32 != 0 || data.len() != len.div_ceil(8) {
            return None;
        }
        let mut bytes = [0; MOST_SHORT];
        bytes[..8].copy_from_slice(&data[0].to_le_bytes());
        if let Some(word) = data.get(1) {
            bytes[8..].copy_from_slice(&word.to_le_bytes());
        }
        let (qpn, rkey) = (Qpn::new((head >> 32) as u32 & 0xff_ffff), Key::new(key as u32));
        Some(Self { qpn, id, address, rkey, len, bytes, signaled: head & SIGNALED << 8 != 0 })
    }
}

/// Words on their way.
pub struct Words {
    words: [u64; MOST_WORDS],
    len: usize,
}

impl Default for Words {
    fn default() -> Self {
        Self { words: [0; MOST_WORDS], len: 0 }
    }
}

impl Words {
    fn add(&mut self, word: u64) -> Option<()> {
        *self.words.get_mut(self.len)? = word;
        self.len += 1;
        Some(())
    }

    fn add_pieces(&mut self, pieces: &[Piece]) -> Option<()> {
        pieces.iter().try_for_each(|piece| {
            self.add(piece.address)?;
            self.add(u64::from(piece.len) | u64::from(piece.lkey.value()) << 32)
        })
    }

    fn add_inline(&mut self, parts: &[&[u8]]) -> Option<()> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > MOST_INLINE {
            return None;
        }
        self.add(len as u64)?;
        let (mut word, mut count) = ([0; 8], 0);
        for &byte in parts.iter().copied().flatten() {
            word[count % 8] = byte;
            count += 1;
            if count.is_multiple_of(8) {
                self.add(u64::from_le_bytes(core::mem::take(&mut word)))?;
            }
        }
        if count.is_multiple_of(8) { Some(()) } else { self.add(u64::from_le_bytes(word)) }
    }

    fn add_operation(&mut self, asked: Operation) -> Option<()> {
        match asked {
            Operation::Send => Some(()),
            Operation::SendImmediate(data) => self.add(u32::from_le_bytes(data).into()),
            Operation::SendInvalidate(key) | Operation::LocalInvalidate(key) => self.add(key.value().into()),
            Operation::Write { address, rkey, immediate } => {
                let data = immediate.map_or(0, u32::from_le_bytes);
                self.add(address)?;
                self.add(u64::from(rkey.value()) | u64::from(data) << 32)
            }
            Operation::Read { address, rkey } => {
                self.add(address)?;
                self.add(rkey.value().into())
            }
            Operation::CompareSwap { address, rkey, compare, swap } => {
                [address, rkey.value().into(), compare, swap].into_iter().try_for_each(|word| self.add(word))
            }
            Operation::FetchAdd { address, rkey, add } => {
                [address, rkey.value().into(), add].into_iter().try_for_each(|word| self.add(word))
            }
            Operation::Bind(Binding { rkey, region, address, len, access }) => {
                let keys = u64::from(rkey.value()) | u64::from(region.value()) << 32;
                [keys, address, len, access.0.into()].into_iter().try_for_each(|word| self.add(word))
            }
        }
    }

    fn add_gid(&mut self, gid: Gid) -> Option<()> {
        let bits = u128::from_le_bytes(gid.0);
        self.add(bits as u64)?;
        self.add((bits >> 64) as u64)
    }

    fn add_target(&mut self, target: &Target) -> Option<()> {
        let Target { path, qpn, qkey } = target;
        let format = match path.format {
            Format::RoceV1 => 0,
            Format::RoceV2 => 1,
            Format::Slurpoe => 2,
        };
        let header = format | u64::from(path.hop_limit) << 8 | u64::from(path.traffic_class) << 16;
        self.add(header | u64::from(path.source_port) << 24 | u64::from(path.flow_label & 0xf_ffff) << 40)?;
        self.add(mac_word(path.source_mac))?;
        self.add(mac_word(path.destination_mac))?;
        self.add_gid(path.source)?;
        self.add_gid(path.destination)?;
        self.add(u64::from(qpn.value()) | u64::from(*qkey) << 32)
    }

    /// The words of what is asked for. `None`: too many pieces or inline bytes.
    pub fn of(&mut self, work: &Work<'_>) -> Option<&[u64]> {
        self.len = 0;
        let head = |kind: u64, flags: u64, operation: u64, pieces: usize, object: u32| {
            kind | flags << 8 | operation << 16 | (pieces as u64) << 24 | u64::from(object) << 32
        };
        match *work {
            Work::Send(qpn, ref request) => {
                let (pieces, inline) = match request.data {
                    Data::Pieces(pieces) => (pieces, 0),
                    Data::Inline(_) => (&[][..], INLINE),
                };
                if pieces.len() > MOST_PIECES {
                    return None;
                }
                self.add(head(kind::SEND, flags(request) | inline, number(request), pieces.len(), qpn.value()))?;
                self.add(request.id)?;
                self.add_operation(request.operation)?;
                if let Some(target) = request.target {
                    self.add_target(target)?;
                }
                match request.data {
                    Data::Pieces(pieces) => self.add_pieces(pieces)?,
                    Data::Inline(parts) => self.add_inline(parts)?,
                }
            }
            Work::Receive(_, _, pieces) | Work::ReceiveShared(_, _, pieces) if pieces.len() > MOST_PIECES => {
                return None;
            }
            Work::Receive(qpn, id, pieces) => {
                self.add(head(kind::RECEIVE, 0, 0, pieces.len(), qpn.value()))?;
                self.add(id)?;
                self.add_pieces(pieces)?;
            }
            Work::ReceiveShared(queue, id, pieces) => {
                self.add(head(kind::RECEIVE_SHARED, 0, 0, pieces.len(), queue))?;
                self.add(id)?;
                self.add_pieces(pieces)?;
            }
            Work::Arm { queue, solicited_only, taken } => {
                self.add(head(kind::ARM, 0, 0, 0, queue))?;
                self.add(u64::from(solicited_only) | u64::from(taken) << 32)?;
            }
        }
        Some(&self.words[..self.len])
    }
}

fn flags(request: &Request<'_>) -> u64 {
    let Flags { signaled, solicited, fence } = request.flags;
    let has_immediate = matches!(request.operation, Operation::Write { immediate: Some(_), .. });
    let flag = |is: bool, bit| if is { bit } else { 0 };
    let bits = flag(signaled, SIGNALED) | flag(solicited, SOLICITED) | flag(fence, FENCE);
    bits | flag(has_immediate, IMMEDIATE) | flag(request.target.is_some(), DATAGRAM)
}

fn mac_word(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

fn number(request: &Request<'_>) -> u64 {
    match request.operation {
        Operation::Send => operation::SEND,
        Operation::SendImmediate(_) => operation::SEND_IMMEDIATE,
        Operation::SendInvalidate(_) => operation::SEND_INVALIDATE,
        Operation::Write { .. } => operation::WRITE,
        Operation::Read { .. } => operation::READ,
        Operation::CompareSwap { .. } => operation::COMPARE_SWAP,
        Operation::FetchAdd { .. } => operation::FETCH_ADD,
        Operation::LocalInvalidate(_) => operation::LOCAL_INVALIDATE,
        Operation::Bind(_) => operation::BIND,
    }
}

/// Room for what a message is taken apart into.
pub struct Apart {
    pieces: [Piece; MOST_PIECES],
    bytes: [u8; MOST_INLINE],
}

impl Default for Apart {
    fn default() -> Self {
        Self { pieces: [Piece::default(); MOST_PIECES], bytes: [0; MOST_INLINE] }
    }
}

/// Words of a message that somebody else has written, one after the other.
struct Rest<'a>(&'a [u64]);

impl Rest<'_> {
    fn next(&mut self) -> Result<u64, Malformed> {
        let (first, rest) = self.0.split_first().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    fn key(&mut self) -> Result<Key, Malformed> {
        self.next().map(|word| Key::new(word as u32))
    }

    fn operation(&mut self, number: u64, has_immediate: bool) -> Result<Operation, Malformed> {
        Ok(match number {
            operation::SEND => Operation::Send,
            operation::SEND_IMMEDIATE => Operation::SendImmediate((self.next()? as u32).to_le_bytes()),
            operation::SEND_INVALIDATE => Operation::SendInvalidate(self.key()?),
            operation::WRITE => {
                let (address, more) = (self.next()?, self.next()?);
                let immediate = has_immediate.then_some(((more >> 32) as u32).to_le_bytes());
                Operation::Write { address, rkey: Key::new(more as u32), immediate }
            }
            operation::READ => Operation::Read { address: self.next()?, rkey: self.key()? },
            operation::COMPARE_SWAP => Operation::CompareSwap {
                address: self.next()?,
                rkey: self.key()?,
                compare: self.next()?,
                swap: self.next()?,
            },
            operation::FETCH_ADD => Operation::FetchAdd { address: self.next()?, rkey: self.key()?, add: self.next()? },
            operation::LOCAL_INVALIDATE => Operation::LocalInvalidate(self.key()?),
            operation::BIND => {
                let keys = self.next()?;
                let (address, len, access) = (self.next()?, self.next()?, Access(self.next()? as u32));
                let (rkey, region) = (Key::new(keys as u32), Key::new((keys >> 32) as u32));
                Operation::Bind(Binding { rkey, region, address, len, access })
            }
            _ => return Err(Malformed),
        })
    }

    fn mac(&mut self) -> Result<[u8; 6], Malformed> {
        let [mac @ .., 0, 0] = self.next()?.to_le_bytes() else { return Err(Malformed) };
        Ok(mac)
    }

    fn gid(&mut self) -> Result<Gid, Malformed> {
        let (low, high) = (u128::from(self.next()?), u128::from(self.next()?));
        Ok(Gid((low | high << 64).to_le_bytes()))
    }

    fn target(&mut self) -> Result<Target, Malformed> {
        let header = self.next()?;
        let format = match header & 0xff {
            0 => Format::RoceV1,
            1 => Format::RoceV2,
            _ => return Err(Malformed),
        };
        let path = Path {
            format,
            source_mac: self.mac()?,
            destination_mac: self.mac()?,
            source: self.gid()?,
            destination: self.gid()?,
            hop_limit: (header >> 8) as u8,
            traffic_class: (header >> 16) as u8,
            flow_label: (header >> 40) as u32 & 0xf_ffff,
            source_port: (header >> 24) as u16,
        };
        let last = self.next()?;
        Ok(Target { path, qpn: Qpn::new(last as u32), qkey: (last >> 32) as u32 })
    }

    fn pieces<'b>(&mut self, count: usize, to: &'b mut [Piece; MOST_PIECES]) -> Result<&'b [Piece], Malformed> {
        let to = to.get_mut(..count).ok_or(Malformed)?;
        for piece in &mut *to {
            let (address, more) = (self.next()?, self.next()?);
            *piece = Piece { address, len: more as u32, lkey: Key::new((more >> 32) as u32) };
        }
        Ok(to)
    }

    fn inline<'b>(&mut self, to: &'b mut [u8; MOST_INLINE]) -> Result<&'b [u8], Malformed> {
        let len = usize::try_from(self.next()?).map_err(|_| Malformed)?;
        let to = to.get_mut(..len).ok_or(Malformed)?;
        for part in to.chunks_mut(8) {
            part.copy_from_slice(&self.next()?.to_le_bytes()[..part.len()]);
        }
        Ok(to)
    }
}

impl Apart {
    /// Takes the words of a message apart, and lets `act` see what is asked for.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read<R>(&mut self, words: &[u64], act: impl FnOnce(&Work<'_>) -> R) -> Result<R, Malformed> {
        let mut rest = Rest(words);
        let (head, id) = (rest.next()?, rest.next()?);
        let (flags, count, object) = (head >> 8 & 0xff, (head >> 24 & 0xff) as usize, (head >> 32) as u32);
        let qpn = Qpn::new(object & 0xff_ffff);
        match head & 0xff {
            kind::SEND => {
                let has = |flag| flags & flag != 0;
                let operation = rest.operation(head >> 16 & 0xff, has(IMMEDIATE))?;
                let how = Flags { signaled: has(SIGNALED), solicited: has(SOLICITED), fence: has(FENCE) };
                let target = if has(DATAGRAM) { Some(rest.target()?) } else { None };
                let request = |data| Request { id, operation, data, flags: how, target: target.as_ref() };
                if has(INLINE) {
                    let bytes = [rest.inline(&mut self.bytes)?];
                    return Ok(act(&Work::Send(qpn, request(Data::Inline(&bytes)))));
                }
                let pieces = rest.pieces(count, &mut self.pieces)?;
                Ok(act(&Work::Send(qpn, request(Data::Pieces(pieces)))))
            }
            kind::RECEIVE => Ok(act(&Work::Receive(qpn, id, rest.pieces(count, &mut self.pieces)?))),
            kind::RECEIVE_SHARED => Ok(act(&Work::ReceiveShared(object, id, rest.pieces(count, &mut self.pieces)?))),
            kind::ARM => {
                let (solicited_only, taken) = (id & 1 == 1, (id >> 32) as u32);
                Ok(act(&Work::Arm { queue: object, solicited_only, taken }))
            }
            _ => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Key> {
        any::<u32>().prop_map(Key::new)
    }

    fn operations() -> impl Strategy<Value = Operation> {
        let immediate = prop::option::of(any::<[u8; 4]>());
        prop_oneof![
            Just(Operation::Send),
            any::<[u8; 4]>().prop_map(Operation::SendImmediate),
            key().prop_map(Operation::SendInvalidate),
            (any::<u64>(), key(), immediate).prop_map(|(address, rkey, immediate)| Operation::Write {
                address,
                rkey,
                immediate
            }),
            (any::<u64>(), key()).prop_map(|(address, rkey)| Operation::Read { address, rkey }),
            (any::<u64>(), key(), any::<u64>(), any::<u64>())
                .prop_map(|(address, rkey, compare, swap)| Operation::CompareSwap { address, rkey, compare, swap }),
            (any::<u64>(), key(), any::<u64>()).prop_map(|(address, rkey, add)| Operation::FetchAdd {
                address,
                rkey,
                add
            }),
            key().prop_map(Operation::LocalInvalidate),
            (key(), key(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(
                |(rkey, region, address, len, access)| {
                    Operation::Bind(Binding { rkey, region, address, len, access: Access(access) })
                }
            ),
        ]
    }

    fn targets() -> impl Strategy<Value = Target> {
        let gids = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<[u8; 6]>(), any::<[u8; 6]>());
        (any::<bool>(), gids, any::<(u8, u8, u16)>(), 0u32..1 << 20, 0u32..1 << 24, any::<u32>()).prop_map(
            |(
                v1,
                (source, destination, source_mac, destination_mac),
                (hop_limit, traffic_class, source_port),
                flow_label,
                qpn,
                qkey,
            )| {
                let format = if v1 { Format::RoceV1 } else { Format::RoceV2 };
                let (source, destination) = (Gid(source), Gid(destination));
                let path = Path {
                    format,
                    source_mac,
                    destination_mac,
                    source,
                    destination,
                    hop_limit,
                    traffic_class,
                    flow_label,
                    source_port,
                };
                Target { path, qpn: Qpn::new(qpn), qkey }
            },
        )
    }

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let piece = (any::<u64>(), any::<u32>(), key()).prop_map(|(address, len, lkey)| Piece { address, len, lkey });
        prop::collection::vec(piece, 0..=MOST_PIECES)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn requests_come_as_they_went(
            operation in operations(), pieces in pieces(), id: u64, qpn in 0u32..1 << 24, how: [bool; 3],
            target in prop::option::of(targets()),
            parts in prop::option::of(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=MOST_INLINE / 4), 0..=4)),
        ) {
            let slices: Option<Vec<&[u8]>> = parts.as_ref().map(|parts| parts.iter().map(|part| &part[..]).collect());
            let data = slices.as_ref().map_or(Data::Pieces(&pieces), |slices| Data::Inline(slices));
            let flags = Flags { signaled: how[0], solicited: how[1], fence: how[2] };
            let request = Request { id, operation, data, flags, target: target.as_ref() };
            let mut words = Words::default();
            let words = words.of(&Work::Send(Qpn::new(qpn), request)).unwrap();
            let found = Apart::default().read(words, |work| {
                let Work::Send(number, found) = *work else { return false };
                let same = match (found.data, &parts) {
                    (Data::Pieces(found), None) => found == pieces,
                    (Data::Inline(found), Some(parts)) => found.concat() == parts.concat(),
                    _ => false,
                };
                let same = same && found.target.copied() == target;
                same && number == Qpn::new(qpn) && found.id == id && found.flags == flags && found.operation == operation
            });
            prop_assert_eq!(found, Ok(true));
            let cut = Apart::default().read(&words[..words.len() - 1], |_| ());
            prop_assert_eq!(cut, Err(Malformed), "a message that was cut");
        }

        /// A short WRITE is the same message as when it is written as any other.
        #[test]
        fn short_writes_are_messages_as_all_others(
            qpn in 0u32..1 << 24, id: u64, address: u64, rkey in key(), len in 1usize..=MOST_SHORT, content: [u8; MOST_SHORT], how: [bool; 3],
            immediate in prop::option::of(any::<[u8; 4]>()),
        ) {
            let [signaled, solicited, fence] = how;
            let data = [&content[..len]];
            let operation = Operation::Write { address, rkey, immediate };
            let flags = Flags { signaled, solicited, fence };
            let request = Request { id, operation, data: Data::Inline(&data), flags, target: None };
            let mut words = Words::default();
            let words = words.of(&Work::Send(Qpn::new(qpn), request)).unwrap();
            let found = ShortWrite::read(words);
            prop_assert_eq!(found.is_some(), !solicited && !fence && immediate.is_none());
            if let Some(found) = found {
                let (again, count) = found.words();
                prop_assert_eq!(&again[..count], words);
                prop_assert_eq!(&found.bytes[..found.len], data[0]);
            }
        }

        #[test]
        fn buffers_come_as_they_went(pieces in pieces(), id: u64, queue: u32, shared: bool) {
            let qpn = Qpn::new(queue & 0xff_ffff);
            let work = if shared { Work::ReceiveShared(queue, id, &pieces) } else { Work::Receive(qpn, id, &pieces) };
            let mut words = Words::default();
            let same = Apart::default().read(words.of(&work).unwrap(), |found| match *found {
                Work::Receive(number, name, found) => !shared && number == qpn && name == id && found == pieces,
                Work::ReceiveShared(number, name, found) => shared && number == queue && name == id && found == pieces,
                _ => false,
            });
            prop_assert_eq!(same, Ok(true));
        }

        #[test]
        fn nonsense_does_no_harm(words in prop::collection::vec(any::<u64>(), 0..40), kind in 0u64..6, small: bool) {
            let mut words = words;
            if let Some(first) = words.first_mut() {
                *first = *first & !0xff | kind;
                *first &= if small { 0x0f0f_0fff } else { u64::MAX };
            }
            let _ = Apart::default().read(&words, |work| format!("{work:?}").len());
        }
    }

    #[test]
    fn what_is_too_long_has_no_words() {
        let (many, bytes) = ([Piece::default(); MOST_PIECES + 1], [0; MOST_INLINE + 1]);
        let request = |data| Request { id: 0, operation: Operation::Send, data, flags: Flags::default(), target: None };
        let mut words = Words::default();
        assert!(words.of(&Work::Send(Qpn::new(2), request(Data::Pieces(&many)))).is_none());
        assert!(words.of(&Work::Send(Qpn::new(2), request(Data::Inline(&[&bytes])))).is_none());
        assert!(words.of(&Work::Receive(Qpn::new(2), 0, &many)).is_none());
        assert!(words.of(&Work::ReceiveShared(2, 0, &many)).is_none());
    }
}
