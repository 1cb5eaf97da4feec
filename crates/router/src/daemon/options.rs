//! How a router is started.

use std::fmt;
use std::str::FromStr;

use super::choice::Place;
use super::control;
use super::parts::Parts;
use super::pattern::Pattern;

/// How a router is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which interfaces it takes, those that come later too.
    pub interfaces: Vec<Pattern>,
    /// Where its program is; `None`: where it does best.
    pub place: Option<Place>,
    /// What becomes of the rules when it dies.
    pub on_death: OnDeath,
    /// One packet in so many is compared with what Linux makes of it; 0: none.
    pub compare: u32,
    /// What is done.
    pub parts: Parts,
    /// Whether it is on from the beginning.
    pub is_on: bool,
    /// The abstract name of its socket.
    pub socket: String,
    /// Who may look, besides root and the owner.
    pub group: Option<u32>,
    /// Places for rules of IPv4, and a quarter as many of IPv6.
    pub rules: u32,
    /// The tunnel interface of a gateway of IPsec in this process.
    pub tunnel: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            place: None,
            on_death: OnDeath::Flush,
            compare: 1024,
            parts: Parts::ALL,
            is_on: true,
            socket: control::NAME.to_owned(),
            group: None,
            rules: 1 << 18,
            tunnel: None,
        }
    }
}

/// What becomes of the rules when the daemon dies without being asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDeath {
    /// They stay in force for [`KEPT_SECONDS`] at most, though nobody sees that routes change.
    Keep,
    /// Everything goes through Linux within a second.
    Flush,
}

/// How long rules outlive the daemon with [`OnDeath::Keep`]: a restart takes less, and nothing that is wrong stays for longer.
pub const KEPT_SECONDS: u32 = 60;

impl OnDeath {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Flush => "flush",
        }
    }
}

/// A word that is none of those that an option takes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is none of {known}")]
pub struct BadWord {
    word: String,
    known: &'static str,
}

impl FromStr for OnDeath {
    type Err = BadWord;
    fn from_str(word: &str) -> Result<Self, BadWord> {
        match word {
            "keep" => Ok(Self::Keep),
            "flush" => Ok(Self::Flush),
            _ => Err(BadWord { word: word.to_owned(), known: "keep, flush" }),
        }
    }
}

/// Where the program is to be: `auto`, `xdp` or `tc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Where(pub Option<Place>);

impl FromStr for Where {
    type Err = BadWord;
    fn from_str(word: &str) -> Result<Self, BadWord> {
        match word {
            "auto" => Ok(Self(None)),
            "xdp" => Ok(Self(Some(Place::Xdp))),
            "tc" => Ok(Self(Some(Place::Tc))),
            _ => Err(BadWord { word: word.to_owned(), known: "auto, xdp, tc" }),
        }
    }
}

/// A share of packets that is compared: `1/1024`, `100%`, `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(pub u32);

impl FromStr for Share {
    type Err = BadWord;
    fn from_str(word: &str) -> Result<Self, BadWord> {
        let part = word.strip_prefix("1/").and_then(|rest| rest.parse().ok()).filter(|part| *part > 0);
        match (word, part) {
            ("off" | "0", _) => Ok(Self(0)),
            ("all" | "1" | "100%", _) => Ok(Self(1)),
            (_, Some(part)) => Ok(Self(part)),
            _ => Err(BadWord { word: word.to_owned(), known: "off, all, or a share such as 1/1024" }),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.pad("off"),
            1 => f.pad("all"),
            part => f.pad(&format!("1/{part}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read() {
        assert_eq!(("auto".parse(), "tc".parse()), (Ok(Where(None)), Ok(Where(Some(Place::Tc)))));
        assert_eq!("keep".parse(), Ok(OnDeath::Keep));
        for (word, share) in [("off", 0), ("all", 1), ("1/1", 1), ("1/1024", 1024), ("100%", 1)] {
            assert_eq!(word.parse(), Ok(Share(share)), "{word}");
        }
        assert!("1/0".parse::<Share>().is_err() && "2/3".parse::<Share>().is_err() && "fast".parse::<Where>().is_err());
        assert_eq!([0, 1, 8].map(|part| Share(part).to_string()), ["off", "all", "1/8"]);
    }
}
