//! The guest's side.

use super::{FILE, HELLO};
use crate::transport::{Counts, Granted, Grants};
use crate::{Error, PAGE};
use millrace_dma::{Region, send_when_taken};
use millrace_served::{bell, record, wire::Words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the backend may take to let somebody in.
const PATIENCE: Duration = Duration::from_secs(5);

/// A program that grants pages of a file of its own.
pub struct MemoryGrants {
    socket: OwnedFd,
    file: OwnedFd,
    /// The first page that was never granted.
    next: u32,
    to_backend: OwnedFd,
    from_backend: OwnedFd,
    counts: Counts,
}

/// Calls the backend at that socket: the transport, and the control page, over which a frontend is made.
///
/// `prepare` is called with the control page before anybody else has it.
///
/// # Errors
/// [`Error`].
pub fn connect<T>(
    path: &Path,
    prepare: impl FnOnce(&millrace_dma::Window) -> Result<T, Error>,
) -> Result<(MemoryGrants, Granted, T), Error> {
    let failed = |what: &str| Error::system(format!("{what} {}", path.display()));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed("a socket for"))?;
    let address = SocketAddrUnix::new(path).map_err(failed("the name"))?;
    rustix::net::connect(&socket, &address).map_err(failed("no backend listens at"))?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("millrace-split", flags).map_err(failed("memory for"))?;
    ftruncate(&file, FILE).map_err(failed("memory for"))?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).map_err(failed("memory for"))?;
    let mut counts = Counts { system_calls: 5, ..Counts::default() };
    let control = window_of(&file, 0, 1)?;
    let prepared = prepare(&control.window)?;
    send_when_taken(&socket, PATIENCE, || record::send(&socket, &Words::answer(&[HELLO]), &[file.as_fd()]))
        .map_err(failed("cannot call"))?;
    let until = Instant::now() + PATIENCE;
    let (to_backend, from_backend) = loop {
        match record::receive(&socket) {
            Ok(None) => {}
            Ok(Some((_, fds))) => match <[OwnedFd; 2]>::try_from(fds) {
                Ok([to, from]) => break (to, from),
                Err(_) => return Err(Error::Version),
            },
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Gone),
            Err(error) => return Err(failed("cannot call")(error)),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Silent);
        }
        let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timespec(left)));
        counts.system_calls += 2;
    };
    counts.pages = 1;
    Ok((MemoryGrants { socket, file, next: 1, to_backend, from_backend, counts }, control, prepared))
}

fn timespec(left: Duration) -> Timespec {
    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
}

fn window_of(file: &OwnedFd, first: u32, pages: u32) -> Result<Granted, Error> {
    let fd = file.try_clone().map_err(Error::io("one more descriptor"))?;
    let region = Region::map_part(fd, u64::from(first) * PAGE as u64, pages as usize * PAGE)?;
    let references = (first..first + pages).collect();
    Ok(Granted { window: region.window().clone(), references, place: first.into() })
}

impl Grants for MemoryGrants {
    fn grant(&mut self, pages: u32) -> Result<Granted, Error> {
        // Numbers are not used again: what is granted was nobody's before.
        let next = self.next.checked_add(pages).filter(|next| u64::from(*next) <= FILE / PAGE as u64);
        let next = next.ok_or_else(|| Error::system("pages of the file")(Errno::NOMEM))?;
        let granted = window_of(&self.file, self.next, pages)?;
        self.next = next;
        self.counts.system_calls += 1;
        self.counts.pages += u64::from(pages);
        Ok(granted)
    }

    fn end(&mut self, granted: Granted) {
        let (at, len) = (granted.place * PAGE as u64, (granted.references.len() * PAGE) as u64);
        drop(granted);
        // If not, they are memory of this process until it ends.
        let _ = fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len);
        self.counts.system_calls += 2;
    }

    fn ring(&mut self) {
        bell::ring_card(&self.to_backend);
        self.counts.system_calls += 1;
        self.counts.rung += 1;
    }

    fn wait(&mut self, most: Duration) -> Result<(), Error> {
        let mut fds = [
            PollFd::new(&self.from_backend, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::IN | PollFlags::RDHUP),
        ];
        let ready = poll(&mut fds, Some(&timespec(most)));
        let [bell, socket] = fds.map(|fd| fd.revents());
        self.counts.system_calls += 1;
        if ready.is_ok() && bell.contains(PollFlags::IN) {
            bell::heard(&self.from_backend);
            // One that it takes, and one that finds no more.
            self.counts.system_calls += 2;
            self.counts.heard += 1;
        }
        // Nothing comes by the socket but its end.
        if ready.is_ok() && !socket.is_empty() { Err(Error::Gone) } else { Ok(()) }
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}
