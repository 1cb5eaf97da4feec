//! The device's half of a queue on which the driver sends.

use super::chain::{Fault, MAX_CHAIN, walk};
use super::layout::{Descriptor, NetHeader, descriptor_flag as flag};
use super::queue::Queue;
use super::rings::Rings;
use crate::FrameLimits;
use crate::budget::LOOKS;
use millrace_dma::{Access, Iotlb, Iova, Reach, Span};

/// Where frames go that the driver has sent.
pub trait NetSink {
    /// Takes complete frames from the front and returns how many. What it does not take is dropped.
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize;

    /// Takes one frame on which something is left to do, and counts it: it is not part of [`Sent`], as it may become many.
    /// `false`: there is no room for more. Only called when [`DeviceTx::new`] was told so; `header` is as the driver wrote
    /// it, and may be wrong in every field. The bytes are a copy, for the sink to work on; they can be more than the limits.
    fn take_unfinished(&mut self, header: &[u8; NetHeader::LEN], frame: &mut [u8]) -> bool;
}

/// What one call of [`DeviceTx::serve`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames that the sink took.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames thrown away because the sink had no room.
    pub no_room: u64,
    /// Frames thrown away because they were shorter than the limit, or had no whole header.
    pub too_short: u64,
    /// Frames thrown away because they were longer than the limit.
    pub too_long: u64,
    /// Frames that were copied first: because they lay in several pieces, or because something was left to do on them.
    pub copies: u64,
    /// Descriptors that were looked at: fewer than [`crate::budget::MOST_LOOKS`].
    pub looked: u32,
    /// The sink has no room for more.
    pub full: bool,
    /// Set when the queue has stopped just now.
    pub fault: Option<Fault>,
}

/// Frames looked at together, so that their cache lines are on the way while earlier ones are copied.
const BATCH: usize = 32;

/// The longest frame with segments that a driver sends: 64 KiB of IP packet behind an Ethernet header with tags.
const MAX_LARGE: usize = (64 << 10) + 32;

/// The device's half of a driver's transmit queue.
pub struct DeviceTx {
    queue: Queue,
    limits: FrameLimits,
    /// Headers mean something: an offload was negotiated.
    offloads: bool,
    // A frame of several pieces is put together here.
    scratch: Box<[u8]>,
    // By place in the available ring.
    guesses: Box<[Guess]>,
}

/// Where a lone frame lay that came by this place of the ring, one lap ago. Drivers go round their buffers as they go round
/// the ring, more often than not; so descriptor and frame can be asked for together with the entry that names them, and a
/// frame that comes alone waits for one cache line instead of three.
#[derive(Clone, Copy, Default)]
struct Guess {
    head: u16,
    frame: Iova,
}

/// Why a run of plain frames ended.
enum Stop {
    Enough,
    /// The next chain is not a header and a complete frame of legal length in one descriptor.
    Other,
    Fault(Fault),
}

impl DeviceTx {
    /// A queue that begins where its used index stands. `features` are those negotiated; with `offloads`, headers are
    /// looked at.
    pub fn new(rings: Rings, features: u64, offloads: bool, limits: FrameLimits, iotlb: Iotlb) -> Self {
        let longest = if offloads { MAX_LARGE } else { usize::from(limits.max) };
        let scratch = vec![0; longest].into_boxed_slice();
        let guesses = vec![Guess::default(); usize::from(rings.size())].into_boxed_slice();
        Self { queue: Queue::new(rings, features, iotlb), limits, offloads, scratch, guesses }
    }

    /// Number of descriptors.
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Chains taken so far, modulo 2^16: where another device would go on.
    pub fn next(&self) -> u16 {
        self.queue.next()
    }

    /// Whether frames wait to be taken.
    pub fn has_some(&mut self) -> bool {
        self.queue.fault().is_none() && self.queue.look().is_ok_and(|waiting| waiting > 0)
    }

    /// Why the queue has stopped.
    pub fn fault(&self) -> Option<Fault> {
        self.queue.fault()
    }

    /// Whether the driver has to be notified of what has been published since this was asked last.
    #[inline(always)]
    pub fn must_notify(&mut self) -> bool {
        self.queue.must_notify()
    }

    /// Says whether the driver shall notify the device of the next frame. After `true`, serve once more before sleeping.
    pub fn want_notifications(&mut self, wanted: bool) {
        self.queue.want_notifications(wanted);
    }

    /// Takes frames out of the ring until it is empty, `budget` of them are gone, the sink is full, or enough has been looked
    /// at.
    #[inline]
    pub fn serve(&mut self, budget: usize, sink: &mut impl NetSink) -> Sent {
        let mut sent = Sent::default();
        if self.queue.fault().is_some() {
            return sent;
        }
        self.queue.iotlb.sync();
        match self.queue.look() {
            Ok(0) => {}
            Ok(waiting) => {
                if waiting == 1 {
                    self.guess();
                }
                self.queue.expect_put();
                let mut left = budget.min(usize::from(waiting));
                while left > 0 && sent.looked < LOOKS && !sent.full && sent.fault.is_none() {
                    left -= self.serve_run(left.min(BATCH), sink, &mut sent);
                    self.queue.publish();
                }
            }
            Err(fault) => sent.fault = Some(fault),
        }
        if let Some(fault) = sent.fault {
            self.queue.stop(fault);
        }
        sent
    }

    /// Asks for what the next place probably leads to, all at once, and notes what it does lead to.
    #[inline(always)]
    fn guess(&mut self) {
        let Self { queue, guesses, .. } = self;
        let place = queue.next() & (queue.size() - 1);
        let guess = &mut guesses[usize::from(place)];
        queue.rings.table.prefetch(guess.head);
        // A hint only: the address was good a lap ago.
        if let Some(line) = queue.iotlb.peek(guess.frame, 1, Access::Read).and_then(|reach| reach.span(guess.frame, 1))
        {
            line.prefetch();
        }
        // They are judged when the frame is looked at.
        let head = queue.rings.avail.load(u32::from(place));
        let frame = queue.rings.table.load(head).address.plus(NetHeader::LEN as u64);
        *guess = Guess { head, frame };
    }

    /// Serves up to `want` frames, all of which wait, and returns how many are gone: at least one, or there is a fault.
    #[inline(always)]
    fn serve_run(&mut self, want: usize, sink: &mut impl NetSink, sent: &mut Sent) -> usize {
        let (mut frames, mut heads) = ([Span::EMPTY; BATCH], [0; BATCH]);
        let (found, stop) = self.look_ahead(&mut frames[..want], &mut heads);
        let mut gone = found;
        sent.looked += found as u32;
        if found > 0 {
            let taken = sink.take_burst(&frames[..found]).min(found);
            sent.frames += taken as u64;
            sent.bytes += frames[..taken].iter().map(|frame| frame.len() as u64).sum::<u64>();
            sent.no_room += (found - taken) as u64;
            sent.full = taken < found;
            heads[..found].iter().for_each(|&head| self.queue.put(head, 0));
        }
        match stop {
            Stop::Enough => {}
            Stop::Other if sent.full => {}
            Stop::Other => match self.serve_other(sink, sent) {
                Ok(()) => gone += 1,
                Err(fault) => sent.fault = Some(fault),
            },
            Stop::Fault(fault) => sent.fault = Some(fault),
        }
        gone
    }

    /// Finds plain frames and asks for their first cache lines. Changes nothing.
    #[inline(always)]
    fn look_ahead<'a>(&'a self, frames: &mut [Span<'a>], heads: &mut [u16; BATCH]) -> (usize, Stop) {
        let queue = &self.queue;
        let longest = usize::from(self.limits.max) + NetHeader::LEN;
        let shortest = usize::from(self.limits.min) + NetHeader::LEN;
        let mut reach: Option<Reach<'a>> = None;
        let (mut found, mut hits) = (0, 0);
        let stop = loop {
            if found == frames.len() {
                break Stop::Enough;
            }
            let head = match queue.head(found as u16) {
                Ok(head) => head,
                Err(fault) => break Stop::Fault(fault),
            };
            let Descriptor { address, len, flags, .. } = queue.rings.table.load(head);
            let len = len as usize;
            if flags & (flag::NEXT | flag::WRITE | flag::INDIRECT) != 0 || len < shortest || len > longest {
                break Stop::Other;
            }
            // Mostly the mapping of the frame before.
            let buffer = match reach.and_then(|reach| reach.span(address, len)) {
                Some(buffer) => {
                    hits += 1;
                    buffer
                }
                None => match queue.iotlb.reach(address, len, Access::Read) {
                    Ok(other) => {
                        reach = Some(other);
                        other.span(address, len).unwrap_or(Span::EMPTY)
                    }
                    Err(fault) => break Stop::Fault(fault.into()),
                },
            };
            let (header, frame) = buffer.split_at(NetHeader::LEN);
            if self.offloads && !header.first_bytes().is_some_and(|bytes| NetHeader::decode(bytes).is_plain()) {
                break Stop::Other;
            }
            frame.prefetch();
            (frames[found], heads[found]) = (frame, head);
            found += 1;
        };
        queue.iotlb.count_hits(hits);
        (found, stop)
    }

    /// Serves the next chain, whatever it looks like.
    #[cold]
    fn serve_other(&mut self, sink: &mut impl NetSink, sent: &mut Sent) -> Result<(), Fault> {
        let Self { queue, limits, offloads, scratch, .. } = self;
        let head = queue.head(0)?;
        let (mut pieces, mut count) = ([Span::EMPTY; MAX_CHAIN], 0);
        let (iotlb, mut looked) = (&queue.iotlb, 0);
        let result = walk(&queue.rings.table, iotlb, head, queue.indirect, &mut looked, |descriptor| {
            if descriptor.has(flag::WRITE) {
                return Err(Fault::Direction);
            }
            if descriptor.len > 0 {
                pieces[count] = iotlb.read(descriptor.address, descriptor.len as usize)?;
                count += 1;
            }
            Ok(())
        });
        sent.looked += looked as u32;
        result?;
        let (header, skipped) = take_header(&mut pieces[..count]);
        let pieces = &pieces[skipped..count];
        let len = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len()));
        let unfinished = header.filter(|&header| *offloads && !NetHeader::decode(header).is_plain());
        let longest = if unfinished.is_some() { scratch.len() } else { usize::from(limits.max) };
        if header.is_none() || len < usize::from(limits.min) {
            sent.too_short += 1;
        } else if len > longest {
            sent.too_long += 1;
        } else if let Some(header) = unfinished {
            sent.copies += 1;
            sent.full |= !sink.take_unfinished(&header, gather(pieces, scratch));
        } else {
            let frame = match pieces {
                [whole] => *whole,
                _ => {
                    sent.copies += 1;
                    Span::from_slice(gather(pieces, scratch))
                }
            };
            if sink.take_burst(&[frame]) == 1 {
                sent.frames += 1;
                sent.bytes += len as u64;
            } else {
                sent.no_room += 1;
                sent.full = true;
            }
        }
        queue.put(head, 0);
        Ok(())
    }
}

/// Cuts the header off the pieces, and says how many of them it took whole. `None`: there are not enough bytes.
fn take_header(pieces: &mut [Span<'_>]) -> (Option<[u8; NetHeader::LEN]>, usize) {
    let (mut bytes, mut have) = ([0; NetHeader::LEN], 0);
    for (index, piece) in pieces.iter_mut().enumerate() {
        let part = piece.len().min(NetHeader::LEN - have);
        let (header, rest) = piece.split_at(part);
        have += header.read_into(&mut bytes[have..]);
        *piece = rest;
        if have == NetHeader::LEN {
            return (Some(bytes), index + usize::from(rest.is_empty()));
        }
    }
    (None, pieces.len())
}

/// Puts the pieces, which have room there, one after the other.
fn gather<'a>(pieces: &[Span<'_>], scratch: &'a mut [u8]) -> &'a mut [u8] {
    let mut len = 0;
    for piece in pieces {
        len += piece.read_into(&mut scratch[len..]);
    }
    &mut scratch[..len]
}
