//! A slot of the ring: `struct tpacket2_hdr` of linux/if_packet.h, and the frame behind it.
//!
//! ```text
//! byte 0            4         8             12     14              24      26       28
//!      | status 32 | len 32 | captured 32 | mac 16 | net 16 | time | tci 16 | tpid 16 | ...
//! byte mac - 10                mac
//!      | virtio_net_hdr       | frame ...
//! ```

use millrace_packet::offload::VIRTIO_HEADER_LEN;

/// `TP_STATUS_*`: the frame did not fit and waits in the socket; frames were lost; there are a VLAN tag and its type.
const COPY: u32 = 1 << 1;
const LOSING: u32 = 1 << 2;
const VLAN: u32 = 1 << 4;
const VLAN_TYPE: u32 = 1 << 6;
/// The type of a VLAN tag, where Linux does not say.
const DEFAULT_VLAN_TYPE: u16 = 0x8100;

/// Bytes of a VLAN tag, and of the addresses in front of it.
pub(super) const TAG_LEN: usize = 4;
const ADDRESSES_LEN: usize = 12;

/// What a slot says of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    status: u32,
    len: usize,
    captured: usize,
    /// Where the frame begins.
    mac: usize,
    /// When it came, in s and ns of `CLOCK_REALTIME`.
    seconds: u32,
    nanoseconds: u32,
    tag: [u8; TAG_LEN],
}

fn word16(slot: &[u8], at: usize) -> u16 {
    slot.get(at..at + 2).map_or(0, |word| u16::from_ne_bytes([word[0], word[1]]))
}

fn word32(slot: &[u8], at: usize) -> u32 {
    slot.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_ne_bytes(*word))
}

impl Slot {
    #[inline]
    pub fn read(slot: &[u8]) -> Self {
        let status = word32(slot, 0);
        let kind = if status & VLAN_TYPE != 0 { word16(slot, 26) } else { DEFAULT_VLAN_TYPE };
        let ([a, b], [c, d]) = (kind.to_be_bytes(), word16(slot, 24).to_be_bytes());
        let (len, captured) = (word32(slot, 4) as usize, word32(slot, 8) as usize);
        let (seconds, nanoseconds) = (word32(slot, 16), word32(slot, 20));
        Self { status, len, captured, mac: word16(slot, 12).into(), seconds, nanoseconds, tag: [a, b, c, d] }
    }

    /// Whether the kernel had to drop frames.
    pub fn tells_of_drops(&self) -> bool {
        self.status & LOSING != 0
    }

    /// Whether the frame waits in the socket, because it is longer than a slot.
    pub fn is_elsewhere(&self) -> bool {
        self.status & COPY != 0
    }

    /// When the frame came, in ns of `CLOCK_REALTIME`.
    pub fn came(&self) -> u64 {
        u64::from(self.seconds) * 1_000_000_000 + u64::from(self.nanoseconds)
    }

    /// The VLAN tag that Linux has taken out of the frame.
    pub fn tag(&self) -> Option<[u8; TAG_LEN]> {
        (self.status & VLAN != 0).then_some(self.tag)
    }

    /// Where header and frame are in the slot, if all of the frame is.
    pub fn whole(&self) -> Option<std::ops::Range<usize>> {
        (self.captured == self.len).then(|| self.mac.saturating_sub(VIRTIO_HEADER_LEN)..self.mac + self.captured)
    }

    /// The frame, if nothing is left to do on it, not even for us.
    #[inline]
    pub fn plain<'a>(&self, slot: &'a [u8]) -> Option<&'a [u8]> {
        if self.status & (COPY | VLAN) != 0 {
            return None;
        }
        let (header, frame) = slot.get(self.whole()?)?.split_at_checked(VIRTIO_HEADER_LEN)?;
        // Neither a checksum that is not there yet nor segments.
        (header[0] & 1 == 0 && header[1] == 0).then_some(frame)
    }
}

/// Puts a VLAN tag back: between the addresses and the rest of the frame that begins at `at` of `bytes`, in front of which
/// its header is. Returns where header and frame begin then: four bytes earlier.
pub(super) fn put_back(bytes: &mut [u8], at: usize, tag: [u8; TAG_LEN]) -> Option<usize> {
    let first = at.checked_sub(VIRTIO_HEADER_LEN + TAG_LEN)?;
    if bytes.len() < at + ADDRESSES_LEN {
        return None;
    }
    bytes.copy_within(at - VIRTIO_HEADER_LEN..at + ADDRESSES_LEN, first);
    bytes[at + ADDRESSES_LEN - TAG_LEN..at + ADDRESSES_LEN].copy_from_slice(&tag);
    // Where headers end and where the checksum begins is four bytes further on now.
    for place in [first + 2, first + 6] {
        let word = u16::from_le_bytes([bytes[place], bytes[place + 1]]).saturating_add(TAG_LEN as u16);
        bytes[place..place + 2].copy_from_slice(&word.to_le_bytes());
    }
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_put_back_where_it_was() {
        let mut bytes = vec![0xee; 4];
        bytes.extend([1, 0, 54, 0, 0, 0, 34, 0, 16, 0]);
        bytes.extend([1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0, 0x45]);
        let first = put_back(&mut bytes, 14, [0x88, 0xa8, 0, 5]);
        assert_eq!(first, Some(0));
        assert_eq!(bytes[..10], [1, 0, 58, 0, 0, 0, 38, 0, 16, 0]);
        assert_eq!(bytes[10..], [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x88, 0xa8, 0, 5, 8, 0, 0x45]);
        assert_eq!(put_back(&mut bytes, 13, [0; 4]), None);
        assert_eq!(put_back(&mut bytes[..20], 14, [0; 4]), None);
    }

    #[test]
    fn slots_that_make_no_sense_yield_nothing() {
        for slot in [vec![], vec![0xff; 20], vec![0xff; 2048], vec![0; 2048]] {
            assert_eq!(Slot::read(&slot).plain(&slot).map(<[u8]>::len).unwrap_or_default(), 0);
        }
    }
}
