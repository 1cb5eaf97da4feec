//! Bursts towards a peer, of which frames of no legal length are sorted out.

use crate::null::check_len;
use crate::{Burst, DropReason, MAX_FRAME_LEN, MIN_FRAME_LEN};
use millrace_dma::Span;

/// A part of a burst.
pub(crate) enum Run<'r, 'f> {
    /// Frames of legal length, to be stored as far as there is room.
    Legal(&'r [Span<'f>]),
    /// A frame that is dropped, and has to be counted.
    Dropped(DropReason),
}

/// Takes `frames` from the front, as [`PortQueue::transmit_burst`](crate::PortQueue::transmit_burst) does. What `take`
/// says of a frame that is dropped does not matter.
#[inline(always)]
pub(crate) fn in_runs(frames: &[Span<'_>], mut take: impl FnMut(Run<'_, '_>) -> Burst) -> Burst {
    let mut burst = Burst::default();
    while burst.taken < frames.len() {
        let rest = &frames[burst.taken..];
        let legal = rest.iter().position(|frame| !is_legal(frame)).unwrap_or(rest.len());
        if legal == 0 {
            burst.taken += 1;
            burst.dropped += 1;
            burst.dropped_bytes += rest[0].len() as u64;
            if let Err(reason) = check_len(rest[0].len()) {
                let _ = take(Run::Dropped(reason));
            }
            continue;
        }
        let stored = take(Run::Legal(&rest[..legal]));
        burst.taken += stored.taken;
        burst.dropped += stored.dropped;
        burst.dropped_bytes += stored.dropped_bytes;
        if stored.taken < legal {
            break;
        }
    }
    burst
}

/// Whether a frame has a length that a port carries.
#[inline(always)]
fn is_legal(frame: &Span<'_>) -> bool {
    (MIN_FRAME_LEN..=MAX_FRAME_LEN).contains(&frame.len())
}
