//! What a program shares with the card about one open queue, beside the ring: the control page, kick and call.

use crate::error::Error;
use millrace_abi::control::{CARD_SLEEPS_AT, DOORBELL_AT, FAULT_IOVA_AT, QueueState, SOFTWARE_SLEEPS_AT, STATE_AT};
use millrace_abi::message::{ErrorCode, Handle};
use millrace_abi::queue::QueueId;
use millrace_dma::{Ordering, Region, Window, Word32, Word64};
use millrace_driver::{Client, ClientError, Kick};
use millrace_ring::wake::{Ringer, Sleeper};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long to look before sleeping: longer than a round trip, shorter than a system call would take to come back.
const SPIN: Duration = Duration::from_micros(5);

/// How long [`QueueHandle::drain`] waits for the card to take everything.
const DRAIN: Duration = Duration::from_secs(1);

pub(crate) struct QueueHandle {
    pub client: Arc<Client>,
    pub queue: QueueId,
    pub handle: Handle,
    control: Region,
    kick: Kick,
    // Asked for by the first sleep: thousands of queues that never sleep would take too many fds.
    call: OnceLock<OwnedFd>,
    state: Word32,
    ringer: Ringer,
    sleeper: Sleeper,
    gone: Arc<AtomicBool>,
    closed: bool,
}

impl QueueHandle {
    pub fn new(
        client: Arc<Client>,
        queue: QueueId,
        handle: Handle,
        control: Region,
        kick: Kick,
    ) -> Result<Self, Error> {
        let window = control.window();
        let bad = |error: millrace_dma::OutOfRange| Error::BadRing { queue, what: error.to_string() };
        let state = window.word32(STATE_AT).map_err(bad)?;
        let ringer = Ringer::new(window.word32(CARD_SLEEPS_AT).map_err(bad)?);
        let sleeper = Sleeper::new(window.word32(SOFTWARE_SLEEPS_AT).map_err(bad)?);
        let (gone, call) = (client.gone_flag(), OnceLock::new());
        Ok(Self { client, queue, handle, control, kick, call, state, ringer, sleeper, gone, closed: false })
    }

    pub fn bad(&self, what: impl ToString) -> Error {
        Error::BadRing { queue: self.queue, what: what.to_string() }
    }

    /// The control page.
    pub fn page(&self) -> &Window {
        self.control.window()
    }

    pub fn doorbell(&self) -> Result<Word64, Error> {
        self.control.window().word64(DOORBELL_AT).map_err(|error| self.bad(error))
    }

    /// Whether the queue still runs: two loads of lines that hardly ever change.
    #[inline(always)]
    pub fn check(&self) -> Result<(), Error> {
        const RUNNING: u32 = QueueState::Running.to_word();
        if self.state.load(Ordering::Acquire) == RUNNING && !self.gone.load(Ordering::Acquire) {
            return Ok(());
        }
        self.explain()
    }

    #[cold]
    fn explain(&self) -> Result<(), Error> {
        if self.client.is_gone() {
            return Err(self.gone());
        }
        let queue = self.queue;
        match QueueState::from_word(self.state.load(Ordering::Acquire)) {
            Some(QueueState::Running) => Ok(()),
            Some(QueueState::Faulted(kind)) => {
                let iova = self.control.window().word64(FAULT_IOVA_AT).map_or(0, |word| word.load(Ordering::Relaxed));
                Err(Error::Faulted { queue, kind, iova })
            }
            Some(QueueState::Evicted) => Err(Error::Evicted(queue)),
            Some(QueueState::Stopped) => Err(Error::Stopped(queue)),
            None => Err(self.bad("the control page holds a state that no card writes")),
        }
    }

    /// The card is gone, or has ended the connection of this program and said why.
    #[cold]
    fn gone(&self) -> Error {
        match self.client.why_gone() {
            ClientError::Gone => Error::Gone,
            why => why.into(),
        }
    }

    /// Wakes the card's worker if it sleeps. After the doorbell was stored.
    #[inline(always)]
    pub fn ring(&self) {
        if self.ringer.must_signal() {
            self.kick_card();
        }
    }

    #[cold]
    fn kick_card(&self) {
        self.kick.kick();
    }

    /// Waits until `ready` says so, at most `timeout`. Looks for a while, then sleeps.
    pub fn wait(&self, timeout: Duration, mut ready: impl FnMut() -> Result<bool, Error>) -> Result<bool, Error> {
        let begin = Instant::now();
        while begin.elapsed() < SPIN.min(timeout) {
            if ready()? {
                return Ok(true);
            }
        }
        loop {
            let left = timeout.saturating_sub(begin.elapsed());
            // Before saying that we sleep: whoever takes the flag down must have something to signal.
            let call = match (!left.is_zero()).then(|| self.call()).transpose() {
                Ok(call) => call,
                // That the card is gone, or the queue stopped, says more than that it was not to be had.
                Err(error) => return if ready()? { Ok(true) } else { self.check().and(Err(error)) },
            };
            self.sleeper.announce();
            let now = ready();
            let slept = match (&now, call) {
                (Ok(false), Some(call)) => self.sleep(call, left),
                _ => Ok(()),
            };
            self.sleeper.awake();
            if now? {
                return Ok(true);
            }
            slept?;
            if let Err(error) = self.check() {
                // What the card had written before it stopped is still there to be taken.
                return if ready()? { Ok(true) } else { Err(error) };
            }
            if left.is_zero() {
                return ready();
            }
        }
    }

    /// Says that this program sleeps until the card signals by the descriptor. `None`: something is there already.
    pub fn announce(&self, ready: impl FnOnce() -> Result<bool, Error>) -> Result<Option<BorrowedFd<'_>>, Error> {
        // Before saying that we sleep: whoever takes the flag down must have something to signal.
        let call = self.call()?;
        // Signals of an earlier sleep.
        take_signals(call);
        self.sleeper.announce();
        if ready()? {
            self.sleeper.awake();
            return Ok(None);
        }
        Ok(Some(call.as_fd()))
    }

    /// How the card wakes this program.
    fn call(&self) -> Result<&OwnedFd, Error> {
        if let Some(call) = self.call.get() {
            return Ok(call);
        }
        let call = self.client.call(self.handle)?;
        Ok(self.call.get_or_init(|| call))
    }

    fn sleep(&self, call: &OwnedFd, most: Duration) -> Result<(), Error> {
        let most = Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(most.subsec_nanos()),
        };
        let socket = self.client.socket();
        let mut fds = [PollFd::new(call, PollFlags::IN), PollFd::new(&socket, PollFlags::RDHUP)];
        match poll(&mut fds, Some(&most)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::Wait(error.into())),
        }
        if !fds[1].revents().is_empty() {
            return Err(self.gone());
        }
        if !fds[0].revents().is_empty() {
            // All signals at once, and none if another look was quicker.
            take_signals(call);
        }
        Ok(())
    }

    /// Stops a TX queue at `position` once the card has taken everything.
    ///
    /// # Errors
    /// [`Error::NotDrained`] when the card did not within a second; the queue has stopped then.
    pub fn drain(&self, position: u64) -> Result<(), Error> {
        let deadline = Instant::now() + DRAIN;
        loop {
            match self.client.stop(self.handle, false, position) {
                Ok(()) => return Ok(()),
                Err(error) if error.code() != Some(ErrorCode::NotDrained) => return Err(error.into()),
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(100)),
                Err(_) => {
                    self.client.stop(self.handle, true, position)?;
                    return Err(Error::NotDrained(self.queue));
                }
            }
        }
    }

    pub fn close(&mut self) -> Result<(), Error> {
        if !core::mem::replace(&mut self.closed, true) {
            self.client.close(self.handle)?;
        }
        Ok(())
    }
}

/// Takes all signals that are there: of a socket, or of the eventfd of an interrupt. None of them waits.
fn take_signals(call: &OwnedFd) {
    if let Err(Errno::NOTSOCK) = recv(call, &mut [0; 64][..], RecvFlags::DONTWAIT) {
        let _ = rustix::io::read(call, &mut [0; 8]);
    }
}

impl Drop for QueueHandle {
    fn drop(&mut self) {
        // Nobody is left who could be told.
        let _ = self.close();
    }
}
