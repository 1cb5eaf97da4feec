//! The card's side of an RX queue that several programs read: gives back to the ring what all of them have passed.
//!
//! Runs on the worker that serves the queue, and only when the ring has no room left, so that a queue with subscribers
//! costs no more per packet than one without. It is a software half of the ring (it posts Medusa descriptors, or moves
//! the SZE pointer) whose `put` is decided by the slowest of the [cursors](crate::cursor).

use crate::cursor::{Look, Position, Watched};
use crate::{calypte, medusa, sze};
use core::sync::atomic::{AtomicU64, Ordering as Count};
use millrace_abi::queue::{Laggard, MAX_SUBSCRIBERS};
use millrace_dma::{Ordering, Slots32, Slots64, Word64};
use std::sync::Arc;

#[cfg(all(test, not(loom)))]
mod tests;

/// The software half of the ring that is shared.
pub enum Pool {
    /// Fixed buffers; positions count packets.
    Medusa(medusa::FixedRx),
    /// A byte ring; positions count 8-byte units.
    Sze(sze::HostRx),
    /// A block ring; positions count packets.
    Calypte(calypte::HostRx),
}

impl Pool {
    /// Units published by the card and not given back.
    fn published(&mut self) -> u64 {
        u64::from(match self {
            Pool::Medusa(queue) => queue.ready(),
            Pool::Sze(queue) => queue.ready() / 8,
            Pool::Calypte(queue) => queue.published(),
        })
    }

    fn put(&mut self, units: u64) {
        match self {
            Pool::Medusa(queue) => {
                queue.put(units as u32);
                queue.flush();
            }
            Pool::Sze(queue) => {
                queue.put(units as u32 * 8);
                queue.flush();
            }
            Pool::Calypte(queue) => {
                queue.put(units as u32);
                queue.flush();
            }
        }
    }
}

/// What a subscriber lost, for its owner to read.
#[derive(Debug, Default)]
pub struct Losses {
    skipped: AtomicU64,
}

impl Losses {
    /// Units that the subscriber was moved past because it was too slow.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Count::Relaxed)
    }
}

struct Subscription {
    id: u32,
    cursor: Watched,
    policy: Laggard,
    losses: Arc<Losses>,
}

/// Gives ring space back at the pace of the slowest subscriber.
pub struct Reclaimer {
    pool: Pool,
    tail: Position,
    subscriptions: Vec<Subscription>,
    // Packet boundaries between tail and head, oldest first: where a laggard may be moved to.
    marks: [Position; MARKS],
    marked: usize,
}

const MARKS: usize = 4;

/// Subscribers that one call of [`Reclaimer::reclaim`] threw out.
pub type Evicted = [Option<u32>; MAX_SUBSCRIBERS];

impl Reclaimer {
    /// A queue without subscribers whose positions begin at `start`.
    pub fn new(pool: Pool, start: Position) -> Self {
        let subscriptions = Vec::with_capacity(MAX_SUBSCRIBERS);
        Self { pool, tail: start, subscriptions, marks: [start; MARKS], marked: 0 }
    }

    /// Where a subscriber that comes now begins: behind everything published.
    pub fn head(&mut self) -> Position {
        self.tail.plus(self.pool.published())
    }

    /// Adds a subscriber whose cursor begins at [`Reclaimer::head`]. `false` when there are [`MAX_SUBSCRIBERS`].
    pub fn join(&mut self, id: u32, word: Word64, policy: Laggard, losses: Arc<Losses>) -> bool {
        if self.subscriptions.len() == MAX_SUBSCRIBERS {
            return false;
        }
        let cursor = Watched::new(word, self.head());
        self.subscriptions.push(Subscription { id, cursor, policy, losses });
        true
    }

    /// Removes a subscriber.
    pub fn leave(&mut self, id: u32) {
        self.subscriptions.retain(|subscription| subscription.id != id);
    }

    /// How many subscribers there are.
    pub fn subscribers(&self) -> usize {
        self.subscriptions.len()
    }

    /// Remembers that everything published so far ends at a packet boundary. Cheap; to be called after a burst.
    #[inline]
    pub fn mark(&mut self) {
        if self.marked < MARKS {
            self.marks[self.marked] = self.head();
            self.marked += 1;
        }
    }

    /// Gives back what every subscriber has passed; moves or throws out laggards when nothing else makes room.
    /// Returns whether there is more room than before, and who was thrown out.
    pub fn reclaim(&mut self) -> (bool, Evicted) {
        let mut evicted: Evicted = [None; MAX_SUBSCRIBERS];
        let mut count = 0;
        let published = self.pool.published();
        let mut slowest = self.slowest(published, &mut evicted, &mut count);
        if slowest == 0 && published > 0 {
            self.hurry_laggards(published, &mut evicted, &mut count);
            slowest = self.slowest(published, &mut evicted, &mut count);
        }
        if slowest > 0 {
            self.pool.put(slowest);
            self.tail = self.tail.plus(slowest);
            self.forget_marks(published - slowest);
        }
        (slowest > 0, evicted)
    }

    fn slowest(&mut self, published: u64, evicted: &mut Evicted, count: &mut usize) -> u64 {
        let mut slowest = published;
        let tail = self.tail;
        self.subscriptions.retain(|subscription| match subscription.cursor.look(tail, published) {
            Look::Passed(units) => {
                slowest = slowest.min(units);
                true
            }
            // It writes nonsense into its own page: nobody else has to suffer for that.
            Look::Nonsense => {
                subscription.cursor.end();
                note(evicted, count, subscription.id);
                false
            }
        });
        slowest
    }

    /// The ring is full and somebody stands at its tail: the policies decide.
    #[cold]
    fn hurry_laggards(&mut self, published: u64, evicted: &mut Evicted, count: &mut usize) {
        let tail = self.tail;
        let to = if self.marked > 0 { self.marks[0] } else { tail.plus(published) };
        self.subscriptions.retain(|subscription| {
            if subscription.cursor.look(tail, published) != Look::Passed(0) {
                return true;
            }
            match subscription.policy {
                Laggard::Block => {}
                Laggard::Drop => {
                    if let Some(lost) = subscription.cursor.skip(to) {
                        subscription.losses.skipped.fetch_add(lost, Count::Relaxed);
                    }
                }
                Laggard::Evict => {
                    subscription.cursor.end();
                    note(evicted, count, subscription.id);
                    return false;
                }
            }
            true
        });
    }

    /// Drops marks that the tail has reached; `left` units lie behind it.
    fn forget_marks(&mut self, left: u64) {
        let tail = self.tail;
        let keep = |mark: Position| tail.distance(mark) > 0 && tail.distance(mark) <= left;
        let mut kept = 0;
        for i in 0..self.marked {
            if keep(self.marks[i]) {
                self.marks[kept] = self.marks[i];
                kept += 1;
            }
        }
        self.marked = kept;
    }
}

fn note(evicted: &mut Evicted, count: &mut usize, id: u32) {
    if let Some(slot) = evicted.get_mut(*count) {
        *slot = Some(id);
        *count += 1;
    }
}

/// A subscriber's half of a shared RX queue: in the program (direct mode) or in the driver on its behalf (mediated).
pub struct Reader {
    ring: ReadRing,
    subscriber: crate::cursor::Subscriber,
    // Units in our hands.
    held: u32,
    lost: u64,
}

/// What a [`Reader`] needs to see of the ring.
pub enum ReadRing {
    /// Header ring and update word; `base` is the position at which the header ring began.
    Medusa {
        /// Header ring.
        headers: Slots32,
        /// HDP and HHP.
        update: Word64,
        /// Position of header 0.
        base: Position,
    },
    /// The update word of a byte ring of `size` bytes; `base` is the position at which it began.
    Sze {
        /// HW.
        update: Word64,
        /// Size of the ring in bytes.
        size: u32,
        /// Position of HW = 0.
        base: Position,
    },
    /// Header ring and update word, as for Medusa: whoever shares a ring reads what the card counts by.
    Calypte {
        /// Header ring.
        headers: Slots64,
        /// HDP and HHP.
        update: Word64,
        /// Position of header 0.
        base: Position,
    },
}

impl ReadRing {
    /// Units published behind `position`.
    #[inline(always)]
    fn published(&self, position: Position) -> u32 {
        match self {
            ReadRing::Medusa { headers, update, base } => {
                // Acquire pairs with the Release in `medusa::CardRx::publish`.
                let hhp = medusa::Pointers::decode(update.load(Ordering::Acquire)).headers;
                hhp.wrapping_sub(base.distance(position) as u32) & headers.mask()
            }
            ReadRing::Sze { update, size, base } => {
                // Acquire pairs with the Release in `sze::CardRx::publish`.
                let hw = update.load(Ordering::Acquire) as u32 / 8;
                hw.wrapping_sub(base.distance(position) as u32) & (size / 8 - 1)
            }
            ReadRing::Calypte { headers, update, base } => {
                // Acquire pairs with the Release in `calypte::CardRx::publish`.
                let hhp = calypte::Pointers::decode(update.load(Ordering::Acquire)).headers;
                hhp.wrapping_sub(base.distance(position) as u32) & headers.mask()
            }
        }
    }
}

impl Reader {
    /// A reader that begins where `subscriber` stands.
    pub fn new(ring: ReadRing, subscriber: crate::cursor::Subscriber) -> Self {
        Self { ring, subscriber, held: 0, lost: 0 }
    }

    /// Position of the first unit in our hands, or of the next if there is none.
    #[inline(always)]
    pub fn position(&self) -> Position {
        self.subscriber.position()
    }

    /// Units in our hands.
    #[inline(always)]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Units behind the position that the card has published, whether in our hands or not.
    #[inline(always)]
    pub fn published(&mut self) -> u32 {
        let units = self.ring.published(self.subscriber.position());
        if units > 0 || self.held > 0 {
            return units;
        }
        // From a position that the card has moved on, exactly one ring of packets looks like none.
        self.lost = self.lost.saturating_add(self.subscriber.catch_up());
        self.ring.published(self.subscriber.position())
    }

    /// Takes at most `want` units more, behind those already in our hands, and returns how many.
    #[inline(always)]
    pub fn hold(&mut self, want: u32) -> u32 {
        if self.held > 0 {
            return self.hold_more(want);
        }
        // Skipped by the card: look again at the new position. It skips only when the ring is full, so the second
        // look mostly succeeds; a reader that is skipped for ever gives up and is told what it lost.
        for _ in 0..4 {
            let units = self.published().min(want).min(crate::cursor::Cursor::MOST_HELD);
            if units == 0 {
                return 0;
            }
            match self.subscriber.hold(units) {
                Ok(()) => {
                    self.held = units;
                    return units;
                }
                // Saturating: in mediated mode the word lies in a page that the program can write.
                Err(lost) => self.lost = self.lost.saturating_add(lost),
            }
        }
        0
    }

    /// While something is in our hands nobody but us moves the word, so there is nothing to lose and no need to look
    /// again.
    #[cold]
    fn hold_more(&mut self, want: u32) -> u32 {
        let most = self.held.saturating_add(want).min(crate::cursor::Cursor::MOST_HELD);
        let all = self.published().min(most).max(self.held);
        let more = all - self.held;
        if more > 0 {
            self.subscriber.give_back(0, all);
            self.held = all;
        }
        more
    }

    /// Gives back the first `units` in our hands; the rest stays there.
    #[inline(always)]
    pub fn release(&mut self, units: u32) {
        let units = units.min(self.held);
        let rest = self.held - units;
        self.subscriber.give_back(units, rest);
        self.held = rest;
    }

    /// Gives back the first `units` in our hands and lets go of the rest, to be taken again.
    #[inline(always)]
    pub fn release_partly(&mut self, units: u32) {
        self.subscriber.give_back(units.min(self.held), 0);
        self.held = 0;
    }

    /// Units lost since the last time, because we were too slow.
    pub fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.lost)
    }

    /// Medusa: header of the packet `ahead` of the first in our hands.
    #[inline(always)]
    pub fn header(&self, ahead: u32) -> medusa::RxHeader {
        match &self.ring {
            ReadRing::Medusa { headers, base, .. } => {
                let index = base.distance(self.subscriber.position()) as u32;
                medusa::RxHeader::decode(headers.load(index.wrapping_add(ahead)))
            }
            ReadRing::Sze { .. } | ReadRing::Calypte { .. } => medusa::RxHeader::decode(0),
        }
    }

    /// Calypte: the same.
    #[inline(always)]
    pub fn calypte_header(&self, ahead: u32) -> calypte::Header {
        match &self.ring {
            ReadRing::Calypte { headers, base, .. } => {
                let index = base.distance(self.subscriber.position()) as u32;
                calypte::Header::decode(headers.load(index.wrapping_add(ahead)))
            }
            ReadRing::Sze { .. } | ReadRing::Medusa { .. } => calypte::Header::default(),
        }
    }
}
