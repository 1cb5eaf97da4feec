//! What IPv6CP agrees on: interface identifiers (RFC 5072 §4.1).

use crate::control::{Answer, Item, Verdict, protocol, put};
use crate::layer::Agreement;
use fastrand::Rng;
use std::net::Ipv6Addr;

const IDENTIFIER: u8 = 1;

/// See above.
#[derive(Debug)]
pub(crate) struct Ipv6cp {
    random: Rng,
    own: [u8; 8],
    asks: bool,
    peer: Option<[u8; 8]>,
}

impl Ipv6cp {
    pub fn new(random: Rng) -> Self {
        let mut all = Self { random, own: [0; 8], asks: true, peer: None };
        all.own = all.another();
        all
    }

    /// Our address on the link.
    pub fn own(&self) -> Ipv6Addr {
        local(self.own)
    }

    /// That of the other side.
    pub fn peer(&self) -> Option<Ipv6Addr> {
        self.peer.map(local)
    }

    /// An identifier of nobody: the bit that says otherwise is 0 (RFC 5072 §4.1).
    fn another(&mut self) -> [u8; 8] {
        let mut bytes = self.random.u64(1..).to_be_bytes();
        bytes[0] &= !2;
        bytes[7] |= 1;
        bytes
    }
}

fn local(identifier: [u8; 8]) -> Ipv6Addr {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&[0xfe, 0x80]);
    bytes[8..].copy_from_slice(&identifier);
    bytes.into()
}

impl Agreement for Ipv6cp {
    const PROTOCOL: u16 = protocol::IPV6CP;

    fn begin(&mut self) {
        (self.asks, self.peer) = (true, None);
    }

    fn request(&self, options: &mut Vec<u8>) {
        if self.asks {
            put(options, IDENTIFIER, &self.own);
        }
    }

    fn judge(&mut self, options: &[Item<'_>], insist: bool) -> Verdict {
        let (mut answer, mut peer) = (Answer::default(), None);
        for option in options {
            match (option.kind, <[u8; 8]>::try_from(option.value)) {
                (IDENTIFIER, Ok(theirs)) if theirs != [0; 8] && theirs != self.own => peer = Some(theirs),
                (IDENTIFIER, Ok(_)) => {
                    let other = self.another();
                    answer.nak(option, &other);
                }
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
        if let (IDENTIFIER, Ok(ours)) = (option.kind, <[u8; 8]>::try_from(option.value)) {
            self.own = if ours == [0; 8] || Some(ours) == self.peer { self.another() } else { ours };
        }
    }

    fn rejected(&mut self, kind: u8) {
        self.asks &= kind != IDENTIFIER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Options;

    #[test]
    fn identifiers_differ() {
        let mut both = Ipv6cp::new(Rng::with_seed(1));
        let mut judged = |identifier: [u8; 8]| {
            let option = [&[1, 10][..], &identifier].concat();
            let verdict = both.judge(&[Options(&option).next().unwrap().unwrap()], false);
            (verdict, both.own.to_owned(), both.peer())
        };
        let (verdict, own, peer) = judged([0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!((verdict, peer), (Verdict::Ack, Some("fe80::9".parse().unwrap())));
        for same in [own, [0; 8]] {
            let Verdict::Nak(option) = judged(same).0 else { panic!("{same:?}") };
            assert!(option[..2] == [1, 10] && option[2..] != own && option[2..] != [0; 8], "{option:?}");
        }
        let suggestion = [1, 10, 0, 0, 0, 0, 0, 0, 0, 5];
        both.suggested(&Options(&suggestion).next().unwrap().unwrap());
        assert_eq!(both.own(), "fe80::5".parse::<Ipv6Addr>().unwrap());
    }
}
