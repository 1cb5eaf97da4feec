//! The parts of the fast path, each of which can be switched on and off alone.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Frames between ports of a bridge.
    Fdb,
    /// Tags.
    Vlan,
    /// Sessions of PPPoE.
    Pppoe,
    /// Routing of IPv4.
    Ipv4,
    /// Routing of IPv6.
    Ipv6,
    /// Addresses and ports that are translated.
    Nat,
    /// A DSCP that Linux sets.
    Tos,
    /// Fragments.
    Fragment,
    /// Errors of ICMP that the router itself says.
    Icmp,
    /// Packets to groups.
    Multicast,
}

impl Part {
    /// All of them, in the order of the steps.
    pub const ALL: [Self; 10] = [
        Self::Fdb,
        Self::Vlan,
        Self::Pppoe,
        Self::Ipv4,
        Self::Ipv6,
        Self::Nat,
        Self::Tos,
        Self::Fragment,
        Self::Icmp,
        Self::Multicast,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fdb => "fdb",
            Self::Vlan => "vlan",
            Self::Pppoe => "pppoe",
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Nat => "nat",
            Self::Tos => "tos",
            Self::Fragment => "fragment",
            Self::Icmp => "icmp",
            Self::Multicast => "multicast",
        }
    }

    fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Several parts, as bits in the order of [`Part::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts(pub u32);

impl Parts {
    /// All of them.
    pub const ALL: Self = Self((1 << Part::ALL.len()) - 1);

    /// Whether a part is among them.
    pub fn has(self, part: Part) -> bool {
        self.0 & part.bit() != 0
    }

    /// Those that are there.
    pub fn iter(self) -> impl Iterator<Item = Part> {
        Part::ALL.into_iter().filter(move |part| self.has(*part))
    }
}

/// A word that is no part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no part of the router; there are all, fdb, vlan, pppoe, ipv4, ipv6, nat, tos, fragment, icmp and multicast, with commas between them"
)]
pub struct BadPart(String);

impl FromStr for Parts {
    type Err = BadPart;
    /// Translation, fragments, errors and multicast are work on what is routed: they alone mean both versions of IP too.
    fn from_str(text: &str) -> Result<Self, BadPart> {
        let mut parts = Self(0);
        for word in text.split(',') {
            let part = Part::ALL.into_iter().find(|part| part.name() == word);
            match (word, part) {
                ("all", _) => parts = Self::ALL,
                (_, Some(part)) => parts.0 |= part.bit(),
                (_, None) => return Err(BadPart(word.to_owned())),
            }
        }
        let is_routed =
            [Part::Nat, Part::Fragment, Part::Icmp, Part::Multicast].into_iter().any(|part| parts.has(part));
        if is_routed && !parts.has(Part::Ipv4) && !parts.has(Part::Ipv6) {
            parts.0 |= Part::Ipv4.bit() | Part::Ipv6.bit();
        }
        Ok(parts)
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Part::name).collect();
        f.pad(&if names.is_empty() { "none".to_owned() } else { names.join(",") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_said_in_words() {
        let parts: Parts = "fdb,nat".parse().unwrap();
        assert_eq!(parts.to_string(), "fdb,ipv4,ipv6,nat");
        assert_eq!("nat,ipv4".parse::<Parts>().unwrap().to_string(), "ipv4,nat");
        assert_eq!("all".parse(), Ok(Parts::ALL));
        assert_eq!(Parts::ALL.iter().count(), Part::ALL.len());
        assert!("fdb,wood".parse::<Parts>().unwrap_err().to_string().contains("\"wood\""));
    }
}
