//! What a switch is and how it is set: features, configuration, tables, roles, which messages a controller wants
//! (sections 7.3.1, 7.3.2, 7.3.3, 7.3.9, 7.3.10).

use super::error::Refusal;
use super::reader::{Put, Reader};

/// What the switch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Its number, unique in the network.
    pub datapath: u64,
    /// Packets that it buffers.
    pub buffers: u32,
    /// Tables.
    pub tables: u8,
    /// Number of an auxiliary connection.
    pub auxiliary: u8,
    /// See [`capability`].
    pub capabilities: u32,
}

/// What a switch counts and can do.
pub mod capability {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const FLOW_STATS: u32 = 1;
    pub const TABLE_STATS: u32 = 2;
    pub const PORT_STATS: u32 = 4;
    pub const GROUP_STATS: u32 = 8;
    pub const IP_REASM: u32 = 32;
    pub const QUEUE_STATS: u32 = 64;
    pub const PORT_BLOCKED: u32 = 256;
}

impl Features {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let (datapath, buffers, tables, auxiliary) = (body.u64()?, body.u32()?, body.u8()?, body.u8()?);
        body.skip(2)?;
        let capabilities = body.u32()?;
        body.skip(4)?;
        body.end()?;
        Ok(Self { datapath, buffers, tables, auxiliary, capabilities })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.datapath);
        out.u32(self.buffers);
        out.u8(self.tables);
        out.u8(self.auxiliary);
        out.zeros(2);
        out.u32(self.capabilities);
        out.zeros(4);
    }
}

/// The configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What becomes of fragments: 0 normal, 1 drop, 2 reassemble.
    pub flags: u16,
    /// How much of a packet the controller gets that no entry has sent there.
    pub miss_send_len: u16,
}

impl Config {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let config = Self { flags: body.u16()?, miss_send_len: body.u16()? };
        body.end()?;
        Ok(config)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u16(self.flags);
        out.u16(self.miss_send_len);
    }
}

/// A change of a table. Version 1.3 has no bits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableMod {
    /// Which table.
    pub table: u8,
    /// Its configuration.
    pub config: u32,
}

impl TableMod {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let table = body.u8()?;
        body.skip(3)?;
        let config = body.u32()?;
        body.end()?;
        Ok(Self { table, config })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u8(self.table);
        out.zeros(3);
        out.u32(self.config);
    }
}

/// What a controller is to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// See [`role`].
    pub role: u32,
    /// Which election this is.
    pub generation: u64,
}

/// Roles of controllers.
pub mod role {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const NOCHANGE: u32 = 0;
    pub const EQUAL: u32 = 1;
    pub const MASTER: u32 = 2;
    pub const SLAVE: u32 = 3;
}

impl Role {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let role = body.u32()?;
        body.skip(4)?;
        let generation = body.u64()?;
        body.end()?;
        Ok(Self { role, generation })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.role);
        out.zeros(4);
        out.u64(self.generation);
    }
}

/// Which messages a controller wants that it has not asked for: bit N is reason N. First as master or equal, then as slave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// Packets.
    pub packet_in: [u32; 2],
    /// Ports.
    pub port_status: [u32; 2],
    /// Entries.
    pub flow_removed: [u32; 2],
}

impl Default for Wants {
    /// What section 6.3.6 says: a slave hears of ports only.
    fn default() -> Self {
        Self { packet_in: [0b011, 0], port_status: [0b111, 0b111], flow_removed: [0b1111, 0] }
    }
}

impl Wants {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, Refusal> {
        let mut pair = || Ok([body.u32()?, body.u32()?]);
        let wants = Self { packet_in: pair()?, port_status: pair()?, flow_removed: pair()? };
        body.end()?;
        Ok(wants)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        [self.packet_in, self.port_status, self.flow_removed].as_flattened().iter().for_each(|word| out.u32(*word));
    }
}
