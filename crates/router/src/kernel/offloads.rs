//! What a card does for Linux on its own: segments, checksums (`man 8 ethtool`, `linux/ethtool_netlink.h`).

use std::collections::BTreeSet;

use super::socket::{Error, Protocol, Questions};
use super::wire::{self, Request};

/// Generic netlink's own header.
const HEADER: usize = 4;

/// Asks about the features of interfaces.
#[derive(Debug)]
pub struct Offloads {
    questions: Questions,
    family: u16,
    /// The family `netdev`, of Linux 6.3 and newer.
    devices: Option<u16>,
}

impl Offloads {
    /// `None`: this kernel says nothing about them (before 5.6).
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn open() -> Result<Option<Self>, Error> {
        let mut questions = Questions::open(Protocol::Generic)?;
        let devices = family(&mut questions, b"netdev\0")?;
        let ethtool = family(&mut questions, b"ethtool\0")?;
        Ok(ethtool.map(|family| Self { questions, family, devices }))
    }

    /// Whether frames of XDP can be sent out of an interface; `None`: this kernel does not tell.
    pub fn sends_xdp(&mut self, interface: u32) -> Option<bool> {
        const GET_DEVICE: u8 = 1;
        const INDEX: u16 = 1;
        const FEATURES: u16 = 3;
        const SENDS: u8 = 4;
        let header = [GET_DEVICE, 1, 0, 0];
        let request = Request::new(self.devices?, wire::ACK, &header).with(INDEX, &interface.to_ne_bytes());
        // The low byte of a word of 64 bits.
        let low = if cfg!(target_endian = "little") { 0 } else { 7 };
        let read = |body: &[u8]| wire::attributes(body, HEADER).find(FEATURES).and_then(|bits| bits.get(low).copied());
        Some(self.questions.one(request, read).ok()?? & SENDS != 0)
    }

    /// The features that are on at an interface, by the kernel's names, such as `rx-gro`, `tx-checksum-ip-generic`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn on(&mut self, interface: u32) -> Result<BTreeSet<String>, Error> {
        const GET_FEATURES: u8 = 11;
        const IN_HEADER: u16 = 1;
        const INDEX: u16 = 1;
        let request = Request::new(self.family, wire::ACK, &[GET_FEATURES, 1, 0, 0])
            .within(IN_HEADER, |header| header.with(INDEX, &interface.to_ne_bytes()));
        Ok(self.questions.one(request, active)?.unwrap_or_default())
    }
}

/// The number of a family of generic netlink.
fn family(questions: &mut Questions, name: &[u8]) -> Result<Option<u16>, Error> {
    const CONTROLLER: u16 = 16;
    const GET_FAMILY: u8 = 3;
    const ID: u16 = 1;
    const NAME: u16 = 2;
    let request = Request::new(CONTROLLER, wire::ACK, &[GET_FAMILY, 1, 0, 0]).with(NAME, name);
    let read = |body: &[u8]| wire::attributes(body, HEADER).find(ID).and_then(wire::u16_of);
    match questions.one(request, read) {
        Ok(family) => Ok(family),
        Err(Error::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names of what is active, in the long form of a set of bits: a list without a mask.
fn active(body: &[u8]) -> Option<BTreeSet<String>> {
    const ACTIVE: u16 = 4;
    const BITS: u16 = 3;
    const NAME: u16 = 2;
    const MOST: usize = 256;
    let set = wire::attributes(body, HEADER).find(ACTIVE)?;
    let bits = wire::nested(set).find(BITS)?;
    let names = wire::nested(bits).filter_map(|(_, bit)| wire::nested(bit).find(NAME).and_then(wire::text_of));
    Some(names.take(MOST).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_is_on() {
        let Some(mut offloads) = Offloads::open().unwrap() else {
            eprintln!("skipped: this kernel has no ethtool by netlink");
            return;
        };
        // `lo` always sums in software what is sent.
        let on = offloads.on(1).unwrap();
        assert!(on.iter().any(|name| name.starts_with("tx-checksum")), "{on:?}");
    }
}
