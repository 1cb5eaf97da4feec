//! A socket that lets in who may come in.
//!
//! Nobody who is not let in makes it wait: closing his socket closes what he has put into it, which takes as long as he likes (a TCP socket
//! that lingers). So many such sockets wait at most; then nobody is let in, and who calls waits in the system's queue.

use crate::{Caller, Closer, Listener, May, caller_of};
use millrace_dma::take_descriptors;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use std::time::{Duration, Instant};

/// How long nobody is let in after the system had no descriptor for it; and how often to look again while [`Entrance::fd`] is `None`.
pub const WAITS: Duration = Duration::from_millis(100);
/// Sockets of those who were turned away that wait to be closed, at most.
const MOST_WAITING: usize = 64;

/// What came of a look at who calls.
#[derive(Debug)]
pub enum Call {
    /// He may come in: his socket, which takes descriptors unless the entrance is [`Entrance::without_descriptors`], and never makes anybody wait.
    In(OwnedFd, Caller),
    /// He may not, and was turned away. `None`: the system does not say who it was.
    Refused(Option<Caller>),
    /// The system has no descriptors left, mostly: nobody is let in for [`WAITS`].
    Exhausted,
}

/// A socket at which programs call, and who may come in.
pub struct Entrance {
    _listener: Option<Listener>,
    socket: OwnedFd,
    may: May,
    takes_descriptors: bool,
    turned_away: Closer,
    deaf: Option<Instant>,
}

impl Entrance {
    /// Of a socket that nobody else has taken.
    ///
    /// # Errors
    /// `EBADF`: somebody has.
    pub fn new(mut listener: Listener, may: May) -> Result<Self, Errno> {
        let socket = listener.take().ok_or(Errno::BADF)?;
        Ok(Self { _listener: Some(listener), ..Self::at_socket(socket, may) })
    }

    /// Of a socket that listens without waiting, and whose file is somebody else's to remove.
    pub fn at_socket(socket: OwnedFd, may: May) -> Self {
        let turned_away = Closer::default();
        Self { _listener: None, socket, may, takes_descriptors: true, turned_away, deaf: None }
    }

    /// Of the same, where nobody has descriptors to send: with Linux 6.16 and later nobody can, and no socket takes long to close.
    #[must_use]
    pub fn without_descriptors(self) -> Self {
        Self { takes_descriptors: false, ..self }
    }

    /// Whether nobody is let in because so much waits to be closed.
    pub fn is_full(&self) -> bool {
        self.turned_away.waits_for(MOST_WAITING)
    }

    /// What is readable when somebody calls. `None`: nobody is let in now; to be asked again after [`WAITS`].
    pub fn fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.is_open().then(|| self.socket.as_fd())
    }

    fn is_open(&mut self) -> bool {
        self.deaf = self.deaf.filter(|until| *until > Instant::now());
        self.deaf.is_none() && self.turned_away.try_again() && !self.is_full()
    }

    /// Whoever has called first of those who wait. `None`: nobody, or nobody is let in now. It never waits. How many are taken at a look is the
    /// caller's to limit.
    pub fn accept(&mut self) -> Option<Call> {
        if !self.is_open() {
            return None;
        }
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Some(self.judge(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
            Err(_) => {
                self.deaf = Some(Instant::now() + WAITS);
                Some(Call::Exhausted)
            }
        }
    }

    fn judge(&mut self, socket: OwnedFd) -> Call {
        let Some(caller) = (self.may)(socket.as_fd()) else {
            let who = caller_of(&socket);
            self.turn_away(socket);
            return Call::Refused(who);
        };
        if self.takes_descriptors {
            // Older systems take them anyway.
            let _ = take_descriptors(&socket);
        }
        Call::In(socket, caller)
    }

    /// Hangs up on somebody, who is told at once; his socket is closed by another thread.
    pub fn turn_away(&mut self, socket: OwnedFd) {
        let _ = shutdown(&socket, Shutdown::Both);
        self.turned_away.close(socket);
    }

    /// Has what came from somebody who was turned away dropped by another thread.
    pub fn close(&mut self, garbage: impl Send + 'static) {
        self.turned_away.close(garbage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Carries, owner_only};
    use rustix::io::IoSlice;
    use rustix::net::sockopt::set_socket_linger;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::Write;
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    /// Longer than any step of a test takes.
    const LINGERS: Duration = Duration::from_secs(30);

    fn entrance(may: May) -> (tempfile::TempDir, PathBuf, Entrance) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("door");
        let entrance = Entrance::new(Listener::private(path.clone(), Carries::Streams).unwrap(), may).unwrap();
        (folder, path, entrance)
    }

    /// A socket whose close takes long, and its other end.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_socket_linger(&writer, Some(LINGERS)).unwrap();
        writer.set_nonblocking(true).unwrap();
        while writer.write(&[0; 1 << 16]).is_ok() {}
        (writer, listener.accept().unwrap().0)
    }

    #[test]
    fn the_socket_is_its_owners_whatever_the_umask_says() {
        let (_folder, path, _entrance) = entrance(owner_only());
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn whoever_may_comes_in_and_nobody_waits_for_those_who_may_not() {
        let (_folder, path, mut entrance) = entrance(Box::new(|_| None));
        assert!(entrance.accept().is_none(), "nobody calls");
        let mut others = Vec::new();
        for _ in 0..3 {
            let caller = UnixStream::connect(&path).unwrap();
            // With Linux 6.16 it is refused before it is in the socket.
            let (linger, end) = lingering();
            let fds = [linger.as_fd()];
            let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
            let mut rights = SendAncillaryBuffer::new(&mut space);
            assert!(rights.push(SendAncillaryMessage::ScmRights(&fds)));
            if sendmsg(&caller, &[IoSlice::new(b"x")], &mut rights, SendFlags::NOSIGNAL).is_err() {
                // It is closed here, then, and at once.
                set_socket_linger(&linger, None).unwrap();
            }
            others.push((caller, end));
        }
        let begin = Instant::now();
        for _ in 0..3 {
            let Some(Call::Refused(Some(caller))) = entrance.accept() else { panic!("refused") };
            assert_eq!(caller.pid, std::process::id());
        }
        assert!(begin.elapsed() < LINGERS);
        entrance.may = owner_only();
        let _caller = UnixStream::connect(&path).unwrap();
        assert!(matches!(entrance.accept(), Some(Call::In(_, Caller { is_limited: false, .. }))));
    }

    #[test]
    fn where_nobody_has_descriptors_to_send_nobody_can() {
        for takes in [true, false] {
            let (_folder, path, entrance) = entrance(owner_only());
            let mut entrance = if takes { entrance } else { entrance.without_descriptors() };
            let caller = UnixStream::connect(&path).unwrap();
            let Some(Call::In(socket, _)) = entrance.accept() else { panic!("in") };
            // Older systems know no sockets that take none.
            let is_known = millrace_dma::take_descriptors(caller.as_fd()).is_ok();
            let fds = [socket.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
            let sent = sendmsg(&caller, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty());
            assert_eq!(sent.is_ok(), takes || !is_known, "{sent:?}");
        }
    }

    #[test]
    fn what_waits_to_be_closed_is_bounded() {
        let (_folder, path, mut entrance) = entrance(owner_only());
        let (wait, gate) = std::sync::mpsc::channel::<()>();
        let mut gate = Some(gate);
        struct Slow(Option<std::sync::mpsc::Receiver<()>>);
        impl Drop for Slow {
            fn drop(&mut self) {
                let _ = self.0.take().map(|gate| gate.recv());
            }
        }
        for _ in 0..MOST_WAITING {
            assert!(entrance.fd().is_some());
            entrance.close(Slow(gate.take()));
        }
        let _caller = UnixStream::connect(&path).unwrap();
        assert!(entrance.is_full() && entrance.fd().is_none() && entrance.accept().is_none(), "he waits");
        drop(wait);
        let begin = Instant::now();
        while entrance.fd().is_none() {
            assert!(begin.elapsed() < LINGERS);
            std::thread::yield_now();
        }
        assert!(matches!(entrance.accept(), Some(Call::In(..))));
    }
}
