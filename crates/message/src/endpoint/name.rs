//! Names of endpoints, and the sockets behind them: in the abstract namespace, so that nothing is left behind, with the user in the name.
//! Anybody may take such a name, so both ends look whose process is at the other one.

use super::closer::Closer;
use super::error::Error;
use millrace_dma::{refuse_descriptors, take_descriptors};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use rustix::process::{Pid, geteuid};
use std::fmt;

/// Calls that wait.
const BACKLOG: i32 = 32;
/// Bytes of a name without the user.
pub const LONGEST: usize = 64;

/// The name of an endpoint, and of its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub user: u32,
    pub text: String,
}

/// Whether it is one, without the user.
pub fn is_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_letter)
}

impl Name {
    /// `solver` is this user's, `1000/solver` that of user 1000.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Name(text.to_owned());
        let (user, text) = match text.split_once('/') {
            Some((user, text)) => (user.parse().map_err(|_| wrong())?, text),
            None => (geteuid().as_raw(), text),
        };
        if is_name(text) { Ok(Self { user, text: text.to_owned() }) } else { Err(wrong()) }
    }

    /// A name that is to be opened: this user's, on this host.
    pub fn own(text: &str) -> Result<Self, Error> {
        let rest = text.rsplit_once([':', '/']).map_or(text, |found| found.1);
        match Self::parse(text) {
            Ok(name) if name.user == geteuid().as_raw() => Ok(name),
            Err(error) if rest == text || !is_name(rest) => Err(error),
            _ => Err(Error::Foreign(text.to_owned())),
        }
    }

    fn address(&self) -> Result<SocketAddrUnix, Errno> {
        SocketAddrUnix::new_abstract_name(format!("millrace-message/{}/{}", self.user, self.text).as_bytes())
    }

    /// Listens as that endpoint.
    pub fn open(&self) -> Result<OwnedFd, Error> {
        let socket = socket()?;
        let bound = self.address().and_then(|address| bind(&socket, &address));
        bound.map_err(|error| match error {
            Errno::ADDRINUSE => Error::Taken(self.to_string()),
            source => Error::System { doing: "bind a socket", source },
        })?;
        listen(&socket, BACKLOG).map_err(Error::when("listen at a socket"))?;
        Ok(socket)
    }

    /// Calls that endpoint. `None`: nobody has that name, or so many call that it has to be tried again.
    pub fn call(&self) -> Result<Option<OwnedFd>, Error> {
        let socket = socket()?;
        match self.address().and_then(|address| connect(&socket, &address)) {
            Ok(()) => {}
            Err(Errno::CONNREFUSED | Errno::NOENT | Errno::AGAIN) => return Ok(None),
            Err(source) => return Err(Error::System { doing: "connect a socket", source }),
        }
        let found = caller(&socket)?.user;
        if found != self.user {
            // What he has sent lies in it.
            Closer::default().hang_up(socket);
            return Err(Error::Stranger { name: self.to_string(), expected: self.user, found });
        }
        let _ = take_descriptors(&socket);
        Ok(Some(socket))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.user == geteuid().as_raw() { self.text.fmt(to) } else { write!(to, "{}/{}", self.user, self.text) }
    }
}

/// One that takes no descriptors before it is known who is at the other end; what is accepted from it neither. Systems older than Linux 6.16 cannot do
/// that: there [`Closer`] has to do with what strangers send.
fn socket() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.map_err(Error::when("make a socket"))?;
    let _ = refuse_descriptors(&socket);
    Ok(socket)
}

/// Whose process is at the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub user: u32,
    /// `None`: it has no number in this container.
    pub pid: Option<Pid>,
}

pub fn caller(socket: impl AsFd) -> Result<Caller, Error> {
    let found = getsockopt(&socket, PeerCredentials).map_err(|error| Errno::from_raw_os_error(error as i32));
    let found = found.map_err(Error::when("learn whose process is at a socket"))?;
    Ok(Caller { user: found.uid(), pid: Pid::from_raw(found.pid().max(0)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_said_in_few_letters() {
        let own = geteuid().as_raw();
        let long = "x".repeat(LONGEST);
        for (text, user, name) in [("solver-1_a.b", own, "solver-1_a.b"), ("77/x", 77, "x"), (&*long, own, &*long)] {
            assert_eq!(Name::parse(text).unwrap(), Name { user, text: name.to_owned() });
            assert_eq!(Name::parse(text).unwrap().to_string(), text);
        }
        let longer = "x".repeat(LONGEST + 1);
        for text in ["", "a b", "a/b", "1000/", "-1/x", "1/2/x", "ä", "a\0", &*longer] {
            assert!(matches!(Name::parse(text), Err(Error::Name(_))), "{text:?}");
        }
        assert_eq!(Name::own(&format!("{own}/x")).unwrap(), Name::own("x").unwrap());
        for text in [format!("{}/x", own + 1), "b:x".to_owned(), "alice/x".to_owned()] {
            assert!(matches!(Name::own(&text), Err(Error::Foreign(_))), "{text}");
        }
        for text in ["a b", "b:a b", "b:", ""] {
            assert!(matches!(Name::own(text), Err(Error::Name(_))), "{text}");
        }
    }
}
