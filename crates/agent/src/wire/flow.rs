//! Flow entries: changes, statistics, and that they are gone (sections 7.3.4.1, 7.3.5.2, 7.4.2).

use super::error::{Refusal, instruction as refused};
use super::instruction::{self, Instruction};
use super::oxm::{self, Oxm};
use super::reader::{Put, Reader};

/// All tables, of a deletion and of a question.
pub const ALL_TABLES: u8 = 0xff;
/// No packet is buffered.
pub const NO_BUFFER: u32 = 0xffff_ffff;

/// Commands of a change.
pub mod command {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const ADD: u8 = 0;
    pub const MODIFY: u8 = 1;
    pub const MODIFY_STRICT: u8 = 2;
    pub const DELETE: u8 = 3;
    pub const DELETE_STRICT: u8 = 4;
}

/// Flags of an entry.
pub mod flag {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const SEND_FLOW_REM: u16 = 1;
    pub const CHECK_OVERLAP: u16 = 2;
    pub const RESET_COUNTS: u16 = 4;
    pub const NO_PKT_COUNTS: u16 = 8;
    pub const NO_BYT_COUNTS: u16 = 16;
    pub const ALL: u16 = 31;
}

/// A change of flow entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMod {
    /// The author's number.
    pub cookie: u64,
    /// Which bits of the cookie an entry has to have, in changes of what is there.
    pub cookie_mask: u64,
    /// Which table.
    pub table: u8,
    /// See [`command`].
    pub command: u8,
    /// Seconds without a packet; 0: for ever.
    pub idle_timeout: u16,
    /// Seconds; 0: for ever.
    pub hard_timeout: u16,
    /// The highest wins.
    pub priority: u16,
    /// A packet that the entry is done to.
    pub buffer: u32,
    /// Deletions: only entries with this output.
    pub out_port: u32,
    /// Deletions: only entries with this group.
    pub out_group: u32,
    /// See [`flag`].
    pub flags: u16,
    /// What packets have to have.
    pub matching: Vec<Oxm>,
    /// What is done to them.
    pub instructions: Vec<Instruction>,
}

impl FlowMod {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let (cookie, cookie_mask, table, command) = (body.u64()?, body.u64()?, body.u8()?, body.u8()?);
        let (idle_timeout, hard_timeout, priority) = (body.u16()?, body.u16()?, body.u16()?);
        let (buffer, out_port, out_group, flags) = (body.u32()?, body.u32()?, body.u32()?, body.u16()?);
        body.skip(2)?;
        let matching = oxm::decode_match(&mut body)?;
        let instructions = instruction::decode_all(Reader::new(body.rest(), refused::BAD_LEN))?;
        Ok(Self {
            cookie,
            cookie_mask,
            table,
            command,
            idle_timeout,
            hard_timeout,
            priority,
            buffer,
            out_port,
            out_group,
            flags,
            matching,
            instructions,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.cookie);
        out.u64(self.cookie_mask);
        out.u8(self.table);
        out.u8(self.command);
        [self.idle_timeout, self.hard_timeout, self.priority].iter().for_each(|value| out.u16(*value));
        [self.buffer, self.out_port, self.out_group].iter().for_each(|value| out.u32(*value));
        out.u16(self.flags);
        out.zeros(2);
        oxm::encode_match(&self.matching, out);
        instruction::encode_all(&self.instructions, out);
    }
}

/// How long something is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Whole seconds.
    pub sec: u32,
    /// Nanoseconds beyond them.
    pub nsec: u32,
}

impl Lifetime {
    /// From nanoseconds.
    pub fn of_ns(ns: u64) -> Self {
        Self { sec: u32::try_from(ns / 1_000_000_000).unwrap_or(u32::MAX), nsec: (ns % 1_000_000_000) as u32 }
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        Ok(Self { sec: from.u32()?, nsec: from.u32()? })
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.u32(self.sec);
        out.u32(self.nsec);
    }
}

/// Why an entry is gone.
pub mod removed {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const IDLE_TIMEOUT: u8 = 0;
    pub const HARD_TIMEOUT: u8 = 1;
    pub const DELETE: u8 = 2;
    pub const GROUP_DELETE: u8 = 3;
}

/// An entry is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRemoved {
    /// The author's number.
    pub cookie: u64,
    /// Its priority.
    pub priority: u16,
    /// See [`removed`].
    pub reason: u8,
    /// Its table.
    pub table: u8,
    /// How long it was there.
    pub lifetime: Lifetime,
    /// As it was asked for.
    pub idle_timeout: u16,
    /// As it was asked for.
    pub hard_timeout: u16,
    /// Packets that it has matched.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What it has matched.
    pub matching: Vec<Oxm>,
}

impl FlowRemoved {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let removed = Self {
            cookie: body.u64()?,
            priority: body.u16()?,
            reason: body.u8()?,
            table: body.u8()?,
            lifetime: Lifetime::decode(&mut body)?,
            idle_timeout: body.u16()?,
            hard_timeout: body.u16()?,
            packets: body.u64()?,
            bytes: body.u64()?,
            matching: oxm::decode_match(&mut body)?,
        };
        body.end()?;
        Ok(removed)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.cookie);
        out.u16(self.priority);
        out.u8(self.reason);
        out.u8(self.table);
        self.lifetime.encode(out);
        out.u16(self.idle_timeout);
        out.u16(self.hard_timeout);
        out.u64(self.packets);
        out.u64(self.bytes);
        oxm::encode_match(&self.matching, out);
    }
}

/// Which entries somebody asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowQuestion {
    /// Which table; [`ALL_TABLES`].
    pub table: u8,
    /// Only those with this output.
    pub out_port: u32,
    /// Only those with this group.
    pub out_group: u32,
    /// Only those with these bits in their cookie.
    pub cookie: u64,
    /// Which bits.
    pub cookie_mask: u64,
    /// Only those that match nothing else than this does.
    pub matching: Vec<Oxm>,
}

impl FlowQuestion {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let table = body.u8()?;
        body.skip(3)?;
        let (out_port, out_group) = (body.u32()?, body.u32()?);
        body.skip(4)?;
        let (cookie, cookie_mask) = (body.u64()?, body.u64()?);
        let matching = oxm::decode_match(&mut body)?;
        body.end()?;
        Ok(Self { table, out_port, out_group, cookie, cookie_mask, matching })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u8(self.table);
        out.zeros(3);
        out.u32(self.out_port);
        out.u32(self.out_group);
        out.zeros(4);
        out.u64(self.cookie);
        out.u64(self.cookie_mask);
        oxm::encode_match(&self.matching, out);
    }
}

/// What is told of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStats {
    /// Its table.
    pub table: u8,
    /// How long it is there.
    pub lifetime: Lifetime,
    /// Its priority.
    pub priority: u16,
    /// As it was asked for.
    pub idle_timeout: u16,
    /// As it was asked for.
    pub hard_timeout: u16,
    /// See [`flag`].
    pub flags: u16,
    /// The author's number.
    pub cookie: u64,
    /// Packets that it has matched.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What it matches.
    pub matching: Vec<Oxm>,
    /// What it does.
    pub instructions: Vec<Instruction>,
}

impl FlowStats {
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let len = usize::from(from.u16()?);
        let mut body = from.part(len.checked_sub(2).ok_or(refused::BAD_LEN)?, refused::BAD_LEN)?;
        let table = body.u8()?;
        body.skip(1)?;
        let lifetime = Lifetime::decode(&mut body)?;
        let (priority, idle_timeout, hard_timeout, flags) = (body.u16()?, body.u16()?, body.u16()?, body.u16()?);
        body.skip(4)?;
        let (cookie, packets, bytes) = (body.u64()?, body.u64()?, body.u64()?);
        let matching = oxm::decode_match(&mut body)?;
        let instructions = instruction::decode_all(body)?;
        Ok(Self {
            table,
            lifetime,
            priority,
            idle_timeout,
            hard_timeout,
            flags,
            cookie,
            packets,
            bytes,
            matching,
            instructions,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.sized(0, |out| {
            out.u16(0);
            out.u8(self.table);
            out.u8(0);
            self.lifetime.encode(out);
            [self.priority, self.idle_timeout, self.hard_timeout, self.flags].iter().for_each(|value| out.u16(*value));
            out.zeros(4);
            [self.cookie, self.packets, self.bytes].iter().for_each(|value| out.u64(*value));
            oxm::encode_match(&self.matching, out);
            instruction::encode_all(&self.instructions, out);
        });
    }
}
