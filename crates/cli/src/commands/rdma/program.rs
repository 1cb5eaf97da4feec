//! Verbs programs of this user: their sockets, and what is asked there.

use std::fs;

use millrace_tool::failure::Failure;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{connect, send, socket_with};
use rustix::process::geteuid;

/// Magic and length of a question: `crates/verbs/src/place/local/message.rs`.
const QUESTION: (&[u8; 8], usize) = (b"mrverb02", 56);

/// What can be asked for.
#[derive(Clone, Copy)]
pub enum Question {
    /// What the process is doing: one record of JSON.
    Tell = 5,
    /// Copies of packets from now on.
    Capture = 6,
}

/// A process that was called, and that is of this user.
pub struct Program {
    pub pid: u64,
    pub socket: OwnedFd,
}

/// Names of the sockets at which verbs programs of this user listen.
pub fn names() -> Result<Vec<String>, Failure> {
    const FILE: &str = "/proc/net/unix";
    let text = fs::read(FILE).map_err(|source| Failure::File { doing: "cannot read", path: FILE.into(), source })?;
    let start = format!("@millrace-verbs/{}/", geteuid().as_raw());
    let text = String::from_utf8_lossy(&text);
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().last())
        .filter(|name| name.starts_with(&start))
        .map(|name| name[1..].to_owned())
        .collect();
    names.sort_unstable();
    // Sockets of sessions have the name of the listener.
    names.dedup();
    Ok(names)
}

impl Program {
    /// Calls the process at that socket. `None`: it is another user's. It may have ended meanwhile, which is an error.
    pub fn call(name: &str) -> Result<Option<Self>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        let other = getsockopt(&socket, PeerCredentials).map_err(|error| Errno::from_raw_os_error(error as i32))?;
        let is_ours = other.uid() == geteuid().as_raw();
        Ok(is_ours.then(|| Self { pid: u64::from(other.pid().unsigned_abs()), socket }))
    }

    /// Asks it.
    pub fn ask(&self, question: Question) -> Result<(), Errno> {
        let (magic, len) = QUESTION;
        let mut bytes = vec![0; len];
        bytes[..magic.len()].copy_from_slice(magic);
        bytes[magic.len()] = question as u8;
        send(&self.socket, &bytes, SendFlags::NOSIGNAL).map(drop)
    }
}
