//! Requests of reliable connections, in order and out of order (volume 1, 9.7.4.1).

use super::execute::Verdict;
use super::{Message, Refusal, Responder};
use crate::memory::Memory;
use crate::transport::{Broken, Config, Environment, Event};
use crate::wire::{Packet, Syndrome};
use crate::work::Status;

impl Responder {
    /// A request has come.
    #[inline]
    pub fn request<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        packet: &Packet<'_>,
    ) -> Result<(), Broken> {
        let ahead = packet.headers.psn.since(self.expected);
        if ahead < 0 {
            return self.duplicate(config, env, packet);
        }
        if ahead > 0 {
            self.early(config, env, packet, ahead.unsigned_abs());
            return Ok(());
        }
        self.in_order(config, env, packet)?;
        if self.kept.is_some() {
            self.take_kept(config, env)?;
        }
        Ok(())
    }

    /// The next request. Afterwards it was done, or is refused.
    #[inline]
    pub(super) fn in_order<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        packet: &Packet<'_>,
    ) -> Result<(), Broken> {
        self.is_silent = false;
        match self.execute(config, env, packet) {
            Verdict::Done(packets) => {
                self.expected = self.expected + packets;
                self.acknowledge |= packet.headers.ack_request;
                Ok(())
            }
            Verdict::NoBuffer => {
                self.is_silent = true;
                env.counters.rnr_sent += 1;
                self.refusal = Some(Refusal { psn: self.expected, why: Syndrome::Rnr(config.min_rnr_timer) });
                Ok(())
            }
            Verdict::Refused(why, status) => {
                self.break_off(config, env, why, status);
                Err(Broken)
            }
        }
    }

    /// A request cannot be done, and the queue pair fails: the other end is told why, and so is this one.
    pub(super) fn break_off<M>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        why: Syndrome,
        status: Status,
    ) {
        match why {
            Syndrome::RemoteAccess => env.counters.remote_access_sent += 1,
            Syndrome::RemoteOperation => env.counters.remote_operation_sent += 1,
            _ => env.counters.invalid_request_sent += 1,
        }
        let refusal = Refusal { psn: self.expected, why };
        (self.refusal, self.last_words) = (Some(refusal), Some(refusal));
        self.message = Message::None;
        if self.taken.in_use {
            self.end_taken(config, env, status, 0, None);
            return;
        }
        let number = config.number();
        env.events.add(match why {
            Syndrome::RemoteAccess => Event::AccessError(number),
            Syndrome::InvalidRequest => Event::RequestError(number),
            _ => Event::QueuePairFatal(number),
        });
    }

    /// The other end has no access to what it has asked for.
    pub fn refuse_access<M>(&mut self, config: &Config, env: &mut Environment<'_, M>) {
        self.break_off(config, env, Syndrome::RemoteAccess, Status::LocalProtection);
    }

    /// One before it is missing.
    fn early<M>(&mut self, config: &Config, env: &mut Environment<'_, M>, packet: &Packet<'_>, ahead: u32) {
        // While there is no buffer for the one before it, all others come again by themselves.
        if config.extended && !self.is_silent {
            self.keep(env, packet, ahead);
            return;
        }
        env.counters.out_of_sequence += 1;
        if !self.is_silent {
            self.is_silent = true;
            env.counters.sequence_errors_sent += 1;
            self.refusal = Some(Refusal { psn: self.expected, why: Syndrome::SequenceError });
        }
    }
}
