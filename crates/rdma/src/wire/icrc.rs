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
/// All fields to be masked are in so many bytes.
const MASKED: usize = 64;

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

    /// Ones where routers may change something, from the network header to the base transport header.
    pub const fn mask(self) -> &'static [u8; MASKED] {
        const IPV4: [u8; MASKED] = ones(&[1, 8, 10, 11, 26, 27, 32], 0);
        const IPV6: [u8; MASKED] = ones(&[1, 2, 3, 7, 46, 47, 52], 0x0f);
        const ROUTE: [u8; MASKED] = ones(&[1, 2, 3, 7, 44], 0x0f);
        match self {
            // Type of service, time to live, checksum; checksum of UDP.
            Self::Ipv4 => &IPV4,
            // Traffic class and flow label, hop limit; checksum of UDP.
            Self::Ipv6 => &IPV6,
            Self::Route => &ROUTE,
        }
    }
}

/// Ones at some places, and `first` at the first. Behind UDP or the route header it is the byte of the base transport
/// header with the congestion marks and the six reserved bits beside them.
const fn ones(places: &[usize], first: u8) -> [u8; MASKED] {
    let (mut mask, mut at) = ([0; MASKED], 0);
    mask[0] = first;
    while at < places.len() {
        mask[places[at]] = 0xff;
        at += 1;
    }
    mask
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
    let copied = packet.len().min(FRONT);
    let mask = before.mask();
    match packet.first_chunk::<MASKED>() {
        // One length, so that this is a few wide instructions.
        Some(first) => {
            (0..MASKED).for_each(|at| front[at] = first[at] | mask[at]);
            front[MASKED..copied].copy_from_slice(&packet[MASKED..copied]);
        }
        None => packet.iter().zip(mask).zip(&mut front).for_each(|((byte, mask), to)| *to = byte | mask),
    }
    let mut hasher = Hasher::new_with_initial(SEED);
    hasher.update(&front[..copied]);
    if packet.len() > FRONT {
        hasher.update(&packet[FRONT..]);
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
