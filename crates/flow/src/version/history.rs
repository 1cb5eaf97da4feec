//! The last versions: which steps made each, so that an older one can be built again.

use super::Op;
use std::collections::VecDeque;
use std::sync::Arc;

/// How many versions are kept, the newest included.
pub const HISTORY: usize = 4096;
/// How many bytes of rules they may have together.
const MAX_BYTES: usize = 256 << 20;

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

/// More than an RSS group or a meter has.
const GROUP_BYTES: usize = 4096;
/// A QUIC group that has gone is kept with its memory: no more than 16 of them.
const QUIC_WEIGHT: usize = MAX_BYTES / 16;

/// Bytes, each of which may be kept by nobody else.
fn weight(ops: &[Op]) -> usize {
    let of = |op: &Op| match op {
        Op::Insert(rule) | Op::Remove(rule) => rule.bytes(),
        Op::Swap { old, new } => old.bytes() + new.bytes(),
        Op::Group { .. } | Op::Meter { .. } => GROUP_BYTES,
        Op::Quic { .. } => QUIC_WEIGHT,
        Op::Miss { .. } => 0,
    };
    size_of_val(ops) + ops.iter().map(of).sum::<usize>()
}

/// The steps of the last versions.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Version and steps, oldest first.
    records: VecDeque<(u64, Arc<[Op]>)>,
    bytes: usize,
}

impl History {
    pub fn push(&mut self, version: u64, ops: Arc<[Op]>) {
        self.bytes += weight(&ops);
        self.records.push_back((version, ops));
        // The newest step is always kept: it is what copies need that are one version behind.
        while self.records.len() >= HISTORY || (self.bytes > MAX_BYTES && self.records.len() > 1) {
            if let Some((_, ops)) = self.records.pop_front() {
                self.bytes -= weight(&ops);
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
