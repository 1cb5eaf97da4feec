//! The interface of Linux for a session: addresses, MTU, routes.

use std::net::IpAddr;

use millrace_port::spec::InterfaceName;
use millrace_port::tun::{Address, Tun};
use millrace_pppoe::Session;
use millrace_tool::failure::Failure;

/// The interface, with what it has of a session.
pub(super) struct Network {
    pub tun: Tun,
    default_route: Option<u32>,
    addresses: Vec<Address>,
}

impl Network {
    /// Makes it, with nothing yet.
    pub fn new(name: &InterfaceName, default_route: Option<u32>) -> Result<Self, Failure> {
        let tun = Tun::open(name).map_err(refused)?;
        Ok(Self { tun, default_route, addresses: Vec::new() })
    }

    /// Gives it what the session has, and takes what another one had.
    pub fn follow(&mut self, session: &Session) -> Result<(), Failure> {
        self.tun.set_up(session.mtu).map_err(refused)?;
        let wanted = addresses(session);
        for old in self.addresses.iter().filter(|old| !wanted.contains(old)) {
            self.tun.remove(old).map_err(refused)?;
        }
        for address in &wanted {
            self.tun.add(address).map_err(refused)?;
            if let Some(metric) = self.default_route {
                self.tun.add_default_route(&address.own, metric).map_err(refused)?;
            }
        }
        self.addresses = wanted;
        Ok(())
    }
}

fn addresses(session: &Session) -> Vec<Address> {
    let ipv4 = session.ipv4.map(|ends| Address { own: ends.own.into(), peer: ends.peer.map(IpAddr::from) });
    let ipv6 = session.ipv6.map(|ends| Address { own: ends.own.into(), peer: ends.peer.map(IpAddr::from) });
    ipv4.into_iter().chain(ipv6).collect()
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::Found(error.to_string())
}
