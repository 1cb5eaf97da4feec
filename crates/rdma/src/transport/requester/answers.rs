//! What comes of answers (volume 1, 9.7.5 and 9.9.2).

use super::Requester;
use crate::memory::Memory;
use crate::number::Psn;
use crate::transport::{Broken, Config, Environment, pieces};
use crate::wire::{Opcode, Packet, Place, Syndrome};
use crate::work::{Operation, Progress, Status};

/// Buffers that a code of credits stands for (volume 1, table 44).
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 24576, 32768,
];

/// The largest code that promises no more than `buffers`.
pub(in crate::transport) fn credit_code(buffers: u32) -> u8 {
    (CREDITS.partition_point(|credits| *credits <= buffers) - 1) as u8
}

impl Requester {
    /// An answer of the other end.
    #[inline]
    pub fn answer<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        packet: &Packet<'_>,
    ) -> Result<(), Broken> {
        let headers = &packet.headers;
        let psn = headers.psn;
        let aeth = headers.aeth;
        match headers.opcode {
            Opcode::Acknowledge => {
                let Some(aeth) = aeth else { return unexpected(env) };
                match aeth.syndrome {
                    Syndrome::Ack(code) => self.acknowledged(config, env, psn, code, aeth.msn),
                    refused => self.refused(config, env, psn, refused),
                }
            }
            Opcode::AtomicAcknowledge => match (aeth.map(|aeth| (aeth.syndrome, aeth.msn)), headers.original) {
                (Some((Syndrome::SequenceError, msn)), Some(bits)) if config.extended => {
                    self.selectively(config, env, Psn::new(msn), psn, bits)
                }
                (Some((Syndrome::Ack(_), _)), Some(original)) => self.found(config, env, psn, original),
                _ => unexpected(env),
            },
            Opcode::ReadResponse(place) => self.read(config, env, psn, place, packet.payload),
            _ => unexpected(env),
        }
    }

    /// Everything up to `psn` was taken.
    #[inline]
    fn acknowledged<M>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        psn: Psn,
        code: u8,
        msn: u32,
    ) -> Result<(), Broken> {
        if psn.since(self.end) >= 0 {
            return unexpected(env);
        }
        if psn.next().since(self.una) >= 0 {
            // Only from those who count as we do; codes of others may be of more buffers than they have for us.
            self.credit = match CREDITS.get(usize::from(code)) {
                Some(credits) if config.extended => Some(msn.wrapping_add(*credits) & super::MESSAGES),
                _ => None,
            };
            if self.credit != Some(msn) && self.waiting.is_some() && psn.next() == self.una {
                self.waiting = None;
            }
        }
        if psn.since(self.una) < 0 {
            env.counters.duplicate_answer += 1;
            return Ok(());
        }
        if !self.advance(config, env, psn.next())? {
            self.go_back_once(env);
        }
        Ok(())
    }

    /// Ends what comes before `to`. False: an answer to a READ or an atomic operation is missing there.
    #[inline]
    pub(in crate::transport) fn advance<M>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        to: Psn,
    ) -> Result<bool, Broken> {
        let before = self.una;
        let all = loop {
            self.retire(config, env)?;
            if to.since(self.una) <= 0 {
                break true;
            }
            let Some(slot) = self.queue.slot(self.queue.first) else { break true };
            if slot.progress != Progress::Begun {
                break true;
            }
            if slot.operation.asks() {
                break false;
            }
            let after = slot.first + slot.packets;
            if to.since(after) < 0 {
                self.una = to;
                break true;
            }
            self.una = after;
            self.end_first(config, env, Status::Success);
        };
        if self.una != before {
            self.has_progress(config, env, before);
        }
        Ok(all)
    }

    /// Answers came: what was there before does not count any more.
    #[inline]
    pub(super) fn has_progress<M>(&mut self, config: &Config, env: &Environment<'_, M>, before: Psn) {
        self.refill(config);
        self.went_back_at = None;
        self.waiting = None;
        self.set_timer(config, env);
        self.catch_up();
        self.forget_selected(config, env, before);
    }

    /// After going back, an answer may come to what was sent before that.
    #[inline]
    fn catch_up(&mut self) {
        if self.cursor != self.queue.first {
            return;
        }
        if let Some(slot) = self.queue.slot(self.cursor)
            && slot.progress == Progress::Begun
        {
            let behind = self.una.since(slot.first).max(0).unsigned_abs();
            self.packet = self.packet.max(behind);
        }
    }

    /// The next packet is the oldest without an answer.
    pub(super) fn go_back(&mut self) {
        self.cursor = self.queue.first;
        self.packet = match self.queue.slot(self.cursor) {
            Some(slot) if slot.progress == Progress::Begun => self.una.since(slot.first).max(0).unsigned_abs(),
            _ => 0,
        };
    }

    /// The same, but only once for the same packet: another loss is a matter of time, or a peer could ask for a window of
    /// packets with each of its own.
    pub(super) fn go_back_once<M>(&mut self, _env: &mut Environment<'_, M>) {
        if self.went_back_at != Some(self.una) {
            self.went_back_at = Some(self.una);
            self.go_back();
        }
    }

    /// The packet `psn` was not taken, and all before it were.
    fn refused<M>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        psn: Psn,
        why: Syndrome,
    ) -> Result<(), Broken> {
        if psn.since(self.end) >= 0 {
            return unexpected(env);
        }
        if psn.since(self.una) < 0 {
            env.counters.duplicate_answer += 1;
            return Ok(());
        }
        if !self.advance(config, env, psn)? {
            env.counters.early_answer += 1;
            self.go_back_once(env);
            return Ok(());
        }
        match why {
            Syndrome::SequenceError => {
                env.counters.sequence_errors_received += 1;
                self.go_back_once(env);
                Ok(())
            }
            Syndrome::Rnr(code) => self.no_buffer(config, env, code),
            Syndrome::InvalidRequest => self.fail(config, env, Status::RemoteInvalid),
            Syndrome::RemoteAccess => self.fail(config, env, Status::RemoteAccess),
            Syndrome::RemoteOperation => self.fail(config, env, Status::RemoteOperation),
            Syndrome::Ack(_) => Ok(()),
        }
    }

    /// Whether an answer of that number is the next one; what comes before it is ended.
    #[inline]
    fn is_next<M>(&mut self, config: &Config, env: &mut Environment<'_, M>, psn: Psn) -> Result<bool, Broken> {
        if psn.since(self.end) >= 0 {
            env.counters.unexpected_answer += 1;
            return Ok(false);
        }
        if psn.since(self.una) < 0 {
            env.counters.duplicate_answer += 1;
            return Ok(false);
        }
        if !self.advance(config, env, psn)? {
            env.counters.early_answer += 1;
            self.go_back_once(env);
            return Ok(false);
        }
        Ok(true)
    }

    /// A part of what was read.
    fn read<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        psn: Psn,
        place: Place,
        payload: &[u8],
    ) -> Result<(), Broken> {
        if !self.is_next(config, env, psn)? {
            return Ok(());
        }
        let first = self.queue.first;
        let Some(slot) = self.queue.slot(first) else { return unexpected(env) };
        let packet = psn.since(slot.first).max(0).unsigned_abs();
        let is_last = packet + 1 == slot.packets;
        let offset = packet << config.mtu_shift;
        let want = slot.len.saturating_sub(offset).min(config.mtu()) as usize;
        let fits = matches!(slot.operation, Operation::Read { .. })
            && slot.progress == Progress::Begun
            && packet < slot.packets
            && payload.len() == want
            && place.ends() == is_last;
        if !fits {
            return unexpected(env);
        }
        let pieces = self.queue.pieces(first);
        if pieces::scatter(env.memory, config.asker, pieces, u64::from(offset), payload).is_err() {
            return self.fail(config, env, Status::LocalProtection);
        }
        self.answered(config, env, psn, is_last);
        self.retire(config, env)
    }

    /// What an atomic operation found.
    fn found<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        psn: Psn,
        original: u64,
    ) -> Result<(), Broken> {
        if !self.is_next(config, env, psn)? {
            return Ok(());
        }
        let first = self.queue.first;
        let Some(slot) = self.queue.slot(first) else { return unexpected(env) };
        let is_atomic = matches!(slot.operation, Operation::CompareSwap { .. } | Operation::FetchAdd { .. });
        if !is_atomic || slot.progress != Progress::Begun || slot.first != psn {
            return unexpected(env);
        }
        // Programs look at it as a number of their machine (volume 1, 9.4.5.3).
        let bytes = original.to_ne_bytes();
        if pieces::scatter(env.memory, config.asker, self.queue.pieces(first), 0, &bytes).is_err() {
            return self.fail(config, env, Status::LocalProtection);
        }
        self.answered(config, env, psn, true);
        self.retire(config, env)
    }

    #[inline]
    fn answered<M>(&mut self, config: &Config, env: &mut Environment<'_, M>, psn: Psn, is_last: bool) {
        let before = self.una;
        self.una = psn.next();
        self.read_packets = self.read_packets.saturating_sub(1);
        if is_last {
            self.reads = self.reads.saturating_sub(1);
            self.end_first(config, env, Status::Success);
        }
        self.has_progress(config, env, before);
    }
}

#[inline]
fn unexpected<M>(env: &mut Environment<'_, M>) -> Result<(), Broken> {
    env.counters.unexpected_answer += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_promise_no_more_than_there_is() {
        for buffers in 0..40_000 {
            let credits = CREDITS[usize::from(credit_code(buffers))];
            assert!(credits <= buffers && (buffers > 32_768 || 2 * credits >= buffers));
        }
    }
}
