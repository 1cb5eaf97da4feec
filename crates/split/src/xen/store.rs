//! XenStore by `/dev/xen/xenbus`: requests and answers as they stand in `xen/io/xs_wire.h`, four words of 32 bits and a payload.

use super::device;
use crate::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::{Errno, read, write};
use std::collections::VecDeque;

/// Bytes of a payload, by the protocol.
const LONGEST: usize = 4096;
/// Events that are kept while an answer is waited for.
const MOST_EVENTS: usize = 1024;

pub(super) mod kind {
    pub const DIRECTORY: u32 = 1;
    pub const READ: u32 = 2;
    pub const WATCH: u32 = 4;
    pub const WRITE: u32 = 11;
    pub const REMOVE: u32 = 13;
    pub const EVENT: u32 = 15;
    pub const ERROR: u32 = 16;
    pub const IS_INTRODUCED: u32 = 17;
}

/// A connection with XenStore.
pub struct Store {
    file: OwnedFd,
    /// Paths of entries that have changed, each once.
    events: VecDeque<String>,
    /// Others have changed, for which there was no room.
    has_lost: bool,
}

/// Bytes that end with a zero, or are parted by zeros.
fn parts(payload: &[u8]) -> impl Iterator<Item = String> {
    payload
        .split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
        .map(|part| String::from_utf8_lossy(part).into_owned())
}

fn errno_of(name: &[u8]) -> Errno {
    match name.split(|byte| *byte == 0).next().unwrap_or_default() {
        b"ENOENT" => Errno::NOENT,
        b"EACCES" => Errno::ACCESS,
        b"EEXIST" => Errno::EXIST,
        b"ENOSPC" => Errno::NOSPC,
        b"E2BIG" => Errno::TOOBIG,
        b"EINVAL" => Errno::INVAL,
        _ => Errno::IO,
    }
}

impl Store {
    /// # Errors
    /// This is no domain of Xen, or XenStore does not run yet.
    pub fn open() -> Result<Self, Error> {
        Ok(Self::over(device("xenbus", OFlags::empty())?))
    }

    /// Over what speaks the protocol.
    pub(super) fn over(file: OwnedFd) -> Self {
        Self { file, events: VecDeque::new(), has_lost: false }
    }

    /// Readable when an entry has changed that is watched.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn ask(&mut self, kind: u32, payload: &[&[u8]]) -> Result<Vec<u8>, Errno> {
        let len: usize = payload.iter().map(|part| part.len()).sum();
        if len > LONGEST {
            return Err(Errno::TOOBIG);
        }
        let mut message: Vec<u8> = [kind, 0, 0, len as u32].iter().flat_map(|word| word.to_ne_bytes()).collect();
        payload.iter().for_each(|part| message.extend(*part));
        let mut rest = &message[..];
        while !rest.is_empty() {
            let written = write(&self.file, rest)?;
            rest = &rest[written..];
        }
        loop {
            match self.message()? {
                (kind::EVENT, payload) => self.note(&payload),
                (kind::ERROR, payload) => return Err(errno_of(&payload)),
                (_, payload) => return Ok(payload),
            }
        }
    }

    fn note(&mut self, payload: &[u8]) {
        let Some(path) = parts(payload).next().filter(|path| !self.events.contains(path)) else { return };
        if self.events.len() < MOST_EVENTS {
            self.events.push_back(path);
        } else {
            self.has_lost = true;
        }
    }

    /// Waits for a message: the store answers everybody at once.
    fn message(&mut self) -> Result<(u32, Vec<u8>), Errno> {
        let mut head = [0; 16];
        self.fill(&mut head)?;
        let word = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let len = Some(word(12) as usize).filter(|len| *len <= LONGEST).ok_or(Errno::PROTO)?;
        let mut payload = vec![0; len];
        self.fill(&mut payload)?;
        Ok((word(0), payload))
    }

    fn fill(&self, to: &mut [u8]) -> Result<(), Errno> {
        let mut at = 0;
        while at < to.len() {
            match read(&self.file, &mut to[at..])? {
                0 => return Err(Errno::PIPE),
                count => at += count,
            }
        }
        Ok(())
    }

    /// What stands there.
    pub fn read(&mut self, path: &str) -> Result<String, Errno> {
        let payload = self.ask(kind::READ, &[path.as_bytes(), b"\0"])?;
        Ok(String::from_utf8_lossy(&payload).into_owned())
    }

    /// Writes, and makes the entry if there is none.
    pub fn write(&mut self, path: &str, value: &str) -> Result<(), Errno> {
        self.ask(kind::WRITE, &[path.as_bytes(), b"\0", value.as_bytes()]).map(drop)
    }

    /// Removes it, with what is below.
    pub fn remove(&mut self, path: &str) -> Result<(), Errno> {
        self.ask(kind::REMOVE, &[path.as_bytes(), b"\0"]).map(drop)
    }

    /// Names of what is below.
    pub fn list(&mut self, path: &str) -> Result<Vec<String>, Errno> {
        let payload = self.ask(kind::DIRECTORY, &[path.as_bytes(), b"\0"])?;
        Ok(parts(&payload).collect())
    }

    /// From now on, changes of it and of what is below are told; one of itself at once.
    pub fn watch(&mut self, path: &str) -> Result<(), Errno> {
        self.ask(kind::WATCH, &[path.as_bytes(), b"\0millrace\0"]).map(drop)
    }

    /// Whether there is such a domain.
    pub fn has_domain(&mut self, domain: u16) -> bool {
        let number = domain.to_string();
        self.ask(kind::IS_INTRODUCED, &[number.as_bytes(), b"\0"]).is_ok_and(|answer| answer.starts_with(b"T"))
    }

    /// Whether something has changed of which [`Store::take_event`] does not tell, since this was asked last.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    /// What has changed, without waiting.
    pub fn take_event(&mut self) -> Option<String> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while self.events.is_empty() && matches!(poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&now)), Ok(1))
        {
            match self.message() {
                Ok((kind::EVENT, payload)) => self.note(&payload),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_parted_by_zeros() {
        assert_eq!(parts(b"one\0two\0").collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(parts(b"").count(), 0);
        assert_eq!((errno_of(b"ENOENT\0"), errno_of(b"EQUOTA\0"), errno_of(b"")), (Errno::NOENT, Errno::IO, Errno::IO));
    }
}
