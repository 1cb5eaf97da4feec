//! Packets to the controller, and from it (sections 7.3.7, 7.4.1).

use super::action::{self, Action};
use super::error::{Refusal, action as action_refused};
use super::oxm::{self, Oxm};
use super::reader::{Put, Reader};

/// Why the controller gets a packet.
pub mod reason {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const NO_MATCH: u8 = 0;
    pub const ACTION: u8 = 1;
    pub const INVALID_TTL: u8 = 2;
}

/// A packet for the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketIn {
    /// Its number in the switch's buffer.
    pub buffer: u32,
    /// Its length, of which `data` may be the beginning.
    pub len: u16,
    /// See [`reason`].
    pub reason: u8,
    /// The table that has sent it.
    pub table: u8,
    /// The cookie of the entry that has.
    pub cookie: u64,
    /// Where it came in, and what else is known.
    pub matching: Vec<Oxm>,
    /// Its bytes.
    pub data: Vec<u8>,
}

impl PacketIn {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let (buffer, len, reason, table, cookie) = (body.u32()?, body.u16()?, body.u8()?, body.u8()?, body.u64()?);
        let matching = oxm::decode_match(&mut body)?;
        body.skip(2)?;
        Ok(Self { buffer, len, reason, table, cookie, matching, data: body.rest().to_vec() })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.buffer);
        out.u16(self.len);
        out.u8(self.reason);
        out.u8(self.table);
        out.u64(self.cookie);
        oxm::encode_match(&self.matching, out);
        out.zeros(2);
        out.bytes(&self.data);
    }
}

/// A packet from the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOut {
    /// Its number in the switch's buffer.
    pub buffer: u32,
    /// Where it came in, as far as actions ask.
    pub in_port: u32,
    /// What is done to it.
    pub actions: Vec<Action>,
    /// Its bytes, if it is in no buffer.
    pub data: Vec<u8>,
}

impl PacketOut {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let (buffer, in_port, len) = (body.u32()?, body.u32()?, usize::from(body.u16()?));
        body.skip(6)?;
        let actions = action::decode_all(body.part(len, action_refused::BAD_LEN)?)?;
        Ok(Self { buffer, in_port, actions, data: body.rest().to_vec() })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.buffer);
        out.u32(self.in_port);
        let at = out.len();
        out.u16(0);
        out.zeros(6);
        let begin = out.len();
        action::encode_all(&self.actions, out);
        let len = u16::try_from(out.len() - begin).unwrap_or(u16::MAX);
        out[at..at + 2].copy_from_slice(&len.to_be_bytes());
        out.bytes(&self.data);
    }
}
