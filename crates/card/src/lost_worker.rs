//! A worker that ends by a bug: its queues are faulted, for everybody to see, and the card goes on with its other
//! workers.

use crate::worker::Worker;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a worker to its end, whichever that is.
pub(crate) fn run(mut worker: Worker, index: usize) {
    let end = catch_unwind(AssertUnwindSafe(|| worker.run()));
    // First, so that nobody waits for it.
    worker.mailbox.lose();
    if end.is_ok() {
        return;
    }
    millrace_port::notice::warn(format!(
        "worker {index} of the card has ended by a bug, please report it: its queues are stopped and its ports dead until the card \
         is restarted; other workers go on"
    ));
    // Whatever is wrong in one queue, the others are told.
    worker.shard.lose();
    // What else it had may be what was wrong.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(worker)));
}
