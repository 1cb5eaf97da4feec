//! Whose a queue is: locks of DMA controllers, and queues that are started through the registers.

use super::Server;
use super::connected::Connected;
use super::replies::{Answer, Enclosed, Refusal};
use crate::locks::Owner;
use crate::native::{self, Native, Own};
use crate::session::Session;
use millrace_abi::control::QueueState;
use millrace_abi::message::{ErrorCode, MAX_COMPONENT, Reply};
use millrace_abi::queue::QueueId;
use millrace_card::{Card, StartError};
use std::collections::HashMap;

/// Most locks that one connection may hold.
const MAX_LOCKS: usize = 256;

impl Server {
    pub(super) fn pid_of(&self, owner: Owner) -> u32 {
        let pid = match owner {
            Owner::Client(number) => self.clients.get(&number).map(Connected::shown_pid),
            Owner::Queue(id) => self.sessions.get(&id).and_then(|session| session.holders().first().copied()),
        };
        pid.unwrap_or(0)
    }

    pub(super) fn lock(&mut self, number: u64, component: &str, bits: u64) -> Result<Answer, Refusal> {
        let owner = Owner::Client(number);
        // A machine has one for each of its queues.
        let most = match self.clients.get(&number).and_then(|client| client.own.as_ref()) {
            Some(Own::Guest(guest)) => MAX_LOCKS.max(guest.queues.len()),
            _ => MAX_LOCKS,
        };
        if bits == 0 || component.len() > MAX_COMPONENT || self.locks.count(owner) >= most {
            let text = "a lock names a component and at least one feature, and a program has few of them";
            return Err(Refusal::new(ErrorCode::Invalid, text));
        }
        self.settle();
        self.locks.lock(component, bits, owner).map_err(|held| {
            let pid = self.pid_of(held.owner);
            Refusal::new(ErrorCode::Busy, format!("{component} is locked by process {pid}"))
        })?;
        Ok((Reply::Done, Enclosed::Nothing))
    }

    /// Locks the DMA controller of a queue that is going to run, so that nobody starts it through its registers.
    pub(super) fn lock_queue(&mut self, id: QueueId) -> Result<(), Refusal> {
        self.settle();
        let busy = |pid| {
            let text = format!("{id} is in use by process {pid}, which has locked its DMA controller; stop it there");
            Err(Refusal::new(ErrorCode::Busy, text))
        };
        let owner = Owner::Queue(id);
        match self.locks.holder(controller(&self.controllers, id), native::RUNNING) {
            Some(holder) if holder == owner => return Ok(()),
            Some(holder) => return busy(self.pid_of(holder)),
            None => {}
        }
        // One that was unlocked before it had stopped.
        if let Some(native) = self.natives.get(&id)
            && self.card.state(id) == Some(QueueState::Running)
        {
            return busy(self.pid_of(Owner::Client(native.client)));
        }
        self.end_natives(|queue, _, _| queue == id);
        // Free, as was seen above.
        let _ = self.locks.lock(controller(&self.controllers, id), native::RUNNING, owner);
        Ok(())
    }

    /// Unlocks the DMA controller of a queue unless it runs.
    pub(super) fn unlock_queue(&mut self, id: QueueId) {
        if !self.sessions.get(&id).is_some_and(Session::is_running) {
            self.locks.unlock(controller(&self.controllers, id), native::RUNNING, Owner::Queue(id));
        }
    }

    /// Carries out a write to registers.
    pub(super) fn write(&mut self, number: u64, address: u32, bytes: &[u8]) {
        if !native::touches_control(address, bytes) {
            return self.card.write(address, bytes);
        }
        for (at, word) in native::words(address, bytes) {
            match native::control_at(at) {
                Some(id) => self.control(number, id, at, word),
                None => self.card.write(at, word),
            }
        }
    }

    /// A write to the CONTROL register of a queue: what a program starts this way runs on the program's own memory.
    pub(super) fn control(&mut self, number: u64, id: QueueId, at: u32, word: &[u8]) {
        self.settle();
        if native::is_start(at, word) {
            if let Err(why) = self.attach_native(number, id) {
                return self.card.refuse(id, why);
            }
            self.card.write(at, word);
            if self.card.refusal(id).is_some() {
                self.end_natives(|queue, _, _| queue == id);
            }
            return;
        }
        self.card.write(at, word);
        // RX has stopped by now, TX when it is drained; one that faulted stays as it is until this.
        self.end_natives(|queue, _, card| queue == id && card.state(id) != Some(QueueState::Running));
    }

    pub(super) fn attach_native(&mut self, number: u64, id: QueueId) -> Result<(), StartError> {
        if self.card.state(id) == Some(QueueState::Running) {
            return Err(StartError::Running(id));
        }
        if self.sessions.get(&id).is_some_and(Session::is_running) {
            return Err(StartError::Held(id));
        }
        let own = self.clients.get(&number).and_then(|client| client.own.clone());
        let own = own.ok_or(StartError::NotAttached(id))?;
        self.end_natives(|queue, _, _| queue == id);
        let owner = Owner::Client(number);
        let path = controller(&self.controllers, id);
        let locked = match self.locks.holder(path, native::RUNNING) {
            Some(holder) if holder == owner => false,
            Some(_) => return Err(StartError::Held(id)),
            None => self.locks.lock(path, native::RUNNING, owner).is_ok(),
        };
        self.natives.insert(id, Native { client: number, locked });
        native::attach(&self.card, id, &own).inspect_err(|_| self.end_natives(|queue, _, _| queue == id))
    }

    /// Queues that a machine has started through the registers; of a program, none.
    pub(super) fn started_by_guest(&self, number: u64) -> Vec<QueueId> {
        let own = self.clients.get(&number).and_then(|client| client.own.as_ref());
        let natives = self.natives.iter().filter(|_| matches!(own, Some(Own::Guest(_))));
        natives.filter(|(_, native)| native.client == number).map(|(id, _)| *id).collect()
    }

    /// Stops queues that were started through the registers, at once, and takes their memory off the card.
    pub(super) fn end_natives(&mut self, which: impl Fn(QueueId, &Native, &Card) -> bool) {
        let Self { natives, card, locks, controllers, .. } = self;
        natives.retain(|&id, native| {
            let ends = which(id, native, card);
            if ends {
                card.detach(id);
                if native.locked {
                    locks.unlock(controller(controllers, id), native::RUNNING, Owner::Client(native.client));
                }
            }
            !ends
        });
    }

    /// Takes note of queues started through the registers that have drained and stopped meanwhile.
    pub(super) fn settle(&mut self) {
        self.end_natives(|id, _, card| card.state(id) == Some(QueueState::Stopped));
    }
}

/// Path of the DMA controller of a queue.
fn controller(controllers: &HashMap<QueueId, String>, id: QueueId) -> &str {
    controllers.get(&id).map_or("", String::as_str)
}
