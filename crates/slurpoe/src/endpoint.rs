//! Endpoints: what programs call.

use crate::address::Address;
use crate::config::Config;
use crate::connect::MOST;
use crate::error::Error;
use crate::helper;
use crate::region::{Access, Part, Region};
use crate::running::{Running, Stage, allocate};
use crate::transfer::{Completion, Notify, Told, Transfer};
use millrace_dma::Window;
use millrace_link::LinkError;
use millrace_rdma::memory::Source;
use millrace_rdma::number::{Key, Moment};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long what was said last may take to leave when an endpoint is closed.
const FAREWELL: Duration = Duration::from_millis(5);
/// How long functions of the program that are being called then are waited for.
const LAST_CALLS: Duration = Duration::from_secs(1);
/// Polls that find nothing, after which others get the core.
const PATIENCE: u32 = 2000;

/// What the endpoint, its regions and the helper thread share.
pub(crate) struct Shared {
    running: Mutex<Running>,
    began: Instant,
    /// Calls that have moved the protocol on; the helper sees by it whether somebody does. Relaxed: it orders nothing.
    pub calls: AtomicU64,
}

impl Shared {
    fn now(&self) -> Moment {
        Moment::new(self.began.elapsed().as_nanos() as u64)
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        // What a panic has left half done would fail in the engine by its own checks.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something, and then calls what is to be called, without the lock.
    #[inline]
    fn with<R>(&self, act: impl FnOnce(&mut Running, Moment) -> R) -> R {
        let mut running = self.lock();
        let result = act(&mut running, self.now());
        if !running.calls.is_empty() {
            let calls = core::mem::take(&mut running.calls);
            drop(running);
            calls.iter().for_each(|(function, completion)| function(completion));
        }
        result
    }

    /// Moves the protocol on. Whether there was anything.
    pub fn progress(&self) -> bool {
        self.with(|running, now| running.progress(now))
    }

    /// Nobody looks from now on. By what the helper is woken when something comes, and how long it may sleep; `None`: it is to look again.
    pub fn doze(&self) -> Option<(OwnedFd, Option<Duration>)> {
        self.with(|running, now| {
            let (fd, due) = running.doze(now)?;
            let left = |due: Moment| Duration::from_nanos(due.nanoseconds().saturating_sub(now.nanoseconds()));
            Some((fd, due.map(left)))
        })
    }

    pub fn deregister(&self, key: Key) -> Result<(), Error> {
        let mut running = self.lock();
        running.own.retain(|_, regions| {
            regions.retain(|(_, own)| *own != key);
            !regions.is_empty()
        });
        Ok(running.engine.memory().deregister(key)?)
    }
}

/// An endpoint: an address, regions, and connections to other endpoints. A process may have several, each on a card or port of
/// its own. All calls may be made by any number of threads.
///
/// When it is dropped, other ends are told, and what has not ended is not told of any more.
pub struct Endpoint {
    shared: Arc<Shared>,
    address: Address,
    mtu: u16,
    descriptor: OwnedFd,
}

impl Endpoint {
    /// Opens an endpoint.
    ///
    /// # Errors
    /// A number of `config` is out of its range, or card, queues or port cannot be opened.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let running = Running::open(config)?;
        let (address, mtu) = (running.address, running.mtu());
        let descriptor = running.descriptor.try_clone().map_err(|error| LinkError::Thread(error.to_string()))?;
        let (began, calls) = (Instant::now(), AtomicU64::new(0));
        let shared = Arc::new(Shared { running: Mutex::new(running), began, calls });
        helper::start(&shared).map_err(|error| LinkError::Thread(error.to_string()))?;
        Ok(Self { shared, address, mtu, descriptor })
    }

    /// Its address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Bytes of payload of its longest packet.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Makes memory and registers it.
    ///
    /// # Errors
    /// [`Error::Allocate`], [`Error::Register`].
    pub fn allocate(&self, len: usize, access: Access) -> Result<Region, Error> {
        let window = allocate(len)?;
        let source = Source::Window(window.clone());
        let mut running = self.shared.lock();
        let domain = running.domain;
        let key = running.engine.memory().register(domain, source, None, access.bits())?.lkey;
        Ok(Region::new(&self.shared, key, len as u64, Some(window)))
    }

    /// Registers shared memory that is there already. It may be registered at several endpoints.
    ///
    /// # Errors
    /// [`Error::Register`]
    pub fn share(&self, window: &Window, access: Access) -> Result<Region, Error> {
        let mut running = self.shared.lock();
        let domain = running.domain;
        let key = running.engine.memory().register(domain, Source::Window(window.clone()), None, access.bits())?.lkey;
        drop(running);
        Ok(Region::new(&self.shared, key, window.len() as u64, Some(window.clone())))
    }

    /// Registers memory of the program, which others then read and write behind its back: it has to be such that nothing is
    /// assumed of its bytes. Memory that is taken away later is not reached any more ([decision 55]).
    ///
    /// [decision 55]: https://github.com/millrace/millrace/blob/main/docs/decisions/0055-registered-memory.md
    ///
    /// # Errors
    /// [`Error::Register`]
    pub fn register(&self, address: u64, len: u64, access: Access) -> Result<Region, Error> {
        let mut running = self.shared.lock();
        let domain = running.domain;
        let source = Source::Own { address, len };
        let key = running.engine.memory().register(domain, source, None, access.bits())?.lkey;
        running.own.entry(address).or_default().push((len, key));
        Ok(Region::new(&self.shared, key, len, None))
    }

    /// The part of a registered region of the program's memory that has these bytes: of several the one that begins last.
    ///
    /// # Errors
    /// [`Error::Unregistered`]
    pub fn part_at(&self, address: u64, len: u32) -> Result<Part, Error> {
        let running = self.shared.lock();
        for (&first, regions) in running.own.range(..=address).rev() {
            let offset = address - first;
            let end = offset.saturating_add(u64::from(len));
            if let Some((_, key)) = regions.iter().find(|(region_len, _)| end <= *region_len) {
                return Ok(Part { key: *key, offset, len });
            }
        }
        Err(Error::Unregistered { address, len: len.into() })
    }

    /// Makes a connection, unless there is one. Whoever does not ask is asked: one of both ends has to call this, and both may.
    /// After a failure it makes a new one.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] after `patience`, [`Error::Refused`], [`Error::Itself`], [`Error::Peers`], [`Error::Lost`].
    pub fn connect(&self, other: Address, patience: Duration) -> Result<(), Error> {
        let begin = Instant::now();
        let mut stage = self.shared.with(|running, now| running.connect(now, other))?;
        loop {
            match stage {
                Stage::Ready => return Ok(()),
                Stage::Refused => return Err(Error::Refused(other)),
                // Another thread may have it answered, and use it already: only what is still asked for ends.
                Stage::Asking
                    if begin.elapsed() > patience && self.shared.with(|running, _| running.stop_asking(other)) =>
                {
                    return Err(Error::NoAnswer(other));
                }
                Stage::Asking => {}
            }
            if !self.progress() {
                std::thread::sleep(Duration::from_micros(50));
            }
            stage = self.shared.with(|running, _| match (&running.broken, running.stage(other)) {
                (Some(why), _) => Err(Error::Lost(why.clone())),
                (None, stage) => Ok(stage.unwrap_or(Stage::Refused)),
            })?;
        }
    }

    /// The same without waiting: to be called again until the connection is there. Whether it is.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Itself`], [`Error::Peers`], [`Error::Lost`].
    pub fn ask(&self, other: Address) -> Result<bool, Error> {
        match self.shared.with(|running, now| running.ask(now, other))? {
            Stage::Ready => Ok(true),
            Stage::Asking => Ok(false),
            Stage::Refused => Err(Error::Refused(other)),
        }
    }

    /// Tells another end something, or all ends of the wire: up to 200 bytes, once. It may be lost.
    ///
    /// # Errors
    /// [`Error::Told`], [`Error::Lost`].
    pub fn tell(&self, other: Option<Address>, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > MOST {
            return Err(Error::Told(bytes.len()));
        }
        self.shared.with(|running, now| {
            if let Some(why) = &running.broken {
                return Err(Error::Lost(why.clone()));
            }
            running.tell(other, bytes);
            running.send(now);
            Ok(())
        })
    }

    /// What others have told, the oldest first. 64 wait at most; what is more is counted (`told-dropped`).
    pub fn told(&self) -> Option<Told> {
        self.shared.lock().take_told()
    }

    /// The [descriptor](Self::descriptor) becomes readable when there is something to take: an end, or what was told. False: there is something
    /// already.
    pub fn arm(&self) -> bool {
        self.shared.lock().arm()
    }

    /// Why nothing comes or goes any more, if that is so.
    pub fn broken(&self) -> Option<String> {
        self.shared.lock().broken.clone()
    }

    /// Whether there is a connection that works as far as is known.
    pub fn is_connected(&self, other: Address) -> bool {
        self.shared.lock().stage(other) == Some(Stage::Ready)
    }

    /// Ends a connection: what is on its way fails as [`Failed::Flushed`](crate::Failed::Flushed) here, and as
    /// [`Failed::Unreachable`](crate::Failed::Unreachable) there.
    pub fn disconnect(&self, other: Address) {
        self.shared.with(|running, now| {
            running.disconnect(other);
            running.send(now);
        });
    }

    /// Posts a list of transfers with one doorbell; they are done in their order. One end is told, when all are done or one has failed.
    ///
    /// # Errors
    /// [`Error::NotConnected`], [`Error::Full`], [`Error::Range`]: nothing was posted. Others: the connection is over.
    #[inline]
    pub fn post(&self, other: Address, list: &[Transfer], token: u64, notify: Notify) -> Result<(), Error> {
        self.ring(other, list, token, &notify, false)
    }

    /// The same, but the end of each is told, with `token` plus its place in the list.
    ///
    /// # Errors
    /// As those of [`post`](Self::post).
    pub fn post_each(&self, other: Address, list: &[Transfer], token: u64, notify: Notify) -> Result<(), Error> {
        self.ring(other, list, token, &notify, true)
    }

    #[inline]
    fn ring(&self, other: Address, list: &[Transfer], token: u64, notify: &Notify, each: bool) -> Result<(), Error> {
        self.shared.with(|running, now| {
            running.post(other, list, token, notify, each)?;
            running.send(now);
            running.collect();
            Ok(())
        })
    }

    /// Posts a buffer for a message of any other end. Buffers are used in their order.
    ///
    /// # Errors
    /// [`Error::Full`]
    pub fn receive(&self, buffer: Part, token: u64, notify: Notify) -> Result<(), Error> {
        self.shared.with(|running, _| running.post_buffer(buffer, token, notify))
    }

    /// Moves the protocol on, and takes ends, the oldest first. How many they are.
    #[inline]
    pub fn poll(&self, to: &mut [Completion]) -> usize {
        self.shared.with(|running, now| {
            let count = running.take(to);
            if count > 0 {
                return count;
            }
            // Relaxed: the helper only wants to see that it changes.
            self.shared.calls.fetch_add(1, Ordering::Relaxed);
            running.progress(now);
            running.take(to)
        })
    }

    /// Polls until something has ended, at most for `patience`.
    pub fn wait(&self, patience: Duration) -> Option<Completion> {
        let mut one = [Completion::default()];
        let (mut begin, mut tries) = (None, 0_u32);
        loop {
            if self.poll(&mut one) > 0 {
                return one.first().copied();
            }
            tries += 1;
            if tries.is_multiple_of(64) {
                let begin = *begin.get_or_insert_with(Instant::now);
                if begin.elapsed() > patience {
                    return None;
                }
                if tries > PATIENCE {
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Moves the protocol on, without taking anything: for programs that are told by callbacks and do not want to wait for the helper
    /// thread. Whether there was anything to do.
    pub fn progress(&self) -> bool {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        self.shared.progress()
    }

    /// An eventfd, which becomes readable by the ends of what was posted with [`Notify::Descriptor`]. Read its eight bytes, then
    /// [`poll`](Self::poll) until nothing is there.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// What has happened, by name. `refused-key`, `refused-bounds` and `refused-permission` are what other ends have tried and
    /// this one has refused.
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.shared.lock().counters()
    }

    /// How often a wrong key, wrong bounds and a missing permission were refused.
    pub fn refused(&self) -> [u64; 3] {
        self.shared.lock().refused()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let begin = Instant::now();
        self.shared.with(|running, _| running.say_over());
        // The last acknowledgements, too: the other end would wait for them.
        while self.shared.with(|running, now| running.progress(now) || !running.is_quiet())
            && begin.elapsed() < FAREWELL
        {}
        self.shared.lock().is_closed = true;
        // Relaxed: the helper only wants to see that it changes. It may be calling a function of the program; when this returns it is
        // not, unless this is that function.
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        while Arc::strong_count(&self.shared) > 1 && begin.elapsed() < LAST_CALLS {
            std::thread::yield_now();
        }
    }
}
