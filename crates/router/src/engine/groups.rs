//! Multicast routes for the program: which group goes from which sender and interface to which others (`bpf/group.h`).

use super::layout::{GROUP, SET_SIZE, SETS, global};
use super::{Engine, EngineError};
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

/// A group, as one sender sends to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// By which interface it comes.
    pub input: u32,
    /// Who sends.
    pub source: IpAddr,
    /// To which group.
    pub group: IpAddr,
}

/// Where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ways {
    /// Interfaces, each of which the engine is attached to as XDP.
    pub outputs: Vec<u32>,
    /// The least MTU of them.
    pub mtu: u16,
    /// The hop limit has to be higher than this for all of them.
    pub ttl: u8,
}

/// What the program has been told.
#[derive(Debug, Default)]
pub(super) struct Told {
    groups: BTreeMap<Group, (Ways, u32)>,
    /// Sets of interfaces, by their number.
    sets: BTreeMap<u32, Vec<u32>>,
}

impl Group {
    fn key(&self) -> [u8; 36] {
        let mut key = [0; 36];
        key[..4].copy_from_slice(&self.input.to_le_bytes());
        let mut put = |at: usize, address| match address {
            IpAddr::V4(v4) => key[at..at + 4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => key[at..at + 16].copy_from_slice(&v6.octets()),
        };
        put(4, self.source);
        put(20, self.group);
        key
    }
}

impl Engine {
    /// All multicast routes that the program may execute; it forgets others. What finds no room is left to Linux.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn set_groups(&self, wanted: &BTreeMap<Group, Ways>) -> Result<(), EngineError> {
        let told = &mut *self.groups.lock().expect("no holder panics");
        let stale: Vec<Group> = told
            .groups
            .iter()
            .filter(|(group, (ways, _))| wanted.get(group) != Some(ways))
            .map(|(group, _)| *group)
            .collect();
        for group in stale {
            told.groups.remove(&group);
            let what = "a multicast route cannot be taken from the router's program";
            super::mirror::gone(self.maps.groups.delete(&group.key()), what)?;
        }
        let told_groups = &told.groups;
        told.sets.retain(|set, _| told_groups.values().any(|(_, of)| of == set));
        for (group, ways) in wanted {
            if told.groups.contains_key(group) {
                continue;
            }
            let Some(set) = self.set_of(&mut told.sets, &ways.outputs)? else { continue };
            let mut value = [0; GROUP];
            value[..4].copy_from_slice(&set.to_le_bytes());
            value[4..6].copy_from_slice(&ways.mtu.to_le_bytes());
            value[6] = ways.ttl;
            if self.maps.groups.update(&group.key(), &value, MapFlags::ANY).is_ok() {
                told.groups.insert(*group, (ways.clone(), set));
            }
        }
        self.set(global::GROUPS, told.groups.len() as u32);
        Ok(())
    }

    /// The number of the set of these interfaces, which is made if there is none; `None`: there are too many.
    fn set_of(&self, sets: &mut BTreeMap<u32, Vec<u32>>, outputs: &[u32]) -> Result<Option<u32>, EngineError> {
        if let Some((set, _)) = sets.iter().find(|(_, of)| *of == outputs) {
            return Ok(Some(*set));
        }
        let Some(free) = (0..SETS).find(|set| !sets.contains_key(set)) else { return Ok(None) };
        if outputs.len() > SET_SIZE as usize {
            return Ok(None);
        }
        let failed = |source| EngineError::Update {
            what: "interfaces of a group cannot be told to the router's program",
            source,
        };
        let options = bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
        let map = MapHandle::create(MapType::Devmap, Some("set"), 4, 8, SET_SIZE, &options).map_err(failed)?;
        let program = self.program("router_copy")?.as_fd().as_raw_fd();
        for (at, output) in (0_u32..).zip(outputs) {
            let value = [output.to_le_bytes(), program.to_le_bytes()].concat();
            map.update(&at.to_le_bytes(), &value, MapFlags::ANY).map_err(failed)?;
        }
        let number = map.as_fd().as_raw_fd().to_le_bytes();
        self.maps.sets.update(&free.to_le_bytes(), &number, MapFlags::ANY).map_err(failed)?;
        sets.insert(free, outputs.to_vec());
        Ok(Some(free))
    }

    /// Whether an interface can be one of a set: the engine is there, as XDP, and frames get there.
    pub fn takes_copies(&self, ifindex: u32) -> bool {
        let slot =
            self.attached.lock().expect("no holder panics").get(&ifindex).and_then(super::attach::Attachment::target);
        let failed = |slot: u16| self.maps.failed.lookup(&u32::from(slot).to_le_bytes(), MapFlags::ANY);
        slot.is_some_and(|slot| matches!(failed(slot), Ok(Some(value)) if value.iter().all(|byte| *byte == 0)))
    }
}
