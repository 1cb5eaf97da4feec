//! The way from the control side to one worker. A worker looks for commands once per pass, by one load of a flag that
//! is mostly in its own cache.
//!
//! A worker that does not answer is waited for, with a line in the log for every second; what then becomes of the
//! command depends on what it is ([`Lateness`]). No answer is ever dropped on the way: what is in one may be all that
//! there is of a queue, and dropping it may take time that a worker has not got.

use crate::command::{Command, Lateness};
use crate::shard::Answer;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a worker is waited for, where that has an end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two lines in the log.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// A command on its way.
pub(crate) struct Message {
    number: u64,
    pub command: Command,
    /// Where the answer goes, if anybody waits for it.
    pub reply: Option<SyncSender<Answer>>,
}

/// Why there is no answer.
pub(crate) enum Unanswered {
    /// The command was taken back, and here it is.
    Withdrawn(Command),
    /// It will be carried out when the worker comes round.
    Late,
    /// The worker has ended.
    Lost,
}

/// The way from the control side to one worker.
pub(crate) struct Mailbox {
    worker: usize,
    timeout: Duration,
    inner: Mutex<Inner>,
    waiting: AtomicBool,
    pub wake: OwnedFd,
    /// For doorbells that are rung through the card: a worker looks behind every kick then, as nobody says for which
    /// queue.
    pub kick_any: OwnedFd,
}

#[derive(Default)]
struct Inner {
    messages: VecDeque<Message>,
    last: u64,
    // The worker has ended.
    lost: bool,
    // Answers for which nobody waits any more, until the control side comes by.
    late: Vec<Answer>,
}

impl Mailbox {
    /// The mailbox of the worker of that index.
    pub fn new(worker: usize) -> Result<Self, rustix::io::Errno> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let waiting = AtomicBool::new(false);
        Ok(Self {
            worker,
            timeout: ANSWER_TIMEOUT,
            inner: Mutex::default(),
            waiting,
            wake: event()?,
            kick_any: event()?,
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the message; `None` when the worker has ended.
    fn post(&self, command: Command, reply: Option<SyncSender<Answer>>) -> Option<u64> {
        let late;
        let number = {
            let mut inner = self.inner();
            late = core::mem::take(&mut inner.late);
            if inner.lost {
                return None;
            }
            inner.last += 1;
            let number = inner.last;
            inner.messages.push_back(Message { number, command, reply });
            // Release pairs with the Acquire in `is_waiting`; the mutex orders the message itself.
            self.waiting.store(true, Ordering::Release);
            number
        };
        signal(&self.wake);
        drop(late);
        Some(number)
    }

    /// Makes a worker look for rings that were rung while they said that it sleeps.
    pub fn kick_all(&self) {
        signal(&self.kick_any);
    }

    /// Wakes the worker, for frames that another one has for it.
    pub fn rouse(&self) {
        signal(&self.wake);
    }

    /// Sends a command and does not wait.
    pub fn send(&self, command: Command) {
        let _ = self.post(command, None);
    }

    /// Sends a command and waits until the worker has carried it out.
    ///
    /// # Errors
    /// [`Unanswered`]: after five seconds, or when the worker has ended.
    pub fn ask(&self, command: Command) -> Result<Answer, Unanswered> {
        let (lateness, (reply, answer)) = (command.lateness(), sync_channel(1));
        let number = self.post(command, Some(reply)).ok_or(Unanswered::Lost)?;
        let begin = Instant::now();
        let mut limit = Some(self.timeout).filter(|_| lateness != Lateness::Wait);
        loop {
            if let Some(answer) = self.wait(&answer, begin, limit)? {
                return Ok(answer);
            }
            match lateness {
                Lateness::Withdraw => match self.withdraw(number) {
                    Some(command) => return Err(Unanswered::Withdrawn(command)),
                    // The worker has it in hand.
                    None => limit = None,
                },
                Lateness::Leave => return Err(Unanswered::Late),
                Lateness::Wait => {}
            }
        }
    }

    /// Waits for an answer and complains. `None` when the time is over.
    fn wait(
        &self,
        answer: &Receiver<Answer>,
        begin: Instant,
        limit: Option<Duration>,
    ) -> Result<Option<Answer>, Unanswered> {
        loop {
            let left = limit.map_or(BETWEEN_LINES, |limit| limit.saturating_sub(begin.elapsed()));
            match answer.recv_timeout(left.min(BETWEEN_LINES)) {
                Ok(answer) => return Ok(Some(answer)),
                Err(RecvTimeoutError::Disconnected) => return Err(Unanswered::Lost),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let (worker, waited) = (self.worker, begin.elapsed());
            millrace_port::notice::warn(format!("worker {worker} of the card has not answered for {waited:.1?}"));
            if limit.is_some_and(|limit| waited >= limit) {
                return Ok(None);
            }
        }
    }

    fn withdraw(&self, number: u64) -> Option<Command> {
        let mut inner = self.inner();
        let at = inner.messages.iter().position(|message| message.number == number)?;
        inner.messages.remove(at).map(|message| message.command)
    }

    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// For the worker: the next command, if nobody is at the mailbox just now. It never waits: who is there may have
    /// been taken off its core, and as long as [`Mailbox::is_waiting`] says so the worker comes again.
    pub fn take(&self) -> Option<Message> {
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let message = inner.messages.pop_front();
        if message.is_none() {
            // Under the lock, so that no message comes in between.
            self.waiting.store(false, Ordering::Relaxed);
        }
        message
    }

    /// For the worker: gives an answer, or keeps it for the control side when nobody waits for it any more.
    pub fn answer(&self, reply: Option<SyncSender<Answer>>, answer: Answer) {
        let unheard = match reply {
            Some(reply) => reply.send(answer).err().map(|error| error.0),
            None => Some(answer),
        };
        if let Some(answer) = unheard {
            self.inner().late.push(answer);
        }
    }

    /// The worker has ended: nobody need wait for it.
    pub fn lose(&self) {
        let messages = {
            let mut inner = self.inner();
            inner.lost = true;
            core::mem::take(&mut inner.messages)
        };
        drop(messages);
    }
}

fn signal(event: &OwnedFd) {
    // A full one is already readable, which is all that is wanted.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::Shape;
    use millrace_abi::queue::QueueId;
    use std::sync::Arc;

    fn mailbox() -> Arc<Mailbox> {
        Arc::new(Mailbox { timeout: Duration::from_millis(20), ..Mailbox::new(3).unwrap() })
    }

    const DONE: Answer = Answer {
        done: true,
        discard: false,
        tx: Vec::new(),
        rx: None,
        reclaimer: None,
        openers: Vec::new(),
        detached: None,
        tapper: None,
    };

    #[test]
    fn a_start_that_is_late_is_taken_back_and_a_halt_is_carried_out_later() {
        let mailbox = mailbox();
        let start = Command::StartTx(7, Box::new(crate::engine::tests::tx()), Vec::new());
        let Err(Unanswered::Withdrawn(Command::StartTx(7, ..))) = mailbox.ask(start) else { panic!() };
        assert!(matches!(mailbox.ask(Command::Halt(QueueId::tx(7))), Err(Unanswered::Late)));
        // The worker comes round.
        let Message { command, reply, .. } = mailbox.take().unwrap();
        assert!(matches!(command, Command::Halt(id) if id == QueueId::tx(7)) && mailbox.take().is_none());
        assert!(!mailbox.is_waiting());
        mailbox.answer(reply, DONE);
        assert_eq!(mailbox.inner().late.len(), 1, "an answer was dropped by the worker");
        mailbox.send(Command::Pass);
        assert_eq!(mailbox.inner().late.len(), 0, "the control side takes them");
    }

    #[test]
    fn what_has_queues_in_it_is_waited_for() {
        let mailbox = mailbox();
        let theirs = mailbox.clone();
        let caller = std::thread::spawn(move || theirs.ask(Command::Shape(0, Shape::default())).is_ok());
        std::thread::sleep(5 * mailbox.timeout);
        let message = mailbox.take().unwrap();
        mailbox.answer(message.reply, DONE);
        assert!(caller.join().unwrap());
    }

    #[test]
    fn a_start_that_the_worker_has_in_hand_is_waited_for() {
        let mailbox = mailbox();
        let theirs = mailbox.clone();
        let start = Command::StartTx(7, Box::new(crate::engine::tests::tx()), Vec::new());
        let caller = std::thread::spawn(move || theirs.ask(start).is_ok());
        let message = loop {
            if let Some(message) = mailbox.take() {
                break message;
            }
            std::thread::yield_now();
        };
        std::thread::sleep(5 * mailbox.timeout);
        mailbox.answer(message.reply, DONE);
        assert!(caller.join().unwrap());
    }

    #[test]
    fn a_worker_does_not_wait_for_who_is_at_the_mailbox() {
        let mailbox = mailbox();
        mailbox.send(Command::Pass);
        let busy = mailbox.inner();
        assert!(mailbox.take().is_none() && mailbox.is_waiting());
        drop(busy);
        assert!(mailbox.take().is_some());
    }

    #[test]
    fn nobody_waits_for_a_worker_that_has_ended() {
        let mailbox = mailbox();
        let theirs = mailbox.clone();
        let caller = std::thread::spawn(move || theirs.ask(Command::Shape(0, Shape::default())));
        while !mailbox.is_waiting() {
            std::thread::yield_now();
        }
        mailbox.lose();
        assert!(matches!(caller.join().unwrap(), Err(Unanswered::Lost)));
        assert!(matches!(mailbox.ask(Command::Shape(0, Shape::default())), Err(Unanswered::Lost)));
    }
}
