//! PPPoE sessions (RFC 2516 section 4): pushed before an IP packet, and taken away.

use super::{Frame, Stop};
use millrace_packet::parse::{Layers, ether_type, ppp};

/// Version and type (RFC 2516 section 4).
const VERSION: u8 = 0x11;
/// A packet of a session.
const SESSION: u8 = 0;

impl Frame<'_> {
    /// Puts an IP packet into a session. A frame that is no IP packet behind an EtherType of its own stays as it is.
    pub(super) fn push_pppoe(&mut self, session: u16) -> Result<(), Stop> {
        let layers = self.layers();
        let (protocol, len) = match layers.ether_type() {
            ether_type::IPV4 => (ppp::IPV4, layers.ipv4(self.bytes()).map(|header| usize::from(header.total_len()))),
            ether_type::IPV6 => (ppp::IPV6, layers.ipv6(self.bytes()).map(|header| 40 + header.payload().len())),
            _ => return Ok(()),
        };
        let Some(len) = len.filter(|_| has_own_type(&layers)) else { return Ok(()) };
        let len = u16::try_from(len + 2).map_err(|_| Stop::Mtu)?;
        let ([a, b], [c, d], [e, f]) = (session.to_be_bytes(), len.to_be_bytes(), protocol.to_be_bytes());
        self.insert(layers.network(), &[VERSION, SESSION, a, b, c, d, e, f])?;
        self.write(layers.network() - 2, &ether_type::PPPOE.to_be_bytes());
        Ok(())
    }

    /// Takes an IP packet out of a session. A frame without PPPoE stays as it is.
    pub(super) fn pop_pppoe(&mut self) -> Result<(), Stop> {
        let layers = self.layers();
        if layers.ether_type() != ether_type::PPPOE || !has_own_type(&layers) {
            return Ok(());
        }
        let Some(pppoe) = layers.pppoe(self.bytes()) else { return Err(Stop::NotIp) };
        let ether_type = match pppoe.protocol() {
            ppp::IPV4 => ether_type::IPV4,
            ppp::IPV6 => ether_type::IPV6,
            _ => return Err(Stop::NotIp),
        };
        let len = pppoe.header_len();
        self.remove(layers.network(), len)?;
        self.write(layers.network() - 2, &ether_type.to_be_bytes());
        Ok(())
    }
}

/// Whether what comes first is said by an EtherType right behind addresses and tags: behind an IEEE 802.3 length and SNAP,
/// other headers would change the length.
fn has_own_type(layers: &Layers) -> bool {
    layers.network() == layers.start() + 14 + 4 * layers.tags().len()
}
