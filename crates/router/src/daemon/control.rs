//! The socket by which clients ask the daemon: abstract, and so one of the network namespace. Nobody can make the daemon wait: it never sends to who
//! does not read, takes one request of each client per turn, and keeps a few clients.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recv, send, socket_with,
};

use super::peer::{self, Peer};
use super::protocol::{Answer, Asked, LONGEST, Request, VERSION};

/// The usual name.
pub const NAME: &str = "millrace-router";

/// Clients at a time; the one that has been silent for longest makes place.
const MOST_CLIENTS: usize = 32;

/// Requests of one turn, over all clients.
const MOST_REQUESTS: usize = 32;

/// How long answers of one turn may take, the last of them not counted: what makes rules stale comes first.
const MOST_TIME: Duration = Duration::from_millis(5);

/// Who asks nothing for so long is let go.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody has the name.
    #[error("a router runs in this network namespace already, or something else has the name @{name}{}; `millrace router status` asks it, `--socket` names another", by(.who))]
    Taken {
        /// The name.
        name: String,
        /// Its process and user.
        who: Option<Peer>,
    },
    /// The name cannot be one.
    #[error("@{0} is no name of a socket: 1 to 100 letters without control characters")]
    BadName(String),
    /// The system refused.
    #[error("no socket for clients: {0}")]
    System(#[from] Errno),
}

fn by(who: &Option<Peer>) -> String {
    who.map_or_else(String::new, |who| format!(" ({who})"))
}

/// The address of that name.
///
/// # Errors
/// For what is no name.
pub fn address(name: &str) -> Result<SocketAddrUnix, Error> {
    let is_name = (1..=100).contains(&name.len()) && !name.chars().any(char::is_control);
    let bad = || Error::BadName(name.to_owned());
    if !is_name {
        return Err(bad());
    }
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|_| bad())
}

/// Who may do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    /// Nothing.
    Nothing,
    /// Look.
    Read,
    /// Look and change.
    Change,
}

/// The daemon's side.
#[derive(Debug)]
pub struct Control {
    listener: OwnedFd,
    clients: Vec<Client>,
    group: Option<u32>,
    /// Clients that were refused, let go, or cut off.
    pub turned_away: u64,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    may: May,
    heard: Instant,
}

impl Control {
    /// Listens at the abstract name. `group` may look, besides root and the owner, who may do everything.
    ///
    /// # Errors
    /// [`Error`].
    pub fn listen(name: &str, group: Option<u32>) -> Result<Self, Error> {
        const BACKLOG: i32 = 16;
        let address = address(name)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match bind(&listener, &address) {
            Err(Errno::ADDRINUSE) => return Err(Error::Taken { name: name.to_owned(), who: ask(&address).ok() }),
            other => other?,
        }
        listen(&listener, BACKLOG)?;
        Ok(Self { listener, clients: Vec::new(), group, turned_away: 0 })
    }

    /// What to poll for: the listener, and every client.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let clients = self.clients.iter().map(|client| PollFd::new(&client.socket, PollFlags::IN));
        std::iter::once(PollFd::new(&self.listener, PollFlags::IN)).chain(clients)
    }

    /// Takes what has come, and answers. Never waits.
    pub fn turn(&mut self, mut answer: impl FnMut(Request) -> Answer) {
        self.welcome();
        let (mut served, begin) = (0, Instant::now());
        let mut buffer = vec![0; LONGEST];
        let (mut gone, mut looked_at) = (0, 0);
        self.clients.retain_mut(|client| {
            if served == MOST_REQUESTS || served > 0 && begin.elapsed() >= MOST_TIME {
                return true;
            }
            looked_at += 1;
            match client.serve(&mut buffer, &mut answer) {
                Served::Nothing => client.heard.elapsed() < PATIENCE,
                Served::One => {
                    served += 1;
                    true
                }
                Served::Over => false,
                Served::Refused => {
                    gone += 1;
                    false
                }
            }
        });
        self.turned_away += gone;
        // Who was not looked at comes first.
        let count = self.clients.len();
        if looked_at < count {
            self.clients.rotate_left(looked_at);
        }
    }

    fn welcome(&mut self) {
        for _ in 0..MOST_REQUESTS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(&self.listener, flags) else { return };
            let may = peer::of(&socket).map_or(May::Nothing, |peer| self.may(peer));
            if may == May::Nothing {
                let told =
                    Answer::Refused("only root, the user who runs the router, and its group may ask it".to_owned());
                let _ = tell(&socket, &told);
                self.turned_away += 1;
                continue;
            }
            if self.clients.len() == MOST_CLIENTS {
                let oldest = self.clients.iter().enumerate().min_by_key(|(_, client)| client.heard).map(|(at, _)| at);
                oldest.map(|at| self.clients.swap_remove(at));
                self.turned_away += 1;
            }
            self.clients.push(Client { socket, may, heard: Instant::now() });
        }
    }

    fn may(&self, peer: Peer) -> May {
        if peer.user == 0 || peer.user == rustix::process::geteuid().as_raw() {
            return May::Change;
        }
        let is_member = |group| peer.group == group || groups_of(peer).contains(&group);
        if self.group.is_some_and(is_member) { May::Read } else { May::Nothing }
    }
}

enum Served {
    Nothing,
    One,
    Over,
    Refused,
}

impl Client {
    fn serve(&mut self, buffer: &mut [u8], answer: &mut impl FnMut(Request) -> Answer) -> Served {
        let length = match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, 0)) => return Served::Over,
            Ok((_, length)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Served::Nothing,
            Err(_) => return Served::Over,
        };
        self.heard = Instant::now();
        let Some(asked) = buffer.get(..length).and_then(|bytes| postcard::from_bytes::<Asked>(bytes).ok()) else {
            let _ = tell(&self.socket, &Answer::Refused("this is no request".to_owned()));
            return Served::Refused;
        };
        let said = match asked {
            Asked { version, .. } if version != VERSION => Answer::Refused(format!(
                "the router speaks version {VERSION} of its protocol, and the command version {version}: use the command that the router is from"
            )),
            Asked { request, .. } if request.changes() && self.may != May::Change => {
                Answer::Refused("only root and the user who runs the router may change it".to_owned())
            }
            Asked { request, .. } => answer(request),
        };
        if tell(&self.socket, &said).is_ok() { Served::One } else { Served::Refused }
    }
}

/// Sends an answer if there is room for it: who has not read those before is let go.
fn tell(socket: &OwnedFd, said: &Answer) -> Result<(), Errno> {
    let whole = postcard::to_stdvec(said).ok().filter(|bytes| bytes.len() <= LONGEST);
    let bytes = match whole {
        Some(bytes) => bytes,
        None => {
            postcard::to_stdvec(&Answer::Refused("the answer is too long".to_owned())).map_err(|_| Errno::MSGSIZE)?
        }
    };
    send(socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// Who listens at an address.
///
/// # Errors
/// When nobody does, or many wait already.
pub(super) fn ask(address: &SocketAddrUnix) -> Result<Peer, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, address)?;
    peer::of(&socket)
}

/// The supplementary groups of a process that is still this user's.
fn groups_of(peer: Peer) -> Vec<u32> {
    let Some(process) = peer.process else { return Vec::new() };
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let numbers = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    let users = numbers("Uid:");
    if !users.is_empty() && users.iter().all(|&user| user == peer.user) { numbers("Groups:") } else { Vec::new() }
}
