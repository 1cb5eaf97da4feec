//! The backend's side.

use super::HELLO;
use crate::notices::Why;
use crate::transport::{Arrived, Counts, Door, Event, Maps};
use crate::{Address, Error, PAGE};
use millrace_callers::{Call, Caller, Carries, Entrance, Listener, owner_only, process_of};
use millrace_dma::{Region, Window};
use millrace_port::Bell;
use millrace_rdma::served::Account;
use millrace_served::{bell, record, wire::Words};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Calls that wait to be let in, and how long one may take.
const MOST_STRANGERS: usize = 16;
const GREETING: Duration = Duration::from_secs(2);
/// Calls that are accepted at a look.
const ACCEPTED: usize = 4;
/// Runs of pages that one piece of memory may consist of.
const MOST_RUNS: usize = 8;

/// A socket at which programs call. Only those of the user who runs the backend, and of root, are let in: whoever has a file can keep a page
/// fault of the backend waiting. Whatever somebody brings who is not let in is closed by another thread: that can take as long as he likes.
pub struct MemoryDoor {
    entrance: Entrance,
    strangers: Vec<Stranger>,
    /// Which door of the backend this is.
    number: u8,
    next: u64,
}

struct Stranger {
    socket: OwnedFd,
    caller: Caller,
    since: Instant,
}

impl MemoryDoor {
    /// Listens at `path`. `number`: which of the backend's doors of this kind it is.
    ///
    /// # Errors
    /// Something else is there, or the folder is not writable.
    pub fn at(path: PathBuf, number: u8) -> Result<Self, Error> {
        let what = format!("cannot listen at {}", path.display());
        let listener = Listener::private(path, Carries::Records).map_err(Error::system(what.clone()))?;
        let entrance = Entrance::new(listener, owner_only()).map_err(Error::system(what))?;
        Ok(Self { entrance, strangers: Vec::new(), number, next: 0 })
    }

    fn accept(&mut self, events: &mut Vec<Event>) {
        for _ in 0..ACCEPTED {
            match self.entrance.accept() {
                None => return,
                Some(Call::In(socket, caller)) if self.strangers.len() < MOST_STRANGERS => {
                    self.strangers.push(Stranger { socket, caller, since: Instant::now() });
                }
                Some(Call::In(socket, Caller { pid, .. })) => {
                    self.entrance.turn_away(socket);
                    let line = format!("process {pid} was turned away: too many call at once");
                    events.push(Event::TurnedAway(Why::Crowded, line));
                }
                Some(Call::Refused(caller)) => {
                    let uid = caller.map_or("another".to_owned(), |caller| caller.uid.to_string());
                    events.push(Event::TurnedAway(Why::User, format!("a program of user {uid} was turned away")));
                }
                Some(Call::Exhausted) => {
                    events
                        .push(Event::Noted("nobody is let in for a moment: there are no descriptors left".to_owned()));
                }
            }
        }
    }

    /// What somebody says who has called; `None`: nothing yet.
    fn hear(&mut self, stranger: Stranger) -> Option<Event> {
        let pid = stranger.caller.pid;
        // The system would close what it has no descriptors for, at once.
        let heard = match record::has_room(&stranger.socket) {
            true => record::receive_any(&stranger.socket),
            false => Ok(None),
        };
        let (words, fds) = match heard {
            Ok(Some((words, fds))) => (words.ok(), fds),
            Ok(None) if stranger.since.elapsed() < GREETING => {
                self.strangers.push(stranger);
                return None;
            }
            Ok(None) | Err(_) => (None, Vec::new()),
        };
        if let Some(control) = words.and_then(control_of) {
            return Some(self.greet(stranger, control, fds));
        }
        self.entrance.close(fds);
        self.entrance.turn_away(stranger.socket);
        let line = format!("process {pid} was turned away: it said nothing, or something else than the protocol has");
        Some(Event::TurnedAway(Why::Greeting, line))
    }

    /// Lets in who has greeted, if he has brought what he is to bring.
    fn greet(&mut self, Stranger { socket, caller, .. }: Stranger, control: u64, fds: Vec<OwnedFd>) -> Event {
        let refused = |why, error: &dyn std::fmt::Display| {
            Event::TurnedAway(why, format!("process {} was turned away: {error}", caller.pid))
        };
        let file = match <[OwnedFd; 1]>::try_from(fds) {
            Ok([file]) => file,
            Err(fds) => {
                self.entrance.close(fds);
                self.entrance.turn_away(socket);
                return refused(Why::Greeting, &Error::Version);
            }
        };
        let met = self.meet(&socket, &file, control).and_then(|met| Ok((met, Life::of(&socket)?)));
        match met {
            Ok(((control, to_card, to_program), life)) => {
                self.next += 1;
                let Caller { pid, uid, is_limited } = caller;
                let maps = MemoryMaps {
                    socket,
                    life,
                    file,
                    to_card,
                    to_program: Bell::of(uid, to_program),
                    name: format!("process {pid}"),
                    account: Account { uid, is_owner: !is_limited },
                    number: self.number,
                    place: u64::from(self.number) << 56 | self.next,
                    counts: Counts { pages: 1, ..Counts::default() },
                };
                Event::Came(Arrived { maps: Box::new(maps), control })
            }
            Err(error) => {
                self.entrance.close(file);
                self.entrance.turn_away(socket);
                refused(Why::Memory, &error)
            }
        }
    }

    /// The control page, and bells: the one that wakes the backend, and the one that wakes the program.
    fn meet(&self, socket: &OwnedFd, file: &OwnedFd, control: u64) -> Result<(Window, OwnedFd, OwnedFd), Error> {
        let control = Region::map_parts(&[(file, control, PAGE)])?.window().clone();
        let failed = || Error::system("a bell for a program");
        let (to_card, for_card) = bell::of_card().map_err(failed())?;
        let (for_program, to_program) = bell::bell().map_err(failed())?;
        record::send(socket, &Words::answer(&[HELLO]), &[for_card.as_fd(), for_program.as_fd()]).map_err(failed())?;
        Ok((control, to_card, to_program))
    }
}

/// Where in its file the control page is, of who greets.
fn control_of(mut words: Words) -> Option<u64> {
    let (head, hello, page) = (words.word()?, words.word()?, words.word()?);
    let is_greeting = Words::answer(&[]).word() == Some(head) && hello == HELLO && words.end().is_some();
    page.checked_mul(PAGE as u64).filter(|_| is_greeting)
}

impl Door for MemoryDoor {
    fn fds(&mut self) -> Vec<BorrowedFd<'_>> {
        let strangers = self.strangers.iter().map(|stranger| stranger.socket.as_fd());
        self.entrance.fd().into_iter().chain(strangers).collect()
    }

    fn look(&mut self) -> Vec<Event> {
        // Who says nothing makes room for those who come now.
        let strangers = core::mem::take(&mut self.strangers);
        let mut events: Vec<Event> = strangers.into_iter().filter_map(|stranger| self.hear(stranger)).collect();
        self.accept(&mut events);
        events
    }

    fn leave(&mut self, _: u64) {}
}

/// By what it is known that a program has ended: its socket does, or its process. Its children may hold the socket.
struct Life {
    process: Option<OwnedFd>,
    /// Readable when one of the two may have.
    either: OwnedFd,
}

impl Life {
    fn of(socket: &OwnedFd) -> Result<Self, Error> {
        let failed = || Error::system("the end of a program cannot be watched");
        // Of a process in another container nobody may know which it is: then only its socket says that it has ended.
        let process = process_of(socket).map_err(failed())?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed())?;
        for fd in [Some(socket), process.as_ref()].into_iter().flatten() {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
            epoll::add(&either, fd, epoll::EventData::new_u64(0), flags).map_err(failed())?;
        }
        Ok(Self { process, either })
    }

    fn process_has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_readable = |process| matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)), Ok(1));
        self.process.as_ref().is_some_and(is_readable)
    }
}

struct MemoryMaps {
    socket: OwnedFd,
    life: Life,
    file: OwnedFd,
    to_card: OwnedFd,
    to_program: Arc<Bell>,
    name: String,
    account: Account,
    number: u8,
    place: u64,
    counts: Counts,
}

/// Pages that follow each other are mapped together.
fn runs(references: &[u64]) -> Option<Vec<(u64, usize)>> {
    let mut runs: Vec<(u64, usize)> = Vec::new();
    for reference in references {
        let at = reference.checked_mul(PAGE as u64)?;
        match runs.last_mut() {
            Some((first, len)) if *first + *len as u64 == at => *len += PAGE,
            _ => runs.push((at, PAGE)),
        }
        if runs.len() > MOST_RUNS {
            return None;
        }
    }
    Some(runs)
}

impl Maps for MemoryMaps {
    fn map(&mut self, references: &[u64]) -> Result<Window, Error> {
        let runs = runs(references).ok_or_else(|| Error::system("pages that lie apart")(Errno::INVAL))?;
        let parts: Vec<_> = runs.into_iter().map(|(at, len)| (&self.file, at, len)).collect();
        let region = Region::map_parts(&parts)?;
        self.counts.system_calls += 1 + parts.len() as u64;
        self.counts.pages += references.len() as u64;
        Ok(region.window().clone())
    }

    fn mappings(&self, references: &[u64]) -> u64 {
        // What lies too far apart is not mapped.
        runs(references).map_or(0, |runs| runs.len() as u64)
    }

    fn ring(&mut self) {
        self.to_program.ring();
        self.counts.system_calls += 1;
        self.counts.rung += 1;
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.to_card.as_fd()
    }

    fn hear(&mut self) {
        bell::heard_at_card(&self.to_card);
        self.counts.system_calls += 1;
        self.counts.heard += 1;
    }

    fn life(&self) -> Option<BorrowedFd<'_>> {
        Some(self.life.either.as_fd())
    }

    fn has_ended(&mut self) -> bool {
        // Nothing is said by it any more: whatever is there is its end, or nonsense.
        self.counts.system_calls += 2;
        let said = recv(&self.socket, &mut [0_u8; 8], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        said != Err(Errno::AGAIN) || self.life.process_has_ended()
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
        let [.., a, b, c] = self.place.to_be_bytes();
        Address([0x02, b'M', self.number, a, b, c])
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
        let apart: Vec<u64> = (0..MOST_RUNS as u64 + 1).map(|run| run * 2).collect();
        assert_eq!(runs(&apart), None);
        assert_eq!(runs(&[u64::MAX]), None, "behind the end of all files");
    }
}
