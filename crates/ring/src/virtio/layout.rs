//! Numbers and bytes of split virtqueues and of the network device (virtio 1.2, 2.7 and 5.1).

use millrace_dma::Iova;

/// Feature bits (virtio 1.2, 5.1.3 and 6).
pub mod feature {
    /// The device finishes checksums of frames that the driver sends.
    pub const CSUM: u64 = 1 << 0;
    /// The driver takes frames with checksums that are not finished.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The driver takes large TCP frames over IPv4.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The driver takes large TCP frames over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The driver takes large TCP frames with ECN.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// The device takes large TCP frames over IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The device takes large TCP frames over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// The device takes large TCP frames with ECN.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A frame may lie in several receive buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// The driver may send gratuitous packets.
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// Several pairs of queues.
    pub const MQ: u64 = 1 << 22;
    /// vhost only: everything that is written to memory is logged, for migration.
    pub const VHOST_LOG_ALL: u64 = 1 << 26;
    /// A descriptor may stand for a table of descriptors.
    pub const RING_INDIRECT_DESC: u64 = 1 << 28;
    /// Each side says with an index when it wants to be notified.
    pub const RING_EVENT_IDX: u64 = 1 << 29;
    /// vhost-user only: there are protocol features to be negotiated.
    pub const VHOST_USER_PROTOCOL: u64 = 1 << 30;
    /// Virtio 1.0 or later: little-endian, and a header of 12 bytes always.
    pub const VERSION_1: u64 = 1 << 32;
    /// Packed virtqueues.
    pub const RING_PACKED: u64 = 1 << 34;
    /// Buffers are used in the order in which they were made available.
    pub const IN_ORDER: u64 = 1 << 35;
}

/// Most descriptors of a split virtqueue (2.7).
pub const MAX_SIZE: u16 = 1 << 15;

/// Flags of a descriptor (2.7.5).
pub mod descriptor_flag {
    /// The chain goes on in `next`.
    pub const NEXT: u16 = 1;
    /// The device writes the buffer; otherwise it reads it.
    pub const WRITE: u16 = 2;
    /// The buffer is a table of descriptors.
    pub const INDIRECT: u16 = 4;
}

/// An entry of the descriptor table: two little-endian 64-bit words (2.7.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Where the buffer is.
    pub address: Iova,
    /// Its length in bytes.
    pub len: u32,
    /// [`descriptor_flag`].
    pub flags: u16,
    /// Index of the next descriptor of the chain, if the flags say that there is one.
    pub next: u16,
}

impl Descriptor {
    /// Bytes of an entry.
    pub const LEN: usize = 16;

    /// What the two words mean.
    #[inline(always)]
    pub const fn decode(words: [u64; 2]) -> Self {
        let [address, rest] = words;
        Self { address: Iova::new(address), len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    /// The two words that mean this.
    #[inline(always)]
    pub const fn encode(self) -> [u64; 2] {
        [self.address.get(), self.len as u64 | (self.flags as u64) << 32 | (self.next as u64) << 48]
    }

    /// Whether one of [`descriptor_flag`] is set.
    #[inline(always)]
    pub const fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The header in front of every frame (5.1.6): `virtio_net_hdr`, with the number of buffers as virtio 1 always has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetHeader {
    /// [`header_flag`].
    pub flags: u8,
    /// [`gso`].
    pub gso_type: u8,
    /// Length of all headers of the frame; a hint.
    pub hdr_len: u16,
    /// Payload of each segment.
    pub gso_size: u16,
    /// First byte that is summed up.
    pub csum_start: u16,
    /// Where the sum belongs, from there.
    pub csum_offset: u16,
    /// Receive buffers that the frame lies in; 0 in the other direction.
    pub num_buffers: u16,
}

/// Flags of a [`NetHeader`].
pub mod header_flag {
    /// The checksum is to be finished.
    pub const NEEDS_CSUM: u8 = 1;
    /// The checksum has been found right.
    pub const DATA_VALID: u8 = 2;
}

/// Kinds of large frames in a [`NetHeader`].
pub mod gso {
    /// An ordinary frame.
    pub const NONE: u8 = 0;
    /// TCP over IPv4.
    pub const TCPV4: u8 = 1;
    /// UDP over IPv4, as fragments.
    pub const UDP: u8 = 3;
    /// TCP over IPv6.
    pub const TCPV6: u8 = 4;
    /// UDP, each segment a datagram.
    pub const UDP_L4: u8 = 5;
    /// TCP with ECN, beside one of the above.
    pub const ECN: u8 = 0x80;
}

impl NetHeader {
    /// Bytes of the header.
    pub const LEN: usize = 12;

    /// The header of a complete frame in `count` receive buffers.
    pub const fn of_buffers(count: u16) -> Self {
        Self { flags: 0, gso_type: 0, hdr_len: 0, gso_size: 0, csum_start: 0, csum_offset: 0, num_buffers: count }
    }

    /// What the bytes mean.
    #[inline(always)]
    pub const fn decode(bytes: [u8; Self::LEN]) -> Self {
        const fn word(low: u8, high: u8) -> u16 {
            u16::from_le_bytes([low, high])
        }
        let b = bytes;
        Self {
            flags: b[0],
            gso_type: b[1],
            hdr_len: word(b[2], b[3]),
            gso_size: word(b[4], b[5]),
            csum_start: word(b[6], b[7]),
            csum_offset: word(b[8], b[9]),
            num_buffers: word(b[10], b[11]),
        }
    }

    /// The bytes that mean this.
    #[inline(always)]
    pub const fn encode(self) -> [u8; Self::LEN] {
        let [hdr, size] = [self.hdr_len.to_le_bytes(), self.gso_size.to_le_bytes()];
        let [start, offset] = [self.csum_start.to_le_bytes(), self.csum_offset.to_le_bytes()];
        let count = self.num_buffers.to_le_bytes();
        [
            self.flags,
            self.gso_type,
            hdr[0],
            hdr[1],
            size[0],
            size[1],
            start[0],
            start[1],
            offset[0],
            offset[1],
            count[0],
            count[1],
        ]
    }

    /// Whether the frame behind it is complete as it is.
    #[inline(always)]
    pub const fn is_plain(self) -> bool {
        self.flags & header_flag::NEEDS_CSUM == 0 && self.gso_type == gso::NONE
    }
}

/// Flag of the available ring: the driver needs no interrupt. Without [`feature::RING_EVENT_IDX`] only.
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// Flag of the used ring: the device needs no notification. Without [`feature::RING_EVENT_IDX`] only.
pub const USED_NO_NOTIFY: u16 = 1;

/// Whether a side that waits for `event` has to be told of the step from `old` to `new` (2.7.10, `vring_need_event`).
#[inline(always)]
pub const fn needs_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_descriptor_lies_as_the_standard_says() {
        let descriptor = Descriptor { address: Iova::new(0x1122_3344_5566_7788), len: 0xaabb_ccdd, flags: 3, next: 9 };
        let words = descriptor.encode();
        assert_eq!(words, [0x1122_3344_5566_7788, 0x0009_0003_aabb_ccdd]);
        assert_eq!(Descriptor::decode(words), descriptor);
        assert!(descriptor.has(descriptor_flag::NEXT) && !descriptor.has(descriptor_flag::INDIRECT));
    }

    #[test]
    fn an_event_is_due_when_the_index_passes_it() {
        assert!(needs_event(0, 1, 0));
        assert!(!needs_event(1, 1, 0));
        assert!(needs_event(5, 8, 4));
        assert!(!needs_event(3, 8, 4), "told already");
        assert!(needs_event(0xffff, 2, 0xfffe));
        assert!(!needs_event(7, 7, 7), "nothing new");
    }

    proptest! {
        #[test]
        fn a_header_survives(bytes: [u8; NetHeader::LEN]) {
            prop_assert_eq!(NetHeader::decode(bytes).encode(), bytes);
        }
    }
}
