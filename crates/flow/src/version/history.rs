//! The last versions: which steps made each, so that an older one can be built again.

use super::Op;
use std::collections::VecDeque;
use std::sync::Arc;

/// How many versions are kept, the newest included.
pub const HISTORY: usize = 4096;
/// How many steps they may have together.
const MAX_OPS: usize = 1 << 20;

/// Why a version cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("version {version} is not kept: there are {oldest} to {newest}")]
pub struct VersionError {
    /// The version asked for.
    pub version: u64,
    /// The oldest that is kept.
    pub oldest: u64,
    /// The newest.
    pub newest: u64,
}

/// The steps of the last versions.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Version and steps, oldest first.
    records: VecDeque<(u64, Arc<[Op]>)>,
    ops: usize,
}

impl History {
    pub fn push(&mut self, version: u64, ops: Arc<[Op]>) {
        self.ops += ops.len();
        self.records.push_back((version, ops));
        // The newest step is always kept: it is what copies need that are one version behind.
        while self.records.len() >= HISTORY || (self.ops > MAX_OPS && self.records.len() > 1) {
            if let Some((_, ops)) = self.records.pop_front() {
                self.ops -= ops.len();
            }
        }
    }

    /// The steps of the versions after `version` up to the newest, if all are kept.
    pub fn after(&self, version: u64, newest: u64) -> Option<impl DoubleEndedIterator<Item = &(u64, Arc<[Op]>)>> {
        let missing = newest.checked_sub(version)? as usize;
        let first = self.records.len().checked_sub(missing)?;
        Some(self.records.range(first..))
    }

    /// The oldest version that can be built.
    pub fn oldest(&self, newest: u64) -> u64 {
        newest - self.records.len() as u64
    }
}
