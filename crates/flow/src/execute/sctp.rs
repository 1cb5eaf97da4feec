//! The checksum of SCTP: CRC32c over the whole packet (RFC 9260 section 6.8 and appendix A).

/// The polynomial of CRC32c, bits in the order in which they are sent.
const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// By how much the checksum of a packet of `len` bytes changes when its first four bytes, the ports, change from `old` to
/// `new`. A CRC is linear: it is that of the difference, which is zero behind the ports.
pub(super) fn difference(old: [u8; 4], new: [u8; 4], len: usize) -> [u8; 4] {
    let step = |crc: u32, byte: u8| crc >> 8 ^ TABLE[((crc ^ u32::from(byte)) & 0xff) as usize];
    let ports = old.iter().zip(new).fold(0, |crc, (old, new)| step(crc, old ^ new));
    (4..len).fold(ports, |crc, _| step(crc, 0)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRC32c bit by bit.
    fn crc(bytes: &[u8]) -> u32 {
        let bits = bytes.iter().flat_map(|byte| (0..8).map(move |bit| u32::from(byte >> bit & 1)));
        !bits.fold(!0, |crc, bit| crc >> 1 ^ if (crc ^ bit) & 1 == 1 { POLYNOMIAL } else { 0 })
    }

    /// The test vector of RFC 3720 appendix B.4: 32 bytes of zeros.
    #[test]
    fn the_judge_is_right() {
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn same_as_computed_anew() {
        for len in [12, 16, 1400] {
            let mut packet: Vec<u8> = (0..len).map(|at| at as u8).collect();
            packet[8..12].fill(0);
            let (before, old) = (crc(&packet).to_le_bytes(), [packet[0], packet[1], packet[2], packet[3]]);
            packet[..4].copy_from_slice(&[0x12, 0x34, 0xab, 0xcd]);
            let change = difference(old, [0x12, 0x34, 0xab, 0xcd], len);
            assert_eq!(std::array::from_fn(|at| before[at] ^ change[at]), crc(&packet).to_le_bytes(), "{len}");
        }
    }
}
