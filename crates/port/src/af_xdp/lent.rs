//! Frames in memory of an application: what the kernel was given of it, and in which order it is done.

use super::loan::{COMPLETED, Loan};
use super::queue::Queue;
use super::ring::RING;
use super::socket::{HEADROOM, Layout};
use crate::{DropReason, LendError, Lent, Pool, PortCounters, Sink, TxOutcome, null::check_len};
use millrace_dma::Span;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

/// The smallest and the largest frame memory that Linux takes: without `XDP_UMEM_UNALIGNED_CHUNK_FLAG`, a power of two.
const CHUNKS: std::ops::RangeInclusive<u32> = 2048..=4096;

/// In memory of unaligned frames, an address has the distance of the packet from the beginning of its buffer up here.
const OFFSET_SHIFT: u32 = 48;

/// What the kernel may write of each buffer of `pool`, on a wire whose frames need `layout`.
pub(super) fn chunk_of(pool: &Pool, layout: Layout) -> Result<u32, LendError> {
    if layout.pieces {
        return Err(LendError::Pieces);
    }
    let needs = (layout.longest + HEADROOM as u32).max(*CHUNKS.start());
    let has = pool.size.min(*CHUNKS.end());
    if has < needs { Err(LendError::TooSmall { has: pool.size, needs }) } else { Ok(has) }
}

/// Beginning of the buffer, and of the packet in it.
#[inline(always)]
fn places(frame: XdpDesc) -> (u64, usize) {
    let buffer = frame.addr & ((1 << OFFSET_SHIFT) - 1);
    (buffer, (buffer + (frame.addr >> OFFSET_SHIFT)) as usize)
}

impl Queue {
    /// `count` frames in buffers of an application, which keeps those that it wants.
    pub(super) fn receive_lent(&mut self, count: u32, sink: &mut dyn Sink, counters: &PortCounters) -> usize {
        (0..count).for_each(|ahead| self.frame(self.rx.peek(ahead)).prefetch());
        let (mut taken, mut bytes, mut back) = (0, 0, 0);
        for ahead in 0..count {
            let descriptor = self.rx.peek(ahead);
            let (buffer, at) = places(descriptor);
            self.finish_checksum(at, descriptor.len as usize);
            let frame = self.frame(descriptor);
            let said = match check_len(frame.len()) {
                Ok(()) => sink.take_lent(at, frame),
                Err(reason) => {
                    counters.count_rx_drops(reason, 1);
                    self.refill(buffer);
                    back += 1;
                    continue;
                }
            };
            match said {
                Lent::Full => counters.count_rx_drops(DropReason::NoRoom, 1),
                Lent::Done | Lent::Kept => {
                    taken += 1;
                    bytes += frame.len() as u64;
                }
            }
            if said != Lent::Kept {
                self.refill(buffer);
                back += 1;
            }
        }
        if let Some(loan) = &mut self.loan {
            loan.out -= count - back;
        }
        counters.count_rx(taken as u64, bytes);
        self.fill.publish();
        self.rx.release(count);
        taken
    }

    /// The bytes of a frame; outside the memory there is nothing, and the kernel does not do that.
    #[inline(always)]
    fn frame(&self, frame: XdpDesc) -> Span<'_> {
        self.memory.span(places(frame).1, frame.len as usize).unwrap_or(Span::EMPTY)
    }

    /// There is room: no more buffers are out than the fill ring has places.
    fn refill(&mut self, buffer: u64) {
        if self.fill.room(1) > 0 {
            self.fill.push(buffer);
        }
    }

    /// Puts empty buffers into the fill ring.
    pub(super) fn post(&mut self, next: &mut dyn FnMut() -> Option<usize>) {
        let Some(loan) = &mut self.loan else { return };
        while loan.out < RING && self.fill.room(1) > 0 {
            let Some(at) = next() else { break };
            self.fill.push(at as u64);
            loan.out += 1;
        }
        self.fill.publish();
    }

    /// Collects one frame that lies in the application's memory for sending, where it lies.
    pub(super) fn transmit_lent(&mut self, at: usize, len: usize, is_down: bool) -> TxOutcome {
        if self.tx.room(1) == 0 {
            self.reap();
        }
        let (room, longest) = (self.tx.room(1), self.frame_size);
        let Some(loan) = &mut self.loan else { return TxOutcome::Full };
        if room == 0 || loan.sending.len() >= RING as usize {
            return TxOutcome::Full;
        }
        let fits = match check_len(len) {
            _ if is_down => Err(DropReason::LinkDown),
            Ok(()) if len > longest => Err(DropReason::TooLong),
            checked => checked,
        };
        loan.sending.push_back((at as u64 & COMPLETED, fits.is_err()));
        match fits {
            Ok(()) => {
                self.tx.push(XdpDesc { addr: at as u64, len: len as u32, options: XdpDescOptions::empty() });
                TxOutcome::Sent
            }
            Err(reason) => TxOutcome::Dropped(reason),
        }
    }

    /// How many of the oldest such frames are done.
    pub(super) fn sent_lent(&mut self) -> u32 {
        if self.loan.as_ref().is_none_or(Loan::is_idle) {
            return 0;
        }
        self.reap();
        self.loan.as_mut().map_or(0, Loan::take_done)
    }
}
