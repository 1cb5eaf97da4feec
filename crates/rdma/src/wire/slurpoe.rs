//! The lean header, byte by byte as `docs/spec/slurpoe.md` has it.

use super::code::Parts;
use super::extended::{Missing, NO_AETH, put, take, three};
use super::{Aeth, AtomicEth, Deth, Headers, Reth};
use crate::number::{Key, Qpn};

/// IEEE 802 local experimental EtherType 1: whoever has two experiments on a wire has to keep them apart.
pub(super) const ETHER_TYPE: u16 = 0x88b5;
/// What the first byte says.
pub(super) const VERSION: u8 = 1;
/// Bytes behind the EtherType and before the extended headers.
pub(super) const LEN: usize = 18;
/// Where the congestion marks are in it, which its CRC-32C takes as ones.
pub(super) const MARKS: usize = 5;

/// Wake a sleeper.
pub(super) const SOLICITED: u8 = 0x80;
/// Answer this.
pub(super) const ACK_REQUEST: u8 = 0x40;
/// Selective repeat and credits.
pub(super) const EXTENDED: u8 = 0x20;
/// A CRC-32C stands behind the payload.
pub(super) const CHECKSUM: u8 = 0x01;
/// Congestion marks, forward and backward.
pub(super) const FECN: u8 = 0x80;
pub(super) const BECN: u8 = 0x40;

/// Writes the header; `None`: there is no room. The marks are written as ones.
#[inline]
pub(super) fn write(
    rest: &mut &mut [u8],
    (opcode, payload_len, checksum): (u8, u16, bool),
    source: Qpn,
    headers: &Headers,
) -> Option<()> {
    let flag = |wanted: bool, bit: u8| if wanted { bit } else { 0 };
    let flags = flag(headers.solicited, SOLICITED)
        | flag(headers.ack_request, ACK_REQUEST)
        | flag(headers.extended, EXTENDED)
        | flag(checksum, CHECKSUM);
    let [high, low] = payload_len.to_be_bytes();
    put(rest, [VERSION, opcode, high, low, flags, 0xff])?;
    put(rest, headers.pkey.to_be_bytes())?;
    put(rest, three(headers.destination.value()))?;
    put(rest, three(source.value()))?;
    put(rest, three(headers.psn.value()))?;
    put(rest, [0])
}

/// The marks as they are to stand there.
#[inline]
pub(super) const fn marks((fecn, becn): (bool, bool)) -> u8 {
    (if fecn { FECN } else { 0 }) | if becn { BECN } else { 0 }
}

/// Writes the extended headers of an opcode, each a multiple of eight bytes; `None`: there is no room.
#[inline]
pub(super) fn write_extended(parts: Parts, headers: &Headers, rest: &mut &mut [u8]) -> Option<()> {
    const FILL: [u8; 4] = [0; 4];
    if parts.has(Parts::DETH) {
        put(rest, headers.deth.unwrap_or_default().qkey.to_be_bytes())?;
        put(rest, FILL)?;
    }
    if parts.has(Parts::RETH) {
        headers.reth.unwrap_or_default().write(rest)?;
    }
    if parts.has(Parts::ATOMIC) {
        let atomic = headers.atomic.unwrap_or_default();
        put(rest, atomic.address.to_be_bytes())?;
        put(rest, atomic.rkey.value().to_be_bytes())?;
        put(rest, FILL)?;
        put(rest, atomic.swap_add.to_be_bytes())?;
        put(rest, atomic.compare.to_be_bytes())?;
    }
    if parts.has(Parts::AETH) {
        headers.aeth.unwrap_or(NO_AETH).write(rest)?;
        put(rest, FILL)?;
    }
    if parts.has(Parts::ORIGINAL) {
        put(rest, headers.original.unwrap_or_default().to_be_bytes())?;
    }
    if parts.has(Parts::IMMEDIATE) {
        put(rest, headers.immediate.unwrap_or_default())?;
        put(rest, FILL)?;
    }
    if parts.has(Parts::INVALIDATE) {
        put(rest, headers.invalidate.unwrap_or_default().value().to_be_bytes())?;
        put(rest, FILL)?;
    }
    Some(())
}

/// Reads the extended headers of an opcode off the front of `rest`. What fills them up is not looked at.
#[inline]
pub(super) fn read_extended(parts: Parts, source: Qpn, headers: &mut Headers, rest: &mut &[u8]) -> Result<(), Missing> {
    if parts.has(Parts::AETH) {
        headers.aeth = Some(Aeth::read(rest)?);
        take::<4>(rest).ok_or(Missing::Bytes)?;
    }
    read_others(parts, source, headers, rest).ok_or(Missing::Bytes)
}

#[inline]
fn read_others(parts: Parts, source: Qpn, headers: &mut Headers, rest: &mut &[u8]) -> Option<()> {
    if parts.has(Parts::DETH) {
        headers.deth = Some(Deth { qkey: front(rest)?, source });
    }
    if parts.has(Parts::RETH) {
        headers.reth = Some(Reth::read(rest)?);
    }
    if parts.has(Parts::ATOMIC) {
        headers.atomic = Some(AtomicEth {
            address: u64::from_be_bytes(*take(rest)?),
            rkey: Key::new(front(rest)?),
            swap_add: u64::from_be_bytes(*take(rest)?),
            compare: u64::from_be_bytes(*take(rest)?),
        });
    }
    if parts.has(Parts::ORIGINAL) {
        headers.original = Some(u64::from_be_bytes(*take(rest)?));
    }
    if parts.has(Parts::IMMEDIATE) {
        headers.immediate = Some(front(rest)?.to_be_bytes());
    }
    if parts.has(Parts::INVALIDATE) {
        headers.invalidate = Some(Key::new(front(rest)?));
    }
    Some(())
}

/// A number of four bytes, with four behind it that say nothing.
#[inline(always)]
fn front(rest: &mut &[u8]) -> Option<u32> {
    let [a, b, c, d, ..] = *take::<8>(rest)?;
    Some(u32::from_be_bytes([a, b, c, d]))
}

/// The CRC-32C of a frame without VLAN tag, from the MAC addresses to the end of the payload, with ones for the marks.
/// The lowest byte stands first. `addresses` are the twelve bytes of both MAC addresses, `header` begins behind the
/// EtherType and goes to the end of the payload. `None`: the header is cut off.
#[inline]
pub(super) fn checksum(addresses: &[u8; 12], header: &[u8]) -> Option<[u8; 4]> {
    let (fixed, rest) = header.split_first_chunk::<LEN>()?;
    let mut front = [0; 14 + LEN];
    front[..12].copy_from_slice(addresses);
    front[12..14].copy_from_slice(&ETHER_TYPE.to_be_bytes());
    front[14..].copy_from_slice(fixed);
    front[14 + MARKS] = 0xff;
    Some(crc32c::crc32c_append(crc32c::crc32c(&front), rest).to_le_bytes())
}
