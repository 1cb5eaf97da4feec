//! Ethernet (IEEE 802.3 §3.1.1), VLAN tags (IEEE 802.1Q, clause 9.6) and LLC with SNAP (RFC 1042).

use super::bytes::{array, be16};
use super::{MacAddress, Malformed};

/// What an EtherType says that comes next (IEEE's registry; RFC 9542 appendix B).
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP (RFC 826).
    pub const ARP: u16 = 0x0806;
    /// An Ethernet frame within a tunnel (RFC 7637 §3.2).
    pub const ETHERNET: u16 = 0x6558;
    /// VLAN tag of a customer (802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// MPLS (RFC 5332 §4 for multicast).
    pub const MPLS: u16 = 0x8847;
    /// MPLS with a label that was assigned upstream.
    pub const MPLS_MULTICAST: u16 = 0x8848;
    /// PPPoE session (RFC 2516 §4).
    pub const PPPOE: u16 = 0x8864;
    /// VLAN tag of a provider (802.1ad).
    pub const PROVIDER: u16 = 0x88a8;
    /// Precision Time Protocol (IEEE 1588 annex E).
    pub const PTP: u16 = 0x88f7;
    /// RDMA over Ethernet, version 1.
    pub const ROCE: u16 = 0x8915;
    /// VLAN tag of a provider from before 802.1ad.
    pub const OLD_PROVIDER: u16 = 0x9100;

    /// The lowest number that is a type; up to 1500 it is a length (IEEE 802.3 §3.2.6).
    pub const LOWEST: u16 = 0x0600;

    /// Whether a VLAN tag follows.
    #[inline]
    pub const fn is_tag(ether_type: u16) -> bool {
        matches!(ether_type, VLAN | PROVIDER | OLD_PROVIDER)
    }
}

/// An Ethernet header: destination, source, EtherType; 14 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<'a> {
    fixed: &'a [u8; Ethernet::LEN],
    payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 14;

    /// The header at the start of a frame.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, payload) = frame.split_first_chunk().ok_or(Malformed::Truncated)?;
        Ok(Self { fixed, payload })
    }

    /// Where the frame goes.
    #[inline]
    pub fn destination(&self) -> MacAddress {
        MacAddress(array(self.fixed, 0))
    }

    /// Where it comes from.
    #[inline]
    pub fn source(&self) -> MacAddress {
        MacAddress(array(self.fixed, 6))
    }

    /// What follows, tags included; below [`ether_type::LOWEST`], how long it is.
    #[inline]
    pub fn ether_type(&self) -> u16 {
        be16(self.fixed, 12)
    }

    /// Everything behind the header, padding included.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Tag control information (IEEE 802.1Q, clause 9.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tci(pub u16);

impl Tci {
    /// Number of the VLAN; 0 is a tag with nothing but a priority.
    #[inline]
    pub const fn id(self) -> u16 {
        self.0 & 0xfff
    }

    /// Priority code point, 0 to 7.
    #[inline]
    pub const fn priority(self) -> u8 {
        (self.0 >> 13) as u8
    }

    /// Whether the frame is the first to be dropped.
    #[inline]
    pub const fn drop_eligible(self) -> bool {
        self.0 & 0x1000 != 0
    }
}

/// One VLAN tag as it stands in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The EtherType that says that it is a tag.
    pub tpid: u16,
    /// The tag.
    pub tci: Tci,
}

/// What follows the EtherType of a tag: control information and the next EtherType; 4 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Vlan<'a> {
    fixed: &'a [u8; Vlan::LEN],
    payload: &'a [u8],
}

impl<'a> Vlan<'a> {
    /// Bytes of a tag.
    pub const LEN: usize = 4;

    /// The tag behind an EtherType for which [`ether_type::is_tag`] holds.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, payload) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        Ok(Self { fixed, payload })
    }

    /// The tag.
    #[inline]
    pub fn tci(&self) -> Tci {
        Tci(be16(self.fixed, 0))
    }

    /// What follows.
    #[inline]
    pub fn ether_type(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// Everything behind the tag.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// LLC and SNAP behind an Ethernet length (RFC 1042): AA AA 03, organisation, type; 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Snap<'a> {
    fixed: &'a [u8; Snap::LEN],
    payload: &'a [u8],
}

impl<'a> Snap<'a> {
    /// Bytes of the headers.
    pub const LEN: usize = 8;

    /// The headers at the start of what a frame of IEEE 802.3 carries.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Field`]: LLC without SNAP.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, payload) = bytes.split_first_chunk::<{ Snap::LEN }>().ok_or(Malformed::Truncated)?;
        if fixed[..3] != [0xaa, 0xaa, 3] {
            return Err(Malformed::Field);
        }
        Ok(Self { fixed, payload })
    }

    /// Whose type it is; 0 is Ethernet's.
    #[inline]
    pub fn organisation(&self) -> [u8; 3] {
        array(self.fixed, 3)
    }

    /// What follows: an EtherType where the organisation is 0.
    #[inline]
    pub fn protocol(&self) -> u16 {
        be16(self.fixed, 6)
    }

    /// Everything behind the headers.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_tagged_frame() {
        let frame = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x88, 0xa8, 0xb1, 0x23, 0x08, 0x00, 0x45];
        let ethernet = Ethernet::parse(&frame).unwrap();
        assert_eq!(ethernet.destination(), MacAddress([1, 2, 3, 4, 5, 6]));
        assert_eq!(ethernet.source(), MacAddress([7, 8, 9, 10, 11, 12]));
        assert!(ether_type::is_tag(ethernet.ether_type()));
        let vlan = Vlan::parse(ethernet.payload()).unwrap();
        let tci = vlan.tci();
        assert_eq!((tci.priority(), tci.drop_eligible(), tci.id()), (5, true, 0x123));
        assert_eq!((vlan.ether_type(), vlan.payload()), (ether_type::IPV4, &[0x45][..]));
        assert_eq!(Ethernet::parse(&frame[..13]).unwrap_err(), Malformed::Truncated);
        assert_eq!(Vlan::parse(&frame[..3]).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn snap_and_what_is_none() {
        let bytes = [0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0, 9];
        let snap = Snap::parse(&bytes).unwrap();
        assert_eq!((snap.organisation(), snap.protocol(), snap.payload()), ([0, 0, 0x0c], 0x2000, &[9][..]));
        assert_eq!(Snap::parse(&[0x42, 0x42, 3, 0, 0, 0, 0, 0]).unwrap_err(), Malformed::Field);
        assert_eq!(Snap::parse(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }
}
