//! Actions (section 7.2.5).

use super::error::{Refusal, action as refused, matching};
use super::oxm::Oxm;
use super::reader::{Put, Reader};

/// One action.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Out of a port.
    Output {
        /// Which one; see [`port`](super::port).
        port: u32,
        /// To the controller: how many bytes; [`WHOLE`]: all.
        max_len: u16,
    },
    /// Copy the time to live to the next outer header.
    CopyTtlOut,
    /// Copy the time to live to the next inner header.
    CopyTtlIn,
    /// The time to live of MPLS.
    SetMplsTtl(u8),
    /// One less of it.
    DecMplsTtl,
    /// A tag with this EtherType in front.
    PushVlan(u16),
    /// Takes the outer tag away.
    PopVlan,
    /// A label in front, with this EtherType.
    PushMpls(u16),
    /// Takes the outer label away; the EtherType of what is behind it.
    PopMpls(u16),
    /// The queue at the port that comes next.
    SetQueue(u32),
    /// What a group does.
    Group(u32),
    /// The time to live of IP.
    SetNwTtl(u8),
    /// One less of it.
    DecNwTtl,
    /// Writes a field.
    SetField(Oxm),
    /// A tag of a service instance in front, with this EtherType.
    PushPbb(u16),
    /// Takes it away.
    PopPbb,
    /// One of an experimenter, of which nothing else is known.
    Experimenter {
        /// Which one.
        experimenter: u32,
        /// The rest of it.
        data: Vec<u8>,
    },
}

/// All bytes of a frame go to the controller.
pub const WHOLE: u16 = 0xffff;

/// Types of actions, for bitmaps of what there is.
pub mod kind {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const OUTPUT: u16 = 0;
    pub const COPY_TTL_OUT: u16 = 11;
    pub const COPY_TTL_IN: u16 = 12;
    pub const SET_MPLS_TTL: u16 = 15;
    pub const DEC_MPLS_TTL: u16 = 16;
    pub const PUSH_VLAN: u16 = 17;
    pub const POP_VLAN: u16 = 18;
    pub const PUSH_MPLS: u16 = 19;
    pub const POP_MPLS: u16 = 20;
    pub const SET_QUEUE: u16 = 21;
    pub const GROUP: u16 = 22;
    pub const SET_NW_TTL: u16 = 23;
    pub const DEC_NW_TTL: u16 = 24;
    pub const SET_FIELD: u16 = 25;
    pub const PUSH_PBB: u16 = 26;
    pub const POP_PBB: u16 = 27;
    pub const EXPERIMENTER: u16 = 0xffff;
}

impl Action {
    fn decode(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let (kind, len) = (from.u16()?, usize::from(from.u16()?));
        if len < 8 || !len.is_multiple_of(8) {
            return Err(refused::BAD_LEN);
        }
        let mut body = from.part(len - 4, refused::BAD_LEN)?;
        let action = match kind {
            kind::OUTPUT => {
                let (port, max_len) = (body.u32()?, body.u16()?);
                body.skip(6)?;
                Self::Output { port, max_len }
            }
            kind::COPY_TTL_OUT => padded(&mut body, Self::CopyTtlOut, 4)?,
            kind::COPY_TTL_IN => padded(&mut body, Self::CopyTtlIn, 4)?,
            kind::SET_MPLS_TTL => Self::SetMplsTtl(body.u8()?).behind(&mut body, 3)?,
            kind::DEC_MPLS_TTL => padded(&mut body, Self::DecMplsTtl, 4)?,
            kind::PUSH_VLAN => Self::PushVlan(body.u16()?).behind(&mut body, 2)?,
            kind::POP_VLAN => padded(&mut body, Self::PopVlan, 4)?,
            kind::PUSH_MPLS => Self::PushMpls(body.u16()?).behind(&mut body, 2)?,
            kind::POP_MPLS => Self::PopMpls(body.u16()?).behind(&mut body, 2)?,
            kind::SET_QUEUE => Self::SetQueue(body.u32()?),
            kind::GROUP => Self::Group(body.u32()?),
            kind::SET_NW_TTL => Self::SetNwTtl(body.u8()?).behind(&mut body, 3)?,
            kind::DEC_NW_TTL => padded(&mut body, Self::DecNwTtl, 4)?,
            kind::SET_FIELD => set_field(&mut body)?,
            kind::PUSH_PBB => Self::PushPbb(body.u16()?).behind(&mut body, 2)?,
            kind::POP_PBB => padded(&mut body, Self::PopPbb, 4)?,
            kind::EXPERIMENTER => Self::Experimenter { experimenter: body.u32()?, data: body.rest().to_vec() },
            _ => return Err(refused::BAD_TYPE),
        };
        body.end()?;
        Ok(action)
    }

    fn behind(self, body: &mut Reader<'_>, padding: usize) -> Result<Self, Refusal> {
        padded(body, self, padding)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let mut plain = |kind: u16, value: [u8; 4]| {
            out.u16(kind);
            out.u16(8);
            out.bytes(&value);
        };
        let short = |value: u16| [value.to_be_bytes(), [0; 2]].concat().try_into().unwrap_or_default();
        match self {
            Self::Output { port, max_len } => {
                out.u16(kind::OUTPUT);
                out.u16(16);
                out.u32(*port);
                out.u16(*max_len);
                out.zeros(6);
            }
            Self::CopyTtlOut => plain(kind::COPY_TTL_OUT, [0; 4]),
            Self::CopyTtlIn => plain(kind::COPY_TTL_IN, [0; 4]),
            Self::SetMplsTtl(ttl) => plain(kind::SET_MPLS_TTL, [*ttl, 0, 0, 0]),
            Self::DecMplsTtl => plain(kind::DEC_MPLS_TTL, [0; 4]),
            Self::PushVlan(kind) => plain(kind::PUSH_VLAN, short(*kind)),
            Self::PopVlan => plain(kind::POP_VLAN, [0; 4]),
            Self::PushMpls(kind) => plain(kind::PUSH_MPLS, short(*kind)),
            Self::PopMpls(kind) => plain(kind::POP_MPLS, short(*kind)),
            Self::SetQueue(queue) => plain(kind::SET_QUEUE, queue.to_be_bytes()),
            Self::Group(group) => plain(kind::GROUP, group.to_be_bytes()),
            Self::SetNwTtl(ttl) => plain(kind::SET_NW_TTL, [*ttl, 0, 0, 0]),
            Self::DecNwTtl => plain(kind::DEC_NW_TTL, [0; 4]),
            Self::SetField(field) => out.padded(2, true, |out| {
                out.u16(kind::SET_FIELD);
                out.u16(0);
                field.encode(out);
            }),
            Self::PushPbb(kind) => plain(kind::PUSH_PBB, short(*kind)),
            Self::PopPbb => plain(kind::POP_PBB, [0; 4]),
            Self::Experimenter { experimenter, data } => out.padded(2, true, |out| {
                out.u16(kind::EXPERIMENTER);
                out.u16(0);
                out.u32(*experimenter);
                out.bytes(data);
            }),
        }
    }
}

fn padded(body: &mut Reader<'_>, action: Action, padding: usize) -> Result<Action, Refusal> {
    body.skip(padding)?;
    Ok(action)
}

fn set_field(body: &mut Reader<'_>) -> Result<Action, Refusal> {
    let field =
        Oxm::decode(body).map_err(|wrong| if wrong == matching::BAD_LEN { refused::BAD_SET_LEN } else { wrong })?;
    // Up to a multiple of eight bytes of the whole action.
    if body.len() >= 8 {
        return Err(refused::BAD_LEN);
    }
    body.rest();
    Ok(Action::SetField(field))
}

/// All actions that there are.
pub(super) fn decode_all(mut from: Reader<'_>) -> Result<Vec<Action>, Refusal> {
    let mut actions = Vec::new();
    while !from.is_empty() {
        actions.push(Action::decode(&mut from)?);
    }
    Ok(actions)
}

pub(super) fn encode_all(actions: &[Action], out: &mut Vec<u8>) {
    actions.iter().for_each(|action| action.encode(out));
}
