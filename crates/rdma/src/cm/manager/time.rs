//! What is due.

use super::Manager;
use crate::cm::address::ServiceId;
use crate::cm::connection::{Event, Id, State};
use crate::cm::message::reason;
use crate::number::Moment;

/// Most connections that one call looks at.
const BUDGET: usize = 64;

impl Manager {
    /// When [`Manager::tick`] is to be called next.
    pub fn next_due(&self) -> Option<Moment> {
        let early = self.early.front().map(|early| early.until);
        self.timers.first().map(|(due, _)| *due).into_iter().chain(early).min()
    }

    /// Does what is due, some of it: [`Manager::next_due`] is in the past where more is.
    pub fn tick(&mut self, now: Moment) {
        self.look_at_early(now);
        for _ in 0..BUDGET {
            let Some(&(due, id)) = self.timers.first() else { return };
            if due > now {
                return;
            }
            self.arm(id, None);
            self.due(now, id);
        }
    }

    /// Requests that came before their service was offered, and those for which it was not.
    fn look_at_early(&mut self, now: Moment) {
        for _ in 0..self.early.len() {
            let Some(early) = self.early.pop_front() else { return };
            let is_offered = self.listeners.contains_key(&ServiceId(early.request.service));
            if is_offered || early.until <= now {
                self.decide(early.from, early.transaction, *early.request);
            } else {
                self.early.push_back(early);
            }
        }
    }

    fn due(&mut self, now: Moment, id: Id) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let state = connection.state;
        if state.is_waiting() && connection.retries > 0 {
            connection.retries -= 1;
            let due = now + connection.every;
            self.counters.sent_again += 1;
            self.send_again(id);
            return self.arm(id, Some(due));
        }
        if state.is_waiting() {
            self.counters.timed_out += 1;
        }
        match state {
            State::Calling | State::Accepting => {
                self.tell(Event::Unreachable(id));
                self.dismiss(id, reason::TIMEOUT, [0; 148]);
            }
            State::Inquiring => self.fail(Event::Unreachable(id)),
            State::Leaving => self.end(now, id),
            State::Timewait => self.fail(Event::TimewaitOver(id)),
            State::Answered => self.forget(id),
            State::Replied | State::Asked | State::Established | State::Inquired | State::Withdrawn => {}
        }
    }
}
