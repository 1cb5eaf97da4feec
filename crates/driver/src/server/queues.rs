//! Queues are opened and closed.

use super::Server;
use super::charges::QueueCost;
use super::replies::{Refusal, no_handle};
use super::sending::Sent;
use crate::session::{Session, Wish};
use millrace_abi::message::{ErrorCode, Handle};
use millrace_abi::queue::{QueueId, Sharing};

impl Server {
    /// Opens a queue and replies. `false`: the connection is to be ended.
    pub(super) fn open(&mut self, number: u64, wish: Wish) -> bool {
        let key = match self.try_open(number, wish) {
            Ok(key) => key,
            Err(refusal) => return self.reply(number, &refusal.into_reply()),
        };
        let opened = self.sessions.get(&wish.id).and_then(|session| session.opened(key));
        let sent = opened.map_or(Sent::Lost, |(reply, fds)| self.send_reply(number, &reply, &fds));
        if sent == Sent::NoFds {
            // As if it had never been.
            if let Some(client) = self.clients.get_mut(&number) {
                client.queues.remove(&key.1);
                client.standing.closed(key.1);
            }
            self.close_queue(wish.id, key);
            self.settle_with(number, |standing| standing.closed(key.1));
            return self.reply(number, &Refusal::no_fds().into_reply());
        }
        if let Some(session) = self.sessions.get_mut(&wish.id) {
            session.handed_over(key);
        }
        sent == Sent::Whole
    }

    pub(super) fn try_open(&mut self, number: u64, wish: Wish) -> Result<crate::session::Key, Refusal> {
        self.clear_queue(wish.id);
        let unknown = || Refusal::new(ErrorCode::NotFound, format!("this card has no queue {}", wish.id));
        let engine = self.card.engine(wish.id).ok_or_else(unknown)?;
        let own_ring = wish.has_own_ring();
        let queue_charge = self.charge_queue(number, own_ring)?;
        let kick = self.kick(number, self.card.worker_of(wish.id).ok_or_else(unknown)?)?;
        let Some(client) = self.clients.get_mut(&number) else { return Err(unknown()) };
        let key = (number, Handle(client.next_handle));
        if !self.sessions.contains_key(&wish.id) {
            let session = Session::open(&self.card, engine, wish, &client.domain, &client.mapped)?;
            self.sessions.insert(wish.id, session);
        }
        let Some(session) = self.sessions.get_mut(&wish.id) else { return Err(unknown()) };
        if let Err(error) = session.add(&self.card, wish, key, (client.pid, client.standing.peer.uid), kick) {
            self.dissolve_if_empty(wish.id);
            return Err(error.into());
        }
        client.next_handle += 1;
        let cost = QueueCost { memory: session.memory_of(key), shared: wish.sharing != Sharing::Exclusive };
        match self.charge_memory(number, cost) {
            Ok(memory_charge) => self.paid(number, key.1, [queue_charge, memory_charge]),
            Err(refusal) => {
                self.close_queue(wish.id, key);
                return Err(refusal);
            }
        }
        if let Some(client) = self.clients.get_mut(&number) {
            client.queues.insert(key.1, wish.id);
        }
        Ok(key)
    }

    pub(super) fn queue_of(&self, number: u64, handle: Handle) -> Result<(QueueId, crate::session::Key), Refusal> {
        let id = self.clients.get(&number).and_then(|client| client.queues.get(&handle));
        id.map(|&id| (id, (number, handle))).ok_or_else(|| no_handle(handle))
    }

    pub(super) fn close_queue(&mut self, id: QueueId, key: crate::session::Key) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some(position) = session.close(&self.card, key) {
            self.positions.insert(id, position);
        }
        self.dissolve_if_empty(id);
        self.unlock_queue(id);
    }

    /// Frees the memory of a queue that nobody has open.
    fn dissolve_if_empty(&mut self, id: QueueId) {
        if self.sessions.get(&id).is_some_and(Session::is_empty)
            && let Some(session) = self.sessions.remove(&id)
        {
            session.dissolve(&self.card);
        }
    }
}
