//! The words with which a port is asked for: `kind:argument[,key=value...]`. A colon joins a key and its value as well,
//! for places where `=` means something else.
//!
//! A comma or a backslash that belongs to a file name is written `\,` or `\\`. Counts and rates may end in `k`, `M` or
//! `G`. What is parsed prints itself in the same grammar, without what is the default anyway.

use crate::{MAX_FRAME_LEN, MIN_FRAME_LEN};
use std::{fmt, num::NonZeroU64, str::FromStr};

/// Which port, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// `loopback`: no port; the card copies what is sent to its receiving side.
    Loopback,
    /// `null`.
    Null,
    /// `generator[:size=N,rate=PPS,count=N]`.
    Generator(GeneratorSpec),
    /// `pcap:FILE[,write=FILE][,speed=full|recorded|RATEpps][,loop=N|forever]`.
    Pcap(PcapSpec),
    /// `tap:NAME`.
    Tap(TapName),
}

/// What a generator generates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratorSpec {
    /// Bytes of a frame without FCS, from [`MIN_FRAME_LEN`] to [`MAX_FRAME_LEN`].
    pub size: usize,
    /// Frames per second; `None` is as fast as they are taken.
    pub rate: Option<Rate>,
    /// How many frames; `None` is without end.
    pub count: Option<u64>,
}

impl Default for GeneratorSpec {
    fn default() -> Self {
        Self { size: 64, rate: None, count: None }
    }
}

/// Which captures are read and written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PcapSpec {
    /// The file whose frames come in from the wire.
    pub read: Option<String>,
    /// The file that takes the frames that go out to the wire.
    pub write: Option<String>,
    /// When the frames of `read` come.
    pub speed: Speed,
    /// How often `read` is read.
    pub passes: Passes,
}

/// When the frames of a capture come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speed {
    /// As fast as they are taken; waits for whoever takes them.
    #[default]
    Full,
    /// At the distances in time at which they were recorded; waits for nobody, as a wire does.
    Recorded,
    /// At a fixed rate; waits for nobody, as a wire does.
    Fixed(Rate),
}

/// How often a capture is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// This often.
    Times(NonZeroU64),
    /// Until the card stops.
    Forever,
}

impl Default for Passes {
    fn default() -> Self {
        Self::Times(NonZeroU64::MIN)
    }
}

/// Frames per second, from 1 to 10^9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(NonZeroU64);

impl Rate {
    const MAX: u64 = 1_000_000_000;

    /// `pps` frames per second; `None` unless it is from 1 to 10^9.
    pub fn new(pps: u64) -> Option<Self> {
        NonZeroU64::new(pps).filter(|pps| pps.get() <= Self::MAX).map(Self)
    }

    /// Frames per second.
    pub fn pps(self) -> u64 {
        self.0.get()
    }

    /// Nanoseconds after the first frame at which frame `number` (from 0) is due; the last moment there is when it lies
    /// beyond.
    pub fn due_ns(self, number: u64) -> u64 {
        const SECOND: u64 = 1_000_000_000;
        let (seconds, rest) = (number / self.0, number % self.0);
        // rest < 10^9, so the product fits.
        seconds.saturating_mul(SECOND).saturating_add(rest * SECOND / self.0)
    }
}

/// The name of a network interface: 1 to 15 bytes that Linux accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapName(String);

impl TapName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TapName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TapName {
    type Err = SpecError;

    fn from_str(name: &str) -> Result<Self, SpecError> {
        let why = match name {
            "" => "it is empty",
            "." | ".." => "it is a directory",
            _ if name.len() > 15 => "it has more than 15 bytes",
            // '%' asks Linux for a name of its choice, and ',' and '\' would have to be escaped everywhere.
            _ if name.bytes().any(|byte| !byte.is_ascii_graphic() || b"/:%,\\".contains(&byte)) => {
                "only visible ASCII without / : % , \\ is allowed"
            }
            _ => return Ok(Self(name.to_owned())),
        };
        Err(SpecError::Name { name: name.to_owned(), why })
    }
}

/// Why a port specification cannot be understood, and what would be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A word that is no kind of port.
    #[error(
        "there is no port kind `{0}`; write loopback, null, generator[:size=N,rate=PPS,count=N], \
         pcap:FILE[,write=FILE][,speed=full|recorded|RATEpps][,loop=N|forever] or tap:NAME"
    )]
    Kind(String),
    /// An argument where none is possible.
    #[error("`{kind}` takes no argument; write `{kind}` instead of `{kind}:{argument}`")]
    Argument {
        /// Kind of port.
        kind: &'static str,
        /// What follows the colon.
        argument: String,
    },
    /// No argument where one is needed.
    #[error("`{kind}` needs {what}; write for example `{example}`")]
    Missing {
        /// Kind of port.
        kind: &'static str,
        /// What is missing.
        what: &'static str,
        /// A specification with it.
        example: &'static str,
    },
    /// A key that this kind does not have, or no key at all.
    #[error("`{kind}` has no option `{option}`; it has {known} (a comma inside a file name is written `\\,`)")]
    Option {
        /// Kind of port.
        kind: &'static str,
        /// What was written.
        option: String,
        /// The options that it has.
        known: &'static str,
    },
    /// A key that stands there twice.
    #[error("option `{0}` is given twice; keep one")]
    Twice(String),
    /// A value that its key cannot have.
    #[error("`{key}={value}` does not work: `{key}` is {expected}")]
    Value {
        /// The key.
        key: String,
        /// What was written behind it.
        value: String,
        /// What can be written instead.
        expected: &'static str,
    },
    /// A backslash that escapes nothing.
    #[error("a backslash in `{0}` stands before neither a comma nor a backslash; write `\\\\` for a backslash")]
    Escape(String),
    /// A name that no interface can have.
    #[error("no interface can be called `{name}`: {why}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl FromStr for PortSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (kind, argument) = match text.split_once(':') {
            Some((kind, argument)) => (kind, Some(argument)),
            None => (text, None),
        };
        let bare = |kind, spec| match argument {
            None => Ok(spec),
            Some(argument) => Err(SpecError::Argument { kind, argument: argument.to_owned() }),
        };
        match kind {
            "loopback" => bare("loopback", PortSpec::Loopback),
            "null" => bare("null", PortSpec::Null),
            "generator" => generator(argument).map(PortSpec::Generator),
            "pcap" => pcap(argument).map(PortSpec::Pcap),
            "tap" => match argument {
                Some(name) if !name.is_empty() => name.parse().map(PortSpec::Tap),
                _ => Err(SpecError::Missing { kind: "tap", what: "an interface name", example: "tap:mill0" }),
            },
            _ => Err(SpecError::Kind(kind.to_owned())),
        }
    }
}

fn generator(argument: Option<&str>) -> Result<GeneratorSpec, SpecError> {
    let mut spec = GeneratorSpec::default();
    let fields = fields(argument.unwrap_or_default())?;
    // `generator:` and `generator` are the same.
    let fields = if fields.len() == 1 && fields[0].is_empty() { &[] } else { &fields[..] };
    for (key, value) in options("generator", "size=N, rate=PPS and count=N", &["size", "rate", "count"], fields)? {
        let wrong = |expected| SpecError::Value { key: key.to_owned(), value: value.to_owned(), expected };
        match key {
            "size" => {
                let size = number(value).and_then(|size| usize::try_from(size).ok());
                spec.size = size
                    .filter(|size| (MIN_FRAME_LEN..=MAX_FRAME_LEN).contains(size))
                    .ok_or_else(|| wrong("the bytes of a frame without FCS, from 14 to 16383"))?;
            }
            "rate" => spec.rate = Some(rate(value).ok_or_else(|| wrong("frames per second, from 1 to 1G"))?),
            _ => spec.count = Some(number(value).ok_or_else(|| wrong("a number of frames"))?),
        }
    }
    Ok(spec)
}

fn pcap(argument: Option<&str>) -> Result<PcapSpec, SpecError> {
    let fields = fields(argument.unwrap_or_default())?;
    let (file, fields) = fields.split_first().expect("splitting gives at least one field");
    let mut spec = PcapSpec { read: Some(file.clone()).filter(|file| !file.is_empty()), ..PcapSpec::default() };
    let known = "write=FILE, speed=full|recorded|RATEpps and loop=N|forever";
    for (key, value) in options("pcap", known, &["write", "speed", "loop"], fields)? {
        let wrong = |expected| SpecError::Value { key: key.to_owned(), value: value.to_owned(), expected };
        match key {
            "write" if value.is_empty() => return Err(wrong("the file to write")),
            "write" => spec.write = Some(value.to_owned()),
            "speed" => {
                spec.speed = match value {
                    "full" => Speed::Full,
                    "recorded" => Speed::Recorded,
                    _ => {
                        let rate = value.ends_with("pps").then(|| rate(value)).flatten();
                        Speed::Fixed(rate.ok_or_else(|| wrong("full, recorded, or a rate such as 1000pps or 2Mpps"))?)
                    }
                }
            }
            _ => {
                spec.passes = match (value, number(value).and_then(NonZeroU64::new)) {
                    ("forever", _) => Passes::Forever,
                    (_, Some(passes)) => Passes::Times(passes),
                    _ => return Err(wrong("the number of times to read the file, from 1, or forever")),
                }
            }
        }
    }
    if spec.read.is_none() && spec.write.is_none() {
        return Err(SpecError::Missing { kind: "pcap", what: "a file", example: "pcap:capture.pcap" });
    }
    Ok(spec)
}

/// Splits at commas that are not escaped, and removes the escapes.
fn fields(argument: &str) -> Result<Vec<String>, SpecError> {
    let mut fields = vec![String::new()];
    let mut rest = argument.chars();
    while let Some(mut char) = rest.next() {
        if char == ',' {
            fields.push(String::new());
            continue;
        }
        if char == '\\' {
            char = rest
                .next()
                .filter(|char| matches!(char, ',' | '\\'))
                .ok_or_else(|| SpecError::Escape(argument.to_owned()))?;
        }
        fields.last_mut().expect("never empty").push(char);
    }
    Ok(fields)
}

/// The fields as key and value, each key known and there once.
fn options<'a>(
    kind: &'static str,
    known: &'static str,
    keys: &[&str],
    fields: &'a [String],
) -> Result<Vec<(&'a str, &'a str)>, SpecError> {
    let mut options: Vec<(&str, &str)> = Vec::new();
    for field in fields {
        let (key, value) = field
            .split_once(['=', ':'])
            .filter(|(key, _)| keys.contains(key))
            .ok_or_else(|| SpecError::Option { kind, option: field.clone(), known })?;
        if options.iter().any(|(seen, _)| *seen == key) {
            return Err(SpecError::Twice(key.to_owned()));
        }
        options.push((key, value));
    }
    Ok(options)
}

/// A number of decimal digits, perhaps with k, M or G.
fn number(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    // `parse` alone would let a plus sign pass.
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok()?.checked_mul(unit)).flatten()
}

/// A rate, with `pps` behind it or not.
fn rate(text: &str) -> Option<Rate> {
    number(text.strip_suffix("pps").unwrap_or(text)).and_then(Rate::new)
}

/// A file name with its commas and backslashes escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.0.chars() {
            if matches!(char, ',' | '\\') {
                f.write_str("\\")?;
            }
            write!(f, "{char}")?;
        }
        Ok(())
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortSpec::Loopback => f.write_str("loopback"),
            PortSpec::Null => f.write_str("null"),
            PortSpec::Generator(spec) => {
                write!(f, "generator:size={}", spec.size)?;
                spec.rate.map_or(Ok(()), |rate| write!(f, ",rate={}", rate.pps()))?;
                spec.count.map_or(Ok(()), |count| write!(f, ",count={count}"))
            }
            PortSpec::Pcap(spec) => {
                write!(f, "pcap:{}", Escaped(spec.read.as_deref().unwrap_or_default()))?;
                spec.write.as_deref().map_or(Ok(()), |file| write!(f, ",write={}", Escaped(file)))?;
                match spec.speed {
                    Speed::Full => {}
                    Speed::Recorded => f.write_str(",speed=recorded")?,
                    Speed::Fixed(rate) => write!(f, ",speed={}pps", rate.pps())?,
                }
                match spec.passes {
                    Passes::Times(NonZeroU64::MIN) => Ok(()),
                    Passes::Times(times) => write!(f, ",loop={times}"),
                    Passes::Forever => f.write_str(",loop=forever"),
                }
            }
            PortSpec::Tap(name) => write!(f, "tap:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> PortSpec {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn every_kind_is_understood() {
        assert_eq!(parse("loopback"), PortSpec::Loopback);
        assert_eq!(parse("null"), PortSpec::Null);
        assert_eq!(parse("generator"), PortSpec::Generator(GeneratorSpec::default()));
        assert_eq!(parse("generator:"), parse("generator"));
        assert_eq!(
            parse("generator:count=5,size=1518,rate=2M"),
            PortSpec::Generator(GeneratorSpec { size: 1518, rate: Rate::new(2_000_000), count: Some(5) })
        );
        assert_eq!(
            parse("pcap:a.pcap,write=b=c.pcap,loop=3,speed=10kpps"),
            PortSpec::Pcap(PcapSpec {
                read: Some("a.pcap".into()),
                write: Some("b=c.pcap".into()),
                speed: Speed::Fixed(Rate::new(10_000).unwrap()),
                passes: Passes::Times(NonZeroU64::new(3).unwrap()),
            })
        );
        assert_eq!(parse("pcap:a,speed=full,loop=1"), parse("pcap:a"));
        assert_eq!(parse("pcap:a,speed:full,write:b:c=d"), parse("pcap:a,write=b:c=d"));
        assert_eq!(parse("tap:mill0"), PortSpec::Tap(TapName("mill0".into())));
        let PortSpec::Pcap(spec) = parse(r"pcap:dir:x\,y\\z,loop=forever,speed=recorded") else { panic!() };
        assert_eq!(spec.read.as_deref(), Some(r"dir:x,y\z"));
        assert_eq!((spec.speed, spec.passes), (Speed::Recorded, Passes::Forever));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (text, hint) in [
            ("", "write loopback, null"),
            ("pcab:x", "no port kind `pcab`"),
            ("null:x", "write `null` instead"),
            ("loopback:", "takes no argument"),
            ("pcap", "pcap:capture.pcap"),
            ("pcap:", "pcap:capture.pcap"),
            ("pcap:a,b", "no option `b`"),
            ("pcap:a,rate=5", "speed=full|recorded"),
            ("pcap:a,write=", "the file to write"),
            ("pcap:a,speed=5", "1000pps"),
            ("pcap:a,speed=0pps", "1000pps"),
            ("pcap:a,speed=2Gpps", "1000pps"),
            ("pcap:a,loop=0", "forever"),
            ("pcap:a,loop=1,loop=2", "twice"),
            (r"pcap:a\b", "backslash"),
            (r"pcap:a\", "backslash"),
            ("generator:64", "size=N"),
            ("generator:size=13", "from 14 to 16383"),
            ("generator:size=16384", "from 14 to 16383"),
            ("generator:size=+64", "from 14 to 16383"),
            ("generator:rate=0", "from 1 to 1G"),
            ("generator:count=-1", "a number of frames"),
            ("generator:count=99999999999G", "a number of frames"),
            ("generator:,", "size=N"),
            ("tap", "tap:mill0"),
            ("tap:", "tap:mill0"),
            ("tap:a-name-of-16-byte", "15 bytes"),
            ("tap:a/b", "visible ASCII"),
            ("tap:a,b", "visible ASCII"),
            ("tap:..", "directory"),
            ("tap:tap%d", "visible ASCII"),
        ] {
            let error = text.parse::<PortSpec>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn a_rate_spreads_frames_evenly() {
        let rate = Rate::new(3).unwrap();
        assert_eq!(
            [0, 1, 2, 3, 4].map(|n| rate.due_ns(n)),
            [0, 333_333_333, 666_666_666, 1_000_000_000, 1_333_333_333]
        );
        assert_eq!(rate.due_ns(u64::MAX), u64::MAX);
        assert_eq!(Rate::new(Rate::MAX).unwrap().due_ns(7), 7);
    }

    fn any_spec() -> impl Strategy<Value = PortSpec> {
        let rate = (1..=Rate::MAX).prop_map(|pps| Rate::new(pps).unwrap());
        let file = "[a-z,\\\\:= é]{1,12}";
        let speed = prop_oneof![Just(Speed::Full), Just(Speed::Recorded), rate.clone().prop_map(Speed::Fixed)];
        let passes = prop_oneof![
            Just(Passes::Forever),
            (1..u64::MAX).prop_map(|times| Passes::Times(NonZeroU64::new(times).unwrap()))
        ];
        prop_oneof![
            Just(PortSpec::Loopback),
            Just(PortSpec::Null),
            (MIN_FRAME_LEN..=MAX_FRAME_LEN, proptest::option::of(rate), any::<Option<u64>>())
                .prop_map(|(size, rate, count)| PortSpec::Generator(GeneratorSpec { size, rate, count })),
            (proptest::option::of(file), file, speed, passes).prop_map(|(read, write, speed, passes)| {
                PortSpec::Pcap(PcapSpec { read, write: Some(write), speed, passes })
            }),
            "[a-z0-9.-]{3,15}".prop_map(|name| PortSpec::Tap(TapName(name))),
        ]
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(spec in any_spec()) {
            prop_assert_eq!(spec.to_string().parse::<PortSpec>(), Ok(spec));
        }

        #[test]
        fn no_text_panics(text in "(loopback|null|generator|pcap|tap)?:?[a-z0-9=,:\\\\ é]{0,30}") {
            if let Ok(spec) = text.parse::<PortSpec>() {
                prop_assert_eq!(spec.to_string().parse::<PortSpec>(), Ok(spec));
            }
        }
    }
}
