//! What IPCP agrees on: addresses (RFC 1332), and servers of the domain name system (RFC 1877).

use crate::control::{Answer, Item, Verdict, protocol, put};
use crate::layer::Agreement;
use std::net::Ipv4Addr;

const ADDRESS: u8 = 3;
const DNS: [u8; 2] = [129, 131];

/// See above.
#[derive(Debug, Default)]
pub(crate) struct Ipcp {
    own: Option<Ipv4Addr>,
    asks_address: bool,
    peer: Option<Ipv4Addr>,
    dns: [Option<Ipv4Addr>; 2],
    asks_dns: [bool; 2],
}

impl Ipcp {
    /// The address that we have.
    pub fn own(&self) -> Option<Ipv4Addr> {
        self.own.filter(|_| self.asks_address)
    }

    /// That of the other side.
    pub fn peer(&self) -> Option<Ipv4Addr> {
        self.peer
    }

    /// Servers, the first one first, each once.
    pub fn dns(&self) -> Vec<Ipv4Addr> {
        let mut servers: Vec<_> = self
            .dns
            .into_iter()
            .zip(self.asks_dns)
            .filter(|(_, asked)| *asked)
            .filter_map(|(server, _)| server)
            .collect();
        servers.dedup();
        servers
    }
}

/// An address that a host can have.
fn host(value: &[u8]) -> Option<Ipv4Addr> {
    let address = Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?);
    let other =
        address.octets()[0] == 0 || address.is_loopback() || address.is_multicast() || address.octets()[0] >= 240;
    (!other).then_some(address)
}

impl Agreement for Ipcp {
    const PROTOCOL: u16 = protocol::IPCP;

    fn begin(&mut self) {
        *self = Self { asks_address: true, asks_dns: [true; 2], ..Self::default() };
    }

    fn request(&self, options: &mut Vec<u8>) {
        let mut ask = |kind, address: Option<Ipv4Addr>| {
            put(options, kind, &address.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
        };
        if self.asks_address {
            ask(ADDRESS, self.own);
        }
        for (number, kind) in DNS.into_iter().enumerate() {
            if self.asks_dns[number] {
                ask(kind, self.dns[number]);
            }
        }
    }

    fn judge(&mut self, options: &[Item<'_>], insist: bool) -> Verdict {
        let (mut answer, mut peer) = (Answer::default(), None);
        for option in options {
            match (option.kind, host(option.value)) {
                // We have no other one for it.
                (ADDRESS, Some(address)) if self.own != Some(address) => peer = Some(address),
                _ => answer.reject(option),
            }
        }
        let verdict = answer.verdict(insist);
        if verdict == Verdict::Ack {
            self.peer = peer;
        }
        verdict
    }

    fn suggested(&mut self, option: &Item<'_>) {
        let address = host(option.value);
        match option.kind {
            ADDRESS => self.own = address.or(self.own),
            kind => {
                let number = DNS.into_iter().position(|own| own == kind);
                if let Some(number) = number {
                    self.dns[number] = address;
                    // Who has none says so by 0.0.0.0, and would go on.
                    self.asks_dns[number] = address.is_some();
                }
            }
        }
    }

    fn rejected(&mut self, kind: u8) {
        if kind == ADDRESS {
            self.asks_address = false;
        }
        if let Some(number) = DNS.into_iter().position(|own| own == kind) {
            self.asks_dns[number] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Options;

    fn suggest(ipcp: &mut Ipcp, kind: u8, address: [u8; 4]) {
        let option = [&[kind, 6][..], &address].concat();
        ipcp.suggested(&Options(&option).next().unwrap().unwrap());
    }

    fn asked(ipcp: &Ipcp) -> Vec<u8> {
        let mut options = Vec::new();
        ipcp.request(&mut options);
        options
    }

    #[test]
    fn addresses_are_taken_as_they_are_given() {
        let mut ipcp = Ipcp::default();
        ipcp.begin();
        assert_eq!(asked(&ipcp), [3, 6, 0, 0, 0, 0, 129, 6, 0, 0, 0, 0, 131, 6, 0, 0, 0, 0]);
        suggest(&mut ipcp, 3, [192, 0, 2, 7]);
        suggest(&mut ipcp, 129, [192, 0, 2, 53]);
        suggest(&mut ipcp, 131, [0, 0, 0, 0]);
        assert_eq!(asked(&ipcp), [3, 6, 192, 0, 2, 7, 129, 6, 192, 0, 2, 53]);
        assert_eq!((ipcp.own(), ipcp.dns()), (Some([192, 0, 2, 7].into()), vec![[192, 0, 2, 53].into()]));
        // What no host can have.
        for nonsense in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]] {
            suggest(&mut ipcp, 3, nonsense);
            assert_eq!(ipcp.own(), Some([192, 0, 2, 7].into()));
        }
        ipcp.rejected(129);
        assert!(ipcp.dns().is_empty());
        ipcp.rejected(3);
        assert_eq!((ipcp.own(), asked(&ipcp)), (None, vec![]));
    }

    #[test]
    fn the_other_side_has_an_address_and_nothing_else() {
        let mut ipcp = Ipcp::default();
        ipcp.begin();
        let mut judged = |bytes: &[u8]| {
            let options: Vec<_> = Options(bytes).map(Result::unwrap).collect();
            let verdict = ipcp.judge(&options, false);
            (verdict, ipcp.peer())
        };
        let peer = Some([192, 0, 2, 1].into());
        assert_eq!(judged(&[3, 6, 192, 0, 2, 1]), (Verdict::Ack, peer));
        // Compression of headers.
        let compressed = [2, 6, 0, 0x2d, 15, 1];
        assert_eq!(judged(&compressed), (Verdict::Reject(compressed.to_vec()), peer));
        assert_eq!(judged(&[3, 6, 0, 0, 0, 0]).0, Verdict::Reject(vec![3, 6, 0, 0, 0, 0]));
        assert_eq!(judged(&[]), (Verdict::Ack, None));
    }
}
