//! `generator[:size=N,rate=PPS,count=N]`.

use super::{Rate, SpecError, rate};
use super::{
    number,
    text::{fields, options},
};
use crate::{MAX_FRAME_LEN, MIN_FRAME_LEN};
use std::fmt;

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

impl GeneratorSpec {
    pub(super) fn parse(argument: Option<&str>) -> Result<Self, SpecError> {
        let mut spec = Self::default();
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
                "rate" => spec.rate = Some(rate::parse(value).ok_or_else(|| wrong("frames per second, from 1 to 1G"))?),
                _ => spec.count = Some(number(value).ok_or_else(|| wrong("a number of frames"))?),
            }
        }
        Ok(spec)
    }
}

impl fmt::Display for GeneratorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "size={}", self.size)?;
        self.rate.map_or(Ok(()), |rate| write!(f, ",rate={}", rate.pps()))?;
        self.count.map_or(Ok(()), |count| write!(f, ",count={count}"))
    }
}
