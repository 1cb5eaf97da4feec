//! To and from the slow path: the thread that finds neighbours of tunnels. It has ways as those between workers, made when a rule
//! first needs it.
//!
//! To it go frames whose next hop is not known, with the port where they are to leave, and ARP and ND that the card has to hear.
//! From it come frames for ports; whichever worker serves the port, one that gets them sends them there.

use super::counts::What;
use super::crossing::{Bed, CELLS, Cell, HEADER, Way, cells, header, in_cells};
use super::run::Source;
use super::{Classifying, Target};
use crate::mailbox::Mailbox;
use crate::shard::state::Shard;
use millrace_dma::{Ordering as Fence, Span, fence};
use millrace_flow::neighbour::{Concern, Published, Reader, concerns};
use rtrb::{Consumer, Producer, RingBuffer};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A worker's ends of the ways to and from the slow path, and its look at what is known.
pub(crate) struct SlowEnds {
    way: Way,
    consumer: Consumer<Cell>,
    reader: Reader,
}

/// The slow path's ends of its ways to all workers.
pub(crate) struct SlowSide {
    ways: Vec<(Consumer<Cell>, Producer<Cell>, Arc<Mailbox>)>,
    bed: Arc<Bed>,
    /// Whose turn is first.
    first: usize,
}

/// What a worker has sent.
pub(crate) enum Brought {
    /// A frame that is to leave at this port queue of this port, once somebody knows its addresses.
    Waits((u16, u16), Vec<u8>),
    /// ARP or ND, from there.
    Heard((u16, u16), Vec<u8>),
}

/// Where a frame lies.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Stage,
    Copies,
}

/// Ways between the slow path, which is woken by `mailbox`, and all workers.
pub(crate) fn cross_slowly(
    workers: &[Arc<Mailbox>],
    mailbox: &Arc<Mailbox>,
    published: &Published,
) -> (Vec<SlowEnds>, SlowSide) {
    let bed = Arc::new(Bed { asleep: AtomicU32::new(0), mailbox: mailbox.clone() });
    let (mut all, mut ways) = (Vec::new(), Vec::new());
    for worker in workers {
        let (to_slow, from_worker) = RingBuffer::new(CELLS);
        let (to_worker, from_slow) = RingBuffer::new(CELLS);
        let way = Way { producer: to_slow, bed: bed.clone(), has_sent: false };
        all.push(SlowEnds { way, consumer: from_slow, reader: published.reader() });
        ways.push((from_worker, to_worker, worker.clone()));
    }
    (all, SlowSide { ways, bed, first: 0 })
}

impl SlowSide {
    /// Takes up to about `most` frames, as many of each worker, and begins with another one each time. Returns how many there were.
    pub fn receive(&mut self, most: usize, mut take: impl FnMut(Brought)) -> usize {
        let count = self.ways.len().max(1);
        let each = most.div_ceil(count);
        self.first = (self.first + 1) % count;
        let (behind, before) = self.ways.split_at_mut(self.first);
        let mut frames = 0;
        for (consumer, ..) in before.iter_mut().chain(behind) {
            let most = frames + each;
            while frames < most
                && let Ok(first) = consumer.peek()
            {
                let word = |at: usize| u32::from_ne_bytes([first[at], first[at + 1], first[at + 2], first[at + 3]]);
                let (len, kind, which) = (word(0) as usize, word(8), word(12));
                let Ok(chunk) = consumer.read_chunk(cells(len)) else { break };
                let (front, back) = chunk.as_slices();
                let bytes = front.as_flattened().iter().chain(back.as_flattened()).skip(HEADER).take(len);
                let frame: Vec<u8> = bytes.copied().collect();
                chunk.commit_all();
                let port = ((which >> 16) as u16, which as u16);
                take(if kind == 0 { Brought::Heard(port, frame) } else { Brought::Waits(port, frame) });
                frames += 1;
            }
        }
        frames
    }

    /// Gives a frame to some worker, for a port. `false`: there is no room.
    pub fn send(&mut self, port: (u16, u16), frame: &[u8]) -> bool {
        let target = Target::FarPort { worker: 0, port: port.0, number: port.1 };
        let Some((_, producer, mailbox)) = self.ways.first_mut() else { return false };
        let Ok(chunk) = producer.write_chunk_uninit(cells(frame.len())) else { return false };
        chunk.fill_from_iter(in_cells(header(target, port.0.into(), None, frame.len()), Span::from_slice(frame)));
        mailbox.rouse();
        true
    }

    /// Says that whoever brings something has to wake the slow path; `false`: something is there already.
    pub fn fall_asleep(&self) -> bool {
        self.bed.asleep.store(1, Ordering::Relaxed);
        // Pairs with the wake_fence of workers between what they bring and their look at the flag.
        fence(Fence::SeqCst);
        let is_quiet = self.ways.iter().all(|(consumer, ..)| consumer.is_empty());
        if !is_quiet {
            self.awake();
        }
        is_quiet
    }

    /// Nobody has to wake it.
    pub fn awake(&self) {
        self.bed.asleep.store(0, Ordering::Relaxed);
    }
}

impl Classifying {
    /// Somebody finds neighbours from now on. Returns the number of the way from there.
    pub fn add_slow(&mut self, ends: SlowEnds) -> u32 {
        let SlowEnds { way, consumer, reader } = ends;
        self.neighbours = Some(reader);
        self.crossings.add_slow(way, consumer)
    }

    /// Tells the slow path what of the frames on the stage it has to hear. What concerns the card alone goes no further.
    #[cold]
    pub(super) fn overhear(&mut self, source: &Source) {
        let Self { neighbours: Some(reader), crossings, stage, counted, .. } = self else { return };
        let Some(slow) = crossings.outward.slow().filter(|_| !source.is_program) else { return };
        let table = reader.table();
        if table.own.is_empty() {
            return;
        }
        let queue = (source.port as u32) << 16 | u32::from(source.ingress.queue);
        let target = Target::FarRx { worker: slow, queue };
        stage.keep(|frame| {
            let concern = concerns(frame, table, source.port as u16);
            if concern != Concern::None {
                let sent = crossings.outward.send(slow, target, source.port, None, &[Span::from_slice(frame)]);
                match concern {
                    _ if sent == 1 => counted.add(What::PuntNeighbour, 1),
                    Concern::Card => counted.add(What::Neighbour, 1),
                    // It goes on.
                    _ => {}
                }
            }
            concern != Concern::Card
        });
        counted.publish();
    }

    /// Who gets a frame that waits for its addresses: instead of a port, the slow path, which gives it to the port then.
    ///
    /// `None`: nothing goes to that neighbour now.
    #[cold]
    pub(super) fn past_slow_path(
        &mut self,
        shard: &Shard,
        target: Target,
        (at, bytes): (Place, Range<usize>),
    ) -> Option<Target> {
        let Self { neighbours, crossings, stage, emissions, counted, .. } = self;
        let frame = match at {
            Place::Stage => &stage.bytes()[bytes],
            Place::Copies => &emissions.copies()[bytes],
        };
        let is_unknown = frame.first_chunk::<6>() == Some(&[0; 6]);
        match (crossings.outward.slow(), shard.by_number(target)) {
            (Some(worker), Target::Port { port, number }) if is_unknown => {
                if neighbours.as_mut().is_some_and(|reader| reader.table().is_closed(frame)) {
                    counted.add(What::Neighbour, 1);
                    return None;
                }
                Some(Target::FarPort { worker, port, number })
            }
            _ => Some(target),
        }
    }
}
