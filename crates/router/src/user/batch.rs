//! Buffers for one turn: packets with room on both sides, so that what is put around them or taken off moves nothing.

use std::ops::Range;

/// Packets of one turn.
pub(super) const MOST: usize = 32;

/// Room before a packet: the longest outer header with UDP, ESP and IV takes 72 bytes; of IPv6 the outer header is written before what came.
pub(super) const BEFORE: usize = 128;

/// The longest packet that IP has.
pub(super) const LONGEST: usize = 65_535;

/// Room behind a packet: padding and the check value.
const BEHIND: usize = 257;

const PLACE: usize = BEFORE + LONGEST + BEHIND;

/// Buffers, and which of them have a packet where.
#[derive(Debug)]
pub(super) struct Batch {
    memory: Box<[u8]>,
    packets: Vec<(usize, Range<usize>)>,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self { memory: vec![0; MOST * PLACE].into_boxed_slice(), packets: Vec::with_capacity(MOST) }
    }

    /// None at all: what stands in for buffers that are being used.
    pub(super) fn none() -> Self {
        Self { memory: Box::default(), packets: Vec::new() }
    }

    /// There is nothing to be sent.
    pub(super) fn empty(&mut self) {
        self.packets.clear();
    }

    /// All buffers, free of packets.
    pub(super) fn emptied(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.packets.clear();
        self.memory.chunks_mut(PLACE)
    }

    /// One buffer, all of it.
    pub(super) fn place(&mut self, at: usize) -> &mut [u8] {
        &mut self.memory[at * PLACE..][..PLACE]
    }

    /// There is a packet to be sent there.
    pub(super) fn keep(&mut self, at: usize, packet: Range<usize>) {
        self.packets.push((at, packet));
    }

    /// All packets to be sent.
    pub(super) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.packets.iter().map(|(at, packet)| &self.memory[at * PLACE..][packet.clone()])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}
