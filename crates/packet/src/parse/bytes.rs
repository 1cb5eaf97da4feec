//! Big-endian numbers inside headers of known length. Places are constants, so the compiler sees that they are inside.

/// Two bytes at `at`.
#[inline(always)]
pub(super) const fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Three bytes at `at`.
#[inline(always)]
pub(super) const fn be24<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]])
}

/// Four bytes at `at`.
#[inline(always)]
pub(super) const fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Eight bytes at `at`.
#[inline(always)]
pub(super) const fn be64<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    (be32(bytes, at) as u64) << 32 | be32(bytes, at + 4) as u64
}

/// `COUNT` bytes at `at`.
#[inline(always)]
pub(super) fn array<const N: usize, const COUNT: usize>(bytes: &[u8; N], at: usize) -> [u8; COUNT] {
    std::array::from_fn(|place| bytes[at + place])
}
