//! `virtio-user:PATH[,client|server,queues=N]`.

use super::SpecError;
use super::socket::{self, Socket};
use std::fmt;

/// Where a vhost-user back end is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtioUserSpec {
    /// The socket.
    pub path: String,
    /// We make the socket, and the other side connects to it.
    pub server: bool,
    /// Pairs of queues, from 1 to [`VirtioUserSpec::MAX_QUEUES`].
    pub queues: u16,
}

impl VirtioUserSpec {
    /// Most pairs of queues.
    pub const MAX_QUEUES: u16 = socket::MAX_QUEUES;

    /// Who makes the socket, in a word.
    pub fn role(&self) -> &'static str {
        if self.server { "server" } else { "client" }
    }

    pub(super) fn parse(argument: Option<&str>) -> Result<Self, SpecError> {
        let example = "virtio-user:/run/openvswitch/card0";
        let Socket { path, client, queues } = Socket::parse("virtio-user", example, argument)?;
        Ok(Self { path, server: client == Some(false), queues })
    }
}

impl fmt::Display for VirtioUserSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        socket::write(f, &self.path, if self.server { ",server" } else { "" }, self.queues)
    }
}
