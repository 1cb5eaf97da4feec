//! STOP: for one program or for the queue, and where the next opener goes on.

use super::error::SessionError;
use super::{Key, Session};
use millrace_abi::control::QueueState;
use millrace_abi::register::{Controller, medusa as m};
use millrace_card::Card;
use millrace_dma::Ordering;

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

    pub(super) fn stop_queue(&mut self, card: &Card, force: bool) -> Result<(), SessionError> {
        if card.state(self.id) == Some(QueueState::Running) && !force {
            let registers = self.registers(card);
            if !self.protocol().may_stop(&registers) {
                return Err(SessionError::NotDrained(self.id));
            }
            // CONTROL lies at 0 in the blocks of all engines.
            registers.write32(m::CONTROL, Controller::of(self.engine).stop);
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
        let driven = self.driven.as_mut().and_then(|driven| driven.writer.take());
        let driven = driven.map(|writer| writer.position(self.base));
        let update = self.memory.update().map_or(0, |word| word.load(Ordering::Acquire));
        self.protocol().stopped_at(self.base, driven.or(said), update, self.id.direction)
    }
}
