//! What two endpoints of different hosts say to each other: records, each a SEND of the RDMA engine (`docs/spec/message.md` §10).
//!
//! | Word | |
//! |---|---|
//! | 0 | `MR`, version (4 bits), path (4), kind (8), and in the upper half the epoch of the path, a key, or the number of the record |
//! | 1 on | by kind |
//!
//! What is said in order stands in records of the kind *said*, as items: a word (words that follow 16 bits, kind 8, 0, value 32), and the words.

use crate::endpoint::Refusal;
use crate::engine::Terms;

/// Bytes of a record, at most: an eager message has room in one.
pub const LEN: usize = 2048;
/// Words of one.
pub const WORDS: usize = LEN / 8;
/// `MR`, and the version.
const MAGIC: u64 = 0x01_524d;
/// Paths of a pair, at most.
pub const MOST_PATHS: usize = 8;
/// Letters of a name, and of the name of a host.
pub const LONGEST: usize = 64;

/// What an endpoint says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Which opening of an endpoint: a random number.
    pub id: u64,
    pub terms: Terms,
    pub user: u32,
    pub name: String,
    pub host: String,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'w> {
    /// Who calls: a number for the pair, whom it means, the key of its receive buffers on this path, and what it is.
    Hello { pair: u64, to: u64, key: u32, card: Card },
    /// Who is called takes it.
    Welcome { pair: u64, key: u32, card: Card },
    /// Or not.
    Refused { pair: u64, why: Refusal },
    /// The pair goes by this path as well. If it did before, that is over, with what the sender has of what was said in order.
    Join { path: u8, epoch: u32, pair: u64, key: u32, expected: u32 },
    /// From the other end, too.
    Joined { path: u8, epoch: u32, pair: u64, key: u32 },
    /// The sender has ended its half of that path, and of what was said in order it has all before that number.
    Over { path: u8, epoch: u32, expected: u32 },
    /// The sender lives.
    Alive,
    /// What is said in order: its number, and items.
    Said { number: u32, items: &'w [u64] },
}

const fn head(kind: u8, path: u8, upper: u32) -> u64 {
    MAGIC | (kind as u64) << 24 | (upper as u64) << 32 | (path as u64) << 20
}

/// The first word of what is said in order.
pub const fn said(number: u32) -> u64 {
    head(8, 0, number)
}

fn put_text(words: &mut Vec<u64>, text: &str) {
    let (whole, rest) = text.as_bytes().as_chunks::<8>();
    words.extend(whole.iter().map(|chunk| u64::from_le_bytes(*chunk)));
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words.push(u64::from_le_bytes(last));
    }
}

fn put_card(words: &mut Vec<u64>, card: &Card) {
    let Card { id, terms, user, name, host } = card;
    words.push(*id);
    words.push(u64::from(terms.slots) | u64::from(terms.credits) << 16 | u64::from(terms.mtu) << 32);
    words.push(u64::from(*user) | (name.len() as u64) << 32 | (host.len() as u64) << 40);
    put_text(words, name);
    put_text(words, host);
}

/// Takes words from the front.
struct Words<'w>(&'w [u64]);

impl<'w> Words<'w> {
    fn next(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn next32(&mut self) -> Option<u32> {
        u32::try_from(self.next()?).ok()
    }

    fn text(&mut self, len: usize) -> Option<String> {
        let (words, rest) = self.0.split_at_checked(len.div_ceil(8))?;
        self.0 = rest;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let is_padded = bytes.drain(len..).all(|byte| byte == 0);
        String::from_utf8(bytes).ok().filter(|text| is_padded && (text.is_empty() || is_name(text)))
    }

    fn card(&mut self) -> Option<Card> {
        let (id, terms, third) = (self.next()?, self.next()?, self.next()?);
        let terms = Terms { slots: terms as u8, credits: (terms >> 16) as u16, mtu: (terms >> 32) as u32 };
        let (name, host) = ((third >> 32) as u8, (third >> 40) as u8);
        let (name, host) = (self.text(name.into())?, self.text(host.into())?);
        terms.is_possible().then_some(Card { id, terms, user: third as u32, name, host })
    }
}

/// Whether it is a name, of an endpoint or of a host.
pub fn is_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_letter)
}

impl<'w> Record<'w> {
    /// Its words. Those of what is said in order are written where they are to be sent from.
    pub fn write(&self) -> Vec<u64> {
        match self {
            Self::Hello { pair, to, key, card } => {
                let mut words = vec![head(1, 0, *key), *pair, *to];
                put_card(&mut words, card);
                words
            }
            Self::Welcome { pair, key, card } => {
                let mut words = vec![head(2, 0, *key), *pair];
                put_card(&mut words, card);
                words
            }
            Self::Refused { pair, why } => {
                let why = match why {
                    Refusal::User => 1,
                    Refusal::Full => 2,
                    Refusal::Version => 3,
                };
                vec![head(3, 0, why), *pair]
            }
            Self::Join { path, epoch, pair, key, expected } => {
                vec![head(4, *path, *epoch), *pair, u64::from(*key) | u64::from(*expected) << 32]
            }
            Self::Joined { path, epoch, pair, key } => vec![head(5, *path, *epoch), *pair, u64::from(*key)],
            Self::Over { path, epoch, expected } => vec![head(6, *path, *epoch), u64::from(*expected)],
            Self::Alive => vec![head(7, 0, 0)],
            Self::Said { number, items } => [&[said(*number)], *items].concat(),
        }
    }

    /// What words say. `None`: it is no record.
    pub fn read(words: &'w [u64]) -> Option<Self> {
        let (first, rest) = words.split_first()?;
        let (upper, kind, path) = ((first >> 32) as u32, (first >> 24) as u8, (first >> 20) as u8 & 15);
        if head(kind, path, upper) != *first || usize::from(path) >= MOST_PATHS {
            return None;
        }
        let (mut rest, epoch) = (Words(rest), upper);
        let record = match kind {
            1 => Self::Hello { pair: rest.next()?, to: rest.next()?, key: upper, card: rest.card()? },
            2 => Self::Welcome { pair: rest.next()?, key: upper, card: rest.card()? },
            3 => Self::Refused {
                pair: rest.next()?,
                why: match upper {
                    1 => Refusal::User,
                    2 => Refusal::Full,
                    _ => Refusal::Version,
                },
            },
            4 => {
                let (pair, both) = (rest.next()?, rest.next()?);
                Self::Join { path, epoch, pair, key: both as u32, expected: (both >> 32) as u32 }
            }
            5 => Self::Joined { path, epoch, pair: rest.next()?, key: rest.next32()? },
            6 => Self::Over { path, epoch, expected: rest.next32()? },
            7 if upper == 0 => Self::Alive,
            8 => return (path == 0 && !rest.0.is_empty()).then_some(Self::Said { number: upper, items: rest.0 }),
            _ => return None,
        };
        (rest.0.is_empty() && (matches!(kind, 4..=6) || path == 0)).then_some(record)
    }
}

/// A thing that is said in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'w> {
    /// What engines say to each other ([`crate::control`]).
    Control(&'w [u64]),
    /// A doorbell.
    Bell(u16),
    /// So many doorbells were taken, since the beginning, modulo 2^32.
    Taken(u32),
    /// The doorbells that are wanted: ranges, the first number and the last in 32 bits, two in a word. Said first of all, and when they change.
    Wanted(&'w [u64]),
}

/// The word before the words of an item.
pub const fn item(kind: u8, count: usize, value: u32) -> u64 {
    count as u64 & 0xffff | (kind as u64) << 16 | (value as u64) << 32
}

pub const CONTROL: u8 = 1;
pub const BELL: u8 = 2;
pub const TAKEN: u8 = 3;
pub const WANTED: u8 = 4;

/// The items of a record, one after the other. `Err`: it is none.
pub struct Items<'w>(pub &'w [u64]);

impl<'w> Iterator for Items<'w> {
    type Item = Option<Item<'w>>;

    fn next(&mut self) -> Option<Option<Item<'w>>> {
        let (first, rest) = self.0.split_first()?;
        let (kind, count, value) = ((first >> 16) as u8, *first as u16, (first >> 32) as u32);
        let Some((words, rest)) = rest.split_at_checked(count.into()) else {
            self.0 = &[];
            return Some(None);
        };
        self.0 = rest;
        let is_plain = item(kind, count.into(), value) == *first;
        Some(match (kind, count) {
            _ if !is_plain => None,
            (CONTROL, 1..) if value == 0 => Some(Item::Control(words)),
            (BELL, 0) => u16::try_from(value).ok().map(Item::Bell),
            (TAKEN, 0) => Some(Item::Taken(value)),
            (WANTED, _) if value == 0 => Some(Item::Wanted(words)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn card() -> Card {
        let terms = Terms { mtu: 0x1_0000, slots: 8, credits: 64 };
        Card { id: 0x0123_4567_89ab_cdef, terms, user: 1000, name: "solver".into(), host: "a.example".into() }
    }

    /// The bytes of each kind, one by one (`docs/spec/message.md` §10).
    #[test]
    fn words_are_those_of_the_specification() {
        let about = [
            0x0123_4567_89ab_cdef,
            0x0001_0000_0040_0008,
            0x0000_0906_0000_03e8,
            u64::from_le_bytes(*b"solver\0\0"),
            u64::from_le_bytes(*b"a.exampl"),
            u64::from(b'e'),
        ];
        let golden: [(Record<'_>, &[u64], &[u64]); 8] = [
            (Record::Hello { pair: 5, to: 6, key: 7, card: card() }, &[0x0000_0007_0101_524d, 5, 6], &about),
            (Record::Welcome { pair: 5, key: 7, card: card() }, &[0x0000_0007_0201_524d, 5], &about),
            (Record::Refused { pair: 5, why: Refusal::Full }, &[0x0000_0002_0301_524d, 5], &[]),
            (
                Record::Join { path: 2, epoch: 3, pair: 5, key: 7, expected: 9 },
                &[0x0000_0003_0421_524d, 5, 0x9_0000_0007],
                &[],
            ),
            (Record::Joined { path: 2, epoch: 3, pair: 5, key: 7 }, &[0x0000_0003_0521_524d, 5, 7], &[]),
            (Record::Over { path: 2, epoch: 3, expected: 9 }, &[0x0000_0003_0621_524d, 9], &[]),
            (Record::Alive, &[0x0000_0000_0701_524d], &[]),
            (Record::Said { number: 9, items: &[0x0000_0005_0002_0000] }, &[0x0000_0009_0801_524d, 0x5_0002_0000], &[]),
        ];
        for (record, first, rest) in golden {
            let words = [first, rest].concat();
            assert_eq!(record.write(), words, "{record:?}");
            assert_eq!(Record::read(&words), Some(record));
            let longer = [&words[..], &[0]].concat();
            assert!(matches!(Record::read(&longer), None | Some(Record::Said { .. })));
        }
        let words = [
            item(CONTROL, 2, 0),
            1,
            2,
            item(BELL, 0, 65_535),
            item(TAKEN, 0, 9),
            item(WANTED, 1, 0),
            3,
            item(WANTED, 0, 0),
        ];
        let items: Vec<_> = Items(&words).collect();
        let wanted =
            [Item::Control(&[1, 2]), Item::Bell(65_535), Item::Taken(9), Item::Wanted(&[3]), Item::Wanted(&[])];
        assert_eq!(items, wanted.map(Some));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Whatever stands there is nothing, or something that is written the same way again.
        #[test]
        fn words_say_one_thing_or_nothing(kind in 0u64..10, path in 0u64..16, mut words in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..70], 0..12), small: bool) {
            if let Some(first) = words.first_mut() {
                *first = MAGIC | kind << 24 | path << 20 | (*first & 0xff) << 32;
            }
            if small && words.len() > 5 {
                words[3] = 0x0001_0000_0040_0008;
                words[4] &= 0x0000_0303_ffff_ffff;
            }
            if let Some(record) = Record::read(&words) {
                if !matches!(record, Record::Refused { .. }) {
                    prop_assert_eq!(record.write(), &words[..]);
                }
                if let Record::Said { items, .. } = record {
                    prop_assert!(Items(items).count() <= items.len());
                }
            }
        }
    }
}
