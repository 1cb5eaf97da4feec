//! The socket of a process: in the abstract namespace, so that nothing is left behind, with the user, the card and the MAC address
//! in its name. Anybody may take such a name; both ends look whose process is at the other one.

use super::LocalError;
use crate::boundary::Kept;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use rustix::process::{Pid, geteuid};
use std::os::unix::fs::MetadataExt;

/// Greetings that wait.
const BACKLOG: i32 = 32;

/// Which card, for all processes that use it: that of its socket. None: it is within this process.
pub fn card(device: &str) -> Option<String> {
    let path = device.strip_prefix("unix:")?;
    let path = path.split(',').next().unwrap_or(path);
    let found = std::fs::metadata(path).ok()?;
    Some(format!("{:x}.{:x}", found.dev(), found.ino()))
}

/// Without a card it is that of a process that nobody meets.
fn address(card: Option<&str>, mac: [u8; 6]) -> Result<SocketAddrUnix, Errno> {
    let card = card.map_or_else(|| format!("alone.{}", std::process::id()), str::to_owned);
    let mac = mac.map(|byte| format!("{byte:02x}")).concat();
    SocketAddrUnix::new_abstract_name(format!("millrace-verbs/{}/{card}/{mac}", geteuid().as_raw()).as_bytes())
}

fn socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Listens as this process.
pub fn open(card: Option<&str>, mac: [u8; 6]) -> Result<Kept, LocalError> {
    let socket = Kept::new(socket()?).ok_or(LocalError::Full)?;
    bind(&socket, &address(card, mac)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Calls the process with that address. `Ok(None)`: nobody has it here.
pub fn call(card: &str, mac: [u8; 6]) -> Result<Option<Kept>, LocalError> {
    let socket = Kept::new(socket()?).ok_or(LocalError::Full)?;
    match connect(&socket, &address(Some(card), mac)?) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The number of the process at the other end, if it is of the same user. `None`: it has none in this container.
pub fn same_user(socket: impl AsFd) -> Result<Option<Pid>, LocalError> {
    let credentials = getsockopt(&socket, PeerCredentials).map_err(|error| Errno::from_raw_os_error(error as i32))?;
    if credentials.uid() != geteuid().as_raw() {
        return Err(LocalError::Stranger);
    }
    // A process of another container has the number 0, which is not one.
    Ok(Pid::from_raw(credentials.pid().max(0)))
}
