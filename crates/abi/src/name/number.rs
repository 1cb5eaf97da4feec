//! The options of a card that are numbers: their words, ranges and fields, in one table.

use super::{CardOptions, OptionError};
use crate::register::map::MAX_QUEUES;

/// One option that is a number.
pub(super) struct Number {
    pub word: &'static str,
    unit: &'static str,
    min: u32,
    max: u32,
    shape: Shape,
    pub get: fn(&CardOptions) -> u32,
    put: fn(&mut CardOptions, u32),
}

enum Shape {
    Any,
    PowerOfTwo,
    MultipleOf(u32),
}

macro_rules! number {
    ($word:literal, $unit:literal, $min:expr, $max:expr, $shape:expr, $field:ident) => {
        Number {
            word: $word,
            unit: $unit,
            min: $min,
            max: $max,
            shape: $shape,
            get: |options| options.$field,
            put: |options, value| options.$field = value,
        }
    };
}

/// In the order in which they are printed.
pub(super) static NUMBERS: [Number; 11] = [
    number!("rx", "queues", 0, MAX_QUEUES, Shape::Any, rx_queues),
    number!("tx", "queues", 0, MAX_QUEUES, Shape::Any, tx_queues),
    // §3.2.4: drivers refill 64 descriptors at a time, and none can be told of more than 32768.
    number!("buffers", "", 128, 32768, Shape::PowerOfTwo, buffers),
    // §3.2: the length of a buffer is 16 bits wide; whole cache lines keep neighbours apart.
    number!("buffer", "bytes", 64, 65472, Shape::MultipleOf(64), buffer_size),
    // §3.1: room for two frames of the largest size at least; the mask is 32 bits wide.
    number!("ring", "bytes", 32 << 10, 1 << 30, Shape::PowerOfTwo, sze_ring),
    // §3.2.5: room for two frames of the largest size at least; 16 bits say where one begins, of which §3.2.2 gives 15.
    number!("blocks", "", 256, 32768, Shape::PowerOfTwo, calypte_blocks),
    // `docs/spec/dd.md`; a ring as long as the longest of Medusa.
    number!("descriptors", "", 8, 32768, Shape::PowerOfTwo, dd_descriptors),
    number!("workers", "threads (0: by queues and cores)", 0, 256, Shape::Any, workers),
    number!("spin", "microseconds", 0, 1_000_000, Shape::Any, spin_us),
    // §3.2.6: 0x3fff is the most that any driver hands over.
    number!("frame-min", "bytes", 1, 0x3fff, Shape::Any, frame_min),
    number!("frame-max", "bytes", 1, 0x3fff, Shape::Any, frame_max),
];

impl Number {
    pub fn expected(&self) -> String {
        let shape = match self.shape {
            Shape::Any => "a number".to_owned(),
            Shape::PowerOfTwo => "a power of two".to_owned(),
            Shape::MultipleOf(step) => format!("a multiple of {step}"),
        };
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        let suffix = if self.unit == "bytes" { ", K, M and G allowed" } else { "" };
        format!("{shape} from {} to {}{unit}{suffix}", self.min, self.max)
    }

    fn fits(&self, value: u32) -> bool {
        let shape = match self.shape {
            Shape::Any => true,
            Shape::PowerOfTwo => value.is_power_of_two(),
            Shape::MultipleOf(step) => value.is_multiple_of(step),
        };
        shape && (self.min..=self.max).contains(&value)
    }

    fn parse(&self, text: &str) -> Option<u32> {
        let factor = match text.as_bytes().last() {
            Some(b'K' | b'k') => 1 << 10,
            Some(b'M' | b'm') => 1 << 20,
            Some(b'G' | b'g') => 1 << 30,
            _ => 1,
        };
        let digits = if factor == 1 { text } else { &text[..text.len() - 1] };
        let plain = self.unit != "bytes" && factor != 1;
        if plain || digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        digits.parse::<u32>().ok()?.checked_mul(factor)
    }

    /// Sets the field from text.
    pub fn set(&self, options: &mut CardOptions, text: &str) -> Result<(), OptionError> {
        let value = self.parse(text).filter(|&value| self.fits(value)).ok_or_else(|| self.bad(text))?;
        (self.put)(options, value);
        Ok(())
    }

    /// Whether the field holds an acceptable number.
    pub fn check(&self, options: &CardOptions) -> Result<(), OptionError> {
        let value = (self.get)(options);
        if self.fits(value) { Ok(()) } else { Err(self.bad(&value.to_string())) }
    }

    fn bad(&self, value: &str) -> OptionError {
        OptionError::BadValue { word: self.word, value: value.to_owned(), expected: self.expected() }
    }
}
