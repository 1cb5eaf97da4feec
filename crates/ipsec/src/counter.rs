//! What was done and what was refused, in numbers.

use crate::refusal::{Refusal, Way};

/// Packets and bytes that went through, and refusals by reason, for both ways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    sides: [Side; 2],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Side {
    packets: u64,
    bytes: u64,
    refused: [u64; Refusal::ALL.len()],
}

impl Counters {
    #[inline]
    pub(crate) fn passed(&mut self, way: Way, bytes: usize) {
        let side = &mut self.sides[way as usize];
        side.packets += 1;
        side.bytes += bytes as u64;
    }

    #[inline]
    pub(crate) fn refuse(&mut self, way: Way, refusal: Refusal) -> Refusal {
        self.sides[way as usize].refused[refusal as usize] += 1;
        refusal
    }

    /// Packets that were decrypted or encrypted.
    pub const fn packets(&self, way: Way) -> u64 {
        self.sides[way as usize].packets
    }

    /// Their bytes: of the packets that were protected, without what ESP adds.
    pub const fn bytes(&self, way: Way) -> u64 {
        self.sides[way as usize].bytes
    }

    /// How often this was the reason.
    pub const fn refused(&self, way: Way, refusal: Refusal) -> u64 {
        self.sides[way as usize].refused[refusal as usize]
    }

    /// All reasons that there were: which way, which, how often.
    pub fn refusals(&self) -> impl Iterator<Item = (Way, Refusal, u64)> + '_ {
        let ways = [Way::In, Way::Out].into_iter();
        ways.flat_map(move |way| {
            Refusal::ALL.into_iter().map(move |refusal| (way, refusal, self.refused(way, refusal)))
        })
        .filter(|(_, _, count)| *count > 0)
    }

    /// The same in lines of `/proc/net/xfrm_stat`, in the order in which they come first; reasons that Linux does not
    /// have are not in it.
    pub fn as_linux(&self) -> Vec<(&'static str, u64)> {
        let mut lines: Vec<(&'static str, u64)> = Vec::new();
        for (way, refusal, count) in self.refusals() {
            let Some(name) = refusal.linux_name(way) else { continue };
            match lines.iter_mut().find(|(there, _)| *there == name) {
                Some((_, sum)) => *sum += count,
                None => lines.push((name, count)),
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_add_up_to_lines_of_linux() {
        let mut counters = Counters::default();
        counters.passed(Way::Out, 100);
        for (way, refusal) in [
            (Way::In, Refusal::Replayed),
            (Way::In, Refusal::TooOld),
            (Way::In, Refusal::Congestion),
            (Way::Out, Refusal::Expired),
        ] {
            assert_eq!(counters.refuse(way, refusal), refusal);
        }
        assert_eq!((counters.packets(Way::Out), counters.bytes(Way::Out), counters.packets(Way::In)), (1, 100, 0));
        assert_eq!(counters.as_linux(), [("XfrmInStateSeqError", 2), ("XfrmOutStateExpired", 1)]);
        assert_eq!(counters.refusals().count(), 4);
    }
}
