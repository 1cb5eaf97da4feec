//! What a program has of its endpoint in a card: numbers of messages, their memory, and what it was told. No system call.

use super::error::{Error, Refused};
use super::wire::{Asked, End, INLINE, LINES, NEWS_AT, NOWHERE, POOL_AT, SLOTS, Told};
use crate::bell::{Bell, Owner};
use crate::block::{Block, Pool};
use crate::channel::copy;
use crate::control::Tag;
use crate::endpoint::{Event, Peer, Request, Who};
use crate::engine::{Outcome, PairId};
use millrace_dma::{OutOfRange, Region};
use millrace_ring::lines::{self, MOST_WORDS};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Memory of a message.
#[derive(Debug)]
pub enum Memory {
    /// The program's own. What is longer than 1,320 bytes is copied once by the program, from it into a block, or from a block into it.
    Bytes(Vec<u8>),
    /// A block of the pool, which the card reaches: nothing is copied by the program.
    Block(Block),
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Block> for Memory {
    fn from(block: Block) -> Self {
        Self::Block(block)
    }
}

impl Memory {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Block(block) => block.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Block(block) => block.to_vec(),
        }
    }

    /// The bytes, without a copy if they are the program's own.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Block(block) => block.to_vec(),
        }
    }
}

/// A message that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Which.
    pub request: Request,
    /// What became of it. The number of the pair in it is of no use.
    pub outcome: Outcome,
    /// From whom it was received.
    pub from: Option<Peer>,
    /// What was sent; or what was received: of bytes as many as there are, of a block the first so many as the outcome says.
    pub memory: Memory,
}

struct Held {
    memory: Memory,
    /// Where the card has it, if its memory is not there.
    block: Option<Block>,
}

#[derive(Default)]
struct Slot {
    serial: u32,
    held: Option<Held>,
}

/// Events that nobody takes are forgotten beyond so many: those of who has come and gone.
const EVENTS: usize = 1024;
/// Doorbells after which the card is told that they were taken.
const HEARD: u32 = 64;

pub(super) struct Port {
    asked: lines::Sender,
    news: lines::Receiver,
    words: Box<[u64; MOST_WORDS]>,
    out: Vec<u64>,
    pool: Arc<Pool>,
    slots: Vec<Slot>,
    free: Vec<u16>,
    ended: VecDeque<Ended>,
    events: VecDeque<Event>,
    bells: VecDeque<(Peer, Bell)>,
    heard: BTreeMap<Peer, u32>,
    pub answers: VecDeque<(u8, u64)>,
    pub who: BTreeMap<Peer, Who>,
}

impl Port {
    /// Over the memory that this program has made for it.
    pub fn new(memory: Region) -> Result<Self, OutOfRange> {
        let window = memory.window();
        let asked = lines::Sender::new(window, LINES)?;
        let news = lines::Receiver::new(&window.part(NEWS_AT, NEWS_AT)?, LINES)?;
        let mut slots = Vec::new();
        slots.resize_with(SLOTS, Slot::default);
        Ok(Self {
            asked,
            news,
            words: Box::new([0; MOST_WORDS]),
            out: Vec::with_capacity(MOST_WORDS),
            pool: Pool::behind(memory, POOL_AT),
            slots,
            free: (0..SLOTS as u16).rev().collect(),
            ended: VecDeque::new(),
            events: VecDeque::new(),
            bells: VecDeque::new(),
            heard: BTreeMap::new(),
            answers: VecDeque::new(),
            who: BTreeMap::new(),
        })
    }

    /// Asks the card for something. `false`: there is no room now.
    #[must_use]
    pub fn ask(&mut self, asked: &Asked<'_>) -> bool {
        asked.encode(&mut self.out);
        self.asked.send(&self.out)
    }

    /// Whether the card sleeps, and is to be woken. Says so once.
    #[inline]
    pub fn must_wake(&self) -> bool {
        self.asked.must_wake()
    }

    /// A block of the pool.
    pub fn allocate(&self, len: usize) -> Option<Block> {
        self.pool.allocate(len)
    }

    /// Where a message is, or is to be.
    fn place(&self, memory: &Memory) -> Result<(u64, Option<Block>), Error> {
        match memory {
            Memory::Bytes(bytes) if bytes.len() <= INLINE => Ok((NOWHERE, None)),
            Memory::Bytes(bytes) => {
                let block = self.allocate(bytes.len()).ok_or(Error::NoRoom(bytes.len()))?;
                Ok((block.number(), Some(block)))
            }
            Memory::Block(block) if !block.is_of(&self.pool) => Err(Error::NoRoom(block.len())),
            Memory::Block(block) => Ok((block.number(), None)),
        }
    }

    /// Sends a message. `Err` with [`Error::Busy`]: there is no room, or no number, just now.
    pub fn send(&mut self, to: Peer, tag: Tag, memory: Memory) -> Result<Request, Refused> {
        let (at, mut block) = match self.place(&memory) {
            Ok(place) => place,
            Err(why) => return Err(Refused { why, memory }),
        };
        let Some(&slot) = self.free.last() else { return Err(Refused { why: Error::Busy, memory }) };
        let (to, tag, len) = (to.number(), tag.0, memory.len());
        let is_asked = match &memory {
            Memory::Bytes(bytes) if at == NOWHERE => {
                let mut words = [0_u64; INLINE / 8];
                words_of(bytes, &mut words);
                self.ask(&Asked::Send { slot, to, tag, len: len as u16, words: &words[..len.div_ceil(8)] })
            }
            Memory::Bytes(bytes) => {
                let is_in = block.as_mut().is_some_and(|block| block.write(0, bytes).is_ok());
                is_in && self.ask(&Asked::SendPlaced { slot, to, tag, at, len: len as u64 })
            }
            Memory::Block(_) => self.ask(&Asked::SendPlaced { slot, to, tag, at, len: len as u64 }),
        };
        self.begin(is_asked, slot, memory, block)
    }

    /// Waits for a message.
    pub fn receive(&mut self, from: Option<Peer>, tag: Tag, mask: u64, memory: Memory) -> Result<Request, Refused> {
        let (at, block) = match self.place(&memory) {
            Ok(place) => place,
            Err(why) => return Err(Refused { why, memory }),
        };
        let Some(&slot) = self.free.last() else { return Err(Refused { why: Error::Busy, memory }) };
        let (from, capacity) = (from.map_or(0, Peer::number), memory.len() as u64);
        let is_asked = self.ask(&Asked::Receive { slot, from, tag: tag.0, mask, at, capacity });
        self.begin(is_asked, slot, memory, block)
    }

    fn begin(&mut self, is_asked: bool, slot: u16, memory: Memory, block: Option<Block>) -> Result<Request, Refused> {
        if !is_asked {
            return Err(Refused { why: Error::Busy, memory });
        }
        self.free.pop();
        let held = &mut self.slots[usize::from(slot)];
        held.serial = held.serial.wrapping_add(1).max(1);
        held.held = Some(Held { memory, block });
        Ok(request(slot, held.serial))
    }

    /// The number of a message that has not ended.
    pub fn open(&self, request: Request) -> Option<u16> {
        let slot = request.number() as u32;
        let held = self.slots.get(slot as usize)?;
        let is_it = u64::from(held.serial) == request.number() >> 32 && held.held.is_some();
        is_it.then_some(slot as u16)
    }

    /// Whether it was not taken.
    pub fn is_known(&self, request: Request) -> bool {
        self.open(request).is_some() || self.ended.iter().any(|ended| ended.request == request)
    }

    /// Takes what has come. Whether there was something. `Err`: the card says what cannot be.
    pub fn progress(&mut self) -> Result<bool, Error> {
        let mut has_come = false;
        // Not more than the ring has, so that who calls comes to his own matters.
        for _ in 0..LINES {
            let Some(len) = self.news.take(&mut self.words).map_err(|_| Error::Gone)? else { break };
            let told = self.hear(len);
            self.news.give_back();
            told.ok_or(Error::Gone)?;
            has_come = true;
        }
        Ok(has_come)
    }

    fn hear(&mut self, len: usize) -> Option<()> {
        let (told, words) = Told::decode(&self.words[..len])?;
        match told {
            Told::Ended { slot, end } => {
                let at = usize::from(slot);
                let held = self.slots.get_mut(at)?;
                let number = request(slot, held.serial);
                let ended = finish(held.held.take()?, number, end, words)?;
                self.ended.push_back(ended);
                self.free.push(slot);
            }
            Told::Joined { peer, user, pid, name } => {
                let peer = Peer::of_number(peer);
                self.who.insert(peer, Who { name, user, pid: (pid != 0).then_some(pid), host: None });
                self.events.push_back(Event::Joined(peer));
            }
            Told::Lost { peer } => self.lost(Peer::of_number(peer)),
            Told::Answer { code, value } => self.answers.push_back((code, value)),
            Told::Bell { from, number, owner } => {
                self.bells.push_back((Peer::of_number(from), Bell { number, owner: Owner(owner) }));
            }
        }
        Some(())
    }

    fn lost(&mut self, peer: Peer) {
        // Of who has come and gone while nobody asked, nothing is said when there are many.
        let untold = self.events.iter().position(|event| *event == Event::Joined(peer));
        match untold.filter(|_| self.events.len() >= EVENTS) {
            Some(at) => {
                self.events.remove(at);
                self.forget(peer);
            }
            None => self.events.push_back(Event::Lost(peer, None)),
        }
    }

    /// A message that has ended: that one, or the first.
    pub fn take(&mut self, request: Option<Request>) -> Option<Ended> {
        let Some(request) = request else { return self.ended.pop_front() };
        let at = self.ended.iter().position(|ended| ended.request == request)?;
        self.ended.remove(at)
    }

    /// What has happened to others: anything, or only who has called.
    pub fn event(&mut self, only_joined: bool) -> Option<Event> {
        let at = self.events.iter().position(|event| !only_joined || matches!(event, Event::Joined(_)))?;
        let event = self.events.remove(at)?;
        Some(event)
    }

    /// The next doorbell, of one of the others or of any.
    pub fn bell(&mut self, of: Option<Peer>) -> Option<(Peer, Bell)> {
        let at = self.bells.iter().position(|(from, _)| of.is_none_or(|of| of == *from))?;
        let (from, bell) = self.bells.remove(at)?;
        let heard = self.heard.entry(from).or_default();
        *heard += 1;
        let count = *heard;
        if count >= HEARD && self.ask(&Asked::Heard { from: from.number(), count }) {
            self.heard.remove(&from);
        }
        Some((from, bell))
    }

    /// Who has gone is not known any more.
    pub fn forget(&mut self, peer: Peer) {
        self.who.remove(&peer);
        self.heard.remove(&peer);
        self.bells.retain(|(from, _)| *from != peer);
        self.events.retain(|event| event.peer() != peer);
    }

    /// Whether something can be taken.
    pub fn has_news(&self) -> bool {
        !(self.ended.is_empty() && self.events.is_empty() && self.bells.is_empty())
    }

    /// Whether the card has said something.
    #[inline]
    pub fn has_come(&self) -> bool {
        self.news.has_more()
    }

    /// Whether there are numbers for more messages.
    pub fn has_numbers(&self) -> bool {
        !self.free.is_empty()
    }

    /// Says that the card is to wake this program. Whether it may sleep: nothing has come meanwhile.
    pub fn doze(&self) -> bool {
        self.news.doze()
    }

    /// Is awake.
    pub fn awake(&self) {
        self.news.awake();
    }
}

fn request(slot: u16, serial: u32) -> Request {
    Request::of_number(u64::from(serial) << 32 | u64::from(slot))
}

/// Bytes as words.
fn words_of(bytes: &[u8], words: &mut [u64]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, chunk) in words.iter_mut().zip(whole) {
        *word = u64::from_le_bytes(*chunk);
    }
    if !rest.is_empty()
        && let Some(word) = words.get_mut(whole.len())
    {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        *word = u64::from_le_bytes(last);
    }
}

/// A message has ended, with the words of a short one. `None`: it has more bytes than there is room for, or comes from nobody.
fn finish(held: Held, request: Request, end: End, words: &[u64]) -> Option<Ended> {
    let Held { mut memory, block } = held;
    let received = |from: u64, tag: u64, len: u64| {
        let outcome = Outcome::Received { pair: PairId(from as u32), tag: Tag(tag), len };
        (outcome, Some(Peer::of_number(from)))
    };
    let (outcome, from) = match end {
        End::Here { from, tag, len } => {
            let len = usize::from(len);
            if len > memory.len() {
                return None;
            }
            match &mut memory {
                Memory::Bytes(bytes) => {
                    copy(words, &mut bytes[..len]);
                    bytes.truncate(len);
                }
                Memory::Block(block) => {
                    let mut bytes = vec![0; len];
                    copy(words, &mut bytes);
                    block.write(0, &bytes).ok()?;
                }
            }
            received(from, tag, len as u64)
        }
        End::Placed { from, tag, len } => {
            let whole = usize::try_from(len).ok().filter(|len| *len <= memory.len())?;
            if let (Memory::Bytes(bytes), Some(block)) = (&mut memory, &block) {
                bytes.truncate(whole);
                block.read(0, bytes).ok()?;
            }
            received(from, tag, len)
        }
        End::Sent => (Outcome::Sent, None),
        End::Cancelled => (Outcome::Cancelled, None),
        End::TooLong { len } => (Outcome::TooLong { len }, None),
        End::Failed => (Outcome::Failed, None),
        End::Lost => (Outcome::Lost, None),
    };
    Some(Ended { request, outcome, from, memory })
}
