//! How long packets may be on the way to the other gateway, as Linux's routes say: what it has learned by ICMP is in them.

use std::net::IpAddr;

use rustc_hash::FxHashMap;

use crate::kernel::link::Link;
use crate::kernel::socket::{Error, Protocol, Questions};
use crate::kernel::wire::{self, Request};

const GET_LINK: u16 = 18;
const GET_ROUTE: u16 = 26;

/// Routes that are remembered; all are forgotten when there are more.
const MOST: usize = 4096;

/// The way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// The longest packet.
    pub mtu: usize,
    /// The interface.
    pub output: u32,
}

/// Ways that have been asked for since they were forgotten last.
#[derive(Debug)]
pub(super) struct Paths {
    questions: Questions,
    known: FxHashMap<IpAddr, Option<Path>>,
    mark: u32,
}

impl Paths {
    pub(super) fn open(mark: Option<u32>) -> Result<Self, Error> {
        let questions = Questions::open(Protocol::Route)?;
        Ok(Self { questions, known: FxHashMap::default(), mark: mark.unwrap_or_default() })
    }

    /// Forgets all ways: once a second.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// The way to an address; `None` where there is none.
    pub(super) fn to(&mut self, destination: IpAddr) -> Option<Path> {
        if let Some(path) = self.known.get(&destination) {
            return *path;
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        let path = self.ask(destination);
        self.known.insert(destination, path);
        path
    }

    fn ask(&mut self, destination: IpAddr) -> Option<Path> {
        const DESTINATION: u16 = 1;
        const MARK: u16 = 16;
        let (family, bits, octets) = match destination {
            IpAddr::V4(address) => (2, 32, address.octets().to_vec()),
            IpAddr::V6(address) => (10, 128, address.octets().to_vec()),
        };
        let header = [family, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut request = Request::new(GET_ROUTE, wire::ACK, &header).with(DESTINATION, &octets);
        if self.mark != 0 {
            request = request.with(MARK, &self.mark.to_ne_bytes());
        }
        let (output, mtu) = self.questions.one(request, read).ok()??;
        let mtu = match mtu {
            Some(mtu) => mtu,
            None => self.link_mtu(output)?,
        };
        Some(Path { mtu: mtu as usize, output })
    }

    fn link_mtu(&mut self, index: u32) -> Option<u32> {
        let mut header = [0; 16];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        let link = self.questions.one(Request::new(GET_LINK, wire::ACK, &header), Link::read).ok()??;
        Some(link.mtu)
    }
}

/// The interface of a route, and the MTU that it says, if it says one.
fn read(body: &[u8]) -> Option<(u32, Option<u32>)> {
    const HEADER: usize = 12;
    const OUTPUT: u16 = 4;
    const METRICS: u16 = 8;
    const MTU: u16 = 2;
    let all = wire::attributes(body, HEADER);
    let output = all.clone().find(OUTPUT).and_then(wire::u32_of)?;
    let mtu = all.find(METRICS).and_then(|metrics| wire::nested(metrics).find(MTU)).and_then(wire::u32_of);
    Some((output, mtu.filter(|mtu| *mtu > 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_oneself_is_there_at_once_and_from_memory() {
        let mut paths = Paths::open(None).unwrap();
        for _ in 0..2 {
            assert_eq!(paths.to([127, 0, 0, 1].into()), Some(Path { mtu: 65536, output: 1 }));
        }
        paths.forget();
        assert!(paths.known.is_empty());
    }

    #[test]
    fn routes_say_their_own_mtu() {
        let mut request = Request::new(24, 0, &[0; 12])
            .with(4, &7_u32.to_ne_bytes())
            .within(8, |inner| inner.with(2, &1300_u32.to_ne_bytes()));
        let body = &request.numbered(0)[16..];
        assert_eq!((read(body), read(&body[..12])), (Some((7, Some(1300))), None));
    }
}
