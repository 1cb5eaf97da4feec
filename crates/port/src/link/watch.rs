//! Who notices that an interface goes down, comes up, or is deleted: a thread that sleeps until Linux says so.

use super::interface::{Interface, News, Reports};
use crate::{PortCounters, spec::InterfaceName};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io,
};
use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

/// What the ports of a wire ask on their way; written by the thread alone.
#[derive(Debug, Default)]
pub(crate) struct State {
    down: AtomicBool,
    gone: AtomicBool,
}

impl State {
    /// Whether the interface has no link, or is not there any more.
    #[inline(always)]
    pub fn is_down(&self) -> bool {
        // Relaxed, as below: the two words guard nothing but themselves.
        self.down.load(Ordering::Relaxed)
    }

    /// Whether the interface has been deleted.
    #[inline(always)]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

/// The thread. Ends when this is dropped.
pub(crate) struct Watch {
    state: Arc<State>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches `interface` from now on, for a wire of the given kind. `reports` were subscribed to before it was looked at.
    pub fn start(
        kind: &'static str,
        name: &InterfaceName,
        interface: &Interface,
        reports: Reports,
        counters: Vec<Arc<PortCounters>>,
    ) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let state = Arc::new(State::default());
        let watcher = Watcher { kind, name: name.clone(), index: interface.index, state: state.clone(), counters };
        watcher.show(interface.has_link());
        let thread = thread::Builder::new()
            .name(format!("link-{name}"))
            .spawn({
                let stop = stop.clone();
                move || watcher.run(reports, &stop)
            })
            .map_err(|error| io::Errno::from_io_error(&error).unwrap_or(io::Errno::AGAIN))?;
        Ok(Self { state, stop, thread: Some(thread) })
    }

    /// The state, to be looked at.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let asked = rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| asked) {
            // It does not panic, and if it did, it would have said so.
            let _ = thread.join();
        }
    }
}

struct Watcher {
    kind: &'static str,
    name: InterfaceName,
    index: u32,
    state: Arc<State>,
    counters: Vec<Arc<PortCounters>>,
}

impl Watcher {
    fn show(&self, link: bool) {
        self.state.down.store(!link, Ordering::Relaxed);
        self.counters.iter().for_each(|counters| counters.set_link(link));
    }

    fn run(&self, mut reports: Reports, stop: &OwnedFd) {
        while !self.state.is_gone() {
            let mut both = [PollFd::new(&reports, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            if poll(&mut both, None).is_err() {
                continue;
            }
            if !both[1].revents().is_empty() {
                return;
            }
            if reports.read(|news| self.hear(news)).is_err() {
                // Something got lost: look for ourselves.
                match Interface::find(self.index) {
                    Ok(interface) => self.hear(News::Changed(interface)),
                    Err(io::Errno::NODEV) => self.hear(News::Deleted(self.index)),
                    Err(_) => thread::sleep(std::time::Duration::from_millis(100)),
                }
            }
        }
    }

    fn hear(&self, news: News) {
        match news {
            News::Changed(interface) if interface.index == self.index => {
                if interface.has_link() == self.state.is_down() {
                    let link = if interface.has_link() { "up" } else { "down" };
                    tracing::info!("{}:{}: link {link}", self.kind, self.name);
                }
                self.show(interface.has_link());
            }
            News::Deleted(index) if index == self.index && !self.state.is_gone() => {
                let text = "the interface is gone, nothing passes any more; when it is back, plug it in again";
                tracing::warn!("{}:{}: {text}", self.kind, self.name);
                self.counters.iter().for_each(|counters| counters.set_mode(text));
                self.show(false);
                self.state.gone.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}
