//! What the registers of a PCI function count, in the shape of the statistics of a card.

use super::ByFunction;
use crate::client::ClientError;
use millrace_abi::control::{QueueState, STATE_AT};
use millrace_abi::queue::QueueId;
use millrace_abi::register::medusa as m;
use millrace_abi::stats::{CardStats, Count, QueueStats};
use millrace_abi::tree::QueueEntry;
use millrace_dma::Ordering;

impl ByFunction {
    /// All queues, in order. What only the card knows is 0.
    pub(super) fn statistics(&self) -> Result<CardStats, ClientError> {
        let mut entries: Vec<&QueueEntry> = self.entries.values().collect();
        entries.sort_by_key(|entry| entry.queue);
        let queues = entries.into_iter().map(|entry| self.queue_statistics(entry)).collect::<Result<_, _>>()?;
        Ok(CardStats { queues, ..CardStats::default() })
    }

    fn queue_statistics(&self, entry: &QueueEntry) -> Result<QueueStats, ClientError> {
        // These registers lie at the same place in the blocks of the engines that have a driver here.
        self.function.write(m::COUNTER_COMMAND.at(entry.base), &m::COUNTERS_STROBE.to_le_bytes())?;
        let mut block = [0; 32];
        self.function.read(m::PASSED_FRAMES.at(entry.base), &mut block)?;
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap_or_default());
        let (passed, passed_bytes, discarded) = (word(0), word(8), word(16));
        let drops = (discarded > 0).then(|| Count { reason: "discarded".to_owned(), count: discarded });
        let open = self.open_state(entry.queue);
        Ok(QueueStats {
            queue: entry.queue,
            engine: entry.engine,
            state: open.unwrap_or(QueueState::Stopped),
            worker: 0,
            holders: open.map(|_| std::process::id()).into_iter().collect(),
            offered: passed + discarded,
            passed,
            passed_bytes,
            copies: 0,
            drops: drops.into_iter().collect(),
            launch: None,
            iotlb_hits: 0,
            iotlb_misses: 0,
            iotlb_faults: 0,
            fault_iova: None,
            refused: 0,
            refusal: None,
        })
    }

    /// The state of a queue that this program has open.
    fn open_state(&self, id: QueueId) -> Option<QueueState> {
        let state = self.state();
        let queue = state.queues.values().find(|queue| queue.id == id)?;
        let word = queue.control.window().word32(STATE_AT).ok()?;
        // Acquire pairs with the Release of the card.
        QueueState::from_word(word.load(Ordering::Acquire))
    }
}
