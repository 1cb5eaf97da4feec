//! STOP: for one program or for the queue, and where the next opener goes on.

use super::driven::Writer;
use super::error::SessionError;
use super::{Key, Session};
use millrace_abi::control::QueueState;
use millrace_abi::queue::{Direction, Engine};
use millrace_abi::register::{medusa as m, sze as s};
use millrace_card::Card;
use millrace_dma::Ordering;
use millrace_ring::calypte;
use millrace_ring::cursor::Position;

impl Session {
    /// Stops the queue for one program. Returns the position for the next opener once the queue itself has stopped.
    pub fn stop(
        &mut self,
        card: &Card,
        key: Key,
        force: bool,
        position: Option<u64>,
    ) -> Result<Option<u64>, SessionError> {
        let place = self.place(key)?;
        if !self.members[place].started {
            return Err(SessionError::NotStarted(self.id));
        }
        self.stop_ring(card, place, force)?;
        let position = position.filter(|_| self.members[place].ring.is_none());
        let others = self.members.iter().enumerate().any(|(other, member)| other != place && member.started);
        if let Some(driven) = &mut self.driven {
            driven.lock = driven.lock.filter(|(owner, _)| *owner != key);
            let member = &mut self.members[place];
            if others {
                card.leave(self.id, member.id);
                (member.started, member.reader) = (false, None);
                return Ok(None);
            }
        }
        self.stop_queue(card, force)?;
        let member = &mut self.members[place];
        (member.started, member.reader) = (false, None);
        Ok(Some(self.position_at_stop(position)))
    }

    /// §3.2.3 for Medusa, Calypte and DD, "Stop" of §3.1 for SZE.
    pub(super) fn stop_queue(&mut self, card: &Card, force: bool) -> Result<(), SessionError> {
        if card.state(self.id) == Some(QueueState::Running) && !force {
            if self.engine == Engine::Sze && self.id.direction == Direction::Tx {
                // SZE drains before CONTROL is touched.
                if self.read32(card, s::HW_POINTER) != self.read32(card, s::SW_POINTER) {
                    return Err(SessionError::NotDrained(self.id));
                }
            }
            let value = if self.engine == Engine::Sze { s::CONTROL_DISCARD } else { m::CONTROL_STOP };
            self.control(card, value);
            if card.state(self.id) == Some(QueueState::Running) {
                return Err(SessionError::NotDrained(self.id));
            }
        }
        card.detach(self.id);
        self.running = false;
        Ok(())
    }

    /// Where the next opener goes on: what software says, where it moved the pointers, otherwise what the card did.
    pub(super) fn position_at_stop(&mut self, said: Option<u64>) -> u64 {
        if self.engine == Engine::Dd {
            return 0;
        }
        let driven = match self.driven.as_mut().and_then(|driven| driven.writer.take()) {
            Some(Writer::Medusa(writer)) => Some(u64::from(writer.next())),
            Some(Writer::Sze(writer)) => Some(self.base + u64::from(writer.position()) / 8),
            Some(Writer::Calypte(writer)) => Some(u64::from(writer.position() / calypte::FRAME_ALIGN)),
            None => None,
        };
        let update = self.memory.status.window().word64(0).map_or(0, |word| word.load(Ordering::Acquire));
        let passed = match (self.engine, self.id.direction) {
            (Engine::Sze, _) => (update as u32 / 8).into(),
            (Engine::Medusa | Engine::Calypte | Engine::Dd, Direction::Rx) => update >> 32,
            (Engine::Medusa | Engine::Calypte | Engine::Dd, Direction::Tx) => update & 0xffff_ffff,
        };
        Position::new(driven.or(said).unwrap_or(self.base + passed)).get()
    }
}
