//! Putting a burst of frames into a queue: the one place where commands call `get`, fill and `put`.

use crate::failure::{Failure, While};
use crate::host::TxQueue;

/// Takes slots of `lens` bytes, lets `fill` write each, and puts them. Returns how many: 0, and nothing is written, when
/// the queue has no room for all of them; fewer than all only where its ring is too small for them at any time.
#[inline]
pub fn burst(tx: &mut TxQueue, lens: &[u16], mut fill: impl FnMut(usize, &mut [u8])) -> Result<usize, Failure> {
    // A frame that never fits is `get`'s to refuse.
    let count = tx.fits(lens).max(lens.len().min(1));
    let Some(mut slots) = tx.get(&lens[..count]).doing(|| "cannot get room for frames".to_owned())? else {
        return Ok(0);
    };
    for at in 0..count {
        fill(at, &mut slots[at]);
    }
    slots.put();
    Ok(count)
}

/// Makes the card see everything that was put.
#[inline]
pub fn flush(tx: &mut TxQueue) -> Result<(), Failure> {
    tx.flush().doing(|| "cannot flush frames".to_owned())
}

/// Stops the queue, which waits until the card has taken every frame that was put.
pub fn finish(mut tx: TxQueue) -> Result<(), Failure> {
    flush(&mut tx)?;
    tx.stop().map(drop).doing(|| "cannot stop the queue: the card has not taken all frames".to_owned())
}

/// How many bytes frames of these lengths have together.
#[inline]
pub fn bytes(lens: &[u16]) -> u64 {
    lens.iter().map(|len| u64::from(*len)).sum()
}
