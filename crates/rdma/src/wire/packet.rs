//! A packet of the transport, in whatever frame it came or is to go.

use super::{Opcode, Service};
use crate::number::{Key, Psn, Qpn};

/// Extended header of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deth {
    /// The queue key, which must be that of the receiver.
    pub qkey: u32,
    /// Who sends.
    pub source: Qpn,
}

/// Extended header of requests to write and to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reth {
    /// Where, as the region counts.
    pub address: u64,
    /// What opens it.
    pub rkey: Key,
    /// Bytes of the whole message.
    pub len: u32,
}

/// Extended header of atomic operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicEth {
    /// Where, as the region counts.
    pub address: u64,
    /// What opens it.
    pub rkey: Key,
    /// What is put there, or added.
    pub swap_add: u64,
    /// What must be there.
    pub compare: u64,
}

/// What an acknowledgement says (volume 1, 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Taken. How many messages more may be sent, as a code of five bits; 31: as many as one likes.
    Ack(u8),
    /// There is no buffer; to be sent again after the time with this code of five bits.
    Rnr(u8),
    /// Taken up to the one before the sequence number; that one is missing.
    SequenceError,
    /// Not a request that this queue pair takes.
    InvalidRequest,
    /// The key does not open those bytes.
    RemoteAccess,
    /// It could not be done.
    RemoteOperation,
}

/// Extended header of acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What it says.
    pub syndrome: Syndrome,
    /// How many messages were done, modulo 2^24.
    pub msn: u32,
}

/// All headers of a packet. Which of the extended ones there are follows from the opcode; a format writes those that
/// belong to it, and takes a default for one that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// For which kind of queue pair.
    pub service: Service,
    /// What it is.
    pub opcode: Opcode,
    /// Wake a sleeper.
    pub solicited: bool,
    /// Answer this.
    pub ack_request: bool,
    /// A router was congested (forward), or the other end was told so (backward).
    pub fecn_becn: (bool, bool),
    /// The sender does selective repeat and takes credits (decision 54): the lowest of the seven reserved bits beside the
    /// request to answer. Others send 0 and do not look at it (volume 1, 9.2).
    pub extended: bool,
    /// Partition, 0xffff unless somebody made others.
    pub pkey: u16,
    /// For whom.
    pub destination: Qpn,
    /// Which packet.
    pub psn: Psn,
    /// Of datagrams.
    pub deth: Option<Deth>,
    /// Of requests to write and to read.
    pub reth: Option<Reth>,
    /// Of atomic operations.
    pub atomic: Option<AtomicEth>,
    /// Of answers.
    pub aeth: Option<Aeth>,
    /// What an atomic operation found.
    pub original: Option<u64>,
    /// Immediate data, as they stand there.
    pub immediate: Option<[u8; 4]>,
    /// A key to invalidate.
    pub invalidate: Option<Key>,
}

impl Headers {
    /// Headers of a packet without any extended one.
    pub const fn new(service: Service, opcode: Opcode, destination: Qpn, psn: Psn) -> Self {
        Self {
            service,
            opcode,
            solicited: false,
            ack_request: false,
            fecn_becn: (false, false),
            extended: false,
            pkey: 0xffff,
            destination,
            psn,
            deth: None,
            reth: None,
            atomic: None,
            aeth: None,
            original: None,
            immediate: None,
            invalidate: None,
        }
    }
}

/// A packet that has come: its headers, and its payload without padding and check sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What stands before the payload.
    pub headers: Headers,
    /// What it carries.
    pub payload: &'a [u8],
}
