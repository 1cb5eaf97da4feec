//! Work on a frame that was left to whoever sends it on: a checksum to fill in, a large frame to cut into segments.
//!
//! Linux hands frames out in this state when it is told that the other side can finish them: `struct virtio_net_hdr`
//! (virtio 1.2, 5.1.6), which tap, packet sockets and virtio queues share. [`Offload`] says the same without its layout:
//! [`Offload::from_virtio`] and [`Offload::to_virtio`] convert, and refuse what cannot be. Who has to send a complete frame
//! calls [`Offload::finish`].
//!
//! ```
//! use millrace_packet::offload::Offload;
//!
//! let mut frame = [0; 60];
//! let header = [1, 0, 0, 0, 0, 0, 34, 0, 6, 0]; // The checksum over all from byte 34 on belongs to byte 40.
//! let offload = Offload::from_virtio(&header, frame.len())?;
//! let frames = offload.finish(&mut frame, |complete| {
//!     assert_eq!(complete[40..42], [0xff, 0xff]);
//!     true
//! })?;
//! assert_eq!(frames, 1);
//! # Ok::<(), millrace_packet::offload::Unfit>(())
//! ```

mod headers;
mod segment;
#[cfg(test)]
mod tests;
mod tunnel;
mod virtio;

pub use segment::MAX_SEGMENTS;
pub use virtio::{VIRTIO_HEADER_LEN, VIRTIO_MERGED_HEADER_LEN};

/// Bytes of an Ethernet header without VLAN tags.
const ETHERNET_LEN: usize = 14;

/// The longest frame with segments, in bytes: the longest IPv6 packet behind an Ethernet header with two VLAN tags.
pub const MAX_LARGE_FRAME_LEN: usize = ETHERNET_LEN + 2 * 4 + 40 + 65_535;

/// A checksum that is not filled in yet: the sum over everything from `start` belongs at `start + offset`, where the sum
/// of the pseudo header stands already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// First byte that is summed up, from the start of the frame.
    pub start: u16,
    /// Where the checksum is, from `start`.
    pub offset: u16,
}

/// What kind of segments a large frame is to be cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4 or IPv6, each segment a datagram of its own.
    Udp,
}

/// How a large frame is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// The kind.
    pub kind: SegmentKind,
    /// Whether TCP's ECN bits are set in the frame (CWR belongs into the first segment only).
    pub ecn: bool,
    /// Bytes of payload of each segment but the last.
    pub size: u16,
    /// Length of all headers, as the sender says; a hint that is checked against the frame.
    pub header_len: u16,
}

/// What is left to do on one frame. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// A checksum to fill in. A frame that is to be cut has one, too.
    pub checksum: Option<PartialChecksum>,
    /// The frame is to be cut.
    pub segments: Option<Segments>,
}

impl Offload {
    /// Whether the frame is complete as it is.
    pub fn is_done(&self) -> bool {
        *self == Self::default()
    }

    /// Length of the longest frame that a frame of `len` bytes becomes.
    pub fn longest(&self, len: usize) -> usize {
        self.segments.map_or(len, |segments| len.min(usize::from(segments.header_len) + usize::from(segments.size)))
    }
}

/// What somebody can finish by himself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Partial checksums.
    pub checksum: bool,
    /// TCP over IPv4.
    pub tcp4: bool,
    /// TCP over IPv6.
    pub tcp6: bool,
    /// UDP.
    pub udp: bool,
}

impl Offloads {
    /// Nothing: every frame has to be complete.
    pub const NONE: Self = Self { checksum: false, tcp4: false, tcp6: false, udp: false };

    /// Everything.
    pub const ALL: Self = Self { checksum: true, tcp4: true, tcp6: true, udp: true };

    /// Whether `offload` can be left to him.
    pub fn include(self, offload: &Offload) -> bool {
        (self.checksum || offload.checksum.is_none())
            && match offload.segments.map(|segments| segments.kind) {
                None => true,
                Some(SegmentKind::Tcp4) => self.tcp4,
                Some(SegmentKind::Tcp6) => self.tcp6,
                Some(SegmentKind::Udp) => self.udp,
            }
    }
}

/// Why a frame cannot have left to do on it what is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// A kind of segments that we did not ask for or that nobody knows.
    #[error("frames of this kind of segments are not understood")]
    Kind,
    /// The checksum lies outside the frame, or not where the headers have it.
    #[error("the partial checksum is not where the frame has one")]
    Checksum,
    /// Segments without a checksum to fill in.
    #[error("a frame is to be cut, but has no partial checksum")]
    NoChecksum,
    /// Segments of no bytes, or too many of them.
    #[error("segments are of 0 bytes, or more than {MAX_SEGMENTS}")]
    Size,
    /// The headers end too soon, or are not what they say.
    #[error("the headers are incomplete or too long")]
    Headers,
    /// IP says another length than the frame has.
    #[error("the length in the IP header is not that of the frame")]
    Length,
    /// A fragment, which has no transport header.
    #[error("a fragment of an IP packet cannot be cut")]
    Fragment,
    /// Other protocols than the kind of segments says.
    #[error("the headers are not of the protocol that is to be cut")]
    Protocol,
}
