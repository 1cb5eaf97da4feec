//! What stands in the rings of a control page: words of 64 bits.
//!
//! | Word | Request | Answer, or what is told |
//! |---|---|---|
//! | 0 | version (upper half), kind | version, kind: 0 answer, 1 connected, 2 over, 3 told |
//! | 1 | number of the request: the guest's choice | of an answer: number of the request |
//! | 2 | what the request says, a word for each number | of an answer: number of the error, or 0 |
//!
//! What is told unasked has no number. One request of a guest is answered at a time, in their order. An answer belongs to the request that has its
//! number and to no other: one that comes when nobody waits for it any more is dropped. Requests for objects of the engine are those of
//! [`millrace_served::wire`], as they stand there, behind the number.

use crate::page::{MOST_WORDS, VERSION};
use crate::run::Run;
use millrace_dma::Iova;
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::number::{Gid, Key, Qpn};
use millrace_rdma::transport::{Capabilities, Init};
use millrace_rdma::work::Access;
use millrace_served::wire::{self, Words};
use millrace_slurpoe::Address;

/// Runs of references of one request: each is a word.
pub const MOST_RUNS: usize = 80;
/// Bytes that can be told at once.
pub const MOST_TOLD: usize = 200;

/// What a guest asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// First of all. The answer is [`Welcome`].
    Hello,
    /// Memory of so many pages, of which these are the next. The answer is how many are known now, and when these are all, where they begin in
    /// the guest's domain: an IOVA.
    Grant {
        /// Pages, all together.
        pages: u32,
        /// Which of them is the first of these. 0: what was known of other memory is forgotten.
        first: u32,
        /// By which the next are known.
        runs: Vec<Run>,
    },
    /// The memory that begins there is mapped no more when this is answered. EBUSY: a ring or a region lies in it.
    Release(Iova),
    /// The program's rings begin there. The answer has nothing.
    Join(Iova),
    /// A completion queue of that depth, whose ring begins there. The answer is its number.
    CreateQueue(u32, Iova),
    /// A region. The answer is its two keys.
    Register {
        /// Who may reach it.
        domain: ProtectionDomain,
        /// Rights.
        access: Access,
        /// Where it begins.
        at: Iova,
        /// Bytes.
        len: u64,
        /// The address that requests have for its first byte.
        base: u64,
    },
    /// Changes a region. The answer is its two new keys.
    Reregister {
        /// Its key until now.
        key: Key,
        /// Another protection domain.
        domain: Option<ProtectionDomain>,
        /// Other rights.
        access: Option<Access>,
        /// Other bytes: where they begin, how many they are, and the address that requests have for the first.
        bytes: Option<(Iova, u64, u64)>,
    },
    /// A completion queue gets another depth, and a ring that begins there. The answer has nothing.
    ResizeQueue(u32, u32, Iova),
    /// An object of the engine, by any request that needs no memory. The answer is that of the engine.
    Engine(wire::Request),
    /// An endpoint: of which kind queue pairs are that others ask for. The answer is its address.
    Open(Init),
    /// A connection with that endpoint. The answer is the queue pair of this side, and what was granted. ENOENT: there is none. EALREADY: they are
    /// connected, which was told, or answered, before. EAGAIN: it does not read what it is told, or this one has connected too often.
    Connect(Address),
    /// The connection with that endpoint is over.
    Disconnect(Address),
    /// A few bytes for the program of that endpoint. EAGAIN: it has not read what was told it before.
    Tell(Address, Vec<u8>),
    /// What the backend has counted for this guest. The answer is [`GuestCounts`](crate::GuestCounts).
    Count,
}

/// What a guest is told first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Address of the endpoint that it may open.
    pub address: Address,
    /// MAC address of the engine.
    pub mac: Address,
    /// Its IP address, as a GID has it: that of queue pairs which a program makes itself.
    pub gid: Gid,
    /// Most bytes of payload of their packets.
    pub mtu: u16,
    /// Pages that it may have mapped.
    pub pages: u64,
}

/// What comes from the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The answer to the request with that number: an error, or what it says.
    Answer(u64, Result<Vec<u64>, i32>),
    /// Another endpoint has connected with this one: the queue pair of this side, and what was granted.
    Connected(Address, Qpn, Capabilities),
    /// The connection with that endpoint is over.
    Over(Address),
    /// What a program has told.
    Told(Address, Vec<u8>),
}

mod kind {
    pub const ANSWER: u32 = 0;
    pub const CONNECTED: u32 = 1;
    pub const OVER: u32 = 2;
    pub const TOLD: u32 = 3;
}

fn head(kind: u32) -> u64 {
    u64::from(VERSION) << 32 | u64::from(kind)
}

fn kind_of(word: u64) -> Option<u32> {
    (word >> 32 == u64::from(VERSION)).then_some(word as u32)
}

/// An address as a word.
pub fn word_of(address: Address) -> u64 {
    address.0.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The other way round; `None`: it is none.
pub fn address_of(word: u64) -> Option<Address> {
    let [0, 0, address @ ..] = word.to_be_bytes() else { return None };
    Some(Address(address))
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    })
}

fn bytes_of(len: u64, words: &[u64]) -> Option<Vec<u8>> {
    let len = usize::try_from(len).ok().filter(|len| *len <= MOST_TOLD && words.len() == len.div_ceil(8))?;
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(len);
    Some(bytes)
}

fn engine_words(request: &wire::Request) -> Vec<u64> {
    words_of(&request.write().bytes()).collect()
}

fn engine_request(words: &[u64]) -> Option<wire::Request> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    wire::Request::read(Words::from_bytes(&bytes)?)
}

/// A number that is not said.
const NONE: u64 = u64::MAX;

fn optional(word: u64) -> Option<Option<u32>> {
    if word == NONE { Some(None) } else { small(word).map(Some) }
}

fn small<T: TryFrom<u64>>(word: u64) -> Option<T> {
    T::try_from(word).ok()
}

impl Request {
    /// What it asks for, for people.
    pub fn what(&self) -> &'static str {
        match self {
            Self::Hello => "the greeting",
            Self::Grant { .. } => "to map memory",
            Self::Release(_) => "to give memory back",
            Self::Join(_) => "the rings",
            Self::CreateQueue(..) => "a completion queue",
            Self::Register { .. } => "to register memory",
            Self::Reregister { .. } => "to change a region",
            Self::ResizeQueue(..) => "another depth of a completion queue",
            Self::Engine(_) => "a request of the engine",
            Self::Open(_) => "to open an endpoint",
            Self::Connect(_) => "to connect",
            Self::Disconnect(_) => "to disconnect",
            Self::Tell(..) => "to tell another endpoint something",
            Self::Count => "to count",
        }
    }

    /// As words, with that number.
    pub fn write(&self, number: u64) -> Vec<u64> {
        let (kind, more) = match self {
            Self::Hello => (1, vec![]),
            Self::Grant { pages, first, runs } => {
                let mut words = vec![u64::from(*pages), u64::from(*first), runs.len() as u64];
                words.extend(runs.iter().map(|run| run.word()));
                (2, words)
            }
            Self::Release(at) => (3, vec![at.get()]),
            Self::Join(at) => (4, vec![at.get()]),
            Self::CreateQueue(depth, at) => (5, vec![u64::from(*depth), at.get()]),
            Self::Register { domain, access, at, len, base } => {
                (6, vec![u64::from(domain.0), u64::from(access.0), at.get(), *len, *base])
            }
            Self::Engine(request) => (7, engine_words(request)),
            Self::Open(init) => (8, engine_words(&wire::Request::CreatePair(*init))),
            Self::Connect(other) => (9, vec![word_of(*other)]),
            Self::Disconnect(other) => (10, vec![word_of(*other)]),
            Self::Tell(other, bytes) => {
                let mut words = vec![word_of(*other), bytes.len() as u64];
                words.extend(words_of(bytes));
                (11, words)
            }
            Self::Count => (12, vec![]),
            Self::ResizeQueue(queue, depth, at) => (13, vec![u64::from(*queue), u64::from(*depth), at.get()]),
            Self::Reregister { key, domain, access, bytes } => {
                let domain = domain.map_or(NONE, |domain| domain.0.into());
                let mut words = vec![key.value().into(), domain, access.map_or(NONE, |access| access.0.into())];
                words.extend(bytes.iter().flat_map(|(at, len, base)| [at.get(), *len, *base]));
                (14, words)
            }
        };
        [vec![head(kind), number], more].concat()
    }

    /// Its number and itself, from words; `None`: they are no request.
    pub fn read(words: &[u64]) -> Option<(u64, Self)> {
        let [head, number, more @ ..] = words else { return None };
        let request = match (kind_of(*head)?, more) {
            (1, []) => Self::Hello,
            (2, [pages, first, count, runs @ ..])
                if (1..=MOST_RUNS).contains(&runs.len()) && *count == runs.len() as u64 =>
            {
                let runs = runs.iter().map(|word| Run::of_word(*word)).collect();
                Self::Grant { pages: small(*pages)?, first: small(*first)?, runs }
            }
            (3, [at]) => Self::Release(Iova::new(*at)),
            (4, [at]) => Self::Join(Iova::new(*at)),
            (5, [depth, at]) => Self::CreateQueue(small(*depth)?, Iova::new(*at)),
            (6, [domain, access, at, len, base]) => Self::Register {
                domain: ProtectionDomain(small(*domain)?),
                access: Access(small(*access)?),
                at: Iova::new(*at),
                len: *len,
                base: *base,
            },
            (7, more) => Self::Engine(engine_request(more)?),
            (8, more) => match engine_request(more)? {
                wire::Request::CreatePair(init) => Self::Open(init),
                _ => return None,
            },
            (9, [other]) => Self::Connect(address_of(*other)?),
            (10, [other]) => Self::Disconnect(address_of(*other)?),
            (11, [other, len, bytes @ ..]) => Self::Tell(address_of(*other)?, bytes_of(*len, bytes)?),
            (12, []) => Self::Count,
            (13, [queue, depth, at]) => Self::ResizeQueue(small(*queue)?, small(*depth)?, Iova::new(*at)),
            (14, [key, domain, access, bytes @ ..]) => Self::Reregister {
                key: Key::new(small(*key)?),
                domain: optional(*domain)?.map(ProtectionDomain),
                access: optional(*access)?.map(Access),
                bytes: match *bytes {
                    [] => None,
                    [at, len, base] => Some((Iova::new(at), len, base)),
                    _ => return None,
                },
            },
            _ => return None,
        };
        Some((*number, request))
    }
}

impl Welcome {
    /// As words of an answer.
    pub fn write(&self) -> Vec<u64> {
        let (high, low) = self.gid.0.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        vec![word_of(self.address), word_of(self.mac), half(high), half(low), self.mtu.into(), self.pages]
    }

    /// The other way round.
    pub fn read(words: &[u64]) -> Option<Self> {
        let &[address, mac, high, low, mtu, pages] = words else { return None };
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&high.to_be_bytes());
        gid[8..].copy_from_slice(&low.to_be_bytes());
        Some(Self { address: address_of(address)?, mac: address_of(mac)?, gid: Gid(gid), mtu: small(mtu)?, pages })
    }
}

/// A queue pair, and what was granted, as words of an answer.
pub fn pair_words(qpn: Qpn, granted: &Capabilities) -> [u64; 6] {
    let Capabilities { send_requests, receive_requests, send_pieces, receive_pieces, inline } = *granted;
    [qpn.value(), send_requests, receive_requests, send_pieces, receive_pieces, inline].map(u64::from)
}

/// The other way round.
pub fn read_pair(words: &[u64]) -> Option<(Qpn, Capabilities)> {
    let &[qpn, send_requests, receive_requests, send_pieces, receive_pieces, inline] = words else { return None };
    let granted = Capabilities {
        send_requests: small(send_requests)?,
        receive_requests: small(receive_requests)?,
        send_pieces: small(send_pieces)?,
        receive_pieces: small(receive_pieces)?,
        inline: small(inline)?,
    };
    Some((small(qpn).filter(|qpn| *qpn <= 0xff_ffff).map(Qpn::new)?, granted))
}

impl Message {
    /// As words.
    pub fn write(&self) -> Vec<u64> {
        match self {
            Self::Answer(number, Ok(words)) => [&[head(kind::ANSWER), *number, 0], &words[..]].concat(),
            Self::Answer(number, Err(errno)) => {
                vec![head(kind::ANSWER), *number, u64::from(errno.unsigned_abs().max(1))]
            }
            Self::Connected(other, qpn, granted) => {
                [&[head(kind::CONNECTED), word_of(*other)], &pair_words(*qpn, granted)[..]].concat()
            }
            Self::Over(other) => vec![head(kind::OVER), word_of(*other)],
            Self::Told(from, bytes) => {
                let mut words = vec![head(kind::TOLD), word_of(*from), bytes.len() as u64];
                words.extend(words_of(bytes));
                words
            }
        }
    }

    /// From words; `None`: they are no message.
    pub fn read(words: &[u64]) -> Option<Self> {
        let (first, more) = words.split_first()?;
        Some(match (kind_of(*first)?, more) {
            (kind::ANSWER, [number, 0, more @ ..]) => Self::Answer(*number, Ok(more.to_vec())),
            (kind::ANSWER, [number, errno]) => Self::Answer(*number, Err(small(*errno)?)),
            (kind::CONNECTED, [other, pair @ ..]) => {
                let (qpn, granted) = read_pair(pair)?;
                Self::Connected(address_of(*other)?, qpn, granted)
            }
            (kind::OVER, [other]) => Self::Over(address_of(*other)?),
            (kind::TOLD, [from, len, bytes @ ..]) => Self::Told(address_of(*from)?, bytes_of(*len, bytes)?),
            _ => return None,
        })
    }
}

// The longest of each: references, the attributes of a queue pair, what is told.
const _: () = assert!(5 + MOST_RUNS <= MOST_WORDS && 3 + wire::MOST_WORDS <= MOST_WORDS);
const _: () = assert!(4 + MOST_TOLD.div_ceil(8) <= MOST_WORDS);

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_rdma::wire::Service;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn requests_and_messages_come_as_they_went(
            kind in 0usize..15, a: u32, b: u32, wide: [u64; 2], mac: [u8; 6],
            runs in prop::collection::vec(any::<u64>().prop_map(Run::of_word), 1..=MOST_RUNS),
            bytes in prop::collection::vec(any::<u8>(), 0..=MOST_TOLD),
        ) {
            let (other, at) = (Address(mac), Iova::new(wide[0]));
            let granted = Capabilities { send_requests: a, receive_requests: b, send_pieces: 1, receive_pieces: 2, inline: 3 };
            let init = Init {
                service: Service::ReliableConnection, general: false, domain: ProtectionDomain(a), send_queue: a, receive_queue: b,
                shared_receive_queue: None, capabilities: granted, signal_all: false, context: 0,
            };
            let all = [
                Request::Hello, Request::Grant { pages: a, first: b, runs }, Request::Release(at), Request::Join(at),
                Request::CreateQueue(a, at),
                Request::Register { domain: ProtectionDomain(a), access: Access(b), at, len: wide[1], base: wide[0] },
                Request::Engine(wire::Request::Deregister(Key::new(a))), Request::Open(init), Request::Connect(other),
                Request::Disconnect(other), Request::Tell(other, bytes.clone()), Request::Count, Request::ResizeQueue(a, b, at),
                Request::Reregister { key: Key::new(a), domain: Some(ProtectionDomain(b)), access: None, bytes: None },
                Request::Reregister { key: Key::new(a), domain: None, access: Some(Access(b)), bytes: Some((at, wide[1], wide[0])) },
            ];
            let words = all[kind].write(wide[0]);
            prop_assert!(words.len() <= MOST_WORDS);
            prop_assert_eq!(Request::read(&words), Some((wide[0], all[kind].clone())));
            prop_assert_eq!(Request::read(&[&words[..], &[1]].concat()), None, "one that is too long");
            prop_assert_eq!(Request::read(&words[..words.len() - 1]), None, "one that was cut");
            let mut older = words;
            older[0] ^= 1 << 40;
            prop_assert_eq!(Request::read(&older), None, "another version");

            let qpn = Qpn::new(a & 0xff_ffff);
            for message in [
                Message::Answer(wide[1], Ok(wide.to_vec())), Message::Answer(wide[1], Err(12)), Message::Connected(other, qpn, granted),
                Message::Over(other), Message::Told(other, bytes),
            ] {
                prop_assert_eq!(Message::read(&message.write()), Some(message));
            }
        }

        /// Whatever stands there, reading it is all that happens; what is a request is written as the same words.
        #[test]
        fn nonsense_is_refused(kind in 0u64..16, words in prop::collection::vec(0u64..9, 0..MOST_WORDS)) {
            let all = [vec![u64::from(VERSION) << 32 | kind], words].concat();
            if let Some((number, request)) = Request::read(&all) {
                prop_assert_eq!(request.write(number), all.clone());
            }
            let _ = Message::read(&all);
        }
    }
}
