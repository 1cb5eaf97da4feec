//! What programs have handed over is closed on a thread of each program's own: closing can take as long as whoever made the
//! descriptor likes (a TCP socket that lingers, inside a socket that nobody reads), and unmapping as long as there is memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// How much of a program may wait to be closed before it is not listened to any more.
const MOST_WAITING: usize = 16;
/// Bytes of the stack of such a thread.
const STACK: usize = 64 << 10;

/// Something that is to be dropped, and nothing else.
type Garbage = Box<dyn Send>;

/// The thread of one program that closes; there is none before there is something to close.
#[derive(Default)]
pub(crate) struct Closer {
    thread: Option<Sender<Garbage>>,
    kept: Vec<Garbage>,
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
        if self.thread.is_none() {
            self.thread = start(self.waiting.clone());
            if let Some(thread) = &self.thread {
                self.kept.drain(..).for_each(|garbage| drop(thread.send(garbage)));
            }
        }
        // Relaxed: a count, which orders nothing.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let garbage: Garbage = Box::new(garbage);
        match &self.thread {
            // The thread ends after this.
            Some(thread) => drop(thread.send(garbage)),
            // The machine has no thread left: it waits until there is one.
            None => self.kept.push(garbage),
        }
    }

    /// Counts what waits, also when this is gone.
    pub fn waiting(&self) -> Arc<AtomicUsize> {
        self.waiting.clone()
    }

    /// Whether so much waits that nothing more is to be taken.
    pub fn is_full(&self) -> bool {
        self.waits_for(MOST_WAITING)
    }

    /// Whether so much waits.
    pub fn waits_for(&self, most: usize) -> bool {
        self.waiting.load(Ordering::Relaxed) >= most
    }
}

fn start(waiting: Arc<AtomicUsize>) -> Option<Sender<Garbage>> {
    let (sender, receiver): (Sender<Garbage>, Receiver<Garbage>) = channel();
    let run = move || {
        for garbage in receiver {
            drop(garbage);
            waiting.fetch_sub(1, Ordering::Relaxed);
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
