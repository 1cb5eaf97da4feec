//! What moves: the engine, its link, and who is to be told.

use super::card::InCard;
use super::events::Events;
use super::frames::{Frames, Maker, Rings, copy};
use super::local::Sessions;
use super::memory::Reach;
use super::stages::{Stage, Stages, stamp};
use super::tap::Way;
use crate::abi::AsyncEvent;
use crate::address::Address;
use crate::boundary::ticks;
use millrace_link::{Given, Link};
use millrace_rdma::engine::{Engine, Event};
use millrace_rdma::neighbour::Neighbours;
use millrace_rdma::number::{Gid, Key, Moment, Qpn};
use millrace_rdma::transport::Origin;
use millrace_rdma::wire::{Counters, Service, parse};
use millrace_rdma::work::{Completion, Ended, Piece, Request};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Weak};

/// Frames that are looked at, and packets that are sent, at one call.
const BURST: usize = 64;

/// Where events of an object go, and what the program knows the object by.
#[derive(Clone)]
pub(crate) struct Told<E> {
    pub events: Arc<Events<E>>,
    pub object: u64,
}

pub(crate) struct Running {
    pub engine: Engine<Reach>,
    pub neighbours: Neighbours,
    pub channels: HashMap<u32, Told<u64>>,
    pub queues: HashMap<u32, Told<AsyncEvent>>,
    pub pairs: HashMap<Qpn, Told<AsyncEvent>>,
    pub shared: HashMap<u32, Told<AsyncEvent>>,
    /// None with the engine in the card.
    pub(super) link: Option<Link>,
    /// The engine in the card: then the one here has nothing to do.
    pub card: Option<InCard>,
    maker: Maker,
    /// Other processes that are reached without frames.
    pub sessions: Sessions,
    address: Address,
    /// Frames that were no packets, by reason.
    reasons: Counters,
    /// Frames with packets for somebody else.
    foreign: u64,
    /// Frames with packets of a VLAN.
    tagged: u64,
    /// Questions and answers about neighbours for which there was no room.
    unsent: u64,
    /// The card takes and brings nothing any more, and what needed it has failed.
    is_down: bool,
    /// What took how long, with `profile=`.
    pub stages: Option<Box<Stages>>,
    /// Where asynchronous events of the open contexts go.
    contexts: Vec<Weak<Events<AsyncEvent>>>,
}

/// `IBV_EVENT_DEVICE_FATAL`.
pub(crate) const DEVICE_FATAL: u32 = 8;

impl Running {
    pub fn new(engine: Engine<Reach>, link: Option<Link>, card: Option<InCard>, address: Address) -> Self {
        let own = vec![Gid::from_ip(address.ip), Gid::link_local(address.mac)];
        let mut neighbours = Neighbours::new(address.mac, own);
        neighbours.announce();
        let (channels, queues, pairs, shared) = Default::default();
        let maker = Maker::new(address.mac);
        let (reasons, foreign, tagged, unsent) = (Counters::default(), 0, 0, 0);
        let sessions = Sessions::new(address);
        Self {
            engine,
            neighbours,
            channels,
            queues,
            pairs,
            shared,
            link,
            card,
            maker,
            sessions,
            address,
            reasons,
            foreign,
            tagged,
            unsent,
            is_down: false,
            stages: None,
            contexts: Vec::new(),
        }
    }

    /// Takes what has come, sends what is to be sent. Returns whether there was anything.
    #[inline]
    pub fn progress(&mut self, now: Moment) -> bool {
        if self.card.is_some() {
            return self.tell_of_card();
        }
        self.engine.memory().regions.sync_if_behind();
        let came = self.receive(now);
        let sent = self.send(now);
        self.tell_all();
        came + sent > 0
    }

    /// Asynchronous events of a context go there, too.
    pub fn add_context(&mut self, events: &Arc<Events<AsyncEvent>>) {
        self.contexts.retain(|context| context.strong_count() > 0);
        self.contexts.push(Arc::downgrade(events));
    }

    /// Whether the card has gone.
    pub fn is_down(&self) -> bool {
        self.is_down || self.card.as_ref().is_some_and(InCard::has_gone)
    }

    /// Asynchronous events that are about the whole device.
    pub(super) fn tell_contexts(&self, event_type: u32) {
        for context in self.contexts.iter().filter_map(Weak::upgrade) {
            context.add(AsyncEvent { element: 0, event_type });
        }
    }

    /// The card has gone, once. What needs it fails now: nobody will answer. What goes by other processes of this host goes on.
    #[cold]
    fn take_down(&mut self, now: Moment, error: &str) {
        if core::mem::replace(&mut self.is_down, true) {
            return;
        }
        crate::boundary::say(format_args!(
            "{error}. Queue pairs that need the card have failed; what goes to other processes of this host goes on. \
             Start the card (`millrace card`) and open the device again"
        ));
        self.fail_lost_pairs(now);
        self.tell_contexts(DEVICE_FATAL);
    }

    /// Without the card, queue pairs that have no other way fail.
    pub fn fail_lost_pairs(&mut self, now: Moment) {
        let Self { engine, sessions, address, is_down, .. } = self;
        if *is_down {
            engine.break_pairs(now, |service, path| {
                let is_own = path.destination_mac == address.mac && service != Service::UnreliableDatagram;
                let is_near = service != Service::UnreliableDatagram && sessions.way(path).session.is_some();
                !is_own && !is_near
            });
            self.tell_all();
        }
    }

    /// Takes what other processes of this host have sent, and answers it, without a look at the card. Returns whether there was
    /// anything.
    #[inline]
    pub fn glance(&mut self, now: impl Fn() -> Moment) -> bool {
        if !self.sessions.has_some() {
            return false;
        }
        self.engine.memory().regions.sync_if_behind();
        let mut asked = None;
        let mut now = || *asked.get_or_insert_with(&now);
        let since = moment(self.stages.as_deref(), &self.sessions);
        let came = self.sessions.receive(&mut now, &mut self.engine);
        taken(&mut self.stages, since, came);
        if !self.engine.is_quiet() {
            let now = now();
            self.send(now);
            self.tell_all();
        }
        came > 0
    }

    /// Sends what is to be sent, without a look at what has come.
    #[inline]
    pub fn send_what_there_is(&mut self, now: Moment) {
        self.engine.memory().regions.sync_if_behind();
        self.send(now);
        self.tell_all();
    }

    /// Says to other processes and to the card that nobody looks any more. Returns what is readable when the card brings
    /// something (nothing, if it has gone), and when the protocol is to be looked at all the same; `None`: something is there already.
    pub fn doze(&mut self) -> Option<(Option<OwnedFd>, Option<Moment>)> {
        // Short SENDs are not answered: nobody rings when they were done.
        if !self.sessions.doze() || !self.engine.is_quiet() || self.sessions.has_unsettled() {
            return None;
        }
        // A queue that cannot say so is looked at as often as before.
        let call = if self.is_down { None } else { Some(self.link.as_mut()?.announce()?) };
        // Nobody is asked for any more without a card.
        let due = if self.is_down { None } else { self.neighbours.next_due() };
        let first = self.engine.next_deadline().into_iter().chain(due).min();
        Some((call, first))
    }

    /// How other ends were reached, for `report=on`.
    pub fn report(&mut self) -> String {
        if let Some(card) = &self.card {
            let without = card.without_room().map_or_else(String::new, |count| {
                format!("; {count} blocks had no room in the memory that can be registered")
            });
            return format!("{} moves the bytes; what it counts: {}{without}", card.engine(), card.counts_at());
        }
        let Sessions { sent, received, short_sent, short_received, dropped, malformed, put_out, .. } = &self.sessions;
        let reached = self.engine.memory().peers.counts();
        let unshared = self.engine.memory().shares.refused;
        let engine = self.engine.counters();
        format!(
            "requests without packets: {} by mappings, {} by system calls; {} that went as packets, because no way without them leads there; regions beyond those that can be mapped: \
             {unshared}; packets by rings: {sent} sent, {received} received, \
             {short_sent} and {short_received} of them short SENDs, {dropped} dropped, {malformed} malformed, {put_out} processes put out; packets: {} sent, {} received, {} again",
            reached.mapped, reached.system, reached.refused, engine.sent, engine.received, engine.repeated
        )
    }

    /// Tells of all that has happened.
    #[inline]
    pub fn tell_all(&mut self) {
        while let Some(event) = self.engine.take_event() {
            self.tell(event);
        }
    }

    /// Sessions end whose process stays inside of this one's memory.
    pub fn put_out(&mut self, now: Moment) {
        let before = self.sessions.put_out;
        self.sessions.put_out(&mut self.engine, now);
        if self.sessions.put_out > before {
            crate::boundary::say(format_args!(
                "a process of this host stayed inside of this one's memory too long, too often: frames go to it from now on"
            ));
            self.tell_all();
        }
    }

    /// Learns which short SENDs to other processes of this host were done.
    pub fn settle(&mut self) {
        self.sessions.settle(&mut self.engine);
    }

    /// Wakes other processes of this host to which something was posted.
    #[inline]
    pub fn wake(&mut self) {
        self.sessions.wake();
    }

    /// Posts a request to a send queue.
    #[inline(never)]
    pub fn post_send(&mut self, number: Qpn, request: &Request<'_>) -> Result<(), i32> {
        self.post_known(number, request)
    }

    /// The same where the compiler knows the operation: most of the questions have answers then.
    #[inline(always)]
    pub fn post_known(&mut self, number: Qpn, request: &Request<'_>) -> Result<(), i32> {
        match &mut self.card {
            None => {
                let Self { engine, maker, sessions, .. } = self;
                let mut rings = Rings { maker, sessions };
                engine.post_send_near(number, request, &mut rings).map_err(|error| error.errno())
            }
            Some(card) => card.post_send(number, request),
        }
    }

    /// Does a WRITE as the one before it ([`Engine::write_again`]), or gives a short one to the card; false: it is to be posted.
    #[inline(always)]
    pub fn write_again(&mut self, number: Qpn, id: u64, to: (u64, Key), bytes: &[u8], signaled: bool) -> bool {
        match &mut self.card {
            None => self.engine.write_again(number, id, to, bytes, signaled),
            Some(card) => card.write_short(number, id, to, bytes, signaled),
        }
    }

    /// Whether all of these would be taken. What is wrong with one of them is told later if the card is to take it.
    pub fn would_post<'r>(&mut self, number: Qpn, all: impl Iterator<Item = Request<'r>> + Clone) -> Result<(), i32> {
        match &mut self.card {
            None => self.engine.would_post(number, all).map_err(|error| error.errno()),
            Some(card) => card.would_post(number, all),
        }
    }

    /// Posts a buffer.
    pub fn post_receive(&mut self, number: Qpn, id: u64, pieces: &[Piece]) -> Result<(), i32> {
        match &mut self.card {
            None => self.engine.post_receive(number, id, pieces).map_err(|error| error.errno()),
            Some(card) => card.post_receive(number, id, pieces),
        }
    }

    /// Posts a buffer to a shared receive queue.
    pub fn post_shared(&mut self, shared: u32, id: u64, pieces: &[Piece]) -> Result<(), i32> {
        match &mut self.card {
            None => self.engine.post_srq_receive(shared, id, pieces).map_err(|error| error.errno()),
            Some(card) => card.post_shared(shared, id, pieces),
        }
    }

    /// The next completion makes an event.
    pub fn arm(&mut self, queue: u32, solicited_only: bool) -> Result<(), i32> {
        match &mut self.card {
            None => self.engine.arm(queue, solicited_only).map_err(|error| error.errno()),
            Some(card) => card.arm(queue, solicited_only),
        }
    }

    /// Whether there is a completion.
    #[inline]
    pub fn has_completions(&self, queue: u32) -> bool {
        match &self.card {
            None => self.engine.has_completions(queue),
            Some(card) => card.has_completions(queue),
        }
    }

    /// Takes completions, `most` of them. How many they were.
    #[inline]
    pub fn poll(&mut self, queue: u32, most: usize, mut each: impl FnMut(&Completion)) -> Result<usize, i32> {
        let Self { engine, card, stages, .. } = self;
        let each = |completion: &Completion| {
            if stages.is_some() && completion.ended == Ended::Receive {
                stamp(stages, Stage::Polled);
            }
            each(completion);
        };
        match card {
            None => Ok(engine.take_completions(queue, most, each)),
            Some(card) => card.poll(queue, most, each),
        }
    }

    /// Whether nothing that was asked for waits for the protocol to move on.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.engine.is_quiet()
    }

    #[inline]
    fn receive(&mut self, now: Moment) -> usize {
        let Self {
            link, engine, neighbours, reasons, foreign, tagged, address, maker, sessions, is_down, stages, ..
        } = self;
        let since = moment(stages.as_deref(), sessions);
        let by_rings = sessions.receive(&mut || now, engine);
        taken(stages, since, by_rings);
        let tap = &mut sessions.tap;
        let mut handle = |frame: &[u8]| match parse(frame) {
            // This end is in no VLAN; a tag with nothing but a priority is none.
            Ok((_, from)) if from.tag.is_some_and(|tag| tag.id() != 0) => *tagged += 1,
            Ok((packet, from)) if from.back.source_mac == address.mac => {
                let origin = Origin::of(&packet, &from);
                engine.receive(now, &packet, &origin);
            }
            Ok(_) => *foreign += 1,
            Err(_) if neighbours.hear(now, frame) => say_conflict(neighbours),
            Err(reason) => reasons.count(reason),
        };
        let mut take = |frame: &[u8]| {
            copy(tap, Way::Came, frame);
            stamp(stages, Stage::Came);
            handle(frame);
            stamp(stages, Stage::Done);
        };
        let mut count = by_rings;
        let Some(link) = link else { return count };
        for _ in 0..maker.own.len() {
            let Some(frame) = maker.own.pop_front() else { break };
            take(&frame);
            count += 1;
        }
        if *is_down {
            return count;
        }
        match link.receive(BURST, take) {
            Ok(came) => count += came,
            Err(error) => self.take_down(now, &error),
        }
        count
    }

    #[inline]
    fn send(&mut self, now: Moment) -> usize {
        let Self { link, engine, neighbours, maker, sessions, unsent, is_down, stages, .. } = self;
        let since = stages.as_ref().map_or(0, |_| ticks());
        let Some(link) = link else { return 0 };
        let mut frames = Frames::new(now, Some(&mut *link).filter(|_| !*is_down), maker, sessions);
        let mut sent = engine.transmit(now, BURST, &mut frames);
        let mut has_framed = frames.has_framed;
        sessions.wake();
        if *is_down {
            return sent;
        }
        let has_sent = sent > 0;
        neighbours.tick(now);
        while let Some(frame) = neighbours.take_frame() {
            let given = link.give(frame.len(), |to| {
                to.copy_from_slice(&frame);
                copy(&mut sessions.tap, Way::Sent, &frame);
                Ok::<_, Infallible>(())
            });
            // Whoever asks or is asked does so again.
            match given {
                Given::Taken => (sent, has_framed) = (sent + 1, true),
                _ => *unsent += 1,
            }
        }
        // The card is woken only for what it is to take.
        if has_framed && let Err(error) = link.flush() {
            self.take_down(now, &error);
        }
        if has_sent && let Some(stages) = &mut self.stages {
            stages.add_at(since, Stage::Begun);
            stages.add(Stage::Sent);
        }
        sent
    }

    /// Frames that were no packets for this end, by reason, and packets that no frame could be made of.
    pub fn frames(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = self.reasons.pairs().collect();
        all.extend([
            ("foreign", self.foreign),
            ("tagged", self.tagged),
            ("unbuildable", self.maker.unbuildable),
            ("unsent", self.unsent),
        ]);
        let counts = self.neighbours.counts();
        all.extend([
            ("neighbours_unasked", counts.unasked),
            ("neighbours_conflicts", counts.conflicts),
            ("neighbours_dropped", counts.dropped),
            ("neighbours_evicted", counts.evicted),
        ]);
        all
    }

    /// Bytes that this process has copied: between regions and packets, to and from regions of others, requests' own bytes into the
    /// queue, into rings and out of them, into frames of a port and out of them.
    pub fn copied(&mut self) -> [(&'static str, u64); 5] {
        let memory = self.engine.memory();
        let (regions, reached) = (memory.regions.counters().copied, memory.peers.counts().bytes);
        let port = self.link.as_ref().map_or(0, Link::copied);
        [
            ("regions", regions),
            ("reached", reached),
            ("inline", self.engine.counters().inline_copied),
            ("rings", self.sessions.copied),
            ("port", port),
        ]
    }

    /// What the port has counted, where there is no card.
    pub fn port(&self) -> Vec<(String, u64)> {
        self.link.as_ref().map(Link::counters).unwrap_or_default()
    }

    pub(super) fn tell(&mut self, event: Event) {
        let (told, number) = match event {
            Event::Completion(queue) => {
                if let Some(told) = self.channels.get(&queue) {
                    told.events.add(told.object);
                }
                return;
            }
            Event::CompletionQueueError(queue) => (self.queues.get(&queue), 0),
            Event::QueuePairFatal(pair) => (self.pairs.get(&pair), 1),
            Event::RequestError(pair) => (self.pairs.get(&pair), 2),
            Event::AccessError(pair) => (self.pairs.get(&pair), 3),
            Event::Established(pair) => (self.pairs.get(&pair), 4),
            Event::SendQueueDrained(pair) => (self.pairs.get(&pair), 5),
            Event::SharedReceiveLimit(queue) => (self.shared.get(&queue), 15),
            Event::SharedReceiveError(queue) => (self.shared.get(&queue), 14),
            Event::LastBufferReached(pair) => (self.pairs.get(&pair), 16),
        };
        if let Some(told) = told {
            told.events.add(AsyncEvent { element: told.object, event_type: number });
        }
    }
}

/// Somebody else has the address of this end, which is said once.
#[cold]
fn say_conflict(neighbours: &mut Neighbours) {
    if let Some((gid, mac)) = neighbours.take_conflict() {
        let [a, b, c, d, e, f] = mac;
        crate::boundary::say(format_args!(
            "somebody else has the address of this end, too: {} at {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}. What is sent to it goes to one \
             of both: give each an address of its own (ip=ADDRESS in MILLRACE_VERBS)",
            address(gid)
        ));
    }
}

/// An address as users write it.
pub(super) fn address(gid: Gid) -> IpAddr {
    Ipv6Addr::from(gid.0).to_canonical()
}

/// Now, if stamps are made and another process of this host has sent something; otherwise 0.
#[inline]
fn moment(stages: Option<&Stages>, sessions: &Sessions) -> u64 {
    stages.filter(|_| sessions.has_some()).map_or(0, |_| ticks())
}

/// What came at one look, if something did, and when that began.
#[inline]
fn taken(stages: &mut Option<Box<Stages>>, since: u64, came: usize) {
    if came > 0
        && let Some(stages) = stages
    {
        // 0: it came a moment ago.
        stages.add_at(if since == 0 { ticks() } else { since }, Stage::Came);
        stages.add(Stage::Done);
    }
}
