//! Programs that have called: they greet with their memory, and are let in or turned away.

use millrace_dma::{Protection, Region};
use millrace_message::hosted::greeting::{self, Greeting, LEN, MOST_MEMORY};
use millrace_message::hosted::{EnterError, Owner, ProgramId, Service, wire};
use millrace_port::Bell;
use millrace_served::{Caller, Closer, bell};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a program may take to greet, while the card would hear it; and in all.
const GREETING: Duration = Duration::from_secs(2);
const LONGEST_GREETING: Duration = Duration::from_secs(60);

/// What program and card have in common.
pub(crate) struct Met {
    pub number: ProgramId,
    /// By which the program wakes the card.
    pub bell: OwnedFd,
    /// Its socket, by which the card wakes the program.
    pub to_program: Arc<Bell>,
}

/// A program that has called.
pub(crate) struct Client {
    pub socket: Arc<OwnedFd>,
    /// Readable when the process has ended. Children may hold its socket.
    pub ended: Option<OwnedFd>,
    pub caller: Caller,
    called: Instant,
    /// How long it could have been heard since, and until when that was counted.
    heard: Duration,
    looked: Instant,
    /// After its greeting.
    pub met: Option<Met>,
    pub closer: Closer,
    /// It is to be hung up on.
    pub is_over: bool,
}

impl Client {
    /// Somebody who may use the card. The socket comes back where the system has no descriptor for his end.
    pub fn new(socket: OwnedFd, caller: Caller) -> Result<Self, OwnedFd> {
        // A process of another container has the number 0, which is not one: then only its socket says that it has ended.
        let pid = i32::try_from(caller.pid).ok().and_then(Pid::from_raw);
        let Ok(ended) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())).transpose() else { return Err(socket) };
        let called = Instant::now();
        let (heard, looked) = (Duration::ZERO, called);
        let socket = Arc::new(socket);
        Ok(Self { socket, ended, caller, called, heard, looked, met: None, closer: Closer::default(), is_over: false })
    }

    /// Whether it has had time enough to greet. A pause that the card makes (`is_its_turn`: there is none) is not its own.
    pub fn is_late(&mut self, is_its_turn: bool, now: Instant) -> bool {
        if is_its_turn {
            self.heard += now - self.looked;
        }
        self.looked = now;
        self.met.is_none() && (self.heard > GREETING || now - self.called > LONGEST_GREETING)
    }

    /// Takes what it says. Once: who has greeted has nothing to say by the socket. `Err`: it is hung up on.
    pub fn hear(&mut self, service: &mut Service) -> Result<(), Errno> {
        let (mut bytes, mut fds) = ([0; LEN + 1], Vec::new());
        let taken = greeting::receive(&self.socket, &mut bytes, &mut fds);
        let file = fds.pop().map(Arc::new);
        self.closer.close_all(fds);
        let heard = match taken {
            Ok(None) => Ok(()),
            Ok(Some(len)) => self.answer(service, Greeting::read(&bytes[..len]), file.as_ref()),
            Err(error) => Err(error),
        };
        // Whatever became of it, the last to close it is not this thread: it need not be memory.
        if let Some(file) = file {
            self.closer.close(file);
        }
        heard
    }

    fn answer(
        &mut self,
        service: &mut Service,
        said: Option<Greeting>,
        file: Option<&Arc<OwnedFd>>,
    ) -> Result<(), Errno> {
        let (Some(Greeting::Hello { name, users, len }), Some(file), None) = (said, file, &self.met) else {
            return Err(Errno::PROTO);
        };
        let owner = Owner { user: self.caller.uid, pid: self.caller.pid, name, users };
        let met = self.meet(service, owner, file, len);
        let answer = |answer: &Greeting, fd| greeting::send(&self.socket, answer, fd);
        match met {
            Ok((met, for_program)) => {
                let answered = answer(&Greeting::Welcome, Some(for_program.as_fd()));
                self.met = Some(met);
                answered
            }
            Err(why) => {
                let _ = answer(&Greeting::Refused(why), None);
                Err(why)
            }
        }
    }

    fn meet(
        &mut self,
        service: &mut Service,
        owner: Owner,
        file: &Arc<OwnedFd>,
        len: u64,
    ) -> Result<(Met, OwnedFd), Errno> {
        let whole = usize::try_from(len).ok().filter(|_| len <= MOST_MEMORY).ok_or(Errno::FBIG)?;
        if whole <= wire::POOL_AT || !whole.is_multiple_of(4096) {
            return Err(Errno::INVAL);
        }
        let region = Region::map(file.clone(), whole, Protection::ReadWrite, false).map_err(|_| Errno::INVAL)?;
        let checked = check(&region, len);
        let window = region.window().clone();
        // The window keeps the mapping.
        self.closer.close(region);
        checked?;
        let (bell, for_program) = bell::of_card()?;
        let number = service.enter(owner, window).map_err(|error| match error {
            EnterError::Taken => Errno::ADDRINUSE,
            EnterError::Memory => Errno::INVAL,
        })?;
        let to_program = Bell::of(self.caller.uid, self.socket.clone());
        Ok((Met { number, bell, to_program }, for_program))
    }

    /// Wakes it.
    pub fn ring(&self) {
        if let Some(met) = &self.met {
            met.to_program.ring();
        }
    }
}

/// Whether the card can use it without ever waiting: nobody takes pages out of it from now on, and all of them are there, so that its program
/// has paid for them.
fn check(region: &Region, len: u64) -> Result<(), Errno> {
    region.seal_future_writes().map_err(|_| Errno::PERM)?;
    let found = fstat(region.fd().ok_or(Errno::BADF)?)?;
    let has = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
    // Of a longer file, pages behind what is used would count.
    if found.st_size as u64 != len || has < len { Err(Errno::NOSPC) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_dma::Pages;
    use millrace_listeners::{Listeners, comes, ring_until_apart};
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn a_pause_that_the_card_makes_is_not_its_clients() {
        let (_program, socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut client = Client::new(socket, Caller { pid: std::process::id(), uid: 7, is_limited: true }).unwrap();
        let begin = client.called;
        let mut is_late = |is_its_turn, millis| client.is_late(is_its_turn, begin + Duration::from_millis(millis));
        assert_eq!([is_late(false, 10_000), is_late(true, 11_900), is_late(false, 15_000)], [false; 3]);
        assert!(!is_late(true, 15_050) && is_late(true, 15_150), "it has not greeted when it could");
        let (_program, socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut client = Client::new(socket, Caller { pid: std::process::id(), uid: 7, is_limited: true }).unwrap();
        assert!(client.is_late(false, client.called + LONGEST_GREETING + Duration::from_millis(1)), "nor ever");
    }

    #[test]
    fn whose_socket_has_many_listeners_keeps_his_own_thread_and_not_the_cards() {
        let two = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
        };
        let met = |socket, uid| {
            let mut client = Client::new(socket, Caller { pid: std::process::id(), uid, is_limited: true }).unwrap();
            let file = Region::allocate(wire::POOL_AT + 4096, Pages::Ordinary).unwrap();
            fallocate(file.fd().unwrap(), FallocateFlags::empty(), 0, (wire::POOL_AT + 4096) as u64).unwrap();
            let file = Arc::new(file.fd().unwrap().try_clone_to_owned().unwrap());
            let owner = Owner { user: uid, pid: 1, name: None, users: Default::default() };
            let len = (wire::POOL_AT + 4096) as u64;
            client.met = Some(client.meet(&mut Service::default(), owner, &file, len).unwrap().0);
            client
        };
        let ((program, socket), (other, others)) = (two(), two());
        let (eve, honest) = (met(socket, 1 << 20), met(others, 1 << 20 | 1));
        let Some(_listeners) = Listeners::of(&program) else { return };
        let is_apart = |client: &Client| client.met.as_ref().is_some_and(|met| met.to_program.is_apart());
        ring_until_apart(&program, || eve.ring(), || is_apart(&eve));
        honest.ring();
        assert!(comes(&other, 0) && !is_apart(&honest), "it was rung at once");
    }
}
