//! Messages between two cards: records of JSON, with descriptors. Every wait has an end but that for the answer to `taken`
//! ([`Predecessor::take`](super::taker::Predecessor::take)), and ends also when this card does.

use super::state::TakenFds;
use millrace_callers::Closer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes of a record; what is longer goes as a file.
const MOST_BYTES: usize = 32 << 10;
/// Most descriptors of a record: Linux takes 253.
const MOST_FDS: usize = 200;
/// Most descriptors of a handover: interrupts and memory of all machines.
const MOST_ALL_FDS: usize = 1 << 16;
/// Most bytes of the state.
const MOST_STATE: u64 = 256 << 20;

/// What the next card says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Asked {
    /// Who it is: checksums of the device trees of its functions, and where it would listen.
    Hello {
        version: u64,
        trees: Vec<u32>,
        listen: Option<String>,
    },
    Prepare,
    Taken,
    /// It does not take over, for this reason.
    Refused(String),
}

/// What the card that runs says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    /// With the sockets: for the next card, of each function, and of the card itself if `card`.
    Welcome {
        version: u64,
        card: bool,
    },
    Refused(String),
    /// With a file of so many bytes; so many descriptors follow, in records of [`Said::More`].
    State {
        bytes: u64,
        fds: usize,
    },
    More,
    Yours,
    /// A keeper to its card: sockets by which machines come, of each function, and how many machines wait for it.
    Links {
        machines: usize,
    },
    /// A card to its keeper: machines are welcome.
    Ready,
}

/// A connection to another card.
pub(crate) struct Talk {
    pub socket: OwnedFd,
    /// Readable when this card ends.
    pub stop: Option<Arc<OwnedFd>>,
    /// Closes what comes and is not wanted: that takes as long as whoever made it likes, and machines may be waiting.
    pub closer: Arc<Mutex<Closer>>,
}

impl Talk {
    /// Over a socket of records, with somebody who is as we are.
    pub fn over(socket: OwnedFd) -> Self {
        Self { socket, stop: None, closer: Arc::default() }
    }

    /// Waits until the socket is ready.
    fn wait(&self, flags: PollFlags, until: Instant) -> Result<(), String> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let is_late = left.is_zero();
            // What has come already is taken, however late it is.
            let left = if is_late { left } else { left + Duration::from_millis(1) };
            let most = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let stop = self.stop.as_ref().map_or(self.socket.as_fd(), |stop| stop.as_fd());
            let stop_flags = if self.stop.is_some() { PollFlags::IN } else { PollFlags::empty() };
            let mut fds =
                [PollFd::from_borrowed_fd(self.socket.as_fd(), flags), PollFd::from_borrowed_fd(stop, stop_flags)];
            match poll(&mut fds, Some(&most)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.to_string()),
            }
            if self.stop.is_some() && !fds[1].revents().is_empty() {
                return Err("this card ends".to_owned());
            }
            if !fds[0].revents().is_empty() {
                return Ok(());
            }
            if is_late {
                return Err(LATE.to_owned());
            }
        }
    }

    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>], until: Instant) -> Result<(), String> {
        let bytes = serde_json::to_vec(message).map_err(|error| error.to_string())?;
        if fds.len() > MOST_FDS {
            // Only the sockets of a welcome are not divided: two of them are no function's.
            let most = MOST_FDS - 2;
            return Err(format!("at most {most} functions can be taken over"));
        }
        let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MOST_FDS))];
        loop {
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err("too many descriptors for a record".to_owned());
            }
            let sent = sendmsg(
                &self.socket,
                &[IoSlice::new(&bytes)],
                &mut ancillary,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
            match sent {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN | Errno::INTR) => self.wait(PollFlags::OUT, until)?,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(GONE.to_owned()),
                Err(errno) => return Err(errno.to_string()),
            }
        }
    }

    pub fn receive<T: DeserializeOwned>(&self, until: Instant) -> Result<(T, Vec<OwnedFd>), String> {
        let mut bytes = vec![0; MOST_BYTES];
        loop {
            self.wait(PollFlags::IN, until)?;
            let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MOST_FDS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
                Ok(received) => received,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(Errno::CONNRESET) => return Err(GONE.to_owned()),
                Err(errno) => return Err(errno.to_string()),
            };
            let rights = ancillary.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(rights) => Some(rights),
                _ => None,
            });
            let fds: Vec<OwnedFd> = rights.flatten().collect();
            let message = if received.bytes == 0 {
                Err(GONE.to_owned())
            } else if received.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) {
                Err("a record that is too long, or too few descriptors are left here (`ulimit -n`)".to_owned())
            } else {
                serde_json::from_slice(&bytes[..received.bytes])
                    .map_err(|error| format!("a message that is none: {error}"))
            };
            return match message {
                Ok(message) => Ok((message, fds)),
                Err(why) => {
                    self.close(fds);
                    Err(why)
                }
            };
        }
    }

    /// Receives a message that nothing comes with: what does is closed.
    pub fn hear<T: DeserializeOwned>(&self, until: Instant) -> Result<T, String> {
        let (message, fds) = self.receive(until)?;
        self.close(fds);
        Ok(message)
    }

    fn close(&self, fds: Vec<OwnedFd>) {
        self.closer.lock().unwrap_or_else(PoisonError::into_inner).close_all(fds);
    }

    /// Sends the state, with its descriptors.
    pub fn send_state(&self, state: &[u8], fds: &[BorrowedFd<'_>], until: Instant) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let file = memfd_create("millrace-handover", MemfdFlags::CLOEXEC).map_err(|errno| errno.to_string())?;
        let mut file = File::from(file);
        file.write_all(state).map_err(text)?;
        self.send(&Said::State { bytes: state.len() as u64, fds: fds.len() }, &[file.as_fd()], until)?;
        fds.chunks(MOST_FDS).try_for_each(|part| self.send(&Said::More, part, until))
    }

    /// Receives the same.
    pub fn receive_state(&self, until: Instant) -> Result<(Vec<u8>, TakenFds), String> {
        let (said, files) = self.receive(until)?;
        let (bytes, count) = match said {
            Said::State { bytes, fds } if bytes <= MOST_STATE && fds <= MOST_ALL_FDS => (bytes, fds),
            Said::Refused(why) => return Err(why),
            _ => return Err("an answer that does not belong to the question".to_owned()),
        };
        let mut state = Vec::new();
        let mut file = File::from(files.into_iter().next().ok_or("no file with the state")?);
        std::io::Seek::rewind(&mut file).map_err(|error| error.to_string())?;
        file.take(bytes).read_to_end(&mut state).map_err(|error| error.to_string())?;
        let mut fds = TakenFds::default();
        while fds.0.len() < count {
            let (Said::More, more) = self.receive(until)? else {
                return Err("descriptors are missing".to_owned());
            };
            if more.is_empty() {
                return Err("descriptors are missing".to_owned());
            }
            fds.0.extend(more.into_iter().map(Some));
        }
        Ok((state, fds))
    }
}

pub(super) const LATE: &str = "the other card does not answer in time";
const GONE: &str = "the other card has hung up, and may have ended";

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn talks() -> [Talk; 2] {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        [one, other].map(|socket| Talk { socket, stop: None, closer: Arc::default() })
    }

    #[test]
    fn what_has_come_is_taken_however_late_it_is() {
        let [one, other] = talks();
        let past = Instant::now();
        assert_eq!(other.hear::<Said>(past).unwrap_err(), LATE);
        one.send(&Said::Yours, &[], past).unwrap();
        assert!(matches!(other.hear(past), Ok(Said::Yours)));
        drop(one);
        assert_eq!(other.hear::<Said>(past).unwrap_err(), GONE);
    }

    /// Whoever closes them is not this thread: they are counted until that has happened.
    #[test]
    fn what_comes_with_a_message_and_is_not_wanted_is_closed_elsewhere() {
        let [one, other] = talks();
        let until = Instant::now() + Duration::from_secs(30);
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (hold, held) = std::sync::mpsc::channel::<()>();
        other.closer.lock().unwrap().run(0, move || held.recv().unwrap_or_default());
        one.send(&Asked::Taken, &[event.as_fd()], until).unwrap();
        assert!(matches!(other.hear(until), Ok(Asked::Taken)));
        // No message that is one.
        one.send(&Said::Yours, &[event.as_fd(), event.as_fd()], until).unwrap();
        assert!(other.receive::<Asked>(until).is_err());
        assert_eq!(other.closer.lock().unwrap().count(), 3);
        drop(hold);
        while other.closer.lock().unwrap().count() > 0 {
            assert!(Instant::now() < until, "they are not closed");
            std::thread::yield_now();
        }
    }
}
