//! Ports and their queues: descriptions, changes, statistics (sections 7.2.1, 7.2.2, 7.3.4.3, 7.3.5.14, 7.3.5.15, 7.4.3).

use super::error::Refusal;
use super::flow::Lifetime;
use super::reader::{Put, Reader};

/// Numbers of ports that stand for something else.
pub mod number {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const MAX: u32 = 0xffff_ff00;
    pub const IN_PORT: u32 = 0xffff_fff8;
    pub const TABLE: u32 = 0xffff_fff9;
    pub const NORMAL: u32 = 0xffff_fffa;
    pub const FLOOD: u32 = 0xffff_fffb;
    pub const ALL: u32 = 0xffff_fffc;
    pub const CONTROLLER: u32 = 0xffff_fffd;
    pub const LOCAL: u32 = 0xffff_fffe;
    pub const ANY: u32 = 0xffff_ffff;
}

/// Bits of the configuration of a port.
pub mod config {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const PORT_DOWN: u32 = 1;
    pub const NO_RECV: u32 = 4;
    pub const NO_FWD: u32 = 32;
    pub const NO_PACKET_IN: u32 = 64;
    pub const ALL: u32 = PORT_DOWN | NO_RECV | NO_FWD | NO_PACKET_IN;
}

/// Bits of the state of a port.
pub mod state {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const LINK_DOWN: u32 = 1;
    pub const BLOCKED: u32 = 2;
    pub const LIVE: u32 = 4;
}

/// What is told of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Its number.
    pub number: u32,
    /// Its address.
    pub mac: [u8; 6],
    /// Its name, up to 15 bytes.
    pub name: String,
    /// See [`config`].
    pub config: u32,
    /// See [`state`].
    pub state: u32,
    /// Features: current, advertised, supported, of the other end.
    pub features: [u32; 4],
    /// In kilobits per second.
    pub speed: u32,
    /// The highest.
    pub max_speed: u32,
}

impl Port {
    pub(super) fn decode(body: &mut Reader<'_>) -> Result<Self, Refusal> {
        let number = body.u32()?;
        body.skip(4)?;
        let mac = body.mac()?;
        body.skip(2)?;
        let (name, config, state) = (body.text(16)?, body.u32()?, body.u32()?);
        let features = [body.u32()?, body.u32()?, body.u32()?, body.u32()?];
        Ok(Self { number, mac, name, config, state, features, speed: body.u32()?, max_speed: body.u32()? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.number);
        out.zeros(4);
        out.bytes(&self.mac);
        out.zeros(2);
        out.text(&self.name, 16);
        out.u32(self.config);
        out.u32(self.state);
        self.features.iter().for_each(|word| out.u32(*word));
        out.u32(self.speed);
        out.u32(self.max_speed);
    }
}

/// What has happened to a port.
pub mod status {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const ADD: u8 = 0;
    pub const DELETE: u8 = 1;
    pub const MODIFY: u8 = 2;
}

/// Something has happened to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// See [`status`].
    pub reason: u8,
    /// How it is now.
    pub port: Port,
}

impl PortStatus {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let reason = body.u8()?;
        body.skip(7)?;
        let port = Port::decode(&mut body)?;
        body.end()?;
        Ok(Self { reason, port })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u8(self.reason);
        out.zeros(7);
        self.port.encode(out);
    }
}

/// A change of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMod {
    /// Which one.
    pub number: u32,
    /// Its address, so that the right one is meant.
    pub mac: [u8; 6],
    /// See [`config`].
    pub config: u32,
    /// Which bits of it are changed.
    pub mask: u32,
    /// Features to advertise; 0: as they are.
    pub advertise: u32,
}

impl PortMod {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let number = body.u32()?;
        body.skip(4)?;
        let mac = body.mac()?;
        body.skip(2)?;
        let (config, mask, advertise) = (body.u32()?, body.u32()?, body.u32()?);
        body.skip(4)?;
        body.end()?;
        Ok(Self { number, mac, config, mask, advertise })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.number);
        out.zeros(4);
        out.bytes(&self.mac);
        out.zeros(2);
        [self.config, self.mask, self.advertise].iter().for_each(|word| out.u32(*word));
        out.zeros(4);
    }
}

/// What is not counted.
pub const UNKNOWN: u64 = u64::MAX;

/// What a port has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortStats {
    /// Which one.
    pub number: u32,
    /// Packets in and out, bytes in and out, drops in and out, errors in and out, frames, overruns, CRC errors, collisions; [`UNKNOWN`].
    pub counters: [u64; 12],
    /// How long it is there.
    pub lifetime: Lifetime,
}

impl PortStats {
    pub(super) fn decode(body: &mut Reader<'_>) -> Result<Self, Refusal> {
        let number = body.u32()?;
        body.skip(4)?;
        let mut counters = [0; 12];
        for counter in &mut counters {
            *counter = body.u64()?;
        }
        Ok(Self { number, counters, lifetime: Lifetime::decode(body)? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.number);
        out.zeros(4);
        self.counters.iter().for_each(|counter| out.u64(*counter));
        self.lifetime.encode(out);
    }
}

/// What a queue of a port has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueStats {
    /// Of which port.
    pub port: u32,
    /// Which one.
    pub queue: u32,
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that were lost.
    pub errors: u64,
    /// How long it is there.
    pub lifetime: Lifetime,
}

impl QueueStats {
    pub(super) fn decode(body: &mut Reader<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            port: body.u32()?,
            queue: body.u32()?,
            bytes: body.u64()?,
            packets: body.u64()?,
            errors: body.u64()?,
            lifetime: Lifetime::decode(body)?,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.port);
        out.u32(self.queue);
        [self.bytes, self.packets, self.errors].iter().for_each(|counter| out.u64(*counter));
        self.lifetime.encode(out);
    }
}

/// The queues of a port (section 7.3.6). None here has properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Which port.
    pub port: u32,
    /// Numbers of its queues, each with its port.
    pub queues: Vec<(u32, u32)>,
}

impl QueueConfig {
    /// Bytes before the queues, and of each queue.
    pub(crate) const HEAD: usize = 8;
    pub(crate) const QUEUE: usize = 16;

    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let port = body.u32()?;
        body.skip(4)?;
        let mut queues = Vec::new();
        while !body.is_empty() {
            queues.push((body.u32()?, body.u32()?));
            let len = usize::from(body.u16()?);
            body.skip(6)?;
            body.skip(len.saturating_sub(16))?;
        }
        Ok(Self { port, queues })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.port);
        out.zeros(4);
        for (queue, port) in &self.queues {
            out.u32(*queue);
            out.u32(*port);
            out.u16(16);
            out.zeros(6);
        }
    }
}
