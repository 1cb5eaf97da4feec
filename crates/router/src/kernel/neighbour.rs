//! Neighbours: which Ethernet address an IP address has, and the forwarding database of bridges (`man 7 rtnetlink`).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::wire;

const HEADER: usize = 12;
const AF_BRIDGE: u8 = 7;
const ADDRESS: u16 = 1;
const LINK_ADDRESS: u16 = 2;
const VLAN: u16 = 5;
const MASTER: u16 = 9;

/// A neighbour, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// On which interface.
    pub interface: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its Ethernet address; `None` while it is not known.
    pub mac: Option<[u8; 6]>,
    /// `NUD_*`.
    pub state: u16,
}

/// States in which the kernel sends to the address that it has.
const VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x80;

/// State of those whose Ethernet address follows from their own, such as multicast.
const NO_ARP: u16 = 0x40;

impl Neighbour {
    /// The interface of a neighbour that needs no question, if the body of `RTM_NEWNEIGH` or `RTM_DELNEIGH` is about one. Of those that Linux makes
    /// itself come no events; so somebody has set it by hand.
    pub fn without_question(body: &[u8]) -> Option<u32> {
        let is_one = *body.first()? != AF_BRIDGE && wire::u16_at(body, 8)? & NO_ARP != 0;
        is_one.then(|| wire::u32_at(body, 4))?
    }

    /// Reads the body of `RTM_NEWNEIGH` or `RTM_DELNEIGH`; `None` for entries of bridges, and for those that need no question.
    pub fn read(body: &[u8]) -> Option<Self> {
        (*body.first()? != AF_BRIDGE).then_some(())?;
        let (interface, state) = (wire::u32_at(body, 4)?, wire::u16_at(body, 8)?);
        (state & NO_ARP == 0).then_some(())?;
        let all = wire::attributes(body, HEADER);
        let address = all.clone().find(ADDRESS).and_then(wire::address_of)?;
        let mac = all.clone().find(LINK_ADDRESS).and_then(wire::mac_of).filter(|_| state & VALID != 0);
        Some(Self { interface, address, mac, state })
    }
}

/// An entry of a bridge's forwarding database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Station {
    /// Of which bridge.
    pub bridge: u32,
    /// In which VLAN; 0 where the bridge looks at none.
    pub vlan: u16,
    /// Whose address.
    pub mac: [u8; 6],
    /// At which port; the bridge itself for what is local.
    pub port: u32,
    /// The address of the bridge or of a port itself: frames to it go up.
    pub is_local: bool,
}

impl Station {
    /// By what a bridge looks for it: itself, VLAN, address.
    pub fn key(&self) -> (u32, u16, [u8; 6]) {
        (self.bridge, self.vlan, self.mac)
    }

    /// Reads the body of `RTM_NEWNEIGH` or `RTM_DELNEIGH`; `None` for what is no entry of a bridge.
    pub fn read(body: &[u8]) -> Option<Self> {
        const PERMANENT: u16 = 0x80;
        const OF_DEVICE: u8 = 1 << 1;
        (*body.first()? == AF_BRIDGE).then_some(())?;
        let (port, state, flags) = (wire::u32_at(body, 4)?, wire::u16_at(body, 8)?, *body.get(10)?);
        let all = wire::attributes(body, HEADER);
        let mac = all.clone().find(LINK_ADDRESS).and_then(wire::mac_of)?;
        let vlan = all.clone().find(VLAN).and_then(wire::u16_of).unwrap_or_default();
        // Filters of cards and tables of VXLAN come by the same message; they have no bridge, or are of the device.
        let bridge = all.clone().find(MASTER).and_then(wire::u32_of)?;
        (flags & OF_DEVICE == 0 || bridge == port).then_some(())?;
        let is_local = state & PERMANENT != 0;
        // To what is local it does not matter which port it is the address of, and the kernel tells only half of that.
        let port = if is_local { bridge } else { port };
        Some(Self { bridge, vlan, mac, port, is_local })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::wire::Request;

    fn body(family: u8, state: u16, flags: u8, fill: impl FnOnce(Request) -> Request) -> Vec<u8> {
        let mut header = [0; 12];
        header[0] = family;
        header[4..8].copy_from_slice(&5_u32.to_ne_bytes());
        header[8..10].copy_from_slice(&state.to_ne_bytes());
        header[10] = flags;
        fill(Request::new(28, 0, &header)).numbered(0)[16..].to_owned()
    }

    #[test]
    fn an_address_that_is_only_asked_for_is_none() {
        let of = |state| {
            let body = body(2, state, 0, |request| request.with(1, &[10, 0, 0, 9]).with(2, &[2, 0, 0, 0, 0, 9]));
            Neighbour::read(&body).unwrap()
        };
        let (reachable, stale, failed) = (of(2), of(4), of(0x20));
        let mac = Some([2, 0, 0, 0, 0, 9]);
        assert_eq!((reachable.mac, stale.mac, failed.mac), (mac, mac, None));
        assert_eq!(Station::read(&body(2, 2, 0, |request| request.with(2, &[0; 6]))), None);
    }

    #[test]
    fn entries_of_bridges_are_told_from_filters_of_cards() {
        let of = |flags, master: Option<u32>| {
            let body = body(AF_BRIDGE, 0x80, flags, |request| {
                let request = request.with(2, &[2, 0, 0, 0, 0, 1]).with(5, &7_u16.to_ne_bytes());
                master.map_or(request.clone(), |master| request.with(9, &master.to_ne_bytes()))
            });
            assert_eq!(Neighbour::read(&body), None);
            Station::read(&body)
        };
        let wanted = Station { bridge: 4, vlan: 7, mac: [2, 0, 0, 0, 0, 1], port: 4, is_local: true };
        assert_eq!(of(4, Some(4)), Some(wanted));
        assert_eq!((of(2, None), of(2, Some(4))), (None, None));
    }
}
