//! Taps: somebody listens to frames that rules decide on. Workers copy them into a ring each; whoever listens reads those. What there is no
//! room for, and what is beyond the rate, is counted.

use super::Fair;
use crate::card::Card;
use crate::command::Command;
use crate::mailbox::Mailbox;
use crate::shard::Tapper;
use millrace_flow::Tunnel;
use rtrb::{Consumer, RingBuffer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Most taps of a card: each frame is compared with every one.
const MOST_TAPS: usize = 4;
/// Bytes of the ring of a worker.
const TAP_BYTES: usize = 1 << 20;
/// Highest rate, in frames per second.
pub const MAX_TAP_RATE: u32 = 100_000;
/// Most bytes of a frame that are copied.
pub const MAX_SNAP: usize = 16 * 1024;
/// Most rules that are told of a frame, and most who get it.
pub(crate) const MOST_RULES: usize = 16;
pub(crate) const MOST_SENT: usize = 8;

/// Which frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapWants {
    /// All.
    All,
    /// Those that come in at this port.
    Port(u32),
    /// Those that this RX queue gets.
    Queue(u32),
    /// Those that meet the rule with this number.
    Rule(u64),
    /// Those that meet a rule whose cookie is this under the mask.
    Cookie(u64, u64),
    /// Those of which a rule has found the time to live at its end.
    Expired,
}

/// What somebody wants to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapSpec {
    /// Which frames.
    pub wants: TapWants,
    /// At most so many bytes of each, up to [`MAX_SNAP`].
    pub snap: usize,
    /// As they are after all actions, not as they came in.
    pub after: bool,
    /// At most so many frames per second, of all workers together; 1 to [`MAX_TAP_RATE`]. A flood at one port leaves the others their part.
    pub rate: u32,
}

/// Who gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapSent {
    /// This RX queue.
    Queue(u32),
    /// This port.
    Port(u32),
    /// The host's slow path.
    Host,
}

impl TapSent {
    /// As a kind and a number.
    pub(crate) fn words(self) -> (u8, u32) {
        match self {
            Self::Queue(queue) => (0, queue),
            Self::Port(port) => (1, port),
            Self::Host => (2, 0),
        }
    }

    fn of_words(kind: u8, number: u32) -> Self {
        match kind {
            0 => Self::Queue(number),
            1 => Self::Port(number),
            _ => Self::Host,
        }
    }
}

/// A frame that was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapFrame {
    /// When its burst was classified, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The version of the tables that decided.
    pub version: u64,
    /// Where it came in; [`LOCAL`](millrace_flow::field::LOCAL): from a program.
    pub port: u32,
    /// The tunnel that it was taken out of, or is to go into.
    pub tunnel: Option<Tunnel>,
    /// At which port queue, or from which TX queue.
    pub queue: u32,
    /// Its length, of which `bytes` may be the beginning.
    pub len: u32,
    /// Numbers of the rules that it met, the first of them.
    pub rules: Vec<u64>,
    /// Who got it, the first of them.
    pub sent: Vec<TapSent>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What has been heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tapped {
    /// In order of time.
    pub frames: Vec<TapFrame>,
    /// Frames so far for which there was no room.
    pub lost: u64,
    /// Frames so far beyond the rate.
    pub limited: u64,
    /// Whether there is more.
    pub more: bool,
}

/// What the workers count for whoever listens.
#[derive(Debug, Default)]
pub(crate) struct TapCounts {
    pub lost: AtomicU64,
    pub limited: AtomicU64,
}

/// Length of what precedes rules, targets and bytes of a record; see `shard::classify::tap`.
pub(crate) const HEAD: usize = 56;

/// Somebody listens, until this is dropped.
pub struct Tap {
    number: u64,
    rings: Vec<Consumer<u8>>,
    counts: Arc<TapCounts>,
    mailboxes: Vec<Arc<Mailbox>>,
    open: Arc<AtomicUsize>,
}

/// Why nobody can listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// There are enough.
    #[error("{MOST_TAPS} programs listen to frames of this card already (`millrace clients` says who is connected)")]
    TooMany,
    /// Rate or snap length.
    #[error("a rate is 1 to {MAX_TAP_RATE} frames per second, and at most {MAX_SNAP} bytes of each are copied")]
    Bounds,
    /// A worker does not answer.
    #[error("a worker of the card does not answer")]
    Silent,
}

impl Card {
    /// Bytes of memory that a tap takes.
    pub fn tap_bytes(&self) -> u64 {
        (self.affinity().mailboxes().len() * TAP_BYTES) as u64
    }

    /// Listens to frames that rules decide on, from now on. While a card has no rules there are none.
    ///
    /// # Errors
    /// [`TapError`].
    pub fn tap(&self, spec: TapSpec) -> Result<Tap, TapError> {
        if spec.rate == 0 || spec.rate > MAX_TAP_RATE || spec.snap > MAX_SNAP {
            return Err(TapError::Bounds);
        }
        let fair = Fair::new(spec.rate, self.ports.len(), super::now_ns());
        let fair = Arc::new(fair.map_err(|_| TapError::Bounds)?);
        let open = Arc::clone(&self.flows.taps);
        let one_more =
            open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < MOST_TAPS).then_some(count + 1));
        one_more.map_err(|_| TapError::TooMany)?;
        let number = self.flows.last_tap.fetch_add(1, Ordering::Relaxed) + 1;
        let (counts, mailboxes) = (Arc::<TapCounts>::default(), self.affinity().mailboxes().to_vec());
        // From here on, dropping it undoes what was done.
        let mut tap = Tap { number, rings: Vec::new(), counts, mailboxes, open };
        self.ready_classifying();
        for mailbox in tap.mailboxes.clone() {
            let (producer, consumer) = RingBuffer::new(TAP_BYTES);
            tap.rings.push(consumer);
            let tapper = Tapper { number, spec, producer, counts: Arc::clone(&tap.counts), fair: Arc::clone(&fair) };
            let answer = mailbox.ask(Command::Tap(Box::new(tapper)));
            answer.map_err(|_| TapError::Silent)?;
        }
        Ok(tap)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // Workers hand back what they have; nobody waits for it.
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(Command::Untap(self.number)));
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tap {
    /// What has been heard since the last call, as much as takes `room` bytes, at least one frame if there is one.
    pub fn read(&mut self, room: usize) -> Tapped {
        let share = room / self.rings.len().max(1);
        let mut frames = Vec::new();
        let mut used = 0;
        for ring in &mut self.rings {
            let mut here = 0;
            while let Some(len) = next_len(ring) {
                if here > 0 && here + len > share || used > 0 && used + len > room {
                    break;
                }
                (here, used) = (here + len, used + len);
                frames.extend(take(ring, len));
            }
        }
        frames.sort_by_key(|frame| frame.time_ns);
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let more = self.rings.iter().any(|ring| ring.slots() > 0);
        Tapped { frames, lost: count(&self.counts.lost), limited: count(&self.counts.limited), more }
    }
}

/// Length of the next record.
fn next_len(ring: &mut Consumer<u8>) -> Option<usize> {
    // Records are put in whole.
    let chunk = ring.read_chunk(4).ok()?;
    let mut len = [0; 4];
    let (front, back) = chunk.as_slices();
    len[..front.len()].copy_from_slice(front);
    len[front.len()..].copy_from_slice(back);
    Some(u32::from_le_bytes(len) as usize)
}

fn take(ring: &mut Consumer<u8>, len: usize) -> Option<TapFrame> {
    let chunk = ring.read_chunk(len).ok()?;
    let (front, back) = chunk.as_slices();
    let record = [front, back].concat();
    chunk.commit_all();
    parse(&record)
}

fn parse(record: &[u8]) -> Option<TapFrame> {
    let (head, mut rest) = record.split_at_checked(HEAD)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (rule_count, sent_count) = (word(32) as usize, word(36) as usize);
    let mut pieces = |count: usize, len: usize| {
        let (now, later) = rest.split_at_checked(count * len)?;
        rest = later;
        Some(now.chunks_exact(len))
    };
    let rules = pieces(rule_count, 8)?.map(|rule| rule.try_into().map_or(0, u64::from_le_bytes)).collect();
    let sent = pieces(sent_count, 5)?;
    let sent =
        sent.map(|one| TapSent::of_words(one[0], u32::from_le_bytes([one[1], one[2], one[3], one[4]]))).collect();
    let tunnel = || Tunnel { id: word(44), src: word(48), port: (word(40) == 2).then(|| word(52)) };
    Some(TapFrame {
        tunnel: (word(40) > 0).then(tunnel),
        len: word(4),
        time_ns: long(8),
        version: long(16),
        port: word(24),
        queue: word(28),
        rules,
        sent,
        bytes: rest.to_vec(),
    })
}
