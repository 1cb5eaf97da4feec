//! One queue of an interface: a socket, its four rings, and the frames that go round in them.
//!
//! A frame that is received is shown to the card where it lies, and then goes back to the fill ring: no copy. A frame
//! that is sent is copied into one of ours, and that is free again when it comes back by the completion ring. With
//! memory of an application (`lent.rs`) the receiving frames are its buffers, and it keeps those that hold its frames.

use super::{
    checksum,
    loan::Loan,
    ring::{Consumer, Producer},
};
use crate::{Accept, DropReason, MAX_FRAME_LEN, PortCounters, Sink, TxOutcome, null::check_len};
use millrace_dma::{Span, Window};
use rustix::{
    io::{self, Errno},
    net::{
        RecvFlags, SendFlags, recv, send,
        sockopt::xdp_statistics,
        xdp::{XdpDesc, XdpDescOptions, XdpStatistics},
    },
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Frames that are looked at together.
const BURST: u32 = 64;

/// A queue that is bound and runs.
pub(super) struct Queue {
    pub memory: Window,
    /// The longest frame in one piece, in bytes.
    pub frame_size: usize,
    /// The memory of an application, if there is one.
    pub loan: Option<Loan>,
    pub fill: Producer<u64>,
    pub completion: Consumer<u64>,
    pub rx: Consumer<XdpDesc>,
    pub tx: Producer<XdpDesc>,
    /// Frames for sending that are not in use.
    pub free: Vec<u64>,
    pub socket: OwnedFd,
    /// How frames of several pieces become whole; `None` where there are none.
    pub assembly: Option<Assembly>,
    /// Whether the driver works on our frames. Then the frames were on a wire, and their checksums are complete.
    pub zero_copy: bool,
    /// Whether the kernel receives when we ask, and not when it is interrupted.
    pub busy_poll: bool,
    /// What the kernel had dropped when it was last asked.
    pub dropped: Dropped,
}

/// A frame of several pieces, as far as it has come.
pub(super) struct Assembly {
    bytes: Box<[u8; MAX_FRAME_LEN]>,
    /// Bytes of all pieces so far, those beyond the longest frame included.
    len: usize,
    /// Whether another piece follows.
    open: bool,
}

impl Assembly {
    pub fn new() -> Self {
        Self { bytes: Box::new([0; MAX_FRAME_LEN]), len: 0, open: false }
    }

    fn add(&mut self, piece: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..) {
            let len = room.len().min(piece.len());
            room[..len].copy_from_slice(&piece[..len]);
        }
        self.len += piece.len();
    }
}

/// Frames that the kernel dropped for us, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    no_room: u64,
    too_long: u64,
    not_sent: u64,
}

impl Dropped {
    /// What the kernel's counters mean. When it copies, a frame that finds the fill ring empty is counted twice, by
    /// that name and as dropped; what else is dropped was longer than a frame of ours. When it does not copy, the
    /// driver asks for frames in advance, and that it got none says nothing of frames from the wire.
    pub(super) fn of(statistics: &XdpStatistics, zero_copy: bool) -> Self {
        let unfilled = statistics.rx_fill_ring_empty_descs.filter(|_| !zero_copy).unwrap_or(statistics.rx_dropped);
        let too_long = statistics.rx_dropped.saturating_sub(unfilled);
        Self {
            no_room: statistics.rx_dropped - too_long + statistics.rx_ring_full.unwrap_or(0),
            too_long,
            not_sent: statistics.tx_invalid_descs,
        }
    }

    /// For want of room, too long, and not sent.
    pub(super) const fn numbers(self) -> [u64; 3] {
        [self.no_room, self.too_long, self.not_sent]
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Queue {
    /// Up to `budget` frames to `sink`. Returns how many it took.
    pub fn receive(&mut self, budget: usize, sink: &mut dyn Sink, counters: &PortCounters) -> usize {
        let mut left = u32::try_from(budget).unwrap_or(u32::MAX);
        let mut taken = 0;
        while left > 0 {
            let mut count = self.rx.available(left.min(BURST));
            if count == 0 && self.ask_for_frames() {
                count = self.rx.available(left.min(BURST));
            }
            if count == 0 {
                break;
            }
            taken += match self.assembly.take() {
                None if self.loan.is_some() => self.receive_lent(count, sink, counters),
                None => self.receive_whole(count, sink, counters),
                Some(mut assembly) => {
                    let taken = self.receive_pieces(count, &mut assembly, sink, counters);
                    self.assembly = Some(assembly);
                    taken
                }
            };
            left -= count;
        }
        taken
    }

    /// A system call that makes the driver look for frames, where one is needed. Returns whether there was one.
    #[inline]
    fn ask_for_frames(&mut self) -> bool {
        if !self.busy_poll && !self.fill.needs_wakeup() {
            return false;
        }
        // Whatever it says: the rings tell what came of it, and the state of the interface why nothing did.
        let _ = recv(&self.socket, &mut [0u8; 0][..], RecvFlags::DONTWAIT);
        true
    }

    /// `count` frames, each in one piece.
    fn receive_whole(&mut self, count: u32, sink: &mut dyn Sink, counters: &PortCounters) -> usize {
        for ahead in 0..count {
            let frame = self.rx.peek(ahead);
            self.finish_checksum(frame.addr as usize, frame.len as usize);
        }
        let mut frames = [Span::EMPTY; BURST as usize];
        let mut good = 0;
        for ahead in 0..count {
            let frame = self.rx.peek(ahead);
            // Outside the memory there is nothing; the kernel does not do that.
            let frame = self.memory.span(frame.addr as usize, frame.len as usize).unwrap_or(Span::EMPTY);
            match check_len(frame.len()) {
                Ok(()) => {
                    frames[good] = frame;
                    good += 1;
                }
                Err(reason) => counters.count_rx_drops(reason, 1),
            }
        }
        let frames = &frames[..good];
        let taken = sink.take_burst(frames);
        counters.count_rx(taken as u64, frames[..taken].iter().map(|frame| frame.len() as u64).sum());
        if taken < good {
            counters.count_rx_drops(DropReason::NoRoom, (good - taken) as u64);
        }
        self.recycle(count);
        taken
    }

    /// A frame that the kernel copied may come from a neighbour on this machine who left its checksum to the hardware.
    #[inline(always)]
    pub(super) fn finish_checksum(&mut self, at: usize, len: usize) {
        if !self.zero_copy && self.memory.slice(at, len).is_some_and(checksum::is_unfinished) {
            self.memory.slice_mut(at, len).map(checksum::finish);
        }
    }

    /// `count` pieces of frames.
    fn receive_pieces(
        &mut self,
        count: u32,
        assembly: &mut Assembly,
        sink: &mut dyn Sink,
        counters: &PortCounters,
    ) -> usize {
        let mut taken = 0;
        for ahead in 0..count {
            let piece = self.rx.peek(ahead);
            if !assembly.open {
                assembly.len = 0;
            }
            assembly.open = piece.options.contains(XdpDescOptions::XDP_PKT_CONTD);
            assembly.add(self.memory.slice(piece.addr as usize, piece.len as usize).unwrap_or_default());
            if assembly.open {
                continue;
            }
            let len = assembly.len;
            if let Err(reason) = check_len(len) {
                counters.count_rx_drops(reason, 1);
                continue;
            }
            let frame = &mut assembly.bytes[..len];
            counters.count_rx_copies(1);
            if !self.zero_copy {
                checksum::finish(frame);
            }
            match sink.take(Span::from_slice(frame)) {
                Accept::Taken => {
                    counters.count_rx(1, len as u64);
                    taken += 1;
                }
                Accept::Full => counters.count_rx_drops(DropReason::NoRoom, 1),
            }
        }
        self.recycle(count);
        taken
    }

    /// Gives the first `count` received frames back, to be filled again. There is room: no more frames go round on the
    /// receiving side than the fill ring has places.
    fn recycle(&mut self, count: u32) {
        let room = self.fill.room(count);
        debug_assert!(room >= count);
        for ahead in 0..count.min(room) {
            self.fill.push(self.rx.peek(ahead).addr);
        }
        self.fill.publish();
        self.rx.release(count);
    }

    /// Collects one frame for sending.
    #[inline]
    pub fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        let len = frame.len();
        if let Err(reason) = check_len(len) {
            return TxOutcome::Dropped(reason);
        }
        if len <= self.frame_size {
            if self.free.is_empty() {
                self.reap();
            }
            if self.tx.room(1) == 0 {
                return TxOutcome::Full;
            }
            let Some(at) = self.free.pop() else { return TxOutcome::Full };
            self.put(at, frame, XdpDescOptions::empty());
            return TxOutcome::Sent;
        }
        self.transmit_pieces(frame)
    }

    fn transmit_pieces(&mut self, mut frame: Span<'_>) -> TxOutcome {
        if self.assembly.is_none() {
            return TxOutcome::Dropped(DropReason::TooLong);
        }
        let pieces = frame.len().div_ceil(self.frame_size);
        if self.free.len() < pieces {
            self.reap();
        }
        if self.free.len() < pieces || (self.tx.room(pieces as u32) as usize) < pieces {
            return TxOutcome::Full;
        }
        for left in (0..pieces).rev() {
            let (piece, rest) = frame.split_at(frame.len().min(self.frame_size));
            let Some(at) = self.free.pop() else { return TxOutcome::Full };
            self.put(at, piece, if left > 0 { XdpDescOptions::XDP_PKT_CONTD } else { XdpDescOptions::empty() });
            frame = rest;
        }
        TxOutcome::Sent
    }

    #[inline(always)]
    fn put(&mut self, at: u64, bytes: Span<'_>, options: XdpDescOptions) {
        if let Some(to) = self.memory.span_mut(at as usize, bytes.len()) {
            bytes.copy_to(to);
        }
        self.tx.push(XdpDesc { addr: at, len: bytes.len() as u32, options });
    }

    /// Takes back the frames that have been sent.
    pub fn reap(&mut self) {
        loop {
            let count = self.completion.available(u32::MAX);
            if count == 0 {
                return;
            }
            for ahead in 0..count {
                let at = self.completion.peek(ahead);
                match &mut self.loan {
                    Some(loan) if (at as usize) < loan.len => loan.complete(at),
                    // A number that is none of ours would be refused when it is used: outside the memory.
                    _ => self.free.push(at),
                }
            }
            self.completion.release(count);
        }
    }

    /// Shows the kernel what was collected, and wakes it if it has to be woken.
    ///
    /// # Errors
    /// What the kernel said, unless that is only "later".
    pub fn send(&mut self) -> io::Result<()> {
        self.tx.publish();
        if !self.tx.needs_wakeup() {
            return Ok(());
        }
        let mut waiting = self.tx.waiting();
        // One call takes as many as the kernel thinks fit; as long as some leave, the next one follows.
        while waiting > 0 {
            match send(&self.socket, &[], SendFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            let before = std::mem::replace(&mut waiting, self.tx.waiting());
            if waiting == before {
                break;
            }
        }
        Ok(())
    }

    /// Counts what goes with this queue: frames that arrived and were not looked at, and frames that did not leave.
    pub fn end(&mut self, counters: &PortCounters) {
        let _ = self.send();
        self.count_kernel_drops(counters);
        counters.count_rx_drops(DropReason::NoRoom, self.rx.available(u32::MAX).into());
        let unsent = self.tx.waiting();
        if unsent > 0 {
            counters.take_back_tx(DropReason::WriteFailed, unsent.into(), 0);
        }
    }

    /// Whether the kernel still has to be asked to send something.
    pub fn must_send(&self) -> bool {
        self.tx.needs_wakeup() && self.tx.waiting() > 0
    }

    /// Counts what the kernel has dropped since this was last called.
    pub fn count_kernel_drops(&mut self, counters: &PortCounters) {
        let Ok(statistics) = xdp_statistics(&self.socket) else { return };
        let now = Dropped::of(&statistics, self.zero_copy);
        if now == self.dropped {
            return;
        }
        let before = std::mem::replace(&mut self.dropped, now);
        counters.count_rx_drops(DropReason::KernelFull, now.no_room.saturating_sub(before.no_room));
        counters.count_rx_drops(DropReason::TooLong, now.too_long.saturating_sub(before.too_long));
        let not_sent = now.not_sent.saturating_sub(before.not_sent);
        if not_sent > 0 {
            counters.take_back_tx(DropReason::WriteFailed, not_sent, 0);
        }
    }
}
