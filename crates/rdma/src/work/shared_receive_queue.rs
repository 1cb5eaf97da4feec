//! Receive queues that several queue pairs share (volume 1, 10.2.9.3).

use super::ReceiveQueue;
use crate::memory::ProtectionDomain;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub queue: ReceiveQueue,
    /// With fewer buffers than that, once, there is an event. 0: none.
    pub limit: u32,
    pub domain: ProtectionDomain,
    /// Queue pairs that use it.
    pub users: u32,
}
