//! What programs have handed over is closed on a thread of each program's own: closing can take as long as whoever made the
//! descriptor likes (a TCP socket that lingers, inside a socket that nobody reads), and unmapping as long as there is memory.

use rustix::fd::OwnedFd;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

/// How many things, or descriptors, of a program may wait to be closed before it is not listened to any more.
const MOST_WAITING: usize = 16;
/// Bytes of the stack of such a thread.
const STACK: usize = 64 << 10;

/// What takes long, and as how much it counts.
type Job = (Box<dyn FnOnce() + Send>, usize);

/// The cores on which such threads run: all of the process's, and not the one to which the engine's thread, which starts them, keeps.
static CORES: OnceLock<CpuSet> = OnceLock::new();

/// To be called by a thread that may run on all cores of the process, before there is a [`Closer`].
pub fn remember_cores() {
    if let Ok(cores) = sched_getaffinity(None) {
        let _ = CORES.set(cores);
    }
}

/// The thread of one program that closes; there is none before there is something to close.
#[derive(Default)]
pub struct Closer {
    thread: Option<Sender<Job>>,
    kept: Vec<Job>,
    waiting: Arc<AtomicUsize>,
}

impl Drop for Closer {
    fn drop(&mut self) {
        // Nobody is left to close it but whoever drops this, who is not to wait: it ends with the process.
        self.kept.drain(..).for_each(core::mem::forget);
    }
}

impl Closer {
    /// Has something dropped, soon.
    pub fn close(&mut self, garbage: impl Send + 'static) {
        self.run(1, move || drop(garbage));
    }

    /// Has descriptors closed, soon.
    pub fn close_all(&mut self, fds: Vec<OwnedFd>) {
        if !fds.is_empty() {
            self.run(fds.len(), move || drop(fds));
        }
    }

    /// A place for something that another thread uses first, and is not to close. It counts from now on. `None`: there is no thread that
    /// would close it.
    pub fn place(&mut self) -> Option<Place> {
        self.start();
        let thread = self.thread.clone()?;
        // Relaxed as in `run`.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Some(Place(thread))
    }

    /// There is a thread from now on, if the machine has one.
    fn start(&mut self) {
        if self.thread.is_none() {
            self.thread = start(self.waiting.clone());
            if let Some(thread) = &self.thread {
                self.kept.drain(..).for_each(|job| drop(thread.send(job)));
            }
        }
    }

    /// Has something done, soon. Until then it counts as so much.
    pub fn run(&mut self, count: usize, job: impl FnOnce() + Send + 'static) {
        self.start();
        // Relaxed: a count, which orders nothing.
        self.waiting.fetch_add(count, Ordering::Relaxed);
        let job: Job = (Box::new(job), count);
        match &self.thread {
            // The thread ends after this.
            Some(thread) => drop(thread.send(job)),
            // The machine has no thread left: it waits until there is one.
            None => self.kept.push(job),
        }
    }

    /// Whether there was no thread for something that waits.
    pub fn is_stuck(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether there is a thread now for all that waits.
    pub fn try_again(&mut self) -> bool {
        if self.is_stuck() {
            self.start();
        }
        !self.is_stuck()
    }

    /// Whether so much waits that nothing more is to be taken.
    pub fn is_full(&self) -> bool {
        self.waits_for(MOST_WAITING)
    }

    /// How much waits.
    pub fn count(&self) -> usize {
        // Relaxed as in `run`.
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether so much waits.
    pub fn waits_for(&self, most: usize) -> bool {
        self.count() >= most
    }
}

/// A place among what is closed by the thread of a program.
pub struct Place(Sender<Job>);

impl Place {
    /// Has something dropped by that thread, which goes on as long as there is a place.
    pub fn close(self, garbage: impl Send + 'static) {
        drop(self.0.send((Box::new(move || drop(garbage)), 1)));
    }
}

fn start(waiting: Arc<AtomicUsize>) -> Option<Sender<Job>> {
    let (sender, receiver): (Sender<Job>, Receiver<Job>) = channel();
    let run = move || {
        if let Some(cores) = CORES.get() {
            let _ = sched_setaffinity(None, cores);
        }
        for (job, count) in receiver {
            // What panics has been said by the hook; what comes behind it is closed all the same.
            let _ = catch_unwind(AssertUnwindSafe(job));
            // Relaxed as in `run`.
            waiting.fetch_sub(count, Ordering::Relaxed);
        }
    };
    let builder = std::thread::Builder::new().name("millrace-closer".to_owned()).stack_size(STACK);
    builder.spawn(run).ok().map(|_| sender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    struct Slow(Receiver<()>, Arc<AtomicUsize>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_another_thread_uses_is_closed_by_its_programs() {
        let (mut scribe, mut own) = (Closer::default(), Closer::default());
        let dropped = Arc::new(AtomicUsize::new(0));
        let (gate, wait) = channel();
        let (place, slow) = (own.place().unwrap(), Slow(wait, dropped.clone()));
        assert_eq!(own.count(), 1);
        scribe.run(1, move || place.close(slow));
        // Its program has gone; nothing keeps the other thread.
        let waiting = own.waiting.clone();
        drop(own);
        let (done, is_done) = channel();
        scribe.run(1, move || done.send(()).unwrap());
        is_done.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!((dropped.load(Ordering::Relaxed), waiting.load(Ordering::Relaxed)), (0, 1));
        drop(gate);
        let soon = Instant::now() + Duration::from_secs(20);
        while waiting.load(Ordering::Relaxed) > 0 && Instant::now() < soon {}
        assert_eq!((dropped.load(Ordering::Relaxed), waiting.load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn what_panics_is_over_and_the_rest_is_closed() {
        let mut closer = Closer::default();
        closer.run(MOST_WAITING, || std::panic::resume_unwind(Box::new("the job of a test")));
        let (done, is_done) = channel();
        closer.run(1, move || done.send(()).unwrap());
        is_done.recv_timeout(Duration::from_secs(20)).expect("the thread goes on");
        let soon = Instant::now() + Duration::from_secs(20);
        while closer.count() > 0 && Instant::now() < soon {}
        assert_eq!(closer.count(), 0);
    }

    #[test]
    fn what_takes_long_keeps_nobody_and_is_counted_until_it_is_over() {
        let (mut slow, mut quick) = (Closer::default(), Closer::default());
        let dropped = Arc::new(AtomicUsize::new(0));
        let gates: Vec<Sender<()>> = (0..MOST_WAITING)
            .map(|_| {
                let (gate, wait) = channel();
                assert!(!slow.is_full());
                slow.close(Slow(wait, dropped.clone()));
                gate
            })
            .collect();
        assert!(slow.is_full());
        let (gate, wait) = channel();
        drop(gate);
        quick.close(Slow(wait, dropped.clone()));
        let soon = Instant::now() + Duration::from_secs(20);
        let until = |count| while dropped.load(Ordering::Relaxed) < count && Instant::now() < soon {};
        until(1);
        assert_eq!(dropped.load(Ordering::Relaxed), 1, "another program's is closed at once");
        // Its program has gone; what it left is closed all the same.
        drop(slow);
        drop(gates);
        until(1 + MOST_WAITING);
        assert_eq!(dropped.load(Ordering::Relaxed), 1 + MOST_WAITING);
    }
}
