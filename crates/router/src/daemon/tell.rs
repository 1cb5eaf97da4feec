//! Telling the engine what Linux has: interfaces, what lies on them, and where addresses are in bridges. What was told is remembered, so that only
//! what is different is told again.

use std::collections::{HashMap, HashSet};

use super::devices::{self, Device, sends_tagged};
use super::sessions::{Carried, Sessions};
use super::sight::Sight;
use crate::engine::layout::device_flag as flag;
use crate::engine::{self, Engine, EngineError, Fdb, Upper, UpperKind};
use crate::kernel::mirror::Move;
use crate::kernel::neighbour::Station;

/// What the engine knows.
#[derive(Debug, Default)]
pub struct Told {
    devices: HashSet<u32>,
    uppers: HashMap<Upper, u32>,
    stations: HashMap<Fdb, (u32, bool, bool)>,
    /// Whether bridged packets pass hooks.
    pub bridge_netfilter: Option<bool>,
    /// Whether nothing looks at packets of IPv4 and of IPv6.
    pub bare: Option<(bool, bool)>,
    /// That routes may have MTUs of their own.
    has_route_mtu: bool,
    /// The interface whose packets the engine in user space has.
    tunnel: Option<String>,
    tunnel_index: Option<u32>,
    /// Entries that the engine had no room for, or did not take.
    pub refused: u64,
}

impl Told {
    /// With a tunnel interface of that name, or none.
    pub fn new(tunnel: Option<String>) -> Self {
        Self { tunnel, ..Self::default() }
    }

    /// Whether it is the tunnel interface.
    pub fn is_tunnel(&self, index: u32) -> bool {
        self.tunnel_index == Some(index)
    }

    /// Tells of routes with an MTU of their own, which the engine cannot ask for.
    pub fn route_mtus(&mut self, sight: &Sight, engine: &Engine) {
        if sight.mirror.has_route_mtu && !self.has_route_mtu {
            engine.set_route_mtus();
            self.has_route_mtu = true;
        }
    }

    /// Tells everything, and takes back what is not so any more.
    ///
    /// # Errors
    /// When the engine does not take an interface.
    pub fn everything(&mut self, sight: &Sight, sessions: &Sessions, engine: &Engine) -> Result<(), EngineError> {
        let there: HashSet<u32> = sight.mirror.links.keys().copied().collect();
        for gone in self.devices.difference(&there).copied().collect::<Vec<_>>() {
            self.without(gone, engine)?;
        }
        for index in there {
            self.device(index, sight, sessions, engine)?;
        }
        self.every_station(sight, engine);
        Ok(())
    }

    /// Tells of one interface, or that it is gone.
    ///
    /// # Errors
    /// When the engine does not take it.
    pub fn device(
        &mut self,
        index: u32,
        sight: &Sight,
        sessions: &Sessions,
        engine: &Engine,
    ) -> Result<(), EngineError> {
        let Some(link) = sight.mirror.links.get(&index) else { return self.without(index, engine) };
        let device = Device::of(&sight.mirror, link, sight.forwarding);
        let session = sessions.of(&link.name, &sight.mirror).filter(|_| link.mac.is_none());
        let mut told = in_words_of_the_engine(&device, session);
        let is_tunnel = self.tunnel.as_ref() == Some(&link.name);
        if is_tunnel {
            self.tunnel_index = Some(index);
            told.flags |= flag::USER | flag::L3;
        }
        engine.set_device(index, &told)?;
        if self.devices.insert(index) && is_tunnel {
            engine.attach(index, engine::How::User)?;
        }
        let vlan = device.vlan.map(|(lower, ethertype, id)| Upper { lower, kind: UpperKind::Vlan(ethertype, id) });
        let upper =
            session.map(|session| Upper { lower: session.lower, kind: UpperKind::Pppoe(session.session) }).or(vlan);
        // It may have been another VLAN or session, or may have lain on another interface.
        let old: Vec<Upper> =
            self.uppers.iter().filter(|(key, of)| **of == index && Some(**key) != upper).map(|(key, _)| *key).collect();
        for upper in old {
            self.uppers.remove(&upper);
            engine.remove_upper(&upper)?;
        }
        if let Some(upper) = upper
            && self.uppers.insert(upper, index) != Some(index)
        {
            engine.set_upper(&upper, index)?;
            engine.bump(engine::Change::Ruleset);
        }
        Ok(())
    }

    fn without(&mut self, index: u32, engine: &Engine) -> Result<(), EngineError> {
        if self.devices.remove(&index) {
            engine.detach(index)?;
            engine.remove_device(index)?;
        }
        let gone: Vec<Upper> =
            self.uppers.iter().filter(|(key, of)| **of == index || key.lower == index).map(|(key, _)| *key).collect();
        for upper in gone {
            self.uppers.remove(&upper);
            engine.remove_upper(&upper)?;
        }
        Ok(())
    }

    /// Tells where every address is.
    pub fn every_station(&mut self, sight: &Sight, engine: &Engine) {
        let there: HashSet<Fdb> = sight.mirror.stations.values().map(entry).collect();
        let gone: Vec<Fdb> = self.stations.keys().filter(|entry| !there.contains(entry)).copied().collect();
        for entry in gone {
            if let Some((port, ..)) = self.stations.remove(&entry) {
                self.refused += u64::from(engine.remove_fdb(&entry, port).is_err());
            }
        }
        for station in sight.mirror.stations.values() {
            self.station(station, Move::Here, sight, engine);
        }
    }

    /// Tells of one address.
    pub fn station(&mut self, station: &Station, moved: Move, sight: &Sight, engine: &Engine) {
        let entry = entry(station);
        let before = self.stations.get(&entry).copied();
        let was = before.map(|(port, ..)| port);
        let done = match moved {
            Move::Gone => {
                self.stations.remove(&entry);
                was.map_or(Ok(()), |was| engine.remove_fdb(&entry, was))
            }
            Move::Here => {
                let is_tagged = sends_tagged(&sight.mirror, station.port, station.vlan).unwrap_or(false);
                let value = (station.port, station.is_local, is_tagged);
                if before == Some(value) {
                    return;
                }
                self.stations.insert(entry, value);
                engine.set_fdb(&entry, station.port, station.is_local, is_tagged, was)
            }
        };
        if done.is_err() {
            // Full: what the engine does not know goes through Linux. What is not told must not be remembered as told.
            self.stations.remove(&entry);
            self.refused += 1;
            // Nor what was told before.
            let _ = was.map(|was| engine.remove_fdb(&entry, was));
        }
    }
}

fn entry(station: &Station) -> Fdb {
    Fdb { bridge: station.bridge, vlan: station.vlan, mac: station.mac }
}

fn in_words_of_the_engine(device: &Device, session: Option<Carried>) -> engine::Device {
    let mut flags = 0;
    let mut set = |is: bool, bit| flags |= if is { bit } else { 0 };
    set(device.is_up, flag::UP);
    set(device.bridge.is_some(), flag::BRIDGE);
    set(device.bridge == Some(true), flag::VLAN_AWARE);
    set(device.port_of.is_some(), flag::PORT);
    set(device.vlan.is_some(), flag::VLAN);
    set(session.is_some(), flag::PPPOE | flag::L3);
    set(device.rp_filter == devices::STRICT, flag::RP_STRICT);
    set(device.rp_filter == devices::LOOSE, flag::RP_LOOSE);
    set(device.forwards_ipv4, flag::FORWARD4);
    set(device.forwards_ipv6, flag::FORWARD6);
    engine::Device {
        flags,
        lower: session.map(|session| session.lower).or(device.vlan.map(|(lower, _, _)| lower)).unwrap_or(0),
        master: device.port_of.unwrap_or(0),
        mtu: device.mtu.into(),
        vlan: device.vlan.map_or((0, 0), |(_, ethertype, id)| (ethertype, id)),
        mac: session.map_or(device.mac, |session| session.own),
        session: session.map_or(0, |session| session.session),
        peer: session.map_or([0; 6], |session| session.ac),
        pvid: device.untagged_vlan.unwrap_or(0),
    }
}
