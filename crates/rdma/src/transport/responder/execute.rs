//! What is done with a request (volume 1, 9.4 and 9.7.4.1.2).

use super::{Job, Message, Responder};
use crate::memory::{Memory, Refused};
use crate::transport::{Config, Environment, pieces};
use crate::wire::{AtomicEth, Headers, Opcode, Packet, Place, Reth, Syndrome};
use crate::work::{Access, Status};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was done; it has so many sequence numbers.
    Done(u32),
    /// There is no buffer for it.
    NoBuffer,
    /// It is not done, and the buffer that it took ends so.
    Refused(Syndrome, Status),
}

pub(super) const INVALID: Verdict = Verdict::Refused(Syndrome::InvalidRequest, Status::RemoteInvalid);
const NO_ACCESS: Verdict = Verdict::Refused(Syndrome::RemoteAccess, Status::LocalProtection);
const TOO_LONG: Verdict = Verdict::Refused(Syndrome::InvalidRequest, Status::LocalLength);
const NOT_STORED: Verdict = Verdict::Refused(Syndrome::RemoteOperation, Status::LocalProtection);

/// All but the last packet of a message are full (volume 1, 9.7.4.1.6).
#[inline]
pub(super) fn has_right_len(config: &Config, place: Place, len: usize) -> bool {
    let mtu = config.mtu() as usize;
    match place {
        Place::First | Place::Middle => len == mtu,
        Place::Last => len >= 1 && len <= mtu,
        Place::Only => len <= mtu,
    }
}

impl Responder {
    /// Does a request that comes in order.
    #[inline]
    pub(super) fn execute<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        packet: &Packet<'_>,
    ) -> Verdict {
        let headers = &packet.headers;
        match headers.opcode {
            Opcode::Send { place, .. } => self.store_send(config, env, place, packet),
            Opcode::Write { place, .. } => self.store_write(config, env, place, packet),
            Opcode::ReadRequest => match headers.reth {
                Some(reth) if self.message == Message::None => self.start_read(config, env, reth),
                _ => INVALID,
            },
            Opcode::CompareSwap | Opcode::FetchAdd => match headers.atomic {
                Some(atomic) if self.message == Message::None => self.do_atomic(config, env, headers, atomic),
                _ => INVALID,
            },
            _ => INVALID,
        }
    }

    pub(super) fn store_send<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        place: Place,
        packet: &Packet<'_>,
    ) -> Verdict {
        let received = match (place.begins(), self.message) {
            (true, Message::None) => 0,
            (false, Message::Send { received }) => received,
            _ => return INVALID,
        };
        if !has_right_len(config, place, packet.payload.len()) {
            return INVALID;
        }
        if !self.take(config, env) {
            return Verdict::NoBuffer;
        }
        let after = received + packet.payload.len() as u64;
        if after > self.taken.room {
            return TOO_LONG;
        }
        if !packet.payload.is_empty()
            && pieces::scatter(env.memory, config.asker, self.taken.pieces(), received, packet.payload).is_err()
        {
            return NOT_STORED;
        }
        if !place.ends() {
            self.message = Message::Send { received: after };
            return Verdict::Done(1);
        }
        if let Some(key) = packet.headers.invalidate
            && env.memory.invalidate(config.asker, key, true).is_err()
        {
            return NO_ACCESS;
        }
        self.message = Message::None;
        self.msn = (self.msn + 1) & 0xff_ffff;
        self.end_taken(config, env, Status::Success, after.min(u64::from(u32::MAX)) as u32, Some(&packet.headers));
        Verdict::Done(1)
    }

    /// Where a WRITE goes that begins, or goes on, with this packet.
    #[inline]
    pub(super) fn where_to<M: Memory>(
        &self,
        config: &Config,
        env: &mut Environment<'_, M>,
        place: Place,
        packet: &Packet<'_>,
    ) -> Result<Message, Verdict> {
        let message = match (place.begins(), self.message, packet.headers.reth) {
            (true, Message::None, Some(Reth { address, rkey, len })) => {
                if !config.access.allows(Access::REMOTE_WRITE) || len > env.options.max_message {
                    return Err(INVALID);
                }
                Message::Write { address, rkey, remaining: u64::from(len), len }
            }
            (false, Message::Write { .. }, _) => self.message,
            _ => return Err(INVALID),
        };
        let Message::Write { address, rkey, remaining, .. } = message else { return Err(INVALID) };
        let here = packet.payload.len() as u64;
        let fits = if place.ends() { here == remaining } else { here < remaining };
        if !fits || !has_right_len(config, place, packet.payload.len()) {
            return Err(INVALID);
        }
        // A message of one packet is checked when it is written.
        if place == Place::First
            && env.memory.allows(config.asker, rkey, address, remaining, Access::REMOTE_WRITE).is_err()
        {
            return Err(NO_ACCESS);
        }
        Ok(message)
    }

    pub(super) fn store_write<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        place: Place,
        packet: &Packet<'_>,
    ) -> Verdict {
        let (address, rkey, remaining, len) = match self.where_to(config, env, place, packet) {
            Ok(Message::Write { address, rkey, remaining, len }) => (address, rkey, remaining, len),
            Ok(_) => return INVALID,
            Err(verdict) => return verdict,
        };
        let takes_buffer = place.ends() && packet.headers.immediate.is_some();
        if takes_buffer && !self.take(config, env) {
            return Verdict::NoBuffer;
        }
        let here = packet.payload.len() as u64;
        if here > 0 && env.memory.write(config.asker, rkey, address, packet.payload).is_err() {
            return NO_ACCESS;
        }
        if !place.ends() {
            self.message =
                Message::Write { address: address.wrapping_add(here), rkey, remaining: remaining - here, len };
            return Verdict::Done(1);
        }
        self.message = Message::None;
        self.msn = (self.msn + 1) & 0xff_ffff;
        if takes_buffer {
            self.end_taken(config, env, Status::Success, len, Some(&packet.headers));
        }
        Verdict::Done(1)
    }

    /// Jobs of requests that came for the first time; those that came again are not the other end's fault alone.
    fn has_room_for_job(&self, config: &Config) -> bool {
        self.jobs.len() < 2 * usize::from(config.max_dest_rd_atomic)
    }

    fn start_read<M: Memory>(&mut self, config: &Config, env: &mut Environment<'_, M>, reth: Reth) -> Verdict {
        let Reth { address, rkey, len } = reth;
        if !config.access.allows(Access::REMOTE_READ) || len > env.options.max_message || !self.has_room_for_job(config)
        {
            return INVALID;
        }
        if len > 0 && env.memory.allows(config.asker, rkey, address, u64::from(len), Access::REMOTE_READ).is_err() {
            return NO_ACCESS;
        }
        let packets = config.packets(len);
        self.jobs.push_back(Job::Read { psn: self.expected, address, rkey, len, packets, next: 0 });
        self.msn = (self.msn + 1) & 0xff_ffff;
        Verdict::Done(packets)
    }

    fn do_atomic<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        headers: &Headers,
        atomic: AtomicEth,
    ) -> Verdict {
        let AtomicEth { address, rkey, swap_add, compare } = atomic;
        if !config.access.allows(Access::REMOTE_ATOMIC) || address % 8 != 0 || !self.has_room_for_job(config) {
            return INVALID;
        }
        let found = if headers.opcode == Opcode::CompareSwap {
            env.memory.compare_swap(config.asker, rkey, address, compare, swap_add)
        } else {
            env.memory.fetch_add(config.asker, rkey, address, swap_add)
        };
        let original = match found {
            Ok(original) => original,
            Err(Refused::Alignment) => return INVALID,
            Err(_) => return NO_ACCESS,
        };
        if self.replay.len() >= usize::from(config.max_dest_rd_atomic) {
            self.replay.pop_front();
        }
        self.replay.push_back((self.expected, original));
        self.jobs.push_back(Job::Atomic { psn: self.expected, original });
        self.msn = (self.msn + 1) & 0xff_ffff;
        Verdict::Done(1)
    }
}
