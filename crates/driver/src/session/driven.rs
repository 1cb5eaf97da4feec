//! The software half of a queue that the driver drives, and who is let into it.

use super::error::SessionError;
use super::page::Page;
use super::{Key, Member, Session};
use crate::protocol::{Half, Writer};
use millrace_abi::queue::{Direction, Mode, QueueId};
use millrace_card::Card;
use millrace_dma::{Ordering, Word64};
use millrace_ring::cursor::{Cursor, Position, Subscriber};
use millrace_ring::shared::{Reader, Reclaimer};

/// A queue that the driver drives: its own control page, and for TX its half of the ring and the lock.
pub(super) struct Driven {
    pub(super) page: Page,
    pub(super) writer: Option<Box<dyn Writer>>,
    // Who may write, and how many units from the writer's position on.
    pub(super) lock: Option<(Key, u32)>,
}

impl Member {
    /// Makes this program the first subscriber of a queue that does not run yet.
    pub(super) fn first_of(&self, id: QueueId, mut reclaimer: Reclaimer) -> Result<Box<Reclaimer>, SessionError> {
        let joined = reclaimer.join(self.id, self.page.doorbell()?, self.policy, self.losses.clone());
        if joined { Ok(Box::new(reclaimer)) } else { Err(SessionError::Full(id)) }
    }
}

impl Session {
    /// What the driver's half of the ring, or of its reading, is made of.
    fn half(&self, doorbell: Word64) -> Result<Half<'_>, SessionError> {
        Ok(Half { memory: &self.memory, doorbell, update: self.memory.update()?, base: self.base })
    }

    /// Makes the software half of a queue that the driver drives.
    pub(super) fn make_half(&mut self, card: &Card, place: usize) -> Result<(), SessionError> {
        let bad = SessionError::Ring(self.id);
        let Some(driven) = &self.driven else { return Ok(()) };
        let half = self.half(driven.page.doorbell()?)?;
        match self.id.direction {
            Direction::Rx => {
                let pool = self.protocol().reclaimed(&half)?.ok_or(bad)?;
                let reclaimer = Reclaimer::new(pool, Position::new(self.base));
                card.set_reclaimer(self.id, self.members[place].first_of(self.id, reclaimer)?);
            }
            Direction::Tx => {
                let writer = self.protocol().writer(&half)?.ok_or(bad)?;
                if let Some(driven) = &mut self.driven {
                    driven.writer = Some(writer);
                }
            }
        }
        Ok(())
    }

    /// Lets one more program into a running queue that the driver drives.
    pub(super) fn join(&mut self, card: &Card, place: usize) -> Result<(), SessionError> {
        let member = &self.members[place];
        let opener = member.page.opener(member.id);
        let cursor = match self.id.direction {
            Direction::Rx => Some((member.policy, member.losses.clone())),
            Direction::Tx => None,
        };
        if card.join(self.id, opener, cursor) { Ok(()) } else { Err(SessionError::Full(self.id)) }
    }

    /// Where a program that is in begins; for a mediated reader, also the driver's half of its reading.
    pub(super) fn begin(&mut self, place: usize) -> Result<u64, SessionError> {
        let (id, base) = (self.id, self.base);
        if id.direction == Direction::Tx {
            return Ok(base);
        }
        let word = self.members[place].page.doorbell()?;
        let position = Cursor::decode(word.load(Ordering::Acquire)).position;
        if self.members[place].mode == Mode::Mediated {
            let ring = self.protocol().read_ring(&self.half(word.clone())?)?.ok_or(SessionError::OwnOnly(id))?;
            self.members[place].reader = Some(Reader::new(ring, Subscriber::new(word)));
        }
        Ok(position.get())
    }
}
