//! `KIND:...,port=(SPEC)`: ports around ports.
//!
//! The inner specification stands last, in parentheses, and is not changed in between: `trace:a.pcap,port=(pcap:b.pcap)`.

use super::{PortSpec, SpecError};
use super::{
    number,
    text::{Escaped, fields, options},
};
use std::{fmt, time::Duration};

/// How many wrappers there can be around a port.
const MAX_DEPTH: usize = 8;

/// Which frames a wrapper deals with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Directions {
    /// All.
    #[default]
    Both,
    /// From the wire to the card.
    Rx,
    /// From the card to the wire.
    Tx,
}

impl Directions {
    /// Whether frames from the wire are among them.
    pub fn rx(self) -> bool {
        self != Self::Tx
    }

    /// Whether frames to the wire are among them.
    pub fn tx(self) -> bool {
        self != Self::Rx
    }

    fn parse(value: &str) -> Option<Self> {
        [Self::Both, Self::Rx, Self::Tx].into_iter().find(|directions| directions.name() == value)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Rx => "rx",
            Self::Tx => "tx",
        }
    }

    /// As an option, unless it is the default.
    fn write(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self == Self::Both { Ok(()) } else { write!(f, ",direction={}", self.name()) }
    }
}

/// Which frames are written to a file as they pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSpec {
    /// The file; of a wire with several queues, that of the first.
    pub file: String,
    /// Which frames.
    pub directions: Directions,
    /// How many frames, of each queue; `None` is all.
    pub limit: Option<u64>,
    /// Where they pass.
    pub port: Box<PortSpec>,
}

/// How likely something is, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chance(u32);

impl Chance {
    /// What is certain.
    const CERTAIN: u32 = 1_000_000;

    /// In millionths, up to 1,000,000.
    pub fn from_millionths(millionths: u32) -> Option<Self> {
        (millionths <= Self::CERTAIN).then_some(Self(millionths))
    }

    /// In millionths.
    pub fn millionths(self) -> u32 {
        self.0
    }

    /// A percentage with up to four digits behind the point.
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('%')?;
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(part) || whole.len() > 3 || part.len() > 4 {
            return None;
        }
        let part = part.parse::<u32>().ok()? * 10u32.pow(4 - part.len() as u32);
        Self::from_millionths(whole.parse::<u32>().ok()? * 10_000 + part)
    }
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 10_000, self.0 % 10_000);
        if part == 0 {
            return write!(f, "{whole}%");
        }
        let part = format!("{part:04}");
        write!(f, "{whole}.{}%", part.trim_end_matches('0'))
    }
}

/// What goes wrong on a wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSpec {
    /// Frames that are lost.
    pub loss: Chance,
    /// Frames that come twice.
    pub duplicate: Chance,
    /// Frames that come after the one that follows them.
    pub reorder: Chance,
    /// Frames with one bit that is wrong.
    pub corrupt: Chance,
    /// How much later frames come.
    pub delay: Duration,
    /// What chance follows from: the same seed does the same to the same frames.
    pub seed: u64,
    /// Which frames.
    pub directions: Directions,
    /// The wire on which it goes wrong.
    pub port: Box<PortSpec>,
}

impl FaultSpec {
    /// The longest delay.
    pub const MAX_DELAY: Duration = Duration::from_secs(10);
    const DEFAULT_SEED: u64 = 1;

    /// A wire without faults.
    pub fn new(port: PortSpec) -> Self {
        let none = Chance::default();
        Self {
            loss: none,
            duplicate: none,
            reorder: none,
            corrupt: none,
            delay: Duration::ZERO,
            seed: Self::DEFAULT_SEED,
            directions: Directions::Both,
            port: Box::new(port),
        }
    }
}

/// A value that its key cannot have.
fn wrong(key: &str, value: &str, expected: &'static str) -> SpecError {
    SpecError::Value { key: key.to_owned(), value: value.to_owned(), expected }
}

const DIRECTION: &str = "both, rx (from the wire to the card) or tx";

/// The options in front of the inner port, and that port.
fn split(
    kind: &'static str,
    example: &'static str,
    argument: Option<&str>,
    depth: usize,
) -> Result<(Vec<String>, PortSpec), SpecError> {
    let argument = argument.unwrap_or_default();
    let missing = || SpecError::Missing { kind, what: "a port to wrap, last: port=(SPEC)", example };
    let inner_at = argument.match_indices("port").map(|(at, _)| at).find(|&at| {
        let before = argument[..at].strip_suffix(',');
        // An odd number of backslashes escapes the comma.
        let begins = before.map_or(at == 0, |text| (text.len() - text.trim_end_matches('\\').len()) % 2 == 0);
        begins && [":(", "=("].iter().any(|open| argument[at + 4..].starts_with(open))
    });
    let at = inner_at.ok_or_else(missing)?;
    let inner = argument[at + "port=(".len()..].strip_suffix(')').ok_or_else(missing)?;
    if depth == MAX_DEPTH {
        return Err(SpecError::TooDeep(MAX_DEPTH));
    }
    let port = PortSpec::parse(inner, depth + 1)?;
    if matches!(port, PortSpec::Loopback | PortSpec::None) {
        return Err(wrong("port", inner, "a port with a wire to wrap; loopback and none have none"));
    }
    let options = argument[..at].strip_suffix(',').unwrap_or(&argument[..at]);
    let fields = fields(options)?;
    Ok((if options.is_empty() { Vec::new() } else { fields }, port))
}

impl TraceSpec {
    pub(super) fn parse(argument: Option<&str>, depth: usize) -> Result<Self, SpecError> {
        const EXAMPLE: &str = "trace:seen.pcap,port=(tap:mill0)";
        let (fields, port) = split("trace", EXAMPLE, argument, depth)?;
        let Some((file, fields)) = fields.split_first().filter(|(file, _)| !file.is_empty()) else {
            return Err(SpecError::Missing { kind: "trace", what: "a file", example: EXAMPLE });
        };
        let mut spec = Self { file: file.clone(), directions: Directions::Both, limit: None, port: Box::new(port) };
        let known = "direction=both|rx|tx, limit=N and port=(SPEC)";
        for (key, value) in options("trace", known, &["direction", "limit"], fields)? {
            match key {
                "limit" => spec.limit = Some(number(value).ok_or_else(|| wrong(key, value, "a number of frames"))?),
                _ => spec.directions = Directions::parse(value).ok_or_else(|| wrong(key, value, DIRECTION))?,
            }
        }
        Ok(spec)
    }
}

impl FaultSpec {
    pub(super) fn parse(argument: Option<&str>, depth: usize) -> Result<Self, SpecError> {
        let (fields, port) = split("fault", "fault:loss=1%,port=(tap:mill0)", argument, depth)?;
        let mut spec = Self::new(port);
        let known =
            "loss=P%, duplicate=P%, reorder=P%, corrupt=P%, delay=TIME, seed=N, direction=both|rx|tx and port=(SPEC)";
        let keys = ["loss", "duplicate", "reorder", "corrupt", "delay", "seed", "direction"];
        for (key, value) in options("fault", known, &keys, &fields)? {
            let chance = match key {
                "delay" => {
                    spec.delay = duration(value)
                        .filter(|delay| *delay <= Self::MAX_DELAY)
                        .ok_or_else(|| wrong(key, value, "a time such as 50us or 3ms, up to 10s"))?;
                    continue;
                }
                "seed" => {
                    spec.seed = number(value).ok_or_else(|| wrong(key, value, "a number"))?;
                    continue;
                }
                "direction" => {
                    spec.directions = Directions::parse(value).ok_or_else(|| wrong(key, value, DIRECTION))?;
                    continue;
                }
                "loss" => &mut spec.loss,
                "duplicate" => &mut spec.duplicate,
                "reorder" => &mut spec.reorder,
                _ => &mut spec.corrupt,
            };
            *chance = Chance::parse(value).ok_or_else(|| {
                wrong(key, value, "a percentage from 0% to 100%, with up to four digits behind the point")
            })?;
        }
        Ok(spec)
    }
}

const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

fn duration(text: &str) -> Option<Duration> {
    let (unit, nanos) = UNITS.into_iter().find(|(unit, _)| text.ends_with(unit))?;
    let number = number(text.strip_suffix(unit)?)?;
    Some(Duration::from_nanos(number.checked_mul(nanos)?))
}

/// A time in the largest unit in which it is a whole number.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let largest = UNITS.into_iter().rev().find(|(_, unit)| nanos.is_multiple_of(u128::from(*unit)));
        let (unit, size) = largest.unwrap_or(UNITS[0]);
        write!(f, "{}{unit}", nanos / u128::from(size))
    }
}

impl fmt::Display for TraceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Escaped(&self.file))?;
        self.directions.write(f)?;
        self.limit.map_or(Ok(()), |limit| write!(f, ",limit={limit}"))?;
        write!(f, ",port=({})", self.port)
    }
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The seed is always written: it is what makes a run repeatable.
        write!(f, "seed={}", self.seed)?;
        let chances =
            [("loss", self.loss), ("duplicate", self.duplicate), ("reorder", self.reorder), ("corrupt", self.corrupt)];
        for (key, chance) in chances.into_iter().filter(|(_, chance)| chance.millionths() > 0) {
            write!(f, ",{key}={chance}")?;
        }
        if !self.delay.is_zero() {
            write!(f, ",delay={}", Time(self.delay))?;
        }
        self.directions.write(f)?;
        write!(f, ",port=({})", self.port)
    }
}
