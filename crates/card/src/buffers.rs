//! The buffers of the device into which software writes what a Calypte TX queue sends (`docs/spec/nfb-card.md` §3.2.5): by
//! way of memory that it shares with the card, or of two components of the second bus.

use millrace_abi::register::calypte::{TX_HEADERS, TX_RING};
use millrace_dma::{OutOfRange, Pages, Region, RegionError, Slots64, Window};
use millrace_ring::calypte::Header;

/// Data and header ring of a Calypte TX queue.
#[derive(Clone)]
pub struct TxBuffers {
    /// Mapped twice in a row.
    pub(crate) data: Window,
    pub(crate) headers: Slots64,
}

impl TxBuffers {
    /// Buffers in memory of the driver: `data` is the ring of [`TX_RING`] bytes, mapped twice in a row, `headers` has
    /// room for [`TX_HEADERS`] entries.
    ///
    /// # Errors
    /// [`OutOfRange`] when they are smaller.
    pub fn new(data: &Window, headers: &Window) -> Result<Self, OutOfRange> {
        Ok(Self { data: data.part(0, 2 * TX_RING as usize)?, headers: headers.slots64(0, TX_HEADERS)? })
    }

    /// Buffers that nobody shares: those of a queue that is driven by registers alone.
    pub(crate) fn own() -> Result<Self, RegionError> {
        let data = Region::allocate_doubled(TX_RING as usize)?;
        let headers = Region::allocate(TX_HEADERS as usize * 8, Pages::Ordinary)?;
        let size = |range: OutOfRange| RegionError::Size(range.len);
        Self::new(data.window(), headers.window()).map_err(size)
    }

    /// Makes all headers those of the lap before the first.
    pub(crate) fn clear_headers(&self) {
        (0..TX_HEADERS).for_each(|slot| self.headers.store(slot, 0));
    }

    /// A write to the data component; what lies behind its end is not written.
    pub(crate) fn write_data(&self, offset: u32, bytes: &[u8]) {
        let room = self.data.len().saturating_sub(offset as usize);
        if let Some(at) = self.data.span_mut(offset as usize, bytes.len().min(room)) {
            at.write_from(bytes);
        }
    }

    /// A write to the header component, in whole words of 32 bits; others change nothing. `true` if it completed a
    /// header. Software that comes this way knows of no laps: the write is what makes a header new.
    pub(crate) fn write_headers(&self, offset: u32, bytes: &[u8]) -> bool {
        let (words, rest) = bytes.as_chunks();
        if !offset.is_multiple_of(4) || !rest.is_empty() {
            return false;
        }
        let mut complete = false;
        for (at, &word) in (offset / 4..4 * TX_HEADERS).zip(words) {
            let (slot, word) = (at / 2, u64::from(u32::from_le_bytes(word)));
            let old = self.headers.load(slot);
            if at % 2 == 0 {
                // The card does not look at it before the other half makes it valid.
                self.headers.store(slot, old & !0xffff_ffff | word);
            } else {
                // Release pairs with the Acquire in `CardTx::header`: the frame is visible.
                self.headers.store_release(slot, Header::following(word << 32 | old & 0xffff_ffff, old));
                complete = true;
            }
        }
        complete
    }
}
