//! A direct writer of a shared TX queue, who has a ring to itself.

use super::Session;
use super::error::SessionError;
use super::page::Page;
use crate::memory::QueueMemory;
use crate::protocol::{QueueProtocol, protocol};
use millrace_abi::control::QueueState;
use millrace_abi::message::Buffers;
use millrace_abi::queue::{Engine, QueueId};
use millrace_card::{Card, RingPins, RingProgram};
use millrace_dma::{Domain, Ordering};
use std::sync::Arc;

/// The ring that a direct writer of a shared TX queue has to itself.
pub(super) struct OwnRing {
    protocol: &'static dyn QueueProtocol,
    pub(super) memory: QueueMemory,
    pub(super) domain: Arc<Domain>,
    pub(super) pins: Option<RingPins>,
}

impl OwnRing {
    pub(super) fn new(id: QueueId, engine: Engine, card: &Card) -> Result<Self, SessionError> {
        let domain = Arc::new(Domain::new());
        let protocol = protocol(engine);
        let memory = protocol.allocate(id, card.options(), Buffers::Driver, &domain)?;
        Ok(Self { protocol, memory, domain, pins: None })
    }

    pub(super) fn program(&self) -> Result<RingProgram, SessionError> {
        let (desc_base, update_base) = (self.memory.descriptors_at().get(), self.memory.update_at().get());
        let (mask, buffers) = (self.protocol.mask(&self.memory), self.protocol.buffers(&self.memory)?);
        Ok(RingProgram { desc_base, update_base, mask, buffers })
    }

    /// Whether the card has taken everything.
    pub(super) fn is_drained(&self, page: &Page) -> Result<bool, SessionError> {
        Ok(self.protocol.is_drained(&self.memory, &page.doorbell()?)?)
    }
}

impl Session {
    /// Starts the ring of a direct writer beside the one that the driver drives.
    pub(super) fn start_ring(&mut self, card: &Card, place: usize) -> Result<(), SessionError> {
        let (id, member) = (self.id, &mut self.members[place]);
        let Some(ring) = &mut member.ring else { return Ok(()) };
        ring.protocol.prepare(&ring.memory, 0)?;
        member.page.doorbell()?.store(0, Ordering::Relaxed);
        let opener = member.page.opener(member.id);
        let pins = card.add_ring(id, &ring.program()?, ring.domain.clone(), opener);
        ring.pins = Some(pins.map_err(|error| SessionError::Start(id, error))?);
        Ok(())
    }

    /// Stops the ring of a direct writer. What was not taken is lost if `force`.
    pub(super) fn stop_ring(&mut self, card: &Card, place: usize, force: bool) -> Result<(), SessionError> {
        let (id, member) = (self.id, &mut self.members[place]);
        let Some(ring) = &mut member.ring else { return Ok(()) };
        if !force && member.page.state() == QueueState::Running && !ring.is_drained(&member.page)? {
            return Err(SessionError::NotDrained(id));
        }
        card.drop_ring(id, member.id);
        ring.pins = None;
        Ok(())
    }
}
