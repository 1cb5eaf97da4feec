//! The card's half of SZE.

use super::layout::{HEADER_LEN, PAGE_LEN, PacketHeader, align8};
use super::place::Place;
use crate::budget::Allowance;
use crate::serve::{self, After, Reader, Source, Stop, Taken};
use crate::{EngineFault, FrameLimits, FrameSink, RxOutcome, Served};
use millrace_abi::control::FaultKind;
use millrace_abi::handover::RingPlace;
use millrace_dma::{Iotlb, Iova, Ordering, Span, Word64};

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
/// Packets looked at together. Fewer than elsewhere: what is ahead in a stream is asked for anyway.
const RUN: usize = 4;
/// How far ahead in the stream cache lines are asked for, in bytes.
const AHEAD: u32 = 512;

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

    /// Where it stands, between two packets.
    pub fn place(&self) -> RingPlace {
        RingPlace { head: self.hw, run: Some(self.place.save()), ..RingPlace::default() }
    }

    /// Goes on from there, before anything has moved. Without a run of pages it begins with the first one.
    pub fn resume(&mut self, place: &RingPlace) {
        self.hw = place.head & self.mask & !7;
        self.sw = self.hw;
        self.place = place.run.map_or(self.place, Place::restore);
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

    /// Takes frames out of the ring until the sink is full, the ring is empty, `budget` frames are gone, or enough has
    /// been looked at.
    #[inline]
    pub fn serve(&mut self, budget: usize, sink: &mut impl FrameSink) -> Served {
        self.iotlb.sync();
        let served = serve::serve::<RUN, _>(self, budget, |frames, _| Taken::by(sink, frames));
        if served.has_advanced {
            // Release pairs with the Acquire in `HostTx::refresh`: every load from the packets is done.
            self.rings.update.store(u64::from(self.hw), Ordering::Release);
        }
        served
    }

    /// Puts a frame together that lies in several runs. Returns the place behind its packet.
    #[cold]
    fn gather(&mut self, header: PacketHeader, len: usize, served: &mut Served) -> Result<Place, EngineFault> {
        let mut place = self.place.of_packet();
        let result = place
            .skip(header.frame_at(), &self.iotlb)
            .and_then(|()| place.gather(&mut self.scratch[..len], &self.iotlb))
            .and_then(|()| place.skip(header.stride() - header.frame_at() - len as u32, &self.iotlb));
        served.looked += 1 + place.looked;
        result.map(|()| place)
    }
}

/// What is no frame in one piece of the stream.
pub(crate) enum Other {
    /// The run of pages is at its end.
    EndOfRun,
    /// A packet with a frame of this length that is not sent.
    Unfit(PacketHeader, u32),
    /// A packet with a frame of this length that lies in several runs.
    Divided(PacketHeader, usize),
}

impl Source for CardTx {
    /// Bytes of the stream from the first packet of the run to the end of this one.
    type Note = u32;
    type Other = Other;

    #[inline(always)]
    fn place(&self) -> u32 {
        self.hw
    }

    #[inline(always)]
    fn is_lone(&self) -> bool {
        // Its runs are short anyway.
        false
    }

    #[inline(always)]
    fn look_ahead<'a>(&'a self, frames: &mut [Span<'a>], ends: &mut [u32]) -> (usize, Stop<Other>) {
        let all = self.waiting();
        if all != 0 && self.sw & 7 != 0 {
            return (0, Stop::Fault(EngineFault { kind: FaultKind::BadPointer, iova: Iova::new(self.sw.into()) }));
        }
        let (mut place, mut passed) = (self.place, 0);
        let (mut reader, mut found) = (Reader::new(&self.iotlb), 0);
        let stop = loop {
            if passed == all {
                break Stop::Empty;
            }
            if found == frames.len() {
                break Stop::Enough;
            }
            if place.left == 0 {
                break Stop::Other(Other::EndOfRun);
            }
            // Runs consist of whole pages and packets begin at multiples of 8: the header is never divided.
            let word = match reader.read(place.at, HEADER_LEN as usize) {
                Ok(word) => word.first_u32().unwrap_or(0),
                Err(fault) => break Stop::Fault(fault.into()),
            };
            let header = PacketHeader::decode(word);
            let Some(len) = header.frame_len().filter(|_| header.stride() <= all - passed) else {
                break Stop::Fault(EngineFault { kind: FaultKind::BadHeader, iova: place.at });
            };
            if len < u32::from(self.limits.min) || len > u32::from(self.limits.max) {
                break Stop::Other(Other::Unfit(header, len));
            }
            if place.left < header.stride() {
                break Stop::Other(Other::Divided(header, len as usize));
            }
            if place.left > AHEAD {
                reader.hint(place.at.plus(u64::from(AHEAD)));
            }
            let frame = match reader.read(place.at.plus(u64::from(header.frame_at())), len as usize) {
                Ok(frame) => frame,
                Err(fault) => break Stop::Fault(fault.into()),
            };
            place.step(header.stride());
            passed += header.stride();
            (frames[found], ends[found]) = (frame, passed);
            found += 1;
        };
        reader.end();
        (found, stop)
    }

    #[inline(always)]
    fn pass(&mut self, _: usize, _: &[u16], ends: &[u32]) {
        if let Some(&bytes) = ends.last() {
            self.place.step(bytes);
            self.hw = self.hw.wrapping_add(bytes) & self.mask;
        }
    }

    #[cold]
    fn serve_other(
        &mut self,
        other: Other,
        take: &mut impl FnMut(&[Span<'_>], &[u32]) -> Taken,
        served: &mut Served,
    ) -> Result<After, EngineFault> {
        let (header, behind) = match other {
            Other::EndOfRun => {
                self.place = self.place.of_packet();
                let result = self.place.enter(&self.iotlb);
                served.looked += self.place.looked;
                return result.map(|()| After::Setting);
            }
            Other::Unfit(header, len) => {
                let mut place = self.place.of_packet();
                let result = place.skip(header.stride(), &self.iotlb);
                served.looked += 1 + place.looked;
                result?;
                let is_short = len < u32::from(self.limits.min);
                *(if is_short { &mut served.too_short } else { &mut served.too_long }) += 1;
                (header, place)
            }
            Other::Divided(header, len) => {
                let place = self.gather(header, len, served)?;
                if take(&[Span::from_slice(&self.scratch[..len])], &[header.stride()]).frames == 0 {
                    return Ok(After::Nothing);
                }
                served.frames += 1;
                served.bytes += len as u64;
                (header, place)
            }
        };
        self.place = behind;
        self.hw = self.hw.wrapping_add(header.stride()) & self.mask;
        Ok(After::Frame)
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
    allowance: Allowance,
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
        let allowance = Allowance::default();
        Some(Self { rings, mask, place, hw: 0, sw: 0, limits, iotlb, allowance, unpublished: false })
    }

    /// HW in bytes.
    pub fn hw(&self) -> u32 {
        self.hw
    }

    /// Where it stands, between two packets.
    pub fn place(&self) -> RingPlace {
        RingPlace { head: self.hw, run: Some(self.place.save()), ..RingPlace::default() }
    }

    /// Goes on from there, before anything has moved. Without a run of pages it begins with the first one.
    pub fn resume(&mut self, place: &RingPlace) {
        self.hw = place.head & self.mask & !7;
        // Known room: none.
        self.sw = self.hw.wrapping_add(8) & self.mask;
        self.place = place.run.map_or(self.place, Place::restore);
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
    pub fn deliver(&mut self, meta: &[u8], frame: Span<'_>) -> Result<RxOutcome, EngineFault> {
        if frame.len() > usize::from(self.limits.max) || meta.len() > MOST_META {
            return Ok(RxOutcome::TooLong);
        }
        let Some(header) = PacketHeader::with_meta(meta.len(), frame.len()) else { return Ok(RxOutcome::TooLong) };
        if header.stride() > self.mask {
            return Ok(RxOutcome::TooLong);
        }
        if self.allowance.is_used_up() {
            return Ok(RxOutcome::NoRoom);
        }
        if self.room() < header.stride() {
            // Acquire pairs with the Release in `HostRx::flush`: software is done with the bytes up to SW.
            self.sw = self.rings.doorbell.load(Ordering::Acquire) as u32 & self.mask;
            if self.sw & 7 != 0 {
                return Err(EngineFault { kind: FaultKind::BadPointer, iova: Iova::new(u64::from(self.sw)) });
            }
            if self.room() < header.stride() {
                return Ok(RxOutcome::NoRoom);
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
        Ok(RxOutcome::Stored)
    }

    /// Writes what comes before the frame, and the frame; there is room.
    #[inline(always)]
    fn write(&mut self, head: &[u8], frame: Span<'_>, header: PacketHeader) -> Result<(), EngineFault> {
        if self.place.left >= header.stride() {
            let room = self.iotlb.write(self.place.at, head.len() + frame.len())?;
            let (front, body) = room.split_at(head.len());
            front.write_from(head);
            frame.copy_to(body);
            self.place.step(header.stride());
        } else {
            self.write_divided(head, frame, header)?;
        }
        self.hw = self.hw.wrapping_add(header.stride()) & self.mask;
        self.unpublished = true;
        Ok(())
    }

    /// As [`CardRx::write`], into several runs.
    #[cold]
    fn write_divided(&mut self, head: &[u8], frame: Span<'_>, header: PacketHeader) -> Result<(), EngineFault> {
        let mut place = self.place.of_packet();
        let padding = header.stride() as usize - head.len() - frame.len();
        place.scatter(Span::from_slice(head), &self.iotlb)?;
        place.scatter(frame, &self.iotlb)?;
        place.skip(padding as u32, &self.iotlb)?;
        self.allowance.charge_stored(place.looked, frame.len());
        self.place = place;
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
