//! Changes of ports and workers are made on a thread of their own, one after the other: opening a FIFO or closing an
//! interface takes as long as somebody else likes. The program that asked waits for its reply; the others are served.

use super::shared::{Changed, Shared};
use millrace_abi::message::{Change, ErrorCode, Reply};
use millrace_card::Card;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long the end of the card waits for a change that is under way.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// The thread that makes changes; there is none before the first.
pub(super) struct Changes {
    card: Arc<Card>,
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

struct Thread {
    orders: Sender<(u64, Change)>,
    // Closed when the thread has ended.
    ended: Receiver<()>,
}

impl Changes {
    pub fn new(card: Arc<Card>, shared: Arc<Shared>) -> Self {
        Self { card, shared, thread: None }
    }

    /// Has a change made. Its end is told through [`Shared`], also when the program has gone meanwhile.
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn order(&mut self, connection: u64, change: Change) -> std::io::Result<()> {
        if self.thread.is_none() {
            self.thread = Some(start(self.card.clone(), self.shared.clone())?);
        }
        if let Some(thread) = &self.thread {
            // The thread lives as long as this: see `guarded`.
            let _ = thread.orders.send((connection, change));
        }
        Ok(())
    }
}

fn start(card: Arc<Card>, shared: Arc<Shared>) -> std::io::Result<Thread> {
    let (orders, ordered) = channel();
    let (ends, ended) = channel::<()>();
    std::thread::Builder::new().name("millrace-changes".to_owned()).spawn(move || {
        for (connection, change) in ordered {
            // Acquire pairs with the Release of whoever drops the driver.
            if shared.stop.load(Ordering::Acquire) {
                break;
            }
            let outcome = guarded(|| make(&card, &change));
            let reply = outcome.map_or_else(|text| Reply::Error { code: ErrorCode::Invalid, text }, |()| Reply::Done);
            let changed = Changed { connection, reply, fd: None };
            shared.changed.lock().unwrap_or_else(PoisonError::into_inner).push(changed);
            shared.wake();
        }
        // Before the end is told: whoever waits for it may count on it.
        drop(card);
        drop(ends);
    })?;
    Ok(Thread { orders, ended })
}

impl Drop for Changes {
    fn drop(&mut self) {
        let Some(Thread { orders, ended }) = self.thread.take() else { return };
        drop(orders);
        if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(SHUTDOWN_TIMEOUT) {
            tracing::warn!("the card ends while a port is still being opened or closed");
        }
    }
}

/// A change that panics is answered too, and those after it are made.
fn guarded(change: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let made = catch_unwind(AssertUnwindSafe(change));
    made.unwrap_or_else(|_| Err("the card has a bug: the change ended before it was made; see its log".to_owned()))
}

fn make(card: &Card, change: &Change) -> Result<(), String> {
    let made = match *change {
        Change::Plug { port, ref spec } => card.plug(port, spec),
        Change::Connect { one, other } => card.connect(one, other),
        Change::Disconnect { port } => card.disconnect(port),
        Change::Schedule { port, ref schedule } => card.schedule(port, schedule.as_ref()),
        Change::Move { queue, worker } => card.move_queue(queue, worker),
    };
    made.inspect(|()| millrace_port::notice::info(|| in_words(change))).map_err(|error| error.to_string())
}

/// A change that was made.
fn in_words(change: &Change) -> String {
    match change {
        Change::Plug { port, spec } if spec == "none" => format!("port {port}: unplugged"),
        Change::Plug { port, spec } => format!("port {port}: plugged with {spec:?}"),
        Change::Connect { one, other } => format!("port {one}: connected with port {other}"),
        Change::Schedule { port, schedule: None } => format!("port {port}: its queues send whenever they like"),
        Change::Schedule { port, schedule: Some(schedule) } => {
            format!("port {port}: its queues have a schedule of {} gates from now on", schedule.gates.len())
        }
        Change::Disconnect { port } => format!("port {port}: disconnected"),
        Change::Move { queue, worker } => format!("{queue}: served by worker {worker} from now on"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_wrote_stays_on_one_line_of_the_log() {
        let spec = "pcap:a\nERROR the card is on fire\u{1b}[2J".to_owned();
        let line = in_words(&Change::Plug { port: 0, spec });
        assert_eq!(line, r#"port 0: plugged with "pcap:a\nERROR the card is on fire\u{1b}[2J""#);
    }

    #[test]
    fn a_change_that_panics_is_answered() {
        assert!(guarded(|| panic!("on purpose")).unwrap_err().contains("has a bug"));
        assert_eq!(guarded(|| Ok(())), Ok(()));
    }
}
