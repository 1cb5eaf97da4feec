//! The card's half of Calypte. All memory is known at START, so nothing is translated on the way.

use super::layout::{BLOCK, FRAME_ALIGN, Header, Pointers, blocks, valid_in_lap_of};
use crate::index::{Mask, RingIndex};
use crate::serve::{self, After, BATCH, Source, Stop, Taken};
use crate::{EngineFault, FrameLimits, FrameSink, RxOutcome, Served};
use millrace_abi::control::FaultKind;
use millrace_dma::{Iova, Ordering, Slots64, Span, Window, Word64};

/// What a TX queue works on: the device's own buffers, and the update word in the memory of software.
pub struct TxRings {
    /// Data ring, mapped twice in a row, so that no frame wraps; once it has MDP + 1 bytes, at most 65536.
    pub data: Window,
    /// Header ring of MHP + 1 entries, zeroed.
    pub headers: Slots64,
    /// HDP and HHP, at UPDATE_BASE, written by the card.
    pub update: Word64,
}

/// What START gives the card for an RX queue.
pub struct RxRings {
    /// Data ring at DATA_BASE: MDP + 1 blocks, mapped once.
    pub data: Window,
    /// Header ring at HDR_BASE of MHP + 1 entries, in which software has cleared the valid bits.
    pub headers: Slots64,
    /// SDP and SHP, written by software.
    pub doorbell: Word64,
    /// HDP and HHP, at UPDATE_BASE, written by the card.
    pub update: Word64,
}

/// Headers in a cache line.
const LINE: usize = 8;

/// The card's half of a TX queue.
pub struct CardTx {
    rings: TxRings,
    data: Mask,
    headers: Mask,
    hdp: RingIndex,
    // Headers taken since the start, modulo 2^32.
    taken: u32,
    limits: FrameLimits,
}

/// A frame that is too short or too long to be sent.
pub(crate) struct Unfit {
    is_short: bool,
    /// Where the data ring goes on behind it.
    end: u32,
}

impl CardTx {
    /// A queue at HDP = HHP = 0. `None` unless both rings are powers of two and the data ring is at most 64 KiB.
    pub fn new(rings: TxRings, limits: FrameLimits) -> Option<Self> {
        let ring =
            u32::try_from(rings.data.len() / 2).ok().filter(|ring| (FRAME_ALIGN * 2..=1 << 16).contains(ring))?;
        let (data, headers) = (Mask::for_entries(ring)?, Mask::for_entries(rings.headers.mask() + 1)?);
        Some(Self { rings, data, headers, hdp: RingIndex::default(), taken: 0, limits })
    }

    /// HDP, in bytes.
    pub fn hdp(&self) -> u32 {
        self.hdp.get()
    }

    /// HHP.
    pub fn hhp(&self) -> u32 {
        self.headers.index(self.taken).get()
    }

    /// Looks at the next header: whether a packet waits. If so, its first cache line is asked for at once.
    #[inline(always)]
    pub fn pending(&mut self) -> bool {
        let Some(header) = self.header(0) else { return false };
        // A hint only, of a header that nobody has judged: outside the buffer it is not given.
        if let Some(line) = self.rings.data.span(header.at.into(), 1) {
            line.prefetch();
        }
        true
    }

    /// Asks for the line where the next frame begins, while its header is not there: then they travel together.
    #[inline(always)]
    pub fn anticipate(&self) {
        if let Some(line) = self.rings.data.span(self.hdp.get() as usize, 1) {
            line.prefetch();
        }
    }

    /// The header `ahead` of HHP, read once, if it is there.
    #[inline(always)]
    fn header(&self, ahead: u32) -> Option<Header> {
        let at = self.taken.wrapping_add(ahead);
        // Acquire pairs with the Release in `HostTx::flush`: the frame is visible.
        let word = self.rings.headers.load_acquire(at);
        (Header::valid_bit(word) == valid_in_lap_of(at, self.headers.entries())).then(|| Header::decode(word))
    }

    /// Takes frames out of the ring until the sink is full, the ring is empty, `budget` frames are gone, or enough has
    /// been looked at.
    #[inline]
    pub fn serve(&mut self, budget: usize, sink: &mut impl FrameSink) -> Served {
        let served = serve::serve::<BATCH, _>(self, budget, |frames, _| Taken::by(sink, frames));
        if served.has_advanced {
            let word = Pointers { data: self.hdp(), headers: self.hhp() }.encode();
            // Release pairs with the Acquire in `HostTx::refresh`: every load from data and headers is done.
            self.rings.update.store(word, Ordering::Release);
        }
        served
    }

    /// The bytes that a header names and where the ring goes on behind them; `None` when they cannot be in the ring.
    #[inline(always)]
    fn frame_of(&self, header: Header) -> Option<(Span<'_>, u32)> {
        let (at, len) = (u32::from(header.at), u32::from(header.len));
        let takes = len.max(1).next_multiple_of(FRAME_ALIGN);
        // Something always stays empty, so that full and empty differ.
        let possible = at <= self.data.get() && at % FRAME_ALIGN == 0 && takes <= self.data.get();
        let frame = self.rings.data.span(at as usize, len as usize).filter(|_| possible)?;
        Some((frame, at + takes))
    }

    #[cold]
    fn bad_header(&self, ahead: u32) -> EngineFault {
        let at = self.headers.index(self.taken.wrapping_add(ahead)).get();
        EngineFault { kind: FaultKind::BadHeader, iova: Iova::new(u64::from(at) * 8) }
    }
}

/// One header is one frame, so that a turn looks at no more headers than frames leave the ring.
impl Source for CardTx {
    /// Where the data ring goes on behind the frame.
    type Note = u32;
    type Other = Unfit;

    #[inline(always)]
    fn place(&self) -> u32 {
        self.taken
    }

    #[inline(always)]
    fn is_lone(&self) -> bool {
        self.header(1).is_none()
    }

    #[inline(always)]
    fn look_ahead<'a>(&'a self, frames: &mut [Span<'a>], ends: &mut [u32]) -> (usize, Stop<Unfit>) {
        let want = frames.len();
        for (found, (place, end)) in frames.iter_mut().zip(ends).enumerate() {
            let Some(header) = self.header(found as u32) else { return (found, Stop::Empty) };
            let Some((frame, behind)) = self.frame_of(header) else {
                return (found, Stop::Fault(self.bad_header(found as u32)));
            };
            if header.len < self.limits.min || header.len > self.limits.max {
                return (found, Stop::Other(Unfit { is_short: header.len < self.limits.min, end: behind }));
            }
            frame.prefetch();
            (*place, *end) = (frame, behind);
        }
        (want, Stop::Enough)
    }

    #[inline(always)]
    fn pass(&mut self, _: usize, _: &[u16], ends: &[u32]) {
        if let Some(&end) = ends.last() {
            self.hdp = self.data.index(end);
            self.taken = self.taken.wrapping_add(ends.len() as u32);
        }
    }

    #[cold]
    fn serve_other(
        &mut self,
        Unfit { is_short, end }: Unfit,
        _: &mut impl FnMut(&[Span<'_>], &[u32]) -> Taken,
        served: &mut Served,
    ) -> Result<After, EngineFault> {
        *(if is_short { &mut served.too_short } else { &mut served.too_long }) += 1;
        served.looked += 1;
        self.hdp = self.data.index(end);
        self.taken = self.taken.wrapping_add(1);
        Ok(After::Frame)
    }
}

/// The card's half of an RX queue.
pub struct CardRx {
    rings: RxRings,
    data: Mask,
    headers: Mask,
    hdp: RingIndex,
    // Headers made since the start, modulo 2^32, and those of them that were stored in the ring.
    made: u32,
    shown: u32,
    // The ones in between.
    waiting: [u64; LINE],
    // SDP and SHP as last loaded.
    sdp: RingIndex,
    shp: RingIndex,
    limits: FrameLimits,
    unpublished: bool,
}

impl CardRx {
    /// A queue at HDP = HHP = 0 (§3.2.2). `None` unless both rings are powers of two and the data ring is at most 65536
    /// blocks.
    pub fn new(rings: RxRings, limits: FrameLimits) -> Option<Self> {
        let count = u32::try_from(rings.data.len() / BLOCK as usize).ok().filter(|&count| count <= 1 << 16)?;
        if rings.data.len() != (count * BLOCK) as usize {
            return None;
        }
        let (data, headers) = (Mask::for_entries(count)?, Mask::for_entries(rings.headers.mask() + 1)?);
        let zero = RingIndex::default();
        let (made, shown, waiting, unpublished) = (0, 0, [0; LINE], false);
        Some(Self { rings, data, headers, hdp: zero, made, shown, waiting, sdp: zero, shp: zero, limits, unpublished })
    }

    /// HDP, in blocks.
    pub fn hdp(&self) -> u32 {
        self.hdp.get()
    }

    /// HHP.
    pub fn hhp(&self) -> u32 {
        self.headers.index(self.made).get()
    }

    #[inline(always)]
    fn has_room(&self, blocks: u32) -> bool {
        let hhp = self.headers.index(self.made);
        self.data.free(self.hdp, self.sdp) >= blocks && self.headers.free(hhp, self.shp) > 0
    }

    #[cold]
    fn refresh(&mut self) {
        // Acquire pairs with the Release in `HostRx::flush`: software is done with data up to SDP and headers up to
        // SHP.
        let doorbell = Pointers::decode(self.rings.doorbell.load(Ordering::Acquire));
        self.sdp = self.data.index(doorbell.data);
        self.shp = self.headers.index(doorbell.headers);
    }

    /// Writes one packet into the next blocks: `header`, the metadata, and the frame behind it. Software may see it at
    /// once, and does after [`CardRx::publish`].
    ///
    /// # Errors
    /// None: nothing that software can write to an RX queue is impossible.
    #[inline]
    pub fn deliver(&mut self, header: &[u8], frame: Span<'_>) -> Result<RxOutcome, EngineFault> {
        let len = header.len() + frame.len();
        let (Ok(len), Ok(header_len)) = (u16::try_from(len), u8::try_from(header.len())) else {
            return Ok(RxOutcome::TooLong);
        };
        let blocks = blocks(u32::from(len));
        if frame.len() > usize::from(self.limits.max) || blocks > self.data.get() {
            return Ok(RxOutcome::TooLong);
        }
        if !self.has_room(blocks) {
            self.refresh();
            if !self.has_room(blocks) {
                return Ok(RxOutcome::NoRoom);
            }
        }
        let at = (self.hdp.get() * BLOCK) as usize;
        if let Some(room) = self.rings.data.span_mut(at, usize::from(len)) {
            if header.is_empty() {
                frame.copy_to(room);
            } else {
                let (front, body) = room.split_at(header.len());
                front.write_from(header);
                frame.copy_to(body);
            }
        } else {
            self.write_wrapping(at, Span::from_slice(header));
            self.write_wrapping(at + header.len(), frame);
        }
        let entry = Header { len, at: self.hdp.get() as u16, header_len, flags: 0 };
        self.waiting[self.made as usize % LINE] = entry.encode(valid_in_lap_of(self.made, self.headers.entries()));
        self.hdp = self.data.add(self.hdp, blocks);
        self.made = self.made.wrapping_add(1);
        self.unpublished = true;
        if (self.made as usize).is_multiple_of(LINE) {
            self.show();
        }
        Ok(RxOutcome::Stored)
    }

    /// Writes bytes of which some lie behind the end of the ring, which goes on at its beginning.
    #[cold]
    fn write_wrapping(&self, at: usize, bytes: Span<'_>) {
        let size = self.rings.data.len();
        let at = at % size;
        let (head, rest) = bytes.split_at(bytes.len().min(size - at));
        for (at, part) in [(at, head), (0, rest)] {
            if let Some(room) = self.rings.data.span_mut(at, part.len()) {
                part.copy_to(room);
            }
        }
    }

    /// Stores the headers that wait, a cache line at most: a reader who looks on while a burst is written takes the
    /// line once and not for every header.
    #[inline(always)]
    fn show(&mut self) {
        while self.shown != self.made {
            // Release pairs with the Acquire in `HostRx::ready`: the packet is visible.
            self.rings.headers.store_release(self.shown, self.waiting[self.shown as usize % LINE]);
            self.shown = self.shown.wrapping_add(1);
        }
    }

    /// Makes what was delivered visible, in the headers and in the update word. `true` if there was anything.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        if self.unpublished {
            self.show();
            let word = Pointers { data: self.hdp(), headers: self.hhp() }.encode();
            // Release pairs with the Acquire in `HostRx::published`: packets up to HHP are visible.
            self.rings.update.store(word, Ordering::Release);
            self.prefetch_next();
        }
        core::mem::take(&mut self.unpublished)
    }

    /// Asks to own the line where the next packet will begin, while nobody waits for it.
    #[inline(always)]
    fn prefetch_next(&self) {
        if self.data.free(self.hdp, self.sdp) > 0
            && let Some(room) = self.rings.data.span_mut((self.hdp.get() * BLOCK) as usize, 1)
        {
            room.prefetch();
        }
    }
}
