//! What programs have handed over is closed on threads of its own: closing can take as long as whoever made
//! the fd likes (a TCP socket that lingers, inside a socket that nobody reads), and unmapping as long as there is
//! memory.
//!
//! One thing at a time of each process, and [`THREADS`] of each user: what takes long delays its process, and where
//! there are many such processes, their user. What something costs is charged until it is closed.

use super::quotas::Charge;
use super::schedule::Asker;
use millrace_dma::Region;
use rustix::fd::OwnedFd;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Threads that one user may keep busy.
const THREADS: usize = 4;

/// Threads in all. There is one as long as nothing takes long.
const MOST_THREADS: usize = 64;

/// How long there always was a thread that had nothing to do before one ends; the last stays.
const REST: Duration = Duration::from_secs(1);

/// How much of one process may wait to be closed before it is not listened to any more.
pub(super) const MOST_WAITING: usize = 32;

/// The same for all processes of a user together.
const MOST_OF_USER: usize = 256;

/// How long the end of the card waits for what is being closed. The rest is closed by the end of the process, which no
/// socket can hold up.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// What is to be dropped, and after it what was paid for it; what that does is all that matters.
#[expect(dead_code, reason = "held until it is dropped")]
pub(super) enum Garbage {
    Fd(OwnedFd),
    Connection(OwnedFd, Vec<Charge>),
    Memory(Region, Option<Charge>),
}

/// A process of a user.
type Whose = (u32, u32);

/// What of one user waits or is being closed.
#[derive(Default)]
struct OfUser {
    // By process: what waits, and whether something of it is being closed.
    of_process: HashMap<u32, (VecDeque<Garbage>, bool)>,
    // Processes of which something waits and nothing is being closed, in turn.
    turns: VecDeque<u32>,
    waiting: usize,
    threads: usize,
}

impl OfUser {
    fn can_go_on(&self) -> bool {
        !self.turns.is_empty() && self.threads < THREADS
    }
}

#[derive(Default)]
struct Backlog {
    of_user: HashMap<u32, OfUser>,
    // Users of whom something can be closed, in turn.
    turns: VecDeque<u32>,
    threads: usize,
    // Of these, those that have not looked yet what there is, and those that wait for something.
    starting: usize,
    idle: usize,
    // When there was none that waited, last.
    none_idle: Option<Instant>,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    backlog: Mutex<Backlog>,
    change: Condvar,
}

impl Shared {
    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that somebody looks at what can be closed. Whoever takes something does the same for what is left: one
    /// that was told has not woken yet when more of the same user comes, and what it takes may keep it for ever.
    fn call_thread(self: &Arc<Self>, backlog: &mut Backlog) {
        if backlog.turns.is_empty() {
            return;
        }
        if backlog.turns.len() > backlog.idle + backlog.starting && backlog.threads < MOST_THREADS {
            // Without one more it takes longer.
            let _ = self.start_thread(backlog);
        }
        self.change.notify_one();
    }

    fn start_thread(self: &Arc<Self>, backlog: &mut Backlog) -> std::io::Result<()> {
        let shared = self.clone();
        std::thread::Builder::new()
            .name("millrace-reaper".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || shared.work())?;
        (backlog.threads, backlog.starting) = (backlog.threads + 1, backlog.starting + 1);
        Ok(())
    }

    /// A thread's life: until there is nothing left and nothing to come.
    fn work(self: &Arc<Self>) {
        let mut backlog = self.backlog();
        backlog.starting -= 1;
        // Its first rest is waited for; told once, or threads at rest would wake each other for ever.
        let mut new = true;
        loop {
            if let Some((whose, garbage)) = backlog.take() {
                self.call_thread(&mut backlog);
                drop(backlog);
                drop(garbage);
                backlog = self.backlog();
                backlog.closed(whose);
                continue;
            }
            if backlog.stop || backlog.can_spare_one() {
                break;
            }
            backlog = self.rest(backlog, core::mem::take(&mut new));
        }
        backlog.threads -= 1;
        self.change.notify_all();
    }

    /// Until there may be something to do, or it is time to look whether this thread is one too many.
    fn rest<'a>(&'a self, mut backlog: MutexGuard<'a, Backlog>, is_first: bool) -> MutexGuard<'a, Backlog> {
        if backlog.idle == 0 {
            backlog.none_idle = Some(Instant::now());
        }
        backlog.idle += 1;
        if is_first {
            self.change.notify_all();
        }
        // The last one sleeps until there is something.
        backlog = if backlog.threads > 1 {
            self.change.wait_timeout(backlog, REST).unwrap_or_else(PoisonError::into_inner).0
        } else {
            self.change.wait(backlog).unwrap_or_else(PoisonError::into_inner)
        };
        backlog.idle -= 1;
        backlog
    }
}

impl Backlog {
    /// Whether the other threads would have done all that there was lately. How long one of them rests does not say it:
    /// those that wait are woken in turn, so that a little now and then would keep all of them.
    fn can_spare_one(&self) -> bool {
        self.idle > 0 && self.none_idle.is_some_and(|at| at.elapsed() >= REST)
    }

    fn add(&mut self, (uid, pid): Whose, garbage: Garbage) {
        let user = self.of_user.entry(uid).or_default();
        let could_go_on = user.can_go_on();
        let (waiting, busy) = user.of_process.entry(pid).or_default();
        waiting.push_back(garbage);
        if waiting.len() == 1 && !*busy {
            user.turns.push_back(pid);
        }
        user.waiting += 1;
        if !could_go_on && user.can_go_on() {
            self.turns.push_back(uid);
        }
    }

    fn take(&mut self) -> Option<(Whose, Garbage)> {
        let uid = self.turns.pop_front()?;
        let user = self.of_user.get_mut(&uid)?;
        let pid = user.turns.pop_front()?;
        let (waiting, busy) = user.of_process.get_mut(&pid)?;
        *busy = true;
        let garbage = waiting.pop_front()?;
        (user.waiting, user.threads) = (user.waiting - 1, user.threads + 1);
        if user.can_go_on() {
            self.turns.push_back(uid);
        }
        Some(((uid, pid), garbage))
    }

    fn closed(&mut self, (uid, pid): Whose) {
        let Some(user) = self.of_user.get_mut(&uid) else { return };
        let could_go_on = user.can_go_on();
        user.threads -= 1;
        if let Some((waiting, busy)) = user.of_process.get_mut(&pid) {
            *busy = false;
            if waiting.is_empty() {
                user.of_process.remove(&pid);
            } else {
                user.turns.push_back(pid);
            }
        }
        if !could_go_on && user.can_go_on() {
            self.turns.push_back(uid);
        }
        if user.of_process.is_empty() {
            self.of_user.remove(&uid);
        }
    }
}

/// The threads that close.
pub(super) struct Reaper {
    shared: Arc<Shared>,
}

impl Reaper {
    pub fn new() -> std::io::Result<Self> {
        let reaper = Self { shared: Arc::default() };
        reaper.shared.start_thread(&mut reaper.shared.backlog())?;
        // It is ready: what a thread allocates when it starts is not to fall into a program's work.
        let ready = reaper.shared.change.wait_while(reaper.shared.backlog(), |backlog| backlog.idle == 0);
        drop(ready);
        Ok(reaper)
    }

    /// Has something of a process closed, soon.
    pub fn take(&self, asker: Asker, garbage: Garbage) {
        let mut backlog = self.shared.backlog();
        self.take_more(&mut backlog, asker, garbage);
    }

    fn take_more(&self, backlog: &mut Backlog, asker: Asker, garbage: Garbage) {
        backlog.add((asker.uid, asker.pid), garbage);
        self.shared.call_thread(backlog);
    }

    /// Has fds of a process closed, soon.
    pub fn take_fds(&self, asker: Asker, fds: impl IntoIterator<Item = OwnedFd>) {
        fds.into_iter().for_each(|fd| self.take(asker, Garbage::Fd(fd)));
    }

    /// Whether something of a user waits to be closed, or is being closed.
    pub fn has_some_of(&self, asker: Asker) -> bool {
        self.shared.backlog().of_user.contains_key(&asker.uid)
    }

    /// Whether so much of a process, or of its user, waits to be closed that no more should come.
    pub fn is_full(&self, asker: Asker) -> bool {
        self.shared.backlog().of_user.get(&asker.uid).is_some_and(|user| {
            let of_process = user.of_process.get(&asker.pid).map_or(0, |(waiting, _)| waiting.len());
            user.waiting >= MOST_OF_USER || of_process >= MOST_WAITING
        })
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        let mut backlog = self.shared.backlog();
        backlog.stop = true;
        self.shared.change.notify_all();
        let left = self.shared.change.wait_timeout_while(backlog, SHUTDOWN_TIMEOUT, |backlog| backlog.threads > 0);
        if left.is_ok_and(|(backlog, _)| backlog.threads > 0) {
            tracing::warn!("an fd that a program has handed over is still being closed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::{set_socket_linger, socket_send_buffer_size};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    /// An fd whose close takes a minute: a socket inside a socket pair, with bytes that nobody reads.
    pub(crate) fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        set_socket_linger(&sender, Some(Duration::from_secs(60))).unwrap();
        sender.set_nonblocking(true).unwrap();
        let chunk = vec![0; socket_send_buffer_size(&sender).unwrap()];
        while sender.write(&chunk).is_ok() {}
        (sender.into(), receiver)
    }

    fn asker(uid: u32, pid: u32) -> Asker {
        Asker { uid, pid, connection: 0 }
    }

    /// Whether something that somebody hands over is closed.
    fn is_closed_for(reaper: &Reaper, asker: Asker) -> bool {
        let (gone, there) = std::os::unix::net::UnixStream::pair().unwrap();
        reaper.take(asker, Garbage::Fd(gone.into()));
        there.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        std::io::Read::read(&mut &there, &mut [0]).is_ok_and(|count| count == 0)
    }

    #[test]
    fn one_process_delays_itself_only() {
        let reaper = Reaper::new().unwrap();
        let mut receivers = Vec::new();
        for _ in 0..MOST_WAITING + 1 {
            let (sender, receiver) = lingering();
            reaper.take(asker(1, 1), Garbage::Fd(sender));
            receivers.push(receiver);
        }
        assert!(is_closed_for(&reaper, asker(1, 2)), "what another process handed over was closed meanwhile");
        let begin = Instant::now();
        while !reaper.is_full(asker(1, 1)) {
            assert!(begin.elapsed() < Duration::from_secs(30), "all but the first wait");
        }
        assert!(!reaper.is_full(asker(1, 2)));
        // Whoever reads ends it.
        drop(receivers);
    }

    #[test]
    fn many_processes_delay_their_user_only() {
        let reaper = Reaper::new().unwrap();
        let mut receivers = Vec::new();
        for uid in 1..4 {
            for pid in 0..3 * THREADS as u32 {
                let (sender, receiver) = lingering();
                reaper.take(asker(uid, 100 * uid + pid), Garbage::Fd(sender));
                receivers.push(receiver);
            }
        }
        assert!(is_closed_for(&reaper, asker(9, 9)), "what another user's process handed over was closed meanwhile");
        for pid in 0..MOST_OF_USER as u32 {
            reaper.take(
                asker(1, 1000 + pid),
                Garbage::Fd(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()),
            );
        }
        assert!(reaper.is_full(asker(1, 1)) && !reaper.is_full(asker(9, 9)), "a user who is full is not listened to");
        drop(receivers);
    }

    /// Threads that there are once no more than so many are left, or after a minute; every now and then `act` is done.
    fn threads_after(reaper: &Reaper, most: usize, mut act: impl FnMut()) -> usize {
        let begin = Instant::now();
        loop {
            let threads = reaper.shared.backlog().threads;
            if threads <= most || begin.elapsed() > Duration::from_secs(60) {
                return threads;
            }
            std::thread::sleep(REST / 5);
            act();
        }
    }

    /// Hands over, before any thread can look, fds whose close takes a minute, one of each process of the user 1.
    fn take_lingering(reaper: &Reaper, pids: std::ops::Range<u32>) -> Vec<TcpStream> {
        let (senders, receivers): (Vec<_>, Vec<_>) = pids.clone().map(|_| lingering()).unzip();
        let mut backlog = reaper.shared.backlog();
        for (pid, sender) in pids.zip(senders) {
            reaper.take_more(&mut backlog, asker(1, pid), Garbage::Fd(sender));
        }
        receivers
    }

    #[test]
    fn what_comes_before_a_thread_has_woken_does_not_wait_for_what_that_one_takes() {
        let reaper = Reaper::new().unwrap();
        let receivers = take_lingering(&reaper, 0..THREADS as u32 - 1);
        assert!(is_closed_for(&reaper, asker(1, 9)), "its user may keep one thread more busy");
        drop(receivers);
    }

    #[test]
    fn a_little_now_and_then_keeps_no_more_threads_than_it_takes() {
        let reaper = Reaper::new().unwrap();
        let receivers = take_lingering(&reaper, 0..2);
        assert!(is_closed_for(&reaper, asker(1, 2)));
        assert!(reaper.shared.backlog().threads >= 3, "two are busy");
        drop(receivers);
        let threads = threads_after(&reaper, 1, || assert!(is_closed_for(&reaper, asker(1, 3))));
        assert_eq!(threads, 1);
    }

    #[test]
    fn one_thread_is_started_for_what_one_can_do() {
        let reaper = Reaper::new().unwrap();
        let receivers = take_lingering(&reaper, 0..1);
        while reaper.shared.backlog().idle > 0 {
            std::thread::yield_now();
        }
        let mut backlog = reaper.shared.backlog();
        for pid in 0..MOST_OF_USER as u32 {
            let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
            reaper.take_more(&mut backlog, asker(2, pid), Garbage::Fd(event));
        }
        assert_eq!(backlog.threads, 2, "it has not looked yet");
        drop((backlog, receivers));
    }
}
