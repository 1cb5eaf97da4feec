//! Words of an entry, with the lines that they are in.

use std::net::IpAddr;

use super::{Entry, Error, Wrong};
use crate::selector::{Mark, Port, Prefix, Selector};

/// The words of an entry, one after the other.
pub(super) struct Words<'a> {
    words: Vec<(usize, &'a str)>,
    at: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(entry: &Entry<'a>) -> Self {
        let words = entry.iter().flat_map(|(line, text)| split(text).map(|word| (*line, word))).collect();
        Self { words, at: 0 }
    }

    /// The next word, if there is one.
    pub(super) fn next(&mut self) -> Option<&'a str> {
        let (_, word) = self.words.get(self.at)?;
        self.at += 1;
        Some(word)
    }

    /// What is still to come.
    pub(super) fn rest(&self) -> impl Iterator<Item = &'a str> {
        self.words[self.at..].iter().map(|(_, word)| *word)
    }

    /// Takes this word, if it is the next.
    pub(super) fn skip(&mut self, word: &str) -> bool {
        let is_it = self.rest().next() == Some(word);
        self.at += usize::from(is_it);
        is_it
    }

    /// Whether nothing follows in the line of the word that was read last.
    pub(super) fn is_at_end_of_line(&self) -> bool {
        let line = |at: usize| self.words.get(at).map(|(line, _)| *line);
        self.at == 0 || line(self.at) != line(self.at - 1)
    }

    /// Takes the next word, if it is one of these.
    pub(super) fn take(&mut self, among: &[&str]) -> Option<&'a str> {
        let (_, word) = *self.words.get(self.at).filter(|(_, word)| among.contains(word))?;
        self.at += 1;
        Some(word)
    }

    /// The words of this line have been read otherwise.
    pub(super) fn leave_out(&mut self, line: usize) {
        self.words.retain(|(of, _)| *of != line);
    }

    /// An error at the word that was read last.
    pub(super) fn wrong(&self, what: impl Into<Wrong>) -> Error {
        let line = self.words.get(self.at.saturating_sub(1)).or(self.words.last()).map_or(1, |(line, _)| *line);
        Error { line, what: what.into() }
    }

    /// What follows `name`.
    pub(super) fn value(&mut self, name: &str) -> Result<&'a str, Error> {
        self.next().ok_or_else(|| self.wrong(Wrong::Missing(name.into())))
    }

    /// A value that `read` understands; `what` it is.
    pub(super) fn read<T>(
        &mut self,
        name: &str,
        what: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T, Error> {
        let word = self.value(name)?;
        read(word).ok_or_else(|| self.wrong(Wrong::Value { word: word.into(), what }))
    }

    pub(super) fn number<T: TryFrom<u64>>(&mut self, name: &str) -> Result<T, Error> {
        self.read(name, "number that is possible here", |word| number(word)?.try_into().ok())
    }

    pub(super) fn address(&mut self, name: &str) -> Result<IpAddr, Error> {
        self.read(name, "address", |word| word.parse().ok())
    }

    fn prefix(&mut self, name: &str) -> Result<Prefix, Error> {
        self.read(name, "prefix", |word| {
            let (address, len) = word.split_once('/').map_or((word, None), |(address, len)| (address, Some(len)));
            let address: IpAddr = address.parse().ok()?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            let len = len.map_or(Some(most), |len| len.parse().ok())?;
            (len <= most).then_some(Prefix { address, len })
        })
    }

    /// `M`, `M/MASK` or `M mask MASK`.
    pub(super) fn mark(&mut self, name: &str) -> Result<Mark, Error> {
        let mark = self.read(name, "mark", |word| {
            let (value, mask) = word.split_once('/').unwrap_or((word, "0xffffffff"));
            Some(Mark { value: number(value)?.try_into().ok()?, mask: number(mask)?.try_into().ok()? })
        })?;
        Ok(if self.skip("mask") { Mark { mask: self.number("mask")?, ..mark } } else { mark })
    }

    /// Takes one part of a selector that begins with `word`; whether it was one.
    pub(super) fn selector(
        &mut self,
        word: &str,
        selector: &mut Selector,
        interface: &impl Fn(&str) -> Option<u32>,
    ) -> Result<bool, Error> {
        match word {
            "src" => selector.source = Some(self.prefix(word)?),
            "dst" => selector.destination = Some(self.prefix(word)?),
            "proto" => selector.protocol = self.protocol()?,
            "sport" | "type" => selector.source_port = Port::one(self.number(word)?),
            "dport" | "code" => selector.destination_port = Port::one(self.number(word)?),
            "dev" => selector.interface = self.read(word, "interface", interface)?,
            "uid" => {
                self.value(word)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn protocol(&mut self) -> Result<u8, Error> {
        self.read("proto", "protocol", |word| {
            Some(match word {
                "icmp" => 1,
                "tcp" => 6,
                "udp" => 17,
                "dccp" => 33,
                "ipv6" => 41,
                "gre" => 47,
                "esp" => 50,
                "ah" => 51,
                "icmpv6" | "ipv6-icmp" => 58,
                "comp" => 108,
                "sctp" => 132,
                "mh" | "mobility-header" => 135,
                _ => number(word)?.try_into().ok()?,
            })
        })
    }
}

/// A number as `ip` takes it.
pub(super) fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Splits a line at spaces; quotes keep some together.
fn split(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let quote = rest.chars().next()?;
        if quote == '\'' || quote == '"' {
            let (word, behind) = rest[1..].split_once(quote).unwrap_or((&rest[1..], ""));
            rest = behind;
            return Some(word);
        }
        let (word, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        rest = behind;
        Some(word)
    })
}
