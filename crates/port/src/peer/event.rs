//! Which files of a peer may stand for its events.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// What Linux calls every eventfd. No path is called so: those begin with `/`.
const NAME: &str = "anon_inode:[eventfd]";

/// Gives back `file` if it is an eventfd. Anything else could make a worker wait that watches or signals it: a file of a
/// FUSE file system, or an `epoll` over one, has its owner answer.
///
/// # Errors
/// What it is instead, or that `/proc` does not say.
pub fn only_event(file: File) -> io::Result<File> {
    check_event(&file).map(|()| file)
}

/// Whether that is an eventfd, which is somebody else's to close: a file that is none may take long to be closed.
///
/// # Errors
/// What it is instead, or that `/proc` does not say.
pub fn check_event(file: impl AsFd) -> io::Result<()> {
    let is = std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))?;
    if is.as_os_str() == NAME {
        Ok(())
    } else {
        Err(io::Error::other(format!("{} instead of an eventfd", is.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, epoll, eventfd};
    use std::os::fd::OwnedFd;

    #[test]
    fn only_an_eventfd_is_an_event() {
        let name = |file: OwnedFd| only_event(file.into()).map(drop).map_err(|error| error.to_string());
        assert_eq!(name(eventfd(0, EventfdFlags::CLOEXEC).unwrap()), Ok(()));
        let epoll = name(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        assert_eq!(epoll, Err("anon_inode:[eventpoll] instead of an eventfd".to_owned()));
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert!(name(reader).is_err() && name(writer).is_err());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        assert!(name(File::create(path).unwrap().into()).is_err(), "a file of that name");
    }
}
