//! Requests and their replies over one socket: in order, and not waited for without end.

use crate::codec::{self, WireError};
use millrace_abi::message::{Reply, Request};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SocketAddrUnix};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a reply is waited for: much longer than any takes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for a change of ports, which opens and closes what may take its time, and of the flow table, which may be large.
pub(crate) const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);

/// The same once this program is asked to end.
const INTERRUPTED_TIMEOUT: Duration = Duration::from_secs(1);

/// How often whoever waits looks whether the program is asked to end.
const LOOK: Duration = Duration::from_millis(100);

/// Whether this program is asked to end. Relaxed is enough: it carries no data.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Says that this program is asked to end, by Ctrl-C for example: from now on all its clients wait a second at most for
/// a reply, also those that wait already, so that a card that does not answer cannot keep it.
pub fn wait_no_longer() {
    ENDING.store(true, Ordering::Relaxed);
}

/// Why there is no reply.
#[derive(Debug)]
pub(crate) enum TalkError {
    /// The socket has failed.
    Wire(WireError),
    /// Nothing came for so long.
    Silent(Duration),
    /// The card has ended the connection, and said why.
    Ended(String),
}

/// Connects, and lets everything that waits on the socket look up now and then.
pub(crate) fn connect(socket: &OwnedFd, address: &SocketAddrUnix) -> Result<(), TalkError> {
    look_up(socket).map_err(|errno| TalkError::Wire(WireError::System(errno)))?;
    let begin = Instant::now();
    loop {
        match rustix::net::connect(socket, address) {
            Ok(()) => return Ok(()),
            // So many wait that there is no place to wait.
            Err(Errno::AGAIN | Errno::INTR) => check(begin, REQUEST_TIMEOUT)?,
            // As it is: what became of connecting says more than that a socket failed.
            Err(errno) => return Err(TalkError::Wire(WireError::System(errno))),
        }
    }
}

fn look_up(socket: &OwnedFd) -> Result<(), Errno> {
    set_socket_timeout(socket, Timeout::Send, Some(LOOK))?;
    set_socket_timeout(socket, Timeout::Recv, Some(LOOK))
}

/// Whether whoever waits since `begin` may wait longer.
pub(crate) fn check(begin: Instant, patience: Duration) -> Result<(), TalkError> {
    let patience = if ENDING.load(Ordering::Relaxed) { patience.min(INTERRUPTED_TIMEOUT) } else { patience };
    let waited = begin.elapsed();
    if waited < patience { Ok(()) } else { Err(TalkError::Silent(waited)) }
}

/// A socket to a card. Requests of several threads take turns.
pub(crate) struct Talk {
    socket: Arc<OwnedFd>,
    state: Mutex<State>,
}

struct State {
    buffer: Box<[u8]>,
    // Replies that nobody waits for any more.
    owed: usize,
    last_words: Option<String>,
}

impl Talk {
    pub fn new(socket: Arc<OwnedFd>) -> Result<Self, Errno> {
        look_up(&socket)?;
        let state = State { buffer: codec::buffer(), owed: 0, last_words: None };
        Ok(Self { socket, state: Mutex::new(state) })
    }

    /// Asks, and waits for the reply.
    pub fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), TalkError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = Instant::now();
        let patience =
            if matches!(request, Request::Change(_) | Request::Flow(_)) { CHANGE_TIMEOUT } else { REQUEST_TIMEOUT };
        let asked = self.catch_up(&mut state, begin).and_then(|()| self.send(request, fds, begin));
        match asked.and_then(|()| self.receive(&mut state, begin, patience)) {
            Err(TalkError::Wire(WireError::Closed)) => Err(self.ended(&mut state)),
            other => other,
        }
    }

    /// What the card said when it ended the connection, if it said something.
    pub fn last_words(&self) -> Option<String> {
        // Whoever asks at this moment will be told.
        let mut state = self.state.try_lock().ok()?;
        match self.ended(&mut state) {
            TalkError::Ended(text) => Some(text),
            _ => None,
        }
    }

    fn send(&self, request: &Request, fds: &[BorrowedFd<'_>], begin: Instant) -> Result<(), TalkError> {
        loop {
            match codec::send(&self.socket, request, fds) {
                Err(WireError::NotReady) => check(begin, REQUEST_TIMEOUT)?,
                other => return other.map_err(TalkError::Wire),
            }
        }
    }

    fn receive(
        &self,
        state: &mut State,
        begin: Instant,
        patience: Duration,
    ) -> Result<(Reply, Vec<OwnedFd>), TalkError> {
        loop {
            match codec::receive(&self.socket, &mut state.buffer, RecvFlags::empty()) {
                Err(WireError::NotReady) => check(begin, patience).inspect_err(|_| state.owed += 1)?,
                other => return other.map_err(TalkError::Wire),
            }
        }
    }

    /// Takes replies that come too late. As long as one has not come nothing more is asked.
    fn catch_up(&self, state: &mut State, begin: Instant) -> Result<(), TalkError> {
        let mut undone = false;
        while state.owed > 0 {
            // One that ends has many queues to close, and none is worth a wait.
            let wait = if ENDING.load(Ordering::Relaxed) { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
            let undo = match codec::receive(&self.socket, &mut state.buffer, wait) {
                // Nobody has what was made for the request.
                Ok((Reply::Opened { handle, .. }, _)) => Request::Close { handle },
                Ok((Reply::Mapped { iova }, _)) => Request::Unmap { iova },
                Ok(_) => {
                    state.owed -= 1;
                    continue;
                }
                Err(WireError::NotReady) if undone => {
                    check(begin, REQUEST_TIMEOUT)?;
                    continue;
                }
                Err(WireError::NotReady) => return Err(TalkError::Silent(REQUEST_TIMEOUT)),
                Err(error) => return Err(TalkError::Wire(error)),
            };
            self.send(&undo, &[], begin)?;
            undone = true;
        }
        Ok(())
    }

    /// The connection is closed: the last that came may say why.
    fn ended(&self, state: &mut State) -> TalkError {
        // The first try may give the error of a connection that was closed with something unread.
        for _ in 0..2 {
            let last = codec::receive::<Reply>(&self.socket, &mut state.buffer, RecvFlags::DONTWAIT);
            if let Ok((Reply::Error { text, .. }, _)) = last {
                state.last_words = Some(text);
            }
        }
        match &state.last_words {
            Some(text) => TalkError::Ended(text.clone()),
            None => TalkError::Wire(WireError::Closed),
        }
    }
}
