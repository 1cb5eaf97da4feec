//! `KIND:NAME[,queues=N]`: a network interface.

use super::SpecError;
use super::{
    number,
    text::{fields, options},
};
use std::{fmt, num::NonZeroU16, str::FromStr};

/// Most queues of one interface; what Linux allows a tap interface.
pub const MAX_INTERFACE_QUEUES: u16 = 256;

/// Which interface, and how many queues of it are ports of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceSpec {
    /// The name.
    pub name: InterfaceName,
    /// Queues, up to [`MAX_INTERFACE_QUEUES`].
    pub queues: NonZeroU16,
}

impl InterfaceSpec {
    pub(super) fn parse(kind: &'static str, example: &'static str, argument: Option<&str>) -> Result<Self, SpecError> {
        let fields = fields(argument.unwrap_or_default())?;
        let (name, fields) = fields.split_first().expect("splitting gives at least one field");
        if name.is_empty() {
            return Err(SpecError::Missing { kind, what: "an interface name", example });
        }
        let mut spec = Self { name: name.parse()?, queues: NonZeroU16::MIN };
        for (key, value) in options(kind, "queues=N", &["queues"], fields)? {
            spec.queues = queues(key, value)?;
        }
        Ok(spec)
    }
}

/// A number of queues, which `value` is behind `key`.
pub(super) fn queues(key: &str, value: &str) -> Result<NonZeroU16, SpecError> {
    let queues = number(value).and_then(|queues| u16::try_from(queues).ok()).and_then(NonZeroU16::new);
    queues.filter(|queues| queues.get() <= MAX_INTERFACE_QUEUES).ok_or_else(|| {
        let expected = "a number of queues, from 1 to 256";
        SpecError::Value { key: key.to_owned(), value: value.to_owned(), expected }
    })
}

impl fmt::Display for InterfaceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if self.queues > NonZeroU16::MIN { write!(f, ",queues={}", self.queues) } else { Ok(()) }
    }
}

/// The name of a network interface: 1 to 15 bytes that Linux accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceName(String);

impl InterfaceName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for InterfaceName {
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
