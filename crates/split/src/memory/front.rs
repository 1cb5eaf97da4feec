//! The guest's side.

use super::{HELLO, Pages};
use crate::transport::{Counts, Granted, Grants};
use crate::{Error, PAGE};
use millrace_dma::{Region, send_when_taken};
use millrace_served::{bell, record, wire::Words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the backend may take to let somebody in.
const PATIENCE: Duration = Duration::from_secs(5);

/// A program that grants pages of a file.
pub struct MemoryGrants {
    socket: OwnedFd,
    pages: Pages,
    /// Runs of those that were granted, and have not been given back: the first, and how many.
    granted: Vec<(u32, u32)>,
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
    pages: &Pages,
    prepare: impl FnOnce(&millrace_dma::Window) -> Result<T, Error>,
) -> Result<(MemoryGrants, Granted, T), Error> {
    let failed = |what: &str| Error::system(format!("{what} {}", path.display()));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed("a socket for"))?;
    let address = SocketAddrUnix::new(path).map_err(failed("the name"))?;
    rustix::net::connect(&socket, &address).map_err(failed("no backend listens at"))?;
    let mut counts = Counts { system_calls: 5, ..Counts::default() };
    let first = pages.take(1).ok_or_else(|| failed("a page for")(Errno::NOMEM))?;
    let control = window_of(pages.file(), first, 1)?;
    let prepared = prepare(&control.window)?;
    let greeting = Words::answer(&[HELLO, first.into()]);
    send_when_taken(&socket, PATIENCE, || record::send(&socket, &greeting, &[pages.file().as_fd()]))
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
    let (pages, granted) = (pages.clone(), vec![(first, 1)]);
    Ok((MemoryGrants { socket, pages, granted, to_backend, from_backend, counts }, control, prepared))
}

fn timespec(left: Duration) -> Timespec {
    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
}

fn window_of(file: &OwnedFd, first: u32, pages: u32) -> Result<Granted, Error> {
    let fd = file.try_clone().map_err(Error::io("one more descriptor"))?;
    let region = Region::map_part(fd, u64::from(first) * PAGE as u64, pages as usize * PAGE)?;
    let references = (first..first + pages).map(u64::from).collect();
    Ok(Granted { window: region.window().clone(), references, place: first.into() })
}

impl Drop for MemoryGrants {
    fn drop(&mut self) {
        // The file may stay.
        self.granted.iter().for_each(|run| self.pages.free(*run));
    }
}

impl Grants for MemoryGrants {
    fn grant(&mut self, pages: u32) -> Result<Granted, Error> {
        let first = self.pages.take(pages).ok_or_else(|| Error::system("pages of the file")(Errno::NOMEM))?;
        let granted = window_of(self.pages.file(), first, pages)?;
        self.granted.push((first, pages));
        self.counts.system_calls += 1;
        self.counts.pages += u64::from(pages);
        Ok(granted)
    }

    fn end(&mut self, granted: Granted) {
        let run = (granted.place as u32, granted.references.len() as u32);
        drop(granted);
        self.granted.retain(|one| *one != run);
        self.pages.free(run);
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

    fn fds(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.from_backend.as_fd(), self.socket.as_fd()])
    }
}
