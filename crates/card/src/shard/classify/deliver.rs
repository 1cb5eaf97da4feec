//! From targets to rings: each target gets its frames of a burst together, in order.

use super::counts::What;
use super::crossing::Outward;
use super::run::FIRST_TO_LAST;
use super::{BURST, Classifying, Counted, Out};
use crate::shard::slots::{Parked, Target};
use crate::shard::state::Shard;
use crate::tsu::Stamper;
use millrace_abi::header::RxMetadata;
use millrace_dma::Span;
use millrace_port::DropReason;
use std::ops::Range;

/// What a delivery needs besides the frames.
pub(super) struct Delivery<'d> {
    pub shard: &'d mut Shard,
    pub outward: &'d mut Outward,
    pub counted: &'d mut Counted,
    /// Room for frames that wait, from the last time.
    pub spare: &'d mut Option<Box<Parked>>,
    /// Where frames lie that are dropped because there is no room, at most as many as it has room for.
    pub lost: &'d mut Vec<u32>,
    /// Index of the port at which the frames came in.
    pub port: usize,
    pub came: Came,
}

/// Who says when frames came.
#[derive(Clone, Copy)]
pub(super) enum Came {
    /// The clock of their port: they came in at this worker.
    Here,
    /// The worker at which they came in, if frames were stamped there. The clock of their port is not looked at here.
    Elsewhere(Option<RxMetadata>),
}

impl Came {
    fn stamp(self, stamper: &mut Stamper) -> Option<RxMetadata> {
        match self {
            Self::Here => RxMetadata::decode(stamper.metadata()),
            Self::Elsewhere(stamp) => stamp,
        }
    }
}

/// What becomes of frames for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Patience {
    /// They are dropped.
    None,
    /// They wait if all frames of the burst have one target; otherwise they are dropped, so that they hold nobody back.
    IfAlone,
    /// The same, and those for queues that do not run yet wait, too.
    UntilRunning,
}

impl Classifying {
    /// Gives what is on the stage to whom it is for. What has to wait is added to `parked`.
    pub(super) fn deliver(
        &mut self,
        shard: &mut Shard,
        port: usize,
        patience: Patience,
        parked: &mut Option<Box<Parked>>,
    ) {
        let mut delivery = Delivery {
            shard,
            outward: &mut self.crossings.outward,
            counted: &mut self.counted,
            spare: &mut self.spare,
            lost: &mut self.lost,
            port,
            came: Came::Here,
        };
        delivery.deliver(self.stage.bytes(), &self.outs, patience, parked);
        if !self.lost.is_empty() {
            self.count_lost();
        }
        let version = self.classifier.newest_version();
        parked.iter_mut().for_each(|parked| parked.version = version);
        self.outs.clear();
    }

    /// As [`Classifying::deliver`], for copies of how a frame was between changes.
    pub(super) fn deliver_copies(&mut self, shard: &mut Shard, port: usize) {
        let mut delivery = Delivery {
            shard,
            outward: &mut self.crossings.outward,
            counted: &mut self.counted,
            spare: &mut self.spare,
            lost: &mut self.lost,
            port,
            came: Came::Here,
        };
        delivery.deliver(self.emissions.copies(), &self.copies, Patience::None, &mut None);
        // They lie elsewhere, and count with their target.
        self.lost.clear();
        self.copies.clear();
    }

    /// A frame on the stage counts as lost for the rules that it has met last.
    #[cold]
    pub(super) fn lose(&mut self, frame: usize) {
        if !self.has_looked_up {
            return;
        }
        let id = if self.is_later { self.later[frame] } else { self.verdicts[frame] };
        self.classifier.lose(id, 1);
    }

    /// Frames on the stage for which there was no room count for the rules that they have met.
    #[cold]
    fn count_lost(&mut self) {
        let mut lost = std::mem::take(&mut self.lost);
        for at in lost.drain(..) {
            let frame = self.stage.frames.iter().position(|frame| frame.at == at as usize);
            if let Some(frame) = frame {
                self.lose(frame);
            }
        }
        // With its room.
        self.lost = lost;
    }

    /// Tries again with frames that wait. Returns whether any has gone; none is left in `parked` when all have.
    pub(in crate::shard) fn retry(&mut self, shard: &mut Shard, port: usize, parked: &mut Option<Box<Parked>>) -> bool {
        let Some(mut waiting) = parked.take() else { return false };
        // What waits until a queue runs does so under the rules that have said so.
        if waiting.until_running && waiting.version != self.classifier.newest_version() {
            self.lose_parked(Some(waiting));
            return true;
        }
        let patience = if waiting.until_running { Patience::UntilRunning } else { Patience::IfAlone };
        let before = waiting.frames.len();
        let mut delivery = Delivery {
            shard,
            outward: &mut self.crossings.outward,
            counted: &mut self.counted,
            spare: &mut self.spare,
            lost: &mut self.lost,
            port,
            came: Came::Here,
        };
        delivery.deliver_waiting(&mut waiting, patience);
        // The rules that they have met are not known any more.
        self.lost.clear();
        self.counted.publish();
        let has_moved = waiting.frames.len() < before;
        if waiting.frames.is_empty() {
            waiting.bytes.clear();
            waiting.until_running = false;
            self.spare = Some(waiting);
        } else {
            *parked = Some(waiting);
        }
        has_moved
    }

    /// Frames that waited are gone with their source.
    pub fn lose_parked(&mut self, parked: Option<Box<Parked>>) {
        self.counted.add(What::SourceGone, parked.map_or(0, |parked| parked.frames.len() as u64));
        self.counted.publish();
    }
}

impl Delivery<'_> {
    /// Gives `outs`, which lie in `bytes`, to whom they are for. What has to wait is added to `parked`.
    pub fn deliver(&mut self, bytes: &[u8], outs: &[Out], patience: Patience, parked: &mut Option<Box<Parked>>) {
        // No more than a burst may wait.
        let is_alone = || outs.len() <= BURST && outs.iter().all(|out| out.target == outs[0].target);
        let waits = |target: Target| match patience {
            Patience::None => false,
            Patience::UntilRunning if matches!(target, Target::Queue(_)) => outs.len() <= BURST,
            // On its way here, which does not take long.
            Patience::IfAlone if matches!(target, Target::Queue(_) | Target::Port { .. }) => outs.len() <= BURST,
            Patience::IfAlone | Patience::UntilRunning => is_alone(),
        };
        outs.chunks(BURST).for_each(|outs| self.deliver_burst(bytes, outs, patience, waits, parked));
    }

    fn deliver_burst(
        &mut self,
        bytes: &[u8],
        outs: &[Out],
        patience: Patience,
        waits: impl Fn(Target) -> bool,
        parked: &mut Option<Box<Parked>>,
    ) {
        let groups = Groups::of(outs);
        let mut spans = [Span::from_slice(&[]); BURST];
        for (span, &at) in spans.iter_mut().zip(&groups.order[..outs.len().min(BURST)]) {
            let out = &outs[usize::from(at)];
            *span = Span::from_slice(&bytes[out.at as usize..(out.at + out.len) as usize]);
        }
        for of_one in groups.ranges() {
            let target = outs[usize::from(groups.order[of_one.start])].target;
            let spans = &spans[of_one];
            let taken = self.give(target, patience, spans);
            if taken < spans.len() {
                // What the slow path has no room for must not go where it was to go behind it.
                if waits(target) && !self.outward.is_slow(target) {
                    let parked = parked.get_or_insert_with(|| self.spare.take().unwrap_or_default());
                    parked.until_running |= patience == Patience::UntilRunning;
                    park(parked, self.shard.by_number(target), &spans[taken..]);
                } else {
                    self.drop_for_room(target, &spans[taken..]);
                    let room = self.lost.capacity() - self.lost.len();
                    let same = outs.iter().filter(|out| out.target == target).skip(taken);
                    self.lost.extend(same.take(room).map(|out| out.at));
                }
            }
        }
    }

    /// Gives frames that wait to whom they are for. Those for which there is no room stay where they are.
    fn deliver_waiting(&mut self, waiting: &mut Parked, patience: Patience) {
        let Parked { bytes, frames, .. } = waiting;
        let (mut at, mut kept) = (0, 0);
        while at < frames.len() {
            let target = frames[at].0;
            let mut spans = [Span::from_slice(&[]); BURST];
            let mut count = 0;
            for (_, begin, len) in frames[at..].iter().take(BURST).take_while(|frame| frame.0 == target) {
                spans[count] = Span::from_slice(&bytes[*begin as usize..(begin + len) as usize]);
                count += 1;
            }
            // Nothing overtakes what stays.
            let is_behind = frames[..kept].iter().any(|frame| frame.0 == target);
            let taken = if is_behind { 0 } else { self.give(target, patience, &spans[..count]) };
            frames.copy_within(at + taken..at + count, kept);
            (at, kept) = (at + count, kept + count - taken);
        }
        frames.truncate(kept);
    }

    /// Gives frames to a target, and returns how many it has taken.
    #[inline]
    fn give(&mut self, target: Target, patience: Patience, frames: &[Span<'_>]) -> usize {
        match target {
            Target::Rx(at) => self.give_to_rx(at as usize, frames),
            Target::PortQueue(at) => self.give_to_port_queue(at as usize, frames),
            Target::Queue(_) | Target::Port { .. } => self.give_by_number(target, patience, frames),
            Target::Unplugged(port) => {
                let mac = &mut self.shard.ports[port as usize].mac;
                mac.refresh();
                mac.count_sent(mac.lets_out(), false, frames.len() as u64, bytes_of(frames));
                frames.len()
            }
            Target::FarRx { worker, .. } | Target::FarPort { worker, .. } => {
                // What leaves at a port needs no stamp.
                let is_received = matches!(target, Target::FarRx { .. });
                let stamper = &mut self.shard.ports[self.port].mac.stamper;
                let stamp = if is_received { self.came.stamp(stamper) } else { None };
                let taken = self.outward.send(worker, target, self.port, stamp, frames);
                let what = if self.outward.is_slow(target) { What::PuntNeighbour } else { What::Crossed };
                self.counted.add(what, taken as u64);
                taken
            }
        }
    }

    /// One that did not run, or was not here, when the frames came.
    #[cold]
    fn give_by_number(&mut self, target: Target, patience: Patience, frames: &[Span<'_>]) -> usize {
        let found = match target {
            Target::Queue(queue) if patience == Patience::UntilRunning && !self.shard.homes.rx_runs(queue) => None,
            Target::Queue(queue) => self.shard.rx_target(queue),
            Target::Port { port, number } => Some(self.shard.port_queue_target(port, number)),
            _ => None,
        };
        match found {
            None | Some(Target::Queue(_) | Target::Port { .. }) => 0,
            Some(found) => self.give(found, patience, frames),
        }
    }

    #[inline]
    fn give_to_rx(&mut self, at: usize, frames: &[Span<'_>]) -> usize {
        let Shard { rx, ports, .. } = &mut *self.shard;
        let Some(queue) = rx.get_mut(at) else { return frames.len() };
        queue.begin();
        let taken = match self.came {
            Came::Here => queue.offer_burst(ports[self.port].mac.stamper.metadata(), frames),
            Came::Elsewhere(None) => queue.offer_burst(&[], frames),
            Came::Elsewhere(Some(stamp)) => queue.offer_burst(&stamp.encode(), frames),
        };
        // The one to the stage, or to the crossing.
        queue.count_copies(taken as u64);
        queue.finish();
        self.shard.touch_rx(at);
        taken
    }

    #[inline]
    fn give_to_port_queue(&mut self, at: usize, frames: &[Span<'_>]) -> usize {
        let Shard { port_queues, ports, .. } = &mut *self.shard;
        let Some(port_queue) = port_queues.get_mut(at) else { return frames.len() };
        let mac = &mut ports[port_queue.port].mac;
        mac.refresh();
        if !mac.lets_out() || mac.rules.looped {
            mac.count_sent(false, true, frames.len() as u64, bytes_of(frames));
            return frames.len();
        }
        let taken = port_queue.queue.transmit_burst(frames).taken;
        port_queue.queue.flush();
        if taken > 0 {
            mac.count_sent(true, true, taken as u64, bytes_of(&frames[..taken]));
        }
        taken
    }

    #[cold]
    fn drop_for_room(&mut self, target: Target, frames: &[Span<'_>]) {
        let count = frames.len() as u64;
        match target {
            Target::Rx(at) => {
                if let Some(queue) = self.shard.rx.get_mut(at as usize) {
                    queue.drop_for_room(frames);
                    queue.finish();
                }
            }
            Target::PortQueue(at) => {
                if let Some(port_queue) = self.shard.port_queues.get_mut(at as usize) {
                    self.shard.ports[port_queue.port].mac.count_sent(true, true, count, bytes_of(frames));
                    port_queue.queue.counters().count_tx_drops(DropReason::NoRoom, count);
                }
            }
            Target::Queue(queue) if !self.shard.homes.rx_runs(queue) => self.counted.add(What::NotRunning, count),
            Target::Queue(_) | Target::Port { .. } => self.counted.add(What::Moved, count),
            Target::Unplugged(_) => {}
            target if self.outward.is_slow(target) => self.counted.add(What::Neighbour, count),
            Target::FarRx { .. } | Target::FarPort { .. } => self.counted.add(What::CrossingFull, count),
        }
    }
}

/// Who gets frames of a burst, in the order of their first ones, and which: those of one target together, in their order.
///
/// Found by a table of hashes and not by comparing each with each: which of several queues a frame is for cannot be foreseen, and each
/// comparison that goes wrong would cost the processor a dozen cycles.
struct Groups {
    count: usize,
    /// By group, where its frames begin in `order`; behind the last group, where they all end.
    begins: [u8; BURST + 1],
    /// Frames.
    order: [u8; BURST],
}

/// In a place that is free.
const FREE: u8 = u8::MAX;
/// Places for the hashes of targets: few meet in one.
const PLACES: usize = 2 * BURST;
const _: () = assert!(BURST < FREE as usize);

impl Groups {
    /// Of at most a burst of frames.
    #[inline]
    fn of(outs: &[Out]) -> Self {
        let mut all = Self { count: 1, begins: [0; BURST + 1], order: FIRST_TO_LAST };
        let outs = &outs[..outs.len().min(BURST)];
        let Some(first) = outs.first() else { return Self { count: 0, ..all } };
        if outs.iter().all(|out| out.target == first.target) {
            all.begins[1] = outs.len() as u8;
            return all;
        }
        let (mut group_of, mut counts) = ([0u8; BURST], [0u8; BURST]);
        all.count = Self::number(outs, &mut group_of, &mut counts);
        let mut next = [0u8; BURST];
        let mut begin = 0;
        for (group, count) in counts[..all.count].iter().enumerate() {
            (all.begins[group], next[group]) = (begin, begin);
            begin += count;
        }
        all.begins[all.count] = begin;
        for (at, group) in group_of[..outs.len()].iter().enumerate() {
            let place = &mut next[usize::from(*group) % BURST];
            all.order[usize::from(*place) % BURST] = at as u8;
            *place += 1;
        }
        all
    }

    /// Gives each target a number in the order of their first frames. Returns how many there are.
    #[inline(always)]
    fn number(outs: &[Out], group_of: &mut [u8; BURST], counts: &mut [u8; BURST]) -> usize {
        // Spreads neighbours, as queues of a group are, over places without a collision.
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let (mut places, mut ids, mut count) = ([FREE; PLACES], [0; BURST], 0);
        for (out, group_of) in outs.iter().zip(group_of) {
            let id = out.target.id();
            let mut place = (id.wrapping_mul(ODD) >> (64 - PLACES.ilog2())) as usize;
            let group = loop {
                let found = &mut places[place % PLACES];
                if *found == FREE {
                    *found = count as u8;
                    ids[count] = id;
                    count += 1;
                }
                if ids[usize::from(*found) % BURST] == id {
                    break *found;
                }
                place += 1;
            };
            *group_of = group;
            counts[usize::from(group) % BURST] += 1;
        }
        count
    }

    /// Where the frames of each group are in `order`.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.begins[..=self.count].windows(2).map(|ends| usize::from(ends[0])..usize::from(ends[1]))
    }
}

fn bytes_of(frames: &[Span<'_>]) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}

#[cold]
fn park(parked: &mut Parked, target: Target, frames: &[Span<'_>]) {
    for frame in frames {
        let at = parked.bytes.len();
        parked.bytes.resize(at + frame.len(), 0);
        frame.read_into(&mut parked.bytes[at..]);
        parked.frames.push((target, at as u32, frame.len() as u32));
    }
}
