//! A queue pair: its two halves, who may speak to it, and how it fails.

use super::rate::Rate;
use super::requester::Requester;
use super::responder::Responder;
use super::{Capabilities, Environment, Event, Init, Options, Origin, Out, State};
use crate::local::{Connected, Far};
use crate::memory::{Asker, Kept, Memory};
use crate::number::{Key, Moment, Psn, Qpn};
use crate::wire::{Format, Headers, Opcode, Packet, Path, Service};
use crate::work::{Access, Completion, Data, Operation, Request, Status};

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A packet went out.
    Sent,
    /// A request was done without packets, at the cost of so many.
    Reached(u32),
    /// There is nothing to send, or not yet.
    Idle,
    /// There is no room for a packet.
    Full,
    /// There is no room for a packet of this one.
    Blocked,
    /// The queue pair has failed.
    Broken,
}

/// The queue pair cannot go on. Whoever found out has told why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// What a queue pair was told.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub init: Init,
    pub asker: Asker,
    pub state: State,
    pub access: Access,
    pub qkey: u32,
    pub path: Path,
    /// Payload of a packet is at most two to this power.
    pub mtu_shift: u32,
    pub remote: Qpn,
    pub receive_psn: Psn,
    pub send_psn: Psn,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub notify_drained: bool,
    /// The other end has said that it does selective repeat, and so do we.
    pub extended: bool,
    /// The other end has sent something, and has not said that: it is not told any more that this end does.
    pub is_stranger: bool,
    /// The process at the other end has ended.
    pub is_alone: bool,
}

pub(crate) const PKEY: u16 = 0xffff;

impl Config {
    pub fn new(number: Qpn, init: &Init, granted: Capabilities) -> Self {
        Self {
            init: Init { capabilities: granted, ..*init },
            asker: Asker { domain: init.domain, qpn: number },
            state: State::Reset,
            access: Access::default(),
            qkey: 0,
            path: NOWHERE,
            mtu_shift: 10,
            remote: Qpn::new(0),
            receive_psn: Psn::new(0),
            send_psn: Psn::new(0),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            notify_drained: false,
            extended: false,
            is_stranger: false,
            is_alone: false,
        }
    }

    #[inline]
    pub fn number(&self) -> Qpn {
        self.asker.qpn
    }

    #[inline]
    pub fn mtu(&self) -> u32 {
        1 << self.mtu_shift
    }

    /// Packets of a message of `len` bytes.
    #[inline]
    pub fn packets(&self, len: u32) -> u32 {
        (len.div_ceil(self.mtu())).max(1)
    }

    /// Headers of a packet to the other end.
    #[inline]
    pub fn headers(&self, opcode: Opcode, psn: Psn, options: &Options) -> Headers {
        let mut headers = Headers::new(self.init.service, opcode, self.remote, psn);
        headers.extended = self.says_extended(options);
        headers
    }

    /// Whether packets say that this end does selective repeat.
    #[inline]
    pub fn says_extended(&self, options: &Options) -> bool {
        options.extended && !self.is_stranger && self.init.service == Service::ReliableConnection
    }

    /// A packet of the other end says whether it does selective repeat. Once it has, that holds; notifications of congestion do not say it.
    #[inline]
    fn meet(&mut self, options: &Options, headers: &Headers) {
        let says = headers.service == Service::ReliableConnection && headers.opcode != Opcode::CongestionNotification;
        if says && options.extended && !self.extended {
            (self.extended, self.is_stranger) = (headers.extended, !headers.extended);
        }
    }

    /// Whether a packet comes from the other end of the connection. RoCE v2 goes through routers, which send from
    /// addresses of their own; the other formats do not.
    #[inline]
    pub(super) fn is_from_peer(&self, origin: &Origin) -> bool {
        let (a, b) = (&self.path, &origin.path);
        a.format == b.format
            && a.source == b.source
            && a.destination == b.destination
            && (a.format == Format::RoceV2 || a.destination_mac == b.destination_mac)
    }
}

const NOWHERE: Path = Path {
    format: Format::RoceV2,
    source_mac: [0; 6],
    destination_mac: [0; 6],
    source: crate::number::Gid([0; 16]),
    destination: crate::number::Gid([0; 16]),
    hop_limit: 0,
    traffic_class: 0,
    flow_label: 0,
    source_port: 0,
};

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub config: Config,
    pub requester: Requester,
    pub responder: Responder,
    pub rate: Option<Box<Rate>>,
    /// Whose it is, of several programs.
    pub group: u32,
    /// It is in the list of those that may have something to send.
    pub scheduled: bool,
    /// The last packet was an answer.
    pub has_answered: bool,
    /// It has sent short SENDs since its timers were looked at.
    pub is_late: bool,
    /// Where its WRITEs go, when two in a row went to the same region.
    pub kept: Option<Kept>,
    /// The region that the last one went to.
    pub wrote_to: Key,
    /// What has not ended of it ends in later turns.
    pub flushing: bool,
    /// Behind that it tells that it takes no more buffers,
    tells_last: bool,
    /// and this, of a request that was never in its queue.
    pub behind: Option<(u32, Completion)>,
}

impl QueuePair {
    /// In the state RESET.
    pub fn new(config: Config, group: u32, requester: Requester, responder: Responder) -> Self {
        Self {
            config,
            requester,
            responder,
            rate: None,
            group,
            scheduled: false,
            has_answered: false,
            is_late: false,
            kept: None,
            wrote_to: Key::default(),
            flushing: false,
            tells_last: false,
            behind: None,
        }
    }
}

impl QueuePair {
    /// One packet that came for it.
    #[inline]
    pub fn receive<M: Memory>(&mut self, env: &mut Environment<'_, M>, packet: &Packet<'_>, origin: &Origin) {
        let headers = &packet.headers;
        if headers.opcode == Opcode::CongestionNotification {
            return self.notified(env, origin);
        }
        if headers.service != self.config.init.service {
            env.counters.wrong_service += 1;
            return;
        }
        // The upper bit says who is a full member; two limited ones must not speak (volume 1, 10.9.3). Ours is full.
        if headers.pkey & 0x7fff != PKEY & 0x7fff {
            env.counters.wrong_pkey += 1;
            return;
        }
        if headers.service == Service::UnreliableDatagram {
            return self.datagram(env, packet, origin);
        }
        // Before RTR it knows no other end.
        if matches!(self.config.state, State::Reset | State::Init) {
            env.counters.wrong_state += 1;
            return;
        }
        if !self.config.is_from_peer(origin) {
            env.counters.wrong_address += 1;
            return;
        }
        self.take_from_peer(env, packet, origin);
    }

    fn datagram<M: Memory>(&mut self, env: &mut Environment<'_, M>, packet: &Packet<'_>, origin: &Origin) {
        if matches!(self.config.state, State::Reset | State::Init | State::Error) {
            env.counters.wrong_state += 1;
            return;
        }
        if origin.congested {
            env.counters.congested += 1;
        }
        self.responder.datagram(&self.config, env, packet, origin);
    }

    fn take_from_peer<M: Memory>(&mut self, env: &mut Environment<'_, M>, packet: &Packet<'_>, origin: &Origin) {
        let headers = &packet.headers;
        self.config.meet(env.options, headers);
        if origin.congested || headers.fecn_becn.0 {
            env.counters.congested += 1;
            self.responder.congested(env.now);
        }
        if headers.fecn_becn.1 {
            self.slow_down(env);
        }
        let done = match headers.opcode {
            Opcode::ReadResponse(_) | Opcode::Acknowledge | Opcode::AtomicAcknowledge => self.answer(env, packet),
            _ => self.request(env, packet),
        };
        if done.is_err() {
            self.fail(env);
        }
    }

    #[inline]
    fn answer<M: Memory>(&mut self, env: &mut Environment<'_, M>, packet: &Packet<'_>) -> Result<(), Broken> {
        let sends = matches!(self.config.state, State::ReadyToSend | State::Drained);
        if !sends || packet.headers.service != Service::ReliableConnection {
            env.counters.wrong_state += 1;
            return Ok(());
        }
        self.requester.answer(&self.config, env, packet)?;
        self.look_drained(env);
        Ok(())
    }

    #[inline]
    fn request<M: Memory>(&mut self, env: &mut Environment<'_, M>, packet: &Packet<'_>) -> Result<(), Broken> {
        match self.config.state {
            State::ReadyToReceive | State::ReadyToSend | State::Drained | State::SendError => {}
            State::Error => {
                env.counters.wrong_state += 1;
                self.responder.say_again(packet.headers.psn);
                return Ok(());
            }
            _ => {
                env.counters.wrong_state += 1;
                return Ok(());
            }
        }
        if self.config.state == State::ReadyToReceive && !self.responder.established {
            self.responder.established = true;
            env.events.add(Event::Established(self.config.number()));
            self.show(env.memory);
        }
        if packet.headers.service == Service::ReliableConnection {
            self.responder.request(&self.config, env, packet)
        } else {
            self.responder.unreliable(&self.config, env, packet);
            Ok(())
        }
    }

    /// One packet, if there is one to send.
    #[inline]
    pub fn step<M: Memory, O: Out>(&mut self, env: &mut Environment<'_, M>, out: &mut O) -> Step {
        // In turns: who reads and reads must not keep this end from asking.
        let asks_first = core::mem::replace(&mut self.has_answered, false);
        let mut step = if asks_first { self.ask(env, out) } else { Step::Idle };
        if step == Step::Idle {
            step = self.tell(env, out);
            self.has_answered = step == Step::Sent;
        }
        if step == Step::Idle && !asks_first {
            step = self.ask(env, out);
        }
        if step == Step::Broken {
            self.fail(env);
        }
        step
    }

    /// Tells the other end something. What it reads is paced as what it is sent.
    #[inline]
    fn tell<M: Memory, O: Out>(&mut self, env: &mut Environment<'_, M>, out: &mut O) -> Step {
        let is_reading = self.responder.is_reading();
        if is_reading
            && let Some(rate) = &mut self.rate
            && !rate.may_send(env.now)
        {
            return Step::Idle;
        }
        let before = env.counters.sent_bytes;
        let step = self.responder.step(&self.config, env, out);
        if is_reading
            && step == Step::Sent
            && let Some(rate) = &mut self.rate
        {
            rate.sent(env.now, env.counters.sent_bytes - before);
        }
        step
    }

    fn ask<M: Memory, O: Out>(&mut self, env: &mut Environment<'_, M>, out: &mut O) -> Step {
        if !matches!(self.config.state, State::ReadyToSend | State::Drained) {
            return Step::Idle;
        }
        if let Some(rate) = &mut self.rate
            && !rate.may_send(env.now)
        {
            return Step::Idle;
        }
        if self.config.init.service == Service::UnreliableDatagram {
            // What was not begun does not begin in the state SQD.
            if self.config.state != State::ReadyToSend {
                self.look_drained(env);
                return Step::Idle;
            }
            return self.requester.datagram(&self.config, env, out);
        }
        let before = env.counters.sent_bytes;
        let step = self.requester.step(&self.config, env, out);
        if step == Step::Sent
            && let Some(rate) = &mut self.rate
        {
            rate.sent(env.now, env.counters.sent_bytes - before);
        }
        self.look_drained(env);
        step
    }

    /// What was taken from the other end is acknowledged once more. Returns whether there is anything to be said.
    pub fn acknowledge_again(&mut self) -> bool {
        self.acknowledges() && self.responder.acknowledge_again()
    }

    /// The same at once, before the end.
    pub fn say_last<M: Memory, O: Out>(&mut self, env: &mut Environment<'_, M>, out: &mut O) -> Step {
        if self.acknowledges() { self.responder.say_last(&self.config, env, out) } else { Step::Idle }
    }

    fn acknowledges(&self) -> bool {
        let is_reliable = self.config.init.service == Service::ReliableConnection;
        is_reliable && matches!(self.config.state, State::ReadyToReceive | State::ReadyToSend | State::Drained)
    }

    /// A time has come.
    pub fn expire<M: Memory>(&mut self, env: &mut Environment<'_, M>) {
        if matches!(self.config.state, State::ReadyToSend | State::Drained)
            && self.requester.expire(&self.config, env).is_err()
        {
            self.fail(env);
        }
    }

    /// When something is to be done without a packet.
    #[inline]
    pub fn deadline(&self, now: Moment) -> Option<Moment> {
        let sends = matches!(self.config.state, State::ReadyToSend | State::Drained);
        let own = if sends { self.requester.deadline() } else { None };
        let has_bulk = self.responder.is_reading() || sends && self.requester.has_more();
        let paced = self.rate.as_ref().filter(|_| has_bulk).and_then(|rate| rate.later(now));
        match (own, paced) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// What cannot go on: requests end, and what comes is not taken any more. Of unreliable ones only the send queue
    /// fails (volume 1, 10.3.1.6).
    pub fn fail<M: Memory>(&mut self, env: &mut Environment<'_, M>) {
        self.hide(env.memory);
        if self.config.init.service == Service::ReliableConnection || self.config.state == State::Error {
            self.config.state = State::Error;
            self.flush_all(env);
        } else {
            self.config.state = State::SendError;
            self.flush(env);
        }
    }

    /// Fails altogether, whatever kind it is.
    pub fn break_down<M: Memory>(&mut self, env: &mut Environment<'_, M>) {
        if self.config.state != State::Reset {
            self.hide(env.memory);
            self.config.state = State::Error;
            self.flush_all(env);
        }
    }

    /// Whether it may ask without packets: all that it has asked has ended.
    #[inline]
    pub fn may_reach(&self) -> bool {
        self.config.state == State::ReadyToSend && self.requester.is_idle()
    }

    /// Where it asks.
    #[inline]
    pub fn far(&self) -> Far<'_> {
        let config = &self.config;
        Far { asker: config.asker, path: &config.path, remote: config.remote }
    }

    /// A request was just done at the other end without packets: where the next one like it goes is kept, for those that are short.
    #[inline]
    pub fn keep<M: Memory>(&mut self, memory: &mut M, request: &Request<'_>) {
        let (Operation::Write { address, rkey, .. }, Data::Inline(_)) = (request.operation, request.data) else {
            return;
        };
        if core::mem::replace(&mut self.wrote_to, rkey) == rkey {
            self.kept = memory.keep(&self.far(), rkey, address);
        }
    }

    /// Lets the other end reach memory without packets, or not any more, as its state has it. In the state RTR what comes
    /// first is told (`Event::Established`), and so comes as a packet.
    pub fn show<M: Memory>(&self, memory: &mut M) {
        let config = &self.config;
        let is_open = match config.state {
            State::ReadyToSend | State::Drained => true,
            State::ReadyToReceive => self.responder.established,
            _ => false,
        };
        let mut access = config.access;
        if config.max_dest_rd_atomic == 0 {
            access.0 &= !(Access::REMOTE_READ.0 | Access::REMOTE_ATOMIC.0);
        }
        let connected = Connected { path: &config.path, remote: config.remote, access };
        if config.init.service != Service::UnreliableDatagram {
            memory.show(config.asker, Some(&connected).filter(|_| is_open));
        }
    }

    /// Nobody reaches memory by it without packets any more.
    pub fn hide<M: Memory>(&self, memory: &mut M) {
        if self.config.init.service != Service::UnreliableDatagram {
            memory.show(self.config.asker, None);
        }
    }

    /// Its oldest request has failed.
    pub fn fail_first<M: Memory>(&mut self, env: &mut Environment<'_, M>, status: Status) {
        self.requester.fail_first(&self.config, env, status);
        self.fail(env);
    }

    /// The process at the other end has ended: what waits for its answers does not get any.
    pub fn lose<M: Memory>(&mut self, env: &mut Environment<'_, M>) {
        let is_connected = !matches!(self.config.state, State::Reset | State::Init | State::Error);
        if self.config.init.service != Service::ReliableConnection || !is_connected {
            return;
        }
        self.config.is_alone = true;
        let sends = matches!(self.config.state, State::ReadyToSend | State::Drained);
        if sends && self.requester.give_up(&self.config, env).is_err() {
            self.fail(env);
        }
    }

    /// It has failed: ends everything that waits.
    pub fn flush_all<M>(&mut self, env: &mut Environment<'_, M>) {
        self.tells_last = self.config.init.shared_receive_queue.is_some();
        self.flush(env);
    }

    /// Ends what waits, of a queue pair that has failed, as much of it as may end now; it is known who goes on later.
    pub fn flush<M>(&mut self, env: &mut Environment<'_, M>) {
        let mut is_over = self.requester.flush(&self.config, env);
        if self.config.state == State::Error {
            is_over &= self.responder.flush(&self.config, env);
        }
        if !is_over {
            if !core::mem::replace(&mut self.flushing, true) {
                env.flushes.add(self.group, self.config.number());
            }
            return;
        }
        self.flushing = false;
        if let Some((queue, completion)) = self.behind.take() {
            env.complete(queue, completion);
        }
        if core::mem::take(&mut self.tells_last) {
            env.events.add_once(Event::LastBufferReached(self.config.number()));
        }
    }

    /// Forgets everything, without telling.
    pub fn reset<M>(&mut self, env: &mut Environment<'_, M>) {
        self.config.state = State::Reset;
        (self.flushing, self.tells_last, self.behind) = (false, false, None);
        (self.config.extended, self.config.is_stranger) = (false, false);
        self.rate = None;
        self.requester.begin(Psn::new(0), &self.config);
        self.requester.queue.clear();
        self.responder.reset(env.pool);
    }

    pub(super) fn look_drained<M>(&mut self, env: &mut Environment<'_, M>) {
        if self.config.state == State::Drained && self.config.notify_drained && !self.requester.has_begun() {
            self.config.notify_drained = false;
            env.events.add(Event::SendQueueDrained(self.config.number()));
        }
    }

    fn notified<M>(&mut self, env: &mut Environment<'_, M>, origin: &Origin) {
        if self.config.init.service == Service::UnreliableDatagram || !self.config.is_from_peer(origin) {
            env.counters.wrong_address += 1;
            return;
        }
        env.counters.notifications_received += 1;
        self.slow_down(env);
    }

    fn slow_down<M>(&mut self, env: &mut Environment<'_, M>) {
        if env.options.rate_control {
            let now = env.now;
            self.rate.get_or_insert_with(|| Box::new(Rate::new(now, env.options.line_rate))).cut(now);
        }
    }
}
