//! Files in memory that another end has given, so that messages are read where they are: what of them is mapped here.

use millrace_dma::{Region, Window};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files of one other end, at most; they are numbered from 1 on.
pub const MOST_FILES: usize = 4;
/// The number of the one with its pool ([`crate::block`]), which is no longer than a part.
pub const POOL: u8 = 4;
/// What is mapped at a time begins at a multiple of that, and has so many bytes.
pub const PART: u64 = 16 << 20;
/// A message of the same user that is longer is not held, but copied: it would be mapped for itself.
const MOST_SEEN: usize = 1 << 30;
/// Parts of one other end that are mapped, at most.
const MOST_PARTS: usize = 64;

/// A file, and how long it was when it was given: it may have grown since.
struct File {
    fd: OwnedFd,
    len: u64,
}

/// A part of a file that is mapped: the number of the file, where the part begins, and the mapping.
type Part = (u64, u64, Region);

/// Files that another end has given.
pub struct Files {
    /// Whose other end it has; it shuts it before it uses memory of a message that has not ended for something else.
    link: Arc<OwnedFd>,
    /// It may give others than its pool: it is of the same user, and may have this end wait.
    is_own: bool,
    given: Mutex<[Option<File>; MOST_FILES]>,
    /// Those used last are at the end. Never held while memory is read, which may take as long as the other end likes.
    parts: Mutex<VecDeque<Part>>,
}

impl Files {
    /// None yet, of whoever has the other end of `link`; of another user there is a pool at most.
    pub fn new(link: Arc<OwnedFd>, is_own: bool) -> Self {
        Self { link, is_own, given: Mutex::default(), parts: Mutex::default() }
    }

    fn given(&self) -> MutexGuard<'_, [Option<File>; MOST_FILES]> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    ///
    /// # Errors
    /// It is no file in memory that is sealed against shrinking, there is no such number, it was given already, or it may not be given: the file
    /// comes back.
    pub fn give(&self, number: u8, file: OwnedFd) -> Result<(), OwnedFd> {
        // Nothing else has seals; and nothing else takes long to close.
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(file);
        }
        let Ok(len) = fstat(&file).map(|stat| stat.st_size as u64) else { return Err(file) };
        let may = if number == POOL { len <= PART } else { self.is_own };
        if !may {
            return Err(file);
        }
        let mut given = self.given();
        match at(number.into()) {
            Some(at) if given[at].is_none() => given[at] = Some(File { fd: file, len }),
            _ => return Err(file),
        }
        Ok(())
    }

    /// Whether a file has been given.
    pub fn has(&self, number: u64) -> bool {
        at(number).is_some_and(|at| self.given()[at].is_some())
    }

    /// Reads bytes of a file, from `offset` on. `around`: past the caches. Whether all of them are there; what is no part of the file any more
    /// is zeros.
    pub fn read(&self, number: u64, offset: u64, to: &mut [u8], around: bool) -> bool {
        let mut done = 0;
        while done < to.len() {
            let Some(at) = offset.checked_add(done as u64) else { return false };
            let within = (at % PART) as usize;
            let len = (to.len() - done).min(PART as usize - within);
            let Some(window) = self.part(number, at - at % PART) else { return false };
            let Some(span) = window.span(within, len) else { return false };
            let to = &mut to[done..done + len];
            done += if around { span.read_around_into(to) } else { span.read_into(to) };
        }
        true
    }

    /// Bytes of a file where they are. `None`: they are not there.
    pub fn window(&self, number: u64, offset: u64, len: u64) -> Option<Window> {
        let (within, len) = (offset % PART, usize::try_from(len).ok()?);
        if within + len as u64 <= PART {
            return self.part(number, offset - within)?.part(within as usize, len).ok();
        }
        if number == u64::from(POOL) || len > MOST_SEEN {
            return None;
        }
        let page = rustix::param::page_size() as u64;
        let first = offset & !(page - 1);
        let whole = offset.checked_add(len as u64)?.checked_next_multiple_of(page)? - first;
        let (file, _) = self.file(number)?;
        let region = Region::map_part(file, first, usize::try_from(whole).ok()?).ok()?;
        region.part((offset - first) as usize, len).ok()
    }

    /// The part of a file that begins there.
    fn part(&self, number: u64, first: u64) -> Option<Window> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let found = parts.iter().rposition(|part| (part.0, part.1) == (number, first));
        let part = match found.and_then(|at| parts.remove(at)) {
            Some(part) => part,
            None => {
                let (file, has) = self.file(number)?;
                if parts.len() >= MOST_PARTS {
                    parts.pop_front();
                }
                let len = has.checked_sub(first)?.min(PART);
                (number, first, Region::map_part(file, first, usize::try_from(len).ok()?).ok()?)
            }
        };
        parts.push_back(part);
        parts.back().map(|part| part.2.window().clone())
    }

    fn file(&self, number: u64) -> Option<(OwnedFd, u64)> {
        let given = self.given();
        let file = given[at(number)?].as_ref()?;
        Some((file.fd.try_clone().ok()?, file.len))
    }

    /// Whether whoever has given them still is at the other end.
    pub fn is_there(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::from_borrowed_fd(self.link.as_fd(), PollFlags::RDHUP)], Some(&now)), Ok(0))
    }
}

/// Where a file is in the table. `None`: there is no such number.
fn at(number: u64) -> Option<usize> {
    usize::try_from(number).ok()?.checked_sub(1).filter(|at| *at < MOST_FILES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_dma::Pages;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn files() -> (Files, OwnedFd) {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Files::new(Arc::new(one), true), other)
    }

    #[test]
    fn bytes_are_read_across_parts_and_nothing_behind_the_end() {
        let (files, other) = files();
        let region = Region::allocate(2 * PART as usize, Pages::Ordinary).unwrap();
        let pattern: Vec<u8> = (0..5000_u32).map(|at| (at * 7) as u8).collect();
        let at = PART - 1000;
        region.window().span_mut(at as usize, pattern.len()).unwrap().write_from(&pattern);
        files.give(2, region.fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(
            [files.has(0), files.has(1), files.has(2), files.has(5), files.has(u64::MAX)],
            [false, false, true, false, false]
        );
        for around in [false, true] {
            let mut to = vec![0; pattern.len()];
            assert!(files.read(2, at, &mut to, around));
            assert_eq!(to, pattern);
        }
        assert_eq!(files.parts.lock().unwrap().len(), 2);
        for (number, offset) in [(1, 0), (0, 0), (9, 0), (2, 2 * PART - 1), (2, u64::MAX - 1)] {
            assert!(!files.read(number, offset, &mut [0; 2], false), "{number} {offset}");
        }
        assert!(files.is_there());
        drop(other);
        assert!(!files.is_there());
    }

    #[test]
    fn a_number_is_given_once_and_parts_are_bounded() {
        let (files, other) = files();
        let region = Region::allocate((MOST_PARTS + 3) * PART as usize, Pages::Ordinary).unwrap();
        let file = || region.fd().unwrap().try_clone_to_owned().unwrap();
        files.give(1, file()).unwrap();
        assert!(files.give(1, file()).is_err() && files.give(0, file()).is_err() && files.give(5, file()).is_err());
        for at in 0..MOST_PARTS as u64 + 3 {
            assert!(files.read(1, at * PART, &mut [0; 8], false));
        }
        assert_eq!(files.parts.lock().unwrap().len(), MOST_PARTS);
        // A pool that grows later has only the bytes that it had.
        let pool =
            rustix::fs::memfd_create("p", rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING)
                .unwrap();
        rustix::fs::ftruncate(&pool, 8192).unwrap();
        rustix::fs::fcntl_add_seals(&pool, SealFlags::SHRINK).unwrap();
        files.give(POOL, pool.try_clone().unwrap()).unwrap();
        rustix::fs::ftruncate(&pool, 1 << 44).unwrap();
        let pool = u64::from(POOL);
        assert!(files.window(pool, 0, 8192).is_some() && files.window(pool, 0, 8193).is_none());
        assert!(files.window(pool, PART, 1).is_none() && files.window(pool, 0, 2 * PART).is_none());
        // A file that can shrink is none.
        for no_file in [rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap(), other] {
            assert!(files.give(2, no_file).is_err() && !files.has(2));
        }
    }
}
