//! The card's half of SZE.

use super::layout::{Descriptor, HEADER_LEN, PAGE_LEN, PacketHeader, align8};
use crate::{Delivery, EngineFault, FrameLimits, FrameSink, Served, Verdict};
use millrace_abi::control::FaultKind;
use millrace_dma::{Access, Iotlb, Iova, Ordering, Span, Word64};

/// What START gives the card for a queue of either direction.
pub struct Rings {
    /// First descriptor, from DESC_BASE.
    pub descriptors_at: Iova,
    /// Size of the ring in bytes, a power of two of at least a page.
    pub size: u32,
    /// SW, written by software.
    pub doorbell: Word64,
    /// HW, at UPDATE_BASE, written by the card.
    pub update: Word64,
}

impl Rings {
    fn mask(&self) -> Option<u32> {
        (self.size.is_power_of_two() && self.size >= PAGE_LEN).then(|| self.size - 1)
    }
}

/// Longest metadata of a packet in bytes: what the other protocols have eight bits for.
const MOST_META: usize = 255;
/// Type 1 descriptors followed in a row before the list is taken to lead nowhere.
const MOST_JUMPS: u32 = 64;
/// How far ahead in the stream cache lines are asked for, in bytes.
const AHEAD: u32 = 512;

/// The place of the card in the stream: the run of pages it is in, and the descriptor that comes after.
#[derive(Clone, Copy)]
struct Place {
    at: Iova,
    left: u32,
    next: Iova,
}

impl Place {
    fn start(descriptors_at: Iova) -> Self {
        Self { at: Iova::default(), left: 0, next: descriptors_at }
    }

    /// Makes sure that at least one byte of a run is left.
    #[inline(always)]
    fn enter(&mut self, iotlb: &Iotlb) -> Result<(), EngineFault> {
        if self.left == 0 { self.next_run(iotlb) } else { Ok(()) }
    }

    #[cold]
    fn next_run(&mut self, iotlb: &Iotlb) -> Result<(), EngineFault> {
        for _ in 0..MOST_JUMPS {
            match Descriptor::decode(iotlb.read_u64(self.next)?) {
                Descriptor::Next(at) => self.next = at,
                Descriptor::Pages { at, count } => {
                    (self.at, self.left, self.next) = (at, count * PAGE_LEN, self.next.plus(8));
                    return Ok(());
                }
                Descriptor::Reserved => {
                    return Err(EngineFault { kind: FaultKind::ReservedDescriptor, iova: self.next });
                }
            }
        }
        Err(EngineFault { kind: FaultKind::EndlessDescriptors, iova: self.next })
    }

    #[inline(always)]
    fn step(&mut self, bytes: u32) {
        self.at = self.at.plus(u64::from(bytes));
        self.left -= bytes;
    }

    /// Goes on by `bytes`, into as many runs as that takes.
    #[inline(always)]
    fn skip(&mut self, mut bytes: u32, iotlb: &Iotlb) -> Result<(), EngineFault> {
        while bytes > 0 {
            self.enter(iotlb)?;
            let piece = bytes.min(self.left);
            self.step(piece);
            bytes -= piece;
        }
        Ok(())
    }

    #[cold]
    fn gather(mut self, to: &mut [u8], iotlb: &Iotlb) -> Result<(), EngineFault> {
        let mut done = 0;
        while done < to.len() {
            self.enter(iotlb)?;
            let piece = (to.len() - done).min(self.left as usize);
            iotlb.read(self.at, piece)?.read_into(&mut to[done..done + piece]);
            self.step(piece as u32);
            done += piece;
        }
        Ok(())
    }

    #[cold]
    fn scatter(mut self, mut from: Span<'_>, iotlb: &Iotlb) -> Result<(), EngineFault> {
        while !from.is_empty() {
            self.enter(iotlb)?;
            let piece = from.len().min(self.left as usize);
            let (now, rest) = from.split_at(piece);
            now.copy_to(iotlb.write(self.at, piece)?);
            self.step(piece as u32);
            from = rest;
        }
        Ok(())
    }
}

/// The card's half of a TX queue.
pub struct CardTx {
    rings: Rings,
    mask: u32,
    place: Place,
    hw: u32,
    // SW as last loaded.
    sw: u32,
    limits: FrameLimits,
    iotlb: Iotlb,
    // A frame that lies in two runs is put together here.
    scratch: Box<[u8]>,
}

impl CardTx {
    /// A queue at HW = 0. `None` unless the size is a power of two of at least a page.
    pub fn new(rings: Rings, limits: FrameLimits, iotlb: Iotlb) -> Option<Self> {
        let mask = rings.mask()?;
        let place = Place::start(rings.descriptors_at);
        let scratch = vec![0; usize::from(limits.max)].into_boxed_slice();
        Some(Self { rings, mask, place, hw: 0, sw: 0, limits, iotlb, scratch })
    }

    /// HW in bytes.
    pub fn hw(&self) -> u32 {
        self.hw
    }

    /// The translation cache of this queue.
    pub fn iotlb(&self) -> &Iotlb {
        &self.iotlb
    }

    /// Takes over changes of the owner's domain; `serve` does so by itself.
    pub fn sync(&mut self) {
        self.iotlb.sync();
    }

    /// Looks at the doorbell: how many bytes wait.
    #[inline(always)]
    pub fn pending(&mut self) -> u32 {
        // Acquire pairs with the Release in `HostTx::flush`: packets up to SW are visible.
        self.sw = self.rings.doorbell.load(Ordering::Acquire) as u32 & self.mask;
        self.waiting()
    }

    #[inline(always)]
    fn waiting(&self) -> u32 {
        self.sw.wrapping_sub(self.hw) & self.mask
    }

    /// Takes frames out of the ring until the sink is full, the ring is empty or `budget` frames are gone.
    #[inline]
    pub fn serve(&mut self, budget: usize, sink: &mut impl FrameSink) -> Served {
        let mut served = Served::default();
        self.iotlb.sync();
        let before = self.hw;
        for _ in 0..budget {
            if self.waiting() == 0 {
                break;
            }
            match self.serve_one(sink, &mut served) {
                Ok(Verdict::Taken) => {}
                Ok(Verdict::Full) => break,
                Err(fault) => {
                    served.fault = Some(fault);
                    break;
                }
            }
        }
        if self.hw != before {
            // Release pairs with the Acquire in `HostTx::refresh`: every load from the packets is done.
            self.rings.update.store(u64::from(self.hw), Ordering::Release);
        }
        served
    }

    #[inline(always)]
    fn serve_one(&mut self, sink: &mut impl FrameSink, served: &mut Served) -> Result<Verdict, EngineFault> {
        if self.sw & 7 != 0 {
            return Err(EngineFault { kind: FaultKind::BadPointer, iova: Iova::new(u64::from(self.sw)) });
        }
        let mut place = self.place;
        place.enter(&self.iotlb)?;
        let start = place.at;
        // Runs consist of whole pages and packets begin at multiples of 8: the header is never divided.
        let word = self.iotlb.read(place.at, HEADER_LEN as usize)?.first_u32().unwrap_or(0);
        let header = PacketHeader::decode(word);
        let contradiction = EngineFault { kind: FaultKind::BadHeader, iova: start };
        let len = header.frame_len().ok_or(contradiction)?;
        if header.stride() > self.waiting() {
            return Err(contradiction);
        }
        if len < u32::from(self.limits.min) || len > u32::from(self.limits.max) {
            let too_short = len < u32::from(self.limits.min);
            *(if too_short { &mut served.too_short } else { &mut served.too_long }) += 1;
        } else {
            if self.offer(place, header, len as usize, sink)? == Verdict::Full {
                return Ok(Verdict::Full);
            }
            served.frames += 1;
            served.bytes += u64::from(len);
        }
        place.skip(header.stride(), &self.iotlb)?;
        self.place = place;
        self.hw = self.hw.wrapping_add(header.stride()) & self.mask;
        Ok(Verdict::Taken)
    }

    #[inline(always)]
    fn offer(
        &mut self,
        mut place: Place,
        header: PacketHeader,
        len: usize,
        sink: &mut impl FrameSink,
    ) -> Result<Verdict, EngineFault> {
        if place.left >= header.stride() {
            if place.left > AHEAD + HEADER_LEN {
                // Only a hint: the address lies in the same run, or the hint is not given.
                let at = place.at.plus(u64::from(AHEAD));
                if let Some(ahead) = self
                    .iotlb
                    .peek(at, HEADER_LEN as usize, Access::Read)
                    .and_then(|reach| reach.span(at, HEADER_LEN as usize))
                {
                    ahead.prefetch();
                }
            }
            let frame = self.iotlb.read(place.at.plus(u64::from(header.frame_at())), len)?;
            return Ok(sink.take(frame));
        }
        place.skip(header.frame_at(), &self.iotlb)?;
        place.gather(&mut self.scratch[..len], &self.iotlb)?;
        Ok(sink.take(Span::from_slice(&self.scratch[..len])))
    }
}

/// The card's half of an RX queue.
pub struct CardRx {
    rings: Rings,
    mask: u32,
    place: Place,
    hw: u32,
    // SW as last loaded.
    sw: u32,
    limits: FrameLimits,
    iotlb: Iotlb,
    unpublished: bool,
}

/// How much of an RX ring may be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxRoom {
    /// Bytes that can be written before HW meets SW.
    pub bytes: u32,
}

impl CardRx {
    /// A queue at HW = 0. `None` unless the size is a power of two of at least a page.
    pub fn new(rings: Rings, limits: FrameLimits, iotlb: Iotlb) -> Option<Self> {
        let mask = rings.mask()?;
        let place = Place::start(rings.descriptors_at);
        Some(Self { rings, mask, place, hw: 0, sw: 0, limits, iotlb, unpublished: false })
    }

    /// HW in bytes.
    pub fn hw(&self) -> u32 {
        self.hw
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

    // Eight bytes always stay empty, so that full and empty differ.
    #[inline(always)]
    fn room(&self) -> u32 {
        self.sw.wrapping_sub(self.hw).wrapping_sub(8) & self.mask
    }

    /// Room as far as is known without looking at the doorbell.
    pub fn known_room(&self) -> RxRoom {
        RxRoom { bytes: self.room() }
    }

    /// Writes one packet into the ring: its header, metadata (which may be nothing), and the frame.
    ///
    /// # Errors
    /// [`EngineFault`] when a descriptor or the software pointer is wrong; the frame is not delivered.
    #[inline]
    pub fn deliver(&mut self, meta: &[u8], frame: Span<'_>) -> Result<Delivery, EngineFault> {
        if frame.len() > usize::from(self.limits.max) || meta.len() > MOST_META {
            return Ok(Delivery::TooLong);
        }
        let Some(header) = PacketHeader::with_meta(meta.len(), frame.len()) else { return Ok(Delivery::TooLong) };
        if header.stride() > self.mask {
            return Ok(Delivery::TooLong);
        }
        if self.room() < header.stride() {
            // Acquire pairs with the Release in `HostRx::flush`: software is done with the bytes up to SW.
            self.sw = self.rings.doorbell.load(Ordering::Acquire) as u32 & self.mask;
            if self.sw & 7 != 0 {
                return Err(EngineFault { kind: FaultKind::BadPointer, iova: Iova::new(u64::from(self.sw)) });
            }
            if self.room() < header.stride() {
                return Ok(Delivery::NoRoom);
            }
        }
        let word = header.encode().to_le_bytes();
        // Up to where the frame begins, so that no old byte of the ring is left between header and frame.
        let mut head = [0; align8(HEADER_LEN) as usize];
        head[..word.len()].copy_from_slice(&word);
        if meta.is_empty() {
            self.write(&head, frame, header)?;
        } else {
            let mut head = [0; align8(HEADER_LEN + MOST_META as u32) as usize];
            head[..word.len()].copy_from_slice(&word);
            head[word.len()..word.len() + meta.len()].copy_from_slice(meta);
            self.write(&head[..header.frame_at() as usize], frame, header)?;
        }
        Ok(Delivery::Stored)
    }

    /// Writes what comes before the frame, and the frame; there is room.
    #[inline(always)]
    fn write(&mut self, head: &[u8], frame: Span<'_>, header: PacketHeader) -> Result<(), EngineFault> {
        let mut place = self.place;
        place.enter(&self.iotlb)?;
        if place.left >= header.stride() {
            let (front, body) = self.iotlb.write(place.at, head.len() + frame.len())?.split_at(head.len());
            front.write_from(head);
            frame.copy_to(body);
        } else {
            place.scatter(Span::from_slice(head), &self.iotlb)?;
            let mut body = place;
            body.skip(header.frame_at(), &self.iotlb)?;
            body.scatter(frame, &self.iotlb)?;
        }
        place.skip(header.stride(), &self.iotlb)?;
        self.place = place;
        self.hw = self.hw.wrapping_add(header.stride()) & self.mask;
        self.unpublished = true;
        Ok(())
    }

    /// Makes what was delivered visible. `true` if there was anything.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        if self.unpublished {
            // Release pairs with the Acquire in `HostRx::ready`: packets up to HW are visible.
            self.rings.update.store(u64::from(self.hw), Ordering::Release);
        }
        core::mem::take(&mut self.unpublished)
    }
}
