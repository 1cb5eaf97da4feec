//! Removing the protection of packets (RFC 9001 §5.4, RFC 9000 §17.1).

use super::keys::{HeaderKey, PacketKey, TAG_LEN};

/// Bytes of a sample, and of the longest packet number before it.
const SAMPLE_LEN: usize = 16;
const LONGEST_NUMBER: usize = 4;
/// First bit of a long header.
const LONG: u8 = 0x80;
/// Key phase in the first byte of a short header (RFC 9000 §17.3.1).
const KEY_PHASE: u8 = 0x04;

/// Memory for packets while they are opened, to be used again and again.
#[derive(Debug, Default)]
pub struct Scratch {
    /// A copy of the packet, with its header readable.
    pub(super) packet: Vec<u8>,
    /// Its payload.
    pub(super) payload: Vec<u8>,
    /// Payloads of the Initial packets of a datagram, one behind the other.
    pub(super) payloads: Vec<u8>,
}

/// A packet whose header is readable and whose payload is still encrypted.
#[derive(Debug)]
pub struct Unmasked<'a> {
    header_len: usize,
    /// The low bits of the packet number, and how many they are.
    truncated: u64,
    bits: u32,
    packet: &'a mut [u8],
}

/// Makes the header of the packet in `packet` readable, where it lies; its packet number begins at `number_at`. `None`:
/// it is too short to be a packet.
pub fn unmask<'a>(key: &HeaderKey, packet: &'a mut [u8], number_at: usize) -> Option<Unmasked<'a>> {
    let sample = packet.get(number_at.checked_add(LONGEST_NUMBER)?..)?.first_chunk::<SAMPLE_LEN>()?;
    let [first, numbers @ ..] = key.mask(sample)?;
    packet[0] ^= first & if packet[0] & LONG != 0 { 0x0f } else { 0x1f };
    let len = usize::from(packet[0] & 3) + 1;
    let header_len = number_at + len;
    let mut truncated = 0;
    for (byte, mask) in packet.get_mut(number_at..header_len)?.iter_mut().zip(numbers) {
        *byte ^= mask;
        truncated = truncated << 8 | u64::from(*byte);
    }
    Some(Unmasked { header_len, truncated, bits: 8 * len as u32, packet })
}

impl<'a> Unmasked<'a> {
    /// Key phase of a packet with a short header.
    pub fn key_phase(&self) -> bool {
        self.packet[0] & KEY_PHASE != 0
    }

    /// Packet number, if the highest one so far was `largest`.
    pub fn number(&self, largest: Option<u64>) -> u64 {
        decode_number(largest, self.truncated, self.bits)
    }

    /// Decrypts the payload with a key that may be wrong; the packet is left as it was.
    /// Returns how long the payload in `payload` is. `None`: it is another key, or the packet is damaged.
    pub fn try_open(&self, key: &PacketKey, number: u64, payload: &mut Vec<u8>) -> Option<usize> {
        let (header, encrypted) = self.packet.split_at_checked(self.header_len)?;
        if encrypted.len() < TAG_LEN {
            return None;
        }
        payload.clear();
        payload.extend_from_slice(encrypted);
        key.open(number, header, payload).map(<[u8]>::len)
    }
}

/// The packet number whose low `bits` bits are `truncated` and that is nearest to the one expected (RFC 9000 appendix A.3).
fn decode_number(largest: Option<u64>, truncated: u64, bits: u32) -> u64 {
    let expected = largest.map_or(0, |largest| largest.saturating_add(1));
    let window = 1u64 << bits;
    let candidate = expected & !(window - 1) | truncated;
    if candidate.saturating_add(window / 2) <= expected && candidate < (1 << 62) - window {
        candidate + window
    } else if candidate > expected.saturating_add(window / 2) && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of RFC 9000 appendix A.3.
    #[test]
    fn example_of_the_standard() {
        assert_eq!(decode_number(Some(0xa82f_30ea), 0x9b32, 16), 0xa82f_9b32);
    }

    proptest! {
        #[test]
        fn a_number_within_half_a_window(largest in 0u64..1 << 61, step in 0u64..100, len in 1u32..5) {
            let number = largest + 1 + step;
            prop_assert_eq!(decode_number(Some(largest), number & ((1 << (8 * len)) - 1), 8 * len), number);
        }

        #[test]
        fn any_number(largest: Option<u64>, truncated: u32, len in 1u32..5) {
            let truncated = u64::from(truncated) & ((1 << (8 * len)) - 1);
            prop_assert_eq!(decode_number(largest, truncated, 8 * len) & ((1 << (8 * len)) - 1), truncated);
        }
    }
}
