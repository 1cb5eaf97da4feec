//! What the maps of the kernel hold, byte for byte: the mirror of `bpf/layout.h`. A test compares the two by the types that the program carries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The state of a rule: the low byte of its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Nothing was ever there.
    Empty = 0,
    /// A processor is writing it.
    Busy = 1,
    /// Linux has not shown yet that it does the same.
    Trial = 2,
    /// In force.
    Active = 3,
    /// The flow stays with Linux.
    Refused = 4,
    /// Not there any more.
    Dead = 5,
}

impl State {
    /// That of a rule's word.
    pub fn of(word: u32) -> Option<Self> {
        [Self::Empty, Self::Busy, Self::Trial, Self::Active, Self::Refused, Self::Dead]
            .into_iter()
            .find(|s| *s as u32 == word & 0xff)
    }
}

/// Flags of a rule.
pub mod rule_flag {
    /// Conntrack has an entry for it, which is kept alive.
    pub const CONNTRACK: u8 = 1;
    /// Addresses or ports change.
    pub const NAT: u8 = 2;
    /// A frame that is bridged.
    pub const BRIDGED: u8 = 4;
    /// Only Linux can show what it does.
    pub const SHOWN: u8 = 16;
    /// The DSCP has been learned.
    pub const LEARNED: u8 = 8;
    /// It has been put on trial again where it is: its counter goes on.
    pub const AGAIN: u8 = 32;
}

/// Bytes of a rule of IPv4 and of IPv6, of a next hop and of an interface.
pub const RULE4: usize = 64;
/// See [`RULE4`].
pub const RULE6: usize = 128;
/// See [`RULE4`].
pub const HOP: usize = 64;
/// Bytes of the next hop's key, which are its first.
pub const HOP_KEY: usize = 40;
/// Where the epoch of a next hop is.
pub const HOP_EPOCH: usize = 40;
/// See [`RULE4`].
pub const PORT: usize = 32;
/// Slots for interfaces.
pub const PORTS: u32 = 4096;
/// Interfaces that the engine can be attached to at a time.
pub const TARGETS: u32 = 1024;
/// Next hops.
pub const HOPS: u32 = 4096;
/// AF_XDP sockets of one slot.
pub const QUEUES: u32 = 16;
/// The slot of an interface that the engine is not attached to.
pub const NO_SLOT: u16 = 0xffff;
/// Bytes of a device.
pub const DEVICE: usize = 40;
/// Bytes of an event.
pub const EVENT: usize = 64;
/// Bytes in front of the frame in a copy.
pub const SHADOW_HEAD: usize = 32;
/// Bytes of a frame that a copy has at most.
pub const SHADOW_BYTES: usize = 2048;

/// Bytes of a multicast route.
pub const GROUP: usize = 12;
/// Sets of interfaces that groups go to.
pub const SETS: u32 = 256;
/// Interfaces of one of them.
pub const SET_SIZE: u32 = 32;

/// Flags of a device.
pub mod device_flag {
    /// Packets that come by it are looked at.
    pub const ON: u32 = 0x0001;
    /// By the program at tc.
    pub const TC: u32 = 0x0002;
    /// A port of a bridge.
    pub const PORT: u32 = 0x0004;
    /// A bridge.
    pub const BRIDGE: u32 = 0x0008;
    /// A VLAN on another one.
    pub const VLAN: u32 = 0x0010;
    /// A session of PPPoE on another one.
    pub const PPPOE: u32 = 0x0020;
    /// `rp_filter` is strict.
    pub const RP_STRICT: u32 = 0x0040;
    /// `rp_filter` is loose.
    pub const RP_LOOSE: u32 = 0x0080;
    /// IPv4 that comes by it is forwarded.
    pub const FORWARD4: u32 = 0x0100;
    /// The same of IPv6.
    pub const FORWARD6: u32 = 0x0200;
    /// It is up.
    pub const UP: u32 = 0x0400;
    /// A bridge that filters VLANs.
    pub const VLAN_AWARE: u32 = 0x0800;
    /// Packets of it begin with IP.
    pub const L3: u32 = 0x1000;
    /// What leaves by it is done by the engine in user space.
    pub const USER: u32 = 0x2000;
    /// A qdisc of it tells packets apart by what Linux writes beside them.
    pub const SHAPED: u32 = 0x4000;
}

/// Flags of a next hop.
pub mod hop_flag {
    /// A port of a bridge.
    pub const BRIDGED: u16 = 1;
    /// The engine in user space does it.
    pub const USER: u16 = 2;
    /// A port of a bridge that filters VLANs: frames leave with a tag.
    pub const TAGGED: u16 = 4;
    /// They leave without one.
    pub const UNTAGGED: u16 = 8;
}

/// Offsets in `struct globals`.
pub mod global {
    /// The epoch, and that of the last change of the ruleset above it.
    pub const EPOCHS: usize = 0;
    /// Bits of the parts that are on.
    pub const PARTS: usize = 8;
    /// What a miss asks.
    pub const MODE: usize = 12;
    /// Jiffies of the last heartbeat.
    pub const HEARTBEAT: usize = 16;
    /// Jiffies without one, after which everything goes to Linux.
    pub const HEARTBEAT_LIMIT: usize = 20;
    /// One in so many packets is compared.
    pub const SHADOW: usize = 24;
    /// Jiffies between two questions about a flow.
    pub const KEEP: usize = 28;
    /// Milliseconds that TCP's entries are kept.
    pub const TCP_MS: usize = 32;
    /// The same of UDP.
    pub const UDP_MS: usize = 36;
    /// Packets of a rule on trial.
    pub const TRIAL_PACKETS: usize = 40;
    /// Jiffies of a second.
    pub const HZ: usize = 44;
    /// What the program `router_clock` has written.
    pub const JIFFIES: usize = 48;
    /// Whether bridged packets go through hooks of netfilter.
    pub const BRIDGE_NETFILTER: usize = 52;
    /// As [`MODE`], for IPv6.
    pub const MODE6: usize = 56;
    /// The number of the map of targets.
    pub const TARGETS: usize = 60;
    /// Grows before the epoch of any next hop does.
    pub const MOVED: usize = 68;
    /// Next hops given out.
    pub const HOPS: usize = 72;
    /// Copies that found no room.
    pub const SHADOW_LOST: usize = 76;
    /// Events that found no room.
    pub const EVENTS_LOST: usize = 80;
    /// Associations of ESP that the engine in user space has.
    pub const SAS: usize = 88;
    /// Whether routes may have MTUs of their own.
    pub const ROUTE_MTUS: usize = 92;
    /// For which versions of IP nothing of netfilter looks at packets: 1 IPv4, 2 IPv6.
    pub const BARE: usize = 96;
    /// Which errors of ICMP are limited.
    pub const ERROR_LIMITS: usize = 100;
    /// Jiffies between two errors to one host, of IPv4.
    pub const ERROR_INTERVAL: usize = 104;
    /// The same of IPv6.
    pub const ERROR_INTERVAL6: usize = 108;
    /// Errors in a second.
    pub const ERROR_RATE: usize = 112;
    /// Errors at once.
    pub const ERROR_BURST: usize = 116;
    /// Multicast routes.
    pub const GROUPS: usize = 128;
    /// How often anything has changed.
    pub const CHANGES: usize = 132;
    /// Jiffies until which packets of ESP are looked at at the egress.
    pub const OUTER_UNTIL: usize = 136;
    /// Rules that have ended because a newcomer found no room.
    pub const MADE_ROOM: usize = 140;
    /// All of it.
    pub const SIZE: usize = 192;
}

/// Which flow of one direction: what a rule is found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The interface that its packets come by: the one that has the address, not the card below. Of a bridged frame: the port, and the VLAN above
    /// bit 20.
    pub input: u32,
    /// From where. Both addresses are of one version.
    pub source: IpAddr,
    /// To where, before any translation.
    pub destination: IpAddr,
    /// From which port; of ICMP the identifier of the echo.
    pub source_port: u16,
    /// To which port; of ICMP the type of the echo above its code, which is 0.
    pub destination_port: u16,
    /// 6 TCP, 17 UDP, 1 ICMP, 58 ICMPv6.
    pub protocol: u8,
    /// With which DSCP it comes.
    pub dscp: u8,
}

impl Key {
    /// From where and to where. Of an echo both ports are its identifier, whether it asks or answers.
    pub fn ends(&self) -> [(IpAddr, u16); 2] {
        let second = if self.is_echo() { self.source_port } else { self.destination_port };
        [(self.source, self.source_port), (self.destination, second)]
    }

    fn is_echo(&self) -> bool {
        const ICMP: u8 = 1;
        const ICMP_V6: u8 = 58;
        matches!(self.protocol, ICMP | ICMP_V6)
    }

    /// Whether its packets are answers to echoes (RFC 792: type 0; RFC 4443: type 129).
    pub fn is_echo_reply(&self) -> bool {
        self.is_echo() && matches!(self.destination_port >> 8, 0 | 129)
    }
}

/// A rule, as it was at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Its number in its table.
    pub number: u32,
    /// Its word: state, flags, and how often the slot has been claimed.
    pub word: u32,
    /// Which flow.
    pub key: Key,
    /// What it is now.
    pub state: State,
    /// Bits of [`rule_flag`].
    pub flags: u8,
    /// The reason's number, when it is refused.
    pub reason: u8,
    /// In which epoch it was made.
    pub epoch: u32,
    /// Which next hop.
    pub hop: u16,
    /// The epoch of that then.
    pub hop_epoch: u16,
    /// What the source becomes.
    pub new_source: IpAddr,
    /// What the destination becomes.
    pub new_destination: IpAddr,
    /// What the source port becomes.
    pub new_source_port: u16,
    /// What the destination port becomes.
    pub new_destination_port: u16,
    /// What the DSCP becomes.
    pub new_dscp: u8,
    /// Packets sent on, modulo 2^28.
    pub packets: u64,
    /// Bytes of IP sent on, modulo 2^36.
    pub bytes: u64,
    /// Jiffies of the last packet, or of the end.
    pub seen: u32,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn port_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn v4_at(bytes: &[u8], at: usize) -> IpAddr {
    Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]).into()
}

fn v6_at(bytes: &[u8], at: usize) -> IpAddr {
    let mut address = [0; 16];
    address.copy_from_slice(&bytes[at..at + 16]);
    Ipv6Addr::from(address).into()
}

const COUNTER_PACKETS: u32 = 28;

/// Where the members of a rule are that the two versions have at different places.
struct Places {
    /// The source port, behind which the destination port, protocol, both DSCPs, the reason, epoch and hop follow.
    ports: usize,
    addresses: [usize; 4],
    new_ports: usize,
    counter: usize,
    seen: usize,
}

const PLACES4: Places = Places { ports: 16, addresses: [8, 12, 32, 36], new_ports: 40, counter: 48, seen: 56 };
const PLACES6: Places = Places { ports: 40, addresses: [8, 24, 72, 88], new_ports: 104, counter: 56, seen: 64 };

impl Rule {
    /// What [`Key::ends`] become.
    pub fn new_ends(&self) -> [(IpAddr, u16); 2] {
        let second = if self.key.is_echo() { self.new_source_port } else { self.new_destination_port };
        [(self.new_source, self.new_source_port), (self.new_destination, second)]
    }

    /// A rule of IPv4 from its bytes; `None` for a slot without one.
    pub fn from_v4(number: u32, bytes: &[u8; RULE4]) -> Option<Self> {
        Self::from_places(number, bytes, &PLACES4, v4_at)
    }

    /// A rule of IPv6 from its bytes; `None` for a slot without one.
    pub fn from_v6(number: u32, bytes: &[u8; RULE6]) -> Option<Self> {
        Self::from_places(number, bytes, &PLACES6, v6_at)
    }

    fn from_places(number: u32, bytes: &[u8], places: &Places, address: fn(&[u8], usize) -> IpAddr) -> Option<Self> {
        let word = u32_at(bytes, 0);
        let state = State::of(word).filter(|state| !matches!(state, State::Empty | State::Busy))?;
        let (ports, [source, destination, new_source, new_destination]) = (places.ports, places.addresses);
        let counter = u64_at(bytes, places.counter);
        let flags = (word >> 8) as u8;
        // Of a bridged frame the Ethernet addresses are in the places of new ones, for its packet does not change.
        let is_bridged = flags & rule_flag::BRIDGED != 0;
        let (new_source, new_destination) =
            if is_bridged { (source, destination) } else { (new_source, new_destination) };
        let new_ports = if is_bridged { ports } else { places.new_ports };
        Some(Self {
            number,
            word,
            key: Key {
                input: u32_at(bytes, 4),
                source: address(bytes, source),
                destination: address(bytes, destination),
                source_port: port_at(bytes, ports),
                destination_port: port_at(bytes, ports + 2),
                protocol: bytes[ports + 4],
                dscp: bytes[ports + 5],
            },
            state,
            flags,
            reason: bytes[ports + 7],
            epoch: u32_at(bytes, ports + 8),
            hop: u16_at(bytes, ports + 12),
            hop_epoch: u16_at(bytes, ports + 14),
            new_source: address(bytes, new_source),
            new_destination: address(bytes, new_destination),
            new_source_port: port_at(bytes, new_ports),
            new_destination_port: port_at(bytes, new_ports + 2),
            new_dscp: bytes[ports + 6],
            packets: counter & ((1 << COUNTER_PACKETS) - 1),
            bytes: counter >> COUNTER_PACKETS,
            seen: u32_at(bytes, places.seen),
        })
    }
}

/// A next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// The interface that frames leave by.
    pub out: u32,
    /// The interface of the route.
    pub logical: u32,
    /// Its slot.
    pub slot: u16,
    /// Bits of [`hop_flag`].
    pub flags: u16,
    /// To which Ethernet address; of a port of a bridge none, for addresses are the rule's.
    pub destination: [u8; 6],
    /// From which.
    pub source: [u8; 6],
    /// Ethernet type and TCI of up to two tags, the outer first; a type of 0 is none.
    pub tags: [(u16, u16); 2],
    /// The session of PPPoE; 0 is none.
    pub session: u16,
    /// Bytes that IP may have.
    pub mtu: u16,
    /// Its epoch.
    pub epoch: u32,
}

impl Hop {
    /// From its bytes.
    pub fn from_bytes(bytes: &[u8; HOP]) -> Self {
        let mac = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3], bytes[at + 4], bytes[at + 5]];
        Self {
            out: u32_at(bytes, 0),
            logical: u32_at(bytes, 4),
            slot: u16_at(bytes, 8),
            flags: u16_at(bytes, 10),
            destination: mac(12),
            source: mac(18),
            tags: [(port_at(bytes, 24), port_at(bytes, 26)), (port_at(bytes, 28), port_at(bytes, 30))],
            session: port_at(bytes, 32),
            mtu: u16_at(bytes, 34),
            epoch: u32_at(bytes, HOP_EPOCH),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::HasSize;
    use libbpf_rs::btf::Btf;
    use libbpf_rs::btf::types::{MemberAttr, Struct};

    /// A structure: its name, its bytes, and where some of its members are.
    type Expected = (&'static str, usize, &'static [(&'static str, usize)]);

    /// The size of a structure of bpf/layout.h, and where its members are.
    fn structure(btf: &Btf<'_>, name: &str) -> (usize, Vec<(String, usize)>) {
        let found = btf.type_by_name::<Struct<'_>>(name).unwrap_or_else(|| panic!("the program has no struct {name}"));
        let members = found.iter().map(|member| {
            let bits = match member.attr {
                MemberAttr::Normal { offset } => offset,
                MemberAttr::BitField { offset, .. } => offset,
            };
            (member.name.unwrap_or_default().to_string_lossy().into_owned(), bits as usize / 8)
        });
        (found.size(), members.collect())
    }

    #[test]
    fn the_program_has_the_same_layout() {
        let path = concat!(env!("OUT_DIR"), "/router.bpf.o");
        if std::fs::metadata(path).unwrap().len() == 0 {
            eprintln!("skipped: this build has no program: {}", env!("ROUTER_PROBLEM"));
            return;
        }
        let btf = Btf::from_path(path).unwrap();
        let expected: &[Expected] = &[
            (
                "rule4",
                RULE4,
                &[
                    ("in", 4),
                    ("saddr", PLACES4.addresses[0]),
                    ("daddr", PLACES4.addresses[1]),
                    ("sport", PLACES4.ports),
                    ("proto", 20),
                    ("dscp", 21),
                    ("out_dscp", 22),
                    ("reason", 23),
                    ("epoch", 24),
                    ("hop", 28),
                    ("hop_epoch", 30),
                    ("new_saddr", PLACES4.addresses[2]),
                    ("new_daddr", PLACES4.addresses[3]),
                    ("new_sport", PLACES4.new_ports),
                    ("counter", PLACES4.counter),
                    ("seen", PLACES4.seen),
                ],
            ),
            (
                "rule6",
                RULE6,
                &[
                    ("in", 4),
                    ("saddr", PLACES6.addresses[0]),
                    ("daddr", PLACES6.addresses[1]),
                    ("sport", PLACES6.ports),
                    ("proto", 44),
                    ("dscp", 45),
                    ("out_dscp", 46),
                    ("reason", 47),
                    ("epoch", 48),
                    ("hop", 52),
                    ("hop_epoch", 54),
                    ("new_saddr", PLACES6.addresses[2]),
                    ("new_daddr", PLACES6.addresses[3]),
                    ("new_sport", PLACES6.new_ports),
                    ("counter", PLACES6.counter),
                    ("seen", PLACES6.seen),
                ],
            ),
            (
                "hop",
                HOP,
                &[
                    ("out", 0),
                    ("logical", 4),
                    ("slot", 8),
                    ("flags", 10),
                    ("dmac", 12),
                    ("smac", 18),
                    ("tags", 24),
                    ("session", 32),
                    ("mtu", 34),
                    ("epoch", HOP_EPOCH),
                ],
            ),
            ("hop_key", HOP_KEY, &[]),
            ("port", PORT, &[("word", 0), ("ifindex", 8), ("master", 12), ("mtu", 16), ("slot", 20), ("pvid", 22)]),
            (
                "device",
                DEVICE,
                &[
                    ("flags", 0),
                    ("lower", 4),
                    ("master", 8),
                    ("mtu", 12),
                    ("vlan_proto", 16),
                    ("vlan_id", 18),
                    ("session", 20),
                    ("slot", 22),
                    ("mac", 24),
                    ("peer", 30),
                    ("pvid", 36),
                ],
            ),
            (
                "globals",
                global::SIZE,
                &[
                    ("epochs", global::EPOCHS),
                    ("parts", global::PARTS),
                    ("mode", global::MODE),
                    ("heartbeat", global::HEARTBEAT),
                    ("heartbeat_limit", global::HEARTBEAT_LIMIT),
                    ("shadow", global::SHADOW),
                    ("keep", global::KEEP),
                    ("tcp_ms", global::TCP_MS),
                    ("udp_ms", global::UDP_MS),
                    ("trial_packets", global::TRIAL_PACKETS),
                    ("hz", global::HZ),
                    ("jiffies", global::JIFFIES),
                    ("bridge_netfilter", global::BRIDGE_NETFILTER),
                    ("mode6", global::MODE6),
                    ("targets", global::TARGETS),
                    ("moved", global::MOVED),
                    ("hops", global::HOPS),
                    ("sas", global::SAS),
                    ("route_mtus", global::ROUTE_MTUS),
                    ("bare", global::BARE),
                    ("error_limits", global::ERROR_LIMITS),
                    ("error_interval", global::ERROR_INTERVAL),
                    ("error_interval6", global::ERROR_INTERVAL6),
                    ("error_rate", global::ERROR_RATE),
                    ("error_burst", global::ERROR_BURST),
                    ("groups", global::GROUPS),
                    ("changes", global::CHANGES),
                    ("outer_until", global::OUTER_UNTIL),
                    ("made_room", global::MADE_ROOM),
                    ("shadow_lost", global::SHADOW_LOST),
                    ("events_lost", global::EVENTS_LOST),
                ],
            ),
            ("outer", 80, &[("out", 0), ("sequence", 4), ("l3", 8), ("tag_proto", 12), ("tag", 14), ("head", 16)]),
            (
                "event",
                EVENT,
                &[
                    ("time", 0),
                    ("rule", 8),
                    ("in", 12),
                    ("kind", 16),
                    ("version", 17),
                    ("reason", 18),
                    ("proto", 19),
                    ("sport", 20),
                    ("dport", 22),
                    ("saddr", 24),
                    ("daddr", 40),
                    ("dscp", 56),
                ],
            ),
            (
                "shadow",
                SHADOW_HEAD + SHADOW_BYTES,
                &[
                    ("ticket", 0),
                    ("rule", 4),
                    ("state", 8),
                    ("out", 12),
                    ("len", 20),
                    ("side", 24),
                    ("version", 25),
                    ("tag_proto", 26),
                    ("tag", 28),
                    ("frame", SHADOW_HEAD),
                ],
            ),
        ];
        for (name, size, members) in expected {
            let (has, found) = structure(&btf, name);
            assert_eq!(has, *size, "bytes of struct {name}");
            for (member, offset) in *members {
                let place = found
                    .iter()
                    .find(|(name, _)| name == member)
                    .unwrap_or_else(|| panic!("struct {name} has no {member}"))
                    .1;
                assert_eq!(place, *offset, "struct {name}, {member}");
            }
        }
    }
}
