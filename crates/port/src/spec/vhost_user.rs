//! `vhost-user:PATH[,server|client,queues=N]`.

use super::SpecError;
use super::socket::{self, Socket};
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
    /// Most pairs of queues.
    pub const MAX_QUEUES: u16 = socket::MAX_QUEUES;

    pub(super) fn parse(argument: Option<&str>) -> Result<Self, SpecError> {
        let Socket { path, client, queues } = Socket::parse("vhost-user", "vhost-user:/run/vm1.sock", argument)?;
        Ok(Self { path, client: client.unwrap_or(false), queues })
    }
}

impl fmt::Display for VhostUserSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        socket::write(f, &self.path, if self.client { ",client" } else { "" }, self.queues)
    }
}
