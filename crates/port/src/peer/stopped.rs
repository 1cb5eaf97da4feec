//! Queues that are not used any more although their other side is there.

use crate::PortCounters;
use std::fmt;

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped<F> {
    /// The other side has done what it may not do.
    Fault(F),
    /// The memory under the queue has been taken away.
    Cut,
}

impl<F: fmt::Display> fmt::Display for Stopped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => write!(f, "{fault}"),
            Self::Cut => f.write_str("memory-cut"),
        }
    }
}

/// Shows at a port which of its queues has stopped, and logs it.
#[cold]
pub(crate) fn show_stop(counters: &PortCounters, queue: &str, reason: impl fmt::Display) {
    counters.set_link(false);
    let mode = format!("{}, {queue} queue stopped: {reason}", counters.mode());
    crate::notice::warn(mode.clone());
    counters.set_mode(mode);
}
