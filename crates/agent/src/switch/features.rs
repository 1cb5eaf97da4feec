//! What the switch says that it is and can do.

use super::Switch;
use super::fields::{Listed, headers};
use super::groups::MOST_GROUPS;
use super::meters::MOST_METERS;
use super::packets::MOST_BUFFERS;
use crate::wire::action::kind as action;
use crate::wire::error::{Refusal, table_mod as refused};
use crate::wire::group::{GroupFeatures, kind as group};
use crate::wire::instruction::kind as instruction;
use crate::wire::meter::{MeterFeatures, band, flag};
use crate::wire::multipart::Desc;
use crate::wire::switch::{Features, TableMod, capability};
use crate::wire::table::{Property, TableFeatures, property};

/// Most entries of all tables, unless a quota of the card says less.
pub const MOST_ENTRIES: u32 = 1 << 20;

/// Actions that there are.
const ACTIONS: [u16; 9] = [
    action::OUTPUT,
    action::SET_MPLS_TTL,
    action::PUSH_VLAN,
    action::POP_VLAN,
    action::SET_QUEUE,
    action::GROUP,
    action::SET_NW_TTL,
    action::DEC_NW_TTL,
    action::SET_FIELD,
];

impl Switch {
    pub(super) fn features(&self) -> Features {
        Features {
            datapath: self.identity.datapath,
            buffers: MOST_BUFFERS as u32,
            tables: self.tables(),
            auxiliary: 0,
            capabilities: capability::FLOW_STATS
                | capability::TABLE_STATS
                | capability::PORT_STATS
                | capability::GROUP_STATS
                | capability::QUEUE_STATS,
        }
    }

    pub(super) fn desc(&self) -> Desc {
        Desc {
            maker: "Millrace".to_owned(),
            hardware: "software card".to_owned(),
            software: self.identity.version.clone(),
            serial: self.identity.serial.clone(),
            datapath: self.identity.description.clone(),
        }
    }
}

/// Version 1.3 has nothing of a table that could be changed.
pub(super) fn table_mod(change: &TableMod, tables: u8) -> Result<(), Refusal> {
    match change {
        TableMod { table, .. } if *table >= tables && *table != 0xff => Err(refused::BAD_TABLE),
        TableMod { config: 0, .. } => Ok(()),
        _ => Err(refused::BAD_CONFIG),
    }
}

pub(super) fn group_features() -> GroupFeatures {
    let types = [group::ALL, group::SELECT, group::INDIRECT, group::FAST_FAILOVER];
    let bits = ACTIONS.iter().filter(|kind| **kind != action::GROUP).fold(0, |bits, kind| bits | 1 << kind);
    GroupFeatures {
        types: types.iter().fold(0, |bits, kind| bits | 1 << kind),
        // Weights and liveness.
        capabilities: 0b11,
        most: [MOST_GROUPS as u32; 4],
        actions: [bits, 1 << action::OUTPUT | 1 << action::SET_QUEUE, bits, bits],
    }
}

pub(super) fn meter_features() -> MeterFeatures {
    MeterFeatures {
        most: MOST_METERS as u32,
        bands: 1 << band::DROP | 1 << band::DSCP_REMARK,
        capabilities: flag::ALL.into(),
        most_bands: 1,
        colors: 0,
    }
}

/// What each table can do: they are all alike, but for those that come behind.
pub(super) fn table_features(tables: u8) -> Vec<TableFeatures> {
    let ids = |kinds: &[u16]| -> Vec<u8> {
        kinds.iter().flat_map(|kind| [kind.to_be_bytes(), 4u16.to_be_bytes()].concat()).collect()
    };
    let fields = |listed| -> Vec<u8> { headers(listed).flat_map(u32::to_be_bytes).collect() };
    let [matched, wild, set] = [Listed::Matched, Listed::Wild, Listed::Settable].map(fields);
    let instructions = [
        instruction::WRITE_METADATA,
        instruction::WRITE_ACTIONS,
        instruction::APPLY_ACTIONS,
        instruction::CLEAR_ACTIONS,
        instruction::METER,
    ];
    (0..tables)
        .map(|table| {
            let mut usable = instructions.to_vec();
            if table + 1 < tables {
                usable.insert(0, instruction::GOTO_TABLE);
            }
            let property = |kind, data| Property { kind, data };
            TableFeatures {
                table,
                name: format!("table{table}"),
                metadata_match: u64::MAX,
                metadata_write: u64::MAX,
                config: 0,
                max_entries: MOST_ENTRIES,
                properties: vec![
                    property(property::INSTRUCTIONS, ids(&usable)),
                    property(property::NEXT_TABLES, (table + 1..tables).collect()),
                    property(property::WRITE_ACTIONS, ids(&ACTIONS)),
                    property(property::APPLY_ACTIONS, ids(&ACTIONS)),
                    property(property::MATCH, matched.clone()),
                    property(property::WILDCARDS, wild.clone()),
                    property(property::WRITE_SETFIELD, set.clone()),
                    property(property::APPLY_SETFIELD, set.clone()),
                ],
            }
        })
        .collect()
}
