//! A group as somebody asks for it. Instances are named by their queues.

use super::config::{Config, ConfigError, Limits};
use super::names::NameRule;
use super::routable::RoutableSpec;
use super::steering::Setup;
use serde::{Deserialize, Serialize};

/// Most instances of a group.
pub const MAX_QUEUES: usize = 512;
/// Most connections of a group: about 1 KiB of memory each.
pub const MAX_CONNECTIONS: usize = 1 << 18;
/// Most rules of names, which are compared one after the other.
pub const MAX_NAMES: usize = 64;
/// Most server ids of a QUIC-LB configuration.
pub const MAX_SERVERS: usize = 1024;

/// What becomes of a datagram that nothing known tells apart: one within an unknown connection, or none of QUIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Other {
    /// Nobody gets it. A server that is not its own would end a connection that could go on.
    #[default]
    Drop,
    /// A queue by the hash of its addresses and ports gets it.
    Hash,
}

/// Connections of a server name or a protocol, and the queues among which they are shared out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameSpec {
    /// A host (`example.com`), or all hosts below one (`*.example.com`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sni: Option<String>,
    /// A protocol of the application (`h3`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpn: Option<String>,
    /// Whose they are.
    pub queues: Vec<u16>,
}

/// Ids that say which server they belong to (QUIC-LB).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LbSpec {
    /// The first three bits of its ids: 0 to 6.
    pub config: u8,
    /// Length of a nonce in bytes.
    pub nonce: usize,
    /// Key of AES-128, if server ids are encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<[u8; 16]>,
    /// Server ids, all of one length, and their queues.
    pub servers: Vec<(Vec<u8>, u16)>,
}

/// A group as somebody asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// The queue of each instance; RX queue and TX queue of an instance have one number.
    pub queues: Vec<u16>,
    /// Queues that get new connections, if not all do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Vec<u16>>,
    /// Who gets new connections by name; the first that fits decides.
    #[serde(default)]
    pub names: Vec<NameSpec>,
    /// QUIC-LB.
    #[serde(default)]
    pub lb: Vec<LbSpec>,
    /// Whether applications hand over keys.
    #[serde(default)]
    pub keys: bool,
    /// Queues among which streams are shared out; needs `keys`.
    #[serde(default)]
    pub streams: Vec<u16>,
    /// What instances send is not seen.
    #[serde(default)]
    pub one_way: bool,
    /// What becomes of what nothing tells apart.
    #[serde(default)]
    pub other: Other,
    /// See [`Limits`].
    #[serde(default = "usual::connections")]
    pub connections: usize,
    /// See [`Limits`].
    #[serde(default = "usual::handshakes")]
    pub handshakes: usize,
    /// See [`Limits`].
    #[serde(default = "usual::per_source")]
    pub per_source: usize,
    /// See [`Limits::idle_ns`]; in seconds.
    #[serde(default = "usual::idle")]
    pub idle: u32,
    /// See [`Limits`].
    #[serde(default = "usual::decryptions")]
    pub decryptions: u32,
    /// See [`Limits`].
    #[serde(default = "usual::arrivals")]
    pub arrivals: u32,
    /// See [`Limits`].
    #[serde(default = "usual::lessons")]
    pub lessons: u32,
}

/// What JSON may leave out.
mod usual {
    use super::Limits;

    pub fn connections() -> usize {
        Limits::default().connections
    }
    pub fn handshakes() -> usize {
        Limits::default().handshakes
    }
    pub fn per_source() -> usize {
        Limits::default().per_source
    }
    pub fn idle() -> u32 {
        (Limits::default().idle_ns / 1_000_000_000) as u32
    }
    pub fn decryptions() -> u32 {
        Limits::default().decryptions
    }
    pub fn arrivals() -> u32 {
        Limits::default().arrivals
    }
    pub fn lessons() -> u32 {
        Limits::default().lessons
    }
}

/// Why a group cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No queues, too many, or one twice.
    #[error("a QUIC group has 1 to {MAX_QUEUES} queues, each once")]
    Queues,
    /// A name, a server or `new` has a queue that is none of the group's.
    #[error("queue {0} is none of the group's queues")]
    Stranger(u16),
    /// A number is out of range.
    #[error("{what} is out of range: {range}")]
    Range {
        /// Of what.
        what: &'static str,
        /// What is right.
        range: &'static str,
    },
    /// Something else does not fit.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl GroupSpec {
    /// A group of these queues, with nothing else said.
    pub fn over(queues: Vec<u16>) -> Self {
        Self {
            queues,
            new: None,
            names: Vec::new(),
            lb: Vec::new(),
            keys: false,
            streams: Vec::new(),
            one_way: false,
            other: Other::Drop,
            connections: usual::connections(),
            handshakes: usual::handshakes(),
            per_source: usual::per_source(),
            idle: usual::idle(),
            decryptions: usual::decryptions(),
            arrivals: usual::arrivals(),
            lessons: usual::lessons(),
        }
    }

    /// The highest queue that it names.
    pub fn highest_queue(&self) -> u16 {
        self.queues.iter().chain(&self.streams).copied().max().unwrap_or(0)
    }

    /// Whether there can be such a group.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), SpecError> {
        Ok(Setup::new(self.config()?).map(|_| ())?)
    }

    /// The same with instances in place of queues, which are numbered in the order of `queues`.
    pub(super) fn config(&self) -> Result<Config, SpecError> {
        self.check_numbers()?;
        let instance = |queue: &u16| {
            let at = self.queues.iter().position(|other| other == queue).ok_or(SpecError::Stranger(*queue))?;
            Ok(at as u16)
        };
        let instances = |queues: &[u16]| queues.iter().map(instance).collect::<Result<Vec<u16>, SpecError>>();
        let names = self.names.iter().map(|name| {
            let (server_name, protocol) = (name.sni.clone(), name.alpn.clone());
            Ok(NameRule { server_name, protocol, instances: instances(&name.queues)? })
        });
        let routable = self.lb.iter().map(|lb| {
            let servers = lb.servers.iter().map(|(id, queue)| Ok((id.clone(), instance(queue)?)));
            Ok(RoutableSpec {
                configuration: lb.config,
                server_id_len: lb.servers.first().map_or(0, |(id, _)| id.len()),
                nonce_len: lb.nonce,
                key: lb.key,
                servers: servers.collect::<Result<_, SpecError>>()?,
            })
        });
        Ok(Config {
            queues: self.queues.clone(),
            instances: instances(self.new.as_ref().unwrap_or(&self.queues))?,
            names: names.collect::<Result<_, SpecError>>()?,
            routable: routable.collect::<Result<_, SpecError>>()?,
            keys: self.keys,
            streams: self.streams.clone(),
            one_way: self.one_way,
            limits: Limits {
                connections: self.connections,
                handshakes: self.handshakes,
                per_source: self.per_source,
                idle_ns: u64::from(self.idle) * 1_000_000_000,
                decryptions: self.decryptions,
                arrivals: self.arrivals,
                lessons: self.lessons,
                ..Limits::default()
            },
            ..Config::default()
        })
    }

    fn check_numbers(&self) -> Result<(), SpecError> {
        let mut queues = self.queues.clone();
        queues.sort_unstable();
        queues.dedup();
        if queues.is_empty() || queues.len() != self.queues.len() || queues.len() > MAX_QUEUES {
            return Err(SpecError::Queues);
        }
        let range = |good: bool, what, range| if good { Ok(()) } else { Err(SpecError::Range { what, range }) };
        range((1..=MAX_CONNECTIONS).contains(&self.connections), "connections", "1 to 262144")?;
        range((1..=self.connections).contains(&self.handshakes), "handshakes", "1 to connections")?;
        range((1..=self.connections).contains(&self.per_source), "per_source", "1 to connections")?;
        range(self.idle > 0, "idle", "1 second or more")?;
        range(self.names.len() <= MAX_NAMES, "the number of names", "at most 64")?;
        range(self.streams.len() <= MAX_QUEUES, "the number of queues for streams", "at most 512")?;
        range(self.lb.iter().all(|lb| lb.servers.len() <= MAX_SERVERS), "the number of server ids", "at most 1024")?;
        let words = self.names.iter().flat_map(|name| name.sni.iter().chain(&name.alpn));
        let is_word = |word: &String| {
            (1..=253).contains(&word.len())
                && word.bytes().all(|byte| byte.is_ascii_graphic() && !b",()=".contains(&byte))
        };
        range(words.into_iter().all(is_word), "a name", "1 to 253 printable letters, none of them , ( ) =")?;
        let says = |name: &NameSpec| name.sni.is_some() || name.alpn.is_some();
        range(self.names.iter().all(says), "a rule of names", "sni, alpn or both")
    }
}
