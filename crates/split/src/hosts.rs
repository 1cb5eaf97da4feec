//! Who queue pairs are that programs of guests make themselves, and what leads from them to other hosts: RoCE, as an engine in a card has it
//! ([`millrace_served::network`]). All guests share one address there.

use crate::backend::Backend;
use crate::guest::{errno_of, said};
use crate::port::Port;
use crate::{Address, Error};
use millrace_link::{Link, LinkError, Wanted};
use millrace_rdma::cm::address::ServiceId;
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Gid, Moment, Qpn};
use millrace_rdma::served::ServeError;
use millrace_rdma::transport::{Out, Sent};
use millrace_rdma::wire::{Format, Headers, Path};
use millrace_served::Address as Own;
use millrace_served::network::Network;
use millrace_served::wire::write_mac;
use rustix::io::Errno;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};

/// If nothing else is said: of the network for measurements (RFC 2544), nobody else's.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 19, 255, 253));
/// Between guests of one backend.
const NEAR_MTU: u16 = 4096;
const ETHERNET: usize = 14;

/// Which address guests have for others, and what leads there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostsConfig {
    /// The IP address of all of them; 198.19.255.253 if it is not said.
    pub ip: Option<IpAddr>,
    /// A card and its queues, or a port that the backend works on itself. Without it guests reach each other.
    pub link: Option<Wanted>,
    /// Most bytes of payload in a packet. By default what fits into frames of the card, and 1024 over a port.
    pub mtu: Option<u16>,
}

/// An address for queue pairs of guests, and the way to other hosts.
pub struct Hosts {
    pub(crate) own: Own,
    pub(crate) mtu: u16,
    pub(crate) network: Option<Network>,
}

impl Default for Hosts {
    fn default() -> Self {
        let [a, b, c, d, ..] = RandomState::new().hash_one(std::process::id()).to_ne_bytes();
        Self { own: own(ADDRESS, [0x02, b'B', a, b, c, d]), mtu: NEAR_MTU, network: None }
    }
}

fn own(ip: IpAddr, mac: [u8; 6]) -> Own {
    Own { mac, gids: [Gid::from_ip(ip), Gid::link_local(mac)] }
}

fn failed(error: LinkError) -> Error {
    Error::Port(error.to_string())
}

impl Hosts {
    /// Opens what leads there.
    ///
    /// # Errors
    /// [`Error::Port`]: there is no such card or port, or it cannot carry such packets.
    pub fn open(config: &HostsConfig) -> Result<Self, Error> {
        let link = config.link.as_ref().map(Link::open).transpose().map_err(failed)?;
        let mtu = link.as_ref().map_or(Ok(NEAR_MTU), |link| mtu(config.mtu, link))?;
        let own = config.ip.map_or_else(|| Self::default().own, |ip| own(ip, Gid::mac_of_ip(ip)));
        let network = link.map(|link| Network::new(link, &own));
        Ok(Self { own, mtu, network })
    }

    pub(crate) fn mac(&self) -> Address {
        Address(self.own.mac)
    }

    /// The first of its GIDs: that of the IP address.
    pub(crate) fn gid(&self) -> Gid {
        self.own.gids[0]
    }

    /// What the network has counted; nothing without one.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        self.network.as_ref().map_or_else(Vec::new, Network::counters)
    }
}

fn mtu(wanted: Option<u16>, link: &Link) -> Result<u16, Error> {
    let longest = link.longest();
    let most = Format::RoceV2.path_mtu(longest.saturating_sub(ETHERNET)).map_or(0, |most| most as u16);
    let mtu = wanted.unwrap_or_else(|| link.usual_mtu().unwrap_or(most).min(most));
    if mtu == 0 || mtu > most { Err(failed(LinkError::ShortFrames { longest, mtu })) } else { Ok(mtu) }
}

fn no(errno: Errno) -> i32 {
    errno.raw_os_error()
}

impl Backend {
    /// The guest with that address asks who has a GID.
    pub(crate) fn resolve(&mut self, of: Address, gid: Gid, asks: bool) -> Result<Vec<u64>, i32> {
        if self.hosts.own.gids.contains(&gid) {
            return Ok(found(Some(self.hosts.own.mac)));
        }
        let now = self.now();
        let network = self.hosts.network.as_mut().ok_or(no(Errno::NETUNREACH))?;
        let guest = self.guests.iter_mut().find(|guest| guest.address == of).ok_or(no(Errno::NOTCONN))?;
        network.resolve(now, gid, asks, &mut guest.asked_for).map(found).map_err(|error| error.errno())
    }

    /// Calls of a service are for that guest.
    pub(crate) fn offer(&mut self, of: Address, service: ServiceId) -> Result<Vec<u64>, i32> {
        let now = self.now();
        let number = self.guest_of(of).and_then(|guest| guest.number).ok_or(no(Errno::NOTCONN))?;
        let offered: Result<(), ServeError> = self.service.offer(now, number, service);
        offered.map(|()| Vec::new()).map_err(|error| errno_of(&self.service, number, error))
    }

    /// A queue pair of a guest is about to be destroyed: what it has acknowledged last is said again.
    pub(crate) fn say_farewell(&mut self, of: Address, qpn: Qpn) {
        let now = self.now();
        if let Some(number) = self.guest_of(of).and_then(|guest| guest.number) {
            let mut outside = Outside(self.port.as_mut(), self.hosts.network.as_mut());
            self.service.say_farewell(now, number, qpn, &mut outside);
        }
    }

    /// Questions about neighbours go, and all that was given may leave. What has ended of it is said.
    pub(crate) fn send_to_hosts(&mut self, now: Moment) {
        let Some(network) = &mut self.hosts.network else { return };
        network.send(now);
        if let Some((gid, mac)) = network.take_conflict() {
            let ip = std::net::Ipv6Addr::from(gid.0).to_canonical();
            let mac = Address(mac);
            self.notices.warn(|| {
                format!("{mac} on the wire has the address {ip} of these guests, too: choose another one (--rdma-ip)")
            });
        }
        if let Some(error) = network.take_end() {
            let line = format!("guests reach other hosts by RoCE no more: {error}");
            self.notices.warn(|| line);
            self.service.lose_network(now);
        }
    }
}

fn found(mac: Option<[u8; 6]>) -> Vec<u64> {
    said(&write_mac(mac))
}

/// The ways out of a backend, as far as it has them; otherwise what goes to other hosts ends when its retries are over.
pub(crate) struct Outside<'p>(pub Option<&'p mut Port>, pub Option<&'p mut Network>);

impl Out for Outside<'_> {
    fn packet<F>(&mut self, path: &Path, source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        match (path.format, &mut self.0, &mut self.1) {
            // Only the backend makes queue pairs with the address of a guest: what says that it has another one leads nowhere.
            (Format::Slurpoe, Some(port), _) if port.has(Address(path.source_mac)) => {
                let sent = port.frame(path, source, headers, len, fill);
                port.counts.sent_bytes += if sent == Sent::Taken { len as u64 } else { 0 };
                sent
            }
            (Format::RoceV1 | Format::RoceV2, _, Some(network)) => network.packet(path, source, headers, len, fill),
            _ => Sent::Taken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{PortConfig, path};
    use millrace_rdma::number::Psn;
    use millrace_rdma::wire::{Opcode, Place, Service};

    /// A guest may give its queue pairs the address of the backend in any format.
    #[test]
    fn nobody_is_on_the_wire_of_slurpoe_but_guests() {
        let link = Wanted { port: Some("null".to_owned()), ..Wanted::default() };
        let mut port = Port::open(&PortConfig { link, ..PortConfig::default() }).unwrap();
        let (guest, other, hosts) = (Address([2, 77, 0, 0, 0, 1]), Address([2, 77, 0, 0, 0, 9]), Hosts::default());
        port.add(guest);
        let opcode = Opcode::Send { place: Place::Only, immediate: false, invalidate: false };
        let headers = Headers::new(Service::ReliableConnection, opcode, Qpn::new(17), Psn::new(0));
        let mut send = |from| {
            let mut outside = Outside(Some(&mut port), None);
            outside.packet(&path(from, other), Qpn::new(18), &headers, 0, |_| Ok(()));
            port.counts.sent
        };
        assert_eq!([send(hosts.mac()), send(other), send(guest)], [0, 0, 1]);
    }
}
