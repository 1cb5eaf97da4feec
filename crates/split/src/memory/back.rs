//! The backend's side.

use super::{FILE, HELLO};
use crate::transport::{Arrived, Counts, Door, Event, Maps};
use crate::{Address, Error, PAGE};
use millrace_dma::{Region, Window, take_descriptors};
use millrace_rdma::served::Account;
use millrace_served::{Caller, Listener, May, bell, owner_only, record, wire::Words};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, accept_with, recv};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Calls that wait to be let in, and how long one may take.
const MOST_STRANGERS: usize = 16;
const GREETING: Duration = Duration::from_secs(2);
/// Calls that are accepted at a look.
const ACCEPTED: usize = 4;
/// Runs of pages that one piece of memory may consist of.
const MOST_RUNS: usize = 8;

/// A socket at which programs call. Only those of the user who runs the backend, and of root, are let in: whoever has a file can keep a page
/// fault of the backend waiting.
pub struct MemoryDoor {
    _listener: Listener,
    socket: OwnedFd,
    may: May,
    strangers: Vec<Stranger>,
    next: u64,
}

struct Stranger {
    socket: OwnedFd,
    caller: Caller,
    since: Instant,
}

impl MemoryDoor {
    /// Listens at `path`.
    ///
    /// # Errors
    /// Something else is there, or the folder is not writable.
    pub fn at(path: PathBuf) -> Result<Self, Error> {
        let what = format!("cannot listen at {}", path.display());
        let mut listener = Listener::at(path).map_err(Error::system(what.clone()))?;
        let socket = listener.take().ok_or_else(|| Error::system(what)(Errno::BADF))?;
        Ok(Self { _listener: listener, socket, may: owner_only(), strangers: Vec::new(), next: 0 })
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            let Ok(socket) = accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
            let caller = (self.may)(socket.as_fd()).filter(|_| self.strangers.len() < MOST_STRANGERS);
            if let Some(caller) = caller {
                let _ = take_descriptors(&socket);
                self.strangers.push(Stranger { socket, caller, since: Instant::now() });
            } else {
                tracing::warn!("a program of another user, or one too many, was turned away");
            }
        }
    }

    /// Lets in who has greeted. `None`: he has not, or may not.
    fn greet(&mut self, stranger: Stranger, fds: Vec<OwnedFd>) -> Result<Arrived, Error> {
        let [file] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| Error::Version)?;
        let control = Region::map_parts(&[(&file, 0, PAGE)])?.window().clone();
        let failed = || Error::system("a bell for a program");
        let (to_card, for_card) = bell::of_card().map_err(failed())?;
        let (for_program, to_program) = bell::bell().map_err(failed())?;
        record::send(&stranger.socket, &Words::answer(&[HELLO]), &[for_card.as_fd(), for_program.as_fd()])
            .map_err(failed())?;
        self.next += 1;
        let Caller { pid, uid, is_limited } = stranger.caller;
        let maps = MemoryMaps {
            socket: stranger.socket,
            file,
            to_card,
            to_program,
            name: format!("process {pid}"),
            account: Account { uid, is_owner: !is_limited },
            place: self.next,
            counts: Counts { pages: 1, ..Counts::default() },
        };
        Ok(Arrived { maps: Box::new(maps), control })
    }
}

impl Door for MemoryDoor {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let strangers = self.strangers.iter().map(|stranger| stranger.socket.as_fd());
        [self.socket.as_fd()].into_iter().chain(strangers).collect()
    }

    fn look(&mut self) -> Vec<Event> {
        self.accept();
        let (mut events, mut left) = (Vec::new(), Vec::new());
        for stranger in core::mem::take(&mut self.strangers) {
            match record::receive(&stranger.socket) {
                Ok(None) if stranger.since.elapsed() < GREETING => left.push(stranger),
                Ok(Some((words, fds))) if words.bytes() == Words::answer(&[HELLO]).bytes() => {
                    match self.greet(stranger, fds) {
                        Ok(arrived) => events.push(Event::Came(arrived)),
                        Err(error) => tracing::warn!(%error, "a program was turned away"),
                    }
                }
                _ => tracing::warn!("a program was turned away that said nothing, or something else"),
            }
        }
        self.strangers = left;
        events
    }

    fn leave(&mut self, _: u64) {}
}

struct MemoryMaps {
    socket: OwnedFd,
    file: OwnedFd,
    to_card: OwnedFd,
    to_program: OwnedFd,
    name: String,
    account: Account,
    place: u64,
    counts: Counts,
}

/// Pages that follow each other are mapped together.
fn runs(references: &[u32]) -> Option<Vec<(u64, usize)>> {
    let mut runs: Vec<(u64, usize)> = Vec::new();
    for reference in references {
        let at = u64::from(*reference) * PAGE as u64;
        match runs.last_mut() {
            Some((first, len)) if *first + *len as u64 == at => *len += PAGE,
            _ => runs.push((at, PAGE)),
        }
        if at >= FILE || runs.len() > MOST_RUNS {
            return None;
        }
    }
    Some(runs)
}

impl Maps for MemoryMaps {
    fn map(&mut self, references: &[u32]) -> Result<Window, Error> {
        let runs = runs(references).ok_or_else(|| Error::system("pages that lie apart")(Errno::INVAL))?;
        let parts: Vec<_> = runs.into_iter().map(|(at, len)| (&self.file, at, len)).collect();
        let region = Region::map_parts(&parts)?;
        self.counts.system_calls += 1 + parts.len() as u64;
        self.counts.pages += references.len() as u64;
        Ok(region.window().clone())
    }

    fn ring(&mut self) {
        bell::ring(&self.to_program);
        self.counts.system_calls += 1;
        self.counts.rung += 1;
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.to_card.as_fd()
    }

    fn hear(&mut self) {
        bell::heard_by_card(&self.to_card);
        self.counts.system_calls += 1;
        self.counts.heard += 1;
    }

    fn life(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn has_ended(&mut self) -> bool {
        // Nothing is said by it any more: whatever is there is its end, or nonsense.
        self.counts.system_calls += 1;
        recv(&self.socket, &mut [0_u8; 8], RecvFlags::DONTWAIT | RecvFlags::PEEK) != Err(Errno::AGAIN)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn account(&self) -> Account {
        self.account
    }

    fn place(&self) -> u64 {
        self.place
    }

    fn address(&self) -> Address {
        let [.., a, b, c, d] = self.place.to_be_bytes();
        Address([0x02, b'M', a, b, c, d])
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_follow_each_other_are_one_run() {
        assert_eq!(runs(&[3, 4, 5, 9]), Some(vec![(3 * 4096, 3 * 4096), (9 * 4096, 4096)]));
        let apart: Vec<u32> = (0..MOST_RUNS as u32 + 1).map(|run| run * 2).collect();
        assert_eq!(runs(&apart), None);
        assert_eq!(runs(&[u32::MAX]), None, "behind the end of the file");
    }
}
