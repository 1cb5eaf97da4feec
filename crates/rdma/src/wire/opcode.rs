//! What a packet is (volume 1, 9.2.1, table 38).

/// Upper three bits of the opcode: what kind of queue pair it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    ReliableConnection,
    /// Unreliable connection.
    UnreliableConnection,
    /// Unreliable datagram.
    UnreliableDatagram,
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
    /// The first and the last.
    Only,
}

impl Place {
    /// Whether a message begins here.
    #[inline]
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here.
    #[inline]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What a packet is, apart from the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A part of a SEND. At its end there may be immediate data or a key to invalidate, not both.
    Send {
        /// Where in the message.
        place: Place,
        /// Immediate data follow the headers.
        immediate: bool,
        /// A key to invalidate follows the headers.
        invalidate: bool,
    },
    /// A part of a WRITE.
    Write {
        /// Where in the message; the first has a [`Reth`](super::Reth).
        place: Place,
        /// Immediate data follow the headers.
        immediate: bool,
    },
    /// A request to read, with a [`Reth`](super::Reth).
    ReadRequest,
    /// A part of what was read; all but the middle ones have an [`Aeth`](super::Aeth).
    ReadResponse(Place),
    /// An acknowledgement, with an [`Aeth`](super::Aeth).
    Acknowledge,
    /// What an atomic operation found, with an [`Aeth`](super::Aeth).
    AtomicAcknowledge,
    /// Compare and swap, with an [`AtomicEth`](super::AtomicEth).
    CompareSwap,
    /// Fetch and add, with an [`AtomicEth`](super::AtomicEth).
    FetchAdd,
    /// Congestion notification (RoCE v2, opcode 0x81).
    CongestionNotification,
}
