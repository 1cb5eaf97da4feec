//! IPv6 and its extension headers (RFC 8200).

use super::bytes::{array, be16, be32};
use super::{Ah, Fragment, Ipv6Options, Malformed, protocol};
use std::net::Ipv6Addr;

/// Most extension headers that are looked at in one packet. RFC 8200 §4.1 knows of seven.
pub const MOST_EXTENSIONS: usize = 8;

/// An IPv6 packet: a header of 40 bytes and what it carries, extension headers included.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    fixed: &'a [u8; Ipv6::LEN],
    payload: &'a [u8],
}

impl<'a> Ipv6<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 40;

    /// The packet at the start of `bytes`; what lies behind its payload length is ignored. The length of a jumbogram
    /// (RFC 2675) is 0, and so is the payload that is seen of it.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::Version`]; [`Malformed::Length`]: the payload is longer than `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, rest) = bytes.split_first_chunk::<{ Ipv6::LEN }>().ok_or(Malformed::Truncated)?;
        if fixed[0] >> 4 != 6 {
            return Err(Malformed::Version);
        }
        let payload = rest.get(..usize::from(be16(fixed, 4))).ok_or(Malformed::Length)?;
        Ok(Self { fixed, payload })
    }

    /// Differentiated services code point (RFC 2474 §3).
    #[inline]
    pub fn dscp(&self) -> u8 {
        (be16(self.fixed, 0) >> 6 & 0x3f) as u8
    }

    /// Explicit congestion notification (RFC 3168 §5).
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.fixed[1] >> 4 & 3
    }

    /// Flow label, 20 bits (RFC 6437).
    #[inline]
    pub fn flow_label(&self) -> u32 {
        be32(self.fixed, 0) & 0xf_ffff
    }

    /// Bytes behind the header.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        be16(self.fixed, 4)
    }

    /// What the payload begins with ([`super::protocol`]).
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.fixed[6]
    }

    /// Hops that are left.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.fixed[7]
    }

    /// Where the packet comes from.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<40, 16>(self.fixed, 8))
    }

    /// Where it goes.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<40, 16>(self.fixed, 24))
    }

    /// The extension headers, one after the other.
    #[inline]
    pub fn extensions(&self) -> Extensions<'a> {
        Extensions {
            next: self.next_header(),
            rest: self.payload,
            left: MOST_EXTENSIONS as u8,
            fragment: Fragment::None,
            ended: false,
        }
    }

    /// What the packet carries, extension headers included, up to its payload length.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Goes through extension headers: hop-by-hop and destination options, routing, fragment, authentication. Ends at the
/// first header of another kind, behind the fragment header of a later fragment, and at the first that is malformed
/// ([`Malformed::TooMany`]: there are more than [`MOST_EXTENSIONS`]). In whatever order they come.
#[derive(Clone, Copy, Debug)]
pub struct Extensions<'a> {
    next: u8,
    rest: &'a [u8],
    left: u8,
    fragment: Fragment,
    ended: bool,
}

impl<'a> Extensions<'a> {
    /// What comes next; at the end, the protocol of [`rest`](Self::rest).
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.next
    }

    /// What is behind the headers seen so far.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// What the fragment headers seen so far say. A packet with a fragment header that is not cut (RFC 6946) is whole.
    #[inline]
    pub fn fragment(&self) -> Fragment {
        self.fragment
    }

    #[inline]
    fn step(&mut self) -> Result<Extension<'a>, Malformed> {
        self.left = self.left.checked_sub(1).ok_or(Malformed::TooMany)?;
        let [next, len] = *self.rest.first_chunk().ok_or(Malformed::Truncated)?;
        let len = match self.next {
            protocol::FRAGMENT => FragmentHeader::LEN,
            protocol::AH => Ah::header_len_of(len)?,
            _ => (usize::from(len) + 1) * 8,
        };
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Malformed::Truncated)?;
        let extension = Extension { kind: self.next, bytes };
        (self.next, self.rest) = (next, rest);
        if let Some(header) = extension.fragment() {
            self.fragment = self.fragment.max(header.fragment());
        }
        Ok(extension)
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        use protocol::{AH, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};
        let is_extension = matches!(self.next, HOP_BY_HOP | ROUTING | FRAGMENT | AH | DESTINATION_OPTIONS);
        if !is_extension || self.ended || self.fragment == Fragment::Later {
            return None;
        }
        let step = self.step();
        self.ended = step.is_err();
        Some(step)
    }
}

/// One extension header.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    kind: u8,
    bytes: &'a [u8],
}

impl<'a> Extension<'a> {
    /// Which header it is ([`super::protocol`]).
    #[inline]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// All of it, next header and length included; at least 8 bytes.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The options, if it is a header with options.
    #[inline]
    pub fn options(&self) -> Option<Ipv6Options<'a>> {
        let has = matches!(self.kind, protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS);
        has.then(|| Ipv6Options(self.bytes.get(2..).unwrap_or_default()))
    }

    /// Type of routing and segments left, if it is a routing header (RFC 8200 §4.4).
    #[inline]
    pub fn routing(&self) -> Option<(u8, u8)> {
        match (self.kind, self.bytes) {
            (protocol::ROUTING, [_, _, kind, left, ..]) => Some((*kind, *left)),
            _ => None,
        }
    }

    /// The fields of a fragment header, if it is one.
    #[inline]
    pub fn fragment(&self) -> Option<FragmentHeader<'a>> {
        let fixed = self.bytes.first_chunk()?;
        (self.kind == protocol::FRAGMENT).then_some(FragmentHeader { fixed })
    }

    /// The authentication header, if it is one.
    #[inline]
    pub fn authentication(&self) -> Option<Ah<'a>> {
        if self.kind == protocol::AH { Ah::parse(self.bytes).ok() } else { None }
    }
}

/// A fragment header (RFC 8200 §4.5), 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct FragmentHeader<'a> {
    fixed: &'a [u8; FragmentHeader::LEN],
}

impl FragmentHeader<'_> {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Where the payload belongs in what was cut, in bytes.
    #[inline]
    pub fn offset(&self) -> usize {
        usize::from(be16(self.fixed, 2) & 0xfff8)
    }

    /// Whether more fragments follow.
    #[inline]
    pub fn more(&self) -> bool {
        self.fixed[3] & 1 != 0
    }

    /// What fragments of one packet have in common.
    #[inline]
    pub fn identification(&self) -> u32 {
        be32(self.fixed, 4)
    }

    /// Which part it is.
    #[inline]
    pub fn fragment(&self) -> Fragment {
        match (self.offset(), self.more()) {
            (0, false) => Fragment::None,
            (0, true) => Fragment::First,
            _ => Fragment::Later,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options, routing, fragment and authentication, then two bytes of TCP and one that does not belong to it.
    fn packet() -> Vec<u8> {
        let mut bytes = vec![0x6a, 0xb1, 0x23, 0x45, 0, 42, protocol::HOP_BY_HOP, 64];
        bytes.extend([[1; 16], [2; 16]].concat());
        bytes.extend([protocol::ROUTING, 0, 5, 2, 7, 7, 1, 0]);
        bytes.extend([protocol::FRAGMENT, 0, 4, 3, 0, 0, 0, 0]);
        bytes.extend([protocol::AH, 0, 0, 1, 0x12, 0x34, 0x56, 0x78]);
        bytes.extend([protocol::TCP, 2, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 5, 5, 5, 5]);
        bytes.extend([8, 9, 10]);
        bytes
    }

    #[test]
    fn every_field() {
        let bytes = packet();
        let ipv6 = Ipv6::parse(&bytes).unwrap();
        assert_eq!((ipv6.dscp(), ipv6.ecn(), ipv6.flow_label()), (0x2a, 3, 0x12345));
        assert_eq!((ipv6.payload_len(), ipv6.next_header(), ipv6.hop_limit()), (42, 0, 64));
        assert_eq!((ipv6.source(), ipv6.destination()), (Ipv6Addr::from([1; 16]), Ipv6Addr::from([2; 16])));
        assert_eq!(ipv6.payload(), &bytes[40..82]);
        assert_eq!(Ipv6::parse(&bytes[..81]).unwrap_err(), Malformed::Length);
        assert_eq!(Ipv6::parse(&bytes[..39]).unwrap_err(), Malformed::Truncated);
        assert_eq!(Ipv6::parse(&[0x40; 40]).unwrap_err(), Malformed::Version);
    }

    #[test]
    fn every_extension_header() {
        let bytes = packet();
        let mut extensions = Ipv6::parse(&bytes).unwrap().extensions();
        let [options, routing, fragment, ah] = std::array::from_fn(|_| extensions.next().unwrap().unwrap());
        assert!(extensions.next().is_none());
        assert_eq!((extensions.next_header(), extensions.rest()), (protocol::TCP, &[8, 9][..]));
        assert_eq!(extensions.fragment(), Fragment::First);
        let options: Vec<_> = options.options().unwrap().map(|option| option.unwrap().kind).collect();
        assert_eq!(options, [5, 1]);
        assert_eq!((routing.routing(), routing.options().is_none(), routing.bytes().len()), (Some((4, 3)), true, 8));
        let header = fragment.fragment().unwrap();
        assert_eq!((header.offset(), header.more(), header.identification()), (0, true, 0x1234_5678));
        assert_eq!((ah.authentication().unwrap().spi(), ah.bytes().len()), (9, 16));
        assert!(ah.fragment().is_none() && fragment.authentication().is_none() && fragment.routing().is_none());
    }

    #[test]
    fn an_authentication_header_that_is_too_short() {
        let mut bytes = packet();
        bytes[65] = 0;
        let extensions: Vec<_> = Ipv6::parse(&bytes).unwrap().extensions().collect();
        assert_eq!(extensions.len(), 4);
        assert_eq!(extensions[3].as_ref().unwrap_err(), &Malformed::HeaderLength);
    }
}
