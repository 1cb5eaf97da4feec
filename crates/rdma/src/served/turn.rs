//! What the card does again and again: it takes work, moves the protocol on, and tells programs.

use super::mailbox::Switch;
use super::memory::Reach;
use super::service::{Number, PutOut, QueueOf, Scratch, Service};
use super::told;
use super::work::{ShortWrite, Work};
use crate::engine::{Engine, Error, Event};
use crate::number::{Moment, Qpn};
use crate::transport::{Attributes, Origin, Out, State};
use crate::wire::{Packet, Path, Service as Kind};
use crate::work::{Completion, Ended, Operation, Request, Status};
use core::time::Duration;
use millrace_ring::lines::Malformed;

/// Messages of a program in one turn, and bytes that may be copied for it.
const MESSAGES: usize = 64;
const BYTES: u64 = 1 << 20;
/// Packets in one turn: few, because completions of them are told after it.
const PACKETS: usize = 32;
/// Completion queues that are looked after in one turn.
const QUEUES: usize = 256;
/// Completions of a queue in one turn, and of all.
const COMPLETIONS: usize = 256;
const TOLD: usize = 4096;
/// Events in one turn.
const EVENTS: usize = 256;

/// Events of a program that wait for room in its ring: more than one for each of its objects.
const MOST_LATE: usize = 8192;
/// How soon it is looked whether there is room.
const LATE: Duration = Duration::from_millis(5);

/// How soon it is looked whether the wire has room.
const BLOCKED: Duration = Duration::from_millis(1);

/// What came of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Something was done: another turn is worth while.
    pub moved: bool,
    /// When the next one is to be, although nobody asks for anything.
    pub next: Option<Moment>,
}

impl Service {
    /// A packet has come from outside.
    pub fn receive(&mut self, now: Moment, packet: &Packet<'_>, from: &Origin) {
        // Packets between programs of this card never come from outside.
        if self.own.contains(&from.path.destination) {
            self.counters.forged += 1;
        } else if packet.headers.destination == Qpn::GENERAL {
            self.receive_general(now, packet, from);
        } else if !self.general.is_evaded(&packet.headers) {
            self.engine.receive(now, packet, from);
        }
    }

    /// Takes work of every program, up to a budget, moves the protocol on, and tells programs what came of it. Packets that go
    /// to other addresses go to `wire`.
    pub fn turn<O: Out>(&mut self, now: Moment, wire: &mut O) -> Turn {
        let refused_next = self.general.expire(now);
        self.first = (self.first + 1) % self.processes.capacity().max(1);
        let mut moved = self.take_all(&mut || now);
        moved |= self.engine.has_flushes();
        moved |= self.move_on(now, wire);
        self.look_at_full(now);
        moved |= self.tell();
        if !self.engine.memory().waits.is_empty() {
            self.charge_watched(now);
        }
        let mut next = self.engine.next_deadline();
        next = next.into_iter().chain(refused_next).min();
        // Programs do not say that a ring has room again.
        if self.tell_late() || self.engine.filled() > 0 || !self.full.is_empty() {
            let soon = now + LATE;
            next = Some(next.map_or(soon, |next| next.min(soon)));
        }
        if self.is_blocked {
            // Nobody says that the wire has room again.
            let soon = now + BLOCKED;
            next = Some(next.map_or(soon, |next| next.min(soon)));
        }
        Turn { moved, next }
    }

    /// Takes work of every program, as the first part of a turn; the time is asked for when it is needed. Whether there was some.
    #[inline]
    pub fn take(&mut self, mut now: impl FnMut() -> Moment) -> bool {
        self.take_all(&mut now)
    }

    /// Whether there is something to send or to tell, after [`Service::take`]: a turn does it.
    #[inline]
    pub fn wants_turn(&mut self) -> bool {
        let is_told = self.engine.filled() == 0 && self.put_out.is_empty() && self.bells.is_empty();
        let memory = self.engine.memory();
        let is_owed = !memory.waits.is_empty() || !memory.guessed.is_empty();
        !is_told || is_owed || !self.is_quiet()
    }

    /// Whether a turn would do something now. Times that are over, and rings that have room again, are not looked at: a turn is due
    /// now and then all the same.
    #[inline]
    pub fn has_something(&self) -> bool {
        self.processes.iter().any(|(_, process)| process.work.has_more()) || !self.is_quiet()
    }

    /// Whether there is nothing to send, or no room for it.
    fn is_quiet(&self) -> bool {
        // What has failed needs no wire to end.
        let is_blocked = self.is_blocked && !self.engine.has_flushes();
        (self.engine.is_quiet() || is_blocked) && self.mailbox.len() == 0 && self.general.answers.is_empty()
    }

    /// Asks all programs to ring when they want something. Whether the card may sleep until [`Turn::next`]: nothing has come
    /// meanwhile.
    pub fn doze(&mut self) -> bool {
        let nothing = self.processes.iter().fold(true, |nothing, (_, process)| process.work.doze() && nothing);
        let is_quiet = nothing && self.is_quiet();
        if !is_quiet {
            self.awake();
        }
        is_quiet
    }

    /// The card is awake: nobody needs to ring.
    pub fn awake(&mut self) {
        self.processes.iter().for_each(|(_, process)| process.work.awake());
    }

    fn take_all(&mut self, now: &mut dyn FnMut() -> Moment) -> bool {
        let count = self.processes.capacity();
        let mut moved = false;
        for step in 0..count {
            moved |= self.take_of(now, Number((self.first + step) % count));
        }
        moved
    }

    /// Takes work of one program, as much as a turn has. Whether there was some.
    fn take_of(&mut self, now: &mut dyn FnMut() -> Moment, program: Number) -> bool {
        // What has failed of it ends first: completions of what it asks for now would come before.
        let is_asking = self.processes.get(program.0).is_some_and(|process| process.work.has_more());
        if !is_asking || self.engine.is_flushing(program.0 as u32) {
            return false;
        }
        // Made once; it is away while a message is taken apart.
        let mut scratch = self.scratch.take().unwrap_or_default();
        let done = self.take_some(now, program, &mut scratch);
        self.scratch = Some(scratch);
        if done.is_err() {
            self.counters.malformed += 1;
            let left = self.leave(now(), program);
            self.put_out.push(PutOut { number: program, left, has_stalled: false });
        } else if let Some(process) = self.processes.get(program.0) {
            process.work.give_back();
        }
        true
    }

    fn take_some(
        &mut self,
        now: &mut dyn FnMut() -> Moment,
        program: Number,
        scratch: &mut Scratch,
    ) -> Result<(), Malformed> {
        let (mut count, mut copied) = (0, 0);
        while count < MESSAGES && copied < BYTES && !self.engine.is_flushing(program.0 as u32) {
            let Some(process) = self.processes.get_mut(program.0) else { break };
            let Some(len) = process.work.take(&mut scratch.words)? else { break };
            process.taken += 1;
            self.counters.taken += 1;
            count += 1;
            let words = &scratch.words[..len];
            if !self.write_again(program, words) {
                copied += scratch.apart.read(words, |work| self.do_one(now, program, work))?;
            }
        }
        Ok(())
    }

    /// Does a message that is a short WRITE to where the queue pair has written before. False: it is one as all others.
    #[inline]
    fn write_again(&mut self, program: Number, words: &[u64]) -> bool {
        let Some(short) = ShortWrite::read(words) else { return false };
        let is_own = self.pairs.get(&short.qpn).is_some_and(|of| of.owner == program);
        let (to, bytes) = ((short.address, short.rkey), &short.bytes[..short.len]);
        let is_done = is_own && self.engine.write_again(short.qpn, short.id, to, bytes, short.signaled);
        self.counters.again += u64::from(is_done);
        is_done
    }

    /// One message. Bytes that it may have copied.
    fn do_one(&mut self, now: &mut dyn FnMut() -> Moment, program: Number, work: &Work<'_>) -> u64 {
        match *work {
            Work::Send(qpn, ref request) => {
                if !self.has_pair(program, qpn) {
                    return 0;
                }
                // Nobody speaks for another address.
                let is_own = request.target.is_none_or(|target| self.is_own(&target.path));
                let mut post = |request| match self.general.is_one(qpn) {
                    true => self.post_general(now(), program, qpn, request),
                    false => self.engine.post_send(qpn, request),
                };
                if !is_own || post(request).is_err() {
                    self.refuse(qpn, request.id, request.operation.ended());
                }
                bytes_of(request)
            }
            Work::Receive(qpn, id, pieces) => {
                if self.has_pair(program, qpn) && self.engine.post_receive(qpn, id, pieces).is_err() {
                    self.refuse(qpn, id, Ended::Receive);
                }
                0
            }
            Work::ReceiveShared(shared, id, pieces) => {
                if self.shared.get(&shared).is_none_or(|(owner, _)| *owner != program) {
                    self.counters.strange += 1;
                } else if self.engine.post_srq_receive(shared, id, pieces).is_err() {
                    self.counters.refused += 1;
                    self.tell_of(Event::SharedReceiveError(shared), program);
                }
                0
            }
            Work::Arm { queue, solicited_only, taken } => {
                self.arm(program, queue, solicited_only, taken);
                0
            }
        }
    }

    /// Whether that is a way from the address of this card.
    pub(super) fn is_own(&self, path: &Path) -> bool {
        self.own.contains(&path.source) && path.source_mac == self.mac
    }

    fn has_pair(&mut self, program: Number, qpn: Qpn) -> bool {
        let has = self.pairs.get(&qpn).is_some_and(|of| of.owner == program);
        self.counters.strange += u64::from(!has);
        has
    }

    /// What the engine does not take is told as a completion, as hardware does, and the queue pair fails: what was posted before
    /// it ends before it.
    fn refuse(&mut self, qpn: Qpn, id: u64, ended: Ended) {
        self.counters.refused += 1;
        let Some(of) = self.pairs.get(&qpn).copied() else { return };
        // In the state RESET there is nothing to fail.
        if self.engine.query_qp(qpn).is_ok_and(|query| query.attributes.state != Some(State::Reset)) {
            let _: Result<State, Error> = self.engine.modify_qp(qpn, &Attributes::state(State::Error));
        }
        let queue = if ended == Ended::Receive { of.receive_queue } else { of.send_queue };
        let completion = Completion { id, status: Status::LocalOperation, ended, qpn, ..Completion::default() };
        // Behind those that were there before, and it wakes whoever waits for one.
        self.engine.complete_behind(qpn, queue, completion);
    }

    fn arm(&mut self, program: Number, queue: u32, solicited_only: bool, taken: u32) {
        let Some(of) = self.queues.get_mut(&queue).filter(|of| of.owner == program) else {
            self.counters.strange += 1;
            return;
        };
        of.fill(&mut self.engine, queue, COMPLETIONS);
        // The program may have looked before these came. If they were in its ring before it was told the last time, it has seen them since
        // or has yet to take that event: one more would be one for nothing, and be answered by one more arming.
        let may_be_unseen = of.written != taken && of.written != of.told;
        if may_be_unseen || self.engine.has_completions(queue) {
            of.told = of.written;
            self.tell_of(Event::Completion(queue), program);
        } else if self.engine.arm(queue, solicited_only).is_err() {
            self.counters.refused += 1;
        }
    }

    /// Acknowledges twice more what has come to a queue pair that is about to be destroyed, at once, whoever's turn it is: the last
    /// acknowledgement may have been lost, or have to wait, and nobody is left to be asked again.
    pub fn say_farewell<O: Out>(&mut self, now: Moment, program: Number, qpn: Qpn, wire: &mut O) {
        const FAREWELLS: usize = 2;
        if self.pairs.get(&qpn).is_none_or(|of| of.owner != program) {
            return;
        }
        let Self { engine, own, general, mailbox, .. } = self;
        let mut switch = Switch { own, general, mailbox, wire, is_blocked: false };
        for _ in 0..FAREWELLS {
            engine.acknowledge_now(now, qpn, &mut switch);
        }
    }

    pub(super) fn move_on<O: Out>(&mut self, now: Moment, wire: &mut O) -> bool {
        let mut answers = core::mem::take(&mut self.general.answers);
        let mut switch =
            Switch { own: &self.own, general: &self.general, mailbox: &mut self.mailbox, wire, is_blocked: false };
        let (answered, lost) = answers.send(&self.own, &mut switch);
        let sent = self.engine.transmit(now, PACKETS, &mut switch);
        while let Some(qpn) = self.engine.memory().guessed.pop() {
            self.engine.refuse_access(now, qpn);
        }
        self.is_blocked = switch.is_blocked && sent == 0 && self.engine.has_tried_all();
        self.general.answers = answers;
        self.general.counters.no_room += lost;
        let waiting = self.mailbox.len();
        for _ in 0..waiting {
            let Some(letter) = self.mailbox.take() else { break };
            // All programs have one address, by which the engine knows the other end of a connection: here it is known by its number,
            // and who only says that he is connected with it is nobody. Datagrams may come from everybody who knows the queue key.
            let is_datagram = letter.headers.service == Kind::UnreliableDatagram;
            if letter.headers.destination == Qpn::GENERAL {
                let packet = Packet { headers: letter.headers, payload: &letter.payload };
                self.receive_general(now, &packet, &letter.origin);
            } else if !is_datagram && !self.engine.is_connected(letter.headers.destination, letter.source) {
                self.counters.unconnected += 1;
            } else if !self.general.is_evaded(&letter.headers) {
                let packet = Packet { headers: letter.headers, payload: &letter.payload };
                self.engine.receive(now, &packet, &letter.origin);
            }
            self.mailbox.give_back(letter);
        }
        self.counters.packets += waiting as u64;
        answered + sent + waiting > 0
    }

    /// Rings that had no room are looked at now and then: programs do not say that they have taken something.
    fn look_at_full(&mut self, now: Moment) {
        if self.full.is_empty() {
            self.full_due = now + LATE;
        } else if now >= self.full_due {
            self.full_due = now + LATE;
            // Once each: one may have been filled again since.
            self.full.sort_unstable();
            self.full.dedup();
            self.full.drain(..).for_each(|queue| self.engine.list_filled(queue));
        }
    }

    /// Completions go to their rings while these have room, then events.
    fn tell(&mut self) -> bool {
        let mut moved = false;
        let mut told = 0;
        for _ in 0..self.engine.filled().min(QUEUES) {
            if told >= TOLD {
                break;
            }
            let Some(queue) = self.engine.take_filled() else { break };
            let Some(of) = self.queues.get_mut(&queue) else { continue };
            let count = of.fill(&mut self.engine, queue, COMPLETIONS);
            told += count;
            moved |= count > 0;
            match self.engine.has_completions(queue) {
                false => {}
                // There is room for more, in the next turn.
                true if count == COMPLETIONS => self.engine.list_filled(queue),
                true => self.full.push(queue),
            }
        }
        for _ in 0..EVENTS {
            let Some(event) = self.engine.take_event() else { break };
            if let Event::Completion(queue) = event
                && let Some(of) = self.queues.get_mut(&queue)
            {
                of.told = of.written;
            }
            if let Some(program) = self.owner(&event) {
                self.tell_of(event, program);
            }
            moved = true;
        }
        moved
    }

    /// Events that had no room go to their rings. Whether some have none now.
    fn tell_late(&mut self) -> bool {
        let mut is_any = false;
        for (number, process) in &mut self.processes {
            let before = process.late.len();
            while let Some(word) = process.late.front()
                && process.events.send(&[*word])
            {
                process.late.pop_front();
            }
            is_any |= !process.late.is_empty();
            let program = Number(number);
            if process.late.len() < before && process.events.must_wake() && !self.bells.contains(&program) {
                self.bells.push_back(program);
            }
        }
        is_any
    }

    fn owner(&self, event: &Event) -> Option<Number> {
        match event {
            Event::Completion(queue) | Event::CompletionQueueError(queue) => self.queues.get(queue).map(|of| of.owner),
            Event::SharedReceiveLimit(shared) | Event::SharedReceiveError(shared) => {
                self.shared.get(shared).map(|(owner, _)| *owner)
            }
            Event::QueuePairFatal(qpn)
            | Event::RequestError(qpn)
            | Event::AccessError(qpn)
            | Event::Established(qpn)
            | Event::SendQueueDrained(qpn)
            | Event::LastBufferReached(qpn) => self.pairs.get(qpn).map(|of| of.owner),
        }
    }

    fn tell_of(&mut self, event: Event, program: Number) {
        let Some(process) = self.processes.get_mut(program.0) else { return };
        let word = told::write_event(event);
        let is_late = !process.late.is_empty() || !process.events.send(&[word]);
        if is_late && process.late.len() >= MOST_LATE {
            self.counters.events_lost += 1;
        } else if is_late {
            process.late.push_back(word);
        }
        if process.events.must_wake() && !self.bells.contains(&program) {
            self.bells.push_back(program);
        }
    }
}

impl QueueOf {
    /// Up to `budget` completions go from the engine's queue to the ring, while that has room. How many.
    fn fill(&mut self, engine: &mut Engine<Reach>, queue: u32, budget: usize) -> usize {
        let (mut count, mut one) = (0, [Completion::default()]);
        while count < budget && self.ring.has_room(told::MOST_TOLD) && engine.poll(queue, &mut one) == Ok(1) {
            self.tell(&one[0]);
            count += 1;
        }
        count
    }

    /// Whether there was room.
    fn tell(&mut self, completion: &Completion) -> bool {
        let (words, len) = told::write(completion);
        let is_told = self.ring.send(&words[..len]);
        self.written = self.written.wrapping_add(is_told.into());
        is_told
    }
}

fn bytes_of(request: &Request<'_>) -> u64 {
    match (request.operation, request.data) {
        (Operation::Write { .. } | Operation::Read { .. }, crate::work::Data::Pieces(pieces)) => {
            pieces.iter().map(|piece| u64::from(piece.len)).sum()
        }
        _ => 0,
    }
}
