//! Verbs programs of this user: their sockets, and what is asked there.

use std::fs;
use std::path::Path;

use millrace_served::{CallError, Client};
use millrace_tool::failure::Failure;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{connect, send, socket_with};
use rustix::process::geteuid;
use serde_json::Value;

/// How names of the sockets of engines end.
const ENGINE: &str = ".rdma";

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

/// Names of sockets of this machine.
fn sockets(is_wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, Failure> {
    const FILE: &str = "/proc/net/unix";
    let text = fs::read(FILE).map_err(|source| Failure::File { doing: "cannot read", path: FILE.into(), source })?;
    let text = String::from_utf8_lossy(&text);
    let names = text.lines().filter_map(|line| line.split_ascii_whitespace().last());
    Ok(names.filter(|name| is_wanted(name)).map(str::to_owned).collect())
}

/// Names of the sockets at which verbs programs of this user listen.
pub fn names() -> Result<Vec<String>, Failure> {
    let start = format!("@millrace-verbs/{}/", geteuid().as_raw());
    let names = sockets(|name| name.starts_with(&start))?;
    let mut names: Vec<String> = names.into_iter().map(|name| name[1..].to_owned()).collect();
    names.sort_unstable();
    // Sockets of sessions have the name of the listener.
    names.dedup();
    Ok(names)
}

/// Sockets at which the engines of cards listen: `card.sock.rdma`.
pub fn engines() -> Result<Vec<String>, Failure> {
    let mut names = sockets(|name| name.starts_with('/') && name.ends_with(ENGINE))?;
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// What an engine of a card says of itself, and of each program; nothing if it is another user's, who might say anything.
pub fn ask_engine(path: &str, mut take: impl FnMut(u64, Value)) -> Result<(), CallError> {
    /// More programs than a card has.
    const MOST: u32 = 1024;
    let client = Client::connect(Path::new(path)).map_err(CallError::Gone)?;
    let other = getsockopt(&client.fd(), PeerCredentials).map_err(|_| CallError::Gone(Errno::ACCESS))?;
    if other.uid() != geteuid().as_raw() && other.uid() != 0 {
        return Ok(());
    }
    for number in 0..MOST {
        match client.show(number)? {
            Some(text) => {
                let told: Value = serde_json::from_slice(&text).unwrap_or_default();
                take(told["pid"].as_u64().unwrap_or_default(), told);
            }
            None => break,
        }
    }
    Ok(())
}

/// Processes whose engine is that of a card, with the card's socket.
pub fn in_cards() -> Result<Vec<(u64, String)>, Failure> {
    let mut found = Vec::new();
    for path in engines()? {
        // Of the card itself only counters are told.
        let _ = ask_engine(&path, |pid, told| {
            if told["qps"].is_array() {
                found.push((pid, path.clone()));
            }
        });
    }
    Ok(found)
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
