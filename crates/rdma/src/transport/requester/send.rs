//! The next packet.

use super::{MESSAGES, Requester};
use crate::local::{Far, Outcome};
use crate::memory::{Memory, Refused};
use crate::number::Psn;
use crate::transport::{Broken, Config, Environment, Out, Sent, Step, pieces};
use crate::wire::{AtomicEth, Headers, Opcode, Place, Reth, Service};
use crate::work::{Data, Operation, Progress, Slot, Status};

/// Numbers on their way must be told apart from those long ago (volume 1, 9.7.1): less than half of all.
const SPAN: u32 = 0x7f_ffff;

/// Bytes that are copied at the cost of a packet.
const COST: u32 = 4096;

/// What became of the request at the cursor.
enum Started {
    /// It waits.
    NotYet,
    /// It has its numbers.
    Begun,
    /// It is done, with so many bytes copied.
    Reached(u32),
}

impl Requester {
    /// Sends one packet, if it may.
    #[inline]
    pub fn step<M: Memory, O: Out>(&mut self, config: &Config, env: &mut Environment<'_, M>, out: &mut O) -> Step {
        if self.waiting.is_some() {
            return Step::Idle;
        }
        if let Some((position, packet)) = self.next_missing() {
            return self.send_again(config, env, out, position, packet);
        }
        loop {
            let Some(slot) = self.queue.slot(self.cursor) else { return Step::Idle };
            match slot.progress {
                Progress::Begun if self.is_there_already(slot) => self.move_on(),
                Progress::Begun => return self.send_at_cursor(config, env, out),
                Progress::Done => (self.cursor, self.packet) = (self.cursor.wrapping_add(1), 0),
                Progress::Failed(_) => return Step::Idle,
                Progress::Posted => match self.start(config, env) {
                    Ok(Started::Begun) => {}
                    // Others have their turns between long copies.
                    Ok(Started::Reached(len)) => return Step::Reached(1 + len / COST),
                    Ok(Started::NotYet) => return Step::Idle,
                    Err(Broken) => return Step::Broken,
                },
            }
        }
    }

    /// Gives the request at the cursor its numbers, or does it if it is local, or can be done without packets.
    #[inline]
    fn start<M: Memory>(&mut self, config: &Config, env: &mut Environment<'_, M>) -> Result<Started, Broken> {
        let Some(&Slot { operation, fence, len, .. }) = self.queue.slot(self.cursor) else {
            return Ok(Started::NotYet);
        };
        if config.state != crate::transport::State::ReadyToSend || (fence && self.reads > 0) {
            return Ok(Started::NotYet);
        }
        if operation.is_local() {
            return self.do_local(config, env, operation).map(|()| Started::Reached(0));
        }
        if config.is_alone {
            return self.fail_at_cursor(config, env, Status::RetryExceeded).map(|()| Started::NotYet);
        }
        if self.is_first() && self.reach(config, env, operation, len)? {
            return Ok(Started::Reached(len));
        }
        if self.waits_to_reach(config, env, operation, len) {
            return Ok(Started::NotYet);
        }
        if operation.asks() && self.reads >= u32::from(config.max_rd_atomic) {
            if config.max_rd_atomic == 0 {
                self.fail_at_cursor(config, env, Status::LocalOperation)?;
            }
            return Ok(Started::NotYet);
        }
        let packets = if matches!(operation, Operation::CompareSwap { .. } | Operation::FetchAdd { .. }) {
            1
        } else {
            config.packets(len)
        };
        let on_way = self.end.since(self.una).unsigned_abs();
        if on_way + packets > SPAN && on_way > 0 || !self.has_credit(operation) {
            return Ok(Started::NotYet);
        }
        let (first, message) = (self.end, self.messages);
        if let Some(slot) = self.queue.slot_mut(self.cursor) {
            (slot.first, slot.packets, slot.message, slot.progress) = (first, packets, message, Progress::Begun);
        }
        self.messages = (message + 1) & MESSAGES;
        if operation.asks() {
            self.reads += 1;
            self.read_packets += packets;
        }
        Ok(Started::Begun)
    }

    /// Whether the other end has a buffer for it. One message may always go: its answer says how many more (volume 1,
    /// 9.7.7.2.5).
    #[inline]
    pub(in crate::transport) fn has_credit(&self, operation: Operation) -> bool {
        match self.credit {
            Some(limit) if operation.takes_buffer() => {
                let left = limit.wrapping_sub(self.messages) & MESSAGES;
                (left != 0 && left <= MESSAGES / 2) || self.una == self.end
            }
            _ => true,
        }
    }

    /// The request at the cursor waits for none before it.
    #[inline]
    fn is_first(&self) -> bool {
        self.una == self.end && self.cursor == self.queue.first
    }

    /// Whether it is better to wait until all before it have ended, and to do it without packets then. If those before it could
    /// have been done so, too, it is: otherwise one that went as a packet would make packets of all behind it. Behind a SEND a
    /// short request goes with it.
    fn waits_to_reach<M: Memory>(
        &self,
        config: &Config,
        env: &mut Environment<'_, M>,
        operation: Operation,
        len: u32,
    ) -> bool {
        let before = self.cursor.wrapping_sub(1);
        let follows_send = self.queue.slot(before).is_some_and(|slot| slot.operation.takes_buffer());
        if self.is_first() || operation.takes_buffer() || follows_send && len <= config.mtu() {
            return false;
        }
        let far = Far { asker: config.asker, path: &config.path, remote: config.remote };
        env.memory.may_reach(&far, operation, len)
    }

    /// Does the request at the cursor without packets, if that can be done.
    #[inline]
    fn reach<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        operation: Operation,
        len: u32,
    ) -> Result<bool, Broken> {
        if operation.takes_buffer() || operation.asks() && config.max_rd_atomic == 0 {
            return Ok(false);
        }
        let Some(slot) = self.queue.slot(self.cursor) else { return Ok(false) };
        let inline = [if slot.inline { self.queue.inline(self.cursor) } else { &[] }];
        let data = if slot.inline { Data::Inline(&inline) } else { Data::Pieces(self.queue.pieces(self.cursor)) };
        let far = Far { asker: config.asker, path: &config.path, remote: config.remote };
        let progress = match env.memory.reach(&far, operation, data, len) {
            Outcome::No => return Ok(false),
            Outcome::Done => Progress::Done,
            Outcome::Failed(status) => Progress::Failed(status),
        };
        env.counters.reached += u64::from(progress == Progress::Done);
        if let Some(slot) = self.queue.slot_mut(self.cursor) {
            slot.progress = progress;
        }
        self.retire(config, env).map(|()| true)
    }

    fn do_local<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        operation: Operation,
    ) -> Result<(), Broken> {
        let (done, status) = match operation {
            Operation::LocalInvalidate(key) => {
                (env.memory.invalidate(config.asker, key, false), Status::LocalProtection)
            }
            Operation::Bind(window) => (env.memory.bind(config.asker, window), Status::WindowBind),
            _ => (Ok(()), Status::Success),
        };
        if done.is_err() {
            return self.fail_at_cursor(config, env, status);
        }
        if let Some(slot) = self.queue.slot_mut(self.cursor) {
            slot.progress = Progress::Done;
        }
        (self.cursor, self.packet) = (self.cursor.wrapping_add(1), 0);
        self.retire(config, env)
    }

    /// The cursor is behind this packet.
    #[inline]
    fn move_on(&mut self) {
        let Some(slot) = self.queue.slot(self.cursor) else { return };
        self.packet += 1;
        if self.packet >= slot.packets || slot.operation.asks() {
            (self.cursor, self.packet) = (self.cursor.wrapping_add(1), 0);
        }
    }

    #[inline]
    fn send_at_cursor<M: Memory, O: Out>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        out: &mut O,
    ) -> Step {
        let Some(slot) = self.queue.slot(self.cursor) else { return Step::Idle };
        let (psn, packets, asks) = (slot.first + self.packet, slot.packets, slot.operation.asks());
        let reliable = config.init.service == Service::ReliableConnection;
        let is_new = psn.since(self.end) >= 0;
        let on_way = self.end.since(self.una).unsigned_abs().saturating_sub(self.read_packets);
        if reliable && is_new && !asks && on_way >= env.options.window {
            return Step::Idle;
        }
        let ask = reliable && self.unasked + 1 >= env.options.window / 4;
        let step = self.put(config, env, out, self.cursor, self.packet, ask);
        if step != Step::Sent {
            return step;
        }
        if is_new {
            self.end = if asks { slot_end(psn, packets, self.packet) } else { psn.next() };
        } else {
            env.counters.repeated += 1;
        }
        if reliable {
            self.unasked = if ask || self.packet + 1 == packets { 0 } else { self.unasked + 1 };
            self.on_sent(config, env, psn, is_new);
            self.move_on();
            return Step::Sent;
        }
        self.una = self.end;
        let last = self.packet + 1 == packets;
        if last && let Some(slot) = self.queue.slot_mut(self.cursor) {
            slot.progress = Progress::Done;
        }
        self.move_on();
        if self.retire(config, env).is_err() { Step::Broken } else { Step::Sent }
    }

    /// Sends once more what the other end does not have.
    fn send_again<M: Memory, O: Out>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        out: &mut O,
        position: u32,
        packet: u32,
    ) -> Step {
        let step = self.put(config, env, out, position, packet, true);
        if step == Step::Sent {
            env.counters.repeated += 1;
            self.has_sent_missing(env.now);
        }
        step
    }

    /// Hands out one packet of the request at `position`.
    #[inline]
    fn put<M: Memory, O: Out>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        out: &mut O,
        position: u32,
        packet: u32,
        ask: bool,
    ) -> Step {
        let Some(slot) = self.queue.slot(position) else { return Step::Idle };
        let offset = packet << config.mtu_shift;
        let rest = slot.len.saturating_sub(offset);
        let len = if slot.operation.sends() { rest.min(config.mtu()) as usize } else { 0 };
        let mut headers = self.headers(config, slot, packet, offset, rest);
        headers.extended = config.says_extended(env.options);
        headers.ack_request |= ask;
        let queue = &self.queue;
        let memory = &mut *env.memory;
        let sent = out.packet(&config.path, config.number(), &headers, len, |to: &mut [u8]| {
            if slot.inline {
                let bytes = queue.inline(position).get(offset as usize..).ok_or(Refused::Bounds)?;
                to.copy_from_slice(bytes.get(..to.len()).ok_or(Refused::Bounds)?);
                Ok(())
            } else {
                pieces::gather(memory, config.asker, queue.pieces(position), u64::from(offset), to)
            }
        });
        match sent {
            Sent::Taken => {
                env.counters.sent += 1;
                env.counters.sent_bytes += len as u64;
                env.counters.inline_copied += if slot.inline { len as u64 } else { 0 };
                Step::Sent
            }
            Sent::Full => Step::Full,
            Sent::Busy => Step::Blocked,
            Sent::Refused(_) => {
                if let Some(slot) = self.queue.slot_mut(position) {
                    slot.progress = Progress::Failed(Status::LocalProtection);
                }
                // Nothing behind it is sent any more; what is before it still ends as it should.
                (self.cursor, self.packet) = (position, 0);
                if self.retire(config, env).is_err() { Step::Broken } else { Step::Idle }
            }
        }
    }

    fn headers(&self, config: &Config, slot: &Slot, packet: u32, offset: u32, rest: u32) -> Headers {
        let place = match (packet == 0, packet + 1 == slot.packets) {
            (true, true) => Place::Only,
            (true, false) => Place::First,
            (false, false) => Place::Middle,
            (false, true) => Place::Last,
        };
        let (begins, ends) = (place.begins(), place.ends());
        let psn: Psn = slot.first + packet;
        let reliable = config.init.service == Service::ReliableConnection;
        let mut headers = Headers::new(config.init.service, opcode(slot.operation, place), config.remote, psn);
        headers.ack_request = reliable && ends;
        match slot.operation {
            Operation::Send => headers.solicited = ends && slot.solicited,
            Operation::SendImmediate(data) if ends => {
                (headers.solicited, headers.immediate) = (slot.solicited, Some(data));
            }
            Operation::SendInvalidate(key) if ends => {
                (headers.solicited, headers.invalidate) = (slot.solicited, Some(key));
            }
            Operation::Write { address, rkey, immediate } => {
                headers.reth = begins.then_some(Reth { address, rkey, len: slot.len });
                headers.immediate = immediate.filter(|_| ends);
                headers.solicited = headers.immediate.is_some() && slot.solicited;
            }
            Operation::Read { address, rkey } => {
                headers.reth = Some(Reth { address: address.wrapping_add(u64::from(offset)), rkey, len: rest });
                headers.ack_request = true;
            }
            Operation::CompareSwap { address, rkey, compare, swap } => {
                headers.atomic = Some(AtomicEth { address, rkey, swap_add: swap, compare });
            }
            Operation::FetchAdd { address, rkey, add } => {
                headers.atomic = Some(AtomicEth { address, rkey, swap_add: add, compare: 0 });
            }
            _ => {}
        }
        headers
    }
}

#[inline]
fn slot_end(psn: Psn, packets: u32, packet: u32) -> Psn {
    psn + (packets - packet)
}

#[inline]
fn opcode(operation: Operation, place: Place) -> Opcode {
    let ends = place.ends();
    match operation {
        Operation::SendImmediate(_) => Opcode::Send { place, immediate: ends, invalidate: false },
        Operation::SendInvalidate(_) => Opcode::Send { place, immediate: false, invalidate: ends },
        Operation::Write { immediate, .. } => Opcode::Write { place, immediate: ends && immediate.is_some() },
        Operation::Read { .. } => Opcode::ReadRequest,
        Operation::CompareSwap { .. } => Opcode::CompareSwap,
        Operation::FetchAdd { .. } => Opcode::FetchAdd,
        // Local ones never come here.
        Operation::Send | Operation::LocalInvalidate(_) | Operation::Bind(_) => {
            Opcode::Send { place, immediate: false, invalidate: false }
        }
    }
}
