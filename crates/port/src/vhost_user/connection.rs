//! The thread that waits for a driver and speaks vhost-user with it.

use super::VhostUserError;
use super::backend::{Backend, show_waiting};
use super::early;
use super::queue::Pair;
use crate::spec::VhostUserSpec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use vhost::vhost_user::{BackendReqHandler, Error, VhostUserBackendReqHandlerMut};

/// Between two attempts to connect, at first and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The socket and its thread. Both end with the last port of the wire.
pub(super) struct Control {
    stop: Arc<OwnedFd>,
    current: Current,
    thread: Option<JoinHandle<()>>,
}

/// The connection there is, so that it can be broken off while the thread waits for the rest of a message.
type Current = Arc<Mutex<Option<UnixStream>>>;

impl Control {
    /// Opens the socket, or begins to look for it.
    pub fn start(spec: &VhostUserSpec, pairs: Arc<[Arc<Pair>]>) -> Result<Self, VhostUserError> {
        let path = PathBuf::from(&spec.path);
        let failed = |step, source| VhostUserError::System { step, path: path.clone(), source };
        let socket = if spec.client { Socket::Client(path.clone()) } else { Socket::Server(Server::bind(&path)?) };
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|errno| failed("prepare", errno.into()))?);
        let current = Current::default();
        let role = if spec.client { "client" } else { "server" };
        show_waiting(&pairs, role);
        let talk =
            Talk { pairs, role, stop: stop.clone(), current: current.clone(), path: path.clone(), warned: false };
        let thread = std::thread::Builder::new()
            .name("vhost-user".to_owned())
            .spawn(move || talk.run(&socket))
            .map_err(|source| failed("start a thread for", source))?;
        Ok(Self { stop, current, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(stream) = &*self.current.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum Socket {
    Server(Server),
    Client(PathBuf),
}

/// A socket that we have made and that goes with us.
struct Server {
    listener: UnixListener,
    path: PathBuf,
}

impl Server {
    fn bind(path: &Path) -> Result<Self, VhostUserError> {
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::NotFound => VhostUserError::NoFolder(path.to_owned()),
            ErrorKind::PermissionDenied => VhostUserError::NotPermitted(path.to_owned()),
            ErrorKind::InvalidInput => VhostUserError::PathLength(path.to_owned()),
            _ => VhostUserError::System { step: "bind", path: path.to_owned(), source },
        };
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                Self::remove_stale(path)?;
                UnixListener::bind(path)
            }
            other => other,
        };
        let listener = listener.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Removes a socket that nobody listens to: one that a card has left which was killed.
    fn remove_stale(path: &Path) -> Result<(), VhostUserError> {
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        if !is_socket {
            return Err(VhostUserError::NotASocket(path.to_owned()));
        }
        match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                let failed = |source| VhostUserError::System { step: "remove the old", path: path.to_owned(), source };
                std::fs::remove_file(path).map_err(failed)
            }
            _ => Err(VhostUserError::Busy(path.to_owned())),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What the thread has.
struct Talk {
    pairs: Arc<[Arc<Pair>]>,
    role: &'static str,
    stop: Arc<OwnedFd>,
    current: Current,
    path: PathBuf,
    /// A driver has been complained about; the next is only mentioned at debug level.
    warned: bool,
}

impl Talk {
    fn run(mut self, socket: &Socket) {
        while let Some(stream) = self.next_stream(socket) {
            self.serve(stream);
        }
    }

    /// Waits until `fd` is readable; `false`: the port is closed.
    fn wait(&self, fd: impl AsFd) -> bool {
        let mut fds = [PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&fd, PollFlags::IN)];
        loop {
            // Interrupted, or out of memory: again.
            let _ = poll(&mut fds, None);
            if !fds[0].revents().is_empty() {
                return false;
            }
            if !fds[1].revents().is_empty() {
                return true;
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

    fn next_stream(&self, socket: &Socket) -> Option<UnixStream> {
        let mut back_off = BACK_OFF.0;
        loop {
            let stream = match socket {
                Socket::Server(server) => {
                    if !self.wait(&server.listener) {
                        return None;
                    }
                    server.listener.accept().map(|(stream, _)| stream)
                }
                Socket::Client(path) => UnixStream::connect(path),
            };
            let stream = stream.and_then(|stream| stream.set_nonblocking(false).map(|()| stream));
            if let Ok(stream) = stream {
                return Some(stream);
            }
            // Nobody there, or no descriptors left: later, but not at once.
            if !self.pause(back_off) {
                return None;
            }
            back_off = (back_off * 2).min(BACK_OFF.1);
        }
    }

    /// Speaks with one driver until it goes, or says what cannot be.
    fn serve(&mut self, stream: UnixStream) {
        let Ok(ours) = stream.try_clone() else { return };
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = stream.try_clone().ok();
        let backend = Arc::new(Mutex::new(Backend::new(self.pairs.clone(), self.role)));
        let mut handler = BackendReqHandler::from_stream(stream, backend.clone());
        while self.wait(&ours) {
            if let Err(error) = Self::answer(&ours, &backend, &mut handler) {
                self.explain(&error);
                break;
            }
        }
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
        backend.lock().unwrap_or_else(PoisonError::into_inner).close();
        if self.role == "client" {
            // A server that breaks off at once must not keep us busy.
            self.pause(BACK_OFF.0);
        }
    }

    /// Answers the next request.
    fn answer(
        socket: &UnixStream,
        backend: &Mutex<Backend>,
        handler: &mut BackendReqHandler<Mutex<Backend>>,
    ) -> Result<(), Error> {
        let is_negotiated = backend.lock().unwrap_or_else(PoisonError::into_inner).is_negotiated();
        let enable =
            |index, state| backend.lock().unwrap_or_else(PoisonError::into_inner).set_vring_enable(index, state);
        if !is_negotiated && early::take(socket, enable)? {
            return Ok(());
        }
        handler.handle_request()
    }

    fn explain(&mut self, error: &Error) {
        let path = self.path.display();
        match error {
            Error::Disconnected | Error::SocketBroken(_) => tracing::debug!("vhost-user:{path}: the peer has gone"),
            _ if self.warned => tracing::debug!("vhost-user:{path}: connection closed: {error}"),
            _ => {
                self.warned = true;
                tracing::warn!("vhost-user:{path}: connection closed: {error}; further errors at debug level");
            }
        }
    }
}
