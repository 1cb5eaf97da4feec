//! What another card needs to go on with queues of this one (decision 128).

use crate::card::Card;
use crate::command::Command;
use millrace_abi::control::{DOORBELL_AT, QueueState, RUNG_AT, STATE_AT};
use millrace_abi::handover::SavedQueue;
use millrace_abi::queue::QueueId;
use millrace_dma::{Ordering, Window};
use millrace_ring::medusa::Note;

impl Card {
    /// Takes a running queue from its worker: nothing of it is read or written any more, and its software is told nothing. `false`: it cannot be gone on with, or
    /// the worker does not answer.
    pub fn freeze(&self, id: QueueId) -> bool {
        self.with_queue(id, |queue, mailbox| queue.freeze(mailbox))
    }

    /// Whether no frame that came from a frozen TX queue waits for room elsewhere, and none is on its way to the worker of this queue.
    pub fn is_drained(&self, id: QueueId) -> bool {
        self.with_queue(id, |_, mailbox| mailbox.ask(Command::IsDrained(id)).is_ok_and(|answer| answer.done))
    }

    /// Everything of a queue that does not run, or is frozen, in words.
    pub fn save(&self, id: QueueId) -> Option<SavedQueue> {
        self.bus().queue(id)?.save()
    }

    /// Everything of a queue in words, whatever it does meanwhile, but for where its ring stands, which is noted in its control page.
    pub fn describe(&self, id: QueueId) -> Option<SavedQueue> {
        Some(self.bus().queue(id)?.describe())
    }

    /// A queue of a card that was killed while it ran, with what stands in its control page: where its ring stands, and whether software rings it by registers.
    /// One that has stopped meanwhile, as the page says, has stopped. `None`: it is no page.
    pub fn as_noted(saved: &SavedQueue, control: &Window) -> Option<SavedQueue> {
        let word = |at| control.word64(at).map(|word| word.load(Ordering::Acquire)).ok();
        // Acquire pairs with the Release in `show_state`, and those in `Attached::ring`, of a process that has gone.
        let state = control.word32(STATE_AT).ok()?.load(Ordering::Acquire);
        let (doorbell, rung) = (word(DOORBELL_AT)?, [word(RUNG_AT)?, word(RUNG_AT + 8)?]);
        let rung = rung.contains(&doorbell).then_some(doorbell);
        if QueueState::from_word(state) != Some(QueueState::Running) {
            return Some(SavedQueue {
                is_stopping: false,
                pointers: doorbell,
                rung: None,
                control: 0,
                ..saved.clone()
            });
        }
        Some(SavedQueue { place: Some(Note::read(control)?), rung, ..saved.clone() })
    }

    /// Takes over what another card has said of a queue that nobody has here. If it ran there, the next START holds it where its ring stands, until
    /// [`Card::go_on`].
    pub fn restore(&self, id: QueueId, saved: &SavedQueue) -> bool {
        self.with_queue(id, |queue, mailbox| queue.restore(saved, mailbox))
    }

    /// Whether the next START of a queue goes on where another card has stopped: its doorbell is what it is.
    pub fn is_to_resume(&self, id: QueueId) -> bool {
        self.bus().queue(id).is_some_and(|queue| queue.is_to_resume())
    }

    /// After the START of a queue that was to be held: takes over what else was said of it. `false`: it is not held.
    pub fn settle(&self, id: QueueId, saved: &SavedQueue) -> bool {
        self.bus().queue(id).is_some_and(|queue| {
            queue.settle(saved);
            queue.is_held()
        })
    }

    /// A queue that is held is served again. `false`: its worker does not answer; it can be asked again.
    pub fn go_on(&self, id: QueueId) -> bool {
        self.with_queue(id, |queue, mailbox| queue.go_on(mailbox))
    }
}
