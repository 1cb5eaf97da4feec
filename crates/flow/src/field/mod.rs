//! The one table of fields: names, place in the [key](crate::key), how values are written, what a field needs.
//!
//! Names and meanings are those of `ovs-fields(7)` where it has the field; the first name of a row is the one that is
//! printed. Values are in host order: an IPv4 address is the number that `10.0.0.1` stands for.
//!
//! - [`mod@text`]: values as text and back, by [`Format`].
//! - [`needs`]: what has to be known before a field means anything, such as `nw_proto=6` for `tcp_flags`.

pub mod needs;
#[cfg(test)]
mod tests;
pub mod text;

use needs::Needs;

/// Number of the port that stands for programs of the host: `OFPP_LOCAL` (OpenFlow 1.3, section A.2.1).
pub const LOCAL: u32 = 0xffff_fffe;

/// Bit 12 of a VLAN field: there is a tag. It stands where a frame has the CFI bit, as in Open vSwitch.
pub const TAG_PRESENT: u64 = 0x1000;
/// Longest QUIC connection id of versions 1 and 2, in bytes (RFC 9000 section 17.2).
pub const MAX_CID: usize = 20;

/// A value or mask of a field, right-aligned: up to 64 bits are in the first word, IPv6 addresses in the first two, most
/// significant first. For connection ids see [`Format::Cid`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wide(pub [u64; 3]);

impl Wide {
    /// No bit set.
    pub const ZERO: Self = Self([0; 3]);

    /// A value of up to 64 bits.
    pub const fn new(value: u64) -> Self {
        Self([value, 0, 0])
    }

    /// A value of 128 bits.
    pub const fn from_u128(value: u128) -> Self {
        Self([(value >> 64) as u64, value as u64, 0])
    }

    /// The 128 bits of an IPv6 address.
    pub const fn as_u128(self) -> u128 {
        (self.0[0] as u128) << 64 | self.0[1] as u128
    }

    /// Bits that are set in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self([self.0[0] & other.0[0], self.0[1] & other.0[1], self.0[2] & other.0[2]])
    }

    /// A connection id of up to [`MAX_CID`] bytes with its length.
    pub fn cid(bytes: &[u8]) -> Self {
        let mut padded = [0; 24];
        let len = bytes.len().min(MAX_CID);
        padded[..len].copy_from_slice(&bytes[..len]);
        padded[23] = len as u8;
        let mut words = [0; 3];
        for (word, bytes) in words.iter_mut().zip(padded.as_chunks::<8>().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        Self(words)
    }
}

/// Where a field is in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First word.
    pub word: u8,
    /// Bits to the right of it in that word. Fields of more than one word begin at 0.
    pub shift: u8,
    /// Width in bits; more than 64 is a field of two words, more than 128 of three.
    pub width: u8,
}

impl Place {
    /// How many words the field has.
    pub const fn words(self) -> usize {
        (self.width as usize).div_ceil(64)
    }
}

/// How the values of a field are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A number, printed in decimal.
    Decimal,
    /// A number, printed as `0x...`.
    Hex,
    /// `00:11:22:33:44:55`.
    Mac,
    /// `10.0.0.1`, `10.0.0.0/8`, `10.0.0.0/255.0.0.0`.
    Ipv4,
    /// `2001:db8::1`, `2001:db8::/32`, `::1/::ffff`.
    Ipv6,
    /// `+syn-ack`, or a number.
    TcpFlags,
    /// `no`, `yes`, `first`, `later`, `not_later`.
    Fragment,
    /// The id of a VLAN: matches only frames with a tag; 0xffff is "no tag".
    VlanId,
    /// The priority of a VLAN tag: matches only frames with a tag.
    VlanPriority,
    /// The byte of RFC 791 whose lower two bits are not part of the field: 0, 4, ... 252.
    Tos,
    /// A connection id: `0x8394c8f0` is those bytes and that length; with a mask the length does not count. The first 20
    /// bytes of three big-endian words are the id, the last one is its length.
    Cid,
}

/// Which masks a field may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masks {
    /// None: all of it counts.
    Exact,
    /// Any bits.
    Any,
}

/// What is known about a field.
#[derive(Debug)]
pub struct Row {
    /// Its names; the first is printed.
    pub names: &'static [&'static str],
    /// What it is, for help.
    pub about: &'static str,
    /// Where it is.
    pub place: Place,
    /// How it is written.
    pub format: Format,
    /// Its masks.
    pub masks: Masks,
    /// What it needs.
    pub needs: Needs,
    /// Whether `set_field` may write it.
    pub settable: bool,
}

macro_rules! fields {
    ($($id:ident [$($name:literal),+] $about:literal,
        $word:literal >> $shift:literal : $width:literal, $format:ident, $masks:ident, $needs:ident, $set:literal;)*) => {
        /// A field of a key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Field { $(#[doc = $about] $id),* }

        impl Field {
            /// All fields, in the order in which they are printed.
            pub const ALL: &'static [Field] = &[$(Field::$id),*];
        }

        static ROWS: &[Row] = &[$(Row {
            names: &[$($name),+],
            about: $about,
            place: Place { word: $word, shift: $shift, width: $width },
            format: Format::$format,
            masks: Masks::$masks,
            needs: Needs::$needs,
            settable: $set,
        }),*];
    };
}

// Fields that exclude each other share their place: IPv4, IPv6 and ARP addresses, ports and ICMP types, connection ids
// and what ARP and neighbour discovery carry, MPLS and the IPv6 flow label. The EtherType, which `needs` puts into every
// rule that has one of them, tells them apart. Views of a place (`dl_vlan` of `vlan_tci`, `nw_tos` of `ip_dscp`) come
// in the order in which the printer should try them.
fields! {
    InPort ["in_port"] "Port at which the frame came in", 0 >> 32 : 32, Decimal, Exact, None, false;
    InQueue ["in_queue"] "Port queue at which the frame came in", 0 >> 16 : 16, Decimal, Exact, None, false;
    DlType ["dl_type", "eth_type"] "EtherType after VLAN tags; 0x05ff is a frame with a length instead", 0 >> 0 : 16, Hex, Exact, None, false;
    NwProto ["nw_proto", "ip_proto"] "Protocol of IP, after IPv6 extension headers", 7 >> 56 : 8, Decimal, Exact, Ip, false;
    DlSrc ["dl_src", "eth_src"] "Source MAC address", 2 >> 16 : 48, Mac, Any, None, true;
    DlDst ["dl_dst", "eth_dst"] "Destination MAC address", 1 >> 16 : 48, Mac, Any, None, true;
    DlVlan ["dl_vlan", "vlan_vid"] "Id of the outer VLAN tag", 1 >> 0 : 12, VlanId, Exact, None, true;
    DlVlanPcp ["dl_vlan_pcp", "vlan_pcp"] "Priority of the outer VLAN tag", 1 >> 13 : 3, VlanPriority, Exact, None, true;
    VlanTci ["vlan_tci"] "Outer VLAN tag; bit 12 says that there is one", 1 >> 0 : 16, Hex, Any, None, true;
    InnerVlan ["inner_vlan"] "Id of the second VLAN tag", 2 >> 0 : 12, VlanId, Exact, None, true;
    InnerVlanPcp ["inner_vlan_pcp"] "Priority of the second VLAN tag", 2 >> 13 : 3, VlanPriority, Exact, None, true;
    InnerVlanTci ["inner_vlan_tci"] "Second VLAN tag; bit 12 says that there is one", 2 >> 0 : 16, Hex, Any, None, true;
    PppoeSid ["pppoe_sid"] "Session of PPPoE (RFC 2516 section 4)", 8 >> 0 : 16, Decimal, Exact, Pppoe, true;
    MplsLabel ["mpls_label"] "Outermost MPLS label (RFC 3032 section 2.1)", 8 >> 44 : 20, Decimal, Exact, Mpls, true;
    MplsTc ["mpls_tc"] "Traffic class of the outermost MPLS label", 8 >> 41 : 3, Decimal, Exact, Mpls, true;
    MplsBos ["mpls_bos"] "Whether the outermost MPLS label is the last", 8 >> 40 : 1, Decimal, Exact, Mpls, false;
    MplsTtl ["mpls_ttl"] "Time to live of the outermost MPLS label", 8 >> 32 : 8, Decimal, Exact, Mpls, true;
    ArpOp ["arp_op"] "Operation of ARP (RFC 826)", 7 >> 48 : 16, Decimal, Exact, Arp, true;
    ArpSpa ["arp_spa"] "Sender IPv4 address of ARP", 3 >> 32 : 32, Ipv4, Any, Arp, true;
    ArpTpa ["arp_tpa"] "Target IPv4 address of ARP", 3 >> 0 : 32, Ipv4, Any, Arp, true;
    ArpSha ["arp_sha"] "Sender MAC address of ARP", 10 >> 0 : 48, Mac, Any, Arp, true;
    ArpTha ["arp_tha"] "Target MAC address of ARP", 11 >> 0 : 48, Mac, Any, Arp, true;
    NwSrc ["nw_src", "ip_src"] "Source IPv4 address", 3 >> 32 : 32, Ipv4, Any, Ipv4, true;
    NwDst ["nw_dst", "ip_dst"] "Destination IPv4 address", 3 >> 0 : 32, Ipv4, Any, Ipv4, true;
    Ipv6Src ["ipv6_src"] "Source IPv6 address", 3 >> 0 : 128, Ipv6, Any, Ipv6, true;
    Ipv6Dst ["ipv6_dst"] "Destination IPv6 address", 5 >> 0 : 128, Ipv6, Any, Ipv6, true;
    Ipv6Label ["ipv6_label"] "Flow label of IPv6", 8 >> 44 : 20, Hex, Any, Ipv6, true;
    NwTos ["nw_tos"] "DSCP in the place that it has in the byte", 7 >> 42 : 6, Tos, Exact, Ip, true;
    IpDscp ["ip_dscp"] "DSCP (RFC 2474)", 7 >> 42 : 6, Decimal, Exact, Ip, true;
    NwEcn ["nw_ecn", "ip_ecn"] "Explicit congestion notification (RFC 3168)", 7 >> 40 : 2, Decimal, Exact, Ip, true;
    NwTtl ["nw_ttl"] "Time to live, or hop limit", 7 >> 48 : 8, Decimal, Exact, Ip, true;
    IpFrag ["ip_frag", "nw_frag"] "Whether the packet is a fragment, and which", 7 >> 32 : 2, Fragment, Any, Ip, false;
    TcpFlags ["tcp_flags"] "Flags of TCP (RFC 9293 section 3.1)", 8 >> 16 : 12, TcpFlags, Any, Tcp, false;
    IcmpType ["icmp_type", "icmpv6_type"] "Type of ICMP or ICMPv6", 7 >> 16 : 8, Decimal, Exact, Icmp, true;
    IcmpCode ["icmp_code", "icmpv6_code"] "Code of ICMP or ICMPv6", 7 >> 0 : 8, Decimal, Exact, Icmp, true;
    NdTarget ["nd_target"] "Target of neighbour discovery (RFC 4861)", 10 >> 0 : 128, Ipv6, Any, Nd, true;
    TcpSrc ["tcp_src"] "Source port of TCP", 7 >> 16 : 16, Decimal, Any, Tcp, true;
    TcpDst ["tcp_dst"] "Destination port of TCP", 7 >> 0 : 16, Decimal, Any, Tcp, true;
    UdpSrc ["udp_src"] "Source port of UDP", 7 >> 16 : 16, Decimal, Any, Udp, true;
    UdpDst ["udp_dst"] "Destination port of UDP", 7 >> 0 : 16, Decimal, Any, Udp, true;
    TpSrc ["tp_src", "sctp_src"] "Source port of TCP, UDP or SCTP", 7 >> 16 : 16, Decimal, Any, Ports, true;
    TpDst ["tp_dst", "sctp_dst"] "Destination port of TCP, UDP or SCTP", 7 >> 0 : 16, Decimal, Any, Ports, true;
    QuicCid ["quic_cid"] "Destination connection id of QUIC (RFC 8999 section 5)", 10 >> 0 : 192, Cid, Any, Udp, false;
    QuicCidLen ["quic_cid_len"] "Length of the destination connection id; 0 while it is not known", 12 >> 0 : 8, Decimal, Exact, Udp, false;
    TunId ["tun_id", "tunnel_id"] "VNI of the VXLAN header that was taken off, or else of the VXLAN or GENEVE header that comes next; GRE key", 9 >> 0 : 32, Hex, Any, None, true;
    TunSrc ["tun_src"] "IPv4 address from which the VXLAN header came that was taken off", 9 >> 32 : 32, Ipv4, Any, None, false;
    Metadata ["metadata"] "64 bits from table to table", 15 >> 0 : 64, Hex, Any, None, true;
    Reg0 ["reg0"] "Register 0, from table to table", 13 >> 32 : 32, Hex, Any, None, true;
    Reg1 ["reg1"] "Register 1, from table to table", 13 >> 0 : 32, Hex, Any, None, true;
    Reg2 ["reg2"] "Register 2, from table to table", 14 >> 32 : 32, Hex, Any, None, true;
    Reg3 ["reg3"] "Register 3, from table to table", 14 >> 0 : 32, Hex, Any, None, true;
}

impl Field {
    /// What is known about it.
    #[inline(always)]
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The name that is printed.
    pub fn name(self) -> &'static str {
        self.row().names[0]
    }

    /// The field of that name, in lower case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|field| field.row().names.contains(&name))
    }

    /// All bits that a value can have.
    #[inline(always)]
    pub fn full(self) -> Wide {
        let width = self.row().place.width;
        match width {
            0..64 => Wide::new((1 << width) - 1),
            64 => Wide::new(u64::MAX),
            128 => Wide::from_u128(u128::MAX),
            // Bytes 20 to 22 of a connection id are not used.
            _ => Wide([u64::MAX, u64::MAX, 0xffff_ffff_0000_00ff]),
        }
    }

    /// The bit that goes with a value of this view of a VLAN tag and says that there is a tag.
    pub fn presence(self) -> bool {
        matches!(self.row().format, Format::VlanId | Format::VlanPriority)
    }
}
