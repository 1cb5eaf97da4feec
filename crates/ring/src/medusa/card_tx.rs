//! The card's half of a Medusa TX queue.

use super::chain::{Broken, Chain};
use super::layout::{Buffer, Descriptor, Pointers, address};
use super::note::Note;
use crate::budget::LOOKS;
use crate::index::{Mask, RingIndex};
use crate::serve::{self, After, BATCH, Reader, Source, Stop, Taken};
use crate::{EngineFault, FrameLimits, FrameSink, Served};
use core::cell::Cell;
use millrace_abi::control::FaultKind;
use millrace_abi::handover::RingPlace;
use millrace_dma::{Access, Iotlb, Iova, Ordering, Slots64, Span, Word64};

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
    // Where the last frame lies of the run that is looked at.
    seen: Cell<Iova>,
    // The packet of several descriptors at the head, of which the end is not there or nobody has taken it; its bytes.
    chain: Option<Chain>,
    scratch: Box<[u8]>,
    // Where it is noted how far it is, if anybody wants to know.
    note: Option<Box<Note>>,
}

impl CardTx {
    /// A queue at HDP = 0 (§3.2.2).
    pub fn new(rings: TxRings, limits: FrameLimits, iotlb: Iotlb) -> Option<Self> {
        let mask = Mask::for_entries(rings.descriptors.mask() + 1)?;
        let scratch = vec![0; usize::from(limits.max)].into_boxed_slice();
        let zero = RingIndex::default();
        let (last, step, seen) = (Iova::default(), 0, Cell::default());
        let (upper, chain, note) = (None, None, None);
        Some(Self { rings, mask, head: zero, tail: zero, upper, limits, iotlb, last, step, seen, chain, scratch, note })
    }

    /// From now on it is noted there how far it is, if that is given.
    #[must_use]
    pub fn noted(self, note: Option<Note>) -> Self {
        Self { note: note.map(Box::new), ..self }
    }

    #[inline(always)]
    fn pointers(&self) -> Pointers {
        Pointers { descriptors: self.head.get(), headers: 0 }
    }

    /// HDP.
    pub fn hdp(&self) -> u32 {
        self.head.get()
    }

    /// Where it stands: of a packet of several descriptors that has not gone, at its beginning.
    pub fn place(&self) -> RingPlace {
        RingPlace { head: self.head.get(), upper: self.upper, ..RingPlace::default() }
    }

    /// Goes on from there, before anything was served.
    pub fn resume(&mut self, place: &RingPlace) {
        (self.head, self.upper) = (self.mask.index(place.head), place.upper);
        let pointers = self.pointers();
        if let Some(note) = &mut self.note {
            note.begin(pointers, self.upper);
        }
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

    /// Takes frames out of the ring until the sink is full, the ring is empty, `budget` frames are gone, or enough has been
    /// looked at.
    #[inline]
    pub fn serve(&mut self, budget: usize, sink: &mut impl FrameSink) -> Served {
        self.iotlb.sync();
        self.anticipate();
        let served = serve::serve::<BATCH, _>(self, budget, |frames, _| Taken::by(sink, frames));
        if served.has_advanced {
            self.publish();
        }
        served
    }

    /// Asks for the next descriptor, and for the line where the next frame begins if it lies one step behind the last: then
    /// they travel together, and with the doorbell if that has not moved yet, and a lone packet is through some transfers of
    /// cache lines earlier. A wrong guess costs nothing but the hint.
    #[inline(always)]
    pub fn anticipate(&self) {
        self.rings.descriptors.prefetch(self.head.get());
        let guess = self.last.plus(self.step);
        if let Some(line) = self.iotlb.peek(guess, 1, Access::Read).and_then(|reach| reach.span(guess, 1)) {
            line.prefetch();
        }
    }

    /// Says how far it is; by itself where another card may have been killed before it did.
    pub fn publish(&mut self) {
        let pointers = self.pointers();
        if let Some(note) = &mut self.note {
            note.keep(pointers, self.upper);
        }
        // Release pairs with the Acquire in `HostTx::completed`: every load from the buffers is done.
        self.rings.update.store(pointers.encode(), Ordering::Release);
    }

    #[cold]
    fn ring_fault(&self, kind: FaultKind, at: RingIndex) -> EngineFault {
        EngineFault { kind, iova: self.rings.descriptors_at.plus(u64::from(at.get()) * 8) }
    }

    /// Serves the packet of several descriptors at the head, as far as it is there.
    #[cold]
    fn serve_chain(
        &mut self,
        take: &mut impl FnMut(&[Span<'_>], &[()]) -> Taken,
        served: &mut Served,
    ) -> Result<After, EngineFault> {
        let waiting = self.mask.distance(self.head, self.tail);
        // Software that takes back what it has posted begins anew.
        let begun = self.chain.take().filter(|chain| self.mask.distance(self.head, chain.at) <= waiting);
        let mut chain = begun.unwrap_or_else(|| Chain::new(self.head, self.upper));
        self.follow(&mut chain, served)?;
        let is_gone = chain.is_whole && self.end_chain(&chain, take, served);
        if is_gone {
            (self.head, self.upper) = (chain.at, chain.upper);
        } else {
            self.chain = Some(chain);
        }
        Ok(if is_gone { After::Frame } else { After::Nothing })
    }

    /// Goes on with a packet until its end, as far as it is in the ring and may be looked at.
    fn follow(&mut self, chain: &mut Chain, served: &mut Served) -> Result<(), EngineFault> {
        while !chain.is_whole && served.looked < LOOKS {
            if chain.at == self.tail {
                // A chain that fills the whole ring can never be completed.
                let full = self.mask.free(self.tail, self.head) == 0;
                return if full { Err(self.ring_fault(FaultKind::EndlessDescriptors, chain.at)) } else { Ok(()) };
            }
            served.looked += 1;
            let word = self.rings.descriptors.load(chain.at.get());
            chain.add(word, &self.iotlb, &mut self.scratch).map_err(|broken| match broken {
                Broken::Descriptor(kind) => self.ring_fault(kind, chain.at),
                Broken::Piece(fault) => fault.into(),
            })?;
            chain.at = self.mask.add(chain.at, 1);
        }
        Ok(())
    }

    /// Passes upper addresses that follow the one at the head, of which the last counts. No honest ring has two in a row;
    /// a run for each would cost many times what a frame does.
    fn pass_uppers(&mut self, served: &mut Served) {
        let mut next = self.mask.add(self.head, 1);
        while next != self.tail && served.looked < LOOKS {
            let Descriptor::Upper(bits) = Descriptor::decode(self.rings.descriptors.load(next.get())) else { break };
            served.looked += 1;
            (self.upper, self.head) = (Some(bits), next);
            next = self.mask.add(next, 1);
        }
    }

    /// Hands a whole packet over, or drops and counts it. `false`: the sink is full.
    fn end_chain(
        &self,
        chain: &Chain,
        take: &mut impl FnMut(&[Span<'_>], &[()]) -> Taken,
        served: &mut Served,
    ) -> bool {
        if chain.is_too_long {
            served.too_long += 1;
        } else if chain.len < usize::from(self.limits.min) {
            served.too_short += 1;
        } else if take(&[Span::from_slice(&self.scratch[..chain.len])], &[()]).frames == 0 {
            return false;
        } else {
            served.frames += 1;
            served.bytes += chain.len as u64;
        }
        true
    }
}

impl Source for CardTx {
    type Note = ();
    type Other = ();

    #[inline(always)]
    fn place(&self) -> u32 {
        self.head.get()
    }

    #[inline(always)]
    fn is_lone(&self) -> bool {
        self.mask.distance(self.head, self.tail) == 1
    }

    #[inline(always)]
    fn look_ahead<'a>(&'a self, frames: &mut [Span<'a>], _: &mut [()]) -> (usize, Stop<()>) {
        let waiting = self.mask.distance(self.head, self.tail) as usize;
        if waiting == 0 {
            return (0, Stop::Empty);
        }
        let Some(upper) = self.upper.filter(|_| self.chain.is_none()) else { return (0, Stop::Other(())) };
        let most = waiting.min(frames.len());
        let (mut reader, mut found) = (Reader::new(&self.iotlb), 0);
        let stop = loop {
            if found == most {
                break if most < waiting { Stop::Enough } else { Stop::Empty };
            }
            let word = self.rings.descriptors.load(self.head.get().wrapping_add(found as u32));
            let Some(buffer) = Descriptor::whole_packet(word) else { break Stop::Other(()) };
            if buffer.len < self.limits.min || buffer.len > self.limits.max {
                break Stop::Other(());
            }
            let (iova, len) = (address(upper, buffer.low), usize::from(buffer.len));
            let frame = match reader.read(iova, len) {
                Ok(frame) => frame,
                Err(fault) => break Stop::Fault(fault.into()),
            };
            frame.prefetch();
            frames[found] = frame;
            self.seen.set(iova);
            found += 1;
        };
        reader.end();
        (found, stop)
    }

    #[inline(always)]
    fn pass(&mut self, found: usize, lengths: &[u16], _: &[()]) {
        self.head = self.mask.add(self.head, lengths.len() as u32);
        // The average step of the run; exact where all steps are equal, and a guess anyway.
        let last = self.seen.get();
        self.step = last.get().wrapping_sub(self.last.get()) / found as u64;
        self.last = last;
    }

    /// An upper address, a frame of a length that is not sent, or a packet of several descriptors.
    #[cold]
    fn serve_other(
        &mut self,
        (): (),
        take: &mut impl FnMut(&[Span<'_>], &[()]) -> Taken,
        served: &mut Served,
    ) -> Result<After, EngineFault> {
        if self.chain.is_some() {
            return self.serve_chain(take, served);
        }
        let descriptor = Descriptor::decode(self.rings.descriptors.load(self.head.get()));
        if let (Descriptor::Buffer(Buffer { next: true, .. }), Some(_)) = (descriptor, self.upper) {
            return self.serve_chain(take, served);
        }
        served.looked += 1;
        let after = match descriptor {
            Descriptor::Upper(bits) => {
                self.upper = Some(bits);
                self.pass_uppers(served);
                After::Setting
            }
            Descriptor::Reserved => return Err(self.ring_fault(FaultKind::ReservedDescriptor, self.head)),
            Descriptor::Buffer(_) if self.upper.is_none() => {
                return Err(self.ring_fault(FaultKind::NoUpperAddress, self.head));
            }
            Descriptor::Buffer(buffer) if buffer.len < self.limits.min => {
                served.too_short += 1;
                After::Frame
            }
            Descriptor::Buffer(buffer) if buffer.len > self.limits.max => {
                served.too_long += 1;
                After::Frame
            }
            // The descriptor has changed since `look_ahead` saw it: look again.
            Descriptor::Buffer(_) => return Ok(After::Nothing),
        };
        self.head = self.mask.add(self.head, 1);
        Ok(after)
    }
}
