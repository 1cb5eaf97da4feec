//! Frames whose target has no room, of a source that can wait: they wait with the source, which is not looked at until they are
//! gone. So nobody else waits for them.

use std::time::Duration;

/// Who gets frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The RX queue at that place of the shard.
    Rx(u32),
    /// The port queue at that place of the shard.
    PortQueue(u32),
    /// A port without a port queue.
    Unplugged(u32),
    /// An RX queue, which another worker serves.
    FarRx { worker: u32, queue: u32 },
    /// A port queue, which another worker serves.
    FarPort { worker: u32, port: u16, number: u16 },
    /// An RX queue by its number, wherever it is by then. Frames that wait are for such: places change.
    Queue(u32),
    /// A port queue by its number.
    Port { port: u16, number: u16 },
}

impl Target {
    /// A number of its own.
    #[inline(always)]
    pub fn id(self) -> u64 {
        let (kind, high, low) = match self {
            Self::Rx(at) => (0, 0, at),
            Self::PortQueue(at) => (1, 0, at),
            Self::Unplugged(port) => (2, 0, port),
            Self::FarRx { queue, .. } => (3, 0, queue),
            Self::FarPort { port, number, .. } => (4, port, number.into()),
            Self::Queue(queue) => (5, 0, queue),
            Self::Port { port, number } => (6, port, number.into()),
        };
        kind << 48 | u64::from(high) << 32 | u64::from(low)
    }
}

/// A worker that sleeps tries again after so long where nobody wakes it: frames for another worker, and for a queue that
/// another worker starts.
const RETRY: Duration = Duration::from_micros(100);
const RETRY_ABSENT: Duration = Duration::from_millis(1);

/// Frames of one burst that wait, at most as many as a burst has.
#[derive(Default)]
pub(crate) struct Parked {
    /// They wait until their queue runs, too; otherwise one that does not run drops them.
    pub until_running: bool,
    /// Of the rules under which they do.
    pub version: u64,
    /// One behind the other.
    pub bytes: Vec<u8>,
    /// For whom (by number), where it begins and how long it is.
    pub frames: Vec<(Target, u32, u32)>,
}

impl Parked {
    /// When a worker that sleeps has to try again: not everybody for whom frames wait wakes it.
    pub fn retry_after(&self) -> Duration {
        if self.until_running { RETRY_ABSENT } else { RETRY }
    }
}

/// Whether a source gives its frames to one target only: then it may wait for that one, and holds nobody else back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steady {
    only: Option<Target>,
    frames: u32,
    has_begun: bool,
}

/// So many frames in a row for one target.
const STEADY: u32 = 256;

impl Steady {
    /// Notes a burst: its only target, by number, if it had only one.
    #[inline(always)]
    pub fn note(&mut self, only: Option<Target>, frames: u32) {
        self.has_begun |= frames > 0;
        self.frames = if only.is_some() && only == self.only { self.frames.saturating_add(frames) } else { frames };
        self.only = only;
    }

    /// Whether it gives to this one only, or has only begun.
    #[inline(always)]
    pub fn is_with(&self, only: Option<Target>) -> bool {
        only.is_some() && (!self.has_begun || (only == self.only && self.frames >= STEADY))
    }

    pub fn has_begun(&self) -> bool {
        self.has_begun
    }
}
