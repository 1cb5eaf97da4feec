//! MSI-X as a client of vfio sets it: an eventfd for each vector, and which of them are masked.
//!
//! An interrupt that comes while its vector has no eventfd, or is masked, waits until it has one and is not. So does one that the system could not
//! send: it is tried again, since whoever sleeps until it comes would sleep for ever.

use crate::counters::{Counting, count};
use crate::handover::{Fds, SavedVector, TakenFds};
use crate::wire::message::{Action, Data, MSIX, SetInterrupts};
use millrace_port::{Bell, check_event};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::Arc;

#[derive(Default)]
struct Vector {
    event: Option<Arc<Bell>>,
    masked: bool,
    pending: bool,
}

/// The vectors of a function.
pub(crate) struct Interrupts {
    vectors: Vec<Vector>,
    // Whose machine it is.
    uid: u32,
    // Whether one waits that the system could not send.
    unsent: bool,
    // How one is sent; `false`: the system cannot at the moment.
    send: fn(&Arc<Bell>) -> bool,
}

impl Interrupts {
    /// Of a machine of this user, who may watch its events as often as he likes.
    pub fn new(vectors: u32, uid: u32) -> Self {
        let vectors = (0..vectors).map(|_| Vector::default()).collect();
        Self { vectors, uid, unsent: false, send: Bell::try_ring }
    }

    /// All in words; events as [`Fds::add`] has numbered them.
    pub fn save<'s>(&'s self, fds: &mut Fds<'s>) -> Vec<SavedVector> {
        let save = |vector: &'s Vector| SavedVector {
            event: vector.event.as_ref().and_then(|event| event.fd()).map(|event| fds.add(event)),
            masked: vector.masked,
            pending: vector.pending,
        };
        self.vectors.iter().map(save).collect()
    }

    /// As they were in another card. One that the system could not send there is tried again here.
    pub fn restore(saved: &[SavedVector], uid: u32, fds: &mut TakenFds) -> Result<Self, String> {
        let mut all = Self::new(saved.len() as u32, uid);
        for (vector, saved) in all.vectors.iter_mut().zip(saved) {
            let event = saved.event.map(|event| fds.take(event)).transpose()?;
            if event.as_ref().is_some_and(|event| check_event(event).is_err()) {
                return Err("the event of an interrupt is none".to_owned());
            }
            vector.event = event.map(|event| Bell::event(uid, event));
            (vector.masked, vector.pending) = (saved.masked, saved.pending);
            all.unsent |= vector.pending && !vector.masked && vector.event.is_some();
        }
        Ok(all)
    }

    /// All of them: the event, and whether it is masked.
    pub fn vectors(&self) -> impl Iterator<Item = (Option<Arc<Bell>>, bool)> {
        self.vectors.iter().map(|vector| (vector.event.clone(), vector.masked))
    }

    /// Whose machine it is.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// What there are of a kind.
    pub fn count(&self, kind: u32) -> u32 {
        if kind == MSIX { self.vectors.len() as u32 } else { 0 }
    }

    /// Sends one, or remembers that it was to be sent.
    pub fn fire(&mut self, vector: u32, counting: &Counting) {
        let Some(vector) = self.vectors.get_mut(vector as usize) else { return };
        match &vector.event {
            Some(event) if !vector.masked => {
                vector.pending = !(self.send)(event);
                self.unsent |= vector.pending;
                count(if vector.pending { &counting.unsent_interrupts } else { &counting.interrupts });
            }
            _ => {
                if !core::mem::replace(&mut vector.pending, true) {
                    count(&counting.pending_interrupts);
                }
            }
        }
    }

    /// Whether some wait that the system could not send.
    pub fn has_unsent(&self) -> bool {
        self.unsent
    }

    /// Tries again to send them.
    pub fn send_unsent(&mut self, counting: &Counting) {
        self.unsent = false;
        for vector in 0..self.vectors.len() as u32 {
            let waits = |vector: &Vector| vector.pending && !vector.masked && vector.event.is_some();
            if self.vectors.get(vector as usize).is_some_and(waits) {
                self.fire(vector, counting);
            }
            if self.unsent {
                return;
            }
        }
    }

    /// Whether one waits.
    pub fn is_pending(&self, vector: u32) -> bool {
        self.vectors.get(vector as usize).is_some_and(|vector| vector.pending)
    }

    /// Those that waited have nothing to wait for any more.
    pub fn forget_pending(&mut self) {
        self.vectors.iter_mut().for_each(|vector| vector.pending = false);
    }

    /// Does what a message says. What is left of `fds` is to be closed by somebody who may wait.
    pub fn set(&mut self, set: SetInterrupts<'_>, fds: &mut Vec<OwnedFd>, counting: &Counting) -> Result<(), Errno> {
        let SetInterrupts { index, start, count, data, action } = set;
        let end = start.checked_add(count).filter(|&end| end <= self.count(index)).ok_or(Errno::INVAL)?;
        // Nothing of any of them, of all kinds: what a client says when it begins and ends.
        if (data, action, count) == (Data::All, Action::Trigger, 0) {
            self.disarm(index);
            return Ok(());
        }
        match (data, action) {
            (Data::Events, Action::Trigger) => self.arm(start, end, fds, counting),
            (Data::Events, _) => Err(Errno::INVAL),
            (Data::All, action) => {
                (start..end).for_each(|vector| self.act(vector, action, counting));
                Ok(())
            }
            (Data::Flags(flags), action) => {
                let chosen = (start..end).zip(flags).filter(|(_, flag)| **flag != 0);
                chosen.for_each(|(vector, _)| self.act(vector, action, counting));
                Ok(())
            }
        }
    }

    fn disarm(&mut self, kind: u32) {
        if kind == MSIX {
            self.vectors.iter_mut().for_each(|vector| (vector.event, vector.masked) = (None, false));
        }
    }

    /// Vectors get these events, or lose theirs when there are none.
    fn arm(&mut self, start: u32, end: u32, fds: &mut Vec<OwnedFd>, counting: &Counting) -> Result<(), Errno> {
        if !fds.is_empty() && fds.len() != (end - start) as usize {
            return Err(Errno::INVAL);
        }
        // All or none: what is no eventfd could make us wait.
        fds.iter().try_for_each(check_event).map_err(|_| Errno::INVAL)?;
        let mut events = fds.drain(..);
        for vector in start..end {
            self.vectors[vector as usize].event = events.next().map(|event| Bell::event(self.uid, event));
            self.send_pending(vector, counting);
        }
        Ok(())
    }

    fn act(&mut self, vector: u32, action: Action, counting: &Counting) {
        match action {
            Action::Mask => self.vectors[vector as usize].masked = true,
            Action::Unmask => {
                self.vectors[vector as usize].masked = false;
                self.send_pending(vector, counting);
            }
            Action::Trigger => self.fire(vector, counting),
        }
    }

    fn send_pending(&mut self, vector: u32, counting: &Counting) {
        if self.is_pending(vector) {
            self.fire(vector, counting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_listeners::{Listeners, comes, ring_until_apart};
    use rustix::event::{EventfdFlags, eventfd};

    /// Of tests.
    const USER: u32 = 1 << 20;

    fn event() -> (OwnedFd, OwnedFd) {
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let other = event.try_clone().unwrap();
        (event, other)
    }

    fn came(event: &OwnedFd) -> bool {
        rustix::io::read(event, &mut [0; 8]).is_ok()
    }

    fn set(start: u32, count: u32, data: Data<'_>, action: Action) -> SetInterrupts<'_> {
        SetInterrupts { index: MSIX, start, count, data, action }
    }

    #[test]
    fn interrupts_come_when_their_vector_is_set_and_not_masked() {
        let (mut interrupts, counting) = (Interrupts::new(4, USER), Counting::default());
        let (theirs, ours) = event();
        interrupts.fire(2, &counting);
        interrupts.set(set(2, 1, Data::Events, Action::Trigger), &mut vec![ours], &counting).unwrap();
        assert!(came(&theirs), "what waited has come");
        interrupts.fire(2, &counting);
        assert!(came(&theirs) && !came(&theirs));
        interrupts.set(set(0, 4, Data::Flags(&[0, 0, 1, 0]), Action::Mask), &mut Vec::new(), &counting).unwrap();
        interrupts.fire(2, &counting);
        interrupts.fire(2, &counting);
        assert!(!came(&theirs) && interrupts.is_pending(2) && !interrupts.is_pending(1));
        interrupts.set(set(0, 4, Data::All, Action::Unmask), &mut Vec::new(), &counting).unwrap();
        assert!(came(&theirs) && !interrupts.is_pending(2));
        interrupts.set(set(2, 1, Data::All, Action::Trigger), &mut Vec::new(), &counting).unwrap();
        assert!(came(&theirs), "a test of the way");
        interrupts.set(set(0, 0, Data::All, Action::Trigger), &mut Vec::new(), &counting).unwrap();
        interrupts.fire(2, &counting);
        assert!(!came(&theirs));
        let counters = counting.read();
        assert_eq!((counters.interrupts, counters.pending_interrupts), (4, 3));
    }

    #[test]
    fn one_that_could_not_be_sent_is_tried_again() {
        let (mut interrupts, counting) = (Interrupts::new(4, USER), Counting::default());
        let (theirs, ours) = event();
        interrupts.set(set(1, 1, Data::Events, Action::Trigger), &mut vec![ours], &counting).unwrap();
        interrupts.send = |_| false;
        interrupts.fire(1, &counting);
        assert!(interrupts.has_unsent() && interrupts.is_pending(1) && !came(&theirs));
        interrupts.send_unsent(&counting);
        assert!(interrupts.has_unsent(), "still not");
        interrupts.send = Bell::try_ring;
        interrupts.send_unsent(&counting);
        assert!(came(&theirs) && !interrupts.has_unsent() && !interrupts.is_pending(1));
        interrupts.send_unsent(&counting);
        assert!(!came(&theirs), "once is enough");
        let counters = counting.read();
        assert_eq!((counters.interrupts, counters.unsent_interrupts), (1, 2));
    }

    #[test]
    fn what_a_client_may_not_set_changes_nothing() {
        let (mut interrupts, counting) = (Interrupts::new(4, USER), Counting::default());
        let (theirs, ours) = event();
        interrupts.set(set(3, 1, Data::Events, Action::Trigger), &mut vec![ours], &counting).unwrap();
        let pipe = rustix::pipe::pipe().unwrap().1;
        for (message, mut fds) in [
            (set(4, 1, Data::All, Action::Trigger), Vec::new()),
            (set(0, 5, Data::All, Action::Mask), Vec::new()),
            (set(u32::MAX, 2, Data::All, Action::Mask), Vec::new()),
            (set(3, 1, Data::Events, Action::Trigger), vec![pipe]),
            (set(2, 2, Data::Events, Action::Trigger), vec![event().0]),
            (set(3, 1, Data::Events, Action::Mask), vec![event().0]),
            (SetInterrupts { index: 0, ..set(0, 1, Data::All, Action::Mask) }, Vec::new()),
        ] {
            assert_eq!(interrupts.set(message, &mut fds, &counting), Err(Errno::INVAL), "{message:?}");
        }
        interrupts.fire(3, &counting);
        interrupts.fire(99, &counting);
        assert!(came(&theirs));
    }

    #[test]
    fn whose_interrupt_has_many_listeners_keeps_his_own_thread_and_not_the_functions() {
        let counting = Counting::default();
        let function = |uid| {
            let (mut interrupts, (theirs, ours)) = (Interrupts::new(2, uid), event());
            interrupts.set(set(1, 1, Data::Events, Action::Trigger), &mut vec![ours], &counting).unwrap();
            (interrupts, theirs)
        };
        let ((eve, theirs), (mut honest, other)) = (function(USER | 1), function(USER | 2));
        let Some(_listeners) = Listeners::of(&theirs) else { return };
        let eve = core::cell::RefCell::new(eve);
        let is_apart = |interrupts: &Interrupts| interrupts.vectors[1].event.as_ref().unwrap().is_apart();
        ring_until_apart(&theirs, || eve.borrow_mut().fire(1, &counting), || is_apart(&eve.borrow()));
        // As one that was sent: it comes, and nobody waits.
        assert!(!eve.borrow().is_pending(1) && counting.read().unsent_interrupts == 0);
        honest.fire(1, &counting);
        assert!(comes(&other, 0) && !is_apart(&honest), "it was sent at once");
    }
}
