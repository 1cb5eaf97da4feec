//! How much conntrack has not seen of connections of TCP whose rules have ended: the next rule of such a connection counts from there. Otherwise who ends rules
//! again and again would have conntrack's old numbers grow older than anybody knows.

use std::collections::HashMap;

use crate::kernel::conntrack::Tuple;

/// Connections that are remembered, at least, before the oldest make room.
const MOST: usize = 1 << 15;

/// Bytes of one direction of a connection that went without Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Since conntrack's numbers were found too old.
    pub numbers: u64,
    /// Since its window was.
    pub window: u64,
}

impl Unseen {
    /// So many bytes more.
    pub fn add(&mut self, bytes: u64) {
        self.numbers += bytes;
        self.window += bytes;
    }
}

/// Of directions of connections that have no rule just now.
#[derive(Debug, Default)]
pub struct Ended {
    young: HashMap<Tuple, Unseen>,
    old: HashMap<Tuple, Unseen>,
}

impl Ended {
    /// Remembers one. Those that have had no rule for longest are given back when there are too many.
    pub fn keep(&mut self, tuple: Tuple, unseen: Unseen) -> HashMap<Tuple, Unseen> {
        if unseen == Unseen::default() {
            return HashMap::new();
        }
        // Two rules of one direction may have lived at once: of two DSCPs, or of two ways in.
        let before = self.take(&tuple);
        let (numbers, window) = (before.numbers + unseen.numbers, before.window + unseen.window);
        self.young.insert(tuple, Unseen { numbers, window });
        if self.young.len() < MOST {
            return HashMap::new();
        }
        std::mem::replace(&mut self.old, std::mem::take(&mut self.young))
    }

    /// That of a connection that has a rule again, or is gone.
    pub fn take(&mut self, tuple: &Tuple) -> Unseen {
        self.young.remove(tuple).or_else(|| self.old.remove(tuple)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(number: u32) -> Tuple {
        let address = std::net::Ipv4Addr::from(number).into();
        Tuple { source: address, destination: address, protocol: 6, source_port: 1, destination_port: 2 }
    }

    #[test]
    fn what_was_not_seen_goes_on_with_the_next_rule_and_there_is_an_end_to_it() {
        let mut ended = Ended::default();
        let unseen = |bytes| Unseen { numbers: bytes, window: bytes };
        assert!(ended.keep(tuple(1), unseen(5)).is_empty());
        ended.keep(tuple(1), unseen(1));
        let mut next = ended.take(&tuple(1));
        assert_eq!((next, ended.take(&tuple(1))), (unseen(6), Unseen::default()));
        next.add(1);
        assert_eq!(next, unseen(7));
        let mut forgotten = 0;
        for number in 0..3 * MOST as u32 {
            forgotten += ended.keep(tuple(number), unseen(1)).len();
            assert!(ended.young.len() + ended.old.len() <= 2 * MOST);
        }
        assert_eq!(forgotten, 2 * MOST, "none is lost without a word");
    }
}
