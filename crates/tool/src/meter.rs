//! How far a loop has come.

use std::sync::atomic::{AtomicU64, Ordering};

/// What one loop has done so far. Its loop alone writes it, whoever draws progress reads it; on cache lines of its own,
/// because a loop stores here after every burst.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Meter {
    frames: AtomicU64,
    bytes: AtomicU64,
}

impl Meter {
    /// Counts a burst. Plain stores will do: there is one writer, and a reader may be one burst late.
    #[inline]
    pub fn add(&self, frames: u64, bytes: u64) {
        self.frames.store(self.frames.load(Ordering::Relaxed) + frames, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Frames so far.
    #[inline]
    pub fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Their bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_adds_up() {
        let meter = Meter::default();
        meter.add(32, 2048);
        meter.add(1, 64);
        assert_eq!((meter.frames(), meter.bytes()), (33, 2112));
    }
}
