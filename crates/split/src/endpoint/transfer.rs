//! What is to be moved.

use millrace_rdma::number::Key;
use millrace_rdma::work::{Operation, Piece};
use millrace_slurpoe::Kind;

/// Bytes of one request: what is longer is posted as several, because the engine copies no more at once.
pub(super) const AT_ONCE: u32 = 1 << 20;

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub(super) key: Key,
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// What is to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub(super) local: Part,
    pub(super) to: Far,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Far {
    Write(Key, u64),
    Read(Key, u64),
    Send,
}

impl Transfer {
    /// The bytes of `local` into the region of the other end that has this key, from `offset` on.
    pub fn write(local: Part, key: u32, offset: u64) -> Self {
        Self { local, to: Far::Write(Key::new(key), offset) }
    }

    /// Bytes of that region into `local`, which is in a region with [`Access::LOCAL`](crate::Access::LOCAL) at least.
    pub fn read(local: Part, key: u32, offset: u64) -> Self {
        Self { local, to: Far::Read(Key::new(key), offset) }
    }

    /// The bytes of `local`, 1 MiB at most ([`Error::Message`](crate::Error::Message)), into the first buffer that the other end has posted.
    pub fn send(local: Part) -> Self {
        Self { local, to: Far::Send }
    }

    pub(super) fn kind(&self) -> Kind {
        match self.to {
            Far::Write(..) => Kind::Write,
            Far::Read(..) => Kind::Read,
            Far::Send => Kind::Send,
        }
    }

    /// How many requests of the engine it is.
    pub(super) fn count(&self) -> usize {
        self.local.len.div_ceil(AT_ONCE).max(1) as usize
    }

    /// As requests of the engine.
    pub(super) fn requests(&self) -> impl Iterator<Item = (Operation, Piece)> {
        let Self { local: Part { key, offset, len }, to } = *self;
        (0..self.count() as u32).map(move |number| {
            let at = u64::from(number) * u64::from(AT_ONCE);
            let piece = Piece { address: offset + at, len: (len - number * AT_ONCE).min(AT_ONCE), lkey: key };
            let operation = match to {
                Far::Write(rkey, offset) => {
                    Operation::Write { address: offset.wrapping_add(at), rkey, immediate: None }
                }
                Far::Read(rkey, offset) => Operation::Read { address: offset.wrapping_add(at), rkey },
                Far::Send => Operation::Send,
            };
            (operation, piece)
        })
    }
}
