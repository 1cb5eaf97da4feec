//! Where a run of frames goes: all buffers are found and their first lines asked for, then the frames are copied one after
//! the other with nothing in between. A processor keeps only some 60 stores back until the lines they go to are its own;
//! what a frame costs besides its bytes, done between two copies, would fill that up and make every line wait for the one
//! before ([decision 39](../../../docs/decisions/0039-runs-of-frames.md)).

use millrace_dma::{Access, Iotlb, Iova, Span, SpanMut};

/// Most frames of a run.
const RUN: usize = 32;

/// The longest frame that goes in a run. Behind its first line a long one waits for lines of its own, and the processor asks
/// ahead in those by itself; what is done between two frames is little beside that.
const LONGEST: usize = 128;

/// The frames at the front that are worth a run: short ones, at least two.
#[inline(always)]
pub(crate) fn run_of<'f, 's>(frames: &'f [Span<'s>]) -> &'f [Span<'s>] {
    let count = frames.iter().take(RUN).take_while(|frame| frame.len() <= LONGEST).count();
    if count < 2 { &[] } else { &frames[..count] }
}

/// Buffers of a run, in the memory of the owner.
pub(crate) struct Rooms<'a> {
    iotlb: &'a Iotlb,
    rooms: [Option<SpanMut<'a>>; RUN],
    len: u32,
}

impl<'a> Rooms<'a> {
    #[inline(always)]
    pub fn new(iotlb: &'a Iotlb) -> Self {
        Self { iotlb, rooms: [None; RUN], len: 0 }
    }

    /// Buffers found.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// The next frame of the run goes to `at`. `false`: that is not in the mapping used last.
    #[inline(always)]
    pub fn add(&mut self, at: Iova, frame: Span<'_>) -> bool {
        let len = frame.len();
        let reach = self.iotlb.peek(at, len, Access::ReadWrite);
        let (Some(room), Some(next)) =
            (reach.and_then(|reach| reach.span_mut(at, len)), self.rooms.get_mut(self.len as usize))
        else {
            return false;
        };
        room.prefetch();
        *next = Some(room);
        self.len += 1;
        true
    }

    /// Copies the first of `frames` into the buffers that were found for them, and returns how many those are.
    #[inline(always)]
    pub fn fill(self, frames: &[Span<'_>]) -> u32 {
        let rooms = self.rooms[..self.len as usize].iter().flatten();
        for (frame, room) in frames.iter().zip(rooms) {
            frame.copy_to(*room);
        }
        self.iotlb.count_hits(self.len.into());
        self.len
    }
}
