//! What the program has to tell: rules made, in force, refused, found wrong, ended.

use super::layout::{EVENT, Key, global};
use super::{Engine, EngineError};
use crate::Reason;
use libbpf_rs::{RingBuffer, RingBufferBuilder};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

/// What has happened to a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It was made, and is on trial.
    Made,
    /// Linux has done the same: it is in force.
    Active,
    /// The flow stays with Linux.
    Refused,
    /// Linux has done something else; the flow stays with it.
    Mismatch,
    /// It is gone.
    Ended,
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// The rule's number in its table.
    pub rule: u32,
    /// What.
    pub kind: EventKind,
    /// Why, if there is a reason to tell.
    pub reason: Option<Reason>,
    /// Of which flow.
    pub key: Key,
}

impl Event {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; EVENT] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let address = |at: usize| -> IpAddr {
            let octets: [u8; 16] = bytes[at..at + 16].try_into().expect("sixteen bytes are sixteen bytes");
            if bytes[17] == 4 {
                Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into()
            } else {
                Ipv6Addr::from(octets).into()
            }
        };
        Some(Self {
            time: u64::from(word(0)) | u64::from(word(4)) << 32,
            rule: word(8),
            kind: match bytes[16] {
                1 => EventKind::Made,
                2 => EventKind::Active,
                3 => EventKind::Refused,
                4 => EventKind::Mismatch,
                5 => EventKind::Ended,
                _ => return None,
            },
            reason: Reason::from_number(bytes[18]).filter(|reason| *reason != Reason::Fast),
            key: Key {
                input: word(12),
                source: address(24),
                destination: address(40),
                source_port: u16::from_be_bytes([bytes[20], bytes[21]]),
                destination_port: u16::from_be_bytes([bytes[22], bytes[23]]),
                protocol: bytes[19],
                dscp: bytes[56],
            },
        })
    }
}

impl Engine {
    /// A reader of events, which calls `each` from [`RingBuffer::poll`] or [`RingBuffer::consume`]; its file descriptor
    /// ([`RingBuffer::epoll_fd`]) is readable when there are some. One reader at a time.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn events<'a>(&'a self, mut each: impl FnMut(Event) + 'a) -> Result<RingBuffer<'a>, EngineError> {
        let failed = |source| EngineError::Update { what: "events of the router's program cannot be read", source };
        let mut builder = RingBufferBuilder::new();
        let reader = move |bytes: &[u8]| {
            if let Some(event) = Event::from_bytes(bytes) {
                each(event);
            }
            0
        };
        builder.add(&self.maps.events, reader).map_err(failed)?;
        builder.build().map_err(failed)
    }

    /// Becomes readable when there are events, for who waits for other things too.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.maps.events.as_fd()
    }

    /// Events that found no room, because nobody read.
    pub fn events_lost(&self) -> u32 {
        self.globals.word(global::EVENTS_LOST).load(Relaxed)
    }

    /// Rules that have ended because a newcomer found no room, of which no event tells.
    pub fn made_room(&self) -> u32 {
        self.globals.word(global::MADE_ROOM).load(Relaxed)
    }
}
