//! Waking programs of users who may wish others harm: the time that it takes is measured, and counts for whose program is woken.
//!
//! Linux tells everybody who watches the other end of a socket, or an eventfd, in the context of whoever sends: with a million epolls there a wake takes a
//! worker 0.2 to 0.4 s. Whose bell was slow is looked at closely for a while, and if that was no accident (20 ms together) a thread of his own rings his bells from then on,
//! and closes them, which tells the same listeners: all of them, since a second one is soon made (decision 124).

use crate::notice;
use crate::peer::try_signal;
use rustix::fd::OwnedFd;
use rustix::net::{SendFlags, send};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What no wake takes that is one.
const SLOW: Duration = Duration::from_millis(1);
/// What slow wakes of a user may take of a thread together before one of his own rings for him. One may be slow by accident: what
/// interrupts do, and on a virtual machine what the host gives to others, counts as work of whoever runs.
const ALLOWED: Duration = Duration::from_millis(20);
/// Of the time that goes by, the part that is allowed besides is one in so many.
const PART: u32 = 1000;
/// For how long a user is looked at closely after one that was slow; and for how long a thread rings for him.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Bytes of the stack of such a thread.
const STACK: usize = 64 << 10;
/// How soon such a thread tries again what the system could not send.
const AGAIN: Duration = Duration::from_millis(10);
/// Bells of a user that wait to be closed, at most: who has more waiting has whoever drops the next one wait.
const MOST_CLOSING: u32 = 256;

/// How a user's bells are rung.
mod mood {
    /// By whoever has something to tell, with a look at the clock before and after.
    pub const TRUSTED: u8 = 0;
    /// The same, with a look at what the thread has worked: one that another took the core from has not been slow.
    pub const WATCHED: u8 = 1;
    /// By the user's thread.
    pub const APART: u8 = 2;
}

/// All users that have bells, and those that are remembered.
static USERS: Mutex<Option<HashMap<Whose, Arc<User>>>> = Mutex::new(None);
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// The cores of the process, as whoever made the first bell has them: workers keep to one.
static CORES: OnceLock<CpuSet> = OnceLock::new();
static SLOW_WAKES: AtomicU64 = AtomicU64::new(0);
static WAKES_APART: AtomicU64 = AtomicU64::new(0);

/// Wakes that took longer than one does, and those that were left to a thread of the user's, since the program began.
pub fn slow_wakes() -> [u64; 2] {
    // Relaxed: sums, which order nothing.
    [&SLOW_WAKES, &WAKES_APART].map(|count| count.load(Ordering::Relaxed))
}

/// Whose programs a bell wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// A user's.
    User(u32),
    /// Those of a peer of ivshmem, of whom only the server knows which user he is.
    Peer {
        /// The memory that he shares: the number of its file system, and there.
        memory: (u64, u64),
        /// His place in it.
        slot: u16,
    },
}

impl From<u32> for Whose {
    fn from(uid: u32) -> Self {
        Self::User(uid)
    }
}

impl Display for Whose {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Peer { slot, .. } => write!(f, "peer {slot} of a shared memory"),
        }
    }
}

/// A user whose programs are woken.
struct User {
    whose: Whose,
    mood: AtomicU8,
    /// When the mood gets better, in ms since [`BEGAN`].
    until: AtomicU64,
    /// When all that slow wakes have taken is made up for, the same.
    settled: AtomicU64,
    /// Bells that his thread has to close.
    closing: AtomicU32,
    /// To his thread, from the first time on that there is work for it.
    thread: OnceLock<Sender<Task>>,
}

/// What a user's thread has to do.
enum Task {
    Ring(Arc<Bell>),
    Close(Arc<OwnedFd>, Arc<User>),
}

/// How a bell is rung.
#[derive(Clone, Copy)]
enum Way {
    /// A byte is sent.
    Socket,
    /// It is signalled, as whoever has it too can have a writer wait. By this; `false`: not at the moment.
    Event(fn(&OwnedFd) -> bool),
}

/// A socket, or an eventfd, by which a program is woken. Ringing it never waits.
pub struct Bell {
    /// `None`: it is left to another thread to close it.
    fd: Option<Arc<OwnedFd>>,
    way: Way,
    /// `None`: the other end is ours.
    user: Option<Arc<User>>,
    /// It is rung soon.
    waits: AtomicBool,
}

impl Bell {
    /// A socket whose other end is handed to a program of his.
    pub fn of(whose: impl Into<Whose>, socket: impl Into<Arc<OwnedFd>>) -> Arc<Self> {
        Self::new(Some(whose.into()), Way::Socket, socket.into())
    }

    /// An eventfd that a program of his has, too. What is none is not rung.
    pub fn event(whose: impl Into<Whose>, event: impl Into<Arc<OwnedFd>>) -> Arc<Self> {
        Self::new(Some(whose.into()), Way::Event(|event| try_signal(event)), event.into())
    }

    /// A socket whose other end this process keeps.
    pub fn own(socket: OwnedFd) -> Arc<Self> {
        Self::new(None, Way::Socket, socket.into())
    }

    fn new(whose: Option<Whose>, way: Way, fd: Arc<OwnedFd>) -> Arc<Self> {
        Arc::new(Self { fd: Some(fd), way, user: whose.map(User::find), waits: AtomicBool::new(false) })
    }

    /// Wakes whoever waits at the other end.
    pub fn ring(self: &Arc<Self>) {
        self.try_ring();
    }

    /// The same. `false`: the system has nothing to do it with at the moment (`fs.aio-max-nr`, of an eventfd), which may be
    /// different later.
    pub fn try_ring(self: &Arc<Self>) -> bool {
        let Some(user) = &self.user else { return self.send() };
        if user.mood.load(Ordering::Relaxed) != mood::TRUSTED {
            return self.ring_carefully(user);
        }
        user.glance(|| self.send())
    }

    /// What is rung, for another process that is to ring it.
    pub fn fd(&self) -> Option<rustix::fd::BorrowedFd<'_>> {
        self.fd.as_ref().map(rustix::fd::AsFd::as_fd)
    }

    /// Whether a thread of the user's rings it.
    pub fn is_apart(&self) -> bool {
        self.user.as_ref().is_some_and(|user| user.mood.load(Ordering::Relaxed) == mood::APART)
    }

    /// Whose it is. `None`: ours.
    #[cfg(test)]
    pub(crate) fn whose(&self) -> Option<Whose> {
        self.user.as_ref().map(|user| user.whose)
    }

    fn send(&self) -> bool {
        match (&self.fd, self.way) {
            // One that is full is already readable, and a program that is gone needs none.
            (Some(socket), Way::Socket) => drop(send(socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)),
            (Some(event), Way::Event(signal)) => return signal(event),
            (None, _) => {}
        }
        true
    }

    #[cold]
    fn ring_carefully(self: &Arc<Self>, user: &User) -> bool {
        user.forgive();
        match user.mood.load(Ordering::Relaxed) {
            mood::TRUSTED => user.glance(|| self.send()),
            mood::APART if self.leave_to(user) => true,
            _ => user.measure(|| self.send()).0,
        }
    }

    /// Leaves it to the user's thread. `false`: there is none to be had.
    fn leave_to(self: &Arc<Self>, user: &User) -> bool {
        // AcqRel: pairs with the store in `ring_here`, so that what was to be told before this is there when it is rung.
        if self.waits.swap(true, Ordering::AcqRel) {
            return true;
        }
        let is_left = user.thread().is_some_and(|thread| thread.send(Task::Ring(self.clone())).is_ok());
        if is_left {
            WAKES_APART.fetch_add(1, Ordering::Relaxed);
        } else {
            self.waits.store(false, Ordering::Release);
        }
        is_left
    }

    /// Rings, by the user's thread. `false`: it is to be tried again, and nobody else does that.
    fn ring_here(&self) -> bool {
        // Release: what comes from now on is rung once more.
        self.waits.store(false, Ordering::Release);
        let Some(user) = &self.user else { return true };
        let (is_sent, took) = user.measure(|| self.send());
        rest(took);
        // AcqRel: as in `leave_to`.
        is_sent || self.waits.swap(true, Ordering::AcqRel)
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        if let (Some(fd), Some(user)) = (self.fd.take(), &self.user) {
            user.close(fd);
        }
    }
}

impl User {
    fn find(whose: Whose) -> Arc<Self> {
        let _ = CORES.get_or_init(|| sched_getaffinity(None).unwrap_or_default());
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        let users = users.get_or_insert_default();
        // Who comes back is who he was.
        users.retain(|_, user| {
            user.forgive();
            Arc::strong_count(user) > 1 || user.mood.load(Ordering::Relaxed) != mood::TRUSTED
        });
        let new = || {
            let (mood, [until, settled]) = (AtomicU8::new(mood::TRUSTED), [0, 0].map(AtomicU64::new));
            Arc::new(Self { whose, mood, until, settled, closing: AtomicU32::new(0), thread: OnceLock::new() })
        };
        users.entry(whose).or_insert_with(new).clone()
    }

    /// Does it, and looks at the clock before and after.
    fn glance<R>(&self, act: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = act();
        if began.elapsed() >= SLOW {
            SLOW_WAKES.fetch_add(1, Ordering::Relaxed);
            self.change(mood::WATCHED);
        }
        result
    }

    /// Does it, and looks how long that took the thread.
    fn measure<R>(&self, act: impl FnOnce() -> R) -> (R, Duration) {
        let began = worked();
        let result = act();
        let took = worked().saturating_sub(began);
        if took >= SLOW {
            self.was_slow(took);
        }
        (result, took)
    }

    fn was_slow(&self, took: Duration) {
        SLOW_WAKES.fetch_add(1, Ordering::Relaxed);
        if self.is_too_much(took) {
            self.set_apart(took);
        } else if self.mood.load(Ordering::Relaxed) != mood::APART {
            self.change(mood::WATCHED);
        }
    }

    /// Adds what a slow wake took to what others have taken, and says whether that is more than [`ALLOWED`].
    fn is_too_much(&self, took: Duration) -> bool {
        let now = now();
        let takes = (took * PART).as_millis() as u64;
        let add = |settled: u64| settled.max(now) + takes;
        // Relaxed: a sum, which orders nothing.
        let before = self.settled.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |settled| Some(add(settled)));
        add(before.unwrap_or(now)) - now >= (ALLOWED * PART).as_millis() as u64
    }

    /// Closes a bell of his, or leaves that to his thread: whoever watches the other end is told.
    fn close(self: &Arc<Self>, fd: Arc<OwnedFd>) {
        if self.mood.load(Ordering::Relaxed) == mood::TRUSTED {
            return self.glance(|| drop(fd));
        }
        self.forgive();
        let fd = if self.mood.load(Ordering::Relaxed) == mood::APART { self.leave_closing(fd) } else { Some(fd) };
        if let Some(fd) = fd {
            self.measure(|| drop(fd));
        }
    }

    /// Comes back if nobody closes it.
    fn leave_closing(self: &Arc<Self>, fd: Arc<OwnedFd>) -> Option<Arc<OwnedFd>> {
        let Some(thread) = self.thread() else { return Some(fd) };
        // Relaxed: a count, which orders nothing.
        if self.closing.fetch_add(1, Ordering::Relaxed) < MOST_CLOSING {
            match thread.send(Task::Close(fd, self.clone())) {
                Ok(()) => return None,
                Err(SendError(Task::Close(fd, _))) => return self.keep(fd),
                Err(SendError(Task::Ring(_))) => return None,
            }
        }
        self.keep(fd)
    }

    fn keep(&self, fd: Arc<OwnedFd>) -> Option<Arc<OwnedFd>> {
        self.closing.fetch_sub(1, Ordering::Relaxed);
        Some(fd)
    }

    fn change(&self, mood: u8) {
        self.until.store(now() + REMEMBERED.as_millis() as u64, Ordering::Relaxed);
        self.mood.store(mood, Ordering::Relaxed);
    }

    /// What was long ago counts no more.
    fn forgive(&self) {
        if self.mood.load(Ordering::Relaxed) != mood::TRUSTED && now() >= self.until.load(Ordering::Relaxed) {
            self.mood.store(mood::TRUSTED, Ordering::Relaxed);
        }
    }

    fn set_apart(&self, took: Duration) {
        if self.mood.load(Ordering::Relaxed) != mood::APART {
            notice::warn(format!(
                "to wake a program of {} took {} ms, as many listen to its bell: a thread of its own wakes programs of that user from now on",
                self.whose,
                took.as_millis()
            ));
        }
        self.change(mood::APART);
    }

    fn thread(&self) -> Option<&Sender<Task>> {
        if self.thread.get().is_none() {
            let (to, tasks) = channel();
            let builder = std::thread::Builder::new().name("millrace-bells".to_owned()).stack_size(STACK);
            builder.spawn(move || work(&tasks)).ok()?;
            // Another worker may have been first: its thread is the one, and this one ends.
            let _ = self.thread.set(to);
        }
        self.thread.get()
    }
}

/// Milliseconds since [`BEGAN`].
fn now() -> u64 {
    BEGAN.elapsed().as_millis() as u64
}

/// What the calling thread has worked so far.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// After what was slow: the thread has half of a core at most.
fn rest(took: Duration) {
    if took >= SLOW {
        std::thread::sleep(took);
    }
}

/// What a user's thread does, as long as he has bells or is remembered.
fn work(tasks: &Receiver<Task>) {
    if let Some(cores) = CORES.get() {
        // Not on the core of the worker that has started it.
        let _ = sched_setaffinity(None, cores);
    }
    // What the system could not send; each of them once.
    let mut unsent: Vec<Arc<Bell>> = Vec::new();
    loop {
        let task = match unsent.is_empty() {
            true => tasks.recv().map(Some),
            false => match tasks.recv_timeout(AGAIN) {
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Ok(task) => Ok(Some(task)),
                Err(RecvTimeoutError::Disconnected) => return,
            },
        };
        // One that nobody else has wakes nobody any more.
        unsent.retain(|bell| Arc::strong_count(bell) > 1 && !bell.ring_here());
        match task {
            Ok(None) => {}
            Ok(Some(Task::Ring(bell))) => {
                if !bell.ring_here() {
                    unsent.push(bell);
                }
            }
            Ok(Some(Task::Close(fd, user))) => {
                let ((), took) = user.measure(|| drop(fd));
                user.closing.fetch_sub(1, Ordering::Relaxed);
                rest(took);
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_listeners::{Listeners, comes, ring_until_apart, take};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// Users of tests, each of whom has his own.
    const USER: u32 = 1 << 20;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn events() -> (OwnedFd, OwnedFd) {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let theirs = event.try_clone().unwrap();
        (event, theirs)
    }

    fn mood(bell: &Bell) -> u8 {
        bell.user.as_ref().unwrap().mood.load(Ordering::Relaxed)
    }

    /// What this thread works for each of so many, in order. Linux frees the listeners of other tests at any time, and counts that as work of whoever runs:
    /// one alone says nothing.
    fn worked_for(times: usize, mut act: impl FnMut() -> Duration) -> Vec<Duration> {
        let mut all: Vec<Duration> = (0..times).map(|_| act()).collect();
        all.sort();
        all
    }

    fn keeps_his_own_thread(user: u32, make: fn(u32, OwnedFd) -> Arc<Bell>, two: fn() -> (OwnedFd, OwnedFd)) {
        let ((ours, theirs), (other, others)) = (two(), two());
        let (bell, honest) = (make(user, ours), make(user + 1, other));
        let Some(listeners) = Listeners::of(&theirs) else { return };
        ring_until_apart(&theirs, || assert!(bell.try_ring()), || bell.is_apart());
        assert!(slow_wakes().iter().all(|&count| count > 0));
        let apart = worked_for(21, || {
            take(&theirs);
            let began = worked();
            assert!(bell.try_ring());
            let took = worked() - began;
            assert!(comes(&theirs, 60), "it is woken all the same");
            took
        });
        println!("{apart:?}");
        assert!(apart[10] < SLOW, "{apart:?}");
        // Another bell of the same user is rung by that thread, too, and one of another user is not.
        let (more, end) = two();
        let again = make(user, more);
        assert!(again.is_apart() && again.try_ring());
        assert!(comes(&end, 60));
        assert!(honest.try_ring());
        assert!(comes(&others, 0), "it was rung at once");
        assert!(!honest.is_apart());
        // Who comes back is who he was, until that is long ago.
        drop((bell, again, listeners));
        let back = make(user, two().0);
        assert!(back.is_apart());
        back.user.as_ref().unwrap().until.store(0, Ordering::Relaxed);
        back.ring();
        assert!(!back.is_apart());
    }

    #[test]
    fn whose_bell_has_many_listeners_keeps_his_own_thread_and_nobody_else() {
        keeps_his_own_thread(USER, Bell::of, pair);
    }

    #[test]
    fn whose_event_has_many_listeners_keeps_his_own_thread_and_nobody_else() {
        keeps_his_own_thread(USER | 1 << 8, Bell::event, events);
    }

    #[test]
    fn to_close_a_bell_is_left_to_that_thread_too() {
        let user = USER | 2 << 8;
        let close = |is_apart: bool| {
            let (ours, theirs) = pair();
            let _listeners = Listeners::of(&theirs)?;
            let bell = Bell::of(user, ours);
            // In case that it is closed here.
            bell.user.as_ref().unwrap().change(if is_apart { mood::APART } else { mood::TRUSTED });
            let began = worked();
            drop(bell);
            let took = worked() - began;
            assert!(comes(&theirs, 60), "it is closed all the same");
            Some(took)
        };
        let Some(here) = close(false) else { return };
        let apart = worked_for(5, || close(true).expect("as it was before"));
        println!("{here:?}, apart {apart:?}");
        // One that is closed here takes as long each time.
        assert!(here >= SLOW && apart[0] < SLOW, "{here:?}, {apart:?}");
        let remembered = Bell::of(user, pair().0);
        assert!(remembered.is_apart());
        let user = remembered.user.as_ref().unwrap();
        // Closed before it is counted as closed.
        while user.closing.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_the_system_cannot_send_is_tried_again() {
        static REFUSED: AtomicU32 = AtomicU32::new(0);
        fn refuse_some(event: &OwnedFd) -> bool {
            REFUSED.fetch_add(1, Ordering::Relaxed) >= 3 && try_signal(event)
        }
        let (ours, theirs) = events();
        let bell = Bell::new(Some(Whose::User(USER | 3 << 8)), Way::Event(refuse_some), Arc::new(ours));
        assert!(!bell.try_ring() && !comes(&theirs, 0), "whoever rings is told");
        bell.user.as_ref().unwrap().change(mood::APART);
        assert!(bell.try_ring(), "it is left to a thread");
        assert!(comes(&theirs, 60));
        assert!(REFUSED.load(Ordering::Relaxed) >= 4);
        take(&theirs);
        assert!(bell.try_ring() && comes(&theirs, 60), "once more");
    }

    #[test]
    fn who_was_slow_once_by_accident_is_rung_at_once() {
        let (ours, theirs) = pair();
        let bell = Bell::of(USER | 4 << 8, ours);
        let user = bell.user.as_ref().unwrap();
        // What Linux frees meanwhile of other tests is counted as work of this thread.
        let is_rung_at_once = || {
            take(&theirs);
            user.change(mood::WATCHED);
            bell.ring();
            comes(&theirs, 0) && mood(&bell) == mood::WATCHED
        };
        assert!((0..100).any(|_| is_rung_at_once()));
    }

    #[test]
    fn slow_wakes_now_and_then_are_accidents_and_many_are_none() {
        let bell = Bell::of(USER | 5 << 8, pair().0);
        let user = bell.user.as_ref().unwrap();
        let mood = || user.mood.load(Ordering::Relaxed);
        user.was_slow(ALLOWED / 2);
        assert_eq!(mood(), mood::WATCHED);
        // Long after that.
        user.settled.store(0, Ordering::Relaxed);
        user.was_slow(ALLOWED / 2);
        assert_eq!(mood(), mood::WATCHED);
        // At once.
        user.was_slow(ALLOWED / 2 + SLOW);
        assert_eq!(mood(), mood::APART);
        // An accident of his own thread does not keep it.
        user.settled.store(0, Ordering::Relaxed);
        user.until.store(0, Ordering::Relaxed);
        user.was_slow(SLOW);
        user.forgive();
        assert_eq!(mood(), mood::TRUSTED);
        // One that is no accident.
        user.was_slow(ALLOWED);
        assert_eq!(mood(), mood::APART);
    }
}
