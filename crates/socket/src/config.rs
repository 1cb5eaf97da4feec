//! What `MILLRACE_STREAMS` says.

use std::path::PathBuf;
use std::time::Duration;

/// The environment variable. `MILLRACE_SOCKET` is where cards listen.
pub(crate) const VARIABLE: &str = "MILLRACE_STREAMS";

/// How the library behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub is_off: bool,
    /// To which file a line of counters is added when a process ends.
    pub stats: Option<PathBuf>,
    /// To which file a line is added for every connection.
    pub log: Option<PathBuf>,
    /// Bytes of the ring of each direction.
    pub ring: usize,
    /// How long it is looked before a thread sleeps.
    pub spin: Duration,
}

impl Default for Config {
    fn default() -> Self {
        // Of the host: the other end may have a core that this process may not use.
        let spin = Duration::from_micros(if crate::sys::cores() > 1 { 50 } else { 0 });
        Self { is_off: false, stats: None, log: None, ring: 256 << 10, spin }
    }
}

impl Config {
    /// The words of a text; and those that mean nothing, with what is wrong.
    pub(crate) fn parse(text: &str) -> (Self, Vec<String>) {
        let (mut config, mut wrong) = (Self::default(), Vec::new());
        for word in text.split([' ', ',', '\t', '\n']).filter(|word| !word.is_empty()) {
            if let Err(why) = config.take(word) {
                wrong.push(format!("{word}: {why}"));
            }
        }
        (config, wrong)
    }

    fn take(&mut self, word: &str) -> Result<(), &'static str> {
        match word.split_once('=') {
            None if word == "off" => self.is_off = true,
            Some(("stats", file)) if !file.is_empty() => self.stats = Some(file.into()),
            Some(("log", file)) if !file.is_empty() => self.log = Some(file.into()),
            Some(("ring", bytes)) => match bytes.parse::<usize>() {
                Ok(bytes) if bytes.is_power_of_two() && RINGS.contains(&bytes) => self.ring = bytes,
                _ => return Err("a ring has a power of two of bytes, from 4096 to 67108864 (64 MiB)"),
            },
            Some(("spin", time)) => match time.parse() {
                Ok(time) if time <= 1_000_000 => self.spin = Duration::from_micros(time),
                _ => return Err("spin is a number of microseconds, up to 1000000"),
            },
            _ => return Err("the words are off, stats=FILE, log=FILE, ring=BYTES, spin=MICROSECONDS"),
        }
        Ok(())
    }
}

/// Sizes that a ring may have.
pub(crate) const RINGS: std::ops::RangeInclusive<usize> = 4096..=64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_named() {
        let (config, unknown) = Config::parse("stats=/tmp/s, log=/tmp/l ring=65536 spin=7");
        assert!(unknown.is_empty() && !config.is_off);
        assert_eq!((config.ring, config.spin), (65536, Duration::from_micros(7)));
        assert_eq!((config.stats, config.log), (Some("/tmp/s".into()), Some("/tmp/l".into())));
        assert!(Config::parse("off").0.is_off);
        let (config, wrong) = Config::parse("ring=5000 spin=-1 stats= on ring=2048");
        let words: Vec<_> = wrong.iter().map(|text| text.split(": ").next().unwrap()).collect();
        assert_eq!(words, ["ring=5000", "spin=-1", "stats=", "on", "ring=2048"]);
        assert!(
            wrong[0].contains("power of two")
                && wrong[1].contains("microseconds")
                && wrong[3].contains("the words are")
        );
        assert_eq!(config, Config::default());
    }
}
