//! Which addresses and ports the flows have, and their headers.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use super::{HEADERS_4, HEADERS_6, MAX_FLOWS, PROBE, Probe, Version};
use crate::checksum::Sum;

/// Where the IP header begins.
const IP: usize = super::ETHERNET;
/// Protocol number of UDP.
const UDP: u8 = 17;
/// Hops that a frame may take.
const HOPS: u8 = 64;
/// Lowest port of a flow, above those of services.
const FIRST_PORT: u32 = 1024;
/// How many ports there are from there on.
const PORTS: u32 = 65_536 - FIRST_PORT;
/// Longest frame: what fits in the length field of IPv4, and more than any card carries.
const LONGEST: u32 = 65_535;

/// What flows are to be built.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many, 1 to [`MAX_FLOWS`].
    pub flows: u32,
    /// From where to where.
    pub addresses: Addresses,
    /// The longest frame that will be written, in bytes.
    pub longest: u32,
    /// Ports, addresses within their networks, filler and tag follow from it.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self { flows: 1, addresses: Addresses::default_of(Version::V4), longest: 1518, seed: 1 }
    }
}

/// A plan that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too many flows, or none.
    #[error("{0} flows: a number from 1 to {MAX_FLOWS} is possible")]
    Flows(u32),
    /// One end speaks IPv4 and the other IPv6.
    #[error("{0} and {1} are not of the same internet protocol")]
    Mixed(IpAddr, IpAddr),
    /// The longest frame has no room for a probe, or no network carries it.
    #[error("frames of {0} bytes: from {1} bytes (headers and what is sent along) to 65535 are possible")]
    Longest(u32, usize),
}

impl Plan {
    pub(super) fn check(&self) -> Result<(), PlanError> {
        let (source, destination) = (self.addresses.source.ip, self.addresses.destination.ip);
        let shortest = self.addresses.version().shortest();
        if source.is_ipv4() != destination.is_ipv4() {
            Err(PlanError::Mixed(source, destination))
        } else if !(1..=MAX_FLOWS).contains(&self.flows) {
            Err(PlanError::Flows(self.flows))
        } else if (self.longest as usize) < shortest || self.longest > LONGEST {
            Err(PlanError::Longest(self.longest, shortest))
        } else {
            Ok(())
        }
    }
}

/// Both ends of all flows.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// MAC address that frames come from.
    pub source_mac: MacAddress,
    /// MAC address that they go to.
    pub destination_mac: MacAddress,
    /// Where they come from.
    pub source: Endpoint,
    /// Where they go.
    pub destination: Endpoint,
}

impl Addresses {
    /// Networks that are reserved for benchmarks (RFC 2544 and RFC 5180), and locally administered MAC addresses.
    pub const fn default_of(version: Version) -> Self {
        let (source, destination, prefix) = match version {
            Version::V4 => (IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)), IpAddr::V4(Ipv4Addr::new(198, 19, 0, 1)), 16),
            Version::V6 => (
                IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1)),
                IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1)),
                64,
            ),
        };
        Self {
            source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
            source: Endpoint { ip: source, prefix },
            destination: Endpoint { ip: destination, prefix },
        }
    }

    /// The protocol of the source.
    pub const fn version(&self) -> Version {
        match self.source.ip {
            IpAddr::V4(_) => Version::V4,
            IpAddr::V6(_) => Version::V6,
        }
    }
}

/// An address, and how many of its leading bits all flows share: `198.18.0.1` is that address alone, `198.18.0.0/16`
/// gives each flow one of its own from that network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address.
    pub ip: IpAddr,
    /// Bits that are the same for all flows.
    pub prefix: u8,
}

impl Endpoint {
    /// The address of one flow.
    fn of(self, random: u64) -> IpAddr {
        match self.ip {
            IpAddr::V4(ip) => {
                let free = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & !free | random as u32 & free))
            }
            IpAddr::V6(ip) => {
                // 64 bits tell as many flows apart as anyone can have.
                let free = u128::MAX.checked_shr(self.prefix.into()).unwrap_or(0) & u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !free | u128::from(random) & free))
            }
        }
    }
}

/// Text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {wanted}")]
pub struct NotAnAddress {
    text: String,
    wanted: &'static str,
}

impl FromStr for Endpoint {
    type Err = NotAnAddress;
    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let wanted = "address or network, such as 10.0.0.1, 10.0.0.0/8 or 2001:db8::/64";
        let bad = || NotAnAddress { text: text.to_owned(), wanted };
        let (ip, prefix) = text.split_once('/').map_or((text, None), |(ip, prefix)| (ip, Some(prefix)));
        let ip: IpAddr = ip.parse().map_err(|_| bad())?;
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), str::parse).map_err(|_| bad())?;
        if prefix <= bits { Ok(Self { ip, prefix }) } else { Err(bad()) }
    }
}

/// A MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacAddress(pub [u8; 6]);

impl FromStr for MacAddress {
    type Err = NotAnAddress;
    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let bad = || NotAnAddress { text: text.to_owned(), wanted: "MAC address, such as 02:00:00:00:00:01" };
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2 && !part.starts_with('+')).ok_or_else(bad)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_none() { Ok(Self(bytes)) } else { Err(bad()) }
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The headers of one flow, without lengths and checksums, and the sums over what does not change.
#[derive(Clone, Debug)]
pub(super) struct Headers {
    bytes: [u8; HEADERS_6],
    version: Version,
    /// Over the IPv4 header, without its length.
    ip: Sum,
    /// Over pseudo header, ports, tag and flow, without the length.
    udp: Sum,
}

impl Headers {
    pub(super) fn new(plan: &Plan, tag: u16, flow: u32) -> Self {
        let Plan { addresses, seed, .. } = plan;
        let mut random = Random::new(seed ^ u64::from(flow) << 32);
        let (source, destination) = (addresses.source.of(random.next()), addresses.destination.of(random.next()));
        let mut bytes = [0; HEADERS_6];
        bytes[..6].copy_from_slice(&addresses.destination_mac.0);
        bytes[6..12].copy_from_slice(&addresses.source_mac.0);
        bytes[12..14].copy_from_slice(&ethertype(addresses.version()));
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes[IP] = 0x45;
                // "Don't fragment": identification may stay 0 (RFC 6864).
                bytes[IP + 6] = 0x40;
                (bytes[IP + 8], bytes[IP + 9]) = (HOPS, UDP);
                bytes[IP + 12..IP + 16].copy_from_slice(&source.octets());
                bytes[IP + 16..IP + 20].copy_from_slice(&destination.octets());
            }
            (source, destination) => {
                bytes[IP] = 0x60;
                (bytes[IP + 6], bytes[IP + 7]) = (UDP, HOPS);
                bytes[IP + 8..IP + 24].copy_from_slice(&octets(source));
                bytes[IP + 24..IP + 40].copy_from_slice(&octets(destination));
            }
        }
        let version = addresses.version();
        let headers = version.headers();
        let ports = ports(*seed, flow);
        bytes[headers - 8..headers - 6].copy_from_slice(&ports.0.to_be_bytes());
        bytes[headers - 6..headers - 4].copy_from_slice(&ports.1.to_be_bytes());
        let udp = pseudo_header(version, &bytes).plus(Sum::of(&bytes[headers - 8..headers - 4]));
        let udp = udp.with(u32::from(tag)).with(flow);
        Self { bytes, version, ip: Sum::of(&bytes[IP..headers - 8]), udp }
    }

    /// The sum over everything but lengths and filler.
    #[inline(always)]
    pub(super) fn payload_sum(&self, probe: Probe) -> Sum {
        let stamp = probe.stamp.nanos();
        self.udp.with(probe.sequence).with((stamp >> 32) as u32).with(stamp as u32)
    }

    /// Writes the headers of a frame of `len` bytes whose payload, with everything else that does not depend on the
    /// length, sums up to `payload`.
    #[inline(always)]
    pub(super) fn write<const HEADERS: usize>(&self, head: &mut [u8; HEADERS], len: usize, payload: Sum) {
        head.copy_from_slice(&self.bytes[..HEADERS]);
        let udp_len = (len - HEADERS + 8) as u16;
        // The length stands in the header and in the pseudo header.
        let checksum = match payload.with(u32::from(udp_len)).with(u32::from(udp_len)).checksum() {
            // No checksum at all is written 0, so a checksum of 0 is written the other way (RFC 768).
            0 => 0xffff,
            checksum => checksum,
        };
        head[HEADERS - 4..HEADERS - 2].copy_from_slice(&udp_len.to_be_bytes());
        head[HEADERS - 2..].copy_from_slice(&checksum.to_be_bytes());
        match self.version {
            Version::V4 => {
                let total = (len - IP) as u16;
                head[IP + 2..IP + 4].copy_from_slice(&total.to_be_bytes());
                head[IP + 10..IP + 12].copy_from_slice(&self.ip.with(u32::from(total)).checksum().to_be_bytes());
            }
            Version::V6 => head[IP + 4..IP + 6].copy_from_slice(&udp_len.to_be_bytes()),
        }
    }
}

/// Whether the UDP checksum is right for a payload that sums up to `payload`, or was left out, as IPv4 allows.
#[inline(always)]
pub(super) fn checksum_holds<const HEADERS: usize>(version: Version, head: &[u8; HEADERS], payload: Sum) -> bool {
    let udp = &head[HEADERS - 8..];
    if version == Version::V4 && udp[6..] == [0, 0] {
        return true;
    }
    let len = u32::from(u16::from_be_bytes([udp[4], udp[5]]));
    pseudo_header(version, head).with(len).plus(Sum::of(udp)).plus(payload).folded() == 0xffff
}

/// Addresses and protocol, without the length.
#[inline(always)]
fn pseudo_header(version: Version, head: &[u8]) -> Sum {
    let addresses = match version {
        Version::V4 => &head[IP + 12..IP + 20],
        Version::V6 => &head[IP + 8..IP + 40],
    };
    Sum::of(addresses).with(u32::from(UDP))
}

#[inline(always)]
pub(super) const fn ethertype(version: Version) -> [u8; 2] {
    match version {
        Version::V4 => [0x08, 0x00],
        Version::V6 => [0x86, 0xdd],
    }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Source and destination port: no two flows have the same pair.
fn ports(seed: u64, flow: u32) -> (u16, u16) {
    let port = |number: u64| (FIRST_PORT + (number % u64::from(PORTS)) as u32) as u16;
    let (column, row) = (u64::from(flow % PORTS), u64::from(flow / PORTS));
    (port(column + (seed & 0xffff)), port(row + (seed >> 16 & 0xffff)))
}

/// Numbers that look random and follow from a seed (SplitMix64, Steele et al. 2014).
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

const _: () = assert!(HEADERS_4 + PROBE == 60, "a probe fits in the shortest Ethernet frame");
