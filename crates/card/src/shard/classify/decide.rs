//! From the verdict on a frame to who gets it.

use super::counts::What;
use super::deliver::Patience;
use super::environment::OnWorker;
use super::run::{Normal, Source};
use super::slow::Place;
use super::stage::Staged;
use super::{BURST, Classifying, Out};
use crate::shard::slots::Target;
use crate::shard::state::Shard;
use millrace_flow::Ingress;
use millrace_flow::action::Action;
use millrace_flow::execute::{self, Bytes, Frame, Stop, change, execute};
use millrace_flow::field::LOCAL;
use millrace_flow::key::Key;
use millrace_flow::neighbour::Reader;
use millrace_flow::table::{Again, VerdictId};

/// Most actions of one frame, over all tables: what has more is dropped there.
const MOST_ACTIONS: usize = 256;

/// A frame with new headers that is looked up again.
pub(super) struct Pending {
    /// Which one on the stage.
    pub(super) frame: usize,
    table: u8,
    key: Key,
}

/// Where a frame goes that somebody gets at most.
#[derive(Clone, Copy)]
enum Next {
    Queue(u16),
    Port(u32),
    /// Out where it came in, which takes an action of its own.
    Reflected,
    Table(Again),
}

/// A frame that has been changed.
struct Changed {
    at: usize,
    /// How that ended; `None`: it was to be changed too often.
    done: Option<Result<(), Stop>>,
    waits: bool,
}

impl Classifying {
    /// What becomes of frames on the stage, one behind the other, that have one verdict: what it says is looked at once.
    #[inline]
    pub(super) fn decide(&mut self, shard: &mut Shard, source: &Source, frames: &[u8], id: VerdictId) {
        let bytes = frames.iter().map(|&frame| self.stage.frames[usize::from(frame)].len() as u64).sum();
        self.classifier.count(id, frames.len() as u64, bytes, self.now_ns);
        let verdict = self.classifier.verdict(id);
        // Those whose addresses somebody has to fill in go past the slow path.
        if self.neighbours.is_some() && frames.iter().any(|&frame| self.stage.frames[usize::from(frame)].waits) {
            return frames.iter().for_each(|&frame| self.execute(shard, source, frame.into(), id));
        }
        // Perhaps out of the port of a card to which they came in a tunnel that is a port of its own: they are not sent back there.
        let may_return = match verdict.actions.last() {
            Some(Action::Output(port)) => *port == source.ingress.port,
            Some(Action::Balance(_)) => true,
            _ => false,
        };
        if may_return && frames.iter().any(|&frame| self.stage.frames[usize::from(frame)].tunnel.is_some()) {
            return frames.iter().for_each(|&frame| self.execute(shard, source, frame.into(), id));
        }
        let frames = frames.iter().map(|&frame| usize::from(frame));
        match &verdict.actions[..] {
            [] if verdict.again.is_none() && verdict.normal => frames.for_each(|frame| self.pass(source, frame)),
            [] if verdict.again.is_none() => self.counted.add(What::Dropped, frames.len() as u64),
            // What is more is for frames that change, or that several get.
            _ if verdict.again.is_some() || verdict.normal => self.edit(shard, source, frames, id),
            &[Action::Queue(queue)] => frames.for_each(|frame| self.send_to_queue(shard, source, queue, frame)),
            &[Action::Output(port)] if port != source.ingress.port => {
                frames.for_each(|frame| self.send_to_port(shard, source, port, frame));
            }
            &[Action::Rss(group)] if self.is_by_outer(group) => {
                let queues = self.chosen(group, frames.clone());
                frames.zip(queues).for_each(|(frame, queue)| self.send_to_queue(shard, source, queue, frame));
            }
            &[Action::Balance(group)] if self.is_by_outer(group) => {
                let ports = self.chosen(group, frames.clone()).map(u32::from);
                frames.zip(ports).for_each(|(frame, port)| match port == source.ingress.port {
                    true => self.counted.add(What::Reflected, 1),
                    false => self.send_to_port(shard, source, port, frame),
                });
            }
            _ => self.edit(shard, source, frames, id),
        }
    }

    /// What such a group chooses for each of these frames, by its outer headers.
    fn chosen(&self, group: u32, frames: impl Iterator<Item = usize>) -> [u16; BURST] {
        let mut chosen = [0; BURST];
        if let Some(group) = self.classifier.tables().and_then(|tables| tables.group(group)) {
            chosen.iter_mut().zip(frames).for_each(|(chosen, at)| *chosen = group.queue_of(&self.keys[at]));
        }
        chosen
    }

    /// Whether there is such a group, for outer headers.
    fn is_by_outer(&self, group: u32) -> bool {
        let group = self.classifier.tables().and_then(|tables| tables.group(group));
        group.is_some_and(|group| !group.wants_inner())
    }

    /// Does what a verdict says to frames, in their place on the stage.
    fn edit(&mut self, shard: &mut Shard, source: &Source, mut frames: impl Iterator<Item = usize>, id: VerdictId) {
        if !self.classifier.verdict(id).single {
            return frames.for_each(|frame| self.execute(shard, source, frame, id));
        }
        let Some(next) = self.next_of(source, id) else { return };
        let target = match next {
            Next::Queue(queue) => self.ready_queue(shard, source, queue),
            Next::Port(port) => shard.port_queue_here(port, source.ingress.queue.into()).map(Target::PortQueue),
            Next::Table(_) | Next::Reflected => None,
        };
        // What is usual stays in there.
        while let Some(changed) = self.change(source, &mut frames, id, next, target) {
            self.pass_on(shard, source, changed, id, next);
        }
    }

    /// Where frames go with a verdict that is [`single`](millrace_flow::table::Verdict::single).
    fn next_of(&self, source: &Source, id: VerdictId) -> Option<Next> {
        let verdict = self.classifier.verdict(id);
        match (verdict.again, verdict.actions.last()) {
            (Some(again), _) => Some(Next::Table(again)),
            (None, Some(Action::Queue(queue))) => Some(Next::Queue(*queue)),
            (None, Some(Action::Output(port))) if *port == source.ingress.port => Some(Next::Reflected),
            (None, Some(Action::Output(port))) => Some(Next::Port(*port)),
            (None, _) => None,
        }
    }

    /// Changes frames as a single verdict says, and notes that `target` gets them, or that they are looked up again. Comes back with the
    /// first one for which that is not all.
    #[inline(always)]
    fn change(
        &mut self,
        source: &Source,
        frames: &mut impl Iterator<Item = usize>,
        id: VerdictId,
        next: Next,
        target: Option<Target>,
    ) -> Option<Changed> {
        let Self { classifier, stage, layers, keys, random, neighbours, outs, pending, .. } = self;
        let verdict = classifier.verdict(id);
        let tables = classifier.tables()?;
        let neighbours = neighbours.as_mut().map(Reader::table);
        // The last of them says who gets the frame.
        let changes = match next {
            Next::Table(_) => &verdict.actions[..],
            _ => verdict.actions.split_last().map_or(&[][..], |(_, changes)| changes),
        };
        for at in frames {
            let staged = stage.frames[at];
            let actions = staged.actions + verdict.actions.len();
            if actions > MOST_ACTIONS {
                return Some(Changed { at, done: None, waits: false });
            }
            self.work += verdict.actions.len() as u32;
            let ingress = Ingress { tunnel: staged.tunnel, ..source.ingress };
            let headroom = staged.at - staged.base;
            let mut frame = Frame::known(stage.room(&staged), headroom, staged.len(), ingress, &layers[at], &keys[at]);
            let mut environment = OnWorker { tables, random, now_ns: self.now_ns, neighbours, waits: staged.waits };
            let done = change(changes, &mut frame, &mut environment);
            let waits = environment.waits;
            let (place, tunnel) = (frame.place(), frame.ingress().tunnel);
            if let (Ok(()), Next::Table(again)) = (done, next) {
                let mut key = frame.key();
                again.resume(&mut key);
                layers[at] = frame.layers();
                pending.push(Pending { frame: at, table: again.table, key });
            }
            let staged = &mut stage.frames[at];
            staged.settle(place, tunnel, actions);
            staged.waits |= waits;
            match (done, next, target) {
                (Ok(()), Next::Table(_), _) => {}
                (Ok(()), _, Some(target)) if !waits => {
                    outs.push(Out { target, at: staged.at as u32, len: staged.len() as u32 });
                }
                _ => return Some(Changed { at, done: Some(done), waits }),
            }
        }
        None
    }

    /// Who gets a frame that was changed, where that is not the usual one.
    #[cold]
    fn pass_on(&mut self, shard: &Shard, source: &Source, changed: Changed, id: VerdictId, next: Next) {
        let Changed { at, done, waits } = changed;
        let Some(done) = done else {
            self.classifier.lose(id, 1);
            return self.counted.add(What::TooManyActions, 1);
        };
        if let Err(stop) = done {
            self.counted.stop(stop);
            if let Some(reason) = stop.reason() {
                self.counted.punt(reason);
                let target = self.normal(source.host);
                self.send_to(target, at);
            } else {
                self.classifier.lose(id, 1);
            }
            return;
        }
        match next {
            Next::Table(_) => {}
            Next::Queue(queue) => self.send_to_queue(shard, source, queue, at),
            Next::Reflected => self.counted.add(What::Reflected, 1),
            Next::Port(port) if waits => {
                let target = self.port(shard, source, port);
                let lies = self.stage.frames[at].at..self.stage.frames[at].end;
                let target = target.and_then(|target| self.past_slow_path(shard, target, (Place::Stage, lies)));
                if target.is_none() {
                    self.lose(at);
                }
                self.send_to(target, at);
            }
            Next::Port(port) => self.send_to_port(shard, source, port, at),
        }
    }

    /// The same for all verdicts.
    fn execute(&mut self, shard: &mut Shard, source: &Source, at: usize, id: VerdictId) {
        let staged = self.stage.frames[at];
        let ingress = Ingress { tunnel: staged.tunnel, ..source.ingress };
        let verdict = self.classifier.verdict(id);
        let Some(tables) = self.classifier.tables() else { return };
        let actions = staged.actions + verdict.actions.len();
        if actions > MOST_ACTIONS {
            self.classifier.lose(id, 1);
            return self.counted.add(What::TooManyActions, 1);
        }
        self.work += verdict.actions.len() as u32;
        let (normal, again) = (verdict.normal, verdict.again);
        let (lost, reflected) = (self.emissions.lost(), self.emissions.reflected());
        self.emissions.clear();
        let room = self.stage.room(&staged);
        let headroom = staged.at - staged.base;
        let mut frame = Frame::known(room, headroom, staged.len(), ingress, &self.layers[at], &self.keys[at]);
        let neighbours = self.neighbours.as_mut().map(Reader::table);
        let mut environment =
            OnWorker { tables, random: &mut self.random, now_ns: self.now_ns, neighbours, waits: staged.waits };
        let done = execute(&verdict.actions, &mut frame, &mut environment, &mut self.emissions);
        // A packet that begins a connection costs a hundred times as much as another one.
        self.work += millrace_flow::quic::take_cost();
        let waits = environment.waits;
        let place = frame.place();
        let tunnel = frame.ingress().tunnel;
        if let (Ok(()), Some(again)) = (done, again) {
            let mut key = frame.key();
            again.resume(&mut key);
            self.layers[at] = frame.layers();
            self.pending.push(Pending { frame: at, table: again.table, key });
        }
        self.stage.frames[at].settle(place, tunnel, actions);
        self.stage.frames[at].waits = waits;
        let now = self.stage.frames[at];
        if let Err(stop) = done {
            self.counted.stop(stop);
            if stop.reason().is_none() && stop != Stop::Mapped {
                self.classifier.lose(id, 1);
            }
        }
        let (lost, reflected) = (self.emissions.lost() - lost, self.emissions.reflected() - reflected);
        self.counted.add(What::Lost, lost);
        if lost > 0 {
            self.classifier.lose(id, 1);
        }
        self.counted.add(What::Reflected, reflected);
        if !self.emit(shard, source, &now, staged.waits) {
            self.classifier.lose(id, 1);
        }
        // Room for copies is needed for the next frame.
        if !self.copies.is_empty() {
            // What others of the flow have before comes before.
            let is_behind = |copy: &Out| self.outs.iter().any(|out| out.target == copy.target);
            if self.copies.iter().any(is_behind) {
                self.deliver(shard, source.port, Patience::None, &mut None);
            }
            self.work += self.copies.len() as u32;
            self.deliver_copies(shard, source.port);
        }
        let goes_on = done.is_ok() && again.is_none();
        if goes_on && normal {
            let target = self.normal(source.normal);
            let past = |target| {
                if waits { self.past_slow_path(shard, target, (Place::Stage, now.at..now.end)) } else { Some(target) }
            };
            if let Some(target) = target.and_then(past) {
                self.outs.push(Out { target, at: now.at as u32, len: now.len() as u32 });
            }
        } else if goes_on && self.emissions.list().is_empty() && lost + reflected == 0 {
            self.counted.add(What::Dropped, 1);
        }
    }

    /// Notes who gets the frame; whether all are there who should. Copies of how it was before are kept where they are until they have
    /// been delivered.
    ///
    /// Where `all_wait`, addresses of all of them have to be filled in, and otherwise of those that say so.
    fn emit(&mut self, shard: &Shard, source: &Source, frame: &Staged, all_wait: bool) -> bool {
        let (at, len) = (frame.at as u32, frame.len() as u32);
        let mut all = true;
        for index in 0..self.emissions.list().len() {
            let emission = self.emissions.list()[index].clone();
            let target = match emission.target {
                execute::Target::Queue { queue, .. } => self.queue(shard, source, queue),
                execute::Target::Port(port) if port == source.ingress.port => self.normal(source.back),
                execute::Target::Port(port) | execute::Target::Mirror(port) | execute::Target::Sample(port) => {
                    self.port(shard, source, port)
                }
                execute::Target::Punt(reason) => {
                    self.counted.punt(reason);
                    self.normal(source.host)
                }
            };
            let Some(mut target) = target else {
                all = false;
                continue;
            };
            if all_wait || emission.waits {
                let lies = match &emission.bytes {
                    Bytes::Frame => (Place::Stage, frame.at..frame.end),
                    Bytes::Original(range) | Bytes::Copy(range) => (Place::Copies, range.clone()),
                };
                let Some(past) = self.past_slow_path(shard, target, lies) else {
                    all = false;
                    continue;
                };
                target = past;
            }
            match emission.bytes {
                Bytes::Frame => self.outs.push(Out { target, at, len }),
                Bytes::Original(range) | Bytes::Copy(range) => {
                    self.copies.push(Out { target, at: range.start as u32, len: range.len() as u32 });
                }
            }
        }
        all
    }

    /// A frame that meets no rule because there is none for it.
    pub(super) fn pass(&mut self, source: &Source, frame: usize) {
        let target = self.normal(source.normal);
        self.send_to(target, frame);
    }

    #[inline]
    fn send_to(&mut self, target: Option<Target>, frame: usize) {
        let staged = &self.stage.frames[frame];
        if let Some(target) = target {
            self.outs.push(Out { target, at: staged.at as u32, len: staged.len() as u32 });
        }
    }

    /// The usual case by itself: a target that comes out of several cases is written in parts and read as a whole, which stalls.
    #[inline(always)]
    fn send_to_queue(&mut self, shard: &Shard, source: &Source, queue: u16, frame: usize) {
        let staged = &self.stage.frames[frame];
        match self.ready_queue(shard, source, queue) {
            Some(target) => self.outs.push(Out { target, at: staged.at as u32, len: staged.len() as u32 }),
            None => self.send_to_far_queue(shard, source, queue, frame),
        }
    }

    /// An RX queue here that can take frames of this source.
    #[inline(always)]
    fn ready_queue(&self, shard: &Shard, source: &Source, queue: u16) -> Option<Target> {
        let is_ready = source.patience != Patience::UntilRunning || shard.homes.rx_runs(queue.into());
        shard.rx_place(queue.into()).filter(|_| is_ready).map(|place| Target::Rx(place as u32))
    }

    #[cold]
    #[inline(never)]
    fn send_to_far_queue(&mut self, shard: &Shard, source: &Source, queue: u16, frame: usize) {
        let target = self.queue(shard, source, queue);
        if target.is_none() {
            self.lose(frame);
        }
        self.send_to(target, frame);
    }

    /// As [`Classifying::send_to_queue`].
    #[inline(always)]
    fn send_to_port(&mut self, shard: &Shard, source: &Source, port: u32, frame: usize) {
        let staged = &self.stage.frames[frame];
        match shard.port_queue_here(port, source.ingress.queue.into()) {
            Some(place) => {
                let target = Target::PortQueue(place);
                self.outs.push(Out { target, at: staged.at as u32, len: staged.len() as u32 });
            }
            None => self.send_to_far_port(shard, source, port, frame),
        }
    }

    #[cold]
    #[inline(never)]
    fn send_to_far_port(&mut self, shard: &Shard, source: &Source, port: u32, frame: usize) {
        let target = self.port(shard, source, port);
        if target.is_none() {
            self.lose(frame);
        }
        self.send_to(target, frame);
    }

    fn normal(&mut self, normal: Normal) -> Option<Target> {
        match normal {
            Normal::To(target) => Some(target),
            Normal::Nowhere => {
                self.counted.add(What::NoQueue, 1);
                None
            }
        }
    }

    /// An RX queue, here or with another worker.
    fn queue(&mut self, shard: &Shard, source: &Source, queue: u16) -> Option<Target> {
        let queue = u32::from(queue);
        let target = shard.rx_target(queue).map(|target| match source.patience {
            // A source that waits until its queue runs.
            Patience::UntilRunning if !shard.homes.rx_runs(queue) => Target::Queue(queue),
            _ => target,
        });
        if target.is_none() {
            self.counted.add(What::NoQueue, 1);
        }
        target
    }

    /// A port, or the host.
    fn port(&mut self, shard: &Shard, source: &Source, port: u32) -> Option<Target> {
        if port == LOCAL {
            return self.normal(source.host);
        }
        let target = shard.port_target(port, u32::from(source.ingress.queue));
        if target.is_none() {
            self.counted.add(What::NoPort, 1);
        }
        target
    }

    /// Looks the frames up whose turn it is, those of the first table that any goes on in, and decides.
    pub(super) fn look_further(&mut self, shard: &mut Shard, source: &Source) {
        let Some(table) = self.pending.iter().map(|pending| pending.table).min() else { return };
        let mut frames = [0u8; BURST];
        let mut keys = [Key::default(); BURST];
        let mut count = 0;
        self.pending.retain(|pending| {
            let now = pending.table == table;
            if now {
                (keys[count], frames[count], count) = (pending.key, pending.frame as u8, count + 1);
            }
            !now
        });
        // The version of the burst's first lookup: a transaction is seen whole or not at all.
        self.classifier.lookup_again(table, &keys[..count], &mut self.verdicts[..]);
        self.outs.clear();
        self.is_later = true;
        frames[..count].iter().zip(self.verdicts.iter()).for_each(|(&frame, id)| self.later[usize::from(frame)] = *id);
        // RSS looks for the key by the place of the frame.
        frames[..count].iter().zip(&keys).for_each(|(&frame, key)| self.keys[usize::from(frame)] = *key);
        if self.taps.is_some() {
            return self.decide_heard(shard, source, &frames[..count], false);
        }
        self.decide_all(shard, source, &frames[..count]);
    }

    /// What becomes of these frames, by their verdicts in the order of this list.
    pub(super) fn decide_all(&mut self, shard: &mut Shard, source: &Source, frames: &[u8]) {
        let mut at = 0;
        while at < frames.len() {
            let id = self.verdicts[at];
            let same = self.verdicts[at..frames.len()].iter().take_while(|verdict| **verdict == id).count();
            self.decide(shard, source, &frames[at..at + same], id);
            at += same;
        }
    }
}
