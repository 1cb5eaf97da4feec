//! A path that somebody takes: nobody else does meanwhile.

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long somebody else may take. Whoever may make files in the folder can keep a path from others as long as he likes, with this and without.
const PATIENCE: Duration = Duration::from_secs(5);

/// A file beside the path, locked for as long as this is there, and removed with it.
pub(crate) struct Taking {
    name: OsString,
    _file: OwnedFd,
}

impl Taking {
    /// Waits until nobody else takes the path.
    ///
    /// # Errors
    /// `EADDRINUSE`: somebody does for too long. Those of `open`: no file can be made there, and no socket could.
    pub fn begin(path: &Path) -> Result<Self, Errno> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let until = Instant::now() + PATIENCE;
        loop {
            let file = openat(CWD, &name, flags, Mode::RUSR | Mode::WUSR)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&file, &name) => return Ok(Self { name, _file: file }),
                // Who had it has removed it: the next one has another.
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::INTR) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(error),
            }
            if Instant::now() >= until {
                return Err(Errno::ADDRINUSE);
            }
        }
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        // While it is locked: who waits for it looks whether it is still there.
        let _ = std::fs::remove_file(&self.name);
    }
}

fn is_at(file: &OwnedFd, name: &OsStr) -> bool {
    let (Ok(held), Ok(found)) = (fstat(file), std::fs::symlink_metadata(name)) else { return false };
    (held.st_dev, held.st_ino) == (found.dev(), found.ino())
}
