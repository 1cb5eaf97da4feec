//! Tests of all of it together, and what several tests use.

mod group;
mod hostile;
mod keys;
mod look;
mod quinn;
mod vectors;
mod world;

use super::keys::{HeaderKey, PacketKey};

/// Bytes of hexadecimal digits.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().as_chunks::<2>().0;
    pairs.iter().map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Encrypts a packet as its sender does. The last `number_len` bytes of the header are the packet number.
pub(crate) fn protect(
    header_key: &HeaderKey,
    key: &PacketKey,
    number: u64,
    header: Vec<u8>,
    number_len: usize,
    payload: &[u8],
) -> Vec<u8> {
    let mut encrypted = payload.to_vec();
    key.seal(number, &header, &mut encrypted);
    let number_at = header.len() - number_len;
    let mut packet = [header, encrypted].concat();
    let sample = packet[number_at + 4..].first_chunk().unwrap();
    let [first, numbers @ ..] = header_key.mask(sample).unwrap();
    packet[0] ^= first & if packet[0] & 0x80 != 0 { 0x0f } else { 0x1f };
    packet[number_at..][..number_len].iter_mut().zip(numbers).for_each(|(byte, mask)| *byte ^= mask);
    packet
}
