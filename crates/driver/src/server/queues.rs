//! Queues are opened and closed.

use super::Server;
use super::replies::{Refusal, no_handle};
use crate::session::{Session, Wish};
use millrace_abi::message::{ErrorCode, Handle, Reply};
use millrace_abi::queue::QueueId;

impl Server {
    pub(super) fn open(&mut self, number: u64, wish: Wish) -> bool {
        match self.try_open(number, wish) {
            Ok(key) => {
                let opened = self.sessions.get(&wish.id).and_then(|session| session.opened(key));
                let replied = opened.is_some_and(|(reply, fds)| self.reply(number, &reply, &fds));
                if let Some(session) = self.sessions.get_mut(&wish.id) {
                    session.handed_over(key);
                }
                replied
            }
            Err(Refusal(code, text)) => self.reply(number, &Reply::Error { code, text }, &[]),
        }
    }

    pub(super) fn try_open(&mut self, number: u64, wish: Wish) -> Result<crate::session::Key, Refusal> {
        let unknown = || Refusal::new(ErrorCode::NotFound, format!("this card has no queue {}", wish.id));
        let engine = self.card.engine(wish.id).ok_or_else(unknown)?;
        let Some(client) = self.clients.get_mut(&number) else { return Err(unknown()) };
        let key = (number, Handle(client.next_handle));
        let kick = client.kick(self.card.worker_of(wish.id).ok_or_else(unknown)?)?;
        let fresh = !self.sessions.contains_key(&wish.id);
        if fresh {
            let session = Session::open(&self.card, engine, wish, &client.domain, &client.mapped)?;
            self.sessions.insert(wish.id, session);
        }
        let Some(session) = self.sessions.get_mut(&wish.id) else { return Err(unknown()) };
        if let Err(error) = session.add(&self.card, wish, key, client.pid, kick) {
            if fresh && let Some(session) = self.sessions.remove(&wish.id) {
                session.dissolve(&self.card);
            }
            return Err(error.into());
        }
        client.next_handle += 1;
        client.queues.insert(key.1, wish.id);
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
        if session.is_empty()
            && let Some(session) = self.sessions.remove(&id)
        {
            session.dissolve(&self.card);
        }
        self.unlock_queue(id);
    }
}
