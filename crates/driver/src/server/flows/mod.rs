//! What is asked about the flow table is done on a thread of its own: a transaction of a hundred thousand rules takes long, and
//! nobody who asks for something else waits for it. The program that asked waits for its reply.
//!
//! Who is served next goes by the time spent, as in the server itself. The same thread ends what belongs to programs that have
//! gone, and rules whose time is over, some of them at a time. What a program leaves behind is taken away on its user's account, before
//! that user is served otherwise. What ends with a panic is logged and counted, and the thread goes on.
//!
//! * here: the thread, and what waits for it. `clerk`: what it does. `staging`: transactions that are being sent. `words`: from
//!   and to text. `paid`: what rules cost. `keys`: keys of QUIC connections. `neighbours`: those of tunnels.

mod clerk;
mod keys;
mod neighbours;
mod paid;
mod staging;
mod words;

use super::policy::Policy;
use super::quotas::{Account, Ledger};
use super::replies::Refusal;
use super::schedule::{Asker, Schedule};
use super::shared::{Changed, Shared};
use clerk::Clerk;
use millrace_abi::access::Names;
use millrace_abi::flow::FlowRequest;
use millrace_abi::message::{ErrorCode, Reply};
use millrace_card::{Card, Later};
use rustix::fd::OwnedFd;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often rules with a timeout are looked at.
const TICK: Duration = Duration::from_millis(200);

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Applicant {
    pub asker: Asker,
    pub account: Account,
    /// Whether everything is his to change.
    pub admin: bool,
}

/// What waits for the thread.
#[derive(Default)]
struct Waiting {
    schedule: Schedule,
    /// At most one of a connection, which waits for its reply.
    asked: HashMap<u64, (Applicant, FlowRequest)>,
    /// Connections that have ended, and are to be cleared up after; by user, in order.
    gone: HashMap<u32, VecDeque<Asker>>,
    stop: bool,
}

impl Waiting {
    fn is_gone(&self, asker: Asker) -> bool {
        self.gone.get(&asker.uid).is_some_and(|gone| gone.contains(&asker))
    }

    /// Whoever of the user of `asker` has gone first.
    fn gone_before(&self, asker: Asker) -> Option<Asker> {
        self.gone.get(&asker.uid)?.front().copied()
    }

    /// Nothing is left of a connection.
    fn forget(&mut self, asker: Asker) {
        if let Some(gone) = self.gone.get_mut(&asker.uid) {
            gone.retain(|other| *other != asker);
            if gone.is_empty() {
                self.gone.remove(&asker.uid);
            }
        }
        self.schedule.leave(asker);
    }
}

struct Inbox {
    waiting: Mutex<Waiting>,
    news: Condvar,
}

impl Inbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that looks after the flow table; there is none before somebody asks for something of it.
pub(super) struct Flows {
    card: Arc<Card>,
    shared: Arc<Shared>,
    ledger: Ledger,
    names: Names,
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread does next.
enum Work {
    Gone(Asker),
    Asked(Applicant, FlowRequest),
    Tick,
    Stop,
}

impl Flows {
    pub fn new(card: Arc<Card>, shared: Arc<Shared>, ledger: Ledger, policy: &Policy) -> Self {
        let inbox = Arc::new(Inbox { waiting: Mutex::default(), news: Condvar::new() });
        Self { card, shared, ledger, names: policy.names.clone(), inbox, thread: None }
    }

    /// Starts the thread, if there is none: for rules with a timeout that the card has from its start, too.
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn start(&mut self) -> std::io::Result<()> {
        if self.thread.is_some() {
            return Ok(());
        }
        let clerk = Clerk::new(self.card.clone(), self.ledger.clone(), self.names.clone());
        let (inbox, shared) = (self.inbox.clone(), self.shared.clone());
        let builder = std::thread::Builder::new().name("millrace-flows".to_owned());
        self.thread = Some(builder.spawn(move || run(clerk, &inbox, &shared))?);
        Ok(())
    }

    /// Has something done. Its reply is told through [`Shared`].
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn ask(&mut self, applicant: Applicant, request: FlowRequest) -> std::io::Result<()> {
        self.start()?;
        let mut waiting = self.inbox.waiting();
        waiting.asked.insert(applicant.asker.connection, (applicant, request));
        waiting.schedule.ready(applicant.asker);
        self.inbox.news.notify_one();
        Ok(())
    }

    /// A connection has ended that has asked for something.
    pub fn gone(&mut self, asker: Asker) {
        let mut waiting = self.inbox.waiting();
        waiting.asked.remove(&asker.connection);
        waiting.gone.entry(asker.uid).or_default().push_back(asker);
        waiting.schedule.ready(asker);
        self.inbox.news.notify_one();
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.inbox.waiting().stop = true;
        self.inbox.news.notify_one();
        // One that panicked has said so already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(mut clerk: Clerk, inbox: &Inbox, shared: &Shared) {
    let mut ticks = expire(&mut clerk) != Later::Nothing;
    let mut next_tick = Instant::now() + TICK;
    loop {
        match next(inbox, ticks.then_some(next_tick)) {
            Work::Stop => return,
            Work::Gone(asker) => {
                let begin = Instant::now();
                // What cannot be ended is not tried for ever.
                let more = caught(&mut clerk, "the end of a program's rules", |clerk| clerk.end(asker.connection));
                let mut waiting = inbox.waiting();
                waiting.schedule.charge(asker, begin.elapsed().as_nanos() as u64);
                if more != Some(true) {
                    waiting.forget(asker);
                }
            }
            Work::Asked(applicant, request) => {
                let begin = Instant::now();
                let (reply, fd) = guarded(&mut clerk, |clerk| clerk.serve(applicant, request));
                let asker = applicant.asker;
                let spent = begin.elapsed().as_nanos() as u64;
                {
                    let mut waiting = inbox.waiting();
                    waiting.schedule.charge(asker, spent);
                    if !waiting.asked.contains_key(&asker.connection) && !waiting.is_gone(asker) {
                        waiting.schedule.rest(asker);
                    }
                }
                let changed = Changed { connection: asker.connection, reply, fd };
                shared.changed.lock().unwrap_or_else(PoisonError::into_inner).push(changed);
                shared.wake();
                // It may have brought a rule with a timeout.
                ticks = true;
            }
            Work::Tick => {}
        }
        if ticks && Instant::now() >= next_tick {
            // Those for which there was no time wait for others' requests, and not for the next tick.
            let later = expire(&mut clerk);
            ticks = later != Later::Nothing;
            next_tick = Instant::now() + if later == Later::AtOnce { Duration::ZERO } else { TICK };
        }
        caught(&mut clerk, "telling those who watch", Clerk::tell);
    }
}

fn expire(clerk: &mut Clerk) -> Later {
    // Rules with a timeout stay; the next tick tries again.
    caught(clerk, "the end of rules whose time is over", Clerk::expire).unwrap_or(Later::Some)
}

/// Does something that nobody waits for. With a panic it ends there, which is counted, and all else goes on; what has panicked says so
/// itself.
fn caught<R>(clerk: &mut Clerk, what: &str, work: impl FnOnce(&mut Clerk) -> R) -> Option<R> {
    let done = catch_unwind(AssertUnwindSafe(|| work(clerk)));
    if done.is_err() {
        clerk.count_bug();
        tracing::error!("{what} ended with a panic: the card has a bug");
    }
    done.ok()
}

/// Waits for something to do.
fn next(inbox: &Inbox, tick: Option<Instant>) -> Work {
    let mut waiting = inbox.waiting();
    loop {
        if waiting.stop {
            return Work::Stop;
        }
        if let Some(asker) = waiting.schedule.next() {
            // Before a program is served, its user's that have gone are: they may have what it wants.
            if let Some(gone) = waiting.gone_before(asker) {
                return Work::Gone(gone);
            }
            match waiting.asked.remove(&asker.connection) {
                Some((applicant, request)) => return Work::Asked(applicant, request),
                None => {
                    waiting.schedule.rest(asker);
                    continue;
                }
            }
        }
        waiting = match tick {
            None => inbox.news.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            Some(tick) => {
                let left = tick.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Work::Tick;
                }
                inbox.news.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

/// A request that panics is answered too, and those after it are served.
fn guarded(
    clerk: &mut Clerk,
    serve: impl FnOnce(&mut Clerk) -> Result<(Reply, Option<OwnedFd>), Refusal>,
) -> (Reply, Option<OwnedFd>) {
    let text = "the card has a bug: the request ended before it was carried out; see its log";
    caught(clerk, "a request about rules", serve)
        .unwrap_or_else(|| Err(Refusal::new(ErrorCode::System, text)))
        .unwrap_or_else(|refusal| (refusal.into_reply(), None))
}
