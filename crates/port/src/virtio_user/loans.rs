//! Which pools of applications the pairs of a wire work on, and how the thread that talks hears of a change.

use super::memory::Shared;
use crate::{LendError, Pool};
use millrace_dma::RegionError;
use millrace_ring::virtio::driver::BEFORE_FRAME;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What buffers have to hold at least: a frame of an ordinary MTU with a VLAN tag.
const LONGEST: usize = 1518;

/// How many pools a wire can work on at once: front ends of vhost-user may tell of 8 memories, two of which are our own.
const MOST: usize = 6;

/// The pool that a pair works on.
pub(super) struct Loan {
    /// Mapped once more, as the back end gets the file and could take pages out of it.
    pub memory: Arc<Shared>,
    /// Bytes of a buffer.
    pub buffer: usize,
    /// Buffers that we were supplied with and have not handed over, while there is no queue.
    waiting: Mutex<Vec<usize>>,
}

impl Loan {
    pub fn of(pool: &Pool) -> Result<Self, LendError> {
        let refused = |error: RegionError| LendError::Refused(error.to_string());
        let needs = (BEFORE_FRAME + LONGEST) as u32;
        if pool.size < needs {
            return Err(LendError::TooSmall { has: pool.size, needs });
        }
        let len = pool.region.len();
        let fd = pool.region.fd().ok_or_else(|| refused(RegionError::NoFile))?;
        let fd = fcntl_dupfd_cloexec(fd, 0).map_err(|source| refused(RegionError::Map { len, source }))?;
        let memory = Arc::new(Shared::of_file(fd, len).map_err(refused)?);
        Ok(Self { memory, buffer: pool.size as usize, waiting: Mutex::default() })
    }

    pub fn waiting(&self) -> MutexGuard<'_, Vec<usize>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pools of a wire by pair, and which of them the connection that there is knows of.
pub(super) struct Loans {
    state: Mutex<State>,
    moved: Condvar,
    /// Readable when the connection that there is knows of others.
    changed: OwnedFd,
}

struct State {
    of: Vec<Option<Arc<Loan>>>,
    /// How often they have changed.
    turn: u64,
    /// How often they had when the connection began that there is.
    connected: Option<u64>,
    /// The queues of that connection run.
    is_up: bool,
}

/// What a change has to be waited for with.
#[derive(Clone, Copy)]
pub(super) struct Change {
    turn: u64,
    /// There was a connection.
    was_connected: bool,
}

impl Loans {
    pub fn new(pairs: usize) -> Result<Self, Errno> {
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = State { of: vec![None; pairs], turn: 0, connected: None, is_up: false };
        Ok(Self { state: Mutex::new(state), moved: Condvar::new(), changed })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `pair` work on this pool, or on none, from the next connection on, which the thread makes at once.
    pub fn set(&self, pair: usize, loan: Option<Arc<Loan>>) -> Result<Change, LendError> {
        let mut state = self.lock();
        let others = state.of.iter().enumerate().filter(|(other, loan)| *other != pair && loan.is_some()).count();
        if loan.is_some() && others >= MOST {
            return Err(LendError::Refused(format!("the queues of a wire work on {MOST} pools at most")));
        }
        state.of[pair] = loan;
        state.turn += 1;
        // Under the lock, so that it is not taken for an older one.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
        Ok(Change { turn: state.turn, was_connected: state.connected.is_some() })
    }

    /// Waits until no connection knows of what was before the change. `false`: it still does.
    pub fn await_release(&self, change: Change, patience: Duration) -> bool {
        self.wait(patience, |state| state.connected.is_none_or(|connected| connected >= change.turn))
    }

    /// Waits until the queues of a connection run that knows of the change, if there was a connection and there is one in
    /// time.
    pub fn await_queues(&self, change: Change, patience: Duration) {
        let runs = |state: &State| state.is_up && state.connected.is_some_and(|connected| connected >= change.turn);
        self.wait(patience, |state| !change.was_connected || runs(state));
    }

    fn wait(&self, patience: Duration, until: impl Fn(&State) -> bool) -> bool {
        let waited = self.moved.wait_timeout_while(self.lock(), patience, |state| !until(state));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// For the thread: a connection begins that knows of these. To be followed by [`Loans::disconnected`].
    pub fn connect(&self) -> Vec<Option<Arc<Loan>>> {
        let mut state = self.lock();
        let _ = rustix::io::read(&self.changed, &mut [0; 8]);
        state.connected = Some(state.turn);
        self.moved.notify_all();
        state.of.clone()
    }

    /// Its queues run.
    pub fn queues_run(&self) {
        self.lock().is_up = true;
        self.moved.notify_all();
    }

    /// It is over: nobody writes into what it knew of.
    pub fn disconnected(&self) {
        let mut state = self.lock();
        (state.connected, state.is_up) = (None, false);
        self.moved.notify_all();
    }

    /// Readable when the connection has to be made anew.
    pub fn changed(&self) -> &OwnedFd {
        &self.changed
    }
}
