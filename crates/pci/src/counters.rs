//! What happened to a function, counted since the card started.

use core::sync::atomic::{AtomicU64, Ordering};
use millrace_abi::stats::Count;

macro_rules! counters {
    ($($(#[$meaning:meta])* $name:ident,)*) => {
        /// What happened to a function.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$meaning])* pub $name: u64,)*
        }

        /// The same, as its thread counts.
        #[derive(Default)]
        pub(crate) struct Counting {
            $(pub $name: AtomicU64,)*
        }

        impl Counting {
            /// The same by name, as `millrace stats` shows them.
            pub fn named(&self) -> Vec<Count> {
                let now = self.read();
                let all = [$((stringify!($name), now.$name)),*];
                all.into_iter().map(|(name, count)| Count { reason: name.replace('_', "-"), count }).collect()
            }

            /// What they are now.
            pub fn read(&self) -> Counters {
                // Relaxed: nothing else is read by them.
                Counters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl core::fmt::Display for Counters {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let all = [$((stringify!($name), self.$name)),*];
                let words = all.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {}", name.replace('_', " ")));
                f.write_str(&words.collect::<Vec<_>>().join(", "))
            }
        }
    };
}

counters! {
    /// Machines that connected.
    connections,
    /// Machines that another card has handed over.
    taken_over,
    /// Connections that were turned away, because the function has a machine already.
    turned_away,
    /// Connections that were turned away, because of the user at the other end.
    refused_users,
    /// How often nobody could be let in, for want of descriptors.
    exhausted,
    /// Connections that were ended because of what came by them.
    thrown_out,
    /// Messages that were carried out or refused.
    messages,
    /// Messages that were refused.
    refused_messages,
    /// Register and doorbell accesses by message, reads and writes.
    region_accesses,
    /// Interrupts sent.
    interrupts,
    /// Interrupts that wait until their vector is set or unmasked.
    pending_interrupts,
    /// Interrupts that the system could not send at once (`fs.aio-max-nr` is used up); they are tried again until they are.
    unsent_interrupts,
    /// Pieces of memory that were refused: the card has no addresses left for them, or no more for one machine.
    memory_refused,
    /// Machines whose memory was cut while the card had it: its file has shrunk, or a page of it could not be had. Their queues are stopped.
    memory_cut,
    /// Times that a worker did not let go in time of memory that was taken away: it is unmapped when it does.
    late_unmaps,
    /// Pieces of memory that are not mapped, since no file came with them: the card cannot reach them.
    memory_without_file,
    /// Writes of registers that are not the function's own to write.
    refused_registers,
    /// Starts of queues while the function was no bus master.
    starts_without_bus_master,
    /// Times that running queues were stopped by reset, bus mastering, or memory that was taken away.
    stops_by_machine,
}

/// One more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_happen_is_not_told() {
        let counting = Counting::default();
        count(&counting.connections);
        count(&counting.messages);
        count(&counting.messages);
        assert_eq!(counting.read().to_string(), "1 connections, 2 messages");
    }
}
