//! Names of interfaces as they are asked for: `eth0`, or all of a kind by `eth*`, those that come later too.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A name, in which `*` stands for any letters, and `?` for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern(String);

/// Longest name of an interface (`IFNAMSIZ` less the zero at its end).
const LONGEST: usize = 15;

/// A text that is no name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name of an interface: it has 1 to {LONGEST} letters, no space and no `/`; `*` and `?` stand for others, as in eth*"
)]
pub struct BadPattern(String);

impl FromStr for Pattern {
    type Err = BadPattern;
    fn from_str(text: &str) -> Result<Self, BadPattern> {
        let is_letter =
            |letter: char| !letter.is_whitespace() && !letter.is_control() && letter != '/' && letter != ':';
        let is_name = (1..=LONGEST).contains(&text.len()) && text.chars().all(is_letter) && text != "." && text != "..";
        is_name.then(|| Self(text.to_owned())).ok_or_else(|| BadPattern(text.to_owned()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Pattern {
    /// Whether it stands for several names.
    pub fn is_wild(&self) -> bool {
        self.0.contains(['*', '?'])
    }

    /// Whether an interface of that name is meant.
    pub fn fits(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut of) = (0, 0);
        // Where the last `*` was, and up to where it stands for letters of the name.
        let mut star = None;
        while of < name.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    star = Some((at, of));
                    at += 1;
                }
                Some(&letter) if letter == b'?' || letter == name[of] => (at, of) = (at + 1, of + 1),
                _ => {
                    let Some((place, reach)) = star else { return false };
                    star = Some((place, reach + 1));
                    (at, of) = (place + 1, reach + 1);
                }
            }
        }
        pattern[at..].iter().all(|&letter| letter == b'*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_letters() {
        let fits = |pattern: &str, name: &str| pattern.parse::<Pattern>().unwrap().fits(name);
        for (pattern, name) in
            [("eth0", "eth0"), ("eth*", "eth"), ("eth*", "eth10"), ("*", "x"), ("e*h?", "eath1"), ("*a*b", "aab")]
        {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("eth0", "eth01"), ("eth*", "et"), ("e?", "e"), ("*a*b", "aba"), ("?", "ab")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn what_cannot_be_a_name_is_refused() {
        for text in ["", "a b", "a/b", "..", "an-interface-with-a-long-name", "a:b"] {
            let said = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(said.contains("eth*"), "{said}");
        }
        assert!("eth*".parse::<Pattern>().unwrap().is_wild());
    }
}
