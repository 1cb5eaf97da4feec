//! Requests that come again (volume 1, 9.7.4.1.3, table 34).

use super::{Job, Responder};
use crate::memory::{Memory, Refused};
use crate::number::Psn;
use crate::transport::{Broken, Config, Environment};
use crate::wire::{Opcode, Packet, Reth};
use crate::work::Access;

/// READs of a connection that come again may ask so often for what they have no access to, each of them for something else. Who repeats what he
/// has asked for finds it, unless it was taken away meanwhile, and has no more on his way; who guesses keys does not.
const MOST_GUESSES: u8 = 16;

impl Responder {
    /// A request that was done already.
    pub(super) fn duplicate<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        packet: &Packet<'_>,
    ) -> Result<(), Broken> {
        env.counters.duplicate += 1;
        let psn = packet.headers.psn;
        match (packet.headers.opcode, packet.headers.reth) {
            (Opcode::Send { .. } | Opcode::Write { .. }, _) => self.acknowledge = true,
            (Opcode::ReadRequest, Some(reth)) => return self.read_again(config, env, psn, reth),
            (Opcode::CompareSwap | Opcode::FetchAdd, _) => self.found_again(config, env, psn),
            _ => env.counters.wrong_opcode += 1,
        }
        Ok(())
    }

    /// What is read is read again: memory has no copy of what it was, and need not (volume 1, 9.7.5.1.2).
    fn read_again<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        psn: Psn,
        reth: Reth,
    ) -> Result<(), Broken> {
        let Reth { address, rkey, len } = reth;
        let packets = config.packets(len);
        let is_all_old = len <= env.options.max_message && (psn + packets).since(self.expected) <= 0;
        if !is_all_old || !config.access.allows(Access::REMOTE_READ) {
            env.counters.duplicate_forgotten += 1;
            return Ok(());
        }
        if self.go_back_in_jobs(psn) {
            return Ok(());
        }
        let allowed = match len {
            0 => Ok(()),
            len => env.memory.allows(config.asker, rkey, address, u64::from(len), Access::REMOTE_READ),
        };
        if let Err(refused) = allowed {
            env.counters.duplicate_forgotten += 1;
            return self.count_guess(config, env, reth, refused);
        }
        if self.jobs.len() >= 2 * usize::from(config.max_dest_rd_atomic) {
            env.counters.duplicate_forgotten += 1;
            return Ok(());
        }
        self.jobs.push_back(Job::Read { psn, address, rkey, len, packets, next: 0 });
        Ok(())
    }

    /// Somebody asks again for what he has no access to. Not for the first time he would be refused.
    #[cold]
    fn count_guess<M>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        wanted: Reth,
        refused: Refused,
    ) -> Result<(), Broken> {
        if refused == Refused::Gone || self.guesses.1 == Some(wanted) {
            return Ok(());
        }
        self.guesses = (self.guesses.0 + 1, Some(wanted));
        if self.guesses.0 < MOST_GUESSES {
            return Ok(());
        }
        self.refuse_access(config, env);
        Err(Broken)
    }

    /// If that number is being answered, it is answered from there on.
    fn go_back_in_jobs(&mut self, wanted: Psn) -> bool {
        for job in &mut self.jobs {
            if let Job::Read { psn, packets, next, .. } = job {
                let packet = wanted.since(*psn);
                if packet >= 0 && packet.unsigned_abs() < *packets {
                    *next = (*next).min(packet.unsigned_abs());
                    return true;
                }
            }
        }
        false
    }

    /// An atomic operation is not done again; what it found is said again.
    fn found_again<M>(&mut self, config: &Config, env: &mut Environment<'_, M>, wanted: Psn) {
        let is_on_its_way = self.jobs.iter().any(|job| matches!(job, Job::Atomic { psn, .. } if *psn == wanted));
        if is_on_its_way {
            return;
        }
        // The latest of that number: numbers come again.
        let found = self.replay.iter().rev().find(|(psn, _)| *psn == wanted);
        match found {
            Some(&(psn, original)) if self.jobs.len() < 2 * usize::from(config.max_dest_rd_atomic) => {
                self.jobs.push_back(Job::Atomic { psn, original });
            }
            _ => env.counters.duplicate_forgotten += 1,
        }
    }
}
