//! What the two ends of a pair say to each other, as words of a ring (`docs/spec/message.md` §3).
//!
//! | Word | |
//! |---|---|
//! | 0 | kind (8 bits), flags (8), slot or length (16), number of the message (32) |
//! | 1 | tag |
//! | 2 | bytes of the message |
//! | 3, 4 | key and address of its bytes |
//! | 2 to the end | the bytes of an eager message |

use millrace_ring::lines::MOST_WORDS;

/// Most bytes of an eager message.
pub const MOST_EAGER: usize = (MOST_WORDS - 2) * 8;
/// Most bytes of an eager message that moves one line of the cache.
pub const ONE_LINE: usize = 5 * 8;
/// Words before the bytes of an eager message.
pub const EAGER_AT: usize = 2;

/// The number of a message that is not eager, of one sender to one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message(pub u32);

/// What a receiver does with messages: compared under a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u64);

/// Where the bytes of a message are at the sender, for a move without copies: what the memory engine of the two ends makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Key of the region.
    pub key: u64,
    /// Where in it the message begins.
    pub address: u64,
}

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Control {
    /// A message with its bytes.
    Eager {
        /// What for.
        tag: Tag,
        /// How many.
        len: u16,
    },
    /// A message whose bytes come when there is a place for them.
    Request {
        /// Its number.
        message: Message,
        /// What for.
        tag: Tag,
        /// How many bytes.
        len: u64,
        /// They can be moved from memory to memory: from there.
        direct: Option<Origin>,
        /// Buffers may be granted for all of it, not only for what was asked for.
        ahead: bool,
    },
    /// One more buffer is asked for.
    Ask(Message),
    /// A receive buffer of the pair is the sender's, and the message is wanted.
    Grant(Message, u8),
    /// A receive buffer has the next part of that message, and is the receiver's again.
    Done(Message, u8),
    /// All of a message was moved from the sender's memory to the receiver's, by the receiver.
    Moved(Message),
    /// So many envelopes have left the memory for unexpected messages, since the beginning.
    Credit(u32),
    /// The sender would rather not send that message.
    Withdraw(Message),
    /// It was withdrawn.
    Withdrawn(Message),
    /// The receiver has no room for it: too long for what was posted.
    TooLong(Message),
    /// The bytes cannot be sent or taken any more, though both ends live.
    Failed(Message),
}

/// What no version of this says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other endpoint has written what is no message of this protocol")]
pub struct Nonsense;

const fn head(kind: u8, flags: u8, short: u16, message: u32) -> u64 {
    kind as u64 | (flags as u64) << 8 | (short as u64) << 16 | (message as u64) << 32
}

impl Control {
    /// Its words, and how many there are. The bytes of an eager message stand behind them.
    #[inline]
    pub fn encode(self) -> ([u64; 5], usize) {
        let one = |kind, short, message: Message| ([head(kind, 0, short, message.0), 0, 0, 0, 0], 1);
        match self {
            Self::Eager { tag, len } => ([head(1, 0, len, 0), tag.0, 0, 0, 0], 2),
            Self::Request { message, tag, len, direct, ahead } => {
                let flags = direct.is_some() as u8 | (ahead as u8) << 1;
                let first = head(2, flags, 0, message.0);
                match direct {
                    Some(origin) => ([first, tag.0, len, origin.key, origin.address], 5),
                    None => ([first, tag.0, len, 0, 0], 3),
                }
            }
            Self::Ask(message) => one(3, 0, message),
            Self::Grant(message, slot) => one(4, slot.into(), message),
            Self::Done(message, slot) => one(5, slot.into(), message),
            Self::Moved(message) => one(6, 0, message),
            Self::Credit(count) => one(7, 0, Message(count)),
            Self::Withdraw(message) => one(8, 0, message),
            Self::Withdrawn(message) => one(9, 0, message),
            Self::TooLong(message) => one(10, 0, message),
            Self::Failed(message) => one(11, 0, message),
        }
    }

    /// What the words say. Of an eager message the bytes are behind [`EAGER_AT`] words, as many as it says.
    ///
    /// # Errors
    /// [`Nonsense`].
    #[inline]
    pub fn decode(words: &[u64]) -> Result<Self, Nonsense> {
        let first = *words.first().ok_or(Nonsense)?;
        let [kind, flags] = [first as u8, (first >> 8) as u8];
        let (short, number) = ((first >> 16) as u16, (first >> 32) as u32);
        let message = Message(number);
        if kind == 1 {
            let fits = words.len() == EAGER_AT + usize::from(short).div_ceil(8) && flags == 0 && number == 0;
            return if fits { Ok(Self::Eager { tag: Tag(words[1]), len: short }) } else { Err(Nonsense) };
        }
        let slot = u8::try_from(short).map_err(|_| Nonsense)?;
        let said = match (kind, words.len()) {
            (2, 3 | 5) if flags < 4 && (words.len() == 5) == (flags & 1 != 0) => Self::Request {
                message,
                tag: Tag(words[1]),
                len: words[2],
                direct: (flags & 1 != 0).then(|| Origin { key: words[3], address: words[4] }),
                ahead: flags & 2 != 0,
            },
            (3, 1) => Self::Ask(message),
            (4, 1) => Self::Grant(message, slot),
            (5, 1) => Self::Done(message, slot),
            (6, 1) => Self::Moved(message),
            (7, 1) => Self::Credit(number),
            (8, 1) => Self::Withdraw(message),
            (9, 1) => Self::Withdrawn(message),
            (10, 1) => Self::TooLong(message),
            (11, 1) => Self::Failed(message),
            _ => return Err(Nonsense),
        };
        // Nothing is said in two ways.
        let (again, len) = said.encode();
        if again[..len] == *words { Ok(said) } else { Err(Nonsense) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes of each kind, one by one (`docs/spec/message.md` §3).
    #[test]
    fn words_are_those_of_the_specification() {
        let (message, origin) = (Message(0x89ab_cdef), Origin { key: 5, address: 6 });
        let golden: [(Control, &[u64]); 12] = [
            (Control::Eager { tag: Tag(7), len: 0 }, &[0x0000_0000_0000_0001, 7]),
            (
                Control::Request { message, tag: Tag(9), len: 1 << 32, direct: None, ahead: true },
                &[0x89ab_cdef_0000_0202, 9, 1 << 32],
            ),
            (
                Control::Request { message, tag: Tag(9), len: 1, direct: Some(origin), ahead: false },
                &[0x89ab_cdef_0000_0102, 9, 1, 5, 6],
            ),
            (Control::Ask(message), &[0x89ab_cdef_0000_0003]),
            (Control::Grant(message, 63), &[0x89ab_cdef_003f_0004]),
            (Control::Done(message, 63), &[0x89ab_cdef_003f_0005]),
            (Control::Moved(message), &[0x89ab_cdef_0000_0006]),
            (Control::Credit(0x89ab_cdef), &[0x89ab_cdef_0000_0007]),
            (Control::Withdraw(message), &[0x89ab_cdef_0000_0008]),
            (Control::Withdrawn(message), &[0x89ab_cdef_0000_0009]),
            (Control::TooLong(message), &[0x89ab_cdef_0000_000a]),
            (Control::Failed(message), &[0x89ab_cdef_0000_000b]),
        ];
        for (said, words) in golden {
            let (found, len) = said.encode();
            assert_eq!(&found[..len], words, "{said:?}");
            assert_eq!(Control::decode(words), Ok(said));
        }
        assert_eq!(Control::decode(&[0x0009_0001, 7, 1, 2]), Ok(Control::Eager { tag: Tag(7), len: 9 }));
        assert_eq!(Control::decode(&[0x0009_0001, 7, 1]), Err(Nonsense));
        assert_eq!(Control::decode(&[]), Err(Nonsense));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Whatever stands there is nothing, or something that is written the same way again.
        #[test]
        fn words_say_one_thing_or_nothing(mut words in prop::collection::vec(any::<u64>(), 0..7), kind in 0u64..15, small: bool) {
            if let Some(first) = words.first_mut() {
                *first = *first & !0xff | kind;
                if small {
                    *first &= 0xffff_ffff_001f_03ff;
                }
            }
            if let Ok(said) = Control::decode(&words) && !matches!(said, Control::Eager { .. }) {
                let (again, len) = said.encode();
                prop_assert_eq!(&again[..len], &words[..]);
            }
        }
    }
}
