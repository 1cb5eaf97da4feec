//! How two programs find each other at a socket, again and again, and the thread that talks there.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two attempts to connect, at first and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How long a port that closes waits for its thread. A peer can make it hang: it has handed us fds, and to
/// close them may take as long as it likes.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Why there is no vhost-user socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody listens there.
    #[error("another program listens on {0}; stop it, choose another path, or connect to it with the option `client`")]
    Busy(PathBuf),
    /// There is a file of another kind.
    #[error("{0} exists and is no socket; remove it or choose another path")]
    NotASocket(PathBuf),
    /// The folder is missing.
    #[error("the folder of {0} does not exist; create it or choose another path")]
    NoFolder(PathBuf),
    /// Not allowed.
    #[error("{0} cannot be created by this user; choose a folder that you may write to")]
    NotPermitted(PathBuf),
    /// Unix sockets have short names.
    #[error("{0} is too long for the path of a socket (107 bytes); choose a shorter one")]
    PathLength(PathBuf),
    /// Anything else.
    #[error("cannot {step} the socket {path}: {source}")]
    System {
        /// What failed.
        step: &'static str,
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The thread that talks. It ends with this, and the socket with it.
///
/// One that a peer has made hang is left to itself. It can do no harm: what it owns it shares with nobody who is still
/// there, so queues that it brings up are served by no worker, and after the message that it is at it finds the port
/// closed.
pub(crate) struct ControlThread {
    stop: Arc<OwnedFd>,
    current: Current,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended. The lock is for the compiler: a receiver cannot be shared.
    ended: Mutex<Receiver<()>>,
    path: PathBuf,
    /// Goes with us, not with the thread: who follows us may listen at the same path.
    _bound: Option<Bound>,
}

/// The connection there is, so that it can be broken off while the thread waits for the rest of a message.
type Current = Arc<Mutex<Option<UnixStream>>>;

impl ControlThread {
    /// Opens the socket, or begins to look for it, and calls `talk` in a thread of its own.
    pub fn start(
        path: &Path,
        client: bool,
        talk: impl FnOnce(Connector) + Send + 'static,
    ) -> Result<Self, SocketError> {
        let failed = |step, source| SocketError::System { step, path: path.to_owned(), source };
        let (socket, bound) = if client {
            (Socket::Client(path.to_owned()), None)
        } else {
            let (listener, bound) = Bound::listen(path)?;
            (Socket::Server(listener), Some(bound))
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|errno| failed("prepare", errno.into()))?);
        let current = Current::default();
        let connector = Connector { socket, stop: stop.clone(), current: current.clone() };
        let (ends, ended) = sync_channel(0);
        let thread = std::thread::Builder::new()
            .name("vhost-user".to_owned())
            .spawn(move || {
                let _ends = ends;
                talk(connector);
            })
            .map_err(|source| failed("start a thread for", source))?;
        Ok(Self { stop, current, thread: Some(thread), ended: Mutex::new(ended), path: path.to_owned(), _bound: bound })
    }
}

impl ControlThread {
    /// Breaks off the connection that there is: the thread waits for nothing of it any more.
    pub fn break_off(&self) {
        if let Some(stream) = &*self.current.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        self.break_off();
        match self.ended.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(JOIN_TIMEOUT) {
            Err(RecvTimeoutError::Timeout) => crate::notice::warn(format!(
                "{}: the thread of the vhost-user socket hangs, as its peer makes it wait; the port closes without it",
                self.path.display()
            )),
            _ => drop(self.thread.take().map(JoinHandle::join)),
        }
    }
}

enum Socket {
    Server(UnixListener),
    Client(PathBuf),
}

/// The file of a socket that we have made, which goes with us.
pub struct Bound(PathBuf);

impl Bound {
    /// Listens there, without waiting, with a stream socket; one that a card has left which was killed is replaced.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn listen(path: &Path) -> Result<(UnixListener, Self), SocketError> {
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::NotFound => SocketError::NoFolder(path.to_owned()),
            ErrorKind::PermissionDenied => SocketError::NotPermitted(path.to_owned()),
            ErrorKind::InvalidInput => SocketError::PathLength(path.to_owned()),
            _ => SocketError::System { step: "bind", path: path.to_owned(), source },
        };
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                Self::remove_stale(path)?;
                UnixListener::bind(path)
            }
            other => other,
        };
        let listener = listener.map_err(failed)?;
        let bound = Self(path.to_owned());
        listener.set_nonblocking(true).map_err(failed)?;
        Ok((listener, bound))
    }

    /// Removes a socket that nobody listens to: one that a card has left which was killed.
    fn remove_stale(path: &Path) -> Result<(), SocketError> {
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        if !is_socket {
            return Err(SocketError::NotASocket(path.to_owned()));
        }
        match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                let failed = |source| SocketError::System { step: "remove the old", path: path.to_owned(), source };
                std::fs::remove_file(path).map_err(failed)
            }
            _ => Err(SocketError::Busy(path.to_owned())),
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// As [`UnixStream::connect`], but an error instead of a wait where too many wait already: a wait could not be ended.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// The socket, as the thread that talks has it.
pub(crate) struct Connector {
    socket: Socket,
    stop: Arc<OwnedFd>,
    current: Current,
}

impl Connector {
    /// Waits for the next connection; `None`: the port is closed.
    pub fn next(&self) -> Option<UnixStream> {
        let mut back_off = Duration::ZERO;
        // Nobody there, or no fds left: later, but not at once.
        while self.pause(back_off) {
            let stream = match &self.socket {
                Socket::Server(listener) => {
                    if !self.wait(listener) {
                        return None;
                    }
                    listener.accept().map(|(stream, _)| stream)
                }
                Socket::Client(path) => connect(path),
            };
            let stream = stream.and_then(|stream| stream.set_nonblocking(false).map(|()| stream));
            if let Ok(stream) = stream {
                return Some(stream);
            }
            back_off = (back_off * 2).clamp(BACK_OFF.0, BACK_OFF.1);
        }
        None
    }

    /// Lets `stream` be broken off when the port closes; `false`: it is closed already. To be followed by
    /// [`Connector::end`].
    pub fn begin(&self, stream: &UnixStream) -> bool {
        self.set_current(stream.try_clone().ok());
        // Who closes says so, and then looks for the stream; here it is the other way round.
        self.pause(Duration::ZERO)
    }

    /// The connection is over. A server that breaks off at once must not keep us busy.
    pub fn end(&self) {
        self.set_current(None);
        if matches!(self.socket, Socket::Client(_)) {
            self.pause(BACK_OFF.0);
        }
    }

    fn set_current(&self, stream: Option<UnixStream>) {
        let before = std::mem::replace(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner), stream);
        // Not under the lock, which who closes the port wants: messages that nobody has read go with the stream, and
        // with them fds whose close may take its time.
        drop(before);
    }

    /// Waits until `fd` is readable; `false`: the port is closed.
    pub fn wait(&self, fd: impl AsFd) -> bool {
        self.wait_for([&fd]).is_some()
    }

    /// Waits until one of `fds` is readable, and says which; `None`: the port is closed.
    pub fn wait_for<const N: usize>(&self, fds: [&dyn AsFd; N]) -> Option<usize> {
        let stop = PollFd::new(&*self.stop, PollFlags::IN);
        let others = fds.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
        let mut all: Vec<_> = std::iter::once(stop).chain(others).collect();
        loop {
            // Interrupted, or out of memory: again.
            let _ = poll(&mut all, None);
            match all.iter().position(|fd| !fd.revents().is_empty()) {
                Some(0) => return None,
                Some(readable) => return Some(readable - 1),
                None => {}
            }
        }
    }

    /// Waits for some time; `false`: the port is closed.
    fn pause(&self, time: Duration) -> bool {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let mut fds = [PollFd::new(&*self.stop, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&time));
        fds[0].revents().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_thread_that_hangs_holds_up_nobody_and_nobody_who_follows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vhost.sock");
        let (go_on, wait) = channel::<()>();
        let (ended, end) = channel();
        let hanging = ControlThread::start(&path, false, move |connector| {
            // As in the close of an fd whose peer never lets it end.
            let _ = wait.recv();
            let next = connector.next().is_some();
            drop(connector);
            ended.send(next).unwrap();
        });
        let (closed, close) = channel();
        let hanging = hanging.unwrap();
        std::thread::spawn(move || {
            drop(hanging);
            closed.send(()).unwrap();
        });
        close.recv_timeout(LONG).expect("a port that closes");
        assert!(!path.exists(), "the socket goes with the port");
        let next = ControlThread::start(&path, false, |connector| drop(connector.next())).unwrap();
        go_on.send(()).unwrap();
        assert!(!end.recv_timeout(LONG).expect("a thread that ends"), "it serves nobody any more");
        assert!(path.exists(), "the socket is that of who follows");
        drop(next);
        assert!(!path.exists());
    }
}
