//! One burst, from the stage to its targets.

use super::counts::What;
use super::deliver::Patience;
use super::stage::{Stage, StageTarget};
use super::{BURST, Classifying};
use crate::flows::coarse_ns;
use crate::mac::MacLane;
use crate::shard::sink::MacSink;
use crate::shard::slots::{Parked, Steady, Target};
use crate::shard::state::Shard;
use millrace_dma::Span;
use millrace_flow::Ingress;
use millrace_flow::field::LOCAL;
use millrace_packet::offload::Offloads;
use millrace_port::{Accept, PortQueue};
use millrace_ring::FrameSink;

/// Rules' counters are brought up to date so often while frames come.
const SHOW_INTERVAL_NS: u64 = 4_000_000;

/// Work of a burst after which the next has fewer frames: some tens of microseconds.
const MUCH: u32 = 512;

/// The places of all frames of a burst.
pub(super) const FIRST_TO_LAST: [u8; BURST] = {
    let mut all = [0; BURST];
    let mut at = 0;
    while at < BURST {
        all[at] = at as u8;
        at += 1;
    }
    all
};

/// Where frames go that no rule concerns.
#[derive(Clone, Copy)]
pub(in crate::shard) enum Normal {
    To(Target),
    /// Nowhere: there is no such queue.
    Nowhere,
}

/// Where a burst comes from.
pub(in crate::shard) struct Source {
    /// Whether a program sends it.
    pub is_program: bool,
    /// Index of the port whose clock stamps the frames.
    pub port: usize,
    pub ingress: Ingress,
    /// Whether it can wait.
    pub patience: Patience,
    /// To whom it has given its last frames.
    pub steady: Steady,
    /// Without rules.
    pub normal: Normal,
    /// To the host, for what its slow path gets.
    pub host: Normal,
    /// Out where it came in, for `in_port`.
    pub back: Normal,
}

impl Classifying {
    /// Takes a burst from a port queue, through its MAC. Returns how many frames were taken.
    #[inline]
    pub fn receive(&mut self, from: &mut dyn PortQueue, mac: &mut MacLane) -> usize {
        self.stage.clear();
        let MacLane { rules, rx: receiver, stamper, .. } = mac;
        let behind = StageTarget { stage: &mut self.stage, stamper };
        let burst = self.burst;
        from.receive(burst, &mut MacSink { rules, receiver, waits: true, offloads: Offloads::NONE, behind })
    }

    /// What takes a burst from a TX ring that loops back, through the MAC.
    #[inline]
    pub fn looped<'s>(&'s mut self, mac: &'s mut MacLane) -> impl FrameSink + 's {
        self.stage.clear();
        let MacLane { rules, rx: receiver, .. } = mac;
        let stage = &mut self.stage;
        move |frame: Span<'_>| receiver.admit(rules, frame, true, |frame| stage.hold(frame))
    }

    /// What takes a burst from a TX ring.
    #[inline]
    pub fn staged(&mut self) -> impl FrameSink + '_ {
        self.stage.clear();
        let stage: &mut Stage = &mut self.stage;
        move |frame: Span<'_>| -> Accept { stage.hold(frame) }
    }

    /// Classifies what is on the stage and gives it to whom it is for. What has to wait comes back.
    pub(in crate::shard) fn run(&mut self, shard: &mut Shard, source: &Source) -> Option<Box<Parked>> {
        if self.neighbours.is_some() {
            self.overhear(source);
        }
        let count = self.stage.frames.len();
        if count == 0 {
            return None;
        }
        self.now_ns = coarse_ns();
        // What no rule looks at is not looked for. Rules and keys are of one version then.
        let quic = self.classifier.begin().then_some(0);
        let ingress = Ingress { quic, ..source.ingress };
        // One behind the other, since what was just written byte by byte would be read as words.
        for (frame, layers) in self.stage.frames.iter().zip(self.layers.iter_mut()) {
            layers.find(self.stage.frame(frame));
        }
        for (frame, (layers, key)) in self.stage.frames.iter().zip(self.layers.iter().zip(self.keys.iter_mut())) {
            key.take(self.stage.frame(frame), layers, &ingress);
        }
        if source.is_program && self.classifier.wants_sent() {
            self.tell_quic(source);
        }
        self.outs.clear();
        self.is_later = false;
        self.has_looked_up = source.ingress.port != LOCAL || self.classifier.looks_at_local();
        if !self.has_looked_up {
            (0..count).for_each(|frame| self.pass(source, frame));
        } else {
            self.counted.add(What::Classified, count as u64);
            self.classifier.lookup_again(0, &self.keys[..count], &mut self.verdicts[..]);
            if self.taps.is_some() {
                self.decide_heard(shard, source, &FIRST_TO_LAST[..count], true);
            } else {
                self.decide_all(shard, source, &FIRST_TO_LAST[..count]);
            }
        }
        let mut parked = None;
        self.only = None;
        self.send_out(shard, source, &mut parked);
        // Each time round the first of them goes on to a later table, of which there are 64.
        while !self.pending.is_empty() {
            self.look_further(shard, source);
            self.send_out(shard, source, &mut parked);
        }
        self.counted.publish();
        if self.now_ns - self.shown_ns >= SHOW_INTERVAL_NS {
            self.show();
        }
        parked
    }

    /// Delivers what was decided. Frames with new headers are about to change further, so what is to go out as it is goes now; then
    /// there is more than one lot, and only those wait whose queue does not run yet.
    fn send_out(&mut self, shard: &mut Shard, source: &Source, parked: &mut Option<Box<Parked>>) {
        let is_whole = self.pending.is_empty() && parked.is_none();
        let patience = if source.patience == Patience::IfAlone && !is_whole { Patience::None } else { source.patience };
        self.work += self.outs.len() as u32;
        let only = self.outs.first().map(|out| out.target);
        let is_alone = is_whole && self.outs.iter().all(|out| Some(out.target) == only);
        self.only = only.filter(|_| is_alone).map(|only| shard.by_number(only));
        // Who sends to several holds none of them back, whichever is full.
        let patience = match patience {
            Patience::IfAlone if !source.steady.is_with(self.only) => Patience::None,
            Patience::UntilRunning if !source.steady.is_with(self.only) && source.steady.has_begun() => Patience::None,
            patience => patience,
        };
        self.deliver(shard, source.port, patience, parked);
    }

    /// Frames to be taken at once.
    pub fn burst(&self) -> usize {
        self.burst
    }

    /// What the last burst has cost besides its frames and bytes, as a frame counts 1.
    pub fn take_work(&mut self) -> u32 {
        self.burst = if self.work > MUCH { (self.burst / 2).max(1) } else { (self.burst * 2).min(BURST) };
        std::mem::take(&mut self.work)
    }

    /// The only target of the last burst, by number, if it had only one.
    pub fn only(&self) -> Option<Target> {
        self.only
    }

    /// Tells the QUIC groups what a program sends: ids of connections that lead back to it.
    #[cold]
    fn tell_quic(&mut self, source: &Source) {
        let tables = self.classifier.newest();
        for (frame, layers) in self.stage.frames.iter().zip(self.layers.iter()) {
            tables.sent(self.now_ns, layers, self.stage.frame(frame), source.ingress.queue);
        }
        self.work += millrace_flow::quic::take_cost();
    }
}
