//! Frames for those who listen ([`Tap`](crate::flows::Tap)). A worker to which nobody listens looks at one pointer per burst.
//!
//! A record, all numbers little-endian:
//!
//! ```text
//! 0   u32 its length          24  u32 port             40  u32 1 if a tunnel is known, 2 if it is a port, too
//! 4   u32 length of the frame 28  u32 port queue       44  u32 its identifier, u32 its other end, u32 its port
//! 8   u64 time                32  u32 rules            56  u64 number of each rule
//! 16  u64 version             36  u32 who get it       ..  u8 kind, u32 number of each who gets the frame
//!                                                      ..  bytes of the frame
//! ```

use super::run::{Normal, Source};
use super::stage::Stage;
use super::{BURST, Classifying};
use crate::flows::{Fair, HEAD, MOST_RULES, MOST_SENT, TapCounts, TapSent, TapSpec, TapWants, unix_ns};
use crate::shard::slots::Target;
use crate::shard::state::Shard;
use millrace_flow::action::Action;
use millrace_flow::execute;
use millrace_flow::table::{Verdict, VerdictId};
use millrace_flow::{Ingress, Tunnel};
use rtrb::Producer;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What a worker has for one who listens.
pub(crate) struct Tapper {
    pub number: u64,
    pub spec: TapSpec,
    pub producer: Producer<u8>,
    pub counts: Arc<TapCounts>,
    pub fair: Arc<Fair>,
}

/// Up to so many numbers, in order.
#[derive(Clone, Copy)]
struct Few<T, const N: usize> {
    all: [T; N],
    count: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    fn none(nothing: T) -> Self {
        Self { all: [nothing; N], count: 0 }
    }

    fn push(&mut self, one: T) {
        if let Some(place) = self.all.get_mut(self.count) {
            *place = one;
            self.count += 1;
        }
    }

    fn as_slice(&self) -> &[T] {
        &self.all[..self.count]
    }
}

/// What is known of a frame on the stage.
#[derive(Clone, Copy)]
struct Note {
    /// Those who listen to it, as bits.
    hit: u32,
    /// Where its first bytes lie as they came in, if they may change; its length then.
    kept: Option<(usize, usize)>,
    len: usize,
    /// Its time to live was at its end.
    is_expired: bool,
    rules: Few<u64, MOST_RULES>,
    sent: Few<TapSent, MOST_SENT>,
}

impl Note {
    fn new(len: usize) -> Self {
        let (rules, sent) = (Few::none(0), Few::none(TapSent::Host));
        Self { hit: 0, kept: None, len, is_expired: false, rules, sent }
    }
}

/// All that a worker has for those who listen.
pub(super) struct Taps {
    all: Vec<Tapper>,
    notes: Box<[Note]>,
    kept: Vec<u8>,
}

impl Classifying {
    /// One more listens.
    pub fn tap(&mut self, tapper: Tapper) {
        let nothing = Note::new(0);
        let none = || Box::new(Taps { all: Vec::new(), notes: vec![nothing; BURST].into(), kept: Vec::new() });
        self.taps.get_or_insert_with(none).all.push(tapper);
    }

    /// One less listens; what the worker had for him.
    pub fn untap(&mut self, number: u64) -> Option<Box<Tapper>> {
        let taps = self.taps.as_mut()?;
        let at = taps.all.iter().position(|tapper| tapper.number == number)?;
        let gone = taps.all.remove(at);
        if taps.all.is_empty() {
            self.taps = None;
        }
        Some(Box::new(gone))
    }

    /// Decides on frames while somebody listens. `is_first`: they have met no rule before.
    #[cold]
    pub(super) fn decide_heard(&mut self, shard: &mut Shard, source: &Source, frames: &[u8], is_first: bool) {
        let Some(mut taps) = self.taps.take() else { return };
        if is_first {
            taps.kept.clear();
        }
        for (at, one) in frames.iter().enumerate() {
            let (frame, id) = (usize::from(*one), self.verdicts[at]);
            let verdict = self.classifier.verdict(id);
            taps.before(&self.stage, frame, verdict, source, is_first, self.now_ns);
            let outs = self.outs.len();
            self.emissions.clear();
            let expired = self.counted.expired();
            self.decide(shard, source, std::slice::from_ref(one), id);
            taps.notes[frame].is_expired |= self.counted.expired() != expired;
            let sent = &mut taps.notes[frame].sent;
            self.who(shard, source, outs, id).for_each(|one| sent.push(one));
            if !self.pending.iter().any(|pending| pending.frame == frame) {
                let version = self.classifier.tables().map_or(0, |tables| tables.version());
                taps.tell(&self.stage, frame, source, version, self.now_ns);
            }
        }
        self.taps = Some(taps);
    }

    /// Who gets the frame on which was decided last; `outs`: how many there were before.
    fn who(&self, shard: &Shard, source: &Source, outs: usize, id: VerdictId) -> impl Iterator<Item = TapSent> {
        let mut sent: Few<TapSent, MOST_SENT> = Few::none(TapSent::Host);
        let by_number = |target: Target| match shard.by_number(target) {
            Target::Queue(queue) => TapSent::Queue(queue),
            Target::Port { port, .. } => TapSent::Port(port.into()),
            Target::Unplugged(port) => TapSent::Port(port),
            _ => TapSent::Host,
        };
        let emitted = self.emissions.list();
        for one in emitted {
            sent.push(match one.target {
                execute::Target::Queue { queue, .. } => TapSent::Queue(queue.into()),
                execute::Target::Port(port) | execute::Target::Mirror(port) | execute::Target::Sample(port) => {
                    TapSent::Port(port)
                }
                execute::Target::Punt(_) => TapSent::Host,
            });
        }
        let verdict = self.classifier.verdict(id);
        if let (true, Normal::To(target)) = (verdict.normal, source.normal) {
            sent.push(by_number(target));
        } else if emitted.is_empty() {
            self.outs.get(outs..).unwrap_or_default().iter().for_each(|out| sent.push(by_number(out.target)));
        }
        let Few { all, count } = sent;
        all.into_iter().take(count)
    }
}

/// Whether the frame is as it was after these actions.
fn stays(verdict: &Verdict) -> bool {
    verdict.again.is_none()
        && matches!(
            verdict.actions[..],
            [] | [Action::Queue(_)
                | Action::Rss(_)
                | Action::Balance(_)
                | Action::Quic(_)
                | Action::Output(_)
                | Action::InPort]
        )
}

impl Taps {
    /// Looks at a frame before anything is done to it.
    fn before(&mut self, stage: &Stage, frame: usize, verdict: &Verdict, source: &Source, is_first: bool, now_ns: u64) {
        let Self { all, notes, kept } = self;
        let note = &mut notes[frame];
        let bytes = stage.frame(&stage.frames[frame]);
        if is_first {
            *note = Note::new(bytes.len());
        }
        verdict.rules.iter().for_each(|rule| note.rules.push(rule.number()));
        let mut may_hit = verdict.again.is_some();
        let before = note.hit;
        for (at, tapper) in all.iter_mut().enumerate().filter(|(at, _)| before >> at & 1 == 0) {
            let hits = match tapper.spec.wants {
                TapWants::All => true,
                TapWants::Port(port) => source.ingress.port == port,
                TapWants::Rule(number) => verdict.rules.iter().any(|rule| rule.number() == number),
                TapWants::Cookie(cookie, mask) => {
                    verdict.rules.iter().any(|rule| (rule.spec.cookie ^ cookie) & mask == 0)
                }
                // It is known afterwards.
                TapWants::Queue(_) | TapWants::Expired => {
                    may_hit = true;
                    false
                }
            };
            // The rate is asked here, so that what is above it is not copied.
            if hits && tapper.fair.admit(now_ns, source.ingress.port) {
                note.hit |= 1 << at;
            } else if hits {
                tapper.counts.limited.fetch_add(1, Relaxed);
            }
        }
        let as_it_came = all.iter().any(|tapper| !tapper.spec.after);
        if note.kept.is_none() && (note.hit != 0 || may_hit) && !stays(verdict) && is_first && as_it_came {
            let most = all.iter().map(|tapper| tapper.spec.snap).max().unwrap_or(0);
            let (at, len) = (kept.len(), bytes.len().min(most));
            kept.extend_from_slice(&bytes[..len]);
            note.kept = Some((at, len));
        }
    }

    /// Tells those who listen of a frame with which all has been done.
    fn tell(&mut self, stage: &Stage, frame: usize, source: &Source, version: u64, now_ns: u64) {
        let Self { all, notes, kept } = self;
        let note = &notes[frame];
        let now = stage.frame(&stage.frames[frame]);
        for (at, tapper) in all.iter_mut().enumerate() {
            let late = match tapper.spec.wants {
                TapWants::Queue(queue) => Some(note.sent.as_slice().contains(&TapSent::Queue(queue))),
                TapWants::Expired => Some(note.is_expired),
                _ => None,
            };
            if let Some(hits) = late {
                if !hits {
                    continue;
                }
                if !tapper.fair.admit(now_ns, source.ingress.port) {
                    tapper.counts.limited.fetch_add(1, Relaxed);
                    continue;
                }
            } else if note.hit >> at & 1 == 0 {
                continue;
            }
            let (bytes, len) = match note.kept {
                Some((from, len)) if !tapper.spec.after => (&kept[from..from + len], note.len),
                _ => (now, now.len()),
            };
            let bytes = &bytes[..bytes.len().min(tapper.spec.snap)];
            let ingress = Ingress { tunnel: stage.frames[frame].tunnel, ..source.ingress };
            if !put(&mut tapper.producer, note, &ingress, version, bytes, len) {
                tapper.counts.lost.fetch_add(1, Relaxed);
            }
        }
    }
}

/// Puts a record into a ring, if there is room.
fn put(ring: &mut Producer<u8>, note: &Note, ingress: &Ingress, version: u64, bytes: &[u8], len: usize) -> bool {
    let (rules, sent) = (note.rules.as_slice(), note.sent.as_slice());
    let total = HEAD + rules.len() * 8 + sent.len() * 5 + bytes.len();
    let Ok(mut chunk) = ring.write_chunk(total) else { return false };
    let (front, back) = chunk.as_mut_slices();
    let mut room = Room { front, back };
    room.put(&(total as u32).to_le_bytes());
    room.put(&(len as u32).to_le_bytes());
    room.put(&unix_ns().to_le_bytes());
    room.put(&version.to_le_bytes());
    room.put(&ingress.port.to_le_bytes());
    room.put(&u32::from(ingress.queue).to_le_bytes());
    room.put(&(rules.len() as u32).to_le_bytes());
    room.put(&(sent.len() as u32).to_le_bytes());
    let known = ingress.tunnel.map_or(0, |tunnel| 1 + u32::from(tunnel.port.is_some()));
    let Tunnel { id, src, port } = ingress.tunnel.unwrap_or_default();
    [known, id, src, port.unwrap_or(0)].iter().for_each(|word| room.put(&word.to_le_bytes()));
    rules.iter().for_each(|rule| room.put(&rule.to_le_bytes()));
    for one in sent {
        let (kind, number) = one.words();
        room.put(&[kind]);
        room.put(&number.to_le_bytes());
    }
    room.put(bytes);
    chunk.commit_all();
    true
}

/// Two pieces of a ring, to be filled in order.
struct Room<'r> {
    front: &'r mut [u8],
    back: &'r mut [u8],
}

impl Room<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let (now, later) = bytes.split_at(bytes.len().min(self.front.len()));
        fill(&mut self.front, now);
        fill(&mut self.back, later);
    }
}

fn fill(room: &mut &mut [u8], bytes: &[u8]) {
    let (now, later) = std::mem::take(room).split_at_mut(bytes.len());
    now.copy_from_slice(bytes);
    *room = later;
}
