//! The invariant CRC: over everything of a packet that no router may change (volume 1, 7.8.1; A16.5.1, A17.3.3).
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones, which stand for the local route header that RoCE has not, then
//! network header, UDP header, base transport header and all that follows, where the fields that routers change are taken
//! as ones.
//!
//! Frames are built with the ones in place, so that the sum goes over one piece of memory, and get their fields when it
//! is done ([`super::build`]). Frames that have come are not ours to change, so their front is copied.

use crc32fast::Hasher;

/// The CRC-32 of eight bytes of ones, as the library has sums that go on. The register is then 0xdebb20e3.
const SEED: u32 = !0xdebb_20e3;

/// How much of a packet is copied: whole short packets, and of long ones more than the headers with fields to be masked.
const FRONT: usize = 128;

/// What stands before the base transport header; says where the fields are that routers change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// IPv4 without options, UDP.
    Ipv4,
    /// IPv6, UDP.
    Ipv6,
    /// A global route header.
    Route,
}

impl Before {
    /// Bytes before the base transport header, Ethernet not counted.
    #[inline]
    pub const fn len(self) -> usize {
        match self {
            Self::Ipv4 => 28,
            Self::Ipv6 => 48,
            Self::Route => 40,
        }
    }

    /// Puts ones where routers may change something. `front` begins with the network header.
    #[inline]
    pub fn mask<const N: usize>(self, front: &mut [u8; N]) {
        match self {
            Self::Ipv4 => {
                // Type of service, time to live, checksum of the header; checksum of UDP.
                [1, 8, 10, 11, 26, 27].into_iter().for_each(|at| front[at] = 0xff);
            }
            Self::Ipv6 | Self::Route => {
                // Traffic class and flow label, hop limit.
                front[0] |= 0x0f;
                [1, 2, 3, 7].into_iter().for_each(|at| front[at] = 0xff);
            }
        }
        if self == Self::Ipv6 {
            [46, 47].into_iter().for_each(|at| front[at] = 0xff);
        }
        // Congestion marks of the base transport header, and six reserved bits beside them.
        front[self.len() + 4] = 0xff;
    }
}

/// The sum of `bytes`, which begin with the network header, end before the sum, and have ones where routers may change
/// something. The lowest byte stands first.
#[inline]
pub(super) fn of_masked(bytes: &[u8]) -> [u8; 4] {
    let mut hasher = Hasher::new_with_initial(SEED);
    hasher.update(bytes);
    hasher.finalize().to_le_bytes()
}

/// The sum of a packet as it came, from the network header to the end of the padding. `None`: it is shorter than its
/// headers.
#[inline]
pub(super) fn of_packet(packet: &[u8], before: Before) -> Option<[u8; 4]> {
    if packet.len() < before.len() + 12 {
        return None;
    }
    let mut front = [0; FRONT];
    let mut hasher = Hasher::new_with_initial(SEED);
    if let Some((first, rest)) = packet.split_first_chunk::<FRONT>() {
        front.copy_from_slice(first);
        before.mask(&mut front);
        hasher.update(&front);
        hasher.update(rest);
    } else {
        front[..packet.len()].copy_from_slice(packet);
        before.mask(&mut front);
        hasher.update(&front[..packet.len()]);
    }
    Some(hasher.finalize().to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, with the register as the standard has it.
    fn slowly(bytes: impl Iterator<Item = u8>) -> [u8; 4] {
        let mut register = 0xffff_ffff_u32;
        for byte in [0xff; 8].into_iter().chain(bytes) {
            register ^= u32::from(byte);
            for _ in 0..8 {
                register = register >> 1 ^ 0xedb8_8320 & (register & 1).wrapping_neg();
            }
        }
        (!register).to_le_bytes()
    }

    #[test]
    fn the_seed_is_the_sum_of_eight_bytes_of_ones() {
        assert_eq!(SEED, crc32fast::hash(&[0xff; 8]));
    }

    proptest! {
        #[test]
        fn agrees_with_the_slow_sum(packet in prop::collection::vec(any::<u8>(), 40..300), which in 0..3usize) {
            let before = [Before::Ipv4, Before::Ipv6, Before::Route][which];
            let masked = |at: usize| match before {
                Before::Ipv4 => [1, 8, 10, 11, 26, 27, 32].contains(&at),
                Before::Ipv6 => [1, 2, 3, 7, 46, 47, 52].contains(&at),
                Before::Route => [1, 2, 3, 7, 44].contains(&at),
            };
            let byte = |(at, byte): (usize, &u8)| match (before, at) {
                (Before::Ipv6 | Before::Route, 0) => byte | 0x0f,
                _ if masked(at) => 0xff,
                _ => *byte,
            };
            let expected = (packet.len() >= before.len() + 12).then(|| slowly(packet.iter().enumerate().map(byte)));
            prop_assert_eq!(of_packet(&packet, before), expected);
        }
    }
}
