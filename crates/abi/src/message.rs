//! What a program and the driver say to each other over a Unix socket (`SOCK_SEQPACKET`: one message, one packet).
//!
//! Every request has exactly one reply, in order. A message is the `postcard` encoding of [`Request`] or [`Reply`];
//! fds travel beside it (`SCM_RIGHTS`) in the order that the variant names. The first request is
//! [`Request::Hello`]; a peer that sends something else, something that cannot be decoded, or too much, is told why and
//! disconnected. Nothing of this is on the data path of direct mode.

use crate::clock::ClockRequest;
use crate::flow::{FlowReply, FlowRequest};
use crate::queue::{Engine, Joiners, Mode, QueueId, Sharing};
use crate::schedule::Schedule;
use crate::stats::CardStats;
use crate::visible::{ClientInfo, LockInfo, UserUse};
use serde::{Deserialize, Serialize};

/// Version of these messages; both sides must have the same.
pub const VERSION: u32 = 9;
/// Largest encoded message in bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Most bytes that one [`Request::Read`] or [`Request::Write`] moves.
pub const MAX_REGISTER_BYTES: usize = 4096;
/// Most packets that one [`Request::TxSync`] commits.
pub const MAX_COMMIT: usize = 4096;
/// Most frames that one [`Request::CountTooLong`] counts: as many as a burst has.
pub const MAX_TOO_LONG: u32 = 1024;
/// Most fds that travel with one message.
pub const MAX_FDS: usize = 6;
/// Most entries of one listing: [`Reply::Clients`], [`Reply::Locks`], [`Reply::Use`].
pub const MAX_LISTED: usize = 32;
/// Longest path of a component that can be locked, in bytes.
pub const MAX_COMPONENT: usize = 1024;

/// A queue opened on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Handle(pub u32);

/// From the program to the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Introduces the program.
    Hello {
        /// [`VERSION`] of the program.
        version: u32,
    },
    /// Asks for the device tree.
    DeviceTree,
    /// Reads registers.
    Read {
        /// Address on the card's bus.
        address: u32,
        /// Bytes, at most [`MAX_REGISTER_BYTES`].
        len: u32,
    },
    /// Writes registers.
    Write {
        /// Address on the card's bus.
        address: u32,
        /// At most [`MAX_REGISTER_BYTES`].
        bytes: Vec<u8>,
    },
    /// Changes what is behind the ports, or who serves a queue.
    Change(Change),
    /// Locks features of a component; never waits.
    Lock {
        /// Path of the component's node.
        component: String,
        /// Features, a bit each.
        bits: u64,
    },
    /// Gives a lock back.
    Unlock {
        /// As in [`Request::Lock`].
        component: String,
        /// As in [`Request::Lock`].
        bits: u64,
    },
    /// Lets the card reach memory of the program. Fds: the memory (a memfd that can be sealed).
    Map {
        /// Bytes from the beginning of the file.
        len: u64,
        /// Whether the card may write.
        writable: bool,
        /// Where in the program's domain; `None` lets the driver choose.
        at: Option<u64>,
    },
    /// Takes memory away from the card; the reply comes when no worker can reach it.
    Unmap {
        /// Where it was mapped.
        iova: u64,
    },
    /// Opens a queue.
    Open {
        /// Which.
        queue: QueueId,
        /// Who moves the pointers.
        mode: Mode,
        /// Alone or with others.
        sharing: Sharing,
        /// Whose buffers.
        buffers: Buffers,
        /// The first opener of a shared RX queue: what those may choose who join it. `None`: `drop` and `evict`, and
        /// `block` too for programs of the same user.
        joiners: Option<Joiners>,
    },
    /// Starts an open queue, or joins it if others have started it.
    Start {
        /// The queue.
        handle: Handle,
    },
    /// Stops it, or leaves it if others go on. A TX queue that is not drained gives [`ErrorCode::NotDrained`].
    Stop {
        /// The queue.
        handle: Handle,
        /// Do not wait for it to drain.
        force: bool,
        /// Where software stands, in [units](Layout) of the queue since the card started. The next opener goes on from
        /// there.
        position: u64,
    },
    /// Closes an open queue; stops it first if necessary.
    Close {
        /// The queue.
        handle: Handle,
    },
    /// Mediated RX: gives back, and asks for more.
    RxSync {
        /// The queue.
        handle: Handle,
        /// Units to give back.
        release: u32,
        /// Most units wanted.
        want: u32,
    },
    /// Mediated TX: commits what was written under the lock, and asks for the lock and more room.
    TxSync {
        /// The queue.
        handle: Handle,
        /// Length of each frame written, in order; at most [`MAX_COMMIT`].
        commit: Vec<u16>,
        /// Room wanted, in units. 0 gives the lock back.
        want: u32,
    },
    /// Asks for all counters.
    Stats,
    /// Asks for the call of an open queue: before this program sleeps on it for the first time. A later one takes the
    /// place of the one before.
    Call {
        /// The queue.
        handle: Handle,
    },
    /// Asks who is connected: at most [`MAX_LISTED`], by number.
    Clients {
        /// Those with a higher number than this; 0: from the first on.
        after: u64,
    },
    /// Ends a connection, as if its program had died; the program is told.
    EndClient {
        /// Its number.
        id: u64,
    },
    /// Asks who holds which lock: at most [`MAX_LISTED`], by path and number of the holder.
    Locks {
        /// How many to leave out at the beginning.
        skip: u32,
    },
    /// Ends locks of programs; those of queues that run stay.
    EndLocks {
        /// Of which component, and of whom.
        whose: Locked,
    },
    /// Asks what users have of what is limited: at most [`MAX_LISTED`], by user.
    Use {
        /// Those with a higher number than this; `None`: from the first on.
        after: Option<u32>,
    },
    /// Has frames counted that the program dropped because the TX queue cannot hold one that long: the card never saw
    /// them.
    CountTooLong {
        /// The queue.
        handle: Handle,
        /// How many; at most [`MAX_TOO_LONG`].
        frames: u32,
    },
    /// Something about the flow table.
    Flow(FlowRequest),
    /// Something about the card's clock.
    Clock(ClockRequest),
}

/// Which locks are meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Locked {
    /// All of the component with this path.
    Component(String),
    /// All of the connection with this number.
    Client(u64),
}

/// Whose buffers a queue works on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Buffers {
    /// The driver allocates them.
    #[default]
    Driver,
    /// The program brings its own (direct, exclusive Medusa or DD only), with a ring of this many descriptors.
    Program {
        /// Entries of the descriptor ring, a power of two.
        entries: u32,
    },
    /// As [`Buffers::Program`], for DD: buffers of one size at equal distances from the beginning of memory that the
    /// program has [mapped](Request::Map) for writing. A port that can puts frames there itself.
    Pool {
        /// Entries of the descriptor ring, a power of two.
        entries: u32,
        /// Where the memory was mapped: the IOVA of the first buffer.
        at: u64,
        /// Usable bytes of a buffer.
        size: u32,
        /// From one buffer to the next, in bytes.
        stride: u32,
        /// How many there are.
        count: u32,
    },
}

impl Buffers {
    /// Entries of the descriptor ring, where the program says how many.
    pub const fn entries(self) -> Option<u32> {
        match self {
            Self::Driver => None,
            Self::Program { entries } | Self::Pool { entries, .. } => Some(entries),
        }
    }
}

/// From the driver to the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Hello`].
    Hello {
        /// [`VERSION`] of the driver.
        version: u32,
        /// Process id of the card.
        pid: u32,
        /// RX queues.
        rx_queues: u32,
        /// TX queues.
        tx_queues: u32,
        /// Shortest frame, without FCS.
        frame_min: u16,
        /// Longest frame, without FCS.
        frame_max: u16,
    },
    /// To [`Request::DeviceTree`]. Fds: a sealed memfd with the blob.
    DeviceTree {
        /// Bytes of the blob.
        len: u64,
    },
    /// To [`Request::Read`].
    Bytes(Vec<u8>),
    /// It was done; there is nothing more to say.
    Done,
    /// To [`Request::Map`].
    Mapped {
        /// Where.
        iova: u64,
    },
    /// To [`Request::Open`]. Fds: control page, kick eventfd, status region, and then those that `layout` says:
    /// data region, descriptor region.
    Opened {
        /// For all further requests.
        handle: Handle,
        /// The engine of the queue.
        engine: Engine,
        /// What lies where.
        layout: Layout,
        /// Which kick eventfd of this connection came: queues with the same number have it in common, and one of its
        /// fds does for all of them.
        kick: u32,
    },
    /// To [`Request::Call`]. Fds: the call, a stream socket. A byte comes when the card has something for a
    /// sleeper or changes the state of the queue, and one at the beginning for what was before.
    Call,
    /// To [`Request::Start`].
    Started {
        /// Position at which this program begins, in [units](Layout) of the queue.
        position: u64,
        /// Position at which the ring began: packet `p` has header `p - base` and lies in buffer `p` (both modulo the
        /// number of entries); unit `u` of an SZE stream lies at byte `8 * u` (modulo the ring). A Calypte or DD
        /// queue always begins at 0.
        base: u64,
    },
    /// To [`Request::RxSync`].
    RxGranted {
        /// Position of the first unit.
        position: u64,
        /// Units in the program's hands now.
        units: u32,
        /// Units lost since the last time because the program was too slow.
        lost: u64,
    },
    /// To [`Request::TxSync`].
    TxGranted {
        /// Position of the first unit.
        position: u64,
        /// Room, at most what was wanted; 0 when another writer has the lock or the ring is full.
        units: u32,
    },
    /// To [`Request::Stats`].
    Stats(Box<CardStats>),
    /// To [`Request::Stats`] of a card whose counters do not fit one message. Fds: a memfd with the `postcard`
    /// encoding of [`CardStats`].
    StatsFile {
        /// Bytes of the encoding.
        len: u64,
    },
    /// To [`Request::Clients`]. Less than [`MAX_LISTED`]: there are no more.
    Clients(Vec<ClientInfo>),
    /// To [`Request::Locks`]. Less than [`MAX_LISTED`]: there are no more.
    Locks(Vec<LockInfo>),
    /// To [`Request::Use`]. Less than [`MAX_LISTED`]: there are no more.
    Use(Vec<UserUse>),
    /// To [`Request::Flow`], unless [`Reply::Done`] says it all.
    Flow(FlowReply),
    /// To [`ClockRequest::Page`]. Fds: the page, to be mapped for reading.
    ClockPage,
    /// It was not done.
    Error {
        /// What kind of failure.
        code: ErrorCode,
        /// For people: what happened and what to do.
        text: String,
    },
}

/// A change of a card that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Plugs a wire into a port, in place of what is there.
    Plug {
        /// Index of the port.
        port: u32,
        /// The specification, in the grammar of ports; `none` unplugs.
        spec: String,
    },
    /// Connects two ports inside the card, or one with itself.
    Connect {
        /// Index of one.
        one: u32,
        /// Index of the other.
        other: u32,
    },
    /// Takes a connection apart.
    Disconnect {
        /// Index of one of the ports.
        port: u32,
    },
    /// Gives the queues of a port a schedule, in place of the one that there is.
    Schedule {
        /// Index of the port.
        port: u32,
        /// `None`: they send whenever they like.
        schedule: Option<Schedule>,
    },
    /// Has a queue, and what belongs to it, served by another worker.
    Move {
        /// The queue.
        queue: QueueId,
        /// Index of the worker.
        worker: u32,
    },
}

/// What lies where in the regions of a queue. Offsets and sizes in bytes.
///
/// The units in which positions and room of a queue are counted: packets (Medusa, DD, and Calypte RX), 8 bytes of the
/// ring (SZE), 32 bytes of the data ring (Calypte TX).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// A Medusa queue.
    Medusa {
        /// Entries of the descriptor ring, of the header ring, and number of buffers: one power of two.
        entries: u32,
        /// Size of the status region. The update word lies at 0.
        status_len: u64,
        /// RX: where in the status region the header ring lies.
        headers_at: u64,
        /// Where in the status region the IOVAs of the buffers lie, 64 bits each.
        iovas_at: u64,
        /// Size of the data region; 0 when the program brings its buffers (then no fd is sent for it).
        data_len: u64,
        /// Distance from one buffer to the next in the data region.
        stride: u32,
        /// Usable bytes of a buffer.
        buffer_size: u32,
        /// Size of the descriptor region; 0 when the driver writes the descriptors (then none is sent for it).
        descriptors_len: u64,
    },
    /// An SZE queue. The data region is the ring; to be mapped twice in a row.
    Sze {
        /// Size of the status region. The update word lies at 0.
        status_len: u64,
        /// Size of the ring, a power of two.
        ring: u32,
    },
    /// A Calypte queue. The data region is the data ring; to be mapped twice in a row. RX: the header ring is in the
    /// status region. TX: it is the descriptor region, which a program that writes no headers itself does not get.
    Calypte {
        /// Size of the status region. The update word lies at 0.
        status_len: u64,
        /// RX: where in the status region the header ring lies.
        headers_at: u64,
        /// Entries of the header ring, a power of two.
        headers: u32,
        /// Size of the data ring, a power of two.
        ring: u32,
        /// Size of the descriptor region; 0 when there is none.
        descriptors_len: u64,
    },
    /// A DD queue. The status region is the descriptor ring, which both sides write.
    Dd {
        /// Entries of the descriptor ring, and number of buffers: a power of two.
        entries: u32,
        /// Size of the status region.
        status_len: u64,
        /// IOVA of the first buffer.
        data_at: u64,
        /// Size of the data region; 0 when the program brings its buffers (then no fd is sent for it).
        data_len: u64,
        /// Distance from one buffer to the next in the data region.
        stride: u32,
        /// Usable bytes of a buffer.
        buffer_size: u32,
    },
}

/// Kinds of failure, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorCode {
    /// The messages do not fit together; the connection ends.
    Protocol,
    /// There is no such queue, handle, component or mapping.
    NotFound,
    /// Somebody else has it.
    Busy,
    /// What was asked for cannot be, with this card or in this state.
    Invalid,
    /// The TX queue still holds packets; ask again.
    NotDrained,
    /// The program was thrown out of the queue because it fell behind.
    Evicted,
    /// The system refused memory or descriptors.
    System,
    /// This program may not; the text says which right is missing, and how it is granted.
    Denied,
    /// This user, or this program, has as much as it may have; the text says of what.
    Quota,
    /// An administrator has ended the connection.
    Ended,
}

/// A message that cannot be decoded or is too large to be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes are no message.
    #[error("not a message of this protocol: {0}")]
    Decode(postcard::Error),
    /// Bytes behind the end of the message.
    #[error("{0} bytes too many behind the message")]
    Trailing(usize),
    /// Too large to be sent.
    #[error("a message of {0} bytes: at most {MAX_MESSAGE} can be sent")]
    TooLarge(usize),
}

/// The bytes of a message.
///
/// # Errors
/// [`CodecError::TooLarge`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = postcard::to_stdvec(message).map_err(CodecError::Decode)?;
    if bytes.len() > MAX_MESSAGE { Err(CodecError::TooLarge(bytes.len())) } else { Ok(bytes) }
}

/// The message in `bytes`, all of them.
///
/// # Errors
/// [`CodecError`].
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CodecError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(CodecError::Trailing(rest.len())),
        Err(error) => Err(CodecError::Decode(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_message_and_too_much_of_one_are_refused() {
        let open = Request::Open {
            queue: QueueId::rx(3),
            mode: Mode::Direct,
            sharing: Sharing::Exclusive,
            buffers: Buffers::Driver,
            joiners: Some(Joiners { block: true, drop: false, evict: true }),
        };
        let bytes = encode(&open).unwrap();
        assert_eq!(decode::<Request>(&bytes), Ok(open));
        for len in 0..bytes.len() {
            assert!(decode::<Request>(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(decode::<Request>(&longer), Err(CodecError::Trailing(1)));
    }

    #[test]
    fn a_message_that_is_too_large_is_not_sent() {
        let write = Request::Write { address: 0, bytes: vec![0; MAX_MESSAGE] };
        assert!(matches!(encode(&write), Err(CodecError::TooLarge(_))));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Reply>(&bytes);
        }
    }
}
