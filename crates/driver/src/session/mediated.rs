//! What the driver does for programs that are in mediated mode.

use super::error::SessionError;
use super::page::Page;
use super::{Key, Session};
use millrace_abi::control::QueueState;
use millrace_abi::message::{Layout, Reply};
use millrace_abi::queue::QueueId;
use millrace_card::Card;

impl Session {
    pub(super) fn check_state(page: &Page, id: QueueId) -> Result<(), SessionError> {
        match page.state() {
            QueueState::Evicted => Err(SessionError::Evicted(id)),
            QueueState::Faulted(kind) => Err(SessionError::Faulted(id, kind)),
            QueueState::Running | QueueState::Stopped => Ok(()),
        }
    }

    /// Mediated RX: gives back and takes.
    pub fn rx_sync(&mut self, card: &Card, key: Key, release: u32, want: u32) -> Result<Reply, SessionError> {
        let place = self.place(key)?;
        let (id, member) = (self.id, &mut self.members[place]);
        Self::check_state(&member.page, id)?;
        let Some(reader) = &mut member.reader else {
            return Err(if member.started { SessionError::NotMediated(id) } else { SessionError::NotStarted(id) });
        };
        if release > 0 {
            reader.release(release);
            member.page.ring(card, id);
        }
        // What is still held comes first: it is what the program has not looked at yet.
        let units = if reader.held() > 0 { reader.held().min(want) } else { reader.hold(want) };
        Ok(Reply::RxGranted { position: reader.position().get(), units, lost: reader.take_lost() })
    }

    /// Mediated TX: commits under the lock, and takes or leaves the lock.
    pub fn tx_sync(&mut self, card: &Card, key: Key, commit: &[u16], want: u32) -> Result<Reply, SessionError> {
        let place = self.place(key)?;
        if !self.members[place].started {
            return Err(SessionError::NotStarted(self.id));
        }
        let (id, limits) = (self.id, self.limits);
        let Some(driven) = &mut self.driven else { return Err(SessionError::NotMediated(id)) };
        Self::check_state(&driven.page, id)?;
        let Some(writer) = &mut driven.writer else { return Err(SessionError::NotMediated(id)) };
        let granted = driven.lock.and_then(|(owner, units)| (owner == key).then_some(units));
        if !commit.is_empty() {
            let Some(mut left) = granted else { return Err(SessionError::Commit(id, 0)) };
            let size = match self.memory.layout {
                Layout::Medusa { buffer_size, .. } | Layout::Dd { buffer_size, .. } => buffer_size,
                Layout::Sze { .. } | Layout::Calypte { .. } => u32::MAX,
            };
            // All or none: a part that stayed behind would leave with the frames of the next writer.
            for &len in commit {
                let legal = (limits.0..=limits.1).contains(&len) && u32::from(len) <= size;
                let rest = if legal { left.checked_sub(writer.units(len)) } else { None };
                left = rest.ok_or(SessionError::Commit(id, len))?;
            }
            for &len in commit {
                if !writer.commit(len) {
                    return Err(SessionError::Commit(id, len));
                }
            }
            writer.flush();
            driven.page.ring(card, id);
        }
        let free = driven.lock.is_none() || granted.is_some();
        let units = if want > 0 && free { writer.available().min(want) } else { 0 };
        if free {
            driven.lock = (units > 0).then_some((key, units));
        }
        Ok(Reply::TxGranted { position: writer.position(self.base), units })
    }
}
