//! ARP (RFC 826).

use super::bytes::{array, be16};
use super::{MacAddress, Malformed, ether_type};
use std::net::Ipv4Addr;

/// An ARP packet: 8 bytes, then two pairs of addresses whose lengths it says.
#[derive(Clone, Copy, Debug)]
pub struct Arp<'a> {
    fixed: &'a [u8; 8],
    /// Sender's hardware and protocol address, then the target's.
    addresses: &'a [u8],
}

impl<'a> Arp<'a> {
    /// Operation of a request.
    pub const REQUEST: u16 = 1;
    /// Operation of a reply.
    pub const REPLY: u16 = 2;

    /// The packet at the start of `bytes`; what lies behind it is ignored.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, rest) = bytes.split_first_chunk::<8>().ok_or(Malformed::Truncated)?;
        let len = 2 * (usize::from(fixed[4]) + usize::from(fixed[5]));
        let addresses = rest.get(..len).ok_or(Malformed::Truncated)?;
        Ok(Self { fixed, addresses })
    }

    /// Kind of hardware; 1 is Ethernet.
    #[inline]
    pub fn hardware(&self) -> u16 {
        be16(self.fixed, 0)
    }

    /// Kind of protocol address, an EtherType.
    #[inline]
    pub fn protocol(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// What it is: [`Arp::REQUEST`], [`Arp::REPLY`] or another.
    #[inline]
    pub fn operation(&self) -> u16 {
        be16(self.fixed, 6)
    }

    /// Bytes of a hardware address.
    #[inline]
    pub fn hardware_len(&self) -> usize {
        usize::from(self.fixed[4])
    }

    /// Bytes of a protocol address.
    #[inline]
    pub fn protocol_len(&self) -> usize {
        usize::from(self.fixed[5])
    }

    /// Hardware and protocol address of the sender.
    #[inline]
    pub fn sender(&self) -> (&'a [u8], &'a [u8]) {
        self.pair(0)
    }

    /// Hardware and protocol address of the target.
    #[inline]
    pub fn target(&self) -> (&'a [u8], &'a [u8]) {
        self.pair(1)
    }

    #[inline]
    fn pair(&self, number: usize) -> (&'a [u8], &'a [u8]) {
        let (hardware, protocol) = (self.hardware_len(), self.protocol_len());
        let from = number * (hardware + protocol);
        self.addresses[from..from + hardware + protocol].split_at(hardware)
    }

    /// Addresses of sender and target where they are those of Ethernet and IPv4.
    #[inline]
    pub fn ethernet_ipv4(&self) -> Option<[(MacAddress, Ipv4Addr); 2]> {
        if self.fixed[..6] != [0, 1, (ether_type::IPV4 >> 8) as u8, ether_type::IPV4 as u8, 6, 4] {
            return None;
        }
        let bytes: &[u8; 20] = self.addresses.first_chunk()?;
        let pair = |at| (MacAddress(array(bytes, at)), Ipv4Addr::from(array::<20, 4>(bytes, at + 6)));
        Some([pair(0), pair(10)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_ethernet_and_ipv4() {
        let mut bytes = [0; 28];
        bytes[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
        for (at, byte) in bytes[8..].iter_mut().enumerate() {
            *byte = at as u8;
        }
        let arp = Arp::parse(&bytes).unwrap();
        assert_eq!((arp.hardware(), arp.protocol(), arp.operation()), (1, 0x0800, Arp::REQUEST));
        assert_eq!(arp.sender(), (&[0, 1, 2, 3, 4, 5][..], &[6, 7, 8, 9][..]));
        assert_eq!(arp.target(), (&[10, 11, 12, 13, 14, 15][..], &[16, 17, 18, 19][..]));
        let [sender, target] = arp.ethernet_ipv4().unwrap();
        assert_eq!(sender, (MacAddress([0, 1, 2, 3, 4, 5]), Ipv4Addr::new(6, 7, 8, 9)));
        assert_eq!(target, (MacAddress([10, 11, 12, 13, 14, 15]), Ipv4Addr::new(16, 17, 18, 19)));
        assert_eq!(Arp::parse(&bytes[..27]).unwrap_err(), Malformed::Truncated);
        assert_eq!(Arp::parse(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn addresses_of_other_lengths() {
        let bytes = [0, 7, 0x12, 0x34, 1, 2, 0, 2, 0xa, 0xb, 0xc, 0xd, 0xe, 0xf];
        let arp = Arp::parse(&bytes).unwrap();
        assert_eq!((arp.hardware_len(), arp.protocol_len(), arp.operation()), (1, 2, Arp::REPLY));
        assert_eq!((arp.sender(), arp.target()), ((&[0xa][..], &[0xb, 0xc][..]), (&[0xd][..], &[0xe, 0xf][..])));
        assert_eq!(arp.ethernet_ipv4(), None);
    }
}
