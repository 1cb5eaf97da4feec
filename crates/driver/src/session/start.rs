//! START: memory made ready, attached to the card, registers, and the driver's half where it has one.

use super::error::SessionError;
use super::{Key, Session};
use millrace_abi::control::QueueState;
use millrace_abi::message::Reply;
use millrace_abi::register::medusa as m;
use millrace_card::{Attachment, Card};
use millrace_dma::Ordering;
use millrace_ring::cursor::Position;

impl Session {
    /// Starts the queue, or joins those who have. `position` is where the last owner stopped, in units.
    pub fn start(&mut self, card: &Card, key: Key, position: u64) -> Result<Reply, SessionError> {
        let place = self.place(key)?;
        if self.members[place].started {
            return Err(SessionError::Started(self.id));
        }
        if self.running
            && let Some(QueueState::Faulted(kind)) = card.state(self.id)
        {
            if self.members.iter().any(|member| member.started) {
                return Err(SessionError::Faulted(self.id, kind));
            }
            self.running = false;
        }
        if !self.running {
            // The first program is there before the first packet: a source that waits for a listener starts at once.
            self.start_queue(card, place, position)?;
        } else if self.driven.is_some() && self.members[place].ring.is_none() {
            self.join(card, place)?;
        }
        if self.members[place].ring.is_some() {
            self.start_ring(card, place)?;
            self.members[place].started = true;
            return Ok(Reply::Started { position: 0, base: 0 });
        }
        let position = if self.driven.is_some() { self.begin(place)? } else { self.base };
        self.members[place].started = true;
        Ok(Reply::Started { position, base: self.base })
    }

    pub(super) fn start_queue(&mut self, card: &Card, place: usize, position: u64) -> Result<(), SessionError> {
        let position = Position::new(position).get();
        let protocol = self.protocol();
        self.base = protocol.base(position);
        protocol.prepare(&self.memory, self.base)?;
        let member = &self.members[place];
        let page = self.driven.as_ref().map_or(&member.page, |driven| &driven.page);
        page.doorbell()?.store(0, Ordering::Relaxed);
        let mut openers = Vec::new();
        if member.ring.is_none() {
            openers.push(member.page.opener(member.id));
        }
        if self.driven.is_some() {
            openers.push(page.opener(0));
        }
        let control = page.region.window().clone();
        let buffers = protocol.buffers(&self.memory)?;
        let attachment =
            Attachment { domain: self.domain.clone(), control, reclaimer: None, openers, buffers, is_noted: false };
        let id = self.id;
        let failed = |error| SessionError::Start(id, error);
        card.detach(id);
        card.attach(self.id, attachment).map_err(failed)?;
        protocol.program(&self.registers(card), &self.memory);
        if self.driven.is_some() {
            self.make_half(card, place).inspect_err(|_| card.detach(id))?;
        }
        // CONTROL lies at 0 in the blocks of all engines, and its bit 0 says START.
        self.registers(card).write32(m::CONTROL, m::CONTROL_START);
        // Not by its state: a ring that held nonsense may have stopped it already, which its next call will say.
        if let Some(error) = card.refusal(self.id) {
            card.detach(self.id);
            return Err(failed(error));
        }
        self.running = true;
        if let Some(pool) = self.pool.clone() {
            // A fault means that the program has unmapped it since.
            let shared = card.lend_pool(id, pool);
            shared.unwrap_or_else(|fault| tracing::warn!(queue = %id, %fault, "frames are copied into the pool"));
        }
        Ok(())
    }
}
