//! The rules, as they are in the mapped tables, and what has been counted.

use super::layout::{Key, RULE4, RULE6, Rule, State};
use super::{Engine, EngineError};
use crate::Reason;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Packets that were handed to Linux for a reason; of [`Reason::Fast`], those that were not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// Why.
    pub reason: Reason,
    /// How many, since the program was loaded.
    pub packets: u64,
}

/// All rules at one moment after the other: first those of IPv4.
pub struct Rules<'a> {
    engine: &'a Engine,
    at: u32,
    is_v6: bool,
}

impl Iterator for Rules<'_> {
    type Item = Rule;

    fn next(&mut self) -> Option<Rule> {
        loop {
            let size = if self.is_v6 { RULE6 } else { RULE4 };
            let table = if self.is_v6 { &self.engine.rules6 } else { &self.engine.rules4 };
            if self.at as usize >= table.len() / size {
                if self.is_v6 {
                    return None;
                }
                (self.at, self.is_v6) = (0, true);
                continue;
            }
            self.at += 1;
            if let Some(rule) = self.engine.rule(self.is_v6, self.at - 1) {
                return Some(rule);
            }
        }
    }
}

impl Engine {
    /// All rules; those that are dead, too, until their slot is used again.
    pub fn rules(&self) -> Rules<'_> {
        Rules { engine: self, at: 0, is_v6: false }
    }

    /// The rule in one slot. `None` for one that is empty, being written, or was written while it was read.
    pub fn rule(&self, is_v6: bool, number: u32) -> Option<Rule> {
        let (table, size) = if is_v6 { (&self.rules6, RULE6) } else { (&self.rules4, RULE4) };
        let at = number as usize * size;
        // The program publishes with an exchange of this word, a full barrier, which pairs with the first load; the second one, after a fence,
        // finds out whether another rule was written meanwhile.
        let word = table.window().word32(at).ok()?;
        let before = word.load(Acquire);
        if matches!(State::of(before), None | Some(State::Empty | State::Busy)) {
            return None;
        }
        let mut bytes = [0; RULE6];
        table.window().span(at, size)?.read_into(&mut bytes[..size]);
        millrace_dma::fence(Acquire);
        if word.load(Relaxed) != before {
            return None;
        }
        bytes[..4].copy_from_slice(&before.to_le_bytes());
        if is_v6 { Rule::from_v6(number, &bytes) } else { Rule::from_v4(number, bytes.first_chunk()?) }
    }

    /// The live rule of a flow: on trial, in force, or refused.
    ///
    /// It looks through the whole table, for only the program knows where a flow belongs: some milliseconds.
    pub fn find(&self, key: &Key) -> Option<Rule> {
        self.rules().find(|rule| rule.key == *key && rule.state != State::Dead)
    }

    /// Ends a rule, if it is still the one that was read. Its flow's next packet makes a new one.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn kill(&self, rule: &Rule) -> Result<bool, EngineError> {
        self.kill_at(rule, self.jiffies()?)
    }

    /// The same, for who ends many: `jiffies` are those of a moment ago.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn kill_at(&self, rule: &Rule, jiffies: u32) -> Result<bool, EngineError> {
        let is_v6 = rule.key.source.is_ipv6();
        let (table, size, seen) = if is_v6 { (&self.rules6, RULE6, 64) } else { (&self.rules4, RULE4, 56) };
        if rule.state == State::Dead {
            return Ok(false);
        }
        let window = table.window();
        let missing = |_| EngineError::Missing("rule of this number");
        // Before the word, as in bpf/slots.h: from the moment that it is dead the slot rests for two seconds.
        window.word32(rule.number as usize * size + seen).map_err(missing)?.store(jiffies, Relaxed);
        let dead = rule.word & 0xffff_0000 | State::Dead as u32;
        Ok(window.word32(rule.number as usize * size).map_err(missing)?.compare_exchange(rule.word, dead).is_ok())
    }

    /// Has a rule put on trial again by its next packet, as if the ruleset had changed. If another rule is in its slot by now, that one is.
    pub(super) fn doubt(&self, rule: &Rule) {
        let (table, size, epoch) =
            if rule.key.source.is_ipv6() { (&self.rules6, RULE6, 48) } else { (&self.rules4, RULE4, 24) };
        let before = self.epochs().1.wrapping_sub(1);
        if let Ok(word) = table.window().word32(rule.number as usize * size + epoch) {
            word.store(before, Relaxed);
        }
    }

    /// Leaves a flow to Linux because a comparison has shown that its rule is wrong; until something
    /// changes.
    pub(super) fn refuse(&self, rule: &Rule) -> Result<bool, EngineError> {
        let is_v6 = rule.key.source.is_ipv6();
        let (table, size, seen, reason) =
            if is_v6 { (&self.rules6, RULE6, 64, 44) } else { (&self.rules4, RULE4, 56, 20) };
        let (window, at) = (table.window(), rule.number as usize * size);
        let missing = |_| EngineError::Missing("rule of this number");
        let jiffies = self.jiffies()?;
        window.word32(at + seen).map_err(missing)?.store(jiffies, Relaxed);
        // Protocol and both DSCPs stay; the reason is the last byte of their word.
        let word = window.word32(at + reason).map_err(missing)?;
        word.store(word.load(Relaxed) & 0x00ff_ffff | (Reason::MismatchShadow as u32) << 24, Relaxed);
        let refused = rule.word & 0xffff_ff00 | State::Refused as u32;
        Ok(window.word32(at).map_err(missing)?.compare_exchange(rule.word, refused).is_ok())
    }

    /// Puts a rule on trial in force for packets of up to 1500 bytes, as if Linux had shown that it does the same: for tests of what the kernel at
    /// hand has no interfaces for.
    #[doc(hidden)]
    pub fn trust(&self, rule: &Rule) -> bool {
        let is_v6 = rule.key.source.is_ipv6();
        let (table, size, asked) = if is_v6 { (&self.rules6, RULE6, 68) } else { (&self.rules4, RULE4, 60) };
        let (window, at) = (table.window(), rule.number as usize * size);
        let (Ok(asked), Ok(word)) = (window.word32(at + asked), window.word32(at)) else { return false };
        asked.store(1500 << 16 | self.jiffies().unwrap_or(0) & 0xffff, Relaxed);
        word.compare_exchange(rule.word, rule.word & 0xffff_ff00 | State::Active as u32).is_ok()
    }

    /// What has been counted by reason; the step of each is [`Reason::step`].
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn counters(&self) -> Result<Vec<Counter>, EngineError> {
        let counters = Reason::ALL.into_iter().filter(|reason| *reason != Reason::Fast);
        let mut all = vec![Counter { reason: Reason::Fast, packets: self.fast_in_all()? }];
        for reason in counters {
            all.push(Counter { reason, packets: sum(&self.maps.counters, reason as u32)? });
        }
        Ok(all)
    }

    /// Packets sent on by rules, whatever has become of the interfaces that they came by.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn fast_in_all(&self) -> Result<u64, EngineError> {
        let now: u64 = self.fast()?.iter().map(|(_, packets)| packets).sum();
        Ok(now + self.fast_before.load(Relaxed))
    }

    /// Those that came by one interface; 0 where it is not one of the engine's.
    pub(super) fn fast_of(&self, ifindex: u32) -> u64 {
        let slot = self.attached.lock().expect("no holder panics").get(&ifindex).map(|attachment| attachment.slot);
        slot.map_or(0, |slot| sum(&self.maps.fast, slot.into()).unwrap_or(0))
    }

    /// Packets sent on by rules, by the interface that they came by.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn fast(&self) -> Result<Vec<(u32, u64)>, EngineError> {
        let slots: Vec<_> =
            self.attached.lock().expect("no holder panics").iter().map(|(ifindex, a)| (*ifindex, a.slot)).collect();
        slots.into_iter().map(|(ifindex, slot)| Ok((ifindex, sum(&self.maps.fast, slot.into())?))).collect()
    }
}

/// One entry of a map that each processor has its own of.
fn sum(map: &MapHandle, key: u32) -> Result<u64, EngineError> {
    let what = "a counter of the router's program cannot be read";
    let values =
        map.lookup_percpu(&key.to_le_bytes(), MapFlags::ANY).map_err(|source| EngineError::Update { what, source })?;
    let number = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    Ok(values.unwrap_or_default().iter().map(number).sum())
}
