//! Work on a frame that was left to whoever sends it on: a checksum to fill in, a large frame to cut into segments.
//!
//! Linux hands frames out in this state when it is told that the other side can finish them: `struct virtio_net_hdr`
//! (virtio 1.2, 5.1.6), which tap, packet sockets and virtio queues share. [`Offload`] says the same without its layout.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_left_to_somebody() {
        let checksum = Some(PartialChecksum { start: 34, offset: 16 });
        let segments = Some(Segments { kind: SegmentKind::Tcp6, ecn: false, size: 1440, header_len: 74 });
        assert!(Offloads::NONE.include(&Offload::default()) && Offload::default().is_done());
        assert!(!Offloads::NONE.include(&Offload { checksum, segments: None }));
        assert!(Offloads::ALL.include(&Offload { checksum, segments }));
        assert!(!Offloads { tcp6: false, ..Offloads::ALL }.include(&Offload { checksum, segments }));
        assert!(!Offloads { checksum: false, ..Offloads::ALL }.include(&Offload { checksum, segments }));
    }
}
