//! Waking programs of users who may wish others harm: the time that it takes is measured, and counts for whose program is woken.
//!
//! Linux tells everybody who watches the other end of a socket, in the context of whoever sends: with a million epolls there a wake takes a worker 0.2 to
//! 0.4 s. Whose bell was slow is looked at closely for a while, and if that was no accident a thread of his own rings his bells from then on: all of them,
//! since a second one is soon made (decision 124).

use crate::notice;
use rustix::fd::OwnedFd;
use rustix::net::{SendFlags, send};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What no wake takes that is one.
const SLOW: Duration = Duration::from_millis(1);
/// For how long a user is looked at closely after one that was slow; and for how long a thread rings for him.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Bytes of the stack of such a thread.
const STACK: usize = 64 << 10;

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
static USERS: Mutex<Option<HashMap<u32, Arc<User>>>> = Mutex::new(None);
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

/// A user whose programs are woken.
struct User {
    uid: u32,
    mood: AtomicU8,
    /// When the mood gets better, in ms since [`BEGAN`].
    until: AtomicU64,
    /// To his thread, from the first time on that there is work for it.
    thread: OnceLock<Sender<Arc<Bell>>>,
}

/// A socket by which a program is woken. Ringing it never waits.
pub struct Bell {
    socket: OwnedFd,
    /// `None`: the other end is ours.
    user: Option<Arc<User>>,
    /// It is rung soon.
    waits: AtomicBool,
}

impl Bell {
    /// One whose other end is handed to a program of this user.
    pub fn of(uid: u32, socket: OwnedFd) -> Arc<Self> {
        Arc::new(Self { socket, user: Some(User::find(uid)), waits: AtomicBool::new(false) })
    }

    /// One whose other end this process keeps.
    pub fn own(socket: OwnedFd) -> Arc<Self> {
        Arc::new(Self { socket, user: None, waits: AtomicBool::new(false) })
    }

    /// Wakes whoever waits at the other end.
    pub fn ring(self: &Arc<Self>) {
        let Some(user) = &self.user else { return self.send() };
        if user.mood.load(Ordering::Relaxed) != mood::TRUSTED {
            return self.ring_carefully(user);
        }
        let began = Instant::now();
        self.send();
        if began.elapsed() >= SLOW {
            user.change(mood::WATCHED);
        }
    }

    fn send(&self) {
        // One that is full is already readable, and a program that is gone needs none.
        let _ = send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Rings, and says how long that took the thread.
    fn send_measured(&self) -> Duration {
        let began = worked();
        self.send();
        worked().saturating_sub(began)
    }

    #[cold]
    fn ring_carefully(self: &Arc<Self>, user: &User) {
        user.forgive();
        if user.mood.load(Ordering::Relaxed) == mood::APART && self.leave_to(user) {
            return;
        }
        let took = self.send_measured();
        if took >= SLOW {
            user.set_apart(took);
        }
    }

    /// Leaves it to the user's thread. `false`: there is none to be had.
    fn leave_to(self: &Arc<Self>, user: &User) -> bool {
        // AcqRel: pairs with the store in `ring_all`, so that what was to be told before this is there when it is rung.
        if self.waits.swap(true, Ordering::AcqRel) {
            return true;
        }
        let is_left = user.thread().is_some_and(|thread| thread.send(self.clone()).is_ok());
        if is_left {
            WAKES_APART.fetch_add(1, Ordering::Relaxed);
        } else {
            self.waits.store(false, Ordering::Release);
        }
        is_left
    }
}

impl User {
    fn find(uid: u32) -> Arc<Self> {
        let _ = CORES.get_or_init(|| sched_getaffinity(None).unwrap_or_default());
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        let users = users.get_or_insert_default();
        // Who comes back is who he was.
        users.retain(|_, user| {
            user.forgive();
            Arc::strong_count(user) > 1 || user.mood.load(Ordering::Relaxed) != mood::TRUSTED
        });
        let new = || {
            let (mood, until) = (AtomicU8::new(mood::TRUSTED), AtomicU64::new(0));
            Arc::new(Self { uid, mood, until, thread: OnceLock::new() })
        };
        users.entry(uid).or_insert_with(new).clone()
    }

    fn change(&self, mood: u8) {
        if mood != mood::TRUSTED {
            SLOW_WAKES.fetch_add(1, Ordering::Relaxed);
        }
        self.until.store((BEGAN.elapsed() + REMEMBERED).as_millis() as u64, Ordering::Relaxed);
        self.mood.store(mood, Ordering::Relaxed);
    }

    /// What was long ago counts no more.
    fn forgive(&self) {
        if self.mood.load(Ordering::Relaxed) != mood::TRUSTED
            && BEGAN.elapsed().as_millis() as u64 >= self.until.load(Ordering::Relaxed)
        {
            self.mood.store(mood::TRUSTED, Ordering::Relaxed);
        }
    }

    fn set_apart(&self, took: Duration) {
        if self.mood.load(Ordering::Relaxed) != mood::APART {
            notice::warn(format!(
                "to wake a program of user {} took {} ms, as many listen to its bell: a thread of its own wakes programs of that user from now on",
                self.uid,
                took.as_millis()
            ));
        }
        self.change(mood::APART);
    }

    fn thread(&self) -> Option<&Sender<Arc<Bell>>> {
        if self.thread.get().is_none() {
            let (to, bells) = channel();
            let builder = std::thread::Builder::new().name("millrace-bells".to_owned()).stack_size(STACK);
            builder.spawn(move || ring_all(bells)).ok()?;
            // Another worker may have been first: its thread is the one, and this one ends.
            let _ = self.thread.set(to);
        }
        self.thread.get()
    }
}

/// What the calling thread has worked so far.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What a user's thread does, as long as he has bells or is remembered.
fn ring_all(bells: Receiver<Arc<Bell>>) {
    if let Some(cores) = CORES.get() {
        // Not on the core of the worker that has started it.
        let _ = sched_setaffinity(None, cores);
    }
    for bell in bells {
        // Release: what comes from now on is rung once more.
        bell.waits.store(false, Ordering::Release);
        let took = bell.send_measured();
        if took >= SLOW {
            bell.user.iter().for_each(|user| user.set_apart(took));
            // It has half of a core at most.
            std::thread::sleep(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::{Errno, dup};
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

    /// Epolls, and descriptors that each of them watches: all of one socket.
    const EPOLLS: usize = 200;
    const WATCHED: usize = 200;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// Has it watched very often. `None`: that is not allowed here.
    fn watch(theirs: &OwnedFd) -> Option<Vec<OwnedFd>> {
        let watch_all = || -> Result<Vec<OwnedFd>, Errno> {
            let mut all = (0..WATCHED).map(|_| dup(theirs)).collect::<Result<Vec<_>, _>>()?;
            for _ in 0..EPOLLS {
                let one = epoll::create(CreateFlags::CLOEXEC)?;
                for fd in &all[..WATCHED] {
                    epoll::add(&one, fd, EventData::new_u64(0), EventFlags::IN)?;
                }
                all.push(one);
            }
            Ok(all)
        };
        watch_all().inspect_err(|errno| println!("not tried, as it cannot be watched so often: {errno}")).ok()
    }

    fn comes(theirs: &OwnedFd, within: i64) -> bool {
        let within = Timespec { tv_sec: within, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(theirs, PollFlags::IN)], Some(&within)), Ok(1))
    }

    fn hear(theirs: &OwnedFd) {
        while recv(theirs, &mut [0; 64][..], RecvFlags::DONTWAIT).is_ok_and(|(count, _)| count > 0) {}
    }

    #[test]
    fn whose_bell_has_many_listeners_keeps_his_own_thread_and_nobody_else() {
        let ((ours, theirs), (other, others)) = (pair(), pair());
        let (bell, honest) = (Bell::of(1 << 20, ours), Bell::of(1 << 20 | 1, other));
        let Some(listeners) = watch(&theirs) else { return };
        // The first time may be an accident.
        let slow: Vec<Duration> = (0..2).map(|_| measure(&bell, &theirs)).collect();
        println!("{} listeners: {slow:?}", EPOLLS * WATCHED);
        assert!(slow.iter().all(|took| *took >= SLOW), "{slow:?}");
        let apart: Vec<Duration> = (0..20).map(|_| measure(&bell, &theirs)).collect();
        println!("later: {apart:?}");
        assert!(apart.iter().all(|took| *took < slow[1] / 2), "{apart:?}, {slow:?}");
        // Another bell of the same user is rung by that thread, too, and one of another user is not.
        let (more, end) = pair();
        let again = Bell::of(1 << 20, more);
        again.ring();
        assert!(comes(&end, 60));
        honest.ring();
        assert!(comes(&others, 0), "it was rung at once");
        let mood = |bell: &Bell| bell.user.as_ref().unwrap().mood.load(Ordering::Relaxed);
        assert_eq!((mood(&bell), mood(&again), mood(&honest)), (mood::APART, mood::APART, mood::TRUSTED));
        // Who comes back is who he was, until that is long ago.
        drop((bell, again, listeners));
        let back = Bell::of(1 << 20, pair().0);
        assert_eq!(mood(&back), mood::APART);
        back.user.as_ref().unwrap().until.store(0, Ordering::Relaxed);
        back.ring();
        assert_eq!(mood(&back), mood::TRUSTED);
    }

    /// How long this thread has worked for one wake, which comes.
    fn measure(bell: &Arc<Bell>, theirs: &OwnedFd) -> Duration {
        hear(theirs);
        let began = worked();
        bell.ring();
        let took = worked() - began;
        assert!(comes(theirs, 60), "it is woken all the same");
        took
    }

    #[test]
    fn who_was_slow_once_by_accident_is_rung_at_once() {
        let (ours, theirs) = pair();
        let bell = Bell::of(1 << 20 | 2, ours);
        let user = bell.user.as_ref().unwrap();
        user.change(mood::WATCHED);
        bell.ring();
        assert!(comes(&theirs, 0));
        assert_eq!(user.mood.load(Ordering::Relaxed), mood::WATCHED);
        let [slow, _] = slow_wakes();
        assert!(slow > 0);
    }
}
