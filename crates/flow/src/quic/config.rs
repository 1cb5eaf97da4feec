//! What somebody configures of QUIC steering.

use super::names::NameRule;
use super::routable::{RoutableError, RoutableSpec};
use std::collections::hash_map::RandomState;

/// QUIC steering of a port.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The queue of each instance. An instance is whatever keeps connections to itself: a process, a thread, a socket.
    pub queues: Vec<u16>,
    /// Instances among which new connections are shared out when no rule of `names` says otherwise. Empty: none gets
    /// them, and the answer is for rules and RSS to give.
    pub instances: Vec<u16>,
    /// Instances by server name and protocol; the first rule that fits decides. If there are any, Initial packets are
    /// decrypted.
    pub names: Vec<NameRule>,
    /// Ids that say which server they belong to.
    pub routable: Vec<RoutableSpec>,
    /// Whether applications hand over keys. If so, Initial packets are decrypted to know whose keys are whose.
    pub keys: bool,
    /// Queues among which the streams of a connection are shared out, if its keys are known: stream `id` goes to number
    /// `id / 4`, counted round. Empty: all streams go to the queue of the instance.
    pub streams: Vec<u16>,
    /// Packets that instances send are not seen, so that ids are learned from what is written to them instead.
    pub one_way: bool,
    /// Bounds.
    pub limits: Limits,
    /// Where new connections are shared out by hash: clones of one hasher choose the same instances.
    pub hasher: RandomState,
}

/// Bounds of what is kept, whatever comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections, handshakes included.
    pub connections: usize,
    /// Handshakes whose client has not shown that its address is its own.
    pub handshakes: usize,
    /// Connections of one source: an IPv4 address, or the first 64 bits of an IPv6 address.
    pub per_source: usize,
    /// ClientHellos that are being put together, up to 8 KiB each.
    pub hellos: usize,
    /// Connections with keys.
    pub keys: usize,
    /// A connection is forgotten after so many nanoseconds without a packet.
    pub idle_ns: u64,
    /// A handshake is forgotten after so many nanoseconds without a packet.
    pub handshake_ns: u64,
    /// Who gets a connection whose ClientHello is not whole after so many nanoseconds is decided without it.
    pub hello_ns: u64,
    /// Datagrams with Initial packets that are decrypted in a second. Beyond, connections go by the hash of their id.
    pub decryptions: u32,
    /// Datagrams from the wire in a second for which a [`Group`](super::Group) asks the table though nothing known is in them:
    /// those of new connections. Beyond, they go by the hash of their id, and are not entered.
    pub arrivals: u32,
    /// Datagrams in a second for which a group asks the table and that have an id that it knows, or that instances send. Beyond, nothing
    /// is learned from them.
    pub lessons: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 65_536,
            handshakes: 16_384,
            per_source: 4_096,
            hellos: 1_024,
            keys: 1_024,
            idle_ns: 300_000_000_000,
            handshake_ns: 10_000_000_000,
            hello_ns: 1_000_000_000,
            decryptions: 20_000,
            arrivals: 20_000,
            lessons: 50_000,
        }
    }
}

/// Why a configuration cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An instance has no queue.
    #[error("instance {0} has no queue")]
    Instance(u16),
    /// A rule of names has no instances.
    #[error("rule {0} of server names has no instances")]
    NoInstances(usize),
    /// Keys are to steer streams, and no keys are taken.
    #[error("streams can only be steered where keys are handed over")]
    StreamsWithoutKeys,
    /// A configuration of QUIC-LB cannot be.
    #[error("QUIC-LB: {0}")]
    Routable(#[from] RoutableError),
}

impl Config {
    /// Whether ClientHellos are read.
    pub(super) fn reads_hellos(&self) -> bool {
        self.keys || !self.names.is_empty()
    }

    /// # Errors
    /// Something that is named is not there.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let rules = self.names.iter().flat_map(|rule| &rule.instances);
        let servers = self.routable.iter().flat_map(|spec| spec.servers.iter().map(|(_, instance)| instance));
        if let Some(unknown) = self
            .instances
            .iter()
            .chain(rules)
            .chain(servers)
            .find(|instance| usize::from(**instance) >= self.queues.len())
        {
            return Err(ConfigError::Instance(*unknown));
        }
        if let Some(at) = self.names.iter().position(|rule| rule.instances.is_empty()) {
            return Err(ConfigError::NoInstances(at));
        }
        if !self.streams.is_empty() && !self.keys {
            return Err(ConfigError::StreamsWithoutKeys);
        }
        Ok(())
    }
}
