//! Policies of IPsec: a packet that one of them is about is Linux's (`linux/xfrm.h`).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::netfilter::is_absent;
use super::socket::{Error, Questions};
use super::wire::{self, Message, Request};

const NEW_POLICY: u16 = 0x13;
const DELETE_POLICY: u16 = 0x14;
const GET_POLICY: u16 = 0x15;
const UPDATE_POLICY: u16 = 0x19;
const FLUSH_POLICY: u16 = 0x1d;
/// What becomes of packets of which no policy speaks: the event has the number of the answer, too.
const DEFAULTS: [u16; 2] = [0x27, 0x28];

/// More than that are not remembered one by one.
const MOST: usize = 1024;

/// What a policy is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Packets from there, with the length of the prefix.
    pub source: (IpAddr, u8),
    /// Packets to there.
    pub destination: (IpAddr, u8),
    /// 0 in, 1 out, 2 forwarded.
    pub direction: u8,
    /// Of this protocol; 0 for all.
    pub protocol: u8,
}

/// The policies that there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// Those that are known one by one.
    pub all: Vec<Policy>,
    /// There are more than are remembered: every packet may be one of theirs.
    pub are_too_many: bool,
}

impl Policies {
    /// Reads them; a kernel without IPsec has none.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn read(questions: &mut Questions) -> Result<Self, Error> {
        let found = std::cell::RefCell::new(Self::default());
        let keep = |message: Message<'_>| {
            let mut found = found.borrow_mut();
            // Those of single sockets (directions from 3 on) are about no forwarded packet.
            let Some(policy) = read(&message).filter(|policy| policy.direction < 3) else { return };
            match found.all.len() < MOST {
                true => found.all.push(policy),
                false => found.are_too_many = true,
            }
        };
        let request = Request::new(GET_POLICY, wire::DUMP, &[0; 64]);
        match questions.ask(request, || *found.borrow_mut() = Self::default(), keep) {
            Err(Error::Refused(error)) if !is_absent(error) => Err(Error::Refused(error)),
            Ok(()) | Err(Error::Refused(_)) => Ok(found.into_inner()),
            Err(error) => Err(error),
        }
    }

    /// Whether one of them is about packets between these.
    pub fn concern(&self, source: IpAddr, destination: IpAddr, protocol: u8) -> bool {
        self.are_too_many || self.all.iter().any(|policy| policy.concerns(source, destination, protocol))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && !self.are_too_many
    }
}

impl Policy {
    fn concerns(&self, source: IpAddr, destination: IpAddr, protocol: u8) -> bool {
        (self.protocol == 0 || self.protocol == protocol)
            && within(self.source, source)
            && within(self.destination, destination)
    }
}

/// Whether an event says that policies have changed.
pub fn is_change(message: &Message<'_>) -> bool {
    matches!(message.kind, NEW_POLICY | DELETE_POLICY | UPDATE_POLICY | FLUSH_POLICY)
        || DEFAULTS.contains(&message.kind)
}

fn within((network, length): (IpAddr, u8), address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => address.into(),
    };
    let differ = bits(network) ^ bits(address);
    network.is_ipv4() == address.is_ipv4() && differ.leading_zeros() >= u32::from(length)
}

/// Reads `xfrm_userpolicy_info`: a selector of 56 bytes, lifetimes and use of 96, priority, index, direction.
pub(super) fn read(message: &Message<'_>) -> Option<Policy> {
    const FAMILY: usize = 40;
    const DIRECTION: usize = 160;
    const AF_INET: u16 = 2;
    matches!(message.kind, NEW_POLICY | UPDATE_POLICY).then_some(())?;
    let body = message.body;
    let length = if wire::u16_at(body, FAMILY)? == AF_INET { 4 } else { 16 };
    let address = |at: usize| body.get(at..at + length).and_then(wire::address_of);
    Some(Policy {
        destination: (address(0)?, *body.get(FAMILY + 2)?),
        source: (address(16)?, *body.get(FAMILY + 3)?),
        protocol: *body.get(FAMILY + 4)?,
        direction: *body.get(DIRECTION)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_about_packets_of_its_selector() {
        let mut body = [0; 168];
        body[..4].copy_from_slice(&[10, 2, 0, 0]);
        body[16..20].copy_from_slice(&[10, 1, 0, 0]);
        body[40..42].copy_from_slice(&2_u16.to_ne_bytes());
        (body[42], body[43], body[160]) = (16, 24, 1);
        let policy = read(&Message { kind: NEW_POLICY, flags: 0, sequence: 0, body: &body }).unwrap();
        assert_eq!((policy.source.1, policy.destination.1, policy.direction), (24, 16, 1));
        let policies = Policies { all: vec![policy], are_too_many: false };
        let concern = |from: &str, to: &str| policies.concern(from.parse().unwrap(), to.parse().unwrap(), 6);
        assert!(concern("10.1.0.9", "10.2.9.9"));
        assert!(!concern("10.1.1.9", "10.2.9.9") && !concern("10.2.9.9", "10.1.0.9") && !concern("::1", "::2"));
        assert!(Policies { are_too_many: true, ..Policies::default() }.concern(
            "::1".parse().unwrap(),
            "::2".parse().unwrap(),
            6
        ));
    }
}
