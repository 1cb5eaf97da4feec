//! The program's side: it posts, polls and takes events, all without a system call.
//!
//! The card is told requests by their position in their queue; what the program calls them stays here. So a queue is full when
//! as many are posted as it has room for and none of their completions was taken, as with hardware: requests whose ends are not
//! told are known to have ended when a later one's end is.

use super::work::{ShortWrite, Words, Work};
use super::{EVENT_LINES, EVENTS_AT, SHARED_LEN, WORK_LINES, told};
use crate::number::{Key, Qpn};
use crate::transport::{Capabilities, Event};
use crate::work::{Completion, Ended, Piece, Request};
use millrace_dma::{OutOfRange, Window};
use millrace_ring::lines::{MOST_WORDS, Malformed, ROOM, Receiver, Sender};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Why nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// The queue, or the ring to the card.
    #[error("the queue is full: poll completions, then post again")]
    Queue,
    /// There is no such object.
    #[error("there is no such queue pair or queue")]
    Missing,
    /// Too many pieces or inline bytes.
    #[error("the request has too many pieces, or too many bytes inline")]
    Long,
}

/// What requests of a queue are called, by position.
struct Names {
    /// A power of two, so that positions may wrap at 2^32.
    ids: Box<[u64]>,
    /// Of all queues of this program, this one's life: what is told of one before it, with the same number, is not taken for its own.
    life: u32,
    depth: u32,
    posted: u32,
    ended: u32,
}

impl Names {
    fn new(depth: u32, life: u32) -> Self {
        let ids = vec![0; depth.max(1).next_power_of_two() as usize].into_boxed_slice();
        Self { ids, life, depth, posted: 0, ended: 0 }
    }

    /// What the card knows the next request by.
    fn next(&self) -> u64 {
        u64::from(self.posted) | u64::from(self.life) << 32
    }

    fn is_full(&self) -> bool {
        self.posted.wrapping_sub(self.ended) >= self.depth
    }

    fn room(&self) -> u32 {
        self.depth.saturating_sub(self.posted.wrapping_sub(self.ended))
    }

    fn place(&self, position: u32) -> usize {
        position as usize % self.ids.len()
    }

    fn add(&mut self, id: u64) {
        let place = self.place(self.posted);
        self.ids[place] = id;
        self.posted = self.posted.wrapping_add(1);
    }

    /// The one that the card knows by that, and all before it, have ended: what the program knows it by. `None`: it is of a life
    /// before.
    fn end(&mut self, known: u64) -> Result<Option<u64>, Malformed> {
        let (position, life) = (known as u32, (known >> 32) as u32);
        if life != self.life {
            return Ok(None);
        }
        if position.wrapping_sub(self.ended) >= self.posted.wrapping_sub(self.ended) {
            return Err(Malformed);
        }
        self.ended = position.wrapping_add(1);
        Ok(Some(self.ids[self.place(position)]))
    }
}

struct Pair {
    send: Names,
    receive: Option<Names>,
}

struct Queue {
    ring: Receiver,
    /// Rings that the card fills after that one: the queue got another depth.
    next: VecDeque<Receiver>,
    taken: u32,
}

impl Queue {
    /// Takes a message of this ring, or of the next when this one is empty: the card writes no more to it.
    fn take(&mut self, to: &mut [u64; MOST_WORDS]) -> Result<Option<usize>, Malformed> {
        loop {
            if let Some(len) = self.ring.take(to)? {
                return Ok(Some(len));
            }
            match self.next.pop_front() {
                Some(next) => self.ring = next,
                None => return Ok(None),
            }
        }
    }
}

/// A program that a card serves.
pub struct Program {
    work: Sender,
    events: Receiver,
    words: Words,
    queues: FxHashMap<u32, Queue>,
    pairs: FxHashMap<Qpn, Pair>,
    /// Lives of queue pairs so far.
    lives: u32,
    came: Box<[u64; MOST_WORDS]>,
}

impl Program {
    /// Over the memory that the card shares with it.
    ///
    /// # Errors
    /// The window is too short.
    pub fn new(shared: &Window) -> Result<Self, OutOfRange> {
        let events = shared.part(EVENTS_AT, SHARED_LEN - EVENTS_AT)?;
        Ok(Self {
            work: Sender::new(shared, WORK_LINES)?,
            events: Receiver::new(&events, EVENT_LINES)?,
            words: Words::default(),
            queues: FxHashMap::default(),
            pairs: FxHashMap::default(),
            lives: 0,
            came: Box::new([0; MOST_WORDS]),
        })
    }

    /// A completion queue with room for `depth` lines, which the card has made.
    ///
    /// # Errors
    /// The window is too short.
    pub fn add_queue(&mut self, queue: u32, depth: u32, ring: &Window) -> Result<(), OutOfRange> {
        let ring = Receiver::new(ring, super::queue_lines(depth))?;
        self.queues.insert(queue, Queue { ring, next: VecDeque::new(), taken: 0 });
        Ok(())
    }

    /// The card has given a completion queue another ring, with room for `depth` completions.
    ///
    /// # Errors
    /// The window is too short.
    pub fn resize_queue(&mut self, queue: u32, depth: u32, ring: &Window) -> Result<(), OutOfRange> {
        let ring = Receiver::new(ring, super::queue_lines(depth))?;
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.next.push_back(ring);
        }
        Ok(())
    }

    /// It is destroyed.
    pub fn remove_queue(&mut self, queue: u32) {
        self.queues.remove(&queue);
    }

    /// A queue pair that the card has made, or whose queues are empty again; `shared`: with a shared receive queue.
    pub fn add_pair(&mut self, qpn: Qpn, granted: &Capabilities, shared: bool) {
        self.lives = self.lives.wrapping_add(1);
        let receive = (!shared).then(|| Names::new(granted.receive_requests, self.lives));
        self.pairs.insert(qpn, Pair { send: Names::new(granted.send_requests, self.lives), receive });
    }

    /// It is destroyed, and what is told of it later is not told on.
    pub fn remove_pair(&mut self, qpn: Qpn) {
        self.pairs.remove(&qpn);
    }

    /// Whether the send queue of a queue pair has room for so many requests.
    pub fn has_room(&self, qpn: Qpn, count: usize) -> bool {
        self.pairs.get(&qpn).is_some_and(|pair| count <= pair.send.room() as usize)
    }

    /// Whether the receive queue of a queue pair has room for a buffer.
    pub fn has_receive_room(&self, qpn: Qpn) -> bool {
        let names = self.pairs.get(&qpn).and_then(|pair| pair.receive.as_ref());
        names.is_some_and(|names| !names.is_full())
    }

    /// Adds a request to a send queue. Whether the card is to be rung.
    ///
    /// # Errors
    /// [`Full`].
    pub fn post_send(&mut self, qpn: Qpn, request: &Request<'_>) -> Result<bool, Full> {
        let pair = self.pairs.get_mut(&qpn).ok_or(Full::Missing)?;
        if pair.send.is_full() {
            return Err(Full::Queue);
        }
        let work = Work::Send(qpn, Request { id: pair.send.next(), ..*request });
        put(&mut self.work, &mut self.words, &work)?;
        pair.send.add(request.id);
        Ok(self.work.must_wake())
    }

    /// The same with a WRITE of at most 16 bytes given inline, without immediate data, fence or solicitation. `None`: nothing was done;
    /// [`Program::post_send`] says why, or waits for room.
    #[inline(always)]
    pub fn write_short(&mut self, qpn: Qpn, id: u64, to: (u64, Key), bytes: &[u8], signaled: bool) -> Option<bool> {
        let pair = self.pairs.get_mut(&qpn).filter(|pair| !pair.send.is_full())?;
        let (address, rkey) = to;
        let mut short = ShortWrite {
            qpn,
            id: pair.send.next(),
            address,
            rkey,
            len: bytes.len(),
            bytes: Default::default(),
            signaled,
        };
        short.bytes.get_mut(..bytes.len()).filter(|bytes| !bytes.is_empty())?.copy_from_slice(bytes);
        let (words, count) = short.words();
        if !self.work.send_line(&words, count) {
            return None;
        }
        pair.send.add(id);
        Some(self.work.must_wake())
    }

    /// Whether the ring to the card has room for all of these; or it never would, because they are too many, and they have to go one by one.
    pub fn has_lines<'r>(&mut self, qpn: Qpn, requests: impl Iterator<Item = Request<'r>>) -> Result<bool, Full> {
        let mut words = 0;
        for request in requests {
            let one = self.words.of(&Work::Send(qpn, request)).ok_or(Full::Long)?;
            words += one.len().next_multiple_of(ROOM);
        }
        Ok(words > WORK_LINES as usize * ROOM || self.work.has_room(words))
    }

    /// Adds a buffer to a receive queue. Whether the card is to be rung.
    ///
    /// # Errors
    /// [`Full`].
    pub fn post_receive(&mut self, qpn: Qpn, id: u64, pieces: &[Piece]) -> Result<bool, Full> {
        let names = self.pairs.get_mut(&qpn).and_then(|pair| pair.receive.as_mut()).ok_or(Full::Missing)?;
        if names.is_full() {
            return Err(Full::Queue);
        }
        put(&mut self.work, &mut self.words, &Work::Receive(qpn, names.next(), pieces))?;
        names.add(id);
        Ok(self.work.must_wake())
    }

    /// Adds a buffer to a shared receive queue. Whether the card is to be rung.
    ///
    /// # Errors
    /// [`Full`].
    pub fn post_shared(&mut self, shared: u32, id: u64, pieces: &[Piece]) -> Result<bool, Full> {
        put(&mut self.work, &mut self.words, &Work::ReceiveShared(shared, id, pieces))?;
        Ok(self.work.must_wake())
    }

    /// The next completion makes an [`Event::Completion`]. Whether the card is to be rung.
    ///
    /// # Errors
    /// [`Full`].
    pub fn arm(&mut self, queue: u32, solicited_only: bool) -> Result<bool, Full> {
        let taken = self.queues.get(&queue).ok_or(Full::Missing)?.taken;
        put(&mut self.work, &mut self.words, &Work::Arm { queue, solicited_only, taken })?;
        Ok(self.work.must_wake())
    }

    /// Whether there is a completion.
    pub fn has_completions(&self, queue: u32) -> bool {
        let has_more = |queue: &Queue| queue.ring.has_more() || queue.next.iter().any(Receiver::has_more);
        self.queues.get(&queue).is_some_and(has_more)
    }

    /// Takes completions. How many they are.
    ///
    /// # Errors
    /// [`Malformed`]: this is not a card. A queue that does not exist is never filled.
    pub fn poll(&mut self, queue: u32, to: &mut [Completion]) -> Result<usize, Malformed> {
        let Some(queue) = self.queues.get_mut(&queue) else { return Ok(0) };
        let mut count = 0;
        while count < to.len() {
            let Some(len) = queue.take(&mut self.came)? else { break };
            queue.taken = queue.taken.wrapping_add(1);
            let mut found = told::read(&self.came[..len])?;
            // Of one that was destroyed since.
            let Some(pair) = self.pairs.get_mut(&found.qpn) else { continue };
            let is_receive = matches!(found.ended, Ended::Receive | Ended::ReceiveWrite);
            let names = if is_receive { pair.receive.as_mut() } else { Some(&mut pair.send) };
            if let Some(names) = names {
                let Some(id) = names.end(found.id)? else { continue };
                found.id = id;
            }
            to[count] = found;
            count += 1;
        }
        queue.ring.give_back();
        Ok(count)
    }

    /// Takes an event.
    ///
    /// # Errors
    /// [`Malformed`]: this is not a card.
    pub fn take_event(&mut self) -> Result<Option<Event>, Malformed> {
        let Some(len) = self.events.take(&mut self.came)? else { return Ok(None) };
        self.events.give_back();
        match self.came[..len] {
            [word] => told::read_event(word).map(Some),
            _ => Err(Malformed),
        }
    }

    /// Asks to be rung when there is an event. Whether there is none yet, so that the program may sleep.
    pub fn doze(&self) -> bool {
        self.events.doze()
    }

    /// Is awake.
    pub fn awake(&self) {
        self.events.awake();
    }
}

fn put(ring: &mut Sender, words: &mut Words, work: &Work<'_>) -> Result<(), Full> {
    let words = words.of(work).ok_or(Full::Long)?;
    if ring.send(words) { Ok(()) } else { Err(Full::Queue) }
}
