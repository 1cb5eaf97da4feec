//! The device's half of a queue on which the driver receives.

use super::chain::{Fault, MAX_CHAIN, walk};
use super::layout::{Descriptor, NetHeader, descriptor_flag as flag, feature};
use super::queue::Queue;
use super::rings::Rings;
use crate::budget::Allowance;
use millrace_dma::{Access, Iotlb, Reach, Span, SpanMut};

/// What one call of [`DeviceRx::deliver`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Frames that are done with, from the front: stored or too long.
    pub taken: usize,
    /// Frames that did not fit the buffers of the driver, nor ever will.
    pub too_long: u64,
    /// Bytes of those.
    pub too_long_bytes: u64,
    /// Set when the queue has stopped just now.
    pub fault: Option<Fault>,
}

/// Frames whose buffers are looked up together.
const BATCH: usize = 32;

/// The device's half of a driver's receive queue.
pub struct DeviceRx {
    queue: Queue,
    mergeable: bool,
    allowance: Allowance,
}

/// What became of a frame that did not simply fit one buffer.
enum Other {
    Stored,
    TooLong,
    NoRoom,
}

impl DeviceRx {
    /// A queue that begins where its used index stands. `features` are those negotiated.
    pub fn new(rings: Rings, features: u64, iotlb: Iotlb) -> Self {
        let (queue, mergeable) = (Queue::new(rings, features, iotlb), features & feature::MRG_RXBUF != 0);
        Self { queue, mergeable, allowance: Allowance::default() }
    }

    /// Number of descriptors.
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Chains taken so far, modulo 2^16: where another device would go on.
    pub fn next(&self) -> u16 {
        self.queue.next()
    }

    /// Why the queue has stopped.
    pub fn fault(&self) -> Option<Fault> {
        self.queue.fault()
    }

    /// Whether the driver has to be notified of what has been published since this was asked last.
    #[inline(always)]
    pub fn must_notify(&mut self) -> bool {
        self.queue.must_notify()
    }

    /// Says whether the driver shall notify the device of the next buffer. After `true`, deliver once more before sleeping.
    pub fn want_notifications(&mut self, wanted: bool) {
        self.queue.want_notifications(wanted);
    }

    /// Makes what was delivered visible. This ends a burst: the next has a new [`Allowance`].
    #[inline(always)]
    pub fn publish(&mut self) {
        self.queue.publish();
        self.allowance = Allowance::default();
        self.expect_next();
    }

    /// Asks to own the cache lines that the next frame will be written to, so that they are here when it comes.
    #[inline(always)]
    fn expect_next(&self) {
        self.queue.expect_put();
        if self.queue.waiting() > 0
            && let Ok(head) = self.queue.head(0)
        {
            let Descriptor { address, len, .. } = self.queue.rings.table.load(head);
            // A buffer that is wrong is found out when its turn comes.
            if let Ok(room) = self.queue.iotlb.write(address, len as usize) {
                prefetch(room);
            }
        }
    }

    /// Writes frames into the driver's buffers, from the front, as far as there are any. Visible after
    /// [`DeviceRx::publish`].
    #[inline]
    pub fn deliver(&mut self, frames: &[Span<'_>]) -> Delivered {
        let mut delivered = Delivered::default();
        if self.queue.fault().is_some() {
            return delivered;
        }
        self.queue.iotlb.sync();
        while delivered.taken < frames.len() {
            let rest = &frames[delivered.taken..];
            let stored = match self.deliver_run(&rest[..rest.len().min(BATCH)]) {
                Ok(stored) => stored,
                Err(fault) => {
                    self.fail(&mut delivered, fault);
                    break;
                }
            };
            delivered.taken += stored;
            if stored == rest.len().min(BATCH) {
                continue;
            }
            match self.deliver_other(NetHeader::default(), rest[stored]) {
                Ok(Other::Stored) => delivered.taken += 1,
                Ok(Other::TooLong) => {
                    delivered.taken += 1;
                    delivered.too_long += 1;
                    delivered.too_long_bytes += rest[stored].len() as u64;
                }
                Ok(Other::NoRoom) => break,
                Err(fault) => {
                    self.fail(&mut delivered, fault);
                    break;
                }
            }
        }
        delivered
    }

    /// As [`DeviceRx::deliver`], for one frame on which something is left to do, as `header` says. The number of buffers is
    /// filled in here.
    pub fn deliver_unfinished(&mut self, header: NetHeader, frame: Span<'_>) -> Delivered {
        let mut delivered = Delivered::default();
        if self.queue.fault().is_some() {
            return delivered;
        }
        self.queue.iotlb.sync();
        match self.deliver_other(header, frame) {
            Ok(Other::Stored) => delivered.taken = 1,
            Ok(Other::TooLong) => {
                (delivered.taken, delivered.too_long) = (1, 1);
                delivered.too_long_bytes = frame.len() as u64;
            }
            Ok(Other::NoRoom) => {}
            Err(fault) => self.fail(&mut delivered, fault),
        }
        delivered
    }

    #[cold]
    fn fail(&mut self, delivered: &mut Delivered, fault: Fault) {
        self.queue.stop(fault);
        delivered.fault = Some(fault);
    }

    /// Stores frames that fit one buffer of one descriptor, up to the first that does not, and returns how many.
    #[inline(always)]
    fn deliver_run(&mut self, frames: &[Span<'_>]) -> Result<usize, Fault> {
        let mut waiting = usize::from(self.queue.waiting());
        if waiting < frames.len() {
            waiting = usize::from(self.queue.look()?);
        }
        let mut heads = [0; BATCH];
        let queue = &self.queue;
        let mut rooms: [Option<SpanMut<'_>>; BATCH] = [None; BATCH];
        let mut reach: Option<Reach<'_>> = None;
        let (mut found, mut hits) = (0, 0);
        for (index, frame) in frames.iter().take(waiting).enumerate() {
            let head = queue.head(index as u16)?;
            let Descriptor { address, len, flags, .. } = queue.rings.table.load(head);
            let needed = NetHeader::LEN + frame.len();
            if flags & (flag::NEXT | flag::WRITE | flag::INDIRECT) != flag::WRITE || (len as usize) < needed {
                break;
            }
            let room = match reach.and_then(|reach| reach.span_mut(address, needed)) {
                Some(room) => {
                    hits += 1;
                    room
                }
                None => {
                    let other = queue.iotlb.reach(address, needed, Access::ReadWrite)?;
                    reach = Some(other);
                    other.span_mut(address, needed).ok_or(Fault::Unmapped)?
                }
            };
            prefetch(room);
            (rooms[index], heads[index]) = (Some(room), head);
            found += 1;
        }
        queue.iotlb.count_hits(hits);
        const PLAIN: [u8; NetHeader::LEN] = NetHeader::of_buffers(1).encode();
        for (frame, room) in frames[..found].iter().zip(rooms.iter().flatten()) {
            let (header, room) = room.split_at(NetHeader::LEN);
            header.write_from(&PLAIN);
            frame.copy_to(room);
        }
        for (frame, &head) in frames[..found].iter().zip(&heads) {
            self.queue.put(head, (NetHeader::LEN + frame.len()) as u32);
        }
        Ok(found)
    }

    /// Stores one frame in whatever buffers come next. To a driver whose buffers cost too much to look at nothing more is
    /// given in this burst, as if it had none.
    #[cold]
    fn deliver_other(&mut self, header: NetHeader, frame: Span<'_>) -> Result<Other, Fault> {
        if self.allowance.is_used_up() {
            return Ok(Other::NoRoom);
        }
        let mut looked = 0;
        let result = self.store_in_pieces(header, frame, &mut looked);
        match result {
            Ok(Other::Stored) => self.allowance.charge_stored(looked as u32, frame.len()),
            _ => self.allowance.charge(looked as u32),
        }
        result
    }

    /// Stores one frame in as many buffers as it takes. `looked` counts their descriptors.
    fn store_in_pieces(&mut self, header: NetHeader, frame: Span<'_>, looked: &mut usize) -> Result<Other, Fault> {
        let needed = NetHeader::LEN + frame.len();
        let mut waiting = self.queue.look()?;
        if !self.mergeable {
            waiting = waiting.min(1);
        }
        let queue = &self.queue;
        let (mut chains, mut pieces) = (Chains::default(), Pieces::default());
        while pieces.len < needed {
            if chains.count == usize::from(waiting) {
                let all = !self.mergeable || chains.count == usize::from(queue.size());
                return Ok(if all && chains.count > 0 { Other::TooLong } else { Other::NoRoom });
            }
            if *looked == MAX_CHAIN {
                return Ok(Other::TooLong);
            }
            let head = queue.head(chains.count as u16)?;
            let before = pieces.len;
            let walked = walk(&queue.rings.table, &queue.iotlb, head, queue.indirect, looked, |descriptor| {
                if !descriptor.has(flag::WRITE) {
                    return Err(Fault::Direction);
                }
                let len = (descriptor.len as usize).min(needed - pieces.len);
                if len > 0 {
                    pieces.push(queue.iotlb.write(descriptor.address, len)?);
                }
                Ok(())
            });
            match walked {
                // The chains before it have used up what one frame may lie in.
                Err(Fault::ChainLength) if *looked == MAX_CHAIN && chains.count > 0 => return Ok(Other::TooLong),
                other => other?,
            }
            if pieces.len == before {
                return Err(Fault::Empty);
            }
            chains.push(head, (pieces.len - before) as u32);
        }
        let header = NetHeader { num_buffers: chains.count as u16, ..header };
        pieces.write(&header.encode(), frame);
        let Chains { list, count } = chains;
        list[..count].iter().for_each(|&(head, len)| self.queue.put(head, len));
        Ok(Other::Stored)
    }
}

/// Asks to own the lines of the header and of the beginning of the frame, which are mostly two.
#[inline(always)]
fn prefetch(room: SpanMut<'_>) {
    room.prefetch();
    if room.len() > NetHeader::LEN {
        room.split_at(NetHeader::LEN).1.prefetch();
    }
}

/// Heads of chains, and the bytes written to each. No more of them than descriptors, as with [`Pieces`].
struct Chains {
    list: [(u16, u32); MAX_CHAIN],
    count: usize,
}

impl Default for Chains {
    fn default() -> Self {
        Self { list: [(0, 0); MAX_CHAIN], count: 0 }
    }
}

impl Chains {
    fn push(&mut self, head: u16, len: u32) {
        self.list[self.count] = (head, len);
        self.count += 1;
    }
}

/// Room in several places.
struct Pieces<'a> {
    list: [Option<SpanMut<'a>>; MAX_CHAIN],
    count: usize,
    len: usize,
}

impl Default for Pieces<'_> {
    fn default() -> Self {
        Self { list: [None; MAX_CHAIN], count: 0, len: 0 }
    }
}

impl<'a> Pieces<'a> {
    fn push(&mut self, room: SpanMut<'a>) {
        self.list[self.count] = Some(room);
        self.count += 1;
        self.len += room.len();
    }

    /// Writes the header and the frame one behind the other.
    fn write(&self, header: &[u8], frame: Span<'_>) {
        let (mut header, mut frame) = (Span::from_slice(header), frame);
        for &room in self.list[..self.count].iter().flatten() {
            let front = header.copy_to(room);
            header = header.split_at(front).1;
            let rest = frame.copy_to(room.split_at(front).1);
            frame = frame.split_at(rest).1;
        }
    }
}
