//! Addresses of interfaces (`man 7 rtnetlink`).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::wire;

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    /// Of which interface.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of the network's prefix.
    pub prefix: u8,
}

impl Address {
    /// Reads the body of `RTM_NEWADDR` or `RTM_DELADDR`.
    pub fn read(body: &[u8]) -> Option<Self> {
        const HEADER: usize = 8;
        const ADDRESS: u16 = 1;
        const LOCAL: u16 = 2;
        let (prefix, interface) = (*body.get(1)?, wire::u32_at(body, 4)?);
        let all = wire::attributes(body, HEADER);
        // On a line from point to point, the first is the other end.
        let value = all.clone().find(LOCAL).or_else(|| all.clone().find(ADDRESS))?;
        Some(Self { interface, address: wire::address_of(value)?, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_own_end_of_a_line_is_the_address() {
        let request =
            wire::Request::new(20, 0, &[2, 32, 0, 0, 9, 0, 0, 0]).with(1, &[10, 0, 0, 2]).with(2, &[10, 0, 0, 1]);
        let mut request = request;
        let body = &request.numbered(0)[16..];
        let wanted = Address { interface: 9, address: [10, 0, 0, 1].into(), prefix: 32 };
        assert_eq!(Address::read(body), Some(wanted));
        assert_eq!(Address::read(&body[..7]), None);
    }
}
