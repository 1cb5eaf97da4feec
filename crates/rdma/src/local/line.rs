//! A packet's headers as one line of 64 bytes:
//!
//! | Word | |
//! |---|---|
//! | 0 | number of the line in the ring and one more, modulo 2^32; bytes of payload |
//! | 1 | opcode (8 bits), flags (8), which GIDs of both ends (4 and 4), destination (24) |
//! | 2 | sequence number (24 bits), immediate data or key to invalidate (32 bits, from bit 32 on) |
//! | 3 | address; or what an acknowledgement says (8 bits) and its message number (24 bits) |
//! | 4 | key, length; or what an atomic operation found |
//! | 5, 6 | what is swapped in or added; what is compared |
//! | 7 | the payload, if it has up to eight bytes |
//!
//! A short SEND (`short`) has an opcode of its own:
//!
//! | Word | |
//! |---|---|
//! | 1 | opcode (8 bits), flags (8), GIDs (4 and 4), destination (24), what the sender has taken itself (16) |
//! | 2 | sequence number (24 bits), epoch (8), immediate data (32) |
//! | 3 to 7 | the payload, if it has up to 40 bytes |

use super::short::Short;
use crate::number::{Key, Psn, Qpn};
use crate::wire::{Aeth, AtomicEth, Headers, Parts, Reth, Service, Syndrome, decode, encode};

const SOLICITED: u64 = 1;
const ACK_REQUEST: u64 = 2;
const FECN: u64 = 4;
const BECN: u64 = 8;
const EXTENDED: u64 = 16;
const IMMEDIATE: u64 = 32;

/// The opcode of a short SEND. No packet has it.
const SHORT: u64 = 0xf0;

/// Words 1 to 6.
pub(super) type Words = [u64; 6];

/// The first two words of a short SEND, from one GID of this end to one of the other.
#[inline]
pub(super) fn write_short(short: &Short, gids: (u8, u8), epoch: u8, heard: u16) -> [u64; 2] {
    let flags = if short.solicited { SOLICITED } else { 0 } | if short.immediate.is_some() { IMMEDIATE } else { 0 };
    let first = SHORT
        | flags << 8
        | u64::from(gids.0 & 15) << 16
        | u64::from(gids.1 & 15) << 20
        | u64::from(short.destination.value()) << 24
        | u64::from(heard) << 48;
    let immediate = u32::from_le_bytes(short.immediate.unwrap_or_default());
    [first, u64::from(short.psn.value()) | u64::from(epoch) << 24 | u64::from(immediate) << 32]
}

/// Whether a line is a short SEND.
#[inline]
pub(super) const fn is_short(word: u64) -> bool {
    word & 0xff == SHORT
}

/// A short SEND: which GIDs of that end and of this one it went by, its epoch, and what its sender has taken.
#[inline]
pub(super) const fn read_short(words: [u64; 2]) -> (Short, (u8, u8), u8, u16) {
    let immediate = if words[0] >> 8 & IMMEDIATE != 0 { Some(((words[1] >> 32) as u32).to_le_bytes()) } else { None };
    let short = Short {
        destination: Qpn::new((words[0] >> 24) as u32 & 0xff_ffff),
        psn: Psn::new(words[1] as u32 & 0xff_ffff),
        immediate,
        solicited: words[0] >> 8 & SOLICITED != 0,
    };
    let gids = ((words[0] >> 16) as u8 & 15, (words[0] >> 20) as u8 & 15);
    (short, gids, (words[1] >> 24) as u8, (words[0] >> 48) as u16)
}

/// A line that is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other process has written what is no packet")]
pub struct Malformed;

/// The words of a packet from one GID of this end to one of the other. `None`: datagrams and what has no opcode do not go
/// this way.
#[inline]
pub(super) fn write(headers: &Headers, gids: (u8, u8)) -> Option<Words> {
    let code = encode(headers.service, headers.opcode).filter(|_| headers.service != Service::UnreliableDatagram)?;
    let flag = |is: bool, bit| if is { bit } else { 0 };
    let flags = flag(headers.solicited, SOLICITED)
        | flag(headers.ack_request, ACK_REQUEST)
        | flag(headers.fecn_becn.0, FECN)
        | flag(headers.fecn_becn.1, BECN)
        | flag(headers.extended, EXTENDED);
    let extra = headers.immediate.map_or(0, u32::from_le_bytes) | headers.invalidate.map_or(0, Key::value);
    let mut words = [0; 6];
    words[0] = u64::from(code)
        | flags << 8
        | u64::from(gids.0 & 15) << 16
        | u64::from(gids.1 & 15) << 20
        | u64::from(headers.destination.value()) << 24;
    words[1] = u64::from(headers.psn.value()) | u64::from(extra) << 32;
    if let Some(Reth { address, rkey, len }) = headers.reth {
        (words[2], words[3]) = (address, u64::from(rkey.value()) | u64::from(len) << 32);
    } else if let Some(AtomicEth { address, rkey, swap_add, compare }) = headers.atomic {
        (words[2], words[3], words[4], words[5]) = (address, rkey.value().into(), swap_add, compare);
    } else if let Some(Aeth { syndrome, msn }) = headers.aeth {
        words[2] = u64::from(said(syndrome)) | u64::from(msn & 0xff_ffff) << 8;
        words[3] = headers.original.unwrap_or(0);
    }
    Some(words)
}

/// The headers in a line that somebody else has written, and which GIDs of that end and of this one they go by.
#[inline]
pub(super) fn read(words: &Words) -> Result<(Headers, (u8, u8)), Malformed> {
    let known = decode(words[0] as u8).map_err(|_| Malformed)?;
    if known.service == Service::UnreliableDatagram {
        return Err(Malformed);
    }
    let destination = Qpn::new((words[0] >> 24) as u32 & 0xff_ffff);
    let psn = Psn::new(words[1] as u32 & 0xff_ffff);
    let mut headers = Headers::new(known.service, known.opcode, destination, psn);
    let flags = words[0] >> 8;
    headers.solicited = flags & SOLICITED != 0;
    headers.ack_request = flags & ACK_REQUEST != 0;
    headers.fecn_becn = (flags & FECN != 0, flags & BECN != 0);
    headers.extended = flags & EXTENDED != 0;
    let (extra, key) = ((words[1] >> 32) as u32, Key::new(words[3] as u32));
    let has = |part| known.parts.has(part);
    headers.immediate = has(Parts::IMMEDIATE).then_some(extra.to_le_bytes());
    headers.invalidate = has(Parts::INVALIDATE).then_some(Key::new(extra));
    headers.reth = has(Parts::RETH).then_some(Reth { address: words[2], rkey: key, len: (words[3] >> 32) as u32 });
    let (swap_add, compare) = (words[4], words[5]);
    headers.atomic = has(Parts::ATOMIC).then_some(AtomicEth { address: words[2], rkey: key, swap_add, compare });
    if has(Parts::AETH) {
        headers.aeth = Some(Aeth { syndrome: heard(words[2] as u8)?, msn: (words[2] >> 8) as u32 & 0xff_ffff });
    }
    headers.original = has(Parts::ORIGINAL).then_some(words[3]);
    Ok((headers, ((words[0] >> 16) as u8 & 15, (words[0] >> 20) as u8 & 15)))
}

/// The syndrome of an acknowledgement (volume 1, 9.7.5.2.1).
const fn said(syndrome: Syndrome) -> u8 {
    match syndrome {
        Syndrome::Ack(credits) => credits & 31,
        Syndrome::Rnr(timer) => 0x20 | timer & 31,
        Syndrome::SequenceError => 0x60,
        Syndrome::InvalidRequest => 0x61,
        Syndrome::RemoteAccess => 0x62,
        Syndrome::RemoteOperation => 0x63,
    }
}

const fn heard(byte: u8) -> Result<Syndrome, Malformed> {
    Ok(match byte {
        0..=0x1f => Syndrome::Ack(byte),
        0x20..=0x3f => Syndrome::Rnr(byte & 31),
        0x60 => Syndrome::SequenceError,
        0x61 => Syndrome::InvalidRequest,
        0x62 => Syndrome::RemoteAccess,
        0x63 => Syndrome::RemoteOperation,
        _ => return Err(Malformed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Whatever stands there is no packet, or one that is written the same way again.
        #[test]
        fn lines_are_packets_or_nothing(mut words: Words, known: bool) {
            if known {
                // Opcodes that exist are rare among all bytes.
                words[0] = (words[0] & !0xff) | ((words[0] >> 8) % 0x18);
            }
            if let Ok((headers, gids)) = read(&words) {
                let again = write(&headers, gids).unwrap();
                prop_assert_eq!(read(&again), Ok((headers, gids)));
            }
        }
    }

    #[test]
    fn datagrams_do_not_go_this_way() {
        assert_eq!(read(&[0x64, 0, 0, 0, 0, 0]), Err(Malformed));
        assert_eq!(read(&[0xff, 0, 0, 0, 0, 0]), Err(Malformed));
        let send = crate::wire::Opcode::Send { place: crate::wire::Place::Only, immediate: false, invalidate: false };
        let headers = Headers::new(Service::UnreliableDatagram, send, Qpn::new(5), Psn::new(0));
        assert_eq!(write(&headers, (0, 0)), None);
    }
}
