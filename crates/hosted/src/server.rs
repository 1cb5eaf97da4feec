//! The socket at which programs find the engine of messages of a card, and the start and the end of its thread.

use crate::worker::Worker;
use millrace_served::{Listener, May};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// With what the engine of messages of a card starts.
pub struct Start {
    /// The core on which it works; without one, any.
    pub cpu: Option<usize>,
    /// Who may use it.
    pub may: May,
}

/// A socket that programs find; it is removed when this is dropped, and what was served ends.
pub struct Server {
    listener: Listener,
    stop: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    spent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`, where nothing may be but the socket of a card that has died. Nobody is served before [`Server::start`].
    ///
    /// # Errors
    /// Those of the system; `EADDRINUSE` when something else is there.
    pub fn listen(path: PathBuf) -> Result<Self, Errno> {
        let listener = Listener::at(path)?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { listener, stop: Arc::default(), bell, spent: Arc::default(), thread: None })
    }

    /// Which socket it is, whatever it is called: the numbers of its file system, and there.
    pub fn socket(&self) -> (u64, u64) {
        self.listener.socket()
    }

    /// How much of a core its thread has spent on programs that come and go, ever.
    pub fn spent_on_joins(&self) -> Duration {
        // Relaxed: a count, which orders nothing.
        Duration::from_nanos(self.spent.load(Ordering::Relaxed))
    }

    /// Serves programs from now on. To be called when the process has the rights that it keeps.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(&mut self, start: Start) -> std::io::Result<()> {
        let Start { cpu, may } = start;
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let (stop, bell, spent) = (self.stop.clone(), self.bell.clone(), self.spent.clone());
        millrace_served::remember_cores();
        let run = move || {
            if let Some(cpu) = cpu {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu);
                // A core that has gone since it was looked at: then it runs on any other.
                let _ = rustix::thread::sched_setaffinity(None, &set);
            }
            Worker::new(may, listener, bell, spent).run(&stop);
        };
        self.thread = Some(std::thread::Builder::new().name("millrace-mess".into()).spawn(run)?);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `Worker::run`; the bell comes after it.
        self.stop.store(true, Ordering::Release);
        let _ = write(&*self.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
