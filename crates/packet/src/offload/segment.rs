//! Finishing frames in software: filling in a checksum, cutting a large frame into segments.
//!
//! A large frame is cut where it lies. The first segment is there already; for each further one the headers are written
//! right before its payload, over the payload of the segment before, which nobody needs any more. So no payload is
//! copied, and no memory is needed besides the frame.

use super::headers::{Headers, MAX_HEADERS_LEN, word};
use super::tunnel::Outer;
use super::{Offload, PartialChecksum, SegmentKind, Segments, Unfit};
use crate::checksum::Sum;

/// Most segments of one frame. 64 KiB in segments of 32 bytes, the least that Linux makes.
pub const MAX_SEGMENTS: usize = 2048;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

impl Offload {
    /// Whether the headers of a frame of `len` bytes agree with this, so that [`Offload::finish`] will succeed. `head` are
    /// the first bytes of the frame, all its headers at least; 512 are always enough. The bytes must be a copy that nobody
    /// else can change. For frames that are passed on whole; `finish` checks by itself.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn check(&self, head: &[u8], len: usize) -> Result<(), Unfit> {
        self.passes_whole(head, len).map(drop)
    }

    /// As [`Offload::check`], and whether the frame can be passed on whole. What is to be cut within a tunnel cannot: a
    /// virtio header has no word for that.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn passes_whole(&self, head: &[u8], len: usize) -> Result<bool, Unfit> {
        match (self.checksum, self.segments) {
            (None, None) => Ok(true),
            (Some(checksum), None) => checksum.place(len).map(|_| true),
            (checksum, Some(segments)) => Cut::plan(head, len, checksum, segments).map(|cut| cut.outer.is_none()),
        }
    }

    /// Does what is left to do on `frame`, and gives what comes out to `emit`, one complete frame after the other, until
    /// that says `false`. Returns how many were emitted. What is in `frame` afterwards is of no use.
    ///
    /// # Errors
    /// [`Unfit`] when the frame does not have what this says; nothing was emitted then.
    #[inline]
    pub fn finish(&self, frame: &mut [u8], mut emit: impl FnMut(&[u8]) -> bool) -> Result<usize, Unfit> {
        match (self.checksum, self.segments) {
            (checksum, None) => {
                if let Some(checksum) = checksum {
                    checksum.fill_in(frame)?;
                }
                emit(frame);
                Ok(1)
            }
            (checksum, Some(segments)) => {
                Cut::plan(frame, frame.len(), checksum, segments).map(|cut| cut.carry_out(frame, emit))
            }
        }
    }
}

impl PartialChecksum {
    /// Fills in the checksum of a frame.
    ///
    /// # Errors
    /// [`Unfit::Checksum`] when it lies outside.
    #[inline]
    pub fn fill_in(self, frame: &mut [u8]) -> Result<(), Unfit> {
        let place = self.place(frame.len())?;
        let sum = Sum::of(&frame[usize::from(self.start)..]);
        put(frame, place, stored(sum));
        Ok(())
    }
}

/// A checksum as it is stored. Zero would mean "none" in UDP; for all others the two are the same number.
pub(super) fn stored(sum: Sum) -> u16 {
    match sum.checksum() {
        0 => 0xffff,
        checksum => checksum,
    }
}

pub(super) fn put(frame: &mut [u8], at: usize, word: u16) {
    frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

/// Turns lengths, identification and checksum of the IP header at `ip` into those of segment `number`. All lengths fit: those
/// of the whole do.
pub(super) fn put_ip_lengths(segment: &mut [u8], ip: usize, ipv4_len: Option<usize>, number: usize) {
    match ipv4_len {
        Some(header_len) => {
            let id = u16::from_be_bytes([segment[ip + 4], segment[ip + 5]]);
            put(segment, ip + 2, (segment.len() - ip) as u16);
            put(segment, ip + 4, id.wrapping_add(number as u16));
            put(segment, ip + 10, 0);
            let checksum = Sum::of(&segment[ip..ip + header_len]).checksum();
            put(segment, ip + 10, checksum);
        }
        None => put(segment, ip + 4, (segment.len() - ip - 40) as u16),
    }
}

/// How a frame is cut: everything about it that was checked.
struct Cut {
    /// The tunnel around it, if there is one.
    outer: Option<Outer>,
    headers: Headers,
    kind: SegmentKind,
    /// Bytes of payload per segment.
    size: usize,
    /// Sum of the pseudo header without its length.
    pseudo: Sum,
}

impl Cut {
    fn plan(head: &[u8], len: usize, checksum: Option<PartialChecksum>, segments: Segments) -> Result<Self, Unfit> {
        let Segments { kind, size, .. } = segments;
        let checksum = checksum.ok_or(Unfit::NoChecksum)?;
        let is_here = |headers: &Headers| headers.transport == usize::from(checksum.start);
        let (outer, headers) = match Headers::find(head, 0, len, kind) {
            Ok(headers) if is_here(&headers) => (None, headers),
            direct => match Outer::find(head, len) {
                Some(outer) => (Some(outer), Headers::find(head, outer.inner, len, kind)?),
                None => (None, direct?),
            },
        };
        let offset = Headers::checksum_offset(kind);
        if (usize::from(checksum.start), usize::from(checksum.offset)) != (headers.transport, offset) {
            return Err(Unfit::Checksum);
        }
        let size = usize::from(size);
        if size == 0 || (len - headers.payload).div_ceil(size) > MAX_SEGMENTS {
            return Err(Unfit::Size);
        }
        // The sender's sum of addresses (of the last destination, where there is a routing header), protocol and length.
        // The length is taken out again: in one's complement that is adding the complement.
        let seed = word(head, headers.transport + offset)?;
        let whole = (len - headers.transport) as u32;
        let length = Sum::default().with(whole).folded();
        let pseudo = Sum::default().with(u32::from(seed)).with(u32::from(!length));
        Ok(Self { outer, headers, kind, size, pseudo })
    }

    fn carry_out(&self, frame: &mut [u8], mut emit: impl FnMut(&[u8]) -> bool) -> usize {
        let Headers { payload: head_len, .. } = self.headers;
        let mut template = [0; MAX_HEADERS_LEN];
        let template = &mut template[..head_len];
        template.copy_from_slice(&frame[..head_len]);
        put(template, self.headers.transport + Headers::checksum_offset(self.kind), 0);

        let count = (frame.len() - head_len).div_ceil(self.size).max(1);
        for number in 0..count {
            // `start + head_len` is where the payload of this segment begins.
            let start = number * self.size;
            let end = (start + head_len + self.size).min(frame.len());
            let segment = &mut frame[start..end];
            segment[..head_len].copy_from_slice(template);
            self.write_headers(segment, number, number + 1 == count);
            if !emit(segment) {
                return number + 1;
            }
        }
        count
    }

    /// Turns the headers of the whole into those of segment `number`.
    fn write_headers(&self, segment: &mut [u8], number: usize, last: bool) {
        let Headers { ip, transport, .. } = self.headers;
        put_ip_lengths(segment, ip, self.headers.ipv4_len, number);
        match self.kind {
            SegmentKind::Tcp4 | SegmentKind::Tcp6 => self.write_tcp(segment, number, last),
            SegmentKind::Udp => put(segment, transport + 4, (segment.len() - transport) as u16),
        }
        let length = (segment.len() - transport) as u32;
        let sum = self.pseudo.with(length).plus(Sum::of(&segment[transport..]));
        put(segment, transport + Headers::checksum_offset(self.kind), stored(sum));
        if let Some(outer) = &self.outer {
            outer.write(segment, number);
        }
    }

    fn write_tcp(&self, segment: &mut [u8], number: usize, last: bool) {
        let tcp = &mut segment[self.headers.transport..];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let sequence = sequence.wrapping_add((number * self.size) as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if !last {
            tcp[13] &= !(FIN | PSH);
        }
        if number > 0 {
            tcp[13] &= !CWR;
        }
    }
}
