//! Huge pages for the time of a benchmark: the DPDK peers reserve theirs, and a card on ordinary pages would be compared
//! by its misses in the TLB.

use std::fs;

use millrace_tool::output::note;

/// Where Linux keeps the number of reserved 2 MiB pages.
const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
/// Pages that a queue pair with default buffers needs, with some to spare.
pub const PER_PAIR: u64 = 6;
/// Pages that a card with one queue pair needs, with some to spare.
pub const ONE_PAIR: u64 = 16;

/// Huge pages that were reserved here, and are given back when this is dropped.
pub struct HugePages {
    added: u64,
}

impl HugePages {
    /// Reserves what a card needs: `wanted` pages. `None`, and a note, where that is not possible: the card then uses what the system has,
    /// or ordinary pages, which costs throughput.
    pub fn for_a_card(wanted: u64) -> Option<Self> {
        Self::reserve(wanted).map_err(|why| note(format!("{why}; the card may run on ordinary pages"))).ok()
    }

    /// Reserves `wanted` pages beside those that are reserved. The error says why there are fewer.
    pub fn reserve(wanted: u64) -> Result<Self, String> {
        let before = reserved().ok_or("this system has no huge pages of 2 MiB")?;
        fs::write(RESERVED, (before + wanted).to_string())
            .map_err(|why| format!("cannot reserve {wanted} huge pages ({RESERVED}: {why}); run this as root"))?;
        let pages = Self { added: reserved().unwrap_or(before).saturating_sub(before) };
        if pages.added < wanted {
            return Err(format!("{wanted} huge pages wanted, {} to be had; free some memory", pages.added));
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // Others may have reserved some meanwhile. Whoever could raise the number can lower it; if not, some memory stays
        // reserved.
        if let Some(now) = reserved() {
            let _ = fs::write(RESERVED, now.saturating_sub(self.added).to_string());
        }
    }
}

fn reserved() -> Option<u64> {
    fs::read_to_string(RESERVED).ok()?.trim().parse().ok()
}
