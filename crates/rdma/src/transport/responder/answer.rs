//! What the other end is told, in order (volume 1, 9.7.5).

use super::{Job, Responder};
use crate::memory::Memory;
use crate::number::Psn;
use crate::transport::requester::credit_code;
use crate::transport::{Config, Environment, Out, Sent, Step};
use crate::wire::{Aeth, Headers, Opcode, Place, Service, Syndrome};
use crate::work::Status;

/// As many messages as one likes: for ends that do not count, and for shared receive queues.
const NO_LIMIT: u8 = 31;

impl Responder {
    /// Whether the next thing to be said is a part of what the other end reads.
    #[inline]
    pub fn is_reading(&self) -> bool {
        !self.notify && matches!(self.jobs.front(), Some(Job::Read { .. }))
    }

    /// One packet, if there is something to be said.
    #[inline]
    pub fn step<M: Memory, O: Out>(&mut self, config: &Config, env: &mut Environment<'_, M>, out: &mut O) -> Step {
        if self.notify {
            return self.say_congested(config, env, out);
        }
        if let Some(job) = self.jobs.front().copied() {
            return self.do_job(config, env, out, job);
        }
        if let Some(refusal) = self.refusal {
            let step = self.say(config, env, out, refusal.psn, refusal.why);
            if step == Step::Sent {
                // It says as well that all before it were taken.
                (self.refusal, self.acknowledge) = (None, false);
            }
            return step;
        }
        if self.acknowledge {
            let code = self.credits(config);
            let step = self.say(config, env, out, self.expected - 1, Syndrome::Ack(code));
            if step == Step::Sent {
                self.acknowledge = false;
            }
            return step;
        }
        if self.tell_kept {
            return self.say_kept(config, env, out);
        }
        Step::Idle
    }

    /// Acknowledges once more what was taken, if anything was; not while there is something else to be said first.
    pub fn say_last<M: Memory, O: Out>(&mut self, config: &Config, env: &mut Environment<'_, M>, out: &mut O) -> Step {
        if self.msn == 0 || self.refusal.is_some() || !self.jobs.is_empty() {
            return Step::Idle;
        }
        self.acknowledge = false;
        self.say(config, env, out, self.expected - 1, Syndrome::Ack(NO_LIMIT))
    }

    #[inline]
    fn credits(&mut self, config: &Config) -> u8 {
        if !config.extended || config.init.shared_receive_queue.is_some() {
            return NO_LIMIT;
        }
        let code = credit_code(self.queue.len());
        self.promised = u32::from(code);
        code
    }

    /// Buffers were posted: an end that was promised none waits for that.
    #[inline]
    pub fn has_buffers(&mut self, config: &Config) -> bool {
        let waits = config.extended && self.promised == 0 && self.msn != 0;
        self.acknowledge |= waits;
        waits
    }

    #[inline]
    fn say<M, O: Out>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        out: &mut O,
        psn: Psn,
        syndrome: Syndrome,
    ) -> Step {
        let mut headers = config.headers(Opcode::Acknowledge, psn, env.options);
        headers.aeth = Some(Aeth { syndrome, msn: self.msn });
        hand_out(config, env, out, &headers)
    }

    /// What was kept, 64 numbers a packet, from behind the missing one on.
    fn say_kept<M, O: Out>(&mut self, config: &Config, env: &mut Environment<'_, M>, out: &mut O) -> Step {
        let base = self.expected + 1 + 64 * self.told;
        let (bits, is_last) = self.kept_bits(self.told);
        let mut headers = config.headers(Opcode::AtomicAcknowledge, base, env.options);
        headers.aeth = Some(Aeth { syndrome: Syndrome::SequenceError, msn: self.expected.value() });
        headers.original = Some(bits);
        let step = hand_out(config, env, out, &headers);
        if step == Step::Sent {
            env.counters.sequence_errors_sent += 1;
            (self.told, self.tell_kept) = if is_last { (0, false) } else { (self.told + 1, true) };
        }
        step
    }

    fn say_congested<M, O: Out>(&mut self, config: &Config, env: &mut Environment<'_, M>, out: &mut O) -> Step {
        let mut headers =
            Headers::new(Service::ReliableConnection, Opcode::CongestionNotification, config.remote, Psn::new(0));
        headers.fecn_becn = (false, true);
        let step = hand_out(config, env, out, &headers);
        if step == Step::Sent {
            env.counters.notifications_sent += 1;
            self.notify = false;
        }
        step
    }

    fn do_job<M: Memory, O: Out>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        out: &mut O,
        job: Job,
    ) -> Step {
        match job {
            Job::Atomic { psn, original } => {
                let mut headers = config.headers(Opcode::AtomicAcknowledge, psn, env.options);
                headers.aeth = Some(Aeth { syndrome: Syndrome::Ack(NO_LIMIT), msn: self.msn });
                headers.original = Some(original);
                let step = hand_out(config, env, out, &headers);
                if step == Step::Sent {
                    self.jobs.pop_front();
                }
                step
            }
            Job::Read { .. } => self.send_read(config, env, out, job),
        }
    }

    fn send_read<M: Memory, O: Out>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        out: &mut O,
        job: Job,
    ) -> Step {
        let Job::Read { psn, address, rkey, len, packets, next } = job else { return Step::Idle };
        let place = match (next == 0, next + 1 == packets) {
            (true, true) => Place::Only,
            (true, false) => Place::First,
            (false, false) => Place::Middle,
            (false, true) => Place::Last,
        };
        let offset = next << config.mtu_shift;
        let here = len.saturating_sub(offset).min(config.mtu()) as usize;
        let mut headers = config.headers(Opcode::ReadResponse(place), psn + next, env.options);
        if place != Place::Middle {
            headers.aeth = Some(Aeth { syndrome: Syndrome::Ack(NO_LIMIT), msn: self.msn });
        }
        let memory = &mut *env.memory;
        let sent = out.packet(&config.path, config.number(), &headers, here, |to: &mut [u8]| {
            if to.is_empty() {
                return Ok(());
            }
            memory.read(config.asker, rkey, address.wrapping_add(u64::from(offset)), to)
        });
        match sent {
            Sent::Taken => {
                env.counters.sent += 1;
                env.counters.sent_bytes += here as u64;
                if place.ends() {
                    self.jobs.pop_front();
                } else if let Some(Job::Read { next, .. }) = self.jobs.front_mut() {
                    *next += 1;
                }
                Step::Sent
            }
            Sent::Full => Step::Full,
            Sent::Busy => Step::Blocked,
            Sent::Refused(_) => {
                // The region went away after the request was taken.
                self.jobs.clear();
                self.break_off(config, env, Syndrome::RemoteAccess, Status::Flushed);
                let psn = psn + next;
                for refusal in [&mut self.refusal, &mut self.last_words].into_iter().flatten() {
                    refusal.psn = psn;
                }
                Step::Broken
            }
        }
    }
}

/// Hands out a packet without payload.
#[inline]
fn hand_out<M, O: Out>(config: &Config, env: &mut Environment<'_, M>, out: &mut O, headers: &Headers) -> Step {
    match out.packet(&config.path, config.number(), headers, 0, |_: &mut [u8]| Ok(())) {
        Sent::Taken => {
            env.counters.sent += 1;
            Step::Sent
        }
        Sent::Busy => Step::Blocked,
        Sent::Full | Sent::Refused(_) => Step::Full,
    }
}
