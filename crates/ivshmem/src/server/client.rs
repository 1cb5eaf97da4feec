//! A client: what waits to be said to it, and whether it listens.

use crate::protocol::{MEMORY, Message, VERSION};
use crate::unread::unread;
use millrace_callers::Caller;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages to one client in one turn.
const MOST_AT_ONCE: usize = 256;
/// Until it is tried again, where the system passes no more descriptors.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Why a client is there no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It has hung up, as the end of a process does.
    Left,
    /// It has said something. Clients say nothing.
    Spoke,
    /// It has read nothing for as long as a client may.
    Slow,
    /// The system could not send to it.
    Failed,
}

pub(super) struct Client {
    /// Its slot.
    pub id: u16,
    /// What clients are told that it is called: nobody before was.
    pub called: u16,
    pub caller: Caller,
    pub socket: OwnedFd,
    pub since: Instant,
    /// One for each vector.
    pub events: Vec<Arc<OwnedFd>>,
    /// Its process, if that is known.
    pub process: Option<OwnedFd>,
    /// What is to be said. Of each other peer nothing, that it has gone, or its vectors: so many are the most.
    queue: VecDeque<Message>,
    /// Slots of peers that have gone, which it has not read yet.
    behind: Vec<u16>,
    /// Since when it has read nothing, though there was something to read.
    owing: Option<Instant>,
    /// As the system counted last.
    unread: u32,
    paused: Option<Instant>,
}

impl Client {
    pub fn new(
        (id, called): (u16, u16),
        caller: Caller,
        socket: OwnedFd,
        process: Option<OwnedFd>,
        events: Vec<Arc<OwnedFd>>,
        memory: &Arc<OwnedFd>,
    ) -> Self {
        let greeting =
            [Message::number(VERSION), Message::number(called.into()), Message::with(MEMORY, memory)].into_iter();
        let queue = greeting.collect();
        let (since, behind) = (Instant::now(), Vec::new());
        let (owing, unread, paused) = Default::default();
        Self { id, called, caller, socket, since, events, process, queue, behind, owing, unread, paused }
    }

    /// A peer is there: its vectors.
    pub fn tell_of(&mut self, called: u16, events: &[Arc<OwnedFd>]) {
        self.queue.extend(events.iter().map(|event| Message::with(called.into(), event)));
    }

    /// A peer has gone. Of one that was not told of yet, nothing is said at all.
    pub fn tell_end_of(&mut self, (id, called): (u16, u16), vectors: usize) {
        let before = self.queue.len();
        self.queue.retain(|message| message.fd.is_none() || message.number != i64::from(called));
        if before - self.queue.len() < vectors {
            self.queue.push_back(Message::number(called.into()));
            self.behind.push(id);
        }
    }

    /// Whether it may take a peer that has gone for one that is there.
    pub fn believes_in(&self, id: u16) -> bool {
        self.behind.contains(&id)
    }

    /// Messages that wait here.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether there is something to send when the socket has room, and when it is tried again where it is not the socket.
    pub fn wants_room(&self, now: Instant) -> bool {
        !self.queue.is_empty() && self.paused.is_none_or(|until| until <= now)
    }

    /// Whether something waits until it is tried again.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some() && !self.queue.is_empty()
    }

    /// Whether it has hung up, or said something.
    pub fn listen(&self) -> Result<(), Ending> {
        match recv(&self.socket, &mut [0_u8; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok((_, 0)) => Err(Ending::Left),
            Ok(_) => Err(Ending::Spoke),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Ending::Left),
        }
    }

    /// Says what there is room for, and looks whether it reads.
    pub fn attend(&mut self, now: Instant, patience: Duration) -> Result<(), Ending> {
        let has_sent = self.send(now)?;
        let unread = unread(&self.socket).map_err(|_| Ending::Failed)?;
        let has_read = has_sent || unread < self.unread;
        self.unread = unread;
        if unread == 0 {
            // It has read all that was sent. What could not be sent, because the system passes no more descriptors, it does not owe.
            self.owing = None;
            if self.queue.is_empty() {
                self.behind.clear();
            }
            return Ok(());
        }
        let since = *self.owing.get_or_insert(now);
        if has_read {
            self.owing = Some(now);
            return Ok(());
        }
        if now.duration_since(since) >= patience { Err(Ending::Slow) } else { Ok(()) }
    }

    /// Whether anything could be sent.
    fn send(&mut self, now: Instant) -> Result<bool, Ending> {
        if !self.wants_room(now) {
            return Ok(false);
        }
        self.paused = None;
        for sent in 0..MOST_AT_ONCE {
            let Some(message) = self.queue.front() else { return Ok(sent > 0) };
            match message.send(&self.socket) {
                Ok(()) => drop(self.queue.pop_front()),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(sent > 0),
                // As many descriptors of this user are on their way as may be.
                Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                    self.paused = Some(now + PAUSE);
                    return Ok(sent > 0);
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Ending::Left),
                Err(_) => return Err(Ending::Failed),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A client that was greeted, and its end of the socket.
    fn greeted() -> (Client, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let memory = Arc::new(eventfd(0, EventfdFlags::empty()).unwrap());
        let caller = Caller { pid: 1, uid: 0, is_limited: false };
        let mut client = Client::new((0, 0), caller, ours.into(), None, vec![Arc::clone(&memory)], &memory);
        client.attend(Instant::now(), PATIENCE).unwrap();
        (client, theirs)
    }

    /// Something for it, at a time when the system passes no more descriptors.
    fn tell_while_paused(client: &mut Client, now: Instant) {
        let event = client.events[0].clone();
        client.tell_of(1, &[event]);
        client.paused = Some(now + PATIENCE * 10);
    }

    #[test]
    fn who_has_read_all_that_was_sent_is_not_slow() {
        let (mut client, mut theirs) = greeted();
        let now = Instant::now();
        tell_while_paused(&mut client, now);
        // What it has not read it owes, whatever waits behind that.
        assert_eq!(client.attend(now, PATIENCE), Ok(()));
        assert_eq!(client.attend(now + PATIENCE, PATIENCE), Err(Ending::Slow));
        theirs.read_exact(&mut [0; 24]).unwrap();
        for times in 1..5 {
            assert_eq!(client.attend(now + PATIENCE * times, PATIENCE), Ok(()));
        }
    }

    #[test]
    fn who_has_nothing_to_wait_for_is_not_paused() {
        let (mut client, _theirs) = greeted();
        tell_while_paused(&mut client, Instant::now());
        assert!(client.is_paused());
        // Who was to be told of has gone.
        client.tell_end_of((1, 1), 1);
        assert!(!client.is_paused());
    }
}
