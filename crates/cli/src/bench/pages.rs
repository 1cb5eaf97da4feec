//! Huge pages for the time of a benchmark: the DPDK peers reserve theirs, and a card on ordinary pages would be compared
//! by its misses in the TLB.

use std::fs;

use crate::output::note;

/// Where Linux keeps the number of reserved 2 MiB pages.
const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
/// Pages that a card with one queue pair and default buffers needs, with some to spare.
const WANTED: u64 = 16;

/// Huge pages that were reserved here, and are given back when this is dropped.
pub struct HugePages {
    before: u64,
}

impl HugePages {
    /// Reserves as many as a benchmark wants. `None`, and a note, where that is not allowed or there are none to be had:
    /// the card then uses what the system has, or ordinary pages.
    pub fn reserve() -> Option<Self> {
        let before = reserved()?;
        let pages = Self { before };
        if fs::write(RESERVED, (before + WANTED).to_string()).is_err() {
            if before == 0 {
                note(
                    "no huge pages, and not allowed to reserve any: the card runs on ordinary pages, which costs throughput",
                );
            }
            return None;
        }
        let now = reserved().unwrap_or(before);
        if now < before + WANTED {
            note(format!("{} huge pages wanted, {} to be had", WANTED, now.saturating_sub(before)));
        }
        Some(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // Whoever could raise the number can lower it; if not, some memory stays reserved.
        let _ = fs::write(RESERVED, self.before.to_string());
    }
}

fn reserved() -> Option<u64> {
    fs::read_to_string(RESERVED).ok()?.trim().parse().ok()
}
