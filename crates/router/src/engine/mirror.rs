//! What the daemon tells the program: interfaces, what lies on them, the bridges' tables, and that something has changed.

use super::layout::{self, HOP, HOP_EPOCH, HOPS, Hop, NO_SLOT, PORT, PORTS, device_flag as flag, global, hop_flag};
use super::{Engine, EngineError};
use libbpf_rs::{MapCore, MapFlags};
use std::net::IpAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

pub(super) const ALL_PARTS: u32 = 0x3ff;

/// What a packet without a rule is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Nothing: everything goes to Linux.
    Off = 0,
    /// Routes only: there is no hook of netfilter in the network namespace.
    Route = 1,
    /// Conntrack, and then routes. What conntrack has no entry for stays with Linux.
    Conntrack = 2,
}

/// An interface, as Linux has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Device {
    /// Bits of [`device_flag`](layout::device_flag); ON and TC are the engine's own business and set by `attach`.
    pub flags: u32,
    /// What a VLAN or a session lies on.
    pub lower: u32,
    /// The bridge that it is a port of; 0 is none.
    pub master: u32,
    /// Bytes that IP may have.
    pub mtu: u32,
    /// Of a VLAN: its Ethernet type and number.
    pub vlan: (u16, u16),
    /// Of PPPoE: the session.
    pub session: u16,
    /// Its Ethernet address; of a session that of the interface below.
    pub mac: [u8; 6],
    /// Of PPPoE: the address of the concentrator.
    pub peer: [u8; 6],
    /// Of a port of a bridge that filters VLANs, and of such a bridge: the VLAN of what has no tag; 0 is none.
    pub pvid: u16,
}

/// What lies on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Upper {
    /// On which one.
    pub lower: u32,
    /// For which frames.
    pub kind: UpperKind,
}

/// For which frames an interface lies on another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpperKind {
    /// With this tag: Ethernet type (0x8100, 0x88a8) and VLAN.
    Vlan(u16, u16),
    /// Of this session of PPPoE.
    Pppoe(u16),
}

impl Upper {
    fn key(&self) -> [u8; 12] {
        let (kind, id) = match self.kind {
            UpperKind::Vlan(proto, id) => (1_u32, u32::from(proto.to_be()) << 16 | u32::from(id.to_be())),
            UpperKind::Pppoe(session) => (2, u32::from(session.to_be())),
        };
        let mut key = [0; 12];
        key[..4].copy_from_slice(&self.lower.to_le_bytes());
        key[4..8].copy_from_slice(&kind.to_le_bytes());
        key[8..].copy_from_slice(&id.to_le_bytes());
        key
    }
}

/// Which entry of a bridge's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fdb {
    /// Of which bridge.
    pub bridge: u32,
    /// In which VLAN; 0 where the bridge does not filter them.
    pub vlan: u16,
    /// Which address.
    pub mac: [u8; 6],
}

impl Fdb {
    fn key(&self) -> [u8; 12] {
        let mut key = [0; 12];
        key[..4].copy_from_slice(&self.bridge.to_le_bytes());
        key[4..6].copy_from_slice(&self.vlan.to_le_bytes());
        key[6..].copy_from_slice(&self.mac);
        key
    }
}

/// Which errors of ICMP are limited: bits of [`ErrorLimits::limited`].
pub mod error_limit {
    /// Time exceeded.
    pub const TTL4: u32 = 1 << 1;
    /// The same of IPv6.
    pub const TTL6: u32 = 1 << 9;
    /// Packet too big.
    pub const SIZE6: u32 = 1 << 10;
}

/// How often errors of ICMP are said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorLimits {
    /// Which are limited at all: bits of [`error_limit`].
    pub limited: u32,
    /// The time between two of IPv4 to one host, in the long run; six may be said at once.
    pub interval4: Duration,
    /// The same of IPv6.
    pub interval6: Duration,
    /// How many in a second, to all hosts.
    pub rate: u32,
    /// How many at once, to all hosts.
    pub burst: u32,
}

/// What has changed, so that rules have to be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Routes or policy rules. A rule that comes out the same goes on without a trial.
    Routes,
    /// The ruleset of nft, filters of tc, addresses of our own, sysctls: what the program does not see itself. Every rule is on trial again.
    Ruleset,
    /// An interface: what leaves by it.
    Device(u32),
    /// A neighbour at an interface: what leaves to that Ethernet address.
    Neighbour(u32, [u8; 6]),
    /// Some neighbour at an interface.
    Neighbours(u32),
}

impl Engine {
    pub(super) fn set(&self, offset: usize, value: u32) {
        self.globals.word(offset).store(value, Relaxed);
    }

    /// What a packet without a rule is asked for, of both versions of IP. Rules that were made in another mode are made again.
    pub fn set_mode(&self, mode: Mode) {
        self.set_modes(mode, mode);
    }

    /// As [`set_mode`](Self::set_mode), for IPv4 and IPv6 apart: where only one of them has hooks of netfilter.
    pub fn set_modes(&self, v4: Mode, v6: Mode) {
        self.set(global::MODE, v4 as u32);
        self.set(global::MODE6, v6 as u32);
        // Where it fails the next heartbeat tries again, and until then no rule that leads there gets in force.
        drop(self.look_after_judges());
        self.bump(Change::Ruleset);
    }

    /// Which parts are on: bits in the order fdb, vlan, pppoe, ipv4, ipv6, nat, tos, fragment, icmp, multicast.
    pub fn set_parts(&self, parts: u32) {
        self.set(global::PARTS, parts & ALL_PARTS);
        self.bump(Change::Ruleset);
    }

    /// To what conntrack's entries of established TCP and of UDP are prolonged.
    pub fn set_timeouts(&self, tcp: Duration, udp: Duration) {
        let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        self.set(global::TCP_MS, ms(tcp));
        self.set(global::UDP_MS, ms(udp));
    }

    /// Whether frames that a bridge sends on pass hooks of netfilter; then the fast path leaves them alone.
    pub fn set_bridge_netfilter(&self, passes: bool) {
        self.set(global::BRIDGE_NETFILTER, passes.into());
        self.bump(Change::Ruleset);
    }

    /// Routes may have an MTU of their own, which `bpf_fib_lookup` does not tell: from now on the first packet that is longer than any before it of its
    /// flow takes Linux's way.
    pub fn set_route_mtus(&self) {
        self.set(global::ROUTE_MTUS, 1);
    }

    /// For which versions of IP nothing of netfilter looks at any packet: then fragments are forwarded one by one.
    pub fn set_bare(&self, v4: bool, v6: bool) {
        self.set(global::BARE, u32::from(v4) | u32::from(v6) << 1);
        self.bump(Change::Ruleset);
    }

    /// How often errors of ICMP are said.
    pub fn set_error_limits(&self, limits: &ErrorLimits) {
        let interval = |time: Duration| if time.is_zero() { 0 } else { self.jiffies_of(time) };
        self.set(global::ERROR_INTERVAL, interval(limits.interval4));
        self.set(global::ERROR_INTERVAL6, interval(limits.interval6));
        self.set(global::ERROR_RATE, limits.rate);
        self.set(global::ERROR_BURST, limits.burst);
        self.set(global::ERROR_LIMITS, limits.limited);
    }

    /// One in so many packets is compared with what Linux makes of it; 0 is none.
    pub fn set_shadow(&self, one_in: u32) {
        self.set(global::SHADOW, one_in);
    }

    /// Says that the daemon lives, and sees to it that rules on trial are judged; where they cannot be.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn heartbeat(&self) -> Result<Vec<(u32, EngineError)>, EngineError> {
        let jiffies = self.jiffies()?;
        self.set(global::HEARTBEAT, jiffies);
        if self.globals.word(global::HOPS).load(Relaxed) > HOPS / 4 * 3 && self.may_renew() {
            self.renew_hops()?;
        }
        Ok(self.look_after_judges())
    }

    /// Whether the last renewal was long enough ago: it puts every rule on trial, which somebody who takes one next hop after the other must not have often.
    fn may_renew(&self) -> bool {
        const SELDOM: Duration = Duration::from_secs(10);
        let mut last = self.renewed.lock().expect("no holder panics");
        let may = last.is_none_or(|last| last.elapsed() >= SELDOM);
        if may {
            *last = Some(Instant::now());
        }
        may
    }

    /// Gives all next hops back, for nobody knows which are still in use. For some milliseconds everything goes to Linux, and then each rule is
    /// made again. [`heartbeat`](Self::heartbeat) does it when three quarters are taken.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn renew_hops(&self) -> Result<(), EngineError> {
        let modes = [global::MODE, global::MODE6].map(|mode| (mode, self.globals.word(mode).load(Relaxed)));
        self.renewals.fetch_add(1, Relaxed);
        modes.iter().for_each(|(mode, _)| self.set(*mode, 0));
        self.bump(Change::Ruleset);
        // Until no processor is at a packet that it began before: that takes microseconds.
        std::thread::sleep(Duration::from_millis(20));
        for key in self.maps.hop_index.keys() {
            gone(self.maps.hop_index.delete(&key), "a next hop cannot be taken from the router's program")?;
        }
        self.set(global::HOPS, 0);
        modes.iter().for_each(|(mode, before)| self.set(*mode, *before));
        Ok(())
    }

    /// How often all next hops were given back.
    pub fn renewals(&self) -> u64 {
        self.renewals.load(Relaxed)
    }

    /// After how long without a heartbeat everything goes to Linux; `None` is never.
    pub fn set_heartbeat_limit(&self, limit: Option<Duration>) {
        self.set(global::HEARTBEAT_LIMIT, limit.map_or(0, |limit| self.jiffies_of(limit)));
    }

    /// The interface, or what has changed of it. Rules that lead out of it are made again.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn set_device(&self, ifindex: u32, device: &Device) -> Result<(), EngineError> {
        let before = self.devices.lock().expect("no holder panics").insert(ifindex, *device);
        if before == Some(*device) {
            return Ok(());
        }
        self.write_device(ifindex, device)?;
        self.bump(Change::Ruleset);
        Ok(())
    }

    /// Writes a device to the maps, with what the engine itself knows of it.
    pub(super) fn write_device(&self, ifindex: u32, device: &Device) -> Result<(), EngineError> {
        let (own, slot) =
            self.attached.lock().expect("no holder panics").get(&ifindex).map_or((0, NO_SLOT), |a| (a.flags(), a.slot));
        let is_shaped = self.shaped.lock().expect("no holder panics").contains(&ifindex);
        let flags = device.flags & !(flag::ON | flag::TC) | own | if is_shaped { flag::SHAPED } else { 0 };
        let mut value = [0; layout::DEVICE];
        for (at, word) in [flags, device.lower, device.master, device.mtu].iter().enumerate() {
            value[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        value[16..18].copy_from_slice(&device.vlan.0.to_be_bytes());
        value[18..20].copy_from_slice(&device.vlan.1.to_be_bytes());
        value[20..22].copy_from_slice(&device.session.to_be_bytes());
        value[22..24].copy_from_slice(&slot.to_le_bytes());
        value[24..30].copy_from_slice(&device.mac);
        value[30..36].copy_from_slice(&device.peer);
        value[36..38].copy_from_slice(&device.pvid.to_le_bytes());
        let what = "an interface cannot be told to the router's program";
        self.maps
            .devices
            .update(&ifindex.to_le_bytes(), &value, MapFlags::ANY)
            .map_err(|source| EngineError::Update { what, source })?;
        self.write_port(ifindex, device, flags, slot);
        Ok(())
    }

    /// The slot of an interface, unless another interface has it: then the program finds it in `devices`, if it need not be attached to it.
    fn write_port(&self, ifindex: u32, device: &Device, flags: u32, slot: u16) {
        let at = (ifindex % PORTS) as usize * PORT;
        let window = self.ports.window();
        let word32 = |offset: usize| window.word32(at + offset).expect("a slot is inside the map");
        let owner = word32(8).load(Relaxed);
        if owner != ifindex && owner != 0 && slot == NO_SLOT {
            return;
        }
        let mac = device.mac.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let word = window.word64(at).expect("a slot is inside the map");
        // Off while it changes hands, and the word last: the program reads it first, and takes nothing of the rest unless it is on.
        if owner != ifindex {
            word.store(0, Release);
        }
        word32(12).store(device.master, Relaxed);
        word32(16).store(device.mtu, Relaxed);
        word32(20).store(u32::from(slot) | u32::from(device.pvid) << 16, Relaxed);
        word32(8).store(ifindex, Release);
        word.store(mac | u64::from(flags) << 48, Release);
    }

    /// Whether a qdisc of an interface tells packets apart by their mark or priority: then those of rules have to have what Linux gives them.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn set_shaped(&self, ifindex: u32, is_shaped: bool) -> Result<(), EngineError> {
        let mut shaped = self.shaped.lock().expect("no holder panics");
        let is_news = if is_shaped { shaped.insert(ifindex) } else { shaped.remove(&ifindex) };
        drop(shaped);
        let device = self.devices.lock().expect("no holder panics").get(&ifindex).copied();
        if let Some(device) = device.filter(|_| is_news) {
            self.write_device(ifindex, &device)?;
            self.bump(Change::Ruleset);
        }
        Ok(())
    }

    /// Forgets an interface that is gone. It has to be detached first.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn remove_device(&self, ifindex: u32) -> Result<(), EngineError> {
        if self.devices.lock().expect("no holder panics").remove(&ifindex).is_none() {
            return Ok(());
        }
        let at = (ifindex % PORTS) as usize * PORT;
        let window = self.ports.window();
        let owner = window.word32(at + 8).expect("a slot is inside the map");
        if owner.load(Relaxed) == ifindex {
            window.word64(at).expect("a slot is inside the map").store(0, Release);
            owner.store(0, Release);
        }
        self.bump(Change::Ruleset);
        gone(self.maps.devices.delete(&ifindex.to_le_bytes()), "an interface cannot be taken from the router's program")
    }

    /// Which interface lies on another one.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn set_upper(&self, upper: &Upper, ifindex: u32) -> Result<(), EngineError> {
        let what = "a VLAN or a session cannot be told to the router's program";
        self.maps
            .uppers
            .update(&upper.key(), &ifindex.to_le_bytes(), MapFlags::ANY)
            .map_err(|source| EngineError::Update { what, source })
    }

    /// That it does not any more.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn remove_upper(&self, upper: &Upper) -> Result<(), EngineError> {
        gone(self.maps.uppers.delete(&upper.key()), "a VLAN or a session cannot be taken from the router's program")
    }

    /// Where an address is in a bridge. `is_local`: it is the bridge's own; `is_tagged`: the port sends this VLAN with its tag; `was`: the port at which it
    /// has been until now.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn set_fdb(
        &self,
        entry: &Fdb,
        port: u32,
        is_local: bool,
        is_tagged: bool,
        was: Option<u32>,
    ) -> Result<(), EngineError> {
        let mut value = [0; 12];
        value[..4].copy_from_slice(&port.to_le_bytes());
        value[4..8].copy_from_slice(&(u32::from(is_local) | u32::from(is_tagged) << 1).to_le_bytes());
        let what = "an entry of a bridge's table cannot be told to the router's program";
        self.maps
            .fdb
            .update(&entry.key(), &value, MapFlags::ANY)
            .map_err(|source| EngineError::Update { what, source })?;
        was.into_iter().for_each(|port| self.left_port(entry, port));
        Ok(())
    }

    /// Rules that lead to an address in a bridge, at the port where it was until now, ask again. To one that was nowhere leads none.
    fn left_port(&self, entry: &Fdb, port: u32) {
        self.bump_hops(|hop| hop.flags & hop_flag::BRIDGED != 0 && hop.out == port || hop.destination == entry.mac);
    }

    /// That an address is not there any more, and where it was.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn remove_fdb(&self, entry: &Fdb, was: u32) -> Result<(), EngineError> {
        gone(
            self.maps.fdb.delete(&entry.key()),
            "an entry of a bridge's table cannot be taken from the router's program",
        )?;
        self.left_port(entry, was);
        Ok(())
    }

    /// An association of ESP that the engine in user space decrypts: packets to that address with that index go to its sockets.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn set_sa(&self, destination: IpAddr, spi: u32) -> Result<(), EngineError> {
        let what = "an association of ESP cannot be told to the router's program";
        let fresh = self.maps.sas.update(&sa_key(destination, spi), &[0; 4], MapFlags::NO_EXIST);
        match fresh {
            Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => return Ok(()),
            other => other.map_err(|source| EngineError::Update { what, source })?,
        }
        let count = self.globals.word(global::SAS);
        count.store(count.load(Relaxed) + 1, Relaxed);
        Ok(())
    }

    /// That it has it no more.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn remove_sa(&self, destination: IpAddr, spi: u32) -> Result<(), EngineError> {
        let deleted = self.maps.sas.delete(&sa_key(destination, spi));
        if deleted.is_ok() {
            let count = self.globals.word(global::SAS);
            count.store(count.load(Relaxed).saturating_sub(1), Relaxed);
        }
        gone(deleted, "an association of ESP cannot be taken from the router's program")
    }

    /// Something has changed: the rules that may have been made from it are made again by their next packets.
    pub fn bump(&self, change: Change) {
        let changes = self.globals.word(global::CHANGES);
        let mut before = changes.load(Relaxed);
        while let Err(now) = changes.compare_exchange(before, before.wrapping_add(1)) {
            before = now;
        }
        match change {
            Change::Routes => self.next_epoch(false),
            Change::Ruleset => self.next_epoch(true),
            Change::Device(ifindex) => self.bump_hops(|hop| hop.out == ifindex || hop.logical == ifindex),
            Change::Neighbour(ifindex, mac) => self.bump_hops(|hop| leads_to(hop, ifindex) && hop.destination == mac),
            Change::Neighbours(ifindex) => self.bump_hops(|hop| leads_to(hop, ifindex)),
        }
    }

    /// The epoch, and that of the last change of the ruleset.
    pub fn epochs(&self) -> (u32, u32) {
        let epochs = self.globals.epochs.load(Acquire);
        (epochs as u32, (epochs >> 32) as u32)
    }

    fn next_epoch(&self, is_ruleset: bool) {
        loop {
            let before = self.globals.epochs.load(Relaxed);
            let epoch = (before as u32).wrapping_add(1);
            let ruleset = if is_ruleset { epoch } else { (before >> 32) as u32 };
            if self.globals.epochs.compare_exchange(before, u64::from(ruleset) << 32 | u64::from(epoch)).is_ok() {
                return;
            }
        }
    }

    fn bump_hops(&self, concerns: impl Fn(&Hop) -> bool) {
        // Who asks at this moment may read the epoch of its next hop when it is new already, and what it leads to when that was old: it sees by this
        // that it has to ask again (`slow` in bpf/flow.h reads the two in the other order).
        let moved = self.globals.word(global::MOVED);
        let mut before = moved.load(Relaxed);
        while let Err(now) = moved.compare_exchange(before, before.wrapping_add(1)) {
            before = now;
        }
        for (number, hop) in self.hops() {
            if concerns(&hop) {
                let epoch =
                    self.hops.window().word32(number as usize * HOP + HOP_EPOCH).expect("a next hop is inside the map");
                let mut before = epoch.load(Relaxed);
                while let Err(now) = epoch.compare_exchange(before, before.wrapping_add(1)) {
                    before = now;
                }
            }
        }
    }

    /// The next hop of that number, if it has been given out.
    pub fn hop(&self, number: u16) -> Option<Hop> {
        let count = self.globals.word(global::HOPS).load(Acquire).min(HOPS);
        let mut bytes = [0; HOP];
        (u32::from(number) < count).then_some(())?;
        self.hops.window().span(usize::from(number) * HOP, HOP)?.read_into(&mut bytes);
        Some(Hop::from_bytes(&bytes))
    }

    /// The next hops that have been given out.
    pub fn hops(&self) -> impl Iterator<Item = (u32, Hop)> + '_ {
        let count = self.globals.word(global::HOPS).load(Acquire).min(HOPS);
        (0..count).filter_map(|number| {
            let mut bytes = [0; HOP];
            self.hops.window().span(number as usize * HOP, HOP)?.read_into(&mut bytes);
            Some((number, Hop::from_bytes(&bytes)))
        })
    }
}

/// Whether a next hop may be to a neighbour at an interface. What Linux was seen to do (`RULE_SHOWN`) says only by which card, which may be below it.
fn leads_to(hop: &Hop, ifindex: u32) -> bool {
    hop.logical == ifindex || hop.logical == hop.out
}

pub(super) fn sa_key(destination: IpAddr, spi: u32) -> [u8; 20] {
    let mut key = [0; 20];
    match destination {
        IpAddr::V4(v4) => key[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => key[..16].copy_from_slice(&v6.octets()),
    }
    key[16..].copy_from_slice(&spi.to_be_bytes());
    key
}

/// What was not there need not be taken away.
pub(super) fn gone(result: libbpf_rs::Result<()>, what: &'static str) -> Result<(), EngineError> {
    match result {
        Err(source) if source.kind() != libbpf_rs::ErrorKind::NotFound => Err(EngineError::Update { what, source }),
        _ => Ok(()),
    }
}
