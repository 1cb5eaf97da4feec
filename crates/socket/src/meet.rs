//! How the two ends of a connection find each other.
//!
//! The end that has connected makes memory and leaves a symbolic link in a folder of its user's (`folder`). The name is the
//! network and both addresses; the text says which process has the memory open under which number. The end that has accepted
//! looks there, opens the memory through `/proc`, and takes the offer. Only the user can make, read or follow such a link, and
//! the kernel opens files of a process only for who may trace it: whoever gets at a stream could have done so before. Nothing is
//! sent to an end that has not this library.

use crate::counters::Reason;
use crate::folder;
use crate::shared::{End, Shared, Token};
use crate::sys;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The two addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub here: SocketAddr,
    pub there: SocketAddr,
}

impl Addresses {
    /// Those of a socket; `None` while it is not connected.
    pub(crate) fn of(fd: RawFd) -> Option<Self> {
        let fd = sys::borrow(fd);
        let here = rustix::net::getsockname(fd).ok()?.try_into().ok()?;
        let there = rustix::net::getpeername(fd).ok()??.try_into().ok()?;
        Some(Self { here: plain(here), there: plain(there) })
    }

    /// Whether the other end is on this host, as far as addresses tell.
    pub(crate) fn are_near(&self) -> bool {
        self.here.ip() == self.there.ip() || self.there.ip().is_loopback()
    }

    fn name(&self, end: End, network: u64) -> String {
        let (client, server) = match end {
            End::Connecting => (self.here, self.there),
            End::Accepting => (self.there, self.here),
        };
        format!("{network:x}-{}-{client}-{server}", processes())
    }
}

impl std::fmt::Display for Addresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.here, self.there)
    }
}

/// An IPv4 address as such, however the socket calls it; without scope and flow.
fn plain(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Which processes this one can see: numbers of processes mean something only there.
fn processes() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let link = rustix::fs::readlink("/proc/self/ns/pid", Vec::new()).ok();
        let text = link.and_then(|link| link.into_string().ok()).unwrap_or_default();
        text.chars().filter(char::is_ascii_digit).collect()
    })
}

/// What a link says.
struct Link {
    process: u32,
    file: RawFd,
    token: Token,
}

fn read_link(path: &Path) -> Option<Link> {
    let text = rustix::fs::readlink(path, Vec::with_capacity(128)).ok()?.into_string().ok()?;
    let mut words = text.split(':');
    let (process, file) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let mut word = || u64::from_str_radix(words.next()?, 16).ok();
    Some(Link { process, file, token: [word()?, word()?] })
}

/// The process that has left a link.
pub(crate) fn process_of(path: &Path) -> Option<u32> {
    Some(read_link(path)?.process)
}

/// A link that was left, removed by the process that has left it.
pub(crate) struct Left {
    path: PathBuf,
    process: u32,
}

impl Drop for Left {
    fn drop(&mut self) {
        if self.process == sys::process() {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Offers memory to whoever has accepted this connection.
pub(crate) fn offer(fd: RawFd, addresses: &Addresses, size: usize) -> Result<(Shared, Left), Reason> {
    let network = sys::network(fd).ok_or(Reason::Kernel)?;
    let cookie = rustix::net::sockopt::socket_cookie(sys::borrow(fd)).map_err(|_| Reason::Kernel)?;
    let folders = folders()?;
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(|_| Reason::Kernel)?;
    let random = u128::from_ne_bytes(random);
    let token = [random as u64, (random >> 64) as u64];
    let shared = Shared::offer(size, token, cookie)?;
    let process = sys::process();
    let text = format!("{process}:{}:{:x}:{:x}", shared.file(), token[0], token[1]);
    let name = addresses.name(End::Connecting, network);
    let places = folders.into_iter().map(|folder| folder.join(&name));
    let path = places.into_iter().find(|path| leave(&text, path)).ok_or(Reason::Folder)?;
    Ok((shared, Left { path, process }))
}

/// Leaves a link. Whether it is there now.
fn leave(text: &str, path: &Path) -> bool {
    match rustix::fs::symlink(text, path) {
        // What is there under this name is of a connection that is no more.
        Err(Errno::EXIST) => rustix::fs::unlink(path).is_ok() && rustix::fs::symlink(text, path).is_ok(),
        done => done.is_ok(),
    }
}

/// The folders that this process may use.
fn folders() -> Result<Vec<PathBuf>, Reason> {
    Some(folder::usable()).filter(|found| !found.is_empty()).ok_or(Reason::Folder)
}

/// The memory that the end that has connected offers, if it does.
pub(crate) fn find(fd: RawFd, addresses: &Addresses) -> Result<Option<Shared>, Reason> {
    let network = sys::network(fd).ok_or(Reason::Kernel)?;
    let name = addresses.name(End::Accepting, network);
    let Some(link) = folders()?.into_iter().find_map(|folder| read_link(&folder.join(&name))) else { return Ok(None) };
    let file = format!("/proc/{}/fd/{}", link.process, link.file);
    // Nothing but memory may be opened to be looked at: a device, or a pipe, could do something at that.
    let kind = rustix::fs::readlink(&file, Vec::with_capacity(128)).ok();
    if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"/memfd:millrace-stream")) {
        return Ok(None);
    }
    let Ok(opened) = rustix::fs::open(&file, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return Ok(None) };
    // Root may open what anybody has.
    if rustix::fs::fstat(&opened).map(|found| found.st_uid) != Ok(rustix::process::geteuid().as_raw()) {
        sys::close(opened);
        return Ok(None);
    }
    let opened = sys::move_away(opened).map_err(|_| Reason::Files)?;
    Shared::open(opened, Some(link.token), End::Accepting).map(Some)
}

/// The memory of connections that this process has from the one that it was before, with the numbers of each. What belongs to
/// none is closed.
pub(crate) fn inherited() -> Vec<(Vec<RawFd>, Shared)> {
    let is_memory = |fd: RawFd| {
        let link = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::with_capacity(128));
        link.is_ok_and(|link| link.as_bytes().starts_with(b"/memfd:millrace-stream"))
    };
    let (memory, others): (Vec<RawFd>, Vec<RawFd>) = descriptors().into_iter().partition(|&fd| is_memory(fd));
    if memory.is_empty() {
        return Vec::new();
    }
    let cookies: Vec<(RawFd, u64)> = others
        .into_iter()
        .filter(|&fd| sys::is_tcp(fd))
        .filter_map(|fd| Some((fd, rustix::net::sockopt::socket_cookie(sys::borrow(fd)).ok()?)))
        .collect();
    memory.into_iter().filter_map(|number| keep(number, &cookies)).collect()
}

/// The connection of a memory, if one of these sockets is an end of it.
fn keep(number: RawFd, sockets: &[(RawFd, u64)]) -> Option<(Vec<RawFd>, Shared)> {
    let shared = Shared::open(sys::own(number), None, End::Connecting).ok()?;
    let (cookie, end) = sockets.iter().find_map(|&(_, cookie)| Some((cookie, shared.end_of(cookie)?)))?;
    let fds = sockets.iter().filter(|socket| socket.1 == cookie).map(|socket| socket.0).collect();
    Some((fds, shared.into_end(end)?))
}

/// All numbers of files that this process has open.
pub(crate) fn descriptors() -> Vec<RawFd> {
    let mut numbers = Vec::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::open("/proc/self/fd", flags, Mode::empty()) else { return numbers };
    let mut room = Vec::with_capacity(16 << 10);
    let mut entries = rustix::fs::RawDir::new(&fd, room.spare_capacity_mut());
    while let Some(Ok(entry)) = entries.next() {
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        numbers.extend(number.filter(|&number: &RawFd| number != fd.as_raw_fd()));
    }
    sys::close(fd);
    numbers
}
