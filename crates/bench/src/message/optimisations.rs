//! The three optimisations of the source, each of which can be left out.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use millrace_message::endpoint::Config;

/// Which of them there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimisations([bool; 3]);

impl Optimisations {
    pub const ALL: Self = Self([true; 3]);

    /// None, and one more each time.
    pub const STEPS: [Self; 4] =
        [Self([false; 3]), Self([true, false, false]), Self([true, true, false]), Self([true; 3])];

    /// An endpoint with those only.
    pub fn apply(self, mut config: Config) -> Config {
        let Self([light, early, in_place]) = self;
        if !light {
            config.spin = Duration::ZERO;
        }
        config.limits.early_request &= early;
        config.waiters_work &= in_place;
        config
    }
}

impl fmt::Display for Optimisations {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::STEPS[0] {
            return write!(to, "none");
        }
        (1..=3).zip(self.0).filter(|(_, is_on)| *is_on).try_for_each(|(number, _)| write!(to, "{number}"))
    }
}

impl FromStr for Optimisations {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut found = [false; 3];
        for letter in if text == "none" { "" } else { text }.chars() {
            let at = "123".find(letter).ok_or("expected none, or some of 1, 2 and 3, such as 12")?;
            found[at] = true;
        }
        if text.is_empty() { Err("expected none, or some of 1, 2 and 3, such as 12") } else { Ok(Self(found)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_said_as_they_are_read() {
        for text in ["none", "1", "2", "3", "12", "13", "23", "123"] {
            assert_eq!(text.parse::<Optimisations>().unwrap().to_string(), text);
        }
        for text in ["", "4", "none1", "1 2"] {
            assert!(text.parse::<Optimisations>().is_err(), "{text}");
        }
        assert_eq!(Optimisations::STEPS.map(|step| step.to_string()), ["none", "1", "12", "123"]);
    }

    #[test]
    fn each_turns_off_what_it_is_named_for() {
        let of = |text: &str| {
            let config = text.parse::<Optimisations>().unwrap().apply(Config::default());
            [!config.spin.is_zero(), config.limits.early_request, config.waiters_work]
        };
        assert_eq!(of("none"), [false; 3]);
        assert_eq!(of("1"), [true, false, false]);
        assert_eq!(of("2"), [false, true, false]);
        assert_eq!(of("3"), [false, false, true]);
        assert_eq!(Optimisations::ALL.apply(Config::default()), Config::default());
    }
}
