//! Files of rules: one rule, group or meter on a line, `#` begins a comment, empty lines do not count.
//!
//! ```text
//! miss=drop
//! group=1,rss,queues=0-7,fields=5tuple,symmetric
//! group=2,quic,queues=0-3
//! meter=1,rate=10Mbit,burst=64k
//! table=0,priority=100,tcp,tcp_dst=80,actions=meter:1,rss:1
//! {"rule":{"priority":10,"actions":["drop"]}}
//! ```
//!
//! A line that begins with `{` is the JSON of an [`Item`], which is what `Serialize` makes of one.

use super::scan::Part;
use super::{MAX_LINE, ParseError, group, list::MAX_QUEUE, meter, parse_rule, quic};
use crate::action::Action;
use crate::meter::{Meter, MeterSpec, Unit};
use crate::quic::{Group as QuicGroup, GroupSpec as QuicSpec};
use crate::rss::{Group, GroupSpec};
use crate::rule::RuleSpec;
use crate::table::Miss;
use crate::version::{Change, CommitError, Committed, Refusal, Writer};
use crate::vni_map::Run;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// Most items of a file: as many as there may be rules, unless limits say otherwise.
const MAX_ITEMS: usize = 1 << 20;

/// What a line of a file sets up.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Item {
    /// A rule.
    Rule(RuleSpec),
    /// An RSS group.
    Group {
        /// The number by which rules name it.
        number: u32,
        /// What it is.
        rss: GroupSpec,
    },
    /// A QUIC group. Its number is one of those that RSS groups have as well.
    Quic {
        /// The number by which rules name it.
        number: u32,
        /// What it is.
        steering: QuicSpec,
    },
    /// A meter.
    Meter {
        /// The number by which rules name it.
        number: u32,
        /// What it is.
        bucket: MeterSpec,
    },
    /// What becomes of frames that nothing matches.
    Miss(Miss),
}

impl fmt::Display for Item {
    /// The line that parses to the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => rule.fmt(f),
            Self::Group { number, rss } => f.write_str(&group::print(*number, rss)),
            Self::Quic { number, steering } => f.write_str(&quic::print(*number, steering)),
            Self::Meter { number, bucket } => f.write_str(&meter::print(*number, bucket)),
            Self::Miss(miss) => {
                write!(f, "miss={}", MISSES.iter().find(|(_, known)| known == miss).map_or("", |row| row.0))
            }
        }
    }
}

const MISSES: [(&str, Miss); 3] = [("normal", Miss::Normal), ("drop", Miss::Drop), ("punt", Miss::Punt)];

impl Item {
    /// An item from a line of text or JSON.
    ///
    /// # Errors
    /// What is wrong, where, and what would be right.
    pub fn parse(line: &str) -> Result<Self, ParseError> {
        if line.len() > MAX_LINE {
            return Err(
                Part::whole("").error(format!("a line of {} bytes is too long: at most {MAX_LINE}", line.len()))
            );
        }
        if line.trim_start().starts_with('{') {
            return json(line);
        }
        let whole = Part::whole(line);
        // What a line is about stands first.
        let begin = line.trim_start();
        if begin.starts_with("group=") {
            let pieces = whole.pieces()?;
            if quic::is_one(&pieces) {
                return quic::parse(&pieces).map(|(number, steering)| Self::Quic { number, steering });
            }
            group::parse(&pieces).map(|(number, rss)| Self::Group { number, rss })
        } else if begin.starts_with("meter=") {
            meter::parse(&whole.pieces()?).map(|(number, bucket)| Self::Meter { number, bucket })
        } else if begin.starts_with("miss=") {
            miss(&whole.pieces()?).map(Self::Miss)
        } else {
            parse_rule(line).map(Self::Rule)
        }
    }

    /// What sets it up. `now_ns` is when.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn change(&self, now_ns: u64) -> Result<Change, String> {
        Ok(match self {
            Self::Rule(rule) => Change::Add(rule.clone()),
            Self::Group { number, rss } => {
                Change::Group(*number, Some(Arc::new(Group::new(rss).map_err(|wrong| wrong.to_string())?)))
            }
            Self::Quic { number, steering } => {
                let group = QuicGroup::new(steering).map_err(|wrong| wrong.to_string())?;
                Change::Quic(*number, Some(Arc::new(group)))
            }
            Self::Meter { number, bucket } => {
                Change::Meter(*number, Some(Arc::new(Meter::new(*bucket, now_ns).map_err(|wrong| wrong.to_string())?)))
            }
            Self::Miss(miss) => Change::Miss(*miss),
        })
    }

    /// The highest queue that it names.
    fn highest_queue(&self) -> Option<u16> {
        let named = |action: &Action| match action {
            Action::Queue(queue) => Some(*queue),
            Action::VniMap(map) => map.runs().iter().filter_map(Run::highest_queue).max(),
            _ => None,
        };
        match self {
            Self::Rule(rule) => rule.actions.iter().filter_map(named).max(),
            Self::Group { rss, .. } => Some(group::highest(rss)),
            Self::Quic { steering, .. } => Some(steering.highest_queue()),
            Self::Meter { .. } | Self::Miss(_) => None,
        }
    }

    /// What may be in a file once: group, meter or miss, by number.
    fn place(&self) -> Option<(&'static str, u32)> {
        match self {
            Self::Rule(_) => None,
            Self::Group { number, .. } | Self::Quic { number, .. } => Some(("group", *number)),
            Self::Meter { number, .. } => Some(("meter", *number)),
            Self::Miss(_) => Some(("miss", 0)),
        }
    }
}

fn json(line: &str) -> Result<Item, ParseError> {
    let wrong = |column: usize, message: String| {
        // Columns of the library count bytes from 1 on.
        let at = line.floor_char_boundary(column.saturating_sub(1));
        Part::whole(line).cut(at, line.len()).error(message)
    };
    let item: Item = serde_json::from_str(line).map_err(|error| {
        let message = error.to_string();
        // The place is shown by ourselves.
        let message = message.rsplit_once(" at line ").map_or(&*message, |(message, _)| message).to_owned();
        wrong(error.column(), message)
    })?;
    match &item {
        // To set it up takes memory.
        Item::Quic { steering, .. } => steering.check().map_err(|error| wrong(1, error.to_string()))?,
        item => drop(item.change(0).map_err(|message| wrong(1, message))?),
    }
    match &item {
        Item::Meter { bucket, .. } if bucket.unit == Unit::Bytes && bucket.rate > meter::MAX_BYTES => {
            Err(wrong(1, format!("a meter has a rate of at most {} bytes a second", meter::MAX_BYTES)))
        }
        _ => Ok(item),
    }
}

fn miss(pieces: &[Part<'_>]) -> Result<Miss, ParseError> {
    let (first, rest) = pieces.split_first().map_or((Part::whole(""), pieces), |(first, rest)| (*first, rest));
    let value = first.split("=").map_or(first, |(_, value)| value);
    match (MISSES.iter().find(|(name, _)| *name == value.text), rest) {
        (Some((_, miss)), []) => Ok(*miss),
        _ => Err(value.error("write miss=normal, miss=drop or miss=punt")),
    }
}

/// The number behind `word=` in the first piece, and the other pieces.
pub(super) fn head<'p, 'a>(pieces: &'p [Part<'a>], word: &str) -> Result<(u32, &'p [Part<'a>]), ParseError> {
    let (first, rest) = pieces.split_first().ok_or_else(|| Part::whole("").error(format!("write {word}=N")))?;
    let (_, value) = first.split("=").unwrap_or((*first, *first));
    Ok((value.number(word, u32::MAX.into())?, rest))
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    /// Which one, from 1 on.
    number: usize,
    text: String,
    item: Item,
}

impl Line {
    fn error(&self, at: usize, message: impl Into<String>) -> ParseError {
        ParseError { message: message.into(), text: self.text.clone(), at, line: Some(self.number) }
    }
}

/// Rules, groups and meters as somebody has written them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFile(Vec<Line>);

impl RuleFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The first thing that is wrong, with the number of its line.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut lines: Vec<Line> = Vec::new();
        let mut places = HashSet::new();
        for (at, whole) in text.lines().enumerate() {
            let is_json = whole.trim_start().starts_with('{');
            let text = if is_json { whole } else { whole.split('#').next().unwrap_or("") }.trim_end();
            if text.trim_start().is_empty() {
                continue;
            }
            let item = Item::parse(text).map_err(|error| ParseError { line: Some(at + 1), ..error })?;
            let place = item.place();
            let line = Line { number: at + 1, text: text.to_owned(), item };
            if let Some(place) = place
                && !places.insert(place)
            {
                return Err(line.error(0, format!("{} {} is set up twice", place.0, place.1)));
            }
            if lines.len() == MAX_ITEMS {
                return Err(line.error(0, format!("more than {MAX_ITEMS} rules, groups and meters")));
            }
            lines.push(line);
        }
        Ok(Self(lines))
    }

    /// What is in it, in its order.
    pub fn items(&self) -> impl ExactSizeIterator<Item = &Item> {
        self.0.iter().map(|line| &line.item)
    }

    /// Checks that no rule and no group names a queue that is not there.
    ///
    /// # Errors
    /// The first that does.
    pub fn check_queues(&self, count: u32) -> Result<(), ParseError> {
        let beyond = |line: &&Line| line.item.highest_queue().is_some_and(|queue| u32::from(queue) >= count);
        match self.0.iter().find(beyond) {
            Some(line) => {
                let queue = line.item.highest_queue().unwrap_or(MAX_QUEUE);
                let at = line.text.find(&format!("queue:{queue}")).or_else(|| line.text.find("queues=")).unwrap_or(0);
                Err(line.error(at, format!("there is no queue {queue}: queues are 0 to {}", count.saturating_sub(1))))
            }
            None => Ok(()),
        }
    }

    /// Sets everything up, in one transaction.
    ///
    /// # Errors
    /// The first line that cannot be; then nothing was done.
    pub fn load(&self, writer: &mut Writer, now_ns: u64) -> Result<Committed, ParseError> {
        writer.commit(self.changes(now_ns)?, now_ns).map_err(|refused| self.refused(&refused))
    }

    /// What sets everything up, a change for each line. `now_ns` is when.
    ///
    /// # Errors
    /// The first line that cannot be.
    pub fn changes(&self, now_ns: u64) -> Result<Vec<Change>, ParseError> {
        let change = |line: &Line| line.item.change(now_ns).map_err(|message| line.error(0, message));
        self.0.iter().map(change).collect()
    }

    /// Why its [changes](Self::changes) were refused, with the line.
    pub fn refused(&self, error: &CommitError) -> ParseError {
        match self.0.get(error.change) {
            Some(line) => line.error(line.place_of(&error.refusal), error.refusal.to_string()),
            None => Part::whole("").error(error.refusal.to_string()),
        }
    }
}

impl Line {
    /// Where that stands which was refused.
    fn place_of(&self, refusal: &Refusal) -> usize {
        let word = match refusal {
            Refusal::NoGroup(id) | Refusal::NotRss(id) => format!("rss:{id}"),
            Refusal::NoQuic(id) | Refusal::NotQuic(id) => format!("quic:{id}"),
            Refusal::NoMeter(id) => format!("meter:{id}"),
            _ => return 0,
        };
        self.text.find(&word).unwrap_or(0)
    }
}

impl fmt::Display for RuleFile {
    /// The lines that parse to the same, without comments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| writeln!(f, "{}", line.item))
    }
}

#[cfg(test)]
mod tests;
