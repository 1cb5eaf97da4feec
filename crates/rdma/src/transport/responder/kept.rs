//! Requests that came too early, kept until what is missing comes (decision 54).
//!
//! The memory belongs to all queue pairs of an engine together, and is bounded. What was told to be here is not dropped, unless
//! the queue pair fails. So that nobody takes all of it for good, a queue pair has at most as much as is left for the others ("dynamic
//! queue length thresholds", Choudhury and Hahne, 1998).

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

    /// Keeps a packet of a queue pair that has `own` bytes here.
    fn put(&mut self, packet: &Packet<'_>, own: usize) -> Option<u32> {
        let size = size(packet.payload);
        if own + size > self.limit.saturating_sub(self.used) {
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
        self.used -= size(&entry.payload);
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
    /// What they take of the pool.
    bytes: usize,
    /// One behind the highest number kept.
    highest: Psn,
}

impl Kept {
    /// Whether nothing is kept.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[inline]
fn size(payload: &[u8]) -> usize {
    ENTRY + payload.len()
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
        let kept = self.kept.get_or_insert_with(|| {
            Box::new(Kept { places: [NONE; SPAN as usize], count: 0, bytes: 0, highest: expected })
        });
        if ahead < SPAN && kept.places[place(psn)] != NONE {
            env.counters.duplicate += 1;
            return;
        }
        let found = if ahead < SPAN { env.pool.put(packet, kept.bytes) } else { None };
        let Some(entry) = found else {
            env.counters.out_of_sequence += 1;
            return;
        };
        env.counters.kept += 1;
        kept.places[place(psn)] = entry;
        kept.highest = if kept.count == 0 || psn.since(kept.highest) >= 0 { psn.next() } else { kept.highest };
        kept.count += 1;
        kept.bytes += size(packet.payload);
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
            kept.bytes -= size(&payload);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::Qpn;
    use crate::wire::{Opcode, Place, Service};

    /// How many packets one queue pair can keep.
    fn fill(pool: &mut Pool, packet: &Packet<'_>) -> usize {
        let mut count = 0;
        while pool.put(packet, count * size(packet.payload)).is_some() {
            count += 1;
        }
        count
    }

    #[test]
    fn a_queue_pair_leaves_as_much_as_it_takes() {
        let opcode = Opcode::Send { place: Place::Only, immediate: false, invalidate: false };
        let headers = Headers::new(Service::ReliableConnection, opcode, Qpn::new(2), Psn::new(0));
        let packet = Packet { headers, payload: &[0; 1000] };
        let mut pool = Pool::new(1024 * size(packet.payload));
        let taken: Vec<usize> = (0..8).map(|_| fill(&mut pool, &packet)).collect();
        assert_eq!(taken, [512, 256, 128, 64, 32, 16, 8, 4], "whoever comes next finds room");
    }
}
