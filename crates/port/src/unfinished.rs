//! Frames from a wire with a `virtio_net_hdr`: passed on as they are to a sink that takes them so, finished otherwise.

use crate::{Accept, DropReason, PortCounters, Sink, null::check_len};
use millrace_dma::Span;
use millrace_packet::offload::{MAX_LARGE_FRAME_LEN, Offload, Offloads, VIRTIO_HEADER_LEN};

/// What became of a frame from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Frames that it was, or became when it was cut; at least 1.
    pub frames: usize,
    /// How many of them the card took.
    pub taken: usize,
    /// The card has no room; what it did not take is dropped and counted.
    pub full: bool,
}

/// Whether an unfinished frame has a length that a port carries.
pub(crate) fn check_unfinished_len(len: usize, offload: &Offload) -> Result<(), DropReason> {
    match offload.segments {
        Some(_) if len > MAX_LARGE_FRAME_LEN => Err(DropReason::TooLong),
        Some(_) => Ok(()),
        None => check_len(len),
    }
}

/// Offers a frame of a live wire to `sink`, which takes what `offloads` says, and counts what became of it. What is in
/// `frame` afterwards is of no use.
pub(crate) fn deliver(
    header: &[u8; VIRTIO_HEADER_LEN],
    frame: &mut [u8],
    offloads: Offloads,
    sink: &mut dyn Sink,
    counters: &PortCounters,
) -> Delivered {
    let mut tally = Tally { sink, counters, frames: 0, taken: 0, bytes: 0, full: false };
    let len = frame.len();
    let outcome = Offload::from_virtio(header, len).map_err(|_| DropReason::Offload).and_then(|offload| {
        check_unfinished_len(len, &offload)?;
        if offload.is_done() {
            tally.offer(len, |sink| sink.take(Span::from_slice(frame)));
        } else if offloads.include(&offload) && offload.passes_whole(frame, len).map_err(|_| DropReason::Offload)? {
            tally.offer(len, |sink| sink.take_offloaded(Span::from_slice(frame), &offload));
        } else {
            let finished = offload.finish(frame, |frame| {
                match check_len(frame.len()) {
                    Ok(()) => tally.offer(frame.len(), |sink| sink.take(Span::from_slice(frame))),
                    Err(reason) => tally.drop(reason),
                }
                true
            });
            finished.map_err(|_| DropReason::Offload)?;
        }
        Ok(())
    });
    if let Err(reason) = outcome {
        tally.drop(reason);
    }
    tally.finish()
}

/// What the card took of one frame from the wire.
struct Tally<'a> {
    sink: &'a mut dyn Sink,
    counters: &'a PortCounters,
    frames: usize,
    taken: usize,
    bytes: u64,
    full: bool,
}

impl Tally<'_> {
    fn offer(&mut self, len: usize, take: impl FnOnce(&mut dyn Sink) -> Accept) {
        self.frames += 1;
        // Also segments behind one that found no room: the card counts, too, what it has no room for.
        if take(self.sink) == Accept::Taken {
            self.taken += 1;
            self.bytes += len as u64;
        } else {
            self.full = true;
            self.counters.count_rx_drops(DropReason::NoRoom, 1);
        }
    }

    fn drop(&mut self, reason: DropReason) {
        self.frames += 1;
        self.counters.count_rx_drops(reason, 1);
    }

    fn finish(self) -> Delivered {
        if self.taken > 0 {
            self.counters.count_rx(self.taken as u64, self.bytes);
        }
        Delivered { frames: self.frames, taken: self.taken, full: self.full }
    }
}

#[cfg(test)]
mod tests;
