//! Queues over buffers of the program, with what C needs beyond the host library: no more is released than is there.

use crate::failure::Failure;
use crate::types::millrace_received;
use core::mem::MaybeUninit;
use host::{SuppliedRx, SuppliedTx};

/// An RX queue whose program posts the buffers.
pub struct Receiver {
    /// The queue.
    pub queue: SuppliedRx,
    /// Packets that are known to be there and were not released.
    ready: u32,
}

impl Receiver {
    /// A queue that runs.
    pub fn new(queue: SuppliedRx) -> Self {
        Self { queue, ready: 0 }
    }

    /// Describes the first packets that were not released.
    #[inline]
    pub fn peek(&mut self, packets: &mut [MaybeUninit<millrace_received>]) -> Result<usize, Failure> {
        self.ready = self.queue.ready()?;
        let count = packets.len().min(self.ready as usize);
        for (ahead, place) in (0..).zip(&mut packets[..count]) {
            let header = self.queue.header(ahead);
            place.write(millrace_received { len: header.len, header_len: header.header_len, flags: header.meta });
        }
        Ok(count)
    }

    /// Gives the first `count` packets back.
    #[inline]
    pub fn release(&mut self, count: u32) -> Result<(), Failure> {
        if count > self.ready {
            return Err(too_many(count, self.ready));
        }
        self.ready -= count;
        self.queue.release(count);
        Ok(())
    }
}

#[cold]
fn too_many(count: u32, ready: u32) -> Failure {
    Failure::invalid(format!("{count} packets cannot be released: the last look has shown {ready}"))
}

/// A TX queue whose program posts the buffers.
pub struct Sender(pub SuppliedTx);
