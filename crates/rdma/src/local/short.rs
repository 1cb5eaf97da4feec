//! Short SENDs: those of one packet between two processes of one host, which the ring acknowledges.
//!
//! A short SEND has its sequence number, so that it can be sent again as any packet. It is not answered: the receiver says in one word
//! up to which line of the ring it has done them all, and says so in each short SEND that goes the other way. What it cannot do (no
//! buffer, another number was expected) it treats as a packet, and answers. From there on it stands still: it answers all
//! short SENDs of that *epoch*. The sender then begins the next epoch.
//!
//! ```text
//! sender     | 4 e0 | 5 e0 | 6 e0 | 7 e0 | ...... | 9 e1 |
//! receiver     done   done   no buffer, answered: NAK, ACK     done
//! its word                 ^ 6, epoch 0 stands still             ^ 10
//! ```

use crate::number::{Psn, Qpn};
use crate::wire::{Headers, Opcode, Place, Service};
use std::collections::VecDeque;

/// Short SENDs without an answer at most; more go as packets.
const MOST: usize = 4096;
/// In what a line says that was taken: that it says something.
const HEARD: u16 = 0x8000;

/// A SEND of one packet on a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// The queue pair that it goes to.
    pub destination: Qpn,
    /// Its sequence number.
    pub psn: Psn,
    /// 32 bits with it.
    pub immediate: Option<[u8; 4]>,
    /// Whoever waits for solicited completions only is woken.
    pub solicited: bool,
}

impl Short {
    /// The headers of the packet that it would be.
    pub fn headers(&self) -> Headers {
        let send = Opcode::Send { place: Place::Only, immediate: self.immediate.is_some(), invalidate: false };
        let mut headers = Headers::new(Service::ReliableConnection, send, self.destination, self.psn);
        (headers.immediate, headers.solicited, headers.extended) = (self.immediate, self.solicited, true);
        headers
    }
}

/// Whose a short SEND is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its program is told when it has ended.
    pub is_awaited: bool,
}

/// What one side knows of the short SENDs that it has sent.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    pub epoch: u8,
    /// Line, queue pair, number, and whether its program waits for its end.
    lines: VecDeque<(u32, Qpn, Psn, bool)>,
    /// How many of them are waited for.
    awaited: usize,
    /// Something waits for all that are there now.
    is_hurried: bool,
}

impl Unsettled {
    #[inline]
    pub fn has_room(&self) -> bool {
        self.lines.len() < MOST
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether somebody waits for the end of one of them.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.awaited > 0 || self.is_hurried
    }

    /// What is posted behind them waits for their end.
    pub fn hurry(&mut self) {
        self.is_hurried = !self.lines.is_empty();
    }

    #[inline]
    pub fn add(&mut self, line: u32, source: Qpn, psn: Psn, is_awaited: bool) {
        self.lines.push_back((line, source, psn, is_awaited));
        self.awaited += usize::from(is_awaited);
    }

    /// All before `line` were done: of each queue pair's run, the last number.
    #[inline]
    pub fn settle(&mut self, line: u32, mut each: impl FnMut(Qpn, Psn)) {
        let mut run: Option<(Qpn, Psn)> = None;
        while let Some(&(at, source, psn, is_awaited)) = self.lines.front() {
            if line.wrapping_sub(at) as i32 <= 0 {
                break;
            }
            self.lines.pop_front();
            self.awaited -= usize::from(is_awaited);
            if let Some((before, last)) = run.replace((source, psn))
                && before != source
            {
                each(before, last);
            }
        }
        if let Some((source, psn)) = run {
            self.is_hurried &= !self.lines.is_empty();
            each(source, psn);
        }
    }

    /// What the other side's word says.
    #[inline]
    pub fn hear(&mut self, word: u64, each: impl FnMut(Qpn, Psn)) {
        let said = Settled::of(word);
        self.settle(said.line, each);
        if said.stuck == Some(self.epoch) {
            // These are answered by packets.
            self.lines.clear();
            (self.awaited, self.is_hurried) = (0, false);
            self.epoch = self.epoch.wrapping_add(1);
        }
    }

    /// A queue pair begins anew: what it has sent before is not its own any more.
    pub fn forget(&mut self, source: Qpn) {
        self.lines.retain(|(_, qpn, ..)| *qpn != source);
        self.awaited = self.lines.iter().filter(|(.., is_awaited)| *is_awaited).count();
    }
}

/// What one side says of the short SENDs that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// All in lines before this one were done, or answered.
    line: u32,
    /// Those of this epoch are answered from here on.
    stuck: Option<u8>,
}

impl Settled {
    #[inline]
    fn of(word: u64) -> Self {
        Self { line: word as u32, stuck: (word >> 40 & 1 != 0).then_some((word >> 32) as u8) }
    }

    #[inline]
    pub fn word(self) -> u64 {
        u64::from(self.line) | self.stuck.map_or(0, |epoch| u64::from(epoch) << 32 | 1 << 40)
    }

    /// Whether a short SEND of that epoch may be left without an answer, if it is done.
    #[inline]
    pub fn counts(self, epoch: u8) -> bool {
        self.stuck != Some(epoch)
    }

    /// The one in that line was done.
    #[inline]
    pub fn done(&mut self, line: u32) {
        *self = Self { line: line.wrapping_add(1), stuck: None };
    }

    /// All before that line were done, or are no short SENDs.
    #[inline]
    pub fn pass(&mut self, line: u32) {
        if self.stuck.is_none() {
            self.line = line;
        }
    }

    /// One of that epoch was not.
    pub fn stick(&mut self, epoch: u8) {
        self.stuck = Some(epoch);
    }

    /// The same in 16 bits, for a line to the other side.
    #[inline]
    pub fn heard(self) -> u16 {
        if self.stuck.is_some() { 0 } else { HEARD | self.line as u16 & !HEARD }
    }
}

/// The line that 16 bits mean, if they mean one, where `written` lines were written.
#[inline]
pub(super) fn line_heard(heard: u16, written: u32) -> Option<u32> {
    let back = written.wrapping_sub(heard.into()) & u32::from(!HEARD);
    (heard & HEARD != 0).then_some(written.wrapping_sub(back))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_heard_in_16_bits() {
        for written in [0_u32, 5, 0x7fff, 0x8000, 0x1_0003, u32::MAX, 3] {
            for back in [0, 1, 1023] {
                let mut settled = Settled::default();
                settled.done(written.wrapping_sub(back).wrapping_sub(1));
                assert_eq!(line_heard(settled.heard(), written), Some(written.wrapping_sub(back)));
            }
        }
        assert_eq!(line_heard(5, 5), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Whatever fails and however late the sender hears: each short SEND is settled once or answered, never both, never neither.
        #[test]
        fn each_is_settled_or_answered(turns in prop::collection::vec((0u8..3, any::<bool>()), 1..200)) {
            let (mut sender, mut receiver) = (Unsettled::default(), Settled::default());
            let (mut ring, mut written) = (VecDeque::new(), 0_u32);
            let (mut settled, mut answered) = (Vec::new(), Vec::new());
            let mut turns = turns;
            turns.extend((0..200).map(|i| (1 + i % 2, true)));
            for (turn, fits) in turns {
                match turn {
                    0 => {
                        sender.add(written, Qpn::new(7), Psn::new(written), written % 3 == 0);
                        ring.push_back((written, sender.epoch));
                        written += 1;
                    }
                    1 => if let Some((line, epoch)) = ring.pop_front() {
                        if receiver.counts(epoch) && fits {
                            receiver.done(line);
                        } else {
                            receiver.stick(epoch);
                            answered.push(line);
                        }
                    },
                    _ => sender.hear(receiver.word(), |_, psn| settled.push(psn.value())),
                }
            }
            let last = settled.last().copied();
            // A run is told by its last number, and none is told twice.
            prop_assert!(settled.is_sorted_by(|one, next| one < next), "{settled:?}");
            prop_assert!(settled.iter().all(|psn| !answered.contains(psn)));
            prop_assert!(sender.is_empty() && !sender.is_awaited());
            let done = (0..written).rev().find(|line| !answered.contains(line));
            prop_assert_eq!(last, done);
        }
    }
}
