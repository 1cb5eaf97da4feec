//! Who gets which network: one rule and one look for many VNIs, in place of a rule for each.

use crate::action::MAX_VNI;
use std::fmt;

/// Who gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Receiver {
    /// An RX queue of the card.
    Queue(u16),
    /// A port.
    Port(u16),
}

/// Networks one behind the other, and who gets them in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first and the last VNI.
    pub vnis: (u32, u32),
    /// The first of them; those behind it are of the same kind.
    pub first: Receiver,
    /// The number of the last, not below that of the first.
    pub last: u16,
}

impl Run {
    fn receiver(&self, vni: u32) -> Receiver {
        let among = |first: u16| {
            let count = u32::from(self.last - first) + 1;
            first + ((vni - self.vnis.0) % count) as u16
        };
        match self.first {
            Receiver::Queue(first) => Receiver::Queue(among(first)),
            Receiver::Port(first) => Receiver::Port(among(first)),
        }
    }

    /// The highest queue, if it names queues.
    pub fn highest_queue(&self) -> Option<u16> {
        matches!(self.first, Receiver::Queue(_)).then_some(self.last)
    }

    /// Whether a port is among its receivers.
    pub fn has_port(&self, port: u32) -> bool {
        matches!(self.first, Receiver::Port(first) if (u32::from(first)..=self.last.into()).contains(&port))
    }

    fn is_right(&self) -> bool {
        let (Receiver::Queue(first) | Receiver::Port(first)) = self.first;
        self.vnis.0 <= self.vnis.1 && self.vnis.1 <= MAX_VNI && first <= self.last
    }
}

/// From networks to receivers. Memory goes by how many runs were written, not by how many networks they have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VniMap {
    // The first VNI of each run, in order: what is searched fits few cache lines.
    firsts: Box<[u32]>,
    runs: Box<[Run]>,
}

impl VniMap {
    /// A map of runs, in any order. `None`: there is none, one is upside down, or a network stands twice.
    pub fn new(mut runs: Vec<Run>) -> Option<Self> {
        runs.sort_by_key(|run| run.vnis);
        let apart = runs.windows(2).all(|two| two[0].vnis.1 < two[1].vnis.0);
        let good = !runs.is_empty() && apart && runs.iter().all(Run::is_right);
        good.then(|| Self { firsts: runs.iter().map(|run| run.vnis.0).collect(), runs: runs.into() })
    }

    /// Who gets a network, if the map says so.
    #[inline]
    pub fn get(&self, vni: u64) -> Option<Receiver> {
        let vni = u32::try_from(vni).ok()?;
        let at = self.firsts.partition_point(|first| *first <= vni).checked_sub(1)?;
        let run = &self.runs[at];
        (vni <= run.vnis.1).then(|| run.receiver(vni))
    }

    /// The runs, in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }
}

impl fmt::Display for Run {
    /// `10=queue:1`, `5000-5999=port:0-3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, first) = match self.first {
            Receiver::Queue(first) => ("queue", first),
            Receiver::Port(first) => ("port", first),
        };
        match self.vnis {
            (one, other) if one == other => write!(f, "{one}")?,
            (first, last) => write!(f, "{first}-{last}")?,
        }
        write!(f, "={kind}:{first}")?;
        if self.last == first { Ok(()) } else { write!(f, "-{}", self.last) }
    }
}

impl fmt::Display for VniMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs: Vec<String> = self.runs.iter().map(Run::to_string).collect();
        write!(f, "vni_map({})", runs.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn run(vnis: (u32, u32), first: Receiver, last: u16) -> Run {
        Run { vnis, first, last }
    }

    #[test]
    fn what_is_no_map() {
        let queue = Receiver::Queue(3);
        assert!(VniMap::new(Vec::new()).is_none());
        assert!(VniMap::new(vec![run((5, 4), queue, 3)]).is_none());
        assert!(VniMap::new(vec![run((5, 5), queue, 2)]).is_none());
        assert!(VniMap::new(vec![run((5, MAX_VNI + 1), queue, 3)]).is_none());
        assert!(VniMap::new(vec![run((5, 9), queue, 3), run((9, 9), queue, 3)]).is_none());
        assert!(VniMap::new(vec![run((9, MAX_VNI), queue, 3), run((5, 8), queue, 3)]).is_some());
    }

    proptest! {
        #[test]
        fn as_a_list_of_all_networks(
            cuts in prop::collection::btree_set(0u32..300, 2..40), kinds in prop::collection::vec((any::<bool>(), 0u16..9, 0u16..9), 40),
        ) {
            let cuts: Vec<u32> = cuts.into_iter().collect();
            let mut wanted = HashMap::new();
            let mut runs = Vec::new();
            for (two, (is_port, first, more)) in cuts.windows(2).zip(kinds).step_by(2) {
                let kind = if is_port { Receiver::Port } else { Receiver::Queue };
                runs.push(run((two[0], two[1] - 1), kind(first), first + more));
                let turns = (first..=first + more).cycle();
                wanted.extend((two[0]..two[1]).zip(turns.map(kind)));
            }
            runs.reverse();
            let map = VniMap::new(runs).unwrap();
            for vni in 0..310 {
                prop_assert_eq!(map.get(vni.into()), wanted.get(&vni).copied());
            }
            prop_assert_eq!(map.get(u64::MAX), None);
        }
    }
}
