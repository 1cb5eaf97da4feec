//! The program's memory in a call: pieces that are filled or sent one behind the other, in as many tries as it takes.

use crate::shared::Shared;
use millrace_ring::lines::Malformed;
use rustix::io::{IoSlice, IoSliceMut};

/// Where received bytes go: pieces of the program's memory, of which some are filled.
pub(crate) struct Places<'a, 'b> {
    pieces: &'a mut [IoSliceMut<'b>],
    /// Pieces that are full, and bytes in the next.
    full: usize,
    filled: usize,
}

impl<'a, 'b> Places<'a, 'b> {
    pub(crate) fn new(pieces: &'a mut [IoSliceMut<'b>]) -> Self {
        Self { pieces, full: 0, filled: 0 }
    }

    /// Bytes that have room.
    pub(crate) fn room(&self) -> usize {
        self.pieces[self.full..].iter().map(|piece| piece.len()).sum::<usize>() - self.filled
    }

    /// So many bytes more are filled.
    pub(crate) fn fill(&mut self, mut count: usize) {
        while count > 0 && self.full < self.pieces.len() {
            let rest = self.pieces[self.full].len() - self.filled;
            if count < rest {
                self.filled += count;
                return;
            }
            count -= rest;
            (self.full, self.filled) = (self.full + 1, 0);
        }
    }

    /// Does something as if so many bytes more were filled.
    pub(crate) fn behind<R>(&mut self, count: usize, work: impl FnOnce(&mut Self) -> R) -> R {
        let before = (self.full, self.filled);
        self.fill(count);
        let done = work(self);
        (self.full, self.filled) = before;
        done
    }

    /// The pieces that the kernel may fill. One that is filled in part is made shorter for good.
    pub(crate) fn rest(&mut self) -> &mut [IoSliceMut<'b>] {
        if self.filled > 0 {
            self.pieces[self.full].advance(self.filled);
            self.filled = 0;
        }
        &mut self.pieces[self.full..]
    }

    /// From the ring into all that has room; nothing is marked as filled.
    pub(crate) fn take(&mut self, shared: &Shared, flags: i32) -> Result<usize, Malformed> {
        let reader = &shared.reader;
        if flags & libc::MSG_TRUNC != 0 && flags & libc::MSG_PEEK == 0 {
            return reader.skip(self.room());
        }
        let mut done = 0;
        for (at, piece) in self.pieces[self.full..].iter_mut().enumerate() {
            let to = if at == 0 { &mut piece[self.filled..] } else { &mut piece[..] };
            let count = if flags & libc::MSG_PEEK != 0 { reader.peek(done, to)? } else { reader.read(to)? };
            done += count;
            if count < to.len() {
                break;
            }
        }
        Ok(done)
    }
}

/// Where sent bytes come from: pieces of the program's memory, of which some are sent.
pub(crate) struct Sources<'a, 'b> {
    pieces: &'a [IoSlice<'b>],
    gone: usize,
    sent: usize,
}

impl<'a, 'b> Sources<'a, 'b> {
    pub(crate) fn new(pieces: &'a [IoSlice<'b>]) -> Self {
        Self { pieces, gone: 0, sent: 0 }
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.pieces[self.gone..].iter().map(|piece| piece.len()).sum::<usize>() - self.sent
    }

    /// So many bytes more are sent.
    pub(crate) fn pass(&mut self, mut count: usize) {
        while count > 0 && self.gone < self.pieces.len() {
            let rest = self.pieces[self.gone].len() - self.sent;
            if count < rest {
                self.sent += count;
                return;
            }
            count -= rest;
            (self.gone, self.sent) = (self.gone + 1, 0);
        }
    }

    pub(crate) fn rest<'c>(&self, room: &'c mut Vec<IoSlice<'b>>) -> &'c [IoSlice<'b>]
    where
        'a: 'c,
    {
        if self.sent == 0 {
            return &self.pieces[self.gone..];
        }
        room.extend_from_slice(&self.pieces[self.gone..]);
        room[0].advance(self.sent);
        room
    }

    pub(crate) fn put(&self, shared: &Shared) -> Result<usize, Malformed> {
        let mut done = 0;
        for (at, piece) in self.pieces[self.gone..].iter().enumerate() {
            let from = if at == 0 { &piece[self.sent..] } else { &piece[..] };
            let count = shared.writer.write(from)?;
            done += count;
            if count < from.len() {
                break;
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However much each try moves, what is left is what a program expects next.
        #[test]
        fn pieces_are_filled_and_sent_in_order(lens in prop::collection::vec(0usize..9, 1..8), steps in prop::collection::vec(0usize..12, 0..20)) {
            let bytes: Vec<u8> = (0..lens.iter().sum::<usize>() as u8).collect();
            let mut rest = &bytes[..];
            let slices: Vec<IoSlice<'_>> = lens
                .iter()
                .map(|&len| {
                    let (one, others) = rest.split_at(len);
                    rest = others;
                    IoSlice::new(one)
                })
                .collect();
            let mut filled: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0xff; len]).collect();
            let mut places: Vec<IoSliceMut<'_>> = filled.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
            let (mut from, mut to, mut at) = (Sources::new(&slices), Places::new(&mut places), 0);
            for step in steps {
                let mut room = Vec::new();
                let left: Vec<u8> = from.rest(&mut room).iter().flat_map(|piece| piece.to_vec()).collect();
                prop_assert_eq!(&left, &bytes[at..]);
                prop_assert_eq!((from.left(), to.room()), (left.len(), left.len()));
                let step = step.min(left.len());
                let mut count = step;
                for piece in to.rest() {
                    let part = piece.len().min(count);
                    piece[..part].copy_from_slice(&bytes[at + step - count..][..part]);
                    count -= part;
                }
                prop_assert_eq!(to.behind(step, |to| to.room()), left.len() - step);
                from.pass(step);
                to.fill(step);
                at += step;
            }
            let all: Vec<u8> = filled.concat();
            prop_assert_eq!(&all[..at], &bytes[..at]);
            prop_assert!(all[at..].iter().all(|&byte| byte == 0xff));
        }
    }
}
