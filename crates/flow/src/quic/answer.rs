//! Where a datagram goes, why, and how often that was so.

use super::connection::{ConnectionId, Learned};
use std::fmt;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The instance whose connection it is.
    pub instance: u16,
    /// The queue: that of the instance, or of the stream.
    pub queue: u16,
}

/// What is said of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Where it goes; `None`: this is not for QUIC steering to say.
    pub target: Option<Target>,
    /// Why.
    pub why: Why,
}

/// Why a datagram goes where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its connection id is known.
    KnownId(ConnectionId, Learned),
    /// Its connection id is not known, or it has none; its path belongs to one instance.
    KnownPath,
    /// Its connection id says it, by this configuration of QUIC-LB.
    Routable(u8),
    /// Its stream says it.
    Stream(u64),
    /// A new connection, by this rule of server names and protocols.
    Name(usize),
    /// A new connection, by the hash of the connection id that the client chose.
    Hash,
    /// A new connection whose ClientHello is not whole. Whoever can wait asks again when the next datagram of the path was
    /// answered; whoever cannot drops it, and the client sends it again.
    HelloIncomplete,
    /// A packet within a connection that is not known.
    Unknown,
    /// It is not a QUIC packet.
    NotQuic,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KnownId(id, learned) => {
                let how = match learned {
                    Learned::FirstDestination => "which the client chose for its first packets",
                    Learned::Handshake => "which the instance named in its handshake",
                    Learned::OtherSide => "which the other side wrote to in the handshake",
                    Learned::NewConnectionId => "which the instance issued, decrypted with its keys",
                    Learned::OnPath => "seen on a path of this instance",
                };
                write!(f, "connection id {id:?}, {how}")
            }
            Self::KnownPath => f.write_str("addresses and ports, on which one instance has connections"),
            Self::Routable(configuration) => {
                write!(f, "server id in the connection id, QUIC-LB configuration {configuration}")
            }
            Self::Stream(id) => write!(f, "stream {id}, decrypted with the connection's keys"),
            Self::Name(rule) => write!(f, "new connection, rule {rule} of server names"),
            Self::Hash => f.write_str("new connection, hash of the connection id that the client chose"),
            Self::HelloIncomplete => f.write_str("new connection whose ClientHello is not whole yet"),
            Self::Unknown => f.write_str("connection id that nobody is known to have"),
            Self::NotQuic => f.write_str("no QUIC packet"),
        }
    }
}

/// How often what was. Each datagram asked about counts as one of those that [`Why`] names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// [`Why::KnownId`].
    pub known_id: u64,
    /// [`Why::KnownPath`].
    pub known_path: u64,
    /// [`Why::Routable`].
    pub routable: u64,
    /// [`Why::Stream`].
    pub stream: u64,
    /// [`Why::Name`].
    pub name: u64,
    /// [`Why::Hash`].
    pub hash: u64,
    /// [`Why::HelloIncomplete`].
    pub hello_incomplete: u64,
    /// [`Why::Unknown`].
    pub unknown: u64,
    /// [`Why::NotQuic`].
    pub not_quic: u64,
    /// Connections that came on a path other than their last one.
    pub moved: u64,
    /// Connections that were entered.
    pub opened: u64,
    /// Connections that were forgotten because nothing came for long.
    pub expired: u64,
    /// Handshakes that were forgotten because there was no room.
    pub evicted: u64,
    /// Connections that were not entered: no room, or too many of this source.
    pub refused: u64,
    /// Ids that were not entered because another instance has them.
    pub conflicts: u64,
    /// Secrets of connections that are not known, or that are no secrets.
    pub secrets_refused: u64,
    /// Datagrams with a ClientHello that were not decrypted: the budget was used up, or the table was busy.
    pub not_decrypted: u64,
    /// Datagrams without anything known that the table was not asked about: the budget was used up. Those that may begin a
    /// connection went by the hash of their id.
    pub not_entered: u64,
    /// Datagrams of which nothing was learned: the budget was used up. They went where they belong.
    pub not_learned: u64,
    /// Datagrams that the table was not asked about because another worker held it for too long.
    pub busy: u64,
}

impl Counters {
    /// Datagrams asked about.
    pub fn datagrams(&self) -> u64 {
        let learned = self.known_id + self.known_path + self.routable + self.stream;
        learned + self.name + self.hash + self.hello_incomplete + self.unknown + self.not_quic
    }

    pub(super) fn count(&mut self, why: Why) {
        let counter = match why {
            Why::KnownId(..) => &mut self.known_id,
            Why::KnownPath => &mut self.known_path,
            Why::Routable(_) => &mut self.routable,
            Why::Stream(_) => &mut self.stream,
            Why::Name(_) => &mut self.name,
            Why::Hash => &mut self.hash,
            Why::HelloIncomplete => &mut self.hello_incomplete,
            Why::Unknown => &mut self.unknown,
            Why::NotQuic => &mut self.not_quic,
        };
        *counter += 1;
    }
}
