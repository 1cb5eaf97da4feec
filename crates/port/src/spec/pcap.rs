//! `pcap:FILE[,write=FILE][,speed=full|recorded|RATEpps][,loop=N|forever]`.

use super::{Rate, SpecError, rate};
use super::{
    number,
    text::{Escaped, fields, options},
};
use std::{fmt, num::NonZeroU64};

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

impl PcapSpec {
    pub(super) fn parse(argument: Option<&str>) -> Result<Self, SpecError> {
        let fields = fields(argument.unwrap_or_default())?;
        let (file, fields) = fields.split_first().expect("splitting gives at least one field");
        let mut spec = Self { read: Some(file.clone()).filter(|file| !file.is_empty()), ..Self::default() };
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
                            let rate = value.ends_with("pps").then(|| rate::parse(value)).flatten();
                            Speed::Fixed(
                                rate.ok_or_else(|| wrong("full, recorded, or a rate such as 1000pps or 2Mpps"))?,
                            )
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
}

impl fmt::Display for PcapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Escaped(self.read.as_deref().unwrap_or_default()))?;
        self.write.as_deref().map_or(Ok(()), |file| write!(f, ",write={}", Escaped(file)))?;
        match self.speed {
            Speed::Full => {}
            Speed::Recorded => f.write_str(",speed=recorded")?,
            Speed::Fixed(rate) => write!(f, ",speed={}pps", rate.pps())?,
        }
        match self.passes {
            Passes::Times(NonZeroU64::MIN) => Ok(()),
            Passes::Times(times) => write!(f, ",loop={times}"),
            Passes::Forever => f.write_str(",loop=forever"),
        }
    }
}
