//! A machine that has the function, in words: everything that another card has to know to go on with it. Nothing is changed here.

use super::Session;
use crate::handover::{Fds, SavedMachine, SavedStream, hex};
use millrace_abi::control::QueueState;
use millrace_abi::queue::{Direction, QueueId};
use rustix::fd::AsFd;

impl Session {
    /// Queues of this machine that run, of one direction.
    fn running(&self, direction: Direction) -> Vec<QueueId> {
        let card = self.function.driver.card();
        let runs = |id: &QueueId| id.direction == direction && card.state(*id) == Some(QueueState::Running);
        let mut all: Vec<QueueId> = self.locked.iter().copied().filter(runs).collect();
        all.sort_unstable();
        all
    }

    /// Takes its queues of one direction from their workers. Those that stop meanwhile have stopped.
    pub fn freeze(&self, direction: Direction) -> Result<(), String> {
        let card = self.function.driver.card();
        for id in self.running(direction) {
            if !card.freeze(id) && card.state(id) == Some(QueueState::Running) {
                return Err(format!("{id} cannot be handed over: its worker does not answer, or programs share it"));
            }
        }
        Ok(())
    }

    /// Whether nothing that its frozen queues have sent is still under way.
    pub fn is_drained(&self) -> bool {
        self.locked.iter().all(|&id| self.function.driver.card().is_drained(id))
    }

    /// Has those of its queues of one direction served (again) that are frozen, or were frozen in another card. `false`: a worker does not answer.
    pub fn go_on(&self, direction: Direction) -> bool {
        let card = self.function.driver.card();
        let all = self.locked.iter().filter(|id| id.direction == direction);
        all.filter(|id| !card.go_on(**id)).count() == 0
    }

    /// All of it, with the connection that it is reached by.
    pub fn save<'s>(&'s self, who: String, stream: SavedStream, fds: &mut Fds<'s>) -> Result<SavedMachine, String> {
        let card = self.function.driver.card();
        let mut locked: Vec<QueueId> = self.locked.iter().copied().collect();
        locked.sort_unstable();
        let save = |id: &QueueId| {
            card.save(*id).ok_or_else(|| format!("{id} cannot be handed over: its protocol ({:?})", card.engine(*id)))
        };
        Ok(SavedMachine {
            who,
            pid: self.pid,
            uid: self.interrupts.uid(),
            introduced: self.introduced,
            stream,
            configuration: hex(self.configuration.bytes()),
            msix_table: hex(&self.msix_table),
            test_space: hex(&self.test_space),
            clock: self.clock,
            vectors: self.interrupts.save(fds),
            memory: self.memory.save(fds)?,
            doorbells: fds.add(self.doorbells_fd.as_fd()),
            queues: locked.iter().map(save).collect::<Result<_, _>>()?,
        })
    }

    /// Another card has it: nothing is stopped, nothing is cleared, and its software is told nothing.
    pub fn leave(&mut self) {
        drop(self.client.take());
        self.locked.clear();
    }
}
