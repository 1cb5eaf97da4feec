//! One connection: what a program says when it calls or answers, what both have agreed on, what it is told.

use super::address::ServiceId;
use super::message::{Bytes, Reply, Request, ServiceReply, ServiceRequest};
use crate::number::{Gid, Moment, Psn, Qpn};
use core::time::Duration;

/// Number of a connection at this end.
pub type Id = u32;

/// The other end, and by which of the own addresses it is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its GID.
    pub gid: Gid,
    /// Place of the own one in the table of GIDs.
    pub index: u8,
}

/// What an end says of its queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Its number.
    pub qpn: Qpn,
    /// The packet sequence number with which the other end is to begin (volume 1, 12.7.31).
    pub psn: Psn,
    /// READs and atomic operations that it answers at once.
    pub responder_resources: u8,
    /// READs and atomic operations that it has on the way at once.
    pub initiator_depth: u8,
    /// Whether credits are told in acknowledgements.
    pub flow_control: bool,
    /// Retries of both queue pairs. Only the caller says it.
    pub retry_count: u8,
    /// Retries of the other one after this one was not ready.
    pub rnr_retry_count: u8,
    /// Whether it has a shared receive queue.
    pub shared_receive: bool,
}

/// Who calls, whom, and for what.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Who is called.
    pub peer: Peer,
    /// The own GID.
    pub own: Gid,
    /// The own channel adapter.
    pub guid: u64,
    /// The service.
    pub service: ServiceId,
    /// Of the own queue pair.
    pub offer: Offer,
    /// Whether it is an unreliable connection.
    pub unreliable: bool,
    /// Payload of packets: 1 to 5, 256 to 4096 bytes.
    pub mtu: u8,
    /// Timeout of acknowledgements, as a time of five bits.
    pub ack_timeout: u8,
    /// Traffic class of packets.
    pub traffic_class: u8,
    /// With an [`IpHeader`](super::address::IpHeader) where the service is one of a port.
    pub private: [u8; 92],
}

/// What a queue pair has to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The other end.
    pub peer: Peer,
    /// Its queue pair.
    pub remote_qpn: Qpn,
    /// First packet sequence number that comes.
    pub receive_psn: Psn,
    /// First packet sequence number that goes.
    pub send_psn: Psn,
    /// Payload of packets: 1 to 5, 256 to 4096 bytes.
    pub mtu: u8,
    /// Hop limit of packets.
    pub hop_limit: u8,
    /// Traffic class of packets.
    pub traffic_class: u8,
    /// Timeout of acknowledgements, as a time of five bits.
    pub ack_timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// Retries after the other one was not ready.
    pub rnr_retry_count: u8,
    /// READs and atomic operations that are answered at once.
    pub responder_resources: u8,
    /// READs and atomic operations that are on the way at once.
    pub initiator_depth: u8,
    /// Whether it is an unreliable connection.
    pub unreliable: bool,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// REQ has been sent.
    Calling,
    /// REP has come; the program gets its queue pair ready.
    Replied,
    /// REQ has come; the program decides.
    Asked,
    /// Its sender has taken it back before the program has seen it.
    Withdrawn,
    /// REP has been sent.
    Accepting,
    /// Both may send.
    Established,
    /// DREQ has been sent.
    Leaving,
    /// It is over; answers are given again.
    Timewait,
    /// SIDR_REQ has been sent.
    Inquiring,
    /// SIDR_REQ has come; the program decides.
    Inquired,
    /// SIDR_REP has been sent; it is given again.
    Answered,
}

impl State {
    /// Whether something is sent again until an answer comes.
    pub(super) const fn is_waiting(self) -> bool {
        matches!(self, Self::Calling | Self::Accepting | Self::Leaving | Self::Inquiring)
    }
}

/// What a program is told.
#[derive(Clone, Debug)]
pub enum Event {
    /// Somebody calls a service.
    Requested {
        /// Who offers it.
        owner: u64,
        /// The new connection.
        id: Id,
        /// Who calls.
        peer: Peer,
        /// What it says.
        request: Box<Request>,
    },
    /// Somebody asks for a datagram service.
    ServiceRequested {
        /// Who offers it.
        owner: u64,
        /// The new request.
        id: Id,
        /// Who asks.
        peer: Peer,
        /// What it says.
        request: Box<ServiceRequest>,
    },
    /// The other end has accepted; when its queue pair is ready, the program calls [`ready`](super::Manager::ready).
    Replied(Id, Box<Reply>),
    /// The queue pair of a datagram service, or why there is none. The request is forgotten.
    ServiceReplied(Id, Box<ServiceReply>),
    /// Whom this end has accepted is ready.
    Established(Id),
    /// The other end does not want to. The connection is forgotten.
    Rejected(Id, u16, Box<[u8; 148]>),
    /// The other end does not answer. The connection is forgotten.
    Unreachable(Id),
    /// It is over.
    Disconnected(Id),
    /// Nothing of it is on the way any more. The connection is forgotten.
    TimewaitOver(Id),
}

impl Event {
    /// The connection that it is about.
    pub const fn id(&self) -> Id {
        match self {
            Self::Requested { id, .. } | Self::ServiceRequested { id, .. } => *id,
            Self::Replied(id, _) | Self::ServiceReplied(id, _) | Self::Rejected(id, ..) => *id,
            Self::Established(id) | Self::Unreachable(id) | Self::Disconnected(id) | Self::TimewaitOver(id) => *id,
        }
    }
}

/// What is remembered of one.
#[derive(Debug)]
pub(super) struct Connection {
    pub state: State,
    pub terms: Terms,
    pub remote_id: u32,
    pub local_qpn: Qpn,
    pub guid: u64,
    pub transaction: u64,
    /// When this end has called.
    pub began: Option<Moment>,
    /// The service, where somebody else has called.
    pub service: Option<ServiceId>,
    /// Whether the program has not yet looked at the request.
    pub is_unseen: bool,
    /// Whether it counts as half open.
    pub is_half_open: bool,
    /// Whether the program has no use of it any more.
    pub is_orphan: bool,
    /// What is sent again.
    pub last: Option<Box<Bytes>>,
    pub retries: u8,
    pub every: Duration,
    pub due: Option<Moment>,
}

impl Connection {
    pub fn new(state: State, terms: Terms, transaction: u64, every: Duration) -> Self {
        Self {
            state,
            terms,
            remote_id: 0,
            local_qpn: Qpn::new(0),
            guid: 0,
            transaction,
            began: None,
            service: None,
            is_unseen: false,
            is_half_open: false,
            is_orphan: false,
            last: None,
            retries: 0,
            every,
            due: None,
        }
    }
}
