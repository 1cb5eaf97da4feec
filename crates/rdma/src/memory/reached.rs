//! How other processes of this host may reach a region: the part of registration that turns memory into shared memory.

use super::regions::{Regions, RegisterError, Way};
use crate::number::Key;
use millrace_dma::{AdoptError, Adopter, Adoption, Left, Piece, Refusal, Scope};
use std::sync::Arc;

/// How a region is reached.
#[derive(Clone, Debug)]
pub struct Reached {
    /// By its own process.
    pub way: Way,
    /// By others, which map these files: whole pages in ascending order. What is not in here, the first and the last part of
    /// a page among it, they reach by system calls or through a copy. Empty when the memory was taken away.
    pub pieces: Vec<Piece>,
    /// Whole pages that are not shared, and why, as of the registration.
    pub left: Vec<Left>,
    /// Why nothing could be adopted at all.
    pub error: Option<Arc<AdoptError>>,
}

impl Reached {
    /// Bytes of the region that others can map.
    pub fn shared(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum()
    }
}

/// What came of the attempt to adopt a region.
#[derive(Clone, Default)]
pub(super) struct Attempt {
    shared: u64,
    left: Vec<Left>,
    error: Option<Arc<AdoptError>>,
}

impl Attempt {
    /// Adopts memory of this process. That it cannot be is no reason not to register it.
    pub(super) fn at(first: u64, len: u64, scope: Scope) -> Self {
        match Adopter::of_process().and_then(|adopter| adopter.adopt(first, len, scope)) {
            Ok(adoption) => adoption.into(),
            Err(error) => Self { error: Some(Arc::new(error)), ..Self::default() },
        }
    }

    pub(super) fn shared(&self) -> u64 {
        self.shared
    }

    /// Whether it was found to stand on huge pages of the program's own.
    pub(super) fn is_huge(&self) -> bool {
        !self.left.is_empty() && self.shared == 0 && self.left.iter().all(|left| left.why == Refusal::HugePages)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.error.is_some()
    }
}

impl From<Adoption> for Attempt {
    fn from(adoption: Adoption) -> Self {
        Self { shared: adoption.shared(), left: adoption.left, error: None }
    }
}

impl Regions {
    /// How a region is reached, and by which files others can map it: for whoever hands these to them. Nothing that is not
    /// watched is told as shared, except windows, which stay where they are.
    ///
    /// # Errors
    /// [`RegisterError::Key`].
    pub fn reached(&mut self, lkey: Key) -> Result<Reached, RegisterError> {
        self.sync();
        let slot = self.region(lkey)?;
        let (entry, held) = (self.table.at(slot), self.held(slot));
        let (Some(entry), Some(held)) = (entry, held) else { return Err(RegisterError::Key(lkey)) };
        let Attempt { shared, left, error } = held.attempt.clone();
        let (first, len) = (entry.place.first() as u64, entry.place.len() as u64);
        let known = || Adopter::of_process().and_then(|adopter| adopter.pieces(first, len));
        let hidden = shared == 0 || entry.gone || held.way == Way::Unwatched;
        let pieces = if hidden { Vec::new() } else { known().unwrap_or_default() };
        Ok(Reached { way: held.way, pieces, left, error })
    }
}
