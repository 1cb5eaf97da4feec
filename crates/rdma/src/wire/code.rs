//! Opcodes as they stand in a header, and which extended headers belong to each (volume 1, 9.2.1, table 38; A17.9.3).

use super::{Opcode, Place, Service};

/// Congestion notification, which belongs to no service.
const CONGESTION_NOTIFICATION: u8 = 0x81;

/// Extended headers, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts(u8);

impl Parts {
    /// Of datagrams.
    pub const DETH: Self = Self(0x01);
    /// Of requests to write and to read.
    pub const RETH: Self = Self(0x02);
    /// Of atomic operations.
    pub const ATOMIC: Self = Self(0x04);
    /// Of answers.
    pub const AETH: Self = Self(0x08);
    /// What an atomic operation found.
    pub const ORIGINAL: Self = Self(0x10);
    /// Immediate data.
    pub const IMMEDIATE: Self = Self(0x20);
    /// A key to invalidate.
    pub const INVALIDATE: Self = Self(0x40);
    /// 16 bytes of zeros behind a congestion notification (A17.9.3).
    pub const RESERVED: Self = Self(0x80);

    /// Bytes of each in RoCE, and in SLURPoE, where everything is a multiple of eight.
    const LENGTHS: [(Self, usize, usize); 8] = [
        (Self::DETH, 8, 8),
        (Self::RETH, 16, 16),
        (Self::ATOMIC, 28, 32),
        (Self::AETH, 4, 8),
        (Self::ORIGINAL, 8, 8),
        (Self::IMMEDIATE, 4, 8),
        (Self::INVALIDATE, 4, 8),
        (Self::RESERVED, 16, 0),
    ];

    /// Whether one of `others` is here.
    #[inline]
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    const fn with(self, more: Self, wanted: bool) -> Self {
        if wanted { Self(self.0 | more.0) } else { self }
    }

    /// Bytes of all of them, in RoCE and in SLURPoE.
    const fn lengths(self) -> (usize, usize) {
        let (mut roce, mut lean, mut at) = (0, 0, 0);
        while at < Self::LENGTHS.len() {
            let (part, in_roce, in_lean) = Self::LENGTHS[at];
            if self.has(part) {
                (roce, lean) = (roce + in_roce, lean + in_lean);
            }
            at += 1;
        }
        (roce, lean)
    }

    const fn of(service: Service, opcode: Opcode) -> Self {
        let none = Self(0);
        match opcode {
            Opcode::Send { immediate, invalidate, .. } => none
                .with(Self::DETH, matches!(service, Service::UnreliableDatagram))
                .with(Self::IMMEDIATE, immediate)
                .with(Self::INVALIDATE, invalidate),
            Opcode::Write { place, immediate } => {
                none.with(Self::RETH, place.begins()).with(Self::IMMEDIATE, immediate)
            }
            Opcode::ReadRequest => Self::RETH,
            Opcode::ReadResponse(Place::Middle) => none,
            Opcode::ReadResponse(_) | Opcode::Acknowledge => Self::AETH,
            Opcode::AtomicAcknowledge => Self::AETH.with(Self::ORIGINAL, true),
            Opcode::CompareSwap | Opcode::FetchAdd => Self::ATOMIC,
            Opcode::CongestionNotification => Self::RESERVED,
        }
    }
}

/// A row of the table of opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// For which kind of queue pair. Congestion notifications are for any; they have [`Service::ReliableConnection`].
    pub service: Service,
    /// What it is.
    pub opcode: Opcode,
    /// The extended headers that belong to it.
    pub parts: Parts,
    /// Bytes of them in RoCE.
    pub(super) roce_len: u8,
    /// Bytes of them in SLURPoE.
    pub(super) lean_len: u8,
}

/// Why a byte is no opcode here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Its upper three bits name a service that there is not here: reliable datagram, extended reliable connection.
    Service,
    /// The service has no such operation.
    Operation,
}

static TABLE: [Option<Known>; 256] = table();

const fn table() -> [Option<Known>; 256] {
    let (mut rows, mut byte) = ([None; 256], 0);
    while byte < rows.len() {
        rows[byte] = row(byte as u8);
        byte += 1;
    }
    rows
}

const fn row(byte: u8) -> Option<Known> {
    let service = match byte >> 5 {
        0 => Service::ReliableConnection,
        1 => Service::UnreliableConnection,
        3 => Service::UnreliableDatagram,
        _ if byte == CONGESTION_NOTIFICATION => Service::ReliableConnection,
        _ => return None,
    };
    let opcode = match (service, operation(byte & 0x1f)) {
        _ if byte == CONGESTION_NOTIFICATION => Opcode::CongestionNotification,
        (Service::ReliableConnection, Some(any)) => any,
        (Service::UnreliableConnection, Some(any)) if byte & 0x1f <= 0x0b => any,
        (Service::UnreliableDatagram, Some(any)) if matches!(byte & 0x1f, 4 | 5) => any,
        _ => return None,
    };
    let parts = Parts::of(service, opcode);
    let (roce, lean) = parts.lengths();
    Some(Known { service, opcode, parts, roce_len: roce as u8, lean_len: lean as u8 })
}

/// What the lower five bits say for a reliable connection.
const fn operation(code: u8) -> Option<Opcode> {
    use Place::{First, Last, Middle, Only};
    Some(match code {
        0x00 => send(First, false, false),
        0x01 => send(Middle, false, false),
        0x02 => send(Last, false, false),
        0x03 => send(Last, true, false),
        0x04 => send(Only, false, false),
        0x05 => send(Only, true, false),
        0x06 => write(First, false),
        0x07 => write(Middle, false),
        0x08 => write(Last, false),
        0x09 => write(Last, true),
        0x0a => write(Only, false),
        0x0b => write(Only, true),
        0x0c => Opcode::ReadRequest,
        0x0d => Opcode::ReadResponse(First),
        0x0e => Opcode::ReadResponse(Middle),
        0x0f => Opcode::ReadResponse(Last),
        0x10 => Opcode::ReadResponse(Only),
        0x11 => Opcode::Acknowledge,
        0x12 => Opcode::AtomicAcknowledge,
        0x13 => Opcode::CompareSwap,
        0x14 => Opcode::FetchAdd,
        0x16 => send(Last, false, true),
        0x17 => send(Only, false, true),
        _ => return None,
    })
}

const fn send(place: Place, immediate: bool, invalidate: bool) -> Opcode {
    Opcode::Send { place, immediate, invalidate }
}

const fn write(place: Place, immediate: bool) -> Opcode {
    Opcode::Write { place, immediate }
}

/// The opcode that a byte is.
///
/// # Errors
/// [`Unknown`]
#[inline]
pub fn decode(byte: u8) -> Result<&'static Known, Unknown> {
    let known = TABLE[usize::from(byte)].as_ref();
    known.ok_or(if matches!(byte >> 5, 0 | 1 | 3) { Unknown::Operation } else { Unknown::Service })
}

/// The byte that an opcode of a service is; `None`: the service has no such operation, or such a packet cannot be.
#[inline]
pub const fn encode(service: Service, opcode: Opcode) -> Option<u8> {
    use Place::{First, Last, Middle, Only};
    let code = match opcode {
        Opcode::Send { place, immediate: false, invalidate: false } => match place {
            First => 0x00,
            Middle => 0x01,
            Last => 0x02,
            Only => 0x04,
        },
        Opcode::Send { place: Last, immediate: true, invalidate: false } => 0x03,
        Opcode::Send { place: Only, immediate: true, invalidate: false } => 0x05,
        Opcode::Send { place: Last, immediate: false, invalidate: true } => 0x16,
        Opcode::Send { place: Only, immediate: false, invalidate: true } => 0x17,
        Opcode::Write { place, immediate: false } => match place {
            First => 0x06,
            Middle => 0x07,
            Last => 0x08,
            Only => 0x0a,
        },
        Opcode::Write { place: Last, immediate: true } => 0x09,
        Opcode::Write { place: Only, immediate: true } => 0x0b,
        Opcode::Send { .. } | Opcode::Write { .. } => return None,
        Opcode::ReadRequest => 0x0c,
        Opcode::ReadResponse(First) => 0x0d,
        Opcode::ReadResponse(Middle) => 0x0e,
        Opcode::ReadResponse(Last) => 0x0f,
        Opcode::ReadResponse(Only) => 0x10,
        Opcode::Acknowledge => 0x11,
        Opcode::AtomicAcknowledge => 0x12,
        Opcode::CompareSwap => 0x13,
        Opcode::FetchAdd => 0x14,
        Opcode::CongestionNotification => return Some(CONGESTION_NOTIFICATION),
    };
    match (service, code) {
        (Service::ReliableConnection, code) => Some(code),
        (Service::UnreliableConnection, 0x00..=0x0b) => Some(0x20 | code),
        (Service::UnreliableDatagram, 4 | 5) => Some(0x60 | code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_is_an_opcode_comes_back() {
        let mut known = Vec::new();
        for byte in 0..=255 {
            if let Ok(row) = decode(byte) {
                assert_eq!(encode(row.service, row.opcode), Some(byte));
                known.push(byte);
            }
        }
        let expected: Vec<u8> = (0..=0x14).chain([0x16, 0x17]).chain(0x20..=0x2b).chain([0x64, 0x65, 0x81]).collect();
        assert_eq!(known, expected);
    }

    #[test]
    fn why_a_byte_is_none() {
        for (byte, why) in [
            (0x15, Unknown::Operation),
            (0x1f, Unknown::Operation),
            (0x2c, Unknown::Operation),
            (0x36, Unknown::Operation),
            (0x60, Unknown::Operation),
            (0x40, Unknown::Service),
            (0x80, Unknown::Service),
            (0xa4, Unknown::Service),
        ] {
            assert_eq!(decode(byte), Err(why), "{byte:#x}");
        }
    }

    #[test]
    fn what_cannot_be_has_no_byte() {
        let uc = Service::UnreliableConnection;
        assert_eq!(encode(uc, Opcode::ReadRequest), None);
        assert_eq!(encode(uc, send(Place::Only, false, true)), None);
        assert_eq!(encode(Service::UnreliableDatagram, send(Place::First, false, false)), None);
        assert_eq!(encode(Service::ReliableConnection, send(Place::Only, true, true)), None);
        assert_eq!(encode(Service::ReliableConnection, write(Place::Middle, true)), None);
        assert_eq!(encode(uc, Opcode::CongestionNotification), Some(0x81));
    }

    #[test]
    fn extended_headers_of_an_opcode() {
        // Bytes in RoCE and in SLURPoE, by the figures of volume 1, chapter 9.
        for (byte, roce, lean) in [
            (0x00, 0, 0),
            (0x03, 4, 8),
            (0x06, 16, 16),
            (0x07, 0, 0),
            (0x0b, 20, 24),
            (0x0c, 16, 16),
            (0x0e, 0, 0),
            (0x0f, 4, 8),
            (0x12, 12, 16),
            (0x13, 28, 32),
            (0x17, 4, 8),
            (0x2b, 20, 24),
            (0x64, 8, 8),
            (0x65, 12, 16),
            (0x81, 16, 0),
        ] {
            let row = decode(byte).unwrap();
            assert_eq!((row.roce_len, row.lean_len), (roce, lean), "{byte:#x}");
        }
    }
}
