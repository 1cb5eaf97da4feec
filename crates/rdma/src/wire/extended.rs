//! Extended transport headers as RoCE writes them: big-endian, one behind the other (volume 1, 9.3 to 9.6).

use super::code::Parts;
use super::{Aeth, AtomicEth, Deth, Headers, Reth, Syndrome};
use crate::number::{Key, Qpn};

/// Takes the first `N` bytes off.
#[inline(always)]
pub(super) fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(first)
}

/// Takes the first bytes off, with `bytes` in them.
#[inline(always)]
pub(super) fn put<const N: usize>(rest: &mut &mut [u8], bytes: [u8; N]) -> Option<()> {
    let (first, behind) = std::mem::take(rest).split_first_chunk_mut()?;
    *first = bytes;
    *rest = behind;
    Some(())
}

/// The lower 24 bits.
#[inline(always)]
pub(super) const fn three(number: u32) -> [u8; 3] {
    let [_, a, b, c] = number.to_be_bytes();
    [a, b, c]
}

#[inline(always)]
pub(super) const fn of_three(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

impl Syndrome {
    /// As it stands in a header (volume 1, 9.7.5.2.1, tables 45 and 46).
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::Rnr(timer) => 0x20 | timer & 0x1f,
            Self::SequenceError => 0x60,
            Self::InvalidRequest => 0x61,
            Self::RemoteAccess => 0x62,
            Self::RemoteOperation => 0x63,
        }
    }

    /// What a byte says; `None` if it is reserved.
    #[inline]
    pub const fn of_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00..=0x1f => Self::Ack(byte),
            0x20..=0x3f => Self::Rnr(byte & 0x1f),
            0x60 => Self::SequenceError,
            0x61 => Self::InvalidRequest,
            0x62 => Self::RemoteAccess,
            0x63 => Self::RemoteOperation,
            _ => return None,
        })
    }
}

impl Reth {
    #[inline]
    pub(super) fn write(self, rest: &mut &mut [u8]) -> Option<()> {
        put(rest, self.address.to_be_bytes())?;
        put(rest, self.rkey.value().to_be_bytes())?;
        put(rest, self.len.to_be_bytes())
    }

    #[inline]
    pub(super) fn read(rest: &mut &[u8]) -> Option<Self> {
        let address = u64::from_be_bytes(*take(rest)?);
        let rkey = Key::new(u32::from_be_bytes(*take(rest)?));
        Some(Self { address, rkey, len: u32::from_be_bytes(*take(rest)?) })
    }
}

impl Aeth {
    #[inline]
    pub(super) fn write(self, rest: &mut &mut [u8]) -> Option<()> {
        put(rest, [self.syndrome.to_byte()])?;
        put(rest, three(self.msn))
    }

    #[inline]
    pub(super) fn read(rest: &mut &[u8]) -> Result<Self, Missing> {
        let [byte] = *take(rest).ok_or(Missing::Bytes)?;
        let msn = of_three(*take(rest).ok_or(Missing::Bytes)?);
        Ok(Self { syndrome: Syndrome::of_byte(byte).ok_or(Missing::Syndrome)?, msn })
    }
}

/// An acknowledgement of nothing, for whoever has left it out.
pub(super) const NO_AETH: Aeth = Aeth { syndrome: Syndrome::Ack(0x1f), msn: 0 };

/// What is wrong with extended headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// They are cut off.
    Bytes,
    /// A syndrome is reserved.
    Syndrome,
}

/// Writes those of an opcode, with defaults for those that are missing; `None`: there is no room.
#[inline]
pub(super) fn write(parts: Parts, headers: &Headers, rest: &mut &mut [u8]) -> Option<()> {
    if parts.has(Parts::DETH) {
        let deth = headers.deth.unwrap_or_default();
        put(rest, deth.qkey.to_be_bytes())?;
        put(rest, deth.source.value().to_be_bytes())?;
    }
    if parts.has(Parts::RETH) {
        headers.reth.unwrap_or_default().write(rest)?;
    }
    if parts.has(Parts::ATOMIC) {
        let atomic = headers.atomic.unwrap_or_default();
        put(rest, atomic.address.to_be_bytes())?;
        put(rest, atomic.rkey.value().to_be_bytes())?;
        put(rest, atomic.swap_add.to_be_bytes())?;
        put(rest, atomic.compare.to_be_bytes())?;
    }
    if parts.has(Parts::AETH) {
        headers.aeth.unwrap_or(NO_AETH).write(rest)?;
    }
    if parts.has(Parts::ORIGINAL) {
        put(rest, headers.original.unwrap_or_default().to_be_bytes())?;
    }
    if parts.has(Parts::IMMEDIATE) {
        put(rest, headers.immediate.unwrap_or_default())?;
    }
    if parts.has(Parts::INVALIDATE) {
        put(rest, headers.invalidate.unwrap_or_default().value().to_be_bytes())?;
    }
    if parts.has(Parts::RESERVED) {
        put(rest, [0; 16])?;
    }
    Some(())
}

/// Reads those of an opcode off the front of `rest`.
#[inline]
pub(super) fn read(parts: Parts, headers: &mut Headers, rest: &mut &[u8]) -> Result<(), Missing> {
    if parts.has(Parts::AETH) {
        headers.aeth = Some(Aeth::read(rest)?);
    }
    read_others(parts, headers, rest).ok_or(Missing::Bytes)
}

#[inline]
fn read_others(parts: Parts, headers: &mut Headers, rest: &mut &[u8]) -> Option<()> {
    if parts.has(Parts::DETH) {
        let qkey = u32::from_be_bytes(*take(rest)?);
        headers.deth = Some(Deth { qkey, source: Qpn::new(u32::from_be_bytes(*take(rest)?)) });
    }
    if parts.has(Parts::RETH) {
        headers.reth = Some(Reth::read(rest)?);
    }
    if parts.has(Parts::ATOMIC) {
        headers.atomic = Some(AtomicEth {
            address: u64::from_be_bytes(*take(rest)?),
            rkey: Key::new(u32::from_be_bytes(*take(rest)?)),
            swap_add: u64::from_be_bytes(*take(rest)?),
            compare: u64::from_be_bytes(*take(rest)?),
        });
    }
    if parts.has(Parts::ORIGINAL) {
        headers.original = Some(u64::from_be_bytes(*take(rest)?));
    }
    if parts.has(Parts::IMMEDIATE) {
        headers.immediate = Some(*take(rest)?);
    }
    if parts.has(Parts::INVALIDATE) {
        headers.invalidate = Some(Key::new(u32::from_be_bytes(*take(rest)?)));
    }
    if parts.has(Parts::RESERVED) {
        take::<16>(rest)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes() {
        for byte in 0..=255 {
            match Syndrome::of_byte(byte) {
                Some(syndrome) => assert_eq!(syndrome.to_byte(), byte),
                None => assert!(matches!(byte, 0x40..=0x5f | 0x64..=0xff)),
            }
        }
        assert_eq!(Syndrome::Rnr(14).to_byte(), 0x2e);
    }
}
