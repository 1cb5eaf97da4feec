//! Instructions of a flow entry (section 7.2.4).

use super::action::{self, Action};
use super::error::{Refusal, action as action_refused, instruction as refused};
use super::reader::{Put, Reader};

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Another table is next.
    GotoTable(u8),
    /// Bits of the metadata.
    WriteMetadata {
        /// What is written.
        metadata: u64,
        /// Which bits.
        mask: u64,
    },
    /// Into the action set.
    WriteActions(Vec<Action>),
    /// At once, in this order.
    ApplyActions(Vec<Action>),
    /// Empties the action set.
    ClearActions,
    /// A meter.
    Meter(u32),
    /// One of an experimenter.
    Experimenter {
        /// Which one.
        experimenter: u32,
        /// The rest of it.
        data: Vec<u8>,
    },
}

/// Types of instructions.
pub mod kind {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const GOTO_TABLE: u16 = 1;
    pub const WRITE_METADATA: u16 = 2;
    pub const WRITE_ACTIONS: u16 = 3;
    pub const APPLY_ACTIONS: u16 = 4;
    pub const CLEAR_ACTIONS: u16 = 5;
    pub const METER: u16 = 6;
    pub const EXPERIMENTER: u16 = 0xffff;
}

impl Instruction {
    fn decode(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let (kind, len) = (from.u16()?, usize::from(from.u16()?));
        if len < 8 || !len.is_multiple_of(8) {
            return Err(refused::BAD_LEN);
        }
        let mut body = from.part(len - 4, refused::BAD_LEN)?;
        let actions = |body: &mut Reader<'_>| {
            body.skip(4)?;
            action::decode_all(Reader::new(body.rest(), action_refused::BAD_LEN))
        };
        let instruction = match kind {
            kind::GOTO_TABLE => {
                let table = body.u8()?;
                body.skip(3)?;
                Self::GotoTable(table)
            }
            kind::WRITE_METADATA => {
                body.skip(4)?;
                Self::WriteMetadata { metadata: body.u64()?, mask: body.u64()? }
            }
            kind::WRITE_ACTIONS => Self::WriteActions(actions(&mut body)?),
            kind::APPLY_ACTIONS => Self::ApplyActions(actions(&mut body)?),
            kind::CLEAR_ACTIONS => {
                body.skip(4)?;
                Self::ClearActions
            }
            kind::METER => Self::Meter(body.u32()?),
            kind::EXPERIMENTER => Self::Experimenter { experimenter: body.u32()?, data: body.rest().to_vec() },
            _ => return Err(refused::UNKNOWN_INST),
        };
        body.end()?;
        Ok(instruction)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let with = |out: &mut Vec<u8>, kind: u16, actions: &[Action]| {
            out.sized(2, |out| {
                out.u16(kind);
                out.u16(0);
                out.zeros(4);
                action::encode_all(actions, out);
            });
        };
        match self {
            Self::GotoTable(table) => {
                out.u16(kind::GOTO_TABLE);
                out.u16(8);
                out.u8(*table);
                out.zeros(3);
            }
            Self::WriteMetadata { metadata, mask } => {
                out.u16(kind::WRITE_METADATA);
                out.u16(24);
                out.zeros(4);
                out.u64(*metadata);
                out.u64(*mask);
            }
            Self::WriteActions(actions) => with(out, kind::WRITE_ACTIONS, actions),
            Self::ApplyActions(actions) => with(out, kind::APPLY_ACTIONS, actions),
            Self::ClearActions => with(out, kind::CLEAR_ACTIONS, &[]),
            Self::Meter(meter) => {
                out.u16(kind::METER);
                out.u16(8);
                out.u32(*meter);
            }
            Self::Experimenter { experimenter, data } => out.padded(2, true, |out| {
                out.u16(kind::EXPERIMENTER);
                out.u16(0);
                out.u32(*experimenter);
                out.bytes(data);
            }),
        }
    }
}

pub(super) fn decode_all(mut from: Reader<'_>) -> Result<Vec<Instruction>, Refusal> {
    let mut instructions = Vec::new();
    while !from.is_empty() {
        instructions.push(Instruction::decode(&mut from)?);
    }
    Ok(instructions)
}

pub(super) fn encode_all(instructions: &[Instruction], out: &mut Vec<u8>) {
    instructions.iter().for_each(|instruction| instruction.encode(out));
}
