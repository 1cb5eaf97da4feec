//! The card's half of Medusa.

use super::layout::{Buffer, Descriptor, Pointers, RxHeader, address};
use crate::index::{Mask, RingIndex};
use crate::{Delivery, EngineFault, FrameLimits, FrameSink, Served};
use millrace_abi::control::FaultKind;
use millrace_dma::{Access, Iotlb, Iova, Ordering, Reach, Slots32, Slots64, Span, Word64};

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
    // Where the last frame lay, and how far behind the one before: buffers mostly lie in steps.
    last: Iova,
    step: u64,
    // A packet of several descriptors is put together here.
    scratch: Box<[u8]>,
}

/// Why a run of whole packets ended.
enum Stop {
    /// As many as were wanted.
    Enough,
    /// The ring is empty behind it.
    Empty,
    /// The next descriptor is not the whole packet of a frame that may be sent.
    Other,
    /// The next frame cannot be reached.
    Fault(EngineFault),
}

/// What became of a descriptor that was not a whole packet.
enum Other {
    /// A frame left the ring, sent or not.
    Frame,
    /// An upper address is in force.
    Setting,
    /// Nothing can be done with it now.
    Nothing,
}

impl CardTx {
    /// A queue at HDP = 0 (§3.2.2).
    pub fn new(rings: TxRings, limits: FrameLimits, iotlb: Iotlb) -> Option<Self> {
        let mask = Mask::for_entries(rings.descriptors.mask() + 1)?;
        let scratch = vec![0; usize::from(limits.max)].into_boxed_slice();
        let zero = RingIndex::default();
        let (last, step) = (Iova::default(), 0);
        Some(Self { rings, mask, head: zero, tail: zero, upper: None, limits, iotlb, last, step, scratch })
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
        self.prefetch_guess();
        let before = self.head;
        let mut left = budget;
        while left > 0 && self.head != self.tail {
            let (done, goes_on) = self.serve_run(left.min(BATCH), sink, &mut served);
            left -= done.min(left);
            if !goes_on {
                break;
            }
        }
        if self.head != before {
            self.publish();
        }
        served
    }

    /// Asks for the line where the next frame begins if it lies one step behind the last: then it travels together with
    /// the descriptor that says so, and a lone packet is through one transfer of a cache line earlier. A wrong guess
    /// costs nothing but the hint.
    #[inline(always)]
    fn prefetch_guess(&self) {
        let guess = self.last.plus(self.step);
        if let Some(line) = self.iotlb.peek(guess, 1, Access::Read).and_then(|reach| reach.span(guess, 1)) {
            line.prefetch();
        }
    }

    fn publish(&self) {
        let word = Pointers { descriptors: self.head.get(), headers: 0 }.encode();
        // Release pairs with the Acquire in `HostTx::completed`: every load from the buffers is done.
        self.rings.update.store(word, Ordering::Release);
    }

    /// Serves a run of whole packets, or one thing that is not. Returns how many frames left the ring, and whether it is
    /// worth looking for more.
    #[inline(always)]
    fn serve_run(&mut self, want: usize, sink: &mut impl FrameSink, served: &mut Served) -> (usize, bool) {
        let mut frames = [Span::EMPTY; BATCH];
        let (found, last, stop) = self.look_ahead(&mut frames[..want]);
        let frames = &frames[..found];
        let taken = if found > 0 { sink.take_burst(frames) } else { 0 };
        served.frames += taken as u64;
        served.bytes += frames[..taken].iter().map(|frame| frame.len() as u64).sum::<u64>();
        self.head = self.mask.add(self.head, taken as u32);
        if found > 0 {
            // The average step of the run; exact where all steps are equal, and a guess anyway.
            self.step = last.get().wrapping_sub(self.last.get()) / found as u64;
            self.last = last;
        }
        if taken < found {
            return (taken, false);
        }
        match stop {
            Stop::Enough => (taken, true),
            Stop::Empty => (taken, false),
            Stop::Other => match self.serve_other(sink, served) {
                Ok(Other::Frame) => (taken + 1, true),
                Ok(Other::Setting) => (taken, true),
                Ok(Other::Nothing) => (taken, false),
                Err(fault) => {
                    served.fault = Some(fault);
                    (taken, false)
                }
            },
            Stop::Fault(fault) => {
                served.fault = Some(fault);
                (taken, false)
            }
        }
    }

    /// Finds frames of one descriptor each and asks for their first cache lines. Changes nothing.
    #[inline(always)]
    fn look_ahead<'a>(&'a self, frames: &mut [Span<'a>]) -> (usize, Iova, Stop) {
        let mut last = self.last;
        let Some(upper) = self.upper else { return (0, last, Stop::Other) };
        let waiting = self.mask.distance(self.head, self.tail) as usize;
        let most = waiting.min(frames.len());
        let mut reach: Option<Reach<'a>> = None;
        let (mut hits, mut found) = (0, 0);
        let stop = loop {
            if found == most {
                break if most < waiting { Stop::Enough } else { Stop::Empty };
            }
            let word = self.rings.descriptors.load(self.head.get().wrapping_add(found as u32));
            let Some(buffer) = Descriptor::whole_packet(word) else { break Stop::Other };
            if buffer.len < self.limits.min || buffer.len > self.limits.max {
                break Stop::Other;
            }
            let (iova, len) = (address(upper, buffer.low), usize::from(buffer.len));
            // Mostly the mapping of the frame before.
            let frame = match reach.and_then(|reach| reach.span(iova, len)) {
                Some(frame) => {
                    hits += 1;
                    frame
                }
                None => match self.iotlb.reach(iova, len, Access::Read) {
                    Ok(other) => {
                        reach = Some(other);
                        other.span(iova, len).unwrap_or(Span::EMPTY)
                    }
                    Err(fault) => break Stop::Fault(fault.into()),
                },
            };
            frame.prefetch();
            frames[found] = frame;
            last = iova;
            found += 1;
        };
        self.iotlb.count_hits(hits);
        (found, last, stop)
    }

    /// Serves what is not a whole packet: an upper address, a frame of a length that is not sent, a packet of several
    /// descriptors.
    #[cold]
    fn serve_other(&mut self, sink: &mut impl FrameSink, served: &mut Served) -> Result<Other, EngineFault> {
        match Descriptor::decode(self.rings.descriptors.load(self.head.get())) {
            Descriptor::Upper(bits) => {
                self.upper = Some(bits);
                self.head = self.mask.add(self.head, 1);
                return Ok(Other::Setting);
            }
            Descriptor::Reserved => return Err(self.ring_fault(FaultKind::ReservedDescriptor, self.head)),
            Descriptor::Buffer(_) if self.upper.is_none() => {
                return Err(self.ring_fault(FaultKind::NoUpperAddress, self.head));
            }
            Descriptor::Buffer(Buffer { next: true, .. }) => {
                let taken = self.serve_chain(sink, served)?;
                return Ok(if taken { Other::Frame } else { Other::Nothing });
            }
            Descriptor::Buffer(buffer) if buffer.len < self.limits.min => served.too_short += 1,
            Descriptor::Buffer(buffer) if buffer.len > self.limits.max => served.too_long += 1,
            // The descriptor has changed since `look_ahead` saw it: look again.
            Descriptor::Buffer(_) => return Ok(Other::Nothing),
        }
        self.head = self.mask.add(self.head, 1);
        Ok(Other::Frame)
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
        } else if sink.take_burst(&[Span::from_slice(&self.scratch[..len])]) == 0 {
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

    /// Writes metadata, which may be nothing, and behind it one frame into the next buffer, and what they are into the
    /// next entry of the header ring. Together they have to fit into the buffer.
    ///
    /// # Errors
    /// [`EngineFault`] when a descriptor is wrong; the frame is not delivered.
    #[inline]
    pub fn deliver(&mut self, header: &[u8], frame: Span<'_>) -> Result<Delivery, EngineFault> {
        let (Ok(len), Ok(header_len)) = (u16::try_from(header.len() + frame.len()), u8::try_from(header.len())) else {
            return Ok(Delivery::TooLong);
        };
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
        let (mut front, mut rest) = (Span::from_slice(header), frame);
        loop {
            let left = front.len() + rest.len();
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
                        return self.does_not_fit(at, usize::from(len) - left);
                    }
                    continue;
                }
                Descriptor::Buffer(buffer) => buffer,
                Descriptor::Reserved => return Err(self.ring_fault(FaultKind::ReservedDescriptor, at)),
            };
            let Some(bits) = upper else { return Err(self.ring_fault(FaultKind::NoUpperAddress, at)) };
            let capacity = usize::from(buffer.len);
            if capacity < left && !buffer.next {
                return Ok(Delivery::TooLong);
            }
            let mut room = self.iotlb.write(address(bits, buffer.low), capacity.min(left))?;
            if !front.is_empty() {
                let count = front.copy_to(room);
                (front, room) = (front.split_at(count).1, room.split_at(count).1);
            }
            let count = rest.copy_to(room);
            rest = rest.split_at(count).1;
            (at, used) = (self.descriptors.add(at, 1), used.saturating_add(1));
            if front.is_empty() && rest.is_empty() {
                break;
            }
            if self.is_whole_ring(at) {
                return self.does_not_fit(at, usize::from(len) - front.len() - rest.len());
            }
        }
        let entry = RxHeader { len, header_len, meta: 0, freed: used };
        self.rings.headers.store(self.hhp.get(), entry.encode());
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

    /// All descriptors that the ring can hold have room for just `taken` bytes. Without this a doorbell
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
            self.prefetch_next();
        }
        core::mem::take(&mut self.unpublished)
    }

    /// Asks to own the line where the next frame will begin, while nobody waits for it.
    #[inline(always)]
    fn prefetch_next(&self) {
        if self.hdp != self.sdp
            && let Some(upper) = self.upper
            && let Some(buffer) = Descriptor::whole_packet(self.rings.descriptors.load(self.hdp.get()))
            && let at = address(upper, buffer.low)
            && let Some(room) = self.iotlb.peek(at, 1, Access::ReadWrite).and_then(|reach| reach.span_mut(at, 1))
        {
            room.prefetch();
        }
    }

    #[cold]
    fn ring_fault(&self, kind: FaultKind, at: RingIndex) -> EngineFault {
        EngineFault { kind, iova: self.rings.descriptors_at.plus(u64::from(at.get()) * 8) }
    }
}
