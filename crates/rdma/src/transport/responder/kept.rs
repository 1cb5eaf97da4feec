//! Requests that came too early, kept until what is missing comes (decision 54).
//!
//! The memory belongs to all queue pairs of an engine together, and is bounded. What was told to be here is not dropped, unless
//! the queue pair fails.

use super::Responder;
use crate::memory::Memory;
use crate::number::Psn;
use crate::transport::requester::SPAN;
use crate::transport::{Broken, Config, Environment};
use crate::wire::{Headers, Packet};

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Entry {
    headers: Headers,
    payload: Vec<u8>,
}

/// Memory for packets of all queue pairs that came too early.
#[derive(Debug)]
pub(crate) struct Pool {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Payload buffers to use again.
    spare: Vec<Vec<u8>>,
    used: usize,
    limit: usize,
}

/// What an entry takes besides its payload.
const ENTRY: usize = 256;
/// Payload buffers that are held for the next loss.
const SPARES: usize = 1024;

impl Pool {
    /// For at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { entries: Vec::new(), free: Vec::new(), spare: Vec::new(), used: 0, limit }
    }

    fn put(&mut self, packet: &Packet<'_>) -> Option<u32> {
        let size = ENTRY + packet.payload.len();
        if self.used + size > self.limit {
            return None;
        }
        self.used += size;
        let mut payload = self.spare.pop().unwrap_or_default();
        payload.clear();
        payload.extend_from_slice(packet.payload);
        let entry = Some(Entry { headers: packet.headers, payload });
        if let Some(place) = self.free.pop() {
            self.entries[place as usize] = entry;
            return Some(place);
        }
        self.entries.push(entry);
        Some(self.entries.len() as u32 - 1)
    }

    fn take(&mut self, place: u32) -> Option<Entry> {
        let entry = self.entries.get_mut(place as usize)?.take()?;
        self.free.push(place);
        self.used -= ENTRY + entry.payload.len();
        Some(entry)
    }

    fn give_back(&mut self, payload: Vec<u8>) {
        if self.spare.len() < SPARES {
            self.spare.push(payload);
        }
    }
}

/// Where packets of a queue pair are in the pool, by number modulo [`SPAN`].
#[derive(Debug)]
pub(super) struct Kept {
    places: [u32; SPAN as usize],
    count: u32,
    /// One behind the highest number kept.
    highest: Psn,
}

#[inline]
fn place(psn: Psn) -> usize {
    (psn.value() % SPAN) as usize
}

impl Responder {
    /// Keeps a packet that is `ahead` of the next one.
    pub(super) fn keep<M>(&mut self, env: &mut Environment<'_, M>, packet: &Packet<'_>, ahead: u32) {
        self.tell_kept = true;
        let psn = packet.headers.psn;
        let expected = self.expected;
        let kept = self
            .kept
            .get_or_insert_with(|| Box::new(Kept { places: [NONE; SPAN as usize], count: 0, highest: expected }));
        if ahead < SPAN && kept.places[place(psn)] != NONE {
            env.counters.duplicate += 1;
            return;
        }
        let found = if ahead < SPAN { env.pool.put(packet) } else { None };
        let Some(entry) = found else {
            env.counters.out_of_sequence += 1;
            return;
        };
        env.counters.kept += 1;
        kept.places[place(psn)] = entry;
        kept.highest = if kept.count == 0 || psn.since(kept.highest) >= 0 { psn.next() } else { kept.highest };
        kept.count += 1;
    }

    /// Does what was kept and is next now.
    pub(super) fn take_kept<M: Memory>(&mut self, config: &Config, env: &mut Environment<'_, M>) -> Result<(), Broken> {
        let mut steps = 0;
        while let Some(kept) = &mut self.kept
            && kept.count > 0
            && !self.is_silent
            && steps < SPAN
        {
            let at = place(self.expected);
            if kept.places[at] == NONE {
                break;
            }
            let entry = env.pool.take(core::mem::replace(&mut kept.places[at], NONE));
            kept.count -= 1;
            let Some(Entry { headers, payload }) = entry else { break };
            // A READ moves the next number by more than one; what lay in between came from nobody who keeps the rules.
            let done = if headers.psn == self.expected {
                self.in_order(config, env, &Packet { headers, payload: &payload })
            } else {
                env.counters.kept_dropped += 1;
                Ok(())
            };
            env.pool.give_back(payload);
            done?;
            self.acknowledge = true;
            steps += 1;
        }
        if let Some(kept) = &self.kept
            && kept.highest.since(self.expected) <= 0
        {
            if kept.count > 0 {
                env.counters.kept_dropped += self.drop_kept(env.pool);
            }
            self.tell_kept = false;
        }
        self.told = 0;
        Ok(())
    }

    /// Which of the 64 numbers of that part are here, and whether it is the last part.
    pub(super) fn kept_bits(&self, part: u32) -> (u64, bool) {
        let Some(kept) = &self.kept else { return (0, true) };
        let mut bits = 0;
        let first = self.expected + 1 + 64 * part;
        for bit in 0..64 {
            let is_in_span = 64 * part + bit + 1 < SPAN;
            if is_in_span && kept.places[place(first + bit)] != NONE {
                bits |= 1 << bit;
            }
        }
        let is_last = kept.highest.since(first + 64) <= 0 || 64 * (part + 1) >= SPAN;
        (bits, is_last)
    }

    /// Gives all that was kept back to the pool. Returns how many packets that were.
    pub(super) fn drop_kept(&mut self, pool: &mut Pool) -> u64 {
        let Some(kept) = self.kept.take() else { return 0 };
        let count = u64::from(kept.count);
        for entry in kept.places {
            if let Some(Entry { payload, .. }) = pool.take(entry) {
                pool.give_back(payload);
            }
        }
        count
    }
}
