//! A direct writer of a shared TX queue, who has a ring to itself.

use super::Session;
use super::error::SessionError;
use super::page::Page;
use crate::memory::QueueMemory;
use millrace_abi::control::QueueState;
use millrace_abi::message::{Buffers, Layout};
use millrace_abi::queue::{Engine, QueueId};
use millrace_card::{Card, RingPins, RingProgram};
use millrace_dma::{Domain, Ordering};
use millrace_ring::calypte;
use std::sync::Arc;

/// The ring that a direct writer of a shared TX queue has to itself.
pub(super) struct OwnRing {
    pub(super) memory: QueueMemory,
    pub(super) domain: Arc<Domain>,
    pub(super) pins: Option<RingPins>,
}

impl OwnRing {
    pub(super) fn new(id: QueueId, engine: Engine, card: &Card) -> Result<Self, SessionError> {
        let domain = Arc::new(Domain::new());
        let memory = QueueMemory::new(id, engine, card.options(), Buffers::Driver, &domain)?;
        Ok(Self { memory, domain, pins: None })
    }

    pub(super) fn mask(&self) -> u32 {
        match self.memory.layout {
            Layout::Medusa { entries, .. } | Layout::Dd { entries, .. } => entries - 1,
            Layout::Sze { ring, .. } | Layout::Calypte { ring, .. } => ring - 1,
        }
    }

    pub(super) fn program(&self) -> Result<RingProgram, SessionError> {
        let (desc_base, update_base) = (self.memory.descriptors_at().get(), self.memory.update_at().get());
        Ok(RingProgram { desc_base, update_base, mask: self.mask(), buffers: self.memory.buffers()? })
    }

    /// Whether the card has taken everything up to the doorbell in `page`, or, for Calypte, up to the last header.
    pub(super) fn is_drained(&self, page: &Page) -> Result<bool, SessionError> {
        let (doorbell, update) = (page.doorbell()?, self.memory.status.window().word64(0)?);
        if let (Layout::Calypte { headers, .. }, Some(region)) = (self.memory.layout, &self.memory.descriptors) {
            let asked = calypte::announced(&region.window().slots64(0, headers)?);
            // Acquire as below.
            return Ok(asked == calypte::Pointers::decode(update.load(Ordering::Acquire)).headers);
        }
        // Acquire pairs with the Release of the card's update word.
        let (asked, done) = (doorbell.load(Ordering::Relaxed) as u32, update.load(Ordering::Acquire) as u32);
        Ok((asked ^ done) & self.mask() == 0)
    }
}

impl Session {
    /// Starts the ring of a direct writer beside the one that the driver drives.
    pub(super) fn start_ring(&mut self, card: &Card, place: usize) -> Result<(), SessionError> {
        let (id, member) = (self.id, &mut self.members[place]);
        let Some(ring) = &mut member.ring else { return Ok(()) };
        ring.memory.prepare(0)?;
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
