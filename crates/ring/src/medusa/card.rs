//! The card's half of Medusa.

use super::layout::{Buffer, Descriptor, Pointers, RxHeader, address};
use crate::index::{Mask, RingIndex};
use crate::{Delivery, EngineFault, FrameLimits, FrameSink, Served, Verdict};
use millrace_abi::control::FaultKind;
use millrace_dma::{Iotlb, Iova, Ordering, Slots32, Slots64, Span, Word64};

/// What START gives the card for a TX queue.
pub struct TxRings {
    /// Descriptor ring at DESC_BASE; its size is MDP + 1.
    pub descriptors: Slots64,
    /// IOVA of that ring, for fault reports.
    pub descriptors_at: Iova,
    /// SDP and SHP, written by software.
    pub doorbell: Word64,
    /// HDP and HHP, at UPDATE_BASE, written by the card.
    pub update: Word64,
}

/// What START gives the card for an RX queue.
pub struct RxRings {
    /// As for TX.
    pub descriptors: Slots64,
    /// As for TX.
    pub descriptors_at: Iova,
    /// Header ring at HDR_BASE; its size is MHP + 1.
    pub headers: Slots32,
    /// As for TX.
    pub doorbell: Word64,
    /// As for TX.
    pub update: Word64,
}

/// Frames looked at together, so that their cache lines are on the way while earlier ones are copied.
const BATCH: usize = 32;

/// The card's half of a TX queue.
pub struct CardTx {
    rings: TxRings,
    mask: Mask,
    head: RingIndex,
    // SDP as last loaded.
    tail: RingIndex,
    upper: Option<u64>,
    limits: FrameLimits,
    iotlb: Iotlb,
    // A packet of several descriptors is put together here.
    scratch: Box<[u8]>,
}

/// One frame of a batch, and where the ring stands once it is gone.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    frame: Result<Span<'a>, BadLength>,
    after: RingIndex,
    upper: u64,
}

#[derive(Clone, Copy)]
enum BadLength {
    TooShort,
    TooLong,
}

/// Why a batch ended before its candidates were all it could find.
enum Stop {
    Empty,
    Chain,
    Fault(EngineFault),
}

impl CardTx {
    /// A queue at HDP = 0 (§3.2.2).
    pub fn new(rings: TxRings, limits: FrameLimits, iotlb: Iotlb) -> Option<Self> {
        let mask = Mask::for_entries(rings.descriptors.mask() + 1)?;
        let scratch = vec![0; usize::from(limits.max)].into_boxed_slice();
        let zero = RingIndex::default();
        Some(Self { rings, mask, head: zero, tail: zero, upper: None, limits, iotlb, scratch })
    }

    /// HDP.
    pub fn hdp(&self) -> u32 {
        self.head.get()
    }

    /// The translation cache of this queue.
    pub fn iotlb(&self) -> &Iotlb {
        &self.iotlb
    }

    /// Takes over changes of the owner's domain; `serve` does so by itself.
    pub fn sync(&mut self) {
        self.iotlb.sync();
    }

    /// Looks at the doorbell: how many descriptors wait.
    #[inline(always)]
    pub fn pending(&mut self) -> u32 {
        // Acquire pairs with the Release in `HostTx::flush`: descriptors and frames up to SDP are visible.
        let doorbell = Pointers::decode(self.rings.doorbell.load(Ordering::Acquire));
        self.tail = self.mask.index(doorbell.descriptors);
        self.mask.distance(self.head, self.tail)
    }

    /// Takes frames out of the ring until the sink is full, the ring is empty or `budget` frames are gone.
    #[inline]
    pub fn serve(&mut self, budget: usize, sink: &mut impl FrameSink) -> Served {
        let mut served = Served::default();
        self.iotlb.sync();
        let before = self.head;
        let mut left = budget;
        while left > 0 {
            let (done, more) = self.serve_batch(left.min(BATCH), sink, &mut served);
            left -= done.min(left);
            if !more {
                break;
            }
        }
        if self.head != before {
            self.publish();
        }
        served
    }

    fn publish(&self) {
        let word = Pointers { descriptors: self.head.get(), headers: 0 }.encode();
        // Release pairs with the Acquire in `HostTx::refresh`: every load from the buffers is done.
        self.rings.update.store(word, Ordering::Release);
    }

    /// Returns how many frames left the ring, and whether it is worth looking for more.
    #[inline]
    fn serve_batch(&mut self, want: usize, sink: &mut impl FrameSink, served: &mut Served) -> (usize, bool) {
        let none = Candidate { frame: Err(BadLength::TooShort), after: self.head, upper: 0 };
        let mut batch = [none; BATCH];
        let (found, end, end_upper, stop) = self.look_ahead(&mut batch[..want]);
        let (mut head, mut upper, mut done, mut full) = (self.head, self.upper, 0, false);
        for candidate in &batch[..found] {
            match candidate.frame {
                Ok(frame) => {
                    if sink.take(frame) == Verdict::Full {
                        full = true;
                        break;
                    }
                    served.frames += 1;
                    served.bytes += frame.len() as u64;
                }
                Err(BadLength::TooShort) => served.too_short += 1,
                Err(BadLength::TooLong) => served.too_long += 1,
            }
            (head, upper) = (candidate.after, Some(candidate.upper));
            done += 1;
        }
        if full {
            (self.head, self.upper) = (head, upper);
            return (done, false);
        }
        // Type 0 descriptors behind the last frame are used up too.
        (self.head, self.upper) = (end, end_upper);
        match stop {
            _ if found == want => (done, true),
            Stop::Empty => (done, false),
            Stop::Chain => match self.serve_chain(sink, served) {
                Ok(taken) => (done + usize::from(taken), taken),
                Err(fault) => {
                    served.fault = Some(fault);
                    (done, false)
                }
            },
            Stop::Fault(fault) => {
                served.fault = Some(fault);
                (done, false)
            }
        }
    }

    /// Finds frames of one descriptor each and asks for their cache lines. Changes nothing.
    #[inline(always)]
    fn look_ahead<'a>(&'a self, batch: &mut [Candidate<'a>]) -> (usize, RingIndex, Option<u64>, Stop) {
        let (mut at, mut upper, mut found) = (self.head, self.upper, 0);
        while found < batch.len() {
            if at == self.tail {
                return (found, at, upper, Stop::Empty);
            }
            match Descriptor::decode(self.rings.descriptors.load(at.get())) {
                Descriptor::Upper(bits) => {
                    upper = Some(bits);
                    at = self.mask.add(at, 1);
                }
                Descriptor::Buffer(Buffer { next: true, .. }) => return (found, at, upper, Stop::Chain),
                Descriptor::Buffer(buffer) => {
                    let Some(bits) = upper else {
                        return (found, at, upper, Stop::Fault(self.ring_fault(FaultKind::NoUpperAddress, at)));
                    };
                    let frame = match self.whole_frame(bits, buffer) {
                        Ok(frame) => frame,
                        Err(fault) => return (found, at, upper, Stop::Fault(fault)),
                    };
                    at = self.mask.add(at, 1);
                    batch[found] = Candidate { frame, after: at, upper: bits };
                    found += 1;
                }
                Descriptor::Reserved => {
                    return (found, at, upper, Stop::Fault(self.ring_fault(FaultKind::ReservedDescriptor, at)));
                }
            }
        }
        (found, at, upper, Stop::Empty)
    }

    #[inline(always)]
    fn whole_frame(&self, upper: u64, buffer: Buffer) -> Result<Result<Span<'_>, BadLength>, EngineFault> {
        if buffer.len < self.limits.min {
            return Ok(Err(BadLength::TooShort));
        }
        if buffer.len > self.limits.max {
            return Ok(Err(BadLength::TooLong));
        }
        let frame = self.iotlb.read(address(upper, buffer.low), usize::from(buffer.len))?;
        frame.prefetch();
        Ok(Ok(frame))
    }

    #[cold]
    fn ring_fault(&self, kind: FaultKind, at: RingIndex) -> EngineFault {
        EngineFault { kind, iova: self.rings.descriptors_at.plus(u64::from(at.get()) * 8) }
    }

    /// Serves the packet of several descriptors at the head. `false`: its end is not in the ring yet, or the sink is
    /// full.
    #[cold]
    fn serve_chain(&mut self, sink: &mut impl FrameSink, served: &mut Served) -> Result<bool, EngineFault> {
        let (mut at, mut upper, mut len, mut too_long) = (self.head, self.upper, 0usize, false);
        loop {
            if at == self.tail {
                // A chain that fills the whole ring can never be completed.
                let full = self.mask.free(self.tail, self.head) == 0;
                return if full { Err(self.ring_fault(FaultKind::EndlessDescriptors, at)) } else { Ok(false) };
            }
            let descriptor = Descriptor::decode(self.rings.descriptors.load(at.get()));
            let here = at;
            at = self.mask.add(at, 1);
            let buffer = match descriptor {
                Descriptor::Upper(bits) => {
                    upper = Some(bits);
                    continue;
                }
                Descriptor::Buffer(buffer) => buffer,
                Descriptor::Reserved => return Err(self.ring_fault(FaultKind::ReservedDescriptor, here)),
            };
            let Some(bits) = upper else { return Err(self.ring_fault(FaultKind::NoUpperAddress, here)) };
            let piece = self.iotlb.read(address(bits, buffer.low), usize::from(buffer.len))?;
            match self.scratch.get_mut(len..len + piece.len()) {
                Some(room) => len += piece.read_into(room),
                None => too_long = true,
            }
            if !buffer.next {
                break;
            }
        }
        if too_long {
            served.too_long += 1;
        } else if len < usize::from(self.limits.min) {
            served.too_short += 1;
        } else if sink.take(Span::from_slice(&self.scratch[..len])) == Verdict::Full {
            return Ok(false);
        } else {
            served.frames += 1;
            served.bytes += len as u64;
        }
        (self.head, self.upper) = (at, upper);
        Ok(true)
    }
}

/// The card's half of an RX queue.
pub struct CardRx {
    rings: RxRings,
    descriptors: Mask,
    headers: Mask,
    hdp: RingIndex,
    hhp: RingIndex,
    // SDP and SHP as last loaded.
    sdp: RingIndex,
    shp: RingIndex,
    upper: Option<u64>,
    limits: FrameLimits,
    iotlb: Iotlb,
    unpublished: bool,
}

impl CardRx {
    /// A queue at HDP = HHP = 0 (§3.2.2).
    pub fn new(rings: RxRings, limits: FrameLimits, iotlb: Iotlb) -> Option<Self> {
        let descriptors = Mask::for_entries(rings.descriptors.mask() + 1)?;
        let headers = Mask::for_entries(rings.headers.mask() + 1)?;
        let zero = RingIndex::default();
        let (hdp, hhp, sdp, shp) = (zero, zero, zero, zero);
        let upper = None;
        Some(Self { rings, descriptors, headers, hdp, hhp, sdp, shp, upper, limits, iotlb, unpublished: false })
    }

    /// HDP.
    pub fn hdp(&self) -> u32 {
        self.hdp.get()
    }

    /// HHP.
    pub fn hhp(&self) -> u32 {
        self.hhp.get()
    }

    /// The translation cache of this queue.
    pub fn iotlb(&self) -> &Iotlb {
        &self.iotlb
    }

    /// Takes over changes of the owner's domain; once per burst, before [`CardRx::deliver`].
    #[inline(always)]
    pub fn sync(&mut self) {
        self.iotlb.sync();
    }

    #[inline(always)]
    fn refresh(&mut self) {
        // Acquire pairs with the Release in `HostRx::flush`: the descriptors up to SDP are visible, and software is
        // done with the buffers and headers up to SHP.
        let doorbell = Pointers::decode(self.rings.doorbell.load(Ordering::Acquire));
        self.sdp = self.descriptors.index(doorbell.descriptors);
        self.shp = self.headers.index(doorbell.headers);
    }

    /// Writes one frame into the next buffer and its header into the next entry.
    ///
    /// # Errors
    /// [`EngineFault`] when a descriptor is wrong; the frame is not delivered.
    #[inline]
    pub fn deliver(&mut self, frame: Span<'_>) -> Result<Delivery, EngineFault> {
        if frame.len() > usize::from(self.limits.max) {
            return Ok(Delivery::TooLong);
        }
        if self.headers.free(self.hhp, self.shp) == 0 {
            self.refresh();
            if self.headers.free(self.hhp, self.shp) == 0 {
                return Ok(Delivery::NoRoom);
            }
        }
        let (mut at, mut upper, mut used) = (self.hdp, self.upper, 0u8);
        let mut rest = frame;
        loop {
            if at == self.sdp {
                self.refresh();
                if at == self.sdp {
                    return Ok(Delivery::NoRoom);
                }
            }
            let descriptor = Descriptor::decode(self.rings.descriptors.load(at.get()));
            let buffer = match descriptor {
                Descriptor::Upper(bits) => {
                    (at, upper, used) = (self.descriptors.add(at, 1), Some(bits), used.saturating_add(1));
                    if self.is_whole_ring(at) {
                        return self.does_not_fit(at, frame.len() - rest.len());
                    }
                    continue;
                }
                Descriptor::Buffer(buffer) => buffer,
                Descriptor::Reserved => return Err(self.ring_fault(FaultKind::ReservedDescriptor, at)),
            };
            let Some(bits) = upper else { return Err(self.ring_fault(FaultKind::NoUpperAddress, at)) };
            let capacity = usize::from(buffer.len);
            if capacity < rest.len() && !buffer.next {
                return Ok(Delivery::TooLong);
            }
            let room = self.iotlb.write(address(bits, buffer.low), capacity.min(rest.len()))?;
            rest.copy_to(room);
            rest = rest.split_at(room.len()).1;
            (at, used) = (self.descriptors.add(at, 1), used.saturating_add(1));
            if rest.is_empty() {
                break;
            }
            if self.is_whole_ring(at) {
                return self.does_not_fit(at, frame.len() - rest.len());
            }
        }
        let header = RxHeader { len: frame.len() as u16, header_len: 0, meta: 0, freed: used };
        self.rings.headers.store(self.hhp.get(), header.encode());
        (self.hdp, self.upper) = (at, upper);
        self.hhp = self.headers.add(self.hhp, 1);
        self.unpublished = true;
        Ok(Delivery::Stored)
    }

    /// Whether the descriptors from HDP up to `at` are as many as a ring can hold: no more can come before HDP moves.
    #[inline(always)]
    fn is_whole_ring(&self, at: RingIndex) -> bool {
        self.descriptors.free(at, self.hdp) == 0
    }

    /// All descriptors that the ring can hold have room for just `taken` bytes of the frame. Without this a doorbell
    /// that runs ahead of the card would keep it here for ever.
    #[cold]
    fn does_not_fit(&self, at: RingIndex, taken: usize) -> Result<Delivery, EngineFault> {
        if taken == 0 { Err(self.ring_fault(FaultKind::EndlessDescriptors, at)) } else { Ok(Delivery::TooLong) }
    }

    /// Makes what was delivered visible. `true` if there was anything.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        if self.unpublished {
            let word = Pointers { descriptors: self.hdp.get(), headers: self.hhp.get() }.encode();
            // Release pairs with the Acquire in `HostRx::ready`: frames and headers up to HHP are visible.
            self.rings.update.store(word, Ordering::Release);
        }
        core::mem::take(&mut self.unpublished)
    }

    #[cold]
    fn ring_fault(&self, kind: FaultKind, at: RingIndex) -> EngineFault {
        EngineFault { kind, iova: self.rings.descriptors_at.plus(u64::from(at.get()) * 8) }
    }
}
