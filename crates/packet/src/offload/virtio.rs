//! `struct virtio_net_hdr` (virtio 1.2, 5.1.6), little-endian, as tap, packet sockets and virtio queues have it.
//!
//! ```text
//! byte 0       1          2            4            6              8                10
//!      | flags | gso_type | hdr_len 16 | gso_size 16 | csum_start 16 | csum_offset 16 | num_buffers 16 |
//! ```
//!
//! The first ten bytes say what is left to do on the frame; `num_buffers` is there only where buffers are merged, and is
//! not part of an [`Offload`].

use super::{ETHERNET_LEN, Offload, PartialChecksum, SegmentKind, Segments, Unfit};

/// Bytes of the header without `num_buffers`.
pub const VIRTIO_HEADER_LEN: usize = 10;

/// Bytes of the header with `num_buffers`.
pub const VIRTIO_MERGED_HEADER_LEN: usize = 12;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum is partial.
const NEEDS_CSUM: u8 = 1;

/// `VIRTIO_NET_HDR_GSO_*`.
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

impl Offload {
    /// What a header says about a frame of `len` bytes. Whether the frame's own headers agree is for [`Offload::check`]
    /// to say; other flags, such as that a checksum was verified, ask for nothing and are not looked at.
    ///
    /// # Errors
    /// [`Unfit`] when no frame of this length can be what the header says.
    #[inline]
    pub fn from_virtio(header: &[u8; VIRTIO_HEADER_LEN], len: usize) -> Result<Self, Unfit> {
        // Nothing to do is the most frequent thing to do.
        if header[0] & NEEDS_CSUM == 0 && header[1] == GSO_NONE {
            return Ok(Self::default());
        }
        let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let checksum = (header[0] & NEEDS_CSUM != 0).then(|| PartialChecksum { start: word(6), offset: word(8) });
        let kind = match header[1] & !GSO_ECN {
            GSO_NONE => None,
            GSO_TCP4 => Some(SegmentKind::Tcp4),
            GSO_TCP6 => Some(SegmentKind::Tcp6),
            GSO_UDP_L4 => Some(SegmentKind::Udp),
            _ => return Err(Unfit::Kind),
        };
        let ecn = header[1] & GSO_ECN != 0;
        if ecn && !matches!(kind, Some(SegmentKind::Tcp4 | SegmentKind::Tcp6)) {
            return Err(Unfit::Kind);
        }
        let header_len = word(2).min(u16::try_from(len).unwrap_or(u16::MAX));
        let segments = kind.map(|kind| Segments { kind, ecn, size: word(4), header_len });
        let offload = Self { checksum, segments };
        offload.check_len(len)?;
        Ok(offload)
    }

    /// The header that says so.
    #[inline]
    pub fn to_virtio(&self) -> [u8; VIRTIO_HEADER_LEN] {
        let mut header = [0; VIRTIO_HEADER_LEN];
        let mut put = |at: usize, word: u16| header[at..at + 2].copy_from_slice(&word.to_le_bytes());
        if let Some(checksum) = self.checksum {
            put(6, checksum.start);
            put(8, checksum.offset);
        }
        if let Some(segments) = self.segments {
            put(2, segments.header_len);
            put(4, segments.size);
        }
        header[0] = if self.checksum.is_some() { NEEDS_CSUM } else { 0 };
        header[1] = self.segments.map_or(GSO_NONE, |segments| {
            let kind = match segments.kind {
                SegmentKind::Tcp4 => GSO_TCP4,
                SegmentKind::Tcp6 => GSO_TCP6,
                SegmentKind::Udp => GSO_UDP_L4,
            };
            kind | if segments.ecn { GSO_ECN } else { 0 }
        });
        header
    }

    /// Whether a frame of `len` bytes has room for what this says.
    fn check_len(&self, len: usize) -> Result<(), Unfit> {
        if let Some(checksum) = self.checksum {
            checksum.place(len)?;
        }
        match self.segments {
            None => Ok(()),
            Some(_) if self.checksum.is_none() => Err(Unfit::NoChecksum),
            Some(segments) if segments.size == 0 => Err(Unfit::Size),
            Some(_) => Ok(()),
        }
    }
}

impl PartialChecksum {
    /// Where the checksum is in a frame of `len` bytes.
    pub(super) fn place(self, len: usize) -> Result<usize, Unfit> {
        let (start, offset) = (usize::from(self.start), usize::from(self.offset));
        if start < ETHERNET_LEN || start + offset + 2 > len { Err(Unfit::Checksum) } else { Ok(start + offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let checksum = Some(PartialChecksum { start: 34, offset: 16 });
        let segments = Some(Segments { kind: SegmentKind::Tcp4, ecn: true, size: 1448, header_len: 66 });
        let header = [1, 0x81, 66, 0, 0xa8, 0x05, 34, 0, 16, 0];
        assert_eq!(Offload { checksum, segments }.to_virtio(), header);
        assert_eq!(Offload::from_virtio(&header, 3000), Ok(Offload { checksum, segments }));
        assert_eq!(Offload::default().to_virtio(), [0; 10]);
        // DATA_VALID, with left-overs in the rest: nothing to do.
        assert_eq!(Offload::from_virtio(&[2, 0, 9, 9, 9, 9, 9, 9, 9, 9], 60), Ok(Offload::default()));
    }

    #[test]
    fn what_no_frame_can_be_is_refused() {
        for (header, unfit) in [
            ([1, 0, 0, 0, 0, 0, 34, 0, 25, 0], Unfit::Checksum),
            ([1, 0, 0, 0, 0, 0, 13, 0, 16, 0], Unfit::Checksum),
            ([1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], Unfit::Checksum),
            ([1, 3, 0, 0, 9, 0, 34, 0, 6, 0], Unfit::Kind),
            ([1, 2, 0, 0, 9, 0, 34, 0, 6, 0], Unfit::Kind),
            ([1, 0x80, 0, 0, 9, 0, 34, 0, 6, 0], Unfit::Kind),
            ([1, 0x85, 0, 0, 9, 0, 34, 0, 6, 0], Unfit::Kind),
            ([0, 1, 0, 0, 9, 0, 34, 0, 6, 0], Unfit::NoChecksum),
            ([1, 1, 0, 0, 0, 0, 34, 0, 6, 0], Unfit::Size),
        ] {
            assert_eq!(Offload::from_virtio(&header, 60), Err(unfit), "{header:?}");
        }
        assert!(Offload::from_virtio(&[1, 0, 0, 0, 0, 0, 34, 0, 24, 0], 60).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_accepted_fits_and_survives(header: [u8; 10], len in 0..70_000usize) {
            if let Ok(offload) = Offload::from_virtio(&header, len) {
                prop_assert_eq!(Offload::from_virtio(&offload.to_virtio(), len), Ok(offload));
                if let Some(checksum) = offload.checksum {
                    prop_assert!(usize::from(checksum.start) + usize::from(checksum.offset) + 2 <= len);
                }
            }
        }
    }
}
