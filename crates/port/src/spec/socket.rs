//! What the kinds have in common that meet a program at a socket: `PATH[,server|client,queues=N]`.

use super::SpecError;
use super::{
    number,
    text::{Escaped, fields, options},
};
use std::fmt;

/// Most pairs of queues: the protocol numbers queues with a byte.
pub(super) const MAX_QUEUES: u16 = 128;

/// The fields, as far as they were given.
pub(super) struct Socket {
    pub path: String,
    /// Whether we connect to a socket that the other side makes.
    pub client: Option<bool>,
    pub queues: u16,
}

impl Socket {
    pub fn parse(kind: &'static str, example: &'static str, argument: Option<&str>) -> Result<Self, SpecError> {
        let fields = fields(argument.unwrap_or_default())?;
        let (path, fields) = fields.split_first().expect("splitting gives at least one field");
        if path.is_empty() {
            return Err(SpecError::Missing { kind, what: "the path of a socket", example });
        }
        let is_role = |field: &String| matches!(field.as_str(), "server" | "client");
        let (roles, fields): (Vec<_>, Vec<_>) = fields.iter().cloned().partition(is_role);
        if let [_, second, ..] = &roles[..] {
            return Err(SpecError::Twice(second.clone()));
        }
        let client = roles.first().map(|role| role == "client");
        let mut queues = 1;
        for (key, value) in options(kind, "server, client and queues=N", &["queues"], &fields)? {
            let expected = "a number of queue pairs, from 1 to 128";
            queues = number(value)
                .and_then(|queues| u16::try_from(queues).ok())
                .filter(|queues| (1..=MAX_QUEUES).contains(queues))
                .ok_or_else(|| SpecError::Value { key: key.to_owned(), value: value.to_owned(), expected })?;
        }
        Ok(Self { path: path.clone(), client, queues })
    }
}

/// `role` is empty if it is the one that is meant without a word.
pub(super) fn write(f: &mut fmt::Formatter<'_>, path: &str, role: &str, queues: u16) -> fmt::Result {
    write!(f, "{}{role}", Escaped(path))?;
    if queues == 1 { Ok(()) } else { write!(f, ",queues={queues}") }
}
