//! What the other side takes unfinished, where the control thread writes it and the worker reads it.

use millrace_packet::offload::Offloads;
use std::sync::atomic::{AtomicU8, Ordering};

/// [`Offloads`], a bit for each field.
#[derive(Default)]
pub(crate) struct OffloadsCell(AtomicU8);

impl OffloadsCell {
    pub fn get(&self) -> Offloads {
        let bits = self.0.load(Ordering::Relaxed);
        Offloads { checksum: bits & 1 != 0, tcp4: bits & 2 != 0, tcp6: bits & 4 != 0, udp: bits & 8 != 0 }
    }

    /// Relaxed, like the load: the queue that belongs to it is handed over by the lock of its slot, and a frame that was
    /// made for the queue before is looked at again when it has the lock.
    pub fn set(&self, offloads: Offloads) {
        let Offloads { checksum, tcp4, tcp6, udp } = offloads;
        let bits = u8::from(checksum) | u8::from(tcp4) << 1 | u8::from(tcp6) << 2 | u8::from(udp) << 3;
        self.0.store(bits, Ordering::Relaxed);
    }
}
