//! `vhost-user:PATH[,server|client,queues=N]`.

use super::SpecError;
use super::text::{Escaped, fields, number, options};
use std::fmt;

/// Where a virtio driver is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserSpec {
    /// The socket.
    pub path: String,
    /// The other side makes the socket, and we connect to it.
    pub client: bool,
    /// Pairs of queues, from 1 to [`VhostUserSpec::MAX_QUEUES`].
    pub queues: u16,
}

impl VhostUserSpec {
    /// Most pairs of queues: the protocol numbers queues with a byte.
    pub const MAX_QUEUES: u16 = 128;

    pub(super) fn parse(argument: Option<&str>) -> Result<Self, SpecError> {
        let fields = fields(argument.unwrap_or_default())?;
        let (path, fields) = fields.split_first().expect("splitting gives at least one field");
        if path.is_empty() {
            let example = "vhost-user:/run/vm1.sock";
            return Err(SpecError::Missing { kind: "vhost-user", what: "the path of a socket", example });
        }
        let is_role = |field: &String| matches!(field.as_str(), "server" | "client");
        let (roles, fields): (Vec<_>, Vec<_>) = fields.iter().cloned().partition(is_role);
        if let [_, second, ..] = &roles[..] {
            return Err(SpecError::Twice(second.clone()));
        }
        let client = roles.first().is_some_and(|role| role == "client");
        let mut queues = 1;
        for (key, value) in options("vhost-user", "server, client and queues=N", &["queues"], &fields)? {
            let expected = "a number of queue pairs, from 1 to 128";
            queues = number(value)
                .and_then(|queues| u16::try_from(queues).ok())
                .filter(|queues| (1..=Self::MAX_QUEUES).contains(queues))
                .ok_or_else(|| SpecError::Value { key: key.to_owned(), value: value.to_owned(), expected })?;
        }
        Ok(Self { path: path.clone(), client, queues })
    }
}

impl fmt::Display for VhostUserSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Escaped(&self.path))?;
        f.write_str(if self.client { ",client" } else { "" })?;
        if self.queues == 1 { Ok(()) } else { write!(f, ",queues={}", self.queues) }
    }
}
