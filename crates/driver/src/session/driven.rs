//! The software half of a queue that the driver drives, and who is let into it.

use super::error::SessionError;
use super::page::Page;
use super::{Key, Member, Session};
use millrace_abi::message::Layout;
use millrace_abi::queue::{Direction, Mode, QueueId};
use millrace_card::Card;
use millrace_dma::Ordering;
use millrace_ring::cursor::{Cursor, Position, Subscriber};
use millrace_ring::medusa::{FixedRx, FixedTx, HostRx, HostTx};
use millrace_ring::shared::{self, ReadRing, Reader, Reclaimer};
use millrace_ring::{calypte, sze};

/// A queue that the driver drives: its own control page, and for TX its half of the ring and the lock.
pub(super) struct Driven {
    pub(super) page: Page,
    pub(super) writer: Option<Writer>,
    // Who may write, and how many units from the writer's position on.
    pub(super) lock: Option<(Key, u32)>,
}

/// The software half of a TX ring that the driver drives.
pub(super) enum Writer {
    Medusa(Box<FixedTx>),
    Sze(Box<sze::HostTx>),
    Calypte(Box<calypte::HostTx>),
}

impl Writer {
    /// Units that a frame takes.
    pub(super) fn units(&self, len: u16) -> u32 {
        match self {
            Writer::Medusa(_) => 1,
            Writer::Sze(_) => sze::HostTx::stride(len) / 8,
            Writer::Calypte(_) => calypte::HostTx::stride(len) / calypte::FRAME_ALIGN,
        }
    }

    pub(super) fn commit(&mut self, len: u16) -> bool {
        match self {
            Writer::Medusa(writer) => writer.take(1).is_some() && writer.post(len),
            Writer::Sze(writer) => {
                let fits = writer.has_room(sze::HostTx::stride(len));
                if fits {
                    writer.push(len);
                }
                fits
            }
            Writer::Calypte(writer) => {
                let fits = writer.has_room(calypte::HostTx::stride(len));
                if fits {
                    writer.push(len);
                }
                fits
            }
        }
    }

    pub(super) fn flush(&mut self) {
        match self {
            Writer::Medusa(writer) => writer.flush(),
            Writer::Sze(writer) => writer.flush(),
            Writer::Calypte(writer) => writer.flush(),
        }
    }

    pub(super) fn available(&mut self) -> u32 {
        match self {
            Writer::Medusa(writer) => writer.available(),
            Writer::Sze(writer) => writer.available() / 8,
            Writer::Calypte(writer) => writer.available() / calypte::FRAME_ALIGN,
        }
    }

    pub(super) fn position(&self, base: u64) -> u64 {
        match self {
            Writer::Medusa(writer) => u64::from(writer.next()),
            Writer::Sze(writer) => base + u64::from(writer.position()) / 8,
            Writer::Calypte(writer) => base + u64::from(writer.position() / calypte::FRAME_ALIGN),
        }
    }
}

impl Member {
    /// Makes this program the first subscriber of a queue that does not run yet.
    pub(super) fn first_of(&self, id: QueueId, mut reclaimer: Reclaimer) -> Result<Box<Reclaimer>, SessionError> {
        let joined = reclaimer.join(self.id, self.page.doorbell()?, self.policy, self.losses.clone());
        if joined { Ok(Box::new(reclaimer)) } else { Err(SessionError::Full(id)) }
    }
}

impl Session {
    /// Makes the software half of a queue that the driver drives.
    pub(super) fn make_half(&mut self, card: &Card, place: usize) -> Result<(), SessionError> {
        let bad = SessionError::Ring(self.id);
        let Some(driven) = &mut self.driven else { return Ok(()) };
        let (doorbell, update) = (driven.page.doorbell()?, self.memory.status.window().word64(0)?);
        let iovas = self.memory.iovas().into_boxed_slice();
        let (start, first) = (Position::new(self.base), self.base as u32);
        let descriptors = |entries| match &self.memory.descriptors {
            Some(region) => region.window().slots64(0, entries).map_err(SessionError::from),
            None => Err(SessionError::Ring(self.id)),
        };
        match (self.memory.layout, self.id.direction) {
            (Layout::Medusa { entries, headers_at, buffer_size, .. }, Direction::Rx) => {
                let descriptors = descriptors(entries)?;
                let headers = self.memory.status.window().slots32(headers_at as usize, entries)?;
                let host = HostRx::new(descriptors, headers, doorbell, update);
                let size = buffer_size.min(u16::MAX.into()) as u16;
                let pool = host.and_then(|host| FixedRx::new(host, iovas, size, first)).ok_or(bad)?;
                let reclaimer = Reclaimer::new(shared::Pool::Medusa(pool), start);
                card.set_reclaimer(self.id, self.members[place].first_of(self.id, reclaimer)?);
            }
            (Layout::Sze { .. }, Direction::Rx) => {
                let ring = self.memory.data.as_ref().map(|data| data.window().clone());
                let pool = ring.and_then(|ring| sze::HostRx::new(ring, first.wrapping_mul(8), 0, doorbell, update));
                let reclaimer = Reclaimer::new(shared::Pool::Sze(pool.ok_or(bad)?), start);
                card.set_reclaimer(self.id, self.members[place].first_of(self.id, reclaimer)?);
            }
            (Layout::Medusa { entries, .. }, Direction::Tx) => {
                let host = HostTx::new(descriptors(entries)?, doorbell, update);
                let writer = host.and_then(|host| FixedTx::new(host, iovas, first)).ok_or(bad)?;
                driven.writer = Some(Writer::Medusa(Box::new(writer)));
            }
            (Layout::Calypte { headers, headers_at, ring, .. }, Direction::Rx) => {
                let headers = self.memory.status.window().slots64(headers_at as usize, headers)?;
                let pool = calypte::HostRx::new(ring / calypte::BLOCK, headers, doorbell, update).ok_or(bad)?;
                let reclaimer = Reclaimer::new(shared::Pool::Calypte(pool), start);
                card.set_reclaimer(self.id, self.members[place].first_of(self.id, reclaimer)?);
            }
            (Layout::Calypte { headers, ring, .. }, Direction::Tx) => {
                let writer = calypte::HostTx::new(ring, descriptors(headers)?, update).ok_or(bad)?;
                driven.writer = Some(Writer::Calypte(Box::new(writer)));
            }
            // A DD queue is its program's own.
            (Layout::Dd { .. }, _) => return Err(bad),
            (Layout::Sze { .. }, Direction::Tx) => {
                let ring = self.memory.data.as_ref().map(|data| data.window().clone());
                let writer = ring.and_then(|ring| sze::HostTx::new(ring, first.wrapping_mul(8), doorbell, update));
                driven.writer = Some(Writer::Sze(Box::new(writer.ok_or(bad)?)));
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
        let member = &mut self.members[place];
        let word = member.page.doorbell()?;
        let position = Cursor::decode(word.load(Ordering::Acquire)).position;
        if member.mode == Mode::Mediated {
            let (update, start) = (self.memory.status.window().word64(0)?, Position::new(base));
            let ring = match self.memory.layout {
                Layout::Medusa { entries, headers_at, .. } => {
                    let headers = self.memory.status.window().slots32(headers_at as usize, entries)?;
                    ReadRing::Medusa { headers, update, base: start }
                }
                Layout::Sze { ring, .. } => ReadRing::Sze { update, size: ring, base: start },
                Layout::Dd { .. } => return Err(SessionError::OwnOnly(id)),
                Layout::Calypte { headers, headers_at, .. } => {
                    let headers = self.memory.status.window().slots64(headers_at as usize, headers)?;
                    ReadRing::Calypte { headers, update, base: start }
                }
            };
            member.reader = Some(Reader::new(ring, Subscriber::new(word)));
        }
        Ok(position.get())
    }
}
