//! Meters: changes, configuration, statistics, features (sections 7.3.4.4, 7.3.5.9 to 7.3.5.11).

use super::error::{Refusal, meter_mod as refused, request};
use super::flow::Lifetime;
use super::reader::{Put, Reader};

/// Numbers of meters that stand for something else.
pub mod number {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const MAX: u32 = 0xffff_0000;
    pub const SLOW_PATH: u32 = 0xffff_fffd;
    pub const CONTROLLER: u32 = 0xffff_fffe;
    pub const ALL: u32 = 0xffff_ffff;
}

/// Commands of a change.
pub mod command {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const ADD: u16 = 0;
    pub const MODIFY: u16 = 1;
    pub const DELETE: u16 = 2;
}

/// Flags of a meter.
pub mod flag {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const KBPS: u16 = 1;
    pub const PKTPS: u16 = 2;
    pub const BURST: u16 = 4;
    pub const STATS: u16 = 8;
    pub const ALL: u16 = 15;
}

/// Types of bands.
pub mod band {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const DROP: u16 = 1;
    pub const DSCP_REMARK: u16 = 2;
    pub const EXPERIMENTER: u16 = 0xffff;
}

/// What becomes of packets above a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// See [`band`].
    pub kind: u16,
    /// In kilobits or packets per second.
    pub rate: u32,
    /// In kilobits or packets.
    pub burst: u32,
    /// What else it says: steps of precedence, an experimenter; padding of a band that drops.
    pub rest: Vec<u8>,
}

impl Band {
    /// A band that drops.
    pub fn drop(rate: u32, burst: u32) -> Self {
        Self { kind: band::DROP, rate, burst, rest: vec![0; 4] }
    }

    fn decode_all(mut from: Reader<'_>) -> Result<Vec<Self>, Refusal> {
        let mut bands = Vec::new();
        while !from.is_empty() {
            let (kind, len) = (from.u16()?, usize::from(from.u16()?));
            let known = matches!(kind, band::DROP | band::DSCP_REMARK);
            if len < 16 || (known && len != 16) {
                return Err(request::BAD_LEN);
            }
            let mut body = from.part(len - 4, request::BAD_LEN)?;
            bands.push(Self { kind, rate: body.u32()?, burst: body.u32()?, rest: body.rest().to_vec() });
        }
        Ok(bands)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.sized(2, |out| {
            out.u16(self.kind);
            out.u16(0);
            out.u32(self.rate);
            out.u32(self.burst);
            out.bytes(&self.rest);
        });
    }
}

/// A change of meters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterMod {
    /// See [`command`].
    pub command: u16,
    /// See [`flag`].
    pub flags: u16,
    /// Which one; see [`number`].
    pub meter: u32,
    /// What becomes of packets.
    pub bands: Vec<Band>,
}

impl MeterMod {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let (command, flags, meter) = (body.u16()?, body.u16()?, body.u32()?);
        Ok(Self { command, flags, meter, bands: Band::decode_all(body)? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u16(self.command);
        out.u16(self.flags);
        out.u32(self.meter);
        self.bands.iter().for_each(|band| band.encode(out));
    }
}

/// What is told of a meter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterConfig {
    /// See [`flag`].
    pub flags: u16,
    /// Which one.
    pub meter: u32,
    /// What becomes of packets.
    pub bands: Vec<Band>,
}

impl MeterConfig {
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let len = usize::from(from.u16()?);
        let mut body = from.part(len.checked_sub(2).ok_or(refused::UNKNOWN)?, request::BAD_LEN)?;
        Ok(Self { flags: body.u16()?, meter: body.u32()?, bands: Band::decode_all(body)? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.sized(0, |out| {
            out.u16(0);
            out.u16(self.flags);
            out.u32(self.meter);
            self.bands.iter().for_each(|band| band.encode(out));
        });
    }
}

/// What a meter has had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterStats {
    /// Which one.
    pub meter: u32,
    /// Entries that use it.
    pub flows: u32,
    /// Packets that came to it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long it is there.
    pub lifetime: Lifetime,
    /// Packets and bytes above each band.
    pub bands: Vec<(u64, u64)>,
}

impl MeterStats {
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let meter = from.u32()?;
        let len = usize::from(from.u16()?);
        let mut body = from.part(len.checked_sub(6).ok_or(request::BAD_LEN)?, request::BAD_LEN)?;
        body.skip(6)?;
        let (flows, packets, bytes, lifetime) = (body.u32()?, body.u64()?, body.u64()?, Lifetime::decode(&mut body)?);
        let mut bands = Vec::new();
        while !body.is_empty() {
            bands.push((body.u64()?, body.u64()?));
        }
        Ok(Self { meter, flows, packets, bytes, lifetime, bands })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.sized(4, |out| {
            out.u32(self.meter);
            out.u16(0);
            out.zeros(6);
            out.u32(self.flows);
            out.u64(self.packets);
            out.u64(self.bytes);
            self.lifetime.encode(out);
            for (packets, bytes) in &self.bands {
                out.u64(*packets);
                out.u64(*bytes);
            }
        });
    }
}

/// What meters can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterFeatures {
    /// How many.
    pub most: u32,
    /// Bit N: bands of type N.
    pub bands: u32,
    /// See [`flag`].
    pub capabilities: u32,
    /// Bands of one meter.
    pub most_bands: u8,
    /// Values of color.
    pub colors: u8,
}

impl MeterFeatures {
    pub(super) fn decode(body: &mut Reader<'_>) -> Result<Self, Refusal> {
        let features = Self {
            most: body.u32()?,
            bands: body.u32()?,
            capabilities: body.u32()?,
            most_bands: body.u8()?,
            colors: body.u8()?,
        };
        body.skip(2)?;
        Ok(features)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        [self.most, self.bands, self.capabilities].iter().for_each(|word| out.u32(*word));
        out.u8(self.most_bands);
        out.u8(self.colors);
        out.zeros(2);
    }
}
