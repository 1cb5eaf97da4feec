//! The words for queues: which one, which way, which engine, which mode, shared how.

use core::{fmt, str::FromStr};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The way packets move through a queue, seen from the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the network to the application.
    Rx,
    /// From the application to the network.
    Tx,
}

/// One queue of a card: a direction and an index, written `rx3` or `tx3`, in JSON too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId {
    /// Direction of the queue.
    pub direction: Direction,
    /// Position among the queues of that direction, from 0.
    pub index: u32,
}

impl QueueId {
    /// The receive queue `index`.
    pub const fn rx(index: u32) -> Self {
        Self { direction: Direction::Rx, index }
    }

    /// The transmit queue `index`.
    pub const fn tx(index: u32) -> Self {
        Self { direction: Direction::Tx, index }
    }
}

impl Serialize for QueueId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => (self.direction, self.index).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for QueueId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            let (direction, index) = Deserialize::deserialize(deserializer)?;
            return Ok(Self { direction, index });
        }
        let text = String::deserialize(deserializer)?;
        let (way, index) = text.split_at_checked(2).unwrap_or_default();
        let direction = match way {
            "rx" => Direction::Rx,
            "tx" => Direction::Tx,
            _ => return Err(D::Error::custom("not a queue: write rx0 or tx0")),
        };
        let index = index.parse().map_err(D::Error::custom)?;
        Ok(Self { direction, index })
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.direction {
            Direction::Rx => "rx",
            Direction::Tx => "tx",
        };
        write!(f, "{way}{}", self.index)
    }
}

/// The DMA protocol that serves a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// A stream of packets in one byte ring (`docs/spec/nfb-card.md` §3.1).
    Sze,
    /// One descriptor per packet, upper and lower address (§3.2).
    Medusa,
    /// Headers that are doorbells; TX frames are written into the device (§3.2.5).
    Calypte,
    /// Descriptors with a done bit and a launch time (`docs/spec/dd.md`).
    Dd,
}

impl Engine {
    /// Every engine there is.
    pub const ALL: [Engine; 4] = [Engine::Sze, Engine::Medusa, Engine::Calypte, Engine::Dd];

    /// Whether its queues can be opened in that mode. Those of DD belong to one program, which drives them itself.
    pub fn has(self, mode: Mode) -> bool {
        (self, mode) != (Engine::Dd, Mode::Mediated)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Sze => "sze",
            Engine::Medusa => "medusa",
            Engine::Calypte => "calypte",
            Engine::Dd => "dd",
        })
    }
}

/// Who moves the pointers of an open queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The application itself, in shared memory; the driver is not asked between start and stop.
    #[default]
    Direct,
    /// The driver, on request, once per synchronisation.
    Mediated,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Direct => "direct",
            Mode::Mediated => "mediated",
        })
    }
}

/// What happens to a subscriber of a shared RX queue that falls a whole ring behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Laggard {
    /// The queue waits for it; the other subscribers wait too.
    #[default]
    Block,
    /// It loses the oldest packets that it has not taken yet, and is told how many.
    Drop,
    /// It is thrown out of the queue, and its next call says so.
    Evict,
}

impl fmt::Display for Laggard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Laggard::Block => "block",
            Laggard::Drop => "drop",
            Laggard::Evict => "evict",
        })
    }
}

/// Whether an opener wants a queue for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Nobody else may open the queue meanwhile.
    #[default]
    Exclusive,
    /// Up to [`MAX_SUBSCRIBERS`] openers, each of which sees every packet (RX), or takes turns (TX, mediated only).
    Shared(Laggard),
}

/// Which policies those may choose who join a shared RX queue that somebody else has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Joiners {
    /// [`Laggard::Block`]: one of them that does not read stops the queue for all.
    pub block: bool,
    /// [`Laggard::Drop`].
    pub drop: bool,
    /// [`Laggard::Evict`].
    pub evict: bool,
}

impl Joiners {
    /// Whether a joiner may choose this policy.
    pub fn allow(self, policy: Laggard) -> bool {
        match policy {
            Laggard::Block => self.block,
            Laggard::Drop => self.drop,
            Laggard::Evict => self.evict,
        }
    }
}

impl fmt::Display for Joiners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed = [Laggard::Block, Laggard::Drop, Laggard::Evict].into_iter().filter(|&policy| self.allow(policy));
        let words: Vec<String> = allowed.map(|policy| policy.to_string()).collect();
        if words.is_empty() { f.write_str("none") } else { f.write_str(&words.join(",")) }
    }
}

impl FromStr for Joiners {
    type Err = UnknownWord;

    /// Words with commas between, such as `drop,evict`, or `none`.
    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        let mut joiners = Self { block: false, drop: false, evict: false };
        if text == "none" {
            return Ok(joiners);
        }
        for word in text.split(',') {
            match word.parse::<Laggard>() {
                Ok(Laggard::Block) => joiners.block = true,
                Ok(Laggard::Drop) => joiners.drop = true,
                Ok(Laggard::Evict) => joiners.evict = true,
                Err(error) => return Err(UnknownWord { expected: "block, drop, evict, none", ..error }),
            }
        }
        Ok(joiners)
    }
}

/// How many programs may read one RX queue at once.
pub const MAX_SUBSCRIBERS: usize = 16;

/// A word that is none of the accepted ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not one of: {expected}")]
pub struct UnknownWord {
    /// What was given.
    pub word: String,
    /// What would have been accepted, separated by commas.
    pub expected: &'static str,
}

macro_rules! from_words {
    ($type:ty, $expected:literal, $($word:literal => $value:expr),+) => {
        impl FromStr for $type {
            type Err = UnknownWord;
            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                match word {
                    $($word => Ok($value),)+
                    _ => Err(UnknownWord { word: word.to_owned(), expected: $expected }),
                }
            }
        }
    };
}

from_words!(Engine, "sze, medusa, calypte, dd",
    "sze" => Engine::Sze, "medusa" => Engine::Medusa, "calypte" => Engine::Calypte, "dd" => Engine::Dd);
from_words!(Mode, "direct, mediated", "direct" => Mode::Direct, "mediated" => Mode::Mediated);
from_words!(Laggard, "block, drop, evict",
    "block" => Laggard::Block, "drop" => Laggard::Drop, "evict" => Laggard::Evict);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_as_they_print() {
        for engine in Engine::ALL {
            assert_eq!(engine.to_string().parse(), Ok(engine));
        }
        for mode in [Mode::Direct, Mode::Mediated] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for laggard in [Laggard::Block, Laggard::Drop, Laggard::Evict] {
            assert_eq!(laggard.to_string().parse(), Ok(laggard));
        }
        assert_eq!(
            "Medusa".parse::<Engine>().unwrap_err().to_string(),
            "\"Medusa\" is not one of: sze, medusa, calypte, dd"
        );
        assert_eq!(QueueId::tx(3).to_string(), "tx3");
        let queue = QueueId::rx(4095);
        assert_eq!(serde_json::to_string(&queue).unwrap(), r#""rx4095""#);
        assert_eq!(serde_json::from_str::<QueueId>(r#""rx4095""#).unwrap(), queue);
        for text in ["", "rx", "rx-1", "rx4294967296", "qx1", "ěx1", "rx 1"] {
            assert!(serde_json::from_str::<QueueId>(&format!("{text:?}")).is_err(), "{text}");
        }
        let bytes = postcard::to_stdvec(&queue).unwrap();
        assert_eq!((bytes.len(), postcard::from_bytes(&bytes)), (3, Ok(queue)));
        for text in ["none", "block", "drop,evict", "block,drop,evict"] {
            assert_eq!(text.parse::<Joiners>().map(|joiners| joiners.to_string()), Ok(text.to_owned()));
        }
        assert!("drop,".parse::<Joiners>().is_err() && "".parse::<Joiners>().is_err());
    }
}
