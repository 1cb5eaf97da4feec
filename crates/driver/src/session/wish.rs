//! What a program asks for when it opens a queue.

use super::error::SessionError;
use crate::protocol::protocol;
use millrace_abi::message::Buffers;
use millrace_abi::queue::{Direction, Engine, Joiners, Mode, QueueId, Sharing};
use millrace_abi::register::medusa as m;
use millrace_card::LentPool;
use millrace_dma::{Domain, Iova, Region};
use std::collections::HashMap;
use std::sync::Arc;

/// What a program asks for when it opens a queue.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub id: QueueId,
    pub mode: Mode,
    pub sharing: Sharing,
    pub buffers: Buffers,
    pub joiners: Option<Joiners>,
}

impl Wish {
    /// Whether the opener gets a ring of its own, beside that of the queue.
    pub fn has_own_ring(&self) -> bool {
        self.id.direction == Direction::Tx && self.mode == Mode::Direct && self.sharing != Sharing::Exclusive
    }

    pub(super) fn check(&self, engine: Engine) -> Result<(), SessionError> {
        let own = self.sharing == Sharing::Exclusive && self.mode == Mode::Direct;
        let protocol = protocol(engine);
        if protocol.is_own_only() && !own {
            return Err(SessionError::OwnOnly(self.id));
        }
        if matches!(self.buffers, Buffers::Pool { .. }) && !protocol.takes_pools() {
            return Err(SessionError::NoPools(self.id, engine));
        }
        if let Some(entries) = self.buffers.entries() {
            if !protocol.takes_buffers() || !own {
                return Err(SessionError::Supplied(self.id));
            }
            if !entries.is_power_of_two() || !(8..=m::MAX_ENTRIES).contains(&entries) {
                return Err(SessionError::Entries(entries));
            }
        }
        Ok(())
    }

    /// The pool of an RX queue, in memory that the program has mapped.
    pub(super) fn pool(
        &self,
        domain: &Arc<Domain>,
        mapped: &HashMap<u64, Region>,
    ) -> Result<Option<LentPool>, SessionError> {
        let Buffers::Pool { at, size, stride, count, .. } = self.buffers else { return Ok(None) };
        let fits = |region: &&Region| {
            let len = u64::from(stride) * u64::from(count);
            region.window().is_writable() && size > 0 && size <= stride && count > 0 && len <= region.len() as u64
        };
        let region = mapped.get(&at).filter(fits).ok_or(SessionError::NoPool(at, count))?;
        let (region, base, domain) = (region.clone(), Iova::new(at), domain.clone());
        let pool = LentPool { region, size, stride, count, base, domain };
        Ok((self.id.direction == Direction::Rx).then_some(pool))
    }
}
