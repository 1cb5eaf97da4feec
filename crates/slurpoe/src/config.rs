//! What an endpoint is made with.

use crate::address::Address;

/// How packets stand in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// The lean header.
    #[default]
    Slurpoe,
    /// RoCE v2 between link-local IPv6 addresses: to compare, and to look at frames with programs that know only those. Both ends
    /// have to say so.
    RoceV2,
}

/// What an endpoint is made with. Without `card` and `port`: the card that commands would find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The name of a card, such as `unix:/run/user/1000/millrace/card.sock`.
    pub card: Option<String>,
    /// A port, which this process works on itself: `vhost-user:PATH`, `virtio-user:PATH`, `af_xdp:INTERFACE` and all others
    /// of docs/ports.md that have one queue.
    pub port: Option<String>,
    /// TX queue of the card; by default the first pair that is free.
    pub tx: Option<u32>,
    /// RX queue of the card.
    pub rx: Option<u32>,
    /// Its address; by default a random one.
    pub address: Option<Address>,
    /// Most bytes of payload in a packet: 256, 512, 1024, 2048, 4096, and in frames of SLURPoE 8192. By default what fits into
    /// frames of the card's queues, and 1024 over a port. Two ends use what is less.
    pub mtu: Option<u16>,
    /// How packets stand in frames.
    pub wire: Wire,
    /// Transfers to one other end that have not ended, at most.
    pub depth: u32,
    /// Other ends at a time, at most. What asks to be connected beyond that is refused.
    pub peers: u32,
    /// Whether others may connect without having been asked.
    pub accept: bool,
    /// Whether the end of each connection is told, among the ends of transfers, as [`Kind::Over`](crate::Kind::Over).
    pub watch: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            card: None,
            port: None,
            tx: None,
            rx: None,
            address: None,
            mtu: None,
            wire: Wire::Slurpoe,
            depth: 256,
            peers: 64,
            accept: true,
            watch: false,
        }
    }
}
