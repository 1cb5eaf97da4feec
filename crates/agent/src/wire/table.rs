//! Tables: statistics and features (sections 7.3.5.4, 7.3.5.5).

use super::error::{Refusal, table_features as refused};
use super::reader::{Put, Reader};

/// What a table has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableStats {
    /// Which one.
    pub table: u8,
    /// Its entries.
    pub active: u32,
    /// Packets that were looked up.
    pub lookups: u64,
    /// Packets that have matched.
    pub matched: u64,
}

impl TableStats {
    pub(super) fn decode(body: &mut Reader<'_>) -> Result<Self, Refusal> {
        let table = body.u8()?;
        body.skip(3)?;
        Ok(Self { table, active: body.u32()?, lookups: body.u64()?, matched: body.u64()? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u8(self.table);
        out.zeros(3);
        out.u32(self.active);
        out.u64(self.lookups);
        out.u64(self.matched);
    }
}

/// Types of properties of a table.
pub mod property {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const INSTRUCTIONS: u16 = 0;
    pub const NEXT_TABLES: u16 = 2;
    pub const WRITE_ACTIONS: u16 = 4;
    pub const APPLY_ACTIONS: u16 = 6;
    pub const MATCH: u16 = 8;
    pub const WILDCARDS: u16 = 10;
    pub const WRITE_SETFIELD: u16 = 12;
    pub const APPLY_SETFIELD: u16 = 14;
}

/// A property: type, and what is behind its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// See [`property`].
    pub kind: u16,
    /// Its content.
    pub data: Vec<u8>,
}

/// What a table can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFeatures {
    /// Which one.
    pub table: u8,
    /// Its name, up to 31 bytes.
    pub name: String,
    /// Bits of the metadata that can be matched.
    pub metadata_match: u64,
    /// Bits of the metadata that can be written.
    pub metadata_write: u64,
    /// Its configuration.
    pub config: u32,
    /// Most entries.
    pub max_entries: u32,
    /// What else is to be said.
    pub properties: Vec<Property>,
}

impl TableFeatures {
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let len = usize::from(from.u16()?);
        let mut body = from.part(len.checked_sub(2).ok_or(refused::BAD_LEN)?, refused::BAD_LEN)?;
        let table = body.u8()?;
        body.skip(5)?;
        let name = body.text(32)?;
        let (metadata_match, metadata_write, config, max_entries) =
            (body.u64()?, body.u64()?, body.u32()?, body.u32()?);
        let mut properties = Vec::new();
        while !body.is_empty() {
            let (kind, len) = (body.u16()?, usize::from(body.u16()?));
            let data = body.take(len.checked_sub(4).ok_or(refused::BAD_LEN)?)?.to_vec();
            body.skip(len.next_multiple_of(8) - len)?;
            properties.push(Property { kind, data });
        }
        Ok(Self { table, name, metadata_match, metadata_write, config, max_entries, properties })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.sized(0, |out| {
            out.u16(0);
            out.u8(self.table);
            out.zeros(5);
            out.text(&self.name, 32);
            out.u64(self.metadata_match);
            out.u64(self.metadata_write);
            out.u32(self.config);
            out.u32(self.max_entries);
            for property in &self.properties {
                out.padded(2, false, |out| {
                    out.u16(property.kind);
                    out.u16(0);
                    out.bytes(&property.data);
                });
            }
        });
    }
}
