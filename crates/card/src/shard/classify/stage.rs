//! The frames of a burst, in memory that nobody else writes, each with room in front for headers.

use super::BURST;
use crate::shard::sink::Target;
use crate::tsu::Stamper;
use millrace_dma::Span;
use millrace_flow::Tunnel;
use millrace_flow::execute::HEADROOM;
use millrace_packet::offload::Offload;
use millrace_port::{Accept, MAX_FRAME_LEN};
use std::ops::Range;

/// Frames begin on cache lines.
const LINE: usize = 64;
const _: () = assert!(HEADROOM.is_multiple_of(LINE));

/// A frame on the stage.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    /// Where its room begins.
    pub base: usize,
    /// Where it begins itself, and where it ends.
    pub at: usize,
    pub end: usize,
    /// The tunnel that it was taken out of, or is to go into.
    pub tunnel: Option<Tunnel>,
    /// Whether somebody has to fill in its addresses: its next hop is not known.
    pub waits: bool,
    /// How many actions have been done to it.
    pub actions: usize,
}

impl Staged {
    pub fn len(&self) -> usize {
        self.end - self.at
    }

    /// Notes what actions have made of it: where it lies now in its room, whose end stays as it is, because the next frame begins there.
    pub fn settle(&mut self, place: Range<usize>, tunnel: Option<Tunnel>, actions: usize) {
        (self.at, self.end) = (self.base + place.start, self.base + place.end);
        (self.tunnel, self.actions) = (tunnel, actions);
    }
}

/// The frames of a burst.
pub(super) struct Stage {
    // Has room for the longest burst. Its pages are there once they have been used, and short frames use few.
    bytes: Box<[u8]>,
    pub frames: Vec<Staged>,
}

impl Stage {
    pub fn new() -> Self {
        let room = HEADROOM + MAX_FRAME_LEN.next_multiple_of(LINE);
        Self { bytes: vec![0; BURST * room].into(), frames: Vec::with_capacity(BURST) }
    }

    pub fn clear(&mut self) {
        self.frames.clear();
    }

    #[inline(always)]
    pub fn hold(&mut self, frame: Span<'_>) -> Accept {
        let base = self.frames.last().map_or(0, |last| last.end.next_multiple_of(LINE));
        let (at, end) = (base + HEADROOM, base + HEADROOM + frame.len());
        let Some(room) = self.bytes.get_mut(at..end).filter(|_| self.frames.len() < BURST) else { return Accept::Full };
        frame.read_into(room);
        self.frames.push(Staged { base, at, end, tunnel: None, waits: false, actions: 0 });
        Accept::Taken
    }

    /// Puts two pieces together. Returns where they are and how long they are.
    pub fn join(&mut self, front: &[u8], back: &[u8]) -> (u32, u32) {
        self.bytes[..front.len()].copy_from_slice(front);
        self.bytes[front.len()..front.len() + back.len()].copy_from_slice(back);
        (0, (front.len() + back.len()) as u32)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    #[inline(always)]
    pub fn frame(&self, frame: &Staged) -> &[u8] {
        &self.bytes[frame.at..frame.end]
    }

    /// Only those frames stay that are wanted.
    pub fn keep(&mut self, mut wanted: impl FnMut(&[u8]) -> bool) {
        let Self { bytes, frames } = self;
        frames.retain(|frame| wanted(&bytes[frame.at..frame.end]));
    }

    /// A frame with its room in front.
    pub fn room(&mut self, frame: &Staged) -> &mut [u8] {
        &mut self.bytes[frame.base..frame.end]
    }
}

/// The stage as what is behind a MAC. Frames get their stamp when they leave it: that of the last one that came.
pub(super) struct StageTarget<'s> {
    pub stage: &'s mut Stage,
    pub stamper: &'s mut Stamper,
}

impl Target for StageTarget<'_> {
    #[inline(always)]
    fn take(&mut self, frame: Span<'_>, _: &Offload) -> Accept {
        self.stage.hold(frame)
    }

    #[inline(always)]
    fn stamper(&mut self) -> Option<&mut Stamper> {
        Some(self.stamper)
    }
}
