//! Bytes of a message, which lie in several pieces.

use crate::memory::{Asker, Memory, Refused};
use crate::work::Piece;

/// Calls `each` with the pieces, or parts of them, that hold `len` bytes from `offset` on: key, address, and where these
/// bytes are among the `len`.
fn walk(
    pieces: &[Piece],
    offset: u64,
    len: usize,
    mut each: impl FnMut(&Piece, u64, core::ops::Range<usize>) -> Result<(), Refused>,
) -> Result<(), Refused> {
    let (mut skip, mut done) = (offset, 0);
    for piece in pieces {
        if done == len {
            break;
        }
        let there = u64::from(piece.len);
        if skip >= there {
            skip -= there;
            continue;
        }
        let count = (there - skip).min((len - done) as u64) as usize;
        let address = piece.address.checked_add(skip).ok_or(Refused::Bounds)?;
        each(piece, address, done..done + count)?;
        (skip, done) = (0, done + count);
    }
    if done == len { Ok(()) } else { Err(Refused::Bounds) }
}

/// Reads bytes of a message from `offset` on.
#[inline]
pub(super) fn gather<M: Memory>(
    memory: &mut M,
    asker: Asker,
    pieces: &[Piece],
    offset: u64,
    to: &mut [u8],
) -> Result<(), Refused> {
    walk(pieces, offset, to.len(), |piece, address, range| memory.gather(asker, piece.lkey, address, &mut to[range]))
}

/// Writes bytes of a message from `offset` on.
#[inline]
pub(super) fn scatter<M: Memory>(
    memory: &mut M,
    asker: Asker,
    pieces: &[Piece],
    offset: u64,
    from: &[u8],
) -> Result<(), Refused> {
    // Nearly always it is one, and all of the message.
    if let ([piece], 0) = (pieces, offset) {
        let fits = from.len() as u64 <= u64::from(piece.len);
        return match (fits, from.is_empty()) {
            (false, _) => Err(Refused::Bounds),
            (true, true) => Ok(()),
            (true, false) => memory.scatter(asker, piece.lkey, piece.address, from),
        };
    }
    walk(pieces, offset, from.len(), |piece, address, range| memory.scatter(asker, piece.lkey, address, &from[range]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::Key;

    #[test]
    fn a_walk_finds_the_bytes_wherever_they_lie() {
        let piece = |address, len| Piece { address, len, lkey: Key::new(1) };
        let pieces = [piece(100, 3), piece(200, 0), piece(300, 5)];
        for offset in 0..=8 {
            for len in 0..=8 {
                let mut found = Vec::new();
                let done = walk(&pieces, offset, len, |_, address, range| {
                    found.extend(range.map(|_| 0).enumerate().map(|(i, _)| address + i as u64));
                    Ok(())
                });
                let all = [100, 101, 102, 300, 301, 302, 303, 304];
                let fits = offset as usize + len <= 8;
                assert_eq!(done.is_ok(), fits || len == 0);
                if fits {
                    assert_eq!(found, all[offset as usize..][..len]);
                }
            }
        }
    }
}
