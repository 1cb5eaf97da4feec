//! Groups: changes, descriptions, statistics, features (sections 7.3.4.2, 7.3.5.6 to 7.3.5.8).

use super::action::{self, Action};
use super::error::{Refusal, action as action_refused, group_mod as refused, request};
use super::flow::Lifetime;
use super::reader::{Put, Reader};

/// Numbers of groups that stand for something else.
pub mod number {
    /// The highest of a group.
    pub const MAX: u32 = 0xffff_ff00;
    /// All groups, of a deletion.
    pub const ALL: u32 = 0xffff_fffc;
    /// Any group, or none.
    pub const ANY: u32 = 0xffff_ffff;
}

/// Commands of a change.
pub mod command {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const ADD: u16 = 0;
    pub const MODIFY: u16 = 1;
    pub const DELETE: u16 = 2;
}

/// Types of groups.
pub mod kind {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const ALL: u8 = 0;
    pub const SELECT: u8 = 1;
    pub const INDIRECT: u8 = 2;
    pub const FAST_FAILOVER: u8 = 3;
}

/// One of the things that a group may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Its share, in groups that select.
    pub weight: u16,
    /// The port by whose state it is alive.
    pub watch_port: u32,
    /// The group by whose state it is alive.
    pub watch_group: u32,
    /// What it does.
    pub actions: Vec<Action>,
}

impl Bucket {
    fn decode(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let len = usize::from(from.u16()?);
        let mut body = from.part(len.checked_sub(2).ok_or(refused::BAD_BUCKET)?, refused::BAD_BUCKET)?;
        let (weight, watch_port, watch_group) = (body.u16()?, body.u32()?, body.u32()?);
        body.skip(4)?;
        let actions = action::decode_all(Reader::new(body.rest(), action_refused::BAD_LEN))?;
        Ok(Self { weight, watch_port, watch_group, actions })
    }

    fn decode_all(mut from: Reader<'_>) -> Result<Vec<Self>, Refusal> {
        let mut buckets = Vec::new();
        while !from.is_empty() {
            buckets.push(Self::decode(&mut from)?);
        }
        Ok(buckets)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.padded(0, true, |out| {
            out.u16(0);
            out.u16(self.weight);
            out.u32(self.watch_port);
            out.u32(self.watch_group);
            out.zeros(4);
            action::encode_all(&self.actions, out);
        });
    }
}

/// A change of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMod {
    /// See [`command`].
    pub command: u16,
    /// See [`kind`].
    pub kind: u8,
    /// Which one; see [`number`].
    pub group: u32,
    /// What it may do.
    pub buckets: Vec<Bucket>,
}

impl GroupMod {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let (command, kind) = (body.u16()?, body.u8()?);
        body.skip(1)?;
        let group = body.u32()?;
        let buckets = Bucket::decode_all(Reader::new(body.rest(), refused::BAD_BUCKET))?;
        Ok(Self { command, kind, group, buckets })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u16(self.command);
        out.u8(self.kind);
        out.u8(0);
        out.u32(self.group);
        self.buckets.iter().for_each(|bucket| bucket.encode(out));
    }
}

/// What is told of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDesc {
    /// See [`kind`].
    pub kind: u8,
    /// Which one.
    pub group: u32,
    /// What it may do.
    pub buckets: Vec<Bucket>,
}

impl GroupDesc {
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let len = usize::from(from.u16()?);
        let mut body = from.part(len.checked_sub(2).ok_or(request::BAD_LEN)?, request::BAD_LEN)?;
        let kind = body.u8()?;
        body.skip(1)?;
        Ok(Self { kind, group: body.u32()?, buckets: Bucket::decode_all(body)? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.sized(0, |out| {
            out.u16(0);
            out.u8(self.kind);
            out.u8(0);
            out.u32(self.group);
            self.buckets.iter().for_each(|bucket| bucket.encode(out));
        });
    }
}

/// What a group has had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStats {
    /// Which one.
    pub group: u32,
    /// Entries and groups that use it.
    pub references: u32,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long it is there.
    pub lifetime: Lifetime,
    /// Packets and bytes of each bucket.
    pub buckets: Vec<(u64, u64)>,
}

impl GroupStats {
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let len = usize::from(from.u16()?);
        let mut body = from.part(len.checked_sub(2).ok_or(request::BAD_LEN)?, request::BAD_LEN)?;
        body.skip(2)?;
        let (group, references) = (body.u32()?, body.u32()?);
        body.skip(4)?;
        let (packets, bytes, lifetime) = (body.u64()?, body.u64()?, Lifetime::decode(&mut body)?);
        let mut buckets = Vec::new();
        while !body.is_empty() {
            buckets.push((body.u64()?, body.u64()?));
        }
        Ok(Self { group, references, packets, bytes, lifetime, buckets })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.sized(0, |out| {
            out.u16(0);
            out.zeros(2);
            out.u32(self.group);
            out.u32(self.references);
            out.zeros(4);
            out.u64(self.packets);
            out.u64(self.bytes);
            self.lifetime.encode(out);
            for (packets, bytes) in &self.buckets {
                out.u64(*packets);
                out.u64(*bytes);
            }
        });
    }
}

/// What groups can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupFeatures {
    /// Bit N: groups of type N.
    pub types: u32,
    /// Bit 0: weights of selections; 1: liveness; 2: chains; 3: chains are checked.
    pub capabilities: u32,
    /// How many, by type.
    pub most: [u32; 4],
    /// Bit N: actions of type N, by type of the group.
    pub actions: [u32; 4],
}

impl GroupFeatures {
    pub(super) fn decode(body: &mut Reader<'_>) -> Result<Self, Refusal> {
        let mut features = Self { types: body.u32()?, capabilities: body.u32()?, ..Self::default() };
        for word in features.most.iter_mut().chain(&mut features.actions) {
            *word = body.u32()?;
        }
        Ok(features)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.types);
        out.u32(self.capabilities);
        self.most.iter().chain(&self.actions).for_each(|word| out.u32(*word));
    }
}
