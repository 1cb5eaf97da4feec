//! What the registers of a MAC ask of the data path, as a value that a worker keeps.

use millrace_abi::register::rxmac as r;
use millrace_dma::Span;

/// Bytes of the FCS: lengths in registers include it although no frame carries it here.
pub(super) const FCS: u32 = 4;
const TABLE: usize = r::MAC_TABLE_ENTRIES as usize;
/// Words that carry the rules to a worker: flags, lengths, address table.
pub(super) const WORDS: usize = 2 + TABLE;

const RX_ENABLED: u64 = 1 << 0;
const TX_ENABLED: u64 = 1 << 1;
const LINK_UP: u64 = 1 << 2;
const LOOPED: u64 = 1 << 3;
const DROPS_SHORT: u64 = 1 << 4;
const DROPS_LONG: u64 = 1 << 5;
const FILTER_SHIFT: u32 = 6;

/// Why a MAC does not let a frame in, in the order in which it looks. A frame has one reason, so that the reasons add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Disabled,
    TooShort,
    TooLong,
    Filtered,
}

/// What was noticed about a frame besides its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traits {
    pub broadcast: bool,
    pub multicast: bool,
    pub under_min: bool,
    pub over_max: bool,
}

/// The rules of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub rx_enabled: bool,
    pub tx_enabled: bool,
    /// Neither in reset nor in low power.
    pub link_up: bool,
    /// What is sent comes back at the PMA; the wire is cut off.
    pub looped: bool,
    pub(super) drops_short: bool,
    pub(super) drops_long: bool,
    /// One of `FILTER_*`; promiscuous also where the error mask says that addresses do not matter.
    pub(super) filter: u8,
    /// In bytes with FCS, as the registers have it.
    pub(super) length_min: u32,
    pub(super) length_max: u32,
    /// As in the registers: address and valid bit.
    pub(super) table: [u64; TABLE],
    // Shortest length without FCS that nothing is said about, and how many follow it. No length if the MAC has to look
    // at every frame.
    easy_from: usize,
    easy_count: usize,
}

impl Rules {
    pub fn decode(words: &[u64; WORDS]) -> Self {
        let has = |flag| words[0] & flag != 0;
        let mut table = [0; TABLE];
        table.copy_from_slice(&words[2..]);
        let (length_min, length_max) = (words[1] as u32, (words[1] >> 32) as u32);
        let filter = (words[0] >> FILTER_SHIFT) as u8 & 3;
        let easy_from = length_min.saturating_sub(FCS) as usize;
        let looks_at_all = !has(RX_ENABLED) || filter != r::FILTER_PROMISCUOUS as u8;
        let easy_count = match (length_max as usize + 1).checked_sub(FCS as usize + easy_from) {
            Some(count) if !looks_at_all => count,
            _ => 0,
        };
        Self {
            rx_enabled: has(RX_ENABLED),
            tx_enabled: has(TX_ENABLED),
            link_up: has(LINK_UP),
            looped: has(LOOPED),
            drops_short: has(DROPS_SHORT),
            drops_long: has(DROPS_LONG),
            filter,
            length_min,
            length_max,
            table,
            easy_from,
            easy_count,
        }
    }

    pub(super) fn encode(&self) -> [u64; WORDS] {
        let flags = [
            (self.rx_enabled, RX_ENABLED),
            (self.tx_enabled, TX_ENABLED),
            (self.link_up, LINK_UP),
            (self.looped, LOOPED),
            (self.drops_short, DROPS_SHORT),
            (self.drops_long, DROPS_LONG),
        ];
        let mut words = [0; WORDS];
        words[0] = flags.iter().filter(|(on, _)| *on).map(|(_, flag)| flag).sum::<u64>();
        words[0] |= u64::from(self.filter & 3) << FILTER_SHIFT;
        words[1] = u64::from(self.length_min) | u64::from(self.length_max) << 32;
        words[2..].copy_from_slice(&self.table);
        words
    }

    /// Whether there is nothing to be said about a frame of this length (without FCS) to a single address: it is let in
    /// and no counter but that of its size moves.
    #[inline(always)]
    pub(super) fn is_easy(&self, len: usize) -> bool {
        len.wrapping_sub(self.easy_from) < self.easy_count
    }

    /// Looks at a frame that has `len` bytes on the wire, without FCS.
    pub(super) fn judge(&self, frame: Span<'_>, len: usize) -> (Option<Refusal>, Traits) {
        let length = len as u64 + u64::from(FCS);
        let mut bytes = [0; 8];
        frame.read_into(&mut bytes[2..]);
        let address = u64::from_be_bytes(bytes);
        let group = bytes[2] & 1 != 0;
        let broadcast = address == BROADCAST;
        let traits = Traits {
            broadcast,
            multicast: group && !broadcast,
            under_min: length < u64::from(self.length_min),
            over_max: length > u64::from(self.length_max),
        };
        let refusal = if !self.rx_enabled {
            Some(Refusal::Disabled)
        } else if traits.under_min && self.drops_short {
            Some(Refusal::TooShort)
        } else if traits.over_max && self.drops_long {
            Some(Refusal::TooLong)
        } else {
            (!self.lets_in(address, &traits)).then_some(Refusal::Filtered)
        };
        (refusal, traits)
    }

    fn lets_in(&self, address: u64, traits: &Traits) -> bool {
        let filter = u32::from(self.filter);
        filter == r::FILTER_PROMISCUOUS
            || filter >= r::FILTER_BROADCAST && traits.broadcast
            || filter >= r::FILTER_MULTICAST && traits.multicast
            || self.table.contains(&(address | r::MAC_TABLE_VALID))
    }
}

const BROADCAST: u64 = 0xffff_ffff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        let mut rules = Rules::decode(&[0; WORDS]);
        (rules.rx_enabled, rules.tx_enabled, rules.link_up) = (true, true, true);
        (rules.drops_short, rules.drops_long) = (true, true);
        (rules.length_min, rules.length_max) = (64, 1526);
        Rules::decode(&rules.encode())
    }

    fn frame(to: [u8; 6], len: usize) -> Vec<u8> {
        let mut frame = vec![0; len];
        frame[..6].copy_from_slice(&to);
        frame
    }

    #[test]
    fn rules_survive_their_words() {
        let mut wild = rules();
        (wild.looped, wild.link_up, wild.filter) = (true, false, 3);
        wild.table = core::array::from_fn(|i| i as u64 | r::MAC_TABLE_VALID);
        let read = Rules::decode(&wild.encode());
        assert_eq!((read.looped, read.link_up, read.filter, read.table), (true, false, 3, wild.table));
        assert!(!read.is_easy(100), "a filter looks at every frame");
        assert_eq!(Rules::decode(&read.encode()), read);
    }

    #[test]
    fn lengths_are_easy_exactly_where_nothing_is_to_be_said() {
        let rules = rules();
        for len in [0, 1, 14, 59, 60, 61, 1522, 1523, 16383, usize::MAX] {
            assert_eq!(rules.is_easy(len), (60..=1522).contains(&len), "{len}");
        }
        // Whatever a program writes into the registers: easy frames are those without any remark.
        for (min, max) in [(0, 0), (0, 3), (3, 4), (5, 3), (64, 63), (u32::MAX, 0), (0, u32::MAX), (u32::MAX, u32::MAX)]
        {
            let mut odd = rules;
            (odd.length_min, odd.length_max) = (min, max);
            let odd = Rules::decode(&odd.encode());
            for len in [6usize, 7, 60, 64, 2000] {
                let bytes = frame([2; 6], len);
                let (refusal, traits) = odd.judge(Span::from_slice(&bytes), len);
                let easy = refusal.is_none() && traits == Traits::default();
                assert_eq!(odd.is_easy(len), easy, "{min} {max} {len}");
            }
        }
    }

    #[test]
    fn each_filter_lets_in_what_it_says() {
        let mine = [0x02, 0x11, 0x22, 0x33, 0x44, 0x55];
        let kinds =
            [("mine", mine), ("other", [0x02; 6]), ("broadcast", [0xff; 6]), ("multicast", [1, 0, 0x5e, 0, 0, 1])];
        let expected: [(u8, &[&str]); 4] = [
            (0, &["mine", "other", "broadcast", "multicast"]),
            (1, &["mine"]),
            (2, &["mine", "broadcast"]),
            (3, &["mine", "broadcast", "multicast"]),
        ];
        for (filter, let_in) in expected {
            let mut rules = rules();
            rules.filter = filter;
            rules.table[7] = 0x0211_2233_4455 | r::MAC_TABLE_VALID;
            rules.table[8] = 0x0202_0202_0202; // Not valid.
            for (kind, to) in kinds {
                let bytes = frame(to, 64);
                let (refusal, traits) = rules.judge(Span::from_slice(&bytes), 64);
                let want = (!let_in.contains(&kind)).then_some(Refusal::Filtered);
                assert_eq!(refusal, want, "filter {filter}, {kind}");
                assert_eq!((traits.broadcast, traits.multicast), (kind == "broadcast", kind == "multicast"));
            }
        }
    }

    #[test]
    fn a_frame_has_the_first_reason_only() {
        let mut rules = rules();
        rules.filter = 1;
        let short = frame([2; 6], 20);
        let judge = |rules: &Rules| rules.judge(Span::from_slice(&short), short.len()).0;
        assert_eq!(judge(&rules), Some(Refusal::TooShort));
        rules.drops_short = false;
        assert_eq!(judge(&rules), Some(Refusal::Filtered));
        rules.rx_enabled = false;
        assert_eq!(judge(&rules), Some(Refusal::Disabled));
    }
}
