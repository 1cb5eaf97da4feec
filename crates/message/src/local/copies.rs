//! Copies of an endpoint: bytes of the program to where the other end sees them, and back.

use super::Local;
use crate::block::Block;
use crate::buffer::Buffer;
use crate::channel::copy;
use crate::control::MOST_EAGER;
use crate::engine::{Action, RequestId, Work};
use millrace_dma::SpanMut;

/// Memory of that size has no room in the caches, where it would only drive out what has.
pub(super) const AROUND_FROM: usize = 8 << 20;

impl<B: Buffer> Local<B> {
    /// Does the next copy: how many bytes it was. `None`: there is none.
    pub(super) fn act_next(&mut self) -> Option<usize> {
        self.pull();
        let action = self.open.pop_front()?;
        Some(self.act(action))
    }

    /// Does an action: how many bytes it was.
    pub(super) fn act(&mut self, action: Action) -> usize {
        if self.hosts_of(action.pair).is_some() {
            return self.act_between_hosts(action);
        }
        let Self { engine, peers, buffers, blocks, .. } = self;
        let Action { ticket, pair, request, offset, len, work } = action;
        if let (Work::Transfer { slot, .. }, Some(block)) = (work, &blocks[request.0 as usize]) {
            let peer = peers.get_mut(pair.0 as usize).and_then(Option::as_mut);
            let done = peer.is_some_and(|peer| {
                let to = |done, len| peer.others.span_mut(usize::from(slot) * peer.mtu.1 + done, len);
                copy_block((block, offset as usize), len as usize, to)
            });
            engine.finished(ticket, done);
            return len as usize;
        }
        let peer = peers.get_mut(pair.0 as usize).and_then(Option::as_mut);
        let buffer = &mut buffers[request.0 as usize];
        let (from, len) = (offset as usize, len as usize);
        let done = buffer.as_mut().zip(peer).is_some_and(|(buffer, peer)| match work {
            // What is sent is only read.
            Work::Transfer { slot, .. } => in_pieces(len, |done| {
                let bytes = buffer.piece(from + done, len - done);
                let to = peer.others.span_mut(usize::from(slot) * peer.mtu.1 + done, bytes.len());
                to.map_or(0, |to| to.write_from(bytes))
            }),
            Work::CopyOut { slot } => {
                let is_large = buffer.len() >= AROUND_FROM;
                in_pieces(len, |done| {
                    let to = buffer.piece_mut(from + done, len - done);
                    let span = peer.own.span(usize::from(slot) * peer.mtu.0 + done, to.len());
                    span.map_or(0, |span| if is_large { span.read_around_into(to) } else { span.read_into(to) })
                })
            }
            // Of pairs whose ends do not reach each other's buffers; sorted out when it was pulled.
            Work::CopyIn { .. } | Work::Move { .. } | Work::Hold { .. } | Work::Expose => false,
        });
        engine.finished(ticket, done);
        len
    }

    /// The same with one of another host.
    fn act_between_hosts(&mut self, action: Action) -> usize {
        let Self { hosts: Some(hosts), engine, buffers, .. } = self else { return 0 };
        let Action { ticket, pair, request, offset, len, work } = action;
        let (from, len) = (offset as usize, len as usize);
        let buffer = &mut buffers[request.0 as usize];
        let done = buffer.as_mut().is_some_and(|buffer| match work {
            Work::CopyIn { smb } => in_pieces(len, |done| {
                let bytes = buffer.piece(from + done, len - done);
                hosts.smb(smb, done, bytes.len()).map_or(0, |to| to.write_from(bytes))
            }),
            Work::CopyOut { slot } => in_pieces(len, |done| {
                let to = buffer.piece_mut(from + done, len - done);
                hosts.rmb(pair, slot, done, to.len()).map_or(0, |span| span.read_into(to))
            }),
            Work::Transfer { .. } => true,
            Work::Move { .. } | Work::Hold { .. } | Work::Expose => false,
        });
        if matches!(work, Work::Transfer { .. }) {
            // The engine is told when it is there.
            hosts.transfer(&action, engine);
            return 0;
        }
        engine.finished(ticket, done);
        len
    }
}

/// Copies bytes of a block, which the other end cannot see, to where it can.
fn copy_block<'w>(
    (block, from): (&Block, usize),
    len: usize,
    to: impl Fn(usize, usize) -> Option<SpanMut<'w>>,
) -> bool {
    let mut bytes = [0; 4096];
    in_pieces(len, |done| {
        let bytes = &mut bytes[..(len - done).min(4096)];
        let span = block.window().span(from + done, bytes.len()).filter(|span| span.read_into(bytes) == bytes.len());
        let to = span.and_then(|_| to(done, bytes.len()));
        to.map_or(0, |to| to.write_from(bytes))
    })
}

/// Copies so many bytes: `copy` says how many it has copied, behind those that were. Whether that were all.
pub(super) fn in_pieces(len: usize, mut copy: impl FnMut(usize) -> usize) -> bool {
    let mut done = 0;
    while done < len {
        match copy(done) {
            0 => return false,
            count => done += count,
        }
    }
    true
}

pub(super) fn deliver<B: Buffer>(buffers: &mut [Option<B>], request: RequestId, words: &[u64], len: usize) {
    let Some(Some(buffer)) = buffers.get_mut(request.0 as usize).filter(|_| len <= MOST_EAGER) else { return };
    let to = buffer.piece_mut(0, len);
    if to.len() == len {
        return copy(words, to);
    }
    let mut bytes = [0; MOST_EAGER];
    copy(words, &mut bytes[..len]);
    in_pieces(len, |done| {
        let to = buffer.piece_mut(done, len - done);
        to.copy_from_slice(&bytes[done..done + to.len()]);
        to.len()
    });
}
