//! Between workers: a ring from each worker to each other one, with one producer and one consumer, through which frames go whose
//! queue or port queue the other one serves. Between two workers, frames stay in order.
//!
//! A frame is a header and its bytes, from a cell of the ring on; a cell is a cache line.

use super::counts::What;
use super::deliver::{Came, Delivery, Patience};
use super::{BURST, Classifying, Out};
use crate::mailbox::Mailbox;
use crate::shard::slots::Target;
use crate::shard::state::Shard;
use crate::turns::{Look, cost};
use millrace_abi::header::RxMetadata;
use millrace_dma::Span;
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) type Cell = [u8; 64];
/// Cells of a ring: 512 KiB.
pub(super) const CELLS: usize = 8192;
/// Cells of the ring to the slow path that frames leave to ARP and ND.
const RESERVED: usize = CELLS / 4;
/// Bytes of a header: length; port at which the frame came in; what the target is, and which; when it came: seconds, and nanoseconds.
pub(super) const HEADER: usize = 24;
/// As nanoseconds: the frame has no stamp.
const UNSTAMPED: u32 = u32::MAX;

/// Whether a worker sleeps, and how to wake it.
pub(crate) struct Bed {
    pub asleep: AtomicU32,
    pub mailbox: Arc<Mailbox>,
}

pub(super) struct Way {
    pub producer: Producer<Cell>,
    pub bed: Arc<Bed>,
    // Something was put in since the last time that the other was woken.
    pub has_sent: bool,
}

/// The ways out of a worker, by number of the other one.
pub(super) struct Outward {
    ways: Vec<Option<Way>>,
    has_sent: bool,
    /// The number that stands for the slow path, behind those of all workers.
    slow: Option<u32>,
}

/// A worker's ends of the ways to and from all others.
pub(crate) struct Crossings {
    pub(super) outward: Outward,
    inward: Vec<Option<Consumer<Cell>>>,
    bed: Arc<Bed>,
}

/// Ways between all workers.
pub(crate) fn cross(mailboxes: &[Arc<Mailbox>]) -> Vec<Crossings> {
    let bed = |mailbox: &Arc<Mailbox>| Arc::new(Bed { asleep: AtomicU32::new(0), mailbox: mailbox.clone() });
    let beds: Vec<Arc<Bed>> = mailboxes.iter().map(bed).collect();
    let nobody = |bed: &Arc<Bed>| Crossings {
        outward: Outward { ways: beds.iter().map(|_| None).collect(), has_sent: false, slow: None },
        inward: beds.iter().map(|_| None).collect(),
        bed: bed.clone(),
    };
    let mut all: Vec<Crossings> = beds.iter().map(nobody).collect();
    for from in 0..beds.len() {
        for to in (0..beds.len()).filter(|&to| to != from) {
            let (producer, consumer) = RingBuffer::new(CELLS);
            all[from].outward.ways[to] = Some(Way { producer, bed: beds[to].clone(), has_sent: false });
            all[to].inward[from] = Some(consumer);
        }
    }
    all
}

impl Crossings {
    /// Ways to and from the slow path, from now on. Returns its number.
    pub(super) fn add_slow(&mut self, way: Way, consumer: Consumer<Cell>) -> u32 {
        let slow = self.inward.len() as u32;
        self.outward.ways.push(Some(way));
        self.inward.push(Some(consumer));
        self.outward.slow = Some(slow);
        slow
    }

    /// Whether something that another has sent waits here.
    pub fn has_arrivals(&self) -> bool {
        self.inward.iter().flatten().any(|way| way.slots() > 0)
    }

    pub fn others(&self) -> impl Iterator<Item = u32> {
        self.inward.iter().enumerate().filter(|(_, way)| way.is_some()).map(|(from, _)| from as u32)
    }

    #[inline(always)]
    pub fn has_crossed(&self) -> bool {
        self.outward.has_sent
    }

    pub fn wake(&mut self) {
        if !std::mem::take(&mut self.outward.has_sent) {
            return;
        }
        for way in self.outward.ways.iter_mut().flatten().filter(|way| way.has_sent) {
            way.has_sent = false;
            // Relaxed: the wake_fence in front pairs with the fence of the worker between its flag and its last look.
            if way.bed.asleep.load(Ordering::Relaxed) != 0 {
                way.bed.asleep.store(0, Ordering::Relaxed);
                way.bed.mailbox.rouse();
            }
        }
    }

    /// The caller makes the fence, and looks once more.
    pub fn mark_asleep(&self) {
        self.bed.asleep.store(1, Ordering::Relaxed);
    }

    pub fn awake(&self) {
        self.bed.asleep.store(0, Ordering::Relaxed);
    }
}

/// Cells of a frame.
pub(super) fn cells(len: usize) -> usize {
    (HEADER + len).div_ceil(size_of::<Cell>())
}

/// The header of a frame that came in at `port`, at that time if that is known and of use.
pub(super) fn header(target: Target, port: usize, stamp: Option<RxMetadata>, len: usize) -> [u8; HEADER] {
    let (kind, which): (u32, u32) = match target {
        Target::FarRx { queue, .. } => (0, queue),
        Target::FarPort { port, number, .. } => (1, u32::from(port) << 16 | u32::from(number)),
        // Those do not cross.
        _ => (2, 0),
    };
    let (seconds, nanoseconds) = stamp.map_or((0, UNSTAMPED), |stamp| (stamp.seconds, stamp.nanoseconds));
    let mut header = [0; HEADER];
    let words = [len as u32, port as u32, kind, which, seconds, nanoseconds];
    for (word, value) in header.chunks_exact_mut(4).zip(words) {
        word.copy_from_slice(&value.to_ne_bytes());
    }
    header
}

impl Outward {
    /// The number that stands for the slow path.
    pub fn slow(&self) -> Option<u32> {
        self.slow
    }

    /// Whether that is the slow path.
    pub fn is_slow(&self, target: Target) -> bool {
        matches!(target, Target::FarPort { worker, .. } | Target::FarRx { worker, .. } if Some(worker) == self.slow)
    }

    /// Copies frames that came in at `port`, at the time of `stamp`, into the way to another worker, and returns how many there was
    /// room for.
    pub fn send(
        &mut self,
        worker: u32,
        target: Target,
        port: usize,
        stamp: Option<RxMetadata>,
        frames: &[Span<'_>],
    ) -> usize {
        let Some(Some(way)) = self.ways.get_mut(worker as usize) else { return 0 };
        // Frames that wait for a neighbour must not keep out its answer.
        let is_reserved = Some(worker) == self.slow && matches!(target, Target::FarPort { .. });
        let room = way.producer.slots().saturating_sub(if is_reserved { RESERVED } else { 0 });
        let (mut count, mut used) = (0, 0);
        for frame in frames {
            let more = cells(frame.len());
            if used + more > room {
                break;
            }
            (count, used) = (count + 1, used + more);
        }
        if count > 0
            && let Ok(chunk) = way.producer.write_chunk_uninit(used)
        {
            chunk.fill_from_iter(
                frames[..count].iter().flat_map(|frame| in_cells(header(target, port, stamp, frame.len()), *frame)),
            );
            (way.has_sent, self.has_sent) = (true, true);
        }
        count
    }
}

/// A frame as cells.
pub(super) fn in_cells(header: [u8; HEADER], frame: Span<'_>) -> impl Iterator<Item = Cell> {
    let mut rest = Some(frame);
    let mut at = HEADER;
    let mut cell: Cell = [0; 64];
    cell[..HEADER].copy_from_slice(&header);
    std::iter::from_fn(move || {
        let frame = rest.take()?;
        let (now, later) = frame.split_at(frame.len().min(64 - at));
        let mut full = cell;
        now.read_into(&mut full[at..]);
        rest = Some(later).filter(|later| !later.is_empty());
        (at, cell) = (0, [0; 64]);
        Some(full)
    })
}

/// What stands in a header.
struct Record {
    len: usize,
    port: usize,
    stamp: Option<RxMetadata>,
    target: Arrival,
}

/// What is at the place where a frame is to go.
enum Arrival {
    Here(Target),
    /// This worker is about to be given it.
    Soon,
    /// Another worker has it.
    Moved,
}

impl Record {
    fn read(cell: &Cell, shard: &Shard, is_slow: bool) -> Self {
        let word = |at: usize| u32::from_ne_bytes([cell[at], cell[at + 1], cell[at + 2], cell[at + 3]]);
        let target = match (word(8), word(12)) {
            (0, queue) => match shard.rx_target(queue) {
                Some(target @ Target::Rx(_)) => Arrival::Here(target),
                Some(Target::Queue(_)) => Arrival::Soon,
                _ => Arrival::Moved,
            },
            (_, which) => match shard.port_queue_target((which >> 16) as u16, which as u16) {
                target @ Target::PortQueue(_) => Arrival::Here(target),
                // The slow path does not look for the worker that serves a port.
                target @ Target::FarPort { .. } if is_slow => Arrival::Here(target),
                Target::Port { .. } => Arrival::Soon,
                _ => Arrival::Moved,
            },
        };
        let (port, seconds, nanoseconds) = (word(4), word(16), word(20));
        let stamp = RxMetadata { port: port as u8, seconds, nanoseconds };
        let stamp = (nanoseconds != UNSTAMPED).then_some(stamp);
        Self { len: word(0) as usize, port: port as usize, stamp, target }
    }
}

impl Classifying {
    /// Takes up to a burst of what another worker has sent. Nobody waits any more: what there is no room for is dropped.
    pub(in crate::shard) fn take_crossed(&mut self, shard: &mut Shard, from: usize) -> (Look, u32) {
        let Self { crossings: Crossings { outward, inward, .. }, counted, spare, outs, stage, lost, .. } = self;
        let is_slow = outward.slow == Some(from as u32);
        let Some(Some(consumer)) = inward.get_mut(from) else { return (Look::Quiet, cost::LOOK) };
        let available = consumer.slots();
        let Ok(chunk) = consumer.read_chunk(available) else { return (Look::Quiet, cost::LOOK) };
        if available == 0 {
            return (Look::Quiet, cost::LOOK);
        }
        let (front, back) = chunk.as_slices();
        let (mut used, mut frames, mut bytes) = (0, 0, 0);
        outs.clear();
        // Frames that lie in one piece are delivered from where they lie, those together that came in at one port and time.
        while used < available && frames < BURST {
            let (part, at, is_front) =
                if used < front.len() { (front, used, true) } else { (back, used - front.len(), false) };
            let flat = part.as_flattened();
            let record = Record::read(&part[at], shard, is_slow);
            if matches!(record.target, Arrival::Soon) {
                break;
            }
            let (begin, port, stamp) = (at * 64 + HEADER, record.port, record.stamp);
            if begin + record.len > flat.len() {
                // The end of the ring is in the middle of it.
                debug_assert!(is_front);
                stage.clear();
                let piece = &flat[begin..];
                let tail = &back.as_flattened()[..record.len - piece.len()];
                let whole = stage.join(piece, tail);
                let mut delivery = Delivery {
                    shard: &mut *shard,
                    outward: &mut *outward,
                    counted: &mut *counted,
                    spare: &mut *spare,
                    lost: &mut *lost,
                    port,
                    came: Came::Elsewhere(stamp),
                };
                delivery.crossed(stage.bytes(), record.target, whole);
                (used, frames, bytes) = (used + cells(record.len), frames + 1, bytes + record.len);
                continue;
            }
            // A run of frames of one port and time in one piece.
            let mut end = at;
            outs.clear();
            while end < part.len() && frames < BURST {
                let record = Record::read(&part[end], shard, is_slow);
                let begin = end * 64 + HEADER;
                if (record.port, record.stamp) != (port, stamp) || begin + record.len > flat.len() {
                    break;
                }
                match record.target {
                    Arrival::Here(target) => outs.push(Out { target, at: begin as u32, len: record.len as u32 }),
                    Arrival::Moved => counted.add(What::Moved, 1),
                    Arrival::Soon => break,
                }
                (end, frames, bytes) = (end + cells(record.len), frames + 1, bytes + record.len);
            }
            used += end - at;
            Delivery {
                shard: &mut *shard,
                outward: &mut *outward,
                counted: &mut *counted,
                spare: &mut *spare,
                lost: &mut *lost,
                port,
                came: Came::Elsewhere(stamp),
            }
            .deliver(flat, outs, Patience::None, &mut None);
        }
        // The worker that has sent them knows which rules they met.
        lost.clear();
        chunk.commit(used);
        counted.publish();
        if used == 0 {
            return (Look::Blocked, cost::BLOCKED);
        }
        (Look::Busy, cost::of(frames as u64, bytes as u64))
    }
}

impl Delivery<'_> {
    fn crossed(&mut self, bytes: &[u8], target: Arrival, (at, len): (u32, u32)) {
        match target {
            Arrival::Here(target) => self.deliver(bytes, &[Out { target, at, len }], Patience::None, &mut None),
            Arrival::Soon | Arrival::Moved => self.counted.add(What::Moved, 1),
        }
    }
}
