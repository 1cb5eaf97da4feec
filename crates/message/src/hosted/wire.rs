//! What a program and the engine in a card say to each other, as words of two rings, and the memory in which these are
//! (`docs/spec/message.md` §13).
//!
//! ```text
//! 0          what the program asks for     (a ring of lines)
//! NEWS_AT    what it is told               (a ring of lines)
//! POOL_AT    blocks for messages, to the end
//! ```

use millrace_ring::lines::{self, MOST_WORDS};

/// Lines of each ring.
pub(crate) const LINES: u32 = 1024;
/// Messages of a program that have not ended, at most: each has a number below.
pub(crate) const SLOTS: usize = 1024;
/// Where the ring begins by which the program is told.
pub(crate) const NEWS_AT: usize = lines::bytes_of(LINES);
/// Where the blocks begin.
pub const POOL_AT: usize = (2 * NEWS_AT).next_multiple_of(4096);
/// Words before the bytes of a message that stand in a ring.
pub(crate) const BYTES_AT: usize = 3;
/// Most bytes of a message that stands in the rings. Longer ones are in blocks.
pub const INLINE: usize = (MOST_WORDS - BYTES_AT) * 8;
/// Of a receive without a block.
pub(crate) const NOWHERE: u64 = u64::MAX;
/// Letters of a name.
const LETTERS: usize = 64;

/// What a program asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked<'w> {
    /// To send a message, with its bytes.
    Send { slot: u16, to: u64, tag: u64, len: u16, words: &'w [u64] },
    /// To send a message that is in a block.
    SendPlaced { slot: u16, to: u64, tag: u64, at: u64, len: u64 },
    /// To receive a message, of anybody if `from` is 0; if it is longer than what stands in a ring, to that place.
    Receive { slot: u16, from: u64, tag: u64, mask: u64, at: u64, capacity: u64 },
    /// To end a message before its time. Is answered.
    Cancel { slot: u16 },
    /// To end a connection.
    Leave { peer: u64 },
    /// To find an endpoint. Is answered.
    Connect { user: u32, name: String },
    /// Doorbells that it wants from now on. Is answered.
    Claim { first: u16, last: u16, owner: u32 },
    /// That it wants those of that owner no more.
    Release { owner: u32 },
    /// To ring. Is answered.
    Ring { to: u64, number: u16 },
    /// So many doorbells of that one were taken.
    Heard { from: u64, count: u32 },
}

const fn head(kind: u8, short: u16, long: u32) -> u64 {
    kind as u64 | (short as u64) << 16 | (long as u64) << 32
}

/// The letters of a name, in words whose rest is 0.
fn letters(name: &str) -> impl Iterator<Item = u64> + '_ {
    name.as_bytes().chunks(8).map(|part| {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(bytes)
    })
}

/// A name of so many letters.
fn name_of(words: &[u64], len: usize) -> Option<String> {
    if len > LETTERS || words.len() != len.div_ceil(8) {
        return None;
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(len);
    String::from_utf8(bytes).ok()
}

impl<'w> Asked<'w> {
    /// Writes it to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u64>) {
        out.clear();
        match self {
            Self::Send { slot, to, tag, len, words } => {
                out.extend([head(1, *slot, u32::from(*len)), *to, *tag]);
                out.extend_from_slice(words);
            }
            Self::SendPlaced { slot, to, tag, at, len } => out.extend([head(2, *slot, 0), *to, *tag, *at, *len]),
            Self::Receive { slot, from, tag, mask, at, capacity } => {
                out.extend([head(3, *slot, 0), *from, *tag, *mask, *at, *capacity]);
            }
            Self::Cancel { slot } => out.push(head(4, *slot, 0)),
            Self::Leave { peer } => out.extend([head(5, 0, 0), *peer]),
            Self::Connect { user, name } => {
                out.push(head(6, name.len() as u16, *user));
                out.extend(letters(name));
            }
            Self::Claim { first, last, owner } => {
                out.extend([head(7, 0, *owner), u64::from(*first) | u64::from(*last) << 16]);
            }
            Self::Release { owner } => out.push(head(8, 0, *owner)),
            Self::Ring { to, number } => out.extend([head(9, *number, 0), *to]),
            Self::Heard { from, count } => out.extend([head(10, 0, *count), *from]),
        }
    }

    /// What the words ask for. `None`: nothing that can be asked for.
    pub(crate) fn decode(words: &'w [u64]) -> Option<Self> {
        let first = *words.first()?;
        let (kind, short, long) = (first as u8, (first >> 16) as u16, (first >> 32) as u32);
        if first >> 8 & 0xff != 0 {
            return None;
        }
        let slot = Some(short).filter(|slot| usize::from(*slot) < SLOTS);
        Some(match (kind, words) {
            (1, [_, to, tag, bytes @ ..]) if bytes.len() == (long as usize).div_ceil(8) && long as usize <= INLINE => {
                Self::Send { slot: slot?, to: *to, tag: *tag, len: long as u16, words: bytes }
            }
            (2, [_, to, tag, at, len]) if long == 0 => {
                Self::SendPlaced { slot: slot?, to: *to, tag: *tag, at: *at, len: *len }
            }
            (3, [_, from, tag, mask, at, capacity]) if long == 0 => {
                Self::Receive { slot: slot?, from: *from, tag: *tag, mask: *mask, at: *at, capacity: *capacity }
            }
            (4, [_]) if long == 0 => Self::Cancel { slot: slot? },
            (5, [_, peer]) if first >> 16 == 0 => Self::Leave { peer: *peer },
            (6, [_, name @ ..]) => Self::Connect { user: long, name: name_of(name, short.into())? },
            (7, [_, range]) if short == 0 && *range >> 32 == 0 => {
                Self::Claim { first: *range as u16, last: (*range >> 16) as u16, owner: long }
            }
            (8, [_]) if short == 0 => Self::Release { owner: long },
            (9, [_, to]) if long == 0 => Self::Ring { to: *to, number: short },
            (10, [_, from]) if short == 0 => Self::Heard { from: *from, count: long },
            _ => return None,
        })
    }
}

/// How a message has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its bytes are not needed here any more.
    Sent,
    /// It was received, and stands here.
    Here {
        from: u64,
        tag: u64,
        len: u16,
    },
    /// It was received, and is in the block.
    Placed {
        from: u64,
        tag: u64,
        len: u64,
    },
    Cancelled,
    TooLong {
        len: u64,
    },
    Failed,
    Lost,
}

/// What a program is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// A message has ended.
    Ended { slot: u16, end: End },
    /// Somebody has called.
    Joined { peer: u64, user: u32, pid: u32, name: String },
    /// Somebody has gone.
    Lost { peer: u64 },
    /// The answer to a question, in the order of the questions.
    Answer { code: u8, value: u64 },
    /// A doorbell.
    Bell { from: u64, number: u16, owner: u32 },
}

impl Told {
    /// Writes it to `out`, with the bytes of a message that was received.
    pub(crate) fn encode(&self, bytes: &[u64], out: &mut Vec<u64>) {
        out.clear();
        match self {
            Self::Ended { slot, end } => {
                let head = |code: u32| head(1, *slot, code);
                match *end {
                    End::Sent => out.push(head(0)),
                    End::Here { from, tag, len } => {
                        out.extend([head(1 | u32::from(len) << 16), from, tag]);
                        out.extend_from_slice(bytes);
                    }
                    End::Placed { from, tag, len } => out.extend([head(2), from, tag, len]),
                    End::Cancelled => out.push(head(3)),
                    End::TooLong { len } => out.extend([head(4), len]),
                    End::Failed => out.push(head(5)),
                    End::Lost => out.push(head(6)),
                }
            }
            Self::Joined { peer, user, pid, name } => {
                out.extend([head(2, name.len() as u16, *user), *peer, (*pid).into()]);
                out.extend(letters(name));
            }
            Self::Lost { peer } => out.extend([head(3, 0, 0), *peer]),
            Self::Answer { code, value } => out.extend([head(4, (*code).into(), 0), *value]),
            Self::Bell { from, number, owner } => out.extend([head(5, *number, *owner), *from]),
        }
    }

    /// What the words say, and the bytes of a message. `None`: nothing that is said.
    pub(crate) fn decode(words: &[u64]) -> Option<(Self, &[u64])> {
        let first = *words.first()?;
        let (kind, short, long) = (first as u8, (first >> 16) as u16, (first >> 32) as u32);
        let (code, len) = (long as u16, (long >> 16) as u16);
        let ended = |end| Some((Self::Ended { slot: short, end }, &[][..]));
        match (kind, code, words) {
            (1, 0, [_]) => ended(End::Sent),
            (1, 1, [_, from, tag, bytes @ ..]) if bytes.len() == usize::from(len).div_ceil(8) => {
                Some((Self::Ended { slot: short, end: End::Here { from: *from, tag: *tag, len } }, bytes))
            }
            (1, 2, [_, from, tag, len]) => ended(End::Placed { from: *from, tag: *tag, len: *len }),
            (1, 3, [_]) => ended(End::Cancelled),
            (1, 4, [_, len]) => ended(End::TooLong { len: *len }),
            (1, 5, [_]) => ended(End::Failed),
            (1, 6, [_]) => ended(End::Lost),
            (2, _, [_, peer, pid, name @ ..]) => {
                let (pid, name) = (u32::try_from(*pid).ok()?, name_of(name, short.into())?);
                Some((Self::Joined { peer: *peer, user: long, pid, name }, &[]))
            }
            (3, _, [_, peer]) => Some((Self::Lost { peer: *peer }, &[])),
            (4, _, [_, value]) => Some((Self::Answer { code: short as u8, value: *value }, &[])),
            (5, _, [_, from]) => Some((Self::Bell { from: *from, number: short, owner: long }, &[])),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_those_of_the_specification() {
        let bytes = [0x0706_0504_0302_0100, 0x08];
        let golden: [(Asked<'_>, &[u64]); 10] = [
            (Asked::Send { slot: 7, to: 8, tag: 9, len: 9, words: &bytes }, &[0x9_0007_0001, 8, 9, bytes[0], bytes[1]]),
            (Asked::SendPlaced { slot: 7, to: 8, tag: 9, at: 10, len: 11 }, &[0x7_0002, 8, 9, 10, 11]),
            (
                Asked::Receive { slot: 7, from: 8, tag: 9, mask: 10, at: 11, capacity: 12 },
                &[0x7_0003, 8, 9, 10, 11, 12],
            ),
            (Asked::Cancel { slot: 7 }, &[0x7_0004]),
            (Asked::Leave { peer: 8 }, &[5, 8]),
            (Asked::Connect { user: 3, name: "ab".to_owned() }, &[0x3_0002_0006, 0x6261]),
            (Asked::Claim { first: 1, last: 2, owner: 3 }, &[0x3_0000_0007, 0x2_0001]),
            (Asked::Release { owner: 3 }, &[0x3_0000_0008]),
            (Asked::Ring { to: 8, number: 5 }, &[0x5_0009, 8]),
            (Asked::Heard { from: 8, count: 5 }, &[0x5_0000_000a, 8]),
        ];
        let mut out = Vec::new();
        for (asked, words) in golden {
            asked.encode(&mut out);
            assert_eq!(out, words);
            assert_eq!(Asked::decode(words), Some(asked));
        }
        let here = End::Here { from: 8, tag: 9, len: 9 };
        let golden: [(Told, &[u64], &[u64]); 7] = [
            (Told::Ended { slot: 7, end: End::Sent }, &[], &[0x7_0001]),
            (Told::Ended { slot: 7, end: here }, &bytes, &[0x9_0001_0007_0001, 8, 9, bytes[0], bytes[1]]),
            (Told::Ended { slot: 7, end: End::Placed { from: 8, tag: 9, len: 10 } }, &[], &[0x2_0007_0001, 8, 9, 10]),
            (Told::Joined { peer: 8, user: 3, pid: 4, name: "ab".to_owned() }, &[], &[0x3_0002_0002, 8, 4, 0x6261]),
            (Told::Lost { peer: 8 }, &[], &[3, 8]),
            (Told::Answer { code: 1, value: 2 }, &[], &[0x1_0004, 2]),
            (Told::Bell { from: 8, number: 5, owner: 3 }, &[], &[0x3_0005_0005, 8]),
        ];
        for (told, bytes, words) in golden {
            told.encode(bytes, &mut out);
            assert_eq!(out, words);
            assert_eq!(Told::decode(words), Some((told, bytes)));
        }
        assert_eq!(POOL_AT, 131_584usize.next_multiple_of(4096));
        assert_eq!(INLINE, 1320);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Whatever stands there asks for nothing, or for what is written in the same way.
        #[test]
        fn words_ask_for_one_thing_or_nothing(mut words in prop::collection::vec(any::<u64>(), 0..9), kind in 0u64..12, small: bool) {
            if let Some(first) = words.first_mut() {
                *first = *first & !0xff | kind;
                if small {
                    *first &= 0x0000_000f_000f_00ff;
                }
            }
            if let Some(asked) = Asked::decode(&words) {
                let mut out = Vec::new();
                asked.encode(&mut out);
                let is_name = matches!(asked, Asked::Connect { .. });
                prop_assert!(out == words || is_name && out.len() == words.len());
            }
            let _ = Told::decode(&words);
        }
    }
}
