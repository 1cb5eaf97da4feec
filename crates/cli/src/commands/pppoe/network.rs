//! The interface of Linux for a session: addresses, MTU, routes.

use std::net::IpAddr;

use millrace_port::spec::InterfaceName;
use millrace_port::tun::{Address, Tun};
use millrace_pppoe::Session;
use millrace_tool::failure::Failure;
use millrace_tool::output::note;

/// The interface, with what it has of a session.
pub(super) struct Network {
    pub tun: Tun,
    name: String,
    /// The metric of the default route that is wanted.
    default_route: Option<u32>,
    addresses: Vec<Address>,
    /// The default routes that are ours: of IPv4, and of IPv6.
    routes: [bool; 2],
}

impl Network {
    /// Makes it, with nothing yet.
    pub fn new(name: &InterfaceName, default_route: Option<u32>) -> Result<Self, Failure> {
        let tun = Tun::open(name).map_err(refused)?;
        Ok(Self { tun, name: name.to_string(), default_route, addresses: Vec::new(), routes: [false; 2] })
    }

    /// Gives it what the session has, and takes what another one had. An address that Linux does not take is told, and done without, as long as there is
    /// another one.
    pub fn follow(&mut self, session: &Session) -> Result<(), Failure> {
        self.tun.set_up(session.mtu).map_err(refused)?;
        let wanted = addresses(session);
        for old in self.addresses.iter().filter(|old| !wanted.contains(old)) {
            self.tun.remove(old).map_err(refused)?;
        }
        let mut failed = None;
        self.addresses.clear();
        for address in wanted {
            match self.tun.add(&address) {
                Ok(()) => {
                    self.addresses.push(address);
                    self.route(address.own.is_ipv6())?;
                }
                Err(error) => {
                    note(format!("{error}; {} goes on without {}", self.name, address.own));
                    failed = Some(error);
                }
            }
        }
        failed.filter(|_| self.addresses.is_empty()).map_or(Ok(()), |error| Err(refused(error)))
    }

    fn route(&mut self, ipv6: bool) -> Result<(), Failure> {
        let Some(metric) = self.default_route.filter(|_| !self.routes[usize::from(ipv6)]) else { return Ok(()) };
        self.routes[usize::from(ipv6)] = self.tun.add_default_route(ipv6, metric).map_err(refused)?;
        if !self.routes[usize::from(ipv6)] {
            let version = if ipv6 { "IPv6" } else { "IPv4" };
            note(format!(
                "there is a default route of {version} with metric {metric} already, which stays: choose another metric, such as --default-route={}, or                  delete that route",
                metric.saturating_add(100)
            ));
        }
        Ok(())
    }

    /// The session is over: what has another way takes it. Addresses stay.
    pub fn leave(&mut self) {
        for ipv6 in [false, true] {
            if let Some(metric) = self.default_route.filter(|_| std::mem::take(&mut self.routes[usize::from(ipv6)])) {
                self.tun.remove_default_route(ipv6, metric);
            }
        }
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
