//! The card's half of a Medusa RX queue.

use super::layout::{Buffer, Descriptor, Pointers, RxHeader, address};
use super::note::Note;
use crate::budget::{Allowance, MAX_CHAIN};
use crate::index::{Mask, RingIndex};
use crate::rooms::{Rooms, run_of};
use crate::{EngineFault, FrameLimits, RxOutcome};
use millrace_abi::control::FaultKind;
use millrace_abi::handover::RingPlace;
use millrace_dma::{Access, Iotlb, Iova, Ordering, Slots32, Slots64, Span, Word64};

/// What START gives the card for an RX queue.
pub struct RxRings {
    /// Descriptor ring at DESC_BASE; its size is MDP + 1.
    pub descriptors: Slots64,
    /// IOVA of that ring, for fault reports.
    pub descriptors_at: Iova,
    /// Header ring at HDR_BASE; its size is MHP + 1.
    pub headers: Slots32,
    /// SDP and SHP, written by software.
    pub doorbell: Word64,
    /// HDP and HHP, at UPDATE_BASE, written by the card.
    pub update: Word64,
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
    allowance: Allowance,
    unpublished: bool,
    // Where it is noted how far it is, if anybody wants to know.
    note: Option<Box<Note>>,
}

/// So many frames ahead a buffer's first line is asked for: the software has read it last, and the stores of one frame do
/// not wait for the lines of those before it.
const AHEAD: u32 = 8;
/// Entries of the header ring in a cache line.
const HEADERS_IN_LINE: usize = 16;

impl CardRx {
    /// A queue at HDP = HHP = 0 (§3.2.2).
    pub fn new(rings: RxRings, limits: FrameLimits, iotlb: Iotlb) -> Option<Self> {
        let descriptors = Mask::for_entries(rings.descriptors.mask() + 1)?;
        let headers = Mask::for_entries(rings.headers.mask() + 1)?;
        let zero = RingIndex::default();
        let (hdp, hhp, sdp, shp) = (zero, zero, zero, zero);
        let (upper, allowance, unpublished, note) = (None, Allowance::default(), false, None);
        Some(Self {
            rings,
            descriptors,
            headers,
            hdp,
            hhp,
            sdp,
            shp,
            upper,
            limits,
            iotlb,
            allowance,
            unpublished,
            note,
        })
    }

    /// From now on it is noted there how far it is, if that is given.
    #[must_use]
    pub fn noted(self, note: Option<Note>) -> Self {
        Self { note: note.map(Box::new), ..self }
    }

    #[inline(always)]
    fn pointers(&self) -> Pointers {
        Pointers { descriptors: self.hdp.get(), headers: self.hhp.get() }
    }

    /// HDP.
    pub fn hdp(&self) -> u32 {
        self.hdp.get()
    }

    /// HHP.
    pub fn hhp(&self) -> u32 {
        self.hhp.get()
    }

    /// Where it stands, when everything is published.
    pub fn place(&self) -> RingPlace {
        RingPlace { head: self.hdp.get(), headers: self.hhp.get(), upper: self.upper, run: None }
    }

    /// Goes on from there, before anything was delivered. What software has posted is not known yet.
    pub fn resume(&mut self, place: &RingPlace) {
        (self.hdp, self.hhp) = (self.descriptors.index(place.head), self.headers.index(place.headers));
        (self.sdp, self.shp) = (self.hdp, self.headers.add(self.hhp, 1));
        self.upper = place.upper;
        // The other card may have been killed before it published that.
        self.unpublished = true;
        let pointers = self.pointers();
        if let Some(note) = &mut self.note {
            note.begin(pointers, self.upper);
        }
    }

    /// The translation cache of this queue.
    pub fn iotlb(&self) -> &Iotlb {
        &self.iotlb
    }

    /// Takes over changes of the owner's domain, and grants a new [`Allowance`]; once per burst, before
    /// [`CardRx::deliver`].
    #[inline(always)]
    pub fn sync(&mut self) {
        self.iotlb.sync();
        self.allowance = Allowance::default();
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
    pub fn deliver(&mut self, header: &[u8], frame: Span<'_>) -> Result<RxOutcome, EngineFault> {
        let (Ok(len), Ok(header_len)) = (u16::try_from(header.len() + frame.len()), u8::try_from(header.len())) else {
            return Ok(RxOutcome::TooLong);
        };
        if frame.len() > usize::from(self.limits.max) {
            return Ok(RxOutcome::TooLong);
        }
        if self.allowance.is_used_up() {
            return Ok(RxOutcome::NoRoom);
        }
        if self.headers.free(self.hhp, self.shp) == 0 {
            self.refresh();
            if self.headers.free(self.hhp, self.shp) == 0 {
                return Ok(RxOutcome::NoRoom);
            }
        }
        let (mut at, mut upper, mut looked) = (self.hdp, self.upper, 0u32);
        let (mut front, mut rest) = (Span::from_slice(header), frame);
        loop {
            if at == self.sdp {
                self.refresh();
                if at == self.sdp {
                    return Ok(self.refuse(RxOutcome::NoRoom, looked));
                }
            }
            let left = front.len() + rest.len();
            let descriptor = Descriptor::decode(self.rings.descriptors.load(at.get()));
            let here = at;
            (at, looked) = (self.descriptors.add(at, 1), looked + 1);
            let buffer = match descriptor {
                Descriptor::Upper(bits) => {
                    upper = Some(bits);
                    if self.is_the_last(at, looked) {
                        return self.does_not_fit(at, usize::from(len) - left, looked);
                    }
                    continue;
                }
                Descriptor::Buffer(buffer) => buffer,
                Descriptor::Reserved => return Err(self.ring_fault(FaultKind::ReservedDescriptor, here)),
            };
            let Some(bits) = upper else { return Err(self.ring_fault(FaultKind::NoUpperAddress, here)) };
            let capacity = usize::from(buffer.len);
            if capacity < left && !buffer.next {
                return Ok(self.refuse(RxOutcome::TooLong, looked));
            }
            let mut room = self.iotlb.write(address(bits, buffer.low), capacity.min(left))?;
            if !front.is_empty() {
                let count = front.copy_to(room);
                (front, room) = (front.split_at(count).1, room.split_at(count).1);
            }
            let count = rest.copy_to(room);
            rest = rest.split_at(count).1;
            if front.is_empty() && rest.is_empty() {
                break;
            }
            if self.is_the_last(at, looked) {
                return self.does_not_fit(at, usize::from(len) - front.len() - rest.len(), looked);
            }
        }
        self.allowance.charge_stored(looked, usize::from(len));
        let entry = RxHeader { len, header_len, meta: 0, freed: looked.min(3) as u8 };
        self.rings.headers.store(self.hhp.get(), entry.encode());
        (self.hdp, self.upper) = (at, upper);
        self.hhp = self.headers.add(self.hhp, 1);
        self.unpublished = true;
        self.prefetch(AHEAD);
        Ok(RxOutcome::Stored)
    }

    /// Writes a run of short frames without metadata, from the front, and returns how many: only those that need nothing
    /// but the next buffer, long enough. What stops it is for [`CardRx::deliver`] to say.
    #[inline(always)]
    pub fn deliver_run(&mut self, frames: &[Span<'_>]) -> usize {
        let (frames, Some(upper)) = (run_of(frames), self.upper) else { return 0 };
        let wanted = frames.len() as u32;
        if self.ready() < wanted {
            self.refresh();
        }
        // Nothing is set up, and no line asked for, where the first frame has to be seen to by itself.
        let first = Descriptor::whole_packet(self.rings.descriptors.load(self.hdp.get()));
        let fits = |buffer: Buffer| frames.first().is_some_and(|frame| frame.len() <= usize::from(buffer.len));
        if self.allowance.is_used_up() || self.ready() == 0 || !first.is_some_and(fits) {
            return 0;
        }
        let mut rooms = Rooms::new(&self.iotlb);
        for ahead in (0..wanted).step_by(HEADERS_IN_LINE) {
            self.rings.headers.prefetch_write(self.hhp.get().wrapping_add(ahead));
        }
        for &frame in &frames[..wanted.min(self.ready()) as usize] {
            let next = self.hdp.get().wrapping_add(rooms.len());
            let Some(buffer) = Descriptor::whole_packet(self.rings.descriptors.load(next)) else { break };
            let longest = buffer.len.min(self.limits.max);
            if frame.len() > usize::from(longest) || !rooms.add(address(upper, buffer.low), frame) {
                break;
            }
        }
        let count = rooms.fill(frames);
        for (at, frame) in (self.hhp.get()..).zip(&frames[..count as usize]) {
            let entry = RxHeader { len: frame.len() as u16, header_len: 0, meta: 0, freed: 1 };
            self.rings.headers.store(at, entry.encode());
        }
        (self.hdp, self.hhp) = (self.descriptors.add(self.hdp, count), self.headers.add(self.hhp, count));
        self.unpublished |= count > 0;
        count as usize
    }

    /// Frames for which there is a descriptor and a header, as far as software had said when it was last asked.
    #[inline(always)]
    fn ready(&self) -> u32 {
        self.headers.free(self.hhp, self.shp).min(self.descriptors.distance(self.hdp, self.sdp))
    }

    /// Whether no more descriptors can belong to a frame than those from HDP up to `at`: they are as many as the ring
    /// can hold, so that no more come before HDP moves, or as many as a frame may lie in.
    #[inline(always)]
    fn is_the_last(&self, at: RingIndex, looked: u32) -> bool {
        self.descriptors.free(at, self.hdp) == 0 || looked == MAX_CHAIN
    }

    /// A frame is not stored, for which so many descriptors were looked at.
    #[cold]
    fn refuse(&mut self, delivery: RxOutcome, looked: u32) -> RxOutcome {
        self.allowance.charge(looked);
        delivery
    }

    /// All descriptors that the ring can hold, or that one frame may lie in, have room for just `taken` bytes. Without
    /// this a doorbell that runs ahead of the card would keep it here for ever. If not even the shortest frame fits,
    /// none ever will.
    #[cold]
    fn does_not_fit(&mut self, at: RingIndex, taken: usize, looked: u32) -> Result<RxOutcome, EngineFault> {
        if taken < usize::from(self.limits.min) {
            return Err(self.ring_fault(FaultKind::EndlessDescriptors, at));
        }
        Ok(self.refuse(RxOutcome::TooLong, looked))
    }

    /// Makes what was delivered visible. `true` if there was anything.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        if self.unpublished {
            let pointers = self.pointers();
            if let Some(note) = &mut self.note {
                note.keep(pointers, self.upper);
            }
            // Release pairs with the Acquire in `HostRx::ready`: frames and headers up to HHP are visible.
            self.rings.update.store(pointers.encode(), Ordering::Release);
            self.prefetch(0);
        }
        core::mem::take(&mut self.unpublished)
    }

    /// Asks to own the line where the frame so many behind the next will begin, if one descriptor is one frame.
    #[inline(always)]
    fn prefetch(&self, ahead: u32) {
        let descriptor = self.hdp.get().wrapping_add(ahead);
        if self.descriptors.distance(self.hdp, self.sdp) > ahead
            && let Some(upper) = self.upper
            && let Some(buffer) = Descriptor::whole_packet(self.rings.descriptors.load(descriptor))
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
