//! The blocks of a pcapng file.
//!
//! ```text
//! block    type 4 | length 4 | body | length 4                    the length counts all of it, a multiple of 4
//! section  0x0a0d0d0a; body: byte-order magic 4 | ...             begins a section, in which interfaces are numbered anew
//! ```

use super::{CaptureTime, Packet, ReadError, input::Input, input::MAX_RECORD_LEN};
use crate::MAX_FRAME_LEN;
use std::{io::Read, sync::Arc};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// The option of an interface that says in which unit times are.
const OPTION_TIME_UNIT: u16 = 9;
/// Type, length, and length again.
const FRAME_OF_BLOCK: usize = 12;
/// A longer block is none: the longest packet, and as much again for options.
const MAX_BLOCK_LEN: usize = MAX_RECORD_LEN + MAX_RECORD_LEN / 2;

/// What is known of an interface.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: u32,
    /// How many units of time a second has.
    units: u128,
    /// Most bytes of a packet; 0 is all.
    snap_len: u32,
}

/// A packet of a block: its bytes are at `begin`, counted from the beginning of the block.
struct Found {
    interface: u32,
    ticks: u64,
    begin: usize,
    len: u32,
    original_len: u32,
}

/// The blocks of a pcapng file, of which packets are shown.
pub(super) struct Blocks<R> {
    input: Input<R>,
    name: Arc<str>,
    big_endian: bool,
    interfaces: Vec<Interface>,
    /// Number of the packet last looked at, from 1.
    record: u64,
    /// Length of the block that was shown and is to be consumed.
    shown: usize,
    ended: bool,
}

impl<R: Read> Blocks<R> {
    pub fn new(input: Input<R>, name: Arc<str>) -> Self {
        Self { input, name, big_endian: false, interfaces: Vec::new(), record: 0, shown: 0, ended: false }
    }

    /// As [`super::Packets::next_packet`].
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>, ReadError> {
        loop {
            self.input.consume(std::mem::take(&mut self.shown));
            let Some(len) = self.whole_block()? else { return Ok(None) };
            self.shown = len;
            let body = &self.input.ready()[..len - 4];
            match self.word(body, 0) {
                Some(SECTION) => self.interfaces.clear(),
                Some(INTERFACE) => {
                    let interface = self.interface(body);
                    self.interfaces.push(interface);
                }
                Some(kind @ (OLD_PACKET | SIMPLE_PACKET | ENHANCED_PACKET)) => {
                    self.record += 1;
                    let Some(found) = self.found(kind, body) else { return self.damaged(len as u32) };
                    return self.packet(&found, len);
                }
                _ => {}
            }
        }
    }

    fn packet(&mut self, found: &Found, block: usize) -> Result<Option<Packet<'_>>, ReadError> {
        let (name, record) = (&self.name, self.record);
        let Some(interface) = self.interfaces.get(found.interface as usize).copied() else {
            return Err(ReadError::Interface { name: name.clone(), record, interface: found.interface });
        };
        let end = found.begin.saturating_add(found.len as usize);
        if end > block - 4 {
            return self.damaged(found.len);
        }
        if found.len as usize > MAX_FRAME_LEN {
            return Err(ReadError::TooLong { name: name.clone(), record, length: found.len });
        }
        let nanos = u128::from(found.ticks) * 1_000_000_000 / interface.units;
        Ok(Some(Packet {
            time: CaptureTime::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)),
            original_len: found.original_len,
            link: interface.link,
            data: &self.input.ready()[found.begin..end],
        }))
    }

    /// Leaves the next block ready as a whole, and says how long it is; `None` at a proper end.
    fn whole_block(&mut self) -> Result<Option<usize>, ReadError> {
        if self.ended {
            return Ok(None);
        }
        let have = self.ensure(FRAME_OF_BLOCK)?;
        if have == 0 {
            self.ended = true;
            return Ok(None);
        }
        if have < FRAME_OF_BLOCK {
            return self.truncated(FRAME_OF_BLOCK - have);
        }
        // The magic of a section says in which order its own length is; its type reads the same in both.
        let head = self.input.ready();
        if head.starts_with(&SECTION.to_be_bytes()) {
            self.big_endian = head[8..12] == 0x1a2b_3c4d_u32.to_be_bytes();
        }
        let len = self.word(head, 4).unwrap_or(0);
        if !len.is_multiple_of(4) || !(FRAME_OF_BLOCK..=MAX_BLOCK_LEN).contains(&(len as usize)) {
            self.record += 1;
            return self.damaged(len);
        }
        let len = len as usize;
        match self.ensure(len)? {
            have if have < len => self.truncated(len - have),
            _ => Ok(Some(len)),
        }
    }

    fn ensure(&mut self, len: usize) -> Result<usize, ReadError> {
        self.input.ensure(len).map(|have| have.min(len)).map_err(|source| {
            self.ended = true;
            let offset = self.input.offset() + self.input.ready().len() as u64;
            ReadError::Read { name: self.name.clone(), offset, source }
        })
    }

    #[cold]
    fn truncated<T>(&mut self, missing: usize) -> Result<T, ReadError> {
        self.ended = true;
        let (name, record, offset) = (self.name.clone(), self.record + 1, self.input.offset());
        Err(ReadError::Truncated { name, record, offset, missing })
    }

    #[cold]
    fn damaged<T>(&mut self, length: u32) -> Result<T, ReadError> {
        self.ended = true;
        let (name, record, offset) = (self.name.clone(), self.record, self.input.offset());
        Err(ReadError::Damaged { name, record, offset, length })
    }

    fn word(&self, bytes: &[u8], at: usize) -> Option<u32> {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some(if self.big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) })
    }

    fn half(&self, bytes: &[u8], at: usize) -> Option<u16> {
        let half = *bytes.get(at..)?.first_chunk()?;
        Some(if self.big_endian { u16::from_be_bytes(half) } else { u16::from_le_bytes(half) })
    }

    /// The packet of a block of that type; none if the block is too short.
    fn found(&self, kind: u32, block: &[u8]) -> Option<Found> {
        let word = |at| self.word(block, at);
        if kind == SIMPLE_PACKET {
            let original_len = word(8)?;
            // As many bytes as the first interface takes of a packet.
            let snap_len = self.interfaces.first().map_or(0, |first| first.snap_len);
            let len = if snap_len == 0 { original_len } else { original_len.min(snap_len) };
            return Some(Found { interface: 0, ticks: 0, begin: 12, len, original_len });
        }
        let interface = if kind == OLD_PACKET { self.half(block, 8)?.into() } else { word(8)? };
        let ticks = u64::from(word(12)?) << 32 | u64::from(word(16)?);
        Some(Found { interface, ticks, begin: 28, len: word(20)?, original_len: word(24)? })
    }

    /// What a block says of an interface. Options that make no sense are as if they were not there.
    fn interface(&self, block: &[u8]) -> Interface {
        let (mut units, mut at) = (1_000_000, 16);
        while let (Some(code), Some(len)) = (self.half(block, at), self.half(block, at + 2)) {
            if code == 0 {
                break;
            }
            if let (OPTION_TIME_UNIT, Some(&unit)) = (code, block.get(at + 4)) {
                let power = u32::from(unit & 0x7f);
                let wanted = if unit & 0x80 == 0 { 10u128.checked_pow(power) } else { 1u128.checked_shl(power) };
                units = wanted.filter(|units| *units > 0).unwrap_or(units);
            }
            at += 4 + usize::from(len).next_multiple_of(4);
        }
        Interface { link: self.half(block, 8).unwrap_or(0).into(), units, snap_len: self.word(block, 12).unwrap_or(0) }
    }
}
