//! What a queue pair is told when it is made, and later.

use super::State;
use crate::memory::ProtectionDomain;
use crate::number::{Psn, Qpn};
use crate::wire::{Path, Service};
use crate::work::Access;

/// How much room a queue pair has. What is granted is at least what was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Requests in the send queue.
    pub send_requests: u32,
    /// Buffers in the receive queue; 0 with a shared one.
    pub receive_requests: u32,
    /// Pieces of a request in the send queue.
    pub send_pieces: u32,
    /// Pieces of a buffer in the receive queue.
    pub receive_pieces: u32,
    /// Bytes that a request may bring along.
    pub inline: u32,
}

/// What a queue pair is from the beginning (volume 1, 11.2.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    /// Which kind.
    pub service: Service,
    /// Whether it is to be the one of the general service interface, which has the number 1. Datagrams only.
    pub general: bool,
    /// Which regions it reaches.
    pub domain: ProtectionDomain,
    /// Where the ends of requests are told.
    pub send_queue: u32,
    /// Where the ends of receptions are told.
    pub receive_queue: u32,
    /// Where buffers come from instead of a receive queue of its own.
    pub shared_receive_queue: Option<u32>,
    /// How much room.
    pub capabilities: Capabilities,
    /// Every request's end is told, not only those that want it.
    pub signal_all: bool,
    /// A number for the caller; the engine does not look at it.
    pub context: u64,
}

/// What a queue pair is told later: what is `Some` is set, nothing else (volume 1, 11.2.4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The state it is to be in.
    pub state: Option<State>,
    /// The state it is thought to be in; if it is another, nothing happens.
    pub current_state: Option<State>,
    /// What the other end may do: [`Access::REMOTE_WRITE`], [`Access::REMOTE_READ`], [`Access::REMOTE_ATOMIC`].
    pub access: Option<Access>,
    /// Which partition. There is one, with index 0 and the key 0xffff.
    pub pkey_index: Option<u16>,
    /// Which port. There is one, with the number 1.
    pub port: Option<u8>,
    /// The key that datagrams must have.
    pub qkey: Option<u32>,
    /// The way to the other end.
    pub path: Option<Path>,
    /// Bytes of payload of a packet: 256, 512, 1024, 2048, 4096; in SLURPoE frames 8192 too.
    pub path_mtu: Option<u16>,
    /// The queue pair at the other end.
    pub remote: Option<Qpn>,
    /// Sequence number of the first packet that comes.
    pub receive_psn: Option<Psn>,
    /// Sequence number of the first packet that goes.
    pub send_psn: Option<Psn>,
    /// READs and atomic operations that may be on their way at once.
    pub max_rd_atomic: Option<u8>,
    /// The same from the other end.
    pub max_dest_rd_atomic: Option<u8>,
    /// How long the other end waits when there is no buffer: a code, 0 to 31 (volume 1, table 45).
    pub min_rnr_timer: Option<u8>,
    /// How long an answer may take: 4.096 us x 2^n, 1 to 31; 0 means for ever.
    pub timeout: Option<u8>,
    /// How often it is sent again when there is no answer: 0 to 7.
    pub retry_count: Option<u8>,
    /// How often it is sent again when there is no buffer: 0 to 6; 7 means for ever.
    pub rnr_retry: Option<u8>,
    /// Whether to tell when the send queue is drained; only with the state SQD.
    pub notify_drained: Option<bool>,
}

/// What a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// All that was ever set, and what it began with. `state` and `current_state` are the state that it is in.
    pub attributes: Attributes,
    /// What it was made with; the capabilities are those granted.
    pub init: Init,
    /// Whether requests are still on their way in the state SQD.
    pub draining: bool,
}

impl Attributes {
    /// Only the state.
    pub const fn state(state: State) -> Self {
        Self { state: Some(state), ..Self::NONE }
    }

    /// Nothing.
    pub const NONE: Self = Self {
        state: None,
        current_state: None,
        access: None,
        pkey_index: None,
        port: None,
        qkey: None,
        path: None,
        path_mtu: None,
        remote: None,
        receive_psn: None,
        send_psn: None,
        max_rd_atomic: None,
        max_dest_rd_atomic: None,
        min_rnr_timer: None,
        timeout: None,
        retry_count: None,
        rnr_retry: None,
        notify_drained: None,
    };
}
