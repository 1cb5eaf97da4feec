//! Memory of messages: a piece of memory, or several.

/// Memory of a message, as long as it has not ended.
pub trait Buffer: Send + 'static {
    /// Bytes.
    fn len(&self) -> usize;

    /// Bytes from `offset` on that lie together, up to `most` of them: one at least, if there is one.
    fn piece(&self, offset: usize, most: usize) -> &[u8];

    /// The same, to be written.
    fn piece_mut(&mut self, offset: usize, most: usize) -> &mut [u8];

    /// So many bytes were received, not more than it has.
    fn shorten(&mut self, len: usize);

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it, if it lies together.
    fn whole(&self) -> Option<&[u8]> {
        Some(self.piece(0, self.len())).filter(|piece| piece.len() == self.len())
    }
}

fn range(has: usize, offset: usize, most: usize) -> core::ops::Range<usize> {
    let from = offset.min(has);
    from..has.min(from.saturating_add(most))
}

impl Buffer for Vec<u8> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn piece(&self, offset: usize, most: usize) -> &[u8] {
        &self[range(Vec::len(self), offset, most)]
    }

    fn piece_mut(&mut self, offset: usize, most: usize) -> &mut [u8] {
        let range = range(Vec::len(self), offset, most);
        &mut self[range]
    }

    fn shorten(&mut self, len: usize) {
        self.truncate(len);
    }
}

/// A message in several pieces, which is gathered when it is sent, and scattered when it is received: what others see is one message. Short
/// ones go by buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces(pub Vec<Vec<u8>>);

impl Pieces {
    /// The piece with that byte, and where in it.
    fn find(&self, mut offset: usize) -> Option<(usize, usize)> {
        for (at, piece) in self.0.iter().enumerate() {
            if offset < piece.len() {
                return Some((at, offset));
            }
            offset -= piece.len();
        }
        None
    }
}

impl Buffer for Pieces {
    fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    fn piece(&self, offset: usize, most: usize) -> &[u8] {
        self.find(offset).map_or(&[], |(at, offset)| self.0[at].piece(offset, most))
    }

    fn piece_mut(&mut self, offset: usize, most: usize) -> &mut [u8] {
        self.find(offset).map_or(&mut [], |(at, offset)| self.0[at].piece_mut(offset, most))
    }

    /// Pieces that have got nothing are there still, without bytes.
    fn shorten(&mut self, mut len: usize) {
        for piece in &mut self.0 {
            piece.truncate(len);
            len -= piece.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_found_by_their_bytes() {
        let mut pieces = Pieces(vec![vec![], vec![1, 2, 3], vec![], vec![4], vec![5, 6]]);
        assert_eq!((pieces.len(), pieces.whole()), (6, None));
        let found: Vec<&[u8]> = (0..8).map(|at| pieces.piece(at, 2)).collect();
        assert_eq!(found, [&[1, 2][..], &[2, 3], &[3], &[4], &[5, 6], &[6], &[], &[]]);
        pieces.piece_mut(2, 9)[0] = 7;
        assert_eq!(pieces.piece(0, usize::MAX), [1, 2, 7]);
        pieces.shorten(4);
        assert_eq!(pieces.0, [vec![], vec![1, 2, 7], vec![], vec![4], vec![]]);
        assert_eq!(Pieces(vec![vec![], vec![1, 2]]).whole(), Some(&[1, 2][..]));
        assert_eq!((vec![1_u8, 2].piece(1, 5), vec![0_u8; 3].piece(9, 1)), (&[2][..], &[][..]));
        assert!(Pieces::default().whole().is_some_and(<[u8]>::is_empty));
    }
}
