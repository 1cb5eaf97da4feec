//! Addresses of this host: packets for them are the host's, all others are forwarded.

use std::net::IpAddr;

use rustc_hash::FxHashSet;
use rustix::fd::{AsFd, BorrowedFd};

use crate::kernel::address::Address;
use crate::kernel::socket::{Error, Events, Protocol, Questions, Received};
use crate::kernel::wire::{self, Request};

const GET_ADDRESS: u16 = 22;
/// `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR`, as bits.
const GROUPS: u32 = 1 << 4 | 1 << 8;
/// Events of one turn.
const MOST_EVENTS: usize = 64;

/// All addresses of this host, as far as has been heard.
#[derive(Debug)]
pub(super) struct Own {
    events: Events,
    questions: Questions,
    addresses: FxHashSet<IpAddr>,
}

impl Own {
    pub(super) fn read() -> Result<Self, Error> {
        let events = Events::listen(Protocol::Route, GROUPS)?;
        let mut own = Self { events, questions: Questions::open(Protocol::Route)?, addresses: FxHashSet::default() };
        own.read_all()?;
        Ok(own)
    }

    fn read_all(&mut self) -> Result<(), Error> {
        let found = std::cell::RefCell::new(FxHashSet::default());
        let request = Request::new(GET_ADDRESS, wire::DUMP, &[0; 8]);
        self.questions.ask(
            request,
            || found.borrow_mut().clear(),
            |message| {
                if let Some(address) = Address::read(message.body) {
                    found.borrow_mut().insert(address.address);
                }
            },
        )?;
        self.addresses = found.into_inner();
        Ok(())
    }

    /// Looks whether anything has changed, and reads all of them then.
    pub(super) fn turn(&mut self) -> Result<(), Error> {
        let mut has_changed = false;
        for _ in 0..MOST_EVENTS {
            match self.events.receive()? {
                Received::Nothing => break,
                Received::Overrun | Received::Bytes(_) => has_changed = true,
            }
        }
        if has_changed { self.read_all() } else { Ok(()) }
    }

    /// Whether a packet to this address is the host's own: one of its addresses, or a group.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        let is_broadcast = address == IpAddr::V4(std::net::Ipv4Addr::BROADCAST);
        self.addresses.contains(&address) || address.is_multicast() || is_broadcast || address.is_loopback()
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_this_host() {
        let mut own = Own::read().unwrap();
        own.turn().unwrap();
        assert!(own.has([127, 0, 0, 1].into()) && own.has([224, 0, 0, 5].into()));
        assert!(!own.has([203, 0, 113, 77].into()));
    }
}
