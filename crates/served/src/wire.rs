//! Requests of programs, and answers to them, as words of 64 bits, little endian.
//!
//! | Word | |
//! |---|---|
//! | 0 | version (upper half); kind of the request, or the number of the error (0: none) of an answer |
//! | then | what the request or the answer says, a word for each number |
//!
//! Nothing that is read is believed: a record that is too short, too long, or has a value that there is not, is no request.

use millrace_rdma::cm::address::ServiceId;
use millrace_rdma::memory::{ProtectionDomain, WindowType};
use millrace_rdma::number::{Gid, Key, Psn, Qpn};
use millrace_rdma::transport::{Attributes, Capabilities, Init, State};
use millrace_rdma::wire::{Format, Path, Service};
use millrace_rdma::work::Access;

/// The version of everything here, the rings included.
pub const VERSION: u32 = 3;
/// Most words of a record.
pub const MOST_WORDS: usize = 64;

/// What a program asks for: the calls of [`Service`](millrace_rdma::served::Service), one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// First of all. The answer is [`Welcome`], with descriptors: shared memory, the bell of the card, that of the
    /// program, and `/dev/userfaultfd` if the card has it.
    Hello,
    /// A protection domain. The answer is its number.
    CreateDomain,
    /// Ends it.
    DestroyDomain(ProtectionDomain),
    /// A region, in the files that come along, one for each part. The answer is its two keys.
    Register(Register),
    /// Ends it.
    Deregister(Key),
    /// A completion queue of that depth. The answer is its number, with the file of its ring.
    CreateQueue(u32),
    /// Ends it.
    DestroyQueue(u32),
    /// A shared receive queue: domain, depth, pieces. The answer is its number.
    CreateShared(ProtectionDomain, u32, u32),
    /// Its limit.
    SetLimit(u32, u32),
    /// Ends it.
    DestroyShared(u32),
    /// A queue pair. The answer is its number and what was granted; for one of the general service interface, the lowest number that connections
    /// of this program may have is in front.
    CreatePair(Init),
    /// Changes it. The answer is its state.
    ModifyPair(Qpn, Attributes),
    /// What it is. The answer is its attributes, and whether it is being drained.
    QueryPair(Qpn),
    /// Ends it.
    DestroyPair(Qpn),
    /// Changes a region; the files of other bytes come along. The answer is its two new keys.
    Reregister(Reregister),
    /// A completion queue gets another depth. The answer has the file of its new ring.
    ResizeQueue(u32, u32),
    /// A memory window in a protection domain. The answer is its key.
    CreateWindow(ProtectionDomain, WindowType),
    /// The key that a window of type 1 will have by the next request that binds it. The answer is that key.
    NextWindowKey(Key),
    /// That request is not made.
    ForgetWindowKey(Key),
    /// Ends a window.
    DestroyWindow(Key),
    /// What the card does (0), or the program with that number, from 1 on. Also without a greeting. The answer is a JSON object in a record, and
    /// no words; or an error, when there are fewer programs.
    Show(u32),
    /// Which MAC address leads to a GID; whether it is to be asked for. The answer is 1 and the MAC address, or 0: it is not known, or not yet.
    Resolve(Gid, bool),
    /// Calls of that service are for this program. It has a queue pair of the general service interface.
    Offer(ServiceId),
    /// They are so no longer.
    Withdraw(ServiceId),
}

/// What is to be different of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reregister {
    /// Its key until now.
    pub key: Key,
    /// Another protection domain.
    pub domain: Option<ProtectionDomain>,
    /// Other rights.
    pub access: Option<Access>,
    /// Other bytes.
    pub bytes: Option<Bytes>,
}

/// Parts of files that one region may consist of.
pub const MOST_PARTS: usize = 8;

/// Parts of files, whole pages, one behind the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    count: usize,
    /// Where in its file a part begins, and bytes of it.
    all: [(u64, u64); MOST_PARTS],
}

impl Parts {
    /// `None`: there are none, or more than there may be.
    pub fn new(parts: impl IntoIterator<Item = (u64, u64)>) -> Option<Self> {
        let mut made = Self::default();
        for part in parts {
            *made.all.get_mut(made.count)? = part;
            made.count += 1;
        }
        (made.count > 0).then_some(made)
    }

    /// All that is left of a request.
    fn read(words: &mut Words) -> Option<Self> {
        let mut parts = Vec::new();
        while words.at < words.words.len() && parts.len() < MOST_PARTS {
            parts.push((words.word()?, words.word()?));
        }
        Self::new(parts)
    }

    /// All of them.
    pub fn list(&self) -> &[(u64, u64)] {
        &self.all[..self.count]
    }
}

/// Memory of a program, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// Where its pages are.
    pub parts: Parts,
    /// Bytes of the first page before the first byte.
    pub skip: u32,
    /// Bytes.
    pub len: u64,
    /// The address that requests have for the first byte.
    pub base: u64,
}

/// A region to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Who may reach it.
    pub domain: ProtectionDomain,
    /// Rights.
    pub access: Access,
    /// What it opens.
    pub bytes: Bytes,
}

/// What a program is told first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// MAC address of all programs of the card.
    pub mac: [u8; 6],
    /// Their IP address, as a GID has it.
    pub gid: Gid,
    /// Most bytes of payload of a packet.
    pub mtu: u16,
}

/// Words of a record, written or read one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    words: Vec<u64>,
    at: usize,
}

impl Words {
    fn of(head: u32) -> Self {
        Self { words: vec![u64::from(VERSION) << 32 | u64::from(head)], at: 0 }
    }

    /// An answer without error, with these words.
    pub fn answer(words: &[u64]) -> Self {
        let mut all = Self::of(0);
        all.words.extend(words);
        all
    }

    /// An answer with the number of an error.
    pub fn refusal(errno: i32) -> Self {
        Self::of(errno.unsigned_abs().max(1))
    }

    /// As they go.
    pub fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// As they came; `None`: too many, or no whole words.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let fits = rest.is_empty() && (1..=MOST_WORDS).contains(&words.len());
        fits.then(|| Self { words: words.iter().map(|word| u64::from_le_bytes(*word)).collect(), at: 0 })
    }

    fn add(&mut self, word: impl Into<u64>) {
        self.words.push(word.into());
    }

    /// The next word.
    pub fn word(&mut self) -> Option<u64> {
        let word = *self.words.get(self.at)?;
        self.at += 1;
        Some(word)
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        T::try_from(self.word()?).ok()
    }

    /// A number, or none.
    fn optional(&mut self) -> Option<Option<u32>> {
        match self.word()? {
            u64::MAX => Some(None),
            number => u32::try_from(number).ok().map(Some),
        }
    }

    fn add_bytes(&mut self, bytes: &Bytes) {
        self.words.extend([u64::from(bytes.skip), bytes.len, bytes.base]);
        self.words.extend(bytes.parts.list().iter().flat_map(|(offset, len)| [*offset, *len]));
    }

    /// All that is left of a request.
    fn take_bytes(&mut self) -> Option<Bytes> {
        let (skip, len, base) = (self.small()?, self.word()?, self.word()?);
        Some(Bytes { skip, len, base, parts: Parts::read(self)? })
    }

    fn flag(&mut self) -> Option<bool> {
        match self.word()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// What word 0 says; `None`: another version.
    fn head(&mut self) -> Option<u32> {
        let word = self.word()?;
        (word >> 32 == u64::from(VERSION)).then_some(word as u32)
    }

    /// The error of an answer, or what comes behind.
    pub fn outcome(mut self) -> Option<Result<Self, i32>> {
        match self.head()? {
            0 => Some(Ok(self)),
            errno => Some(Err(i32::try_from(errno).ok()?)),
        }
    }

    fn add_gid(&mut self, gid: Gid) {
        let bits = u128::from_le_bytes(gid.0);
        self.add(bits as u64);
        self.add((bits >> 64) as u64);
    }

    fn gid(&mut self) -> Option<Gid> {
        let (low, high) = (u128::from(self.word()?), u128::from(self.word()?));
        Some(Gid((low | high << 64).to_le_bytes()))
    }

    fn add_mac(&mut self, mac: [u8; 6]) {
        self.add(mac.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte)));
    }

    /// A MAC address.
    pub fn mac(&mut self) -> Option<[u8; 6]> {
        let [mac @ .., 0, 0] = self.word()?.to_le_bytes() else { return None };
        Some(mac)
    }

    fn add_path(&mut self, path: &Path) {
        self.add(format_code(path.format));
        self.add_mac(path.source_mac);
        self.add_mac(path.destination_mac);
        self.add_gid(path.source);
        self.add_gid(path.destination);
        self.add(path.hop_limit);
        self.add(path.traffic_class);
        self.add(path.flow_label);
        self.add(path.source_port);
    }

    fn path(&mut self) -> Option<Path> {
        Some(Path {
            format: match self.word()? {
                0 => Format::RoceV1,
                1 => Format::RoceV2,
                _ => return None,
            },
            source_mac: self.mac()?,
            destination_mac: self.mac()?,
            source: self.gid()?,
            destination: self.gid()?,
            hop_limit: self.small()?,
            traffic_class: self.small()?,
            flow_label: self.small()?,
            source_port: self.small()?,
        })
    }

    fn add_capabilities(&mut self, capabilities: &Capabilities) {
        let Capabilities { send_requests, receive_requests, send_pieces, receive_pieces, inline } = *capabilities;
        let numbers = [send_requests, receive_requests, send_pieces, receive_pieces, inline];
        numbers.into_iter().for_each(|number| self.add(number));
    }

    /// Capabilities.
    pub fn capabilities(&mut self) -> Option<Capabilities> {
        Some(Capabilities {
            send_requests: self.small()?,
            receive_requests: self.small()?,
            send_pieces: self.small()?,
            receive_pieces: self.small()?,
            inline: self.small()?,
        })
    }

    fn add_init(&mut self, init: &Init) {
        self.add(service_code(init.service));
        self.add(init.general);
        self.add(init.domain.0);
        self.add(init.send_queue);
        self.add(init.receive_queue);
        self.add(init.shared_receive_queue.map_or(u64::MAX, u64::from));
        self.add_capabilities(&init.capabilities);
        self.add(init.signal_all);
    }

    fn init(&mut self) -> Option<Init> {
        Some(Init {
            service: match self.word()? {
                2 => Service::ReliableConnection,
                3 => Service::UnreliableConnection,
                4 => Service::UnreliableDatagram,
                _ => return None,
            },
            general: self.flag()?,
            domain: ProtectionDomain(self.small()?),
            send_queue: self.small()?,
            receive_queue: self.small()?,
            shared_receive_queue: self.optional()?,
            capabilities: self.capabilities()?,
            signal_all: self.flag()?,
            context: 0,
        })
    }

    fn add_attributes(&mut self, told: &Attributes) {
        let numbers = [
            told.state.map(|state| state as u64),
            told.current_state.map(|state| state as u64),
            told.access.map(|access| access.0.into()),
            told.pkey_index.map(u64::from),
            told.port.map(u64::from),
            told.qkey.map(u64::from),
            told.path_mtu.map(u64::from),
            told.remote.map(|qpn| qpn.value().into()),
            told.receive_psn.map(|psn| psn.value().into()),
            told.send_psn.map(|psn| psn.value().into()),
            told.max_rd_atomic.map(u64::from),
            told.max_dest_rd_atomic.map(u64::from),
            told.min_rnr_timer.map(u64::from),
            told.timeout.map(u64::from),
            told.retry_count.map(u64::from),
            told.rnr_retry.map(u64::from),
            told.notify_drained.map(u64::from),
        ];
        let mask = numbers.iter().rev().fold(0, |mask, number| mask << 1 | u64::from(number.is_some()));
        self.add(mask | u64::from(told.path.is_some()) << numbers.len());
        numbers.into_iter().flatten().for_each(|number| self.add(number));
        if let Some(path) = &told.path {
            self.add_path(path);
        }
    }

    /// Attributes.
    pub fn attributes(&mut self) -> Option<Attributes> {
        const NUMBERS: u64 = 17;
        let mask = self.word()?;
        if mask >> (NUMBERS + 1) != 0 {
            return None;
        }
        let mut bit = 0;
        // `None`: it is no such number; `Some(None)`: it is not said.
        let mut next = |words: &mut Self, most: u64| -> Option<Option<u64>> {
            let is_said = mask >> bit & 1 == 1;
            bit += 1;
            match is_said {
                true => words.word().filter(|number| *number <= most).map(Some),
                false => Some(None),
            }
        };
        let (byte, short, word, number) = (u64::from(u8::MAX), u64::from(u16::MAX), u64::from(u32::MAX), 0xff_ffff);
        let mut told = Attributes::NONE;
        told.state = next(self, 6)?.and_then(state);
        told.current_state = next(self, 6)?.and_then(state);
        told.access = next(self, word)?.map(|bits| Access(bits as u32));
        told.pkey_index = next(self, short)?.map(|index| index as u16);
        told.port = next(self, byte)?.map(|port| port as u8);
        told.qkey = next(self, word)?.map(|qkey| qkey as u32);
        told.path_mtu = next(self, short)?.map(|mtu| mtu as u16);
        told.remote = next(self, number)?.map(|qpn| Qpn::new(qpn as u32));
        told.receive_psn = next(self, number)?.map(|psn| Psn::new(psn as u32));
        told.send_psn = next(self, number)?.map(|psn| Psn::new(psn as u32));
        told.max_rd_atomic = next(self, byte)?.map(|count| count as u8);
        told.max_dest_rd_atomic = next(self, byte)?.map(|count| count as u8);
        told.min_rnr_timer = next(self, byte)?.map(|code| code as u8);
        told.timeout = next(self, byte)?.map(|code| code as u8);
        told.retry_count = next(self, byte)?.map(|count| count as u8);
        told.rnr_retry = next(self, byte)?.map(|count| count as u8);
        told.notify_drained = next(self, 1)?.map(|flag| flag == 1);
        if mask >> NUMBERS & 1 == 1 {
            told.path = Some(self.path()?);
        }
        Some(told)
    }

    /// That it ends here.
    pub fn end(&self) -> Option<()> {
        (self.at == self.words.len()).then_some(())
    }
}

fn format_code(format: Format) -> u64 {
    match format {
        Format::RoceV1 => 0,
        Format::RoceV2 => 1,
        // The daemon has no such address.
        Format::Slurpoe => 2,
    }
}

fn service_code(service: Service) -> u64 {
    match service {
        Service::ReliableConnection => 2,
        Service::UnreliableConnection => 3,
        Service::UnreliableDatagram => 4,
    }
}

/// The state with that number.
pub fn state(number: u64) -> Option<State> {
    use State::*;
    [Reset, Init, ReadyToReceive, ReadyToSend, Drained, SendError, Error].get(usize::try_from(number).ok()?).copied()
}

impl Request {
    /// As words.
    pub fn write(&self) -> Words {
        match *self {
            Self::Hello => Words::of(1),
            Self::CreateDomain => Words::of(2),
            Self::DestroyDomain(domain) => with(3, &[domain.0.into()]),
            Self::Register(Register { domain, access, ref bytes }) => {
                let mut words = with(4, &[domain.0.into(), access.0.into()]);
                words.add_bytes(bytes);
                words
            }
            Self::Deregister(key) => with(5, &[key.value().into()]),
            Self::CreateQueue(depth) => with(6, &[depth.into()]),
            Self::DestroyQueue(queue) => with(7, &[queue.into()]),
            Self::CreateShared(domain, depth, pieces) => with(8, &[domain.0.into(), depth.into(), pieces.into()]),
            Self::SetLimit(shared, limit) => with(9, &[shared.into(), limit.into()]),
            Self::DestroyShared(shared) => with(10, &[shared.into()]),
            Self::CreatePair(ref init) => {
                let mut words = Words::of(11);
                words.add_init(init);
                words
            }
            Self::ModifyPair(qpn, ref told) => {
                let mut words = with(12, &[qpn.value().into()]);
                words.add_attributes(told);
                words
            }
            Self::QueryPair(qpn) => with(13, &[qpn.value().into()]),
            Self::DestroyPair(qpn) => with(14, &[qpn.value().into()]),
            Self::Reregister(Reregister { key, domain, access, ref bytes }) => {
                let mut words = with(15, &[key.value().into()]);
                words.add(domain.map_or(u64::MAX, |domain| domain.0.into()));
                words.add(access.map_or(u64::MAX, |access| access.0.into()));
                if let Some(bytes) = bytes {
                    words.add_bytes(bytes);
                }
                words
            }
            Self::ResizeQueue(queue, depth) => with(16, &[queue.into(), depth.into()]),
            Self::CreateWindow(domain, kind) => with(17, &[domain.0.into(), (kind == WindowType::Two).into()]),
            Self::NextWindowKey(key) => with(18, &[key.value().into()]),
            Self::ForgetWindowKey(key) => with(19, &[key.value().into()]),
            Self::DestroyWindow(key) => with(20, &[key.value().into()]),
            Self::Show(number) => with(22, &[number.into()]),
            Self::Offer(service) => with(23, &[service.0]),
            Self::Withdraw(service) => with(24, &[service.0]),
            Self::Resolve(gid, asks) => {
                let mut words = Words::of(21);
                words.add_gid(gid);
                words.add(asks);
                words
            }
        }
    }

    /// From words; `None`: they are no request.
    pub fn read(mut words: Words) -> Option<Self> {
        let from = &mut words;
        let request = match from.head()? {
            1 => Self::Hello,
            2 => Self::CreateDomain,
            3 => Self::DestroyDomain(ProtectionDomain(from.small()?)),
            4 => Self::Register(Register {
                domain: ProtectionDomain(from.small()?),
                access: Access(from.small()?),
                bytes: from.take_bytes()?,
            }),
            5 => Self::Deregister(Key::new(from.small()?)),
            6 => Self::CreateQueue(from.small()?),
            7 => Self::DestroyQueue(from.small()?),
            8 => Self::CreateShared(ProtectionDomain(from.small()?), from.small()?, from.small()?),
            9 => Self::SetLimit(from.small()?, from.small()?),
            10 => Self::DestroyShared(from.small()?),
            11 => Self::CreatePair(from.init()?),
            12 => Self::ModifyPair(qpn(from)?, from.attributes()?),
            13 => Self::QueryPair(qpn(from)?),
            14 => Self::DestroyPair(qpn(from)?),
            15 => Self::Reregister(Reregister {
                key: Key::new(from.small()?),
                domain: from.optional()?.map(ProtectionDomain),
                access: from.optional()?.map(Access),
                bytes: if from.end().is_some() { None } else { Some(from.take_bytes()?) },
            }),
            16 => Self::ResizeQueue(from.small()?, from.small()?),
            17 => Self::CreateWindow(
                ProtectionDomain(from.small()?),
                if from.flag()? { WindowType::Two } else { WindowType::One },
            ),
            18 => Self::NextWindowKey(Key::new(from.small()?)),
            19 => Self::ForgetWindowKey(Key::new(from.small()?)),
            20 => Self::DestroyWindow(Key::new(from.small()?)),
            21 => Self::Resolve(from.gid()?, from.flag()?),
            22 => Self::Show(from.small()?),
            23 => Self::Offer(ServiceId(from.word()?)),
            24 => Self::Withdraw(ServiceId(from.word()?)),
            _ => return None,
        };
        words.end()?;
        Some(request)
    }
}

fn with(kind: u32, more: &[u64]) -> Words {
    let mut words = Words::of(kind);
    words.words.extend(more);
    words
}

/// The number of a queue pair.
pub fn qpn(words: &mut Words) -> Option<Qpn> {
    words.small().filter(|number: &u32| *number <= 0xff_ffff).map(Qpn::new)
}

impl Welcome {
    /// As an answer.
    pub fn write(&self) -> Words {
        let mut words = Words::of(0);
        words.add_mac(self.mac);
        words.add_gid(self.gid);
        words.add(self.mtu);
        words
    }

    /// From what comes behind the head of an answer.
    pub fn read(words: &mut Words) -> Option<Self> {
        Some(Self { mac: words.mac()?, gid: words.gid()?, mtu: words.small()? })
    }
}

/// The answer to [`Request::CreatePair`], for one of the general service interface with the lowest number of connections.
pub fn write_pair(first_id: Option<u32>, number: Qpn, granted: &Capabilities) -> Words {
    let mut words = Words::answer(&[]);
    first_id.into_iter().for_each(|first| words.add(first));
    words.add(number.value());
    words.add_capabilities(granted);
    words
}

/// The answer to [`Request::Resolve`].
pub fn write_mac(found: Option<[u8; 6]>) -> Words {
    let mut words = Words::answer(&[found.is_some().into()]);
    words.add_mac(found.unwrap_or_default());
    words
}

/// The answer to [`Request::QueryPair`].
pub fn write_query(attributes: &Attributes, draining: bool) -> Words {
    let mut words = Words::answer(&[draining.into()]);
    words.add_attributes(attributes);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn there_and_back(request: &Request) -> Option<Request> {
        Request::read(Words::from_bytes(&request.write().bytes())?)
    }

    const PATH: Path = Path {
        format: Format::RoceV2,
        source_mac: [2, 1, 2, 3, 4, 5],
        destination_mac: [6, 7, 8, 9, 10, 11],
        source: Gid([7; 16]),
        destination: Gid([9; 16]),
        hop_limit: 64,
        traffic_class: 3,
        flow_label: 0xf_ffff,
        source_port: 0xc001,
    };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn requests_come_as_they_went(
            kind in 0usize..24, a: u32, b: u32, c: u32, wide: [u64; 3], mask in any::<u32>(), small: u8
        ) {
            let (domain, qpn) = (ProtectionDomain(a), Qpn::new(a & 0xff_ffff));
            let capabilities = Capabilities { send_requests: a, receive_requests: b, send_pieces: c, receive_pieces: 1, inline: 7 };
            let init = Init {
                service: Service::ReliableConnection, general: small & 1 == 1, domain, send_queue: b, receive_queue: c,
                shared_receive_queue: (small & 2 == 2).then_some(c), capabilities, signal_all: small & 4 == 4, context: 0,
            };
            let is = |bit: u32| mask >> bit & 1 == 1;
            let told = Attributes {
                state: is(0).then_some(State::Drained), current_state: is(1).then_some(State::Error),
                access: is(2).then_some(Access(b)), pkey_index: is(3).then_some(b as u16), port: is(4).then_some(small),
                qkey: is(5).then_some(c), path: is(6).then_some(PATH), path_mtu: is(7).then_some(c as u16),
                remote: is(8).then_some(qpn), receive_psn: is(9).then_some(Psn::new(b)), send_psn: is(10).then_some(Psn::new(c)),
                max_rd_atomic: is(11).then_some(small), max_dest_rd_atomic: is(12).then_some(small),
                min_rnr_timer: is(13).then_some(small), timeout: is(14).then_some(small), retry_count: is(15).then_some(small),
                rnr_retry: is(16).then_some(small), notify_drained: is(17).then_some(small & 1 == 1),
            };
            let [offset, len, base] = wide;
            let parts = Parts::new((0..1 + usize::from(small) % MOST_PARTS).map(|_| (offset, len))).unwrap();
            let bytes = Bytes { parts, skip: b, len, base };
            let key = Key::new(a);
            let kind_of = if small & 1 == 1 { WindowType::One } else { WindowType::Two };
            let changed = Reregister {
                key, domain: is(0).then_some(domain), access: is(1).then_some(Access(b)), bytes: is(2).then_some(bytes),
            };
            let all = [
                Request::Hello, Request::CreateDomain, Request::DestroyDomain(domain),
                Request::Register(Register { domain, access: Access(c), bytes }),
                Request::Deregister(Key::new(a)), Request::CreateQueue(a), Request::DestroyQueue(a),
                Request::CreateShared(domain, b, c), Request::SetLimit(a, b), Request::DestroyShared(a),
                Request::CreatePair(init), Request::ModifyPair(qpn, told), Request::QueryPair(qpn), Request::DestroyPair(qpn),
                Request::Reregister(changed), Request::ResizeQueue(a, b), Request::CreateWindow(domain, kind_of),
                Request::NextWindowKey(key), Request::ForgetWindowKey(key), Request::DestroyWindow(key), Request::Resolve(PATH.source, small & 1 == 1),
                Request::Show(a), Request::Offer(ServiceId(offset)), Request::Withdraw(ServiceId(offset)),
            ];
            prop_assert_eq!(there_and_back(&all[kind]), Some(all[kind]));
            let bytes = all[kind].write().bytes();
            // Of parts there may be one more, or one fewer.
            let is_longer = |words: usize| Words::from_bytes(&[&bytes[..], &[0; 16][..8 * words]].concat()).and_then(Request::read);
            let parts_of = |found| match found {
                Request::Register(Register { bytes, .. }) | Request::Reregister(Reregister { bytes: Some(bytes), .. }) => Some(bytes.parts),
                _ => None,
            };
            prop_assert!(is_longer(2).is_none_or(|found| parts_of(found).is_some_and(|longer| longer != parts)));
            let longer = [&bytes[..], &[0; 8]].concat();
            prop_assert_eq!(Words::from_bytes(&longer).and_then(Request::read), None, "a record that is too long");
            if bytes.len() > 8 {
                prop_assert_eq!(Words::from_bytes(&bytes[..bytes.len() - 8]).and_then(Request::read), None, "one that was cut");
            }
            let mut query = write_query(&told, true).outcome().unwrap().unwrap();
            prop_assert_eq!((query.word(), query.attributes(), query.end()), (Some(1), Some(told), Some(())));
        }

        /// What is read from any words is a request that is written as the same words.
        #[test]
        fn nonsense_is_refused(kind in 0u64..27, words in prop::collection::vec(0u64..9, 0..40), version in 0u64..3) {
            let mut all = vec![version << 32 | kind];
            all.extend(words);
            let words = Words { words: all, at: 0 };
            if let Some(request) = Request::read(words.clone()) {
                prop_assert!(version == u64::from(VERSION));
                prop_assert_eq!(request.write(), words);
            }
        }
    }

    #[test]
    fn answers_say_an_error_or_more() {
        let welcome = Welcome { mac: [2, 1, 2, 3, 4, 5], gid: Gid([3; 16]), mtu: 1024 };
        let mut words = Words::from_bytes(&welcome.write().bytes()).unwrap().outcome().unwrap().unwrap();
        assert_eq!(Welcome::read(&mut words), Some(welcome));
        assert_eq!(Words::refusal(12).outcome(), Some(Err(12)));
        assert_eq!(Words::from_bytes(&[0; 8]).unwrap().outcome(), None, "another version");
        assert_eq!(Words::from_bytes(&[0; 9]), None);
        assert_eq!(Words::from_bytes(&[]), None);
    }
}
