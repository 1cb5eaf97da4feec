//! What guests may do.

use crate::message::Request;
use millrace_served::wire;

/// Something that a guest may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Have memory mapped, and register it.
    Memory,
    /// Open an endpoint, and connect with others.
    Connect,
    /// Tell other programs a few bytes.
    Tell,
    /// Make queue pairs, shared receive queues and windows of its own.
    Engine,
}

impl Right {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Memory, "memory"), (Self::Connect, "connect"), (Self::Tell, "tell"), (Self::Engine, "engine")];
}

impl core::fmt::Display for Right {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(Self::ALL.iter().find(|(right, _)| right == self).map_or("", |(_, name)| name))
    }
}

/// What guests may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights(u8);

impl Default for Rights {
    fn default() -> Self {
        Self::of(&Right::ALL.map(|(right, _)| right))
    }
}

impl Rights {
    /// These and no others.
    pub fn of(rights: &[Right]) -> Self {
        Self(rights.iter().fold(0, |all, right| all | 1 << *right as u8))
    }

    /// Whether that is among them.
    pub fn has(self, right: Right) -> bool {
        self.0 >> right as u8 & 1 == 1
    }
}

/// The right that a request needs.
pub fn right_for(request: &Request) -> Option<Right> {
    match request {
        Request::Hello | Request::Count => None,
        Request::Grant { .. }
        | Request::Release(_)
        | Request::Join(_)
        | Request::Register { .. }
        | Request::Reregister { .. } => Some(Right::Memory),
        Request::CreateQueue(..) | Request::ResizeQueue(..) => None,
        // To make or change something of its own; what is told or ended needs no right.
        Request::Engine(request) => match request {
            wire::Request::CreatePair(_)
            | wire::Request::ModifyPair(..)
            | wire::Request::CreateShared(..)
            | wire::Request::CreateWindow(..)
            | wire::Request::Resolve(..)
            | wire::Request::Offer(_) => Some(Right::Engine),
            _ => None,
        },
        Request::Open(_) | Request::Connect(_) | Request::Disconnect(_) => Some(Right::Connect),
        Request::Tell(..) => Some(Right::Tell),
    }
}
