//! The folders in which ends leave links for each other: those that only this user can look into or write to.
//!
//! `/dev/shm` is where everybody can make a folder, under a name that everybody knows, so that somebody else can have been there
//! first. Then there is the folder that a session has, which nobody else can have made. Both ends see the same of both, whatever
//! is in their environment; only when neither can be used, `XDG_RUNTIME_DIR` says where there is another one.

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What others may do with a folder.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Of this user, best first, each made if it was not there. Asked anew each time: a session, and a folder, may come and go.
pub(crate) fn usable() -> Vec<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let session = PathBuf::from(format!("/run/user/{user}"));
    let named = crate::library().session.clone().filter(|path| path.is_absolute() && *path != session);
    let shared = is_sticky(Path::new("/dev/shm")).then(|| PathBuf::from(format!("/dev/shm/millrace-streams-{user}")));
    let own = [Some(session), named].into_iter().flatten().filter(|path| is_own(path, user));
    let all = shared.into_iter().chain(own.map(|path| path.join("millrace-streams")));
    let found: Vec<PathBuf> = all.filter(|path| is_made(path, user)).collect();
    sweep_once(&found, user);
    found
}

fn folder(path: &Path) -> Option<Stat> {
    // Not what a link leads to.
    rustix::fs::lstat(path).ok().filter(|found| FileType::from_raw_mode(found.st_mode).is_dir())
}

/// Whether it is a folder of this user's, and of nobody else's.
fn is_own(path: &Path, user: u32) -> bool {
    folder(path).is_some_and(|found| found.st_uid == user && found.st_mode & OTHERS == 0)
}

/// Whether nobody but its owner can rename or remove what is in there.
fn is_sticky(path: &Path) -> bool {
    folder(path).is_some_and(|found| found.st_mode & STICKY != 0 || found.st_mode & OTHERS_WRITE == 0)
}

fn is_made(path: &Path, user: u32) -> bool {
    is_own(path, user)
        || matches!(rustix::fs::mkdir(path, Mode::RWXU), Ok(()) | Err(Errno::EXIST)) && is_own(path, user)
}

/// Removes what processes have left that were killed. Once in a process, and for each user that it becomes.
fn sweep_once(folders: &[PathBuf], user: u32) {
    static SWEPT: AtomicU32 = AtomicU32::new(u32::MAX);
    if !folders.is_empty() && SWEPT.swap(user, Ordering::Relaxed) != user {
        folders.iter().for_each(|folder| sweep(folder));
    }
}

/// No more than so many.
fn sweep(folder: &Path) {
    const MOST: usize = 4096;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::open(folder, flags, Mode::empty()) else { return };
    let mut room = Vec::with_capacity(16 << 10);
    let mut entries = rustix::fs::RawDir::new(&fd, room.spare_capacity_mut());
    for _ in 0..MOST {
        let Some(Ok(entry)) = entries.next() else { break };
        if entry.file_name().to_bytes().starts_with(b".") {
            continue;
        }
        let path = folder.join(entry.file_name().to_string_lossy().as_ref());
        let is_dead =
            crate::meet::process_of(&path).is_none_or(|process| !Path::new(&format!("/proc/{process}")).exists());
        if is_dead {
            let _ = rustix::fs::unlink(&path);
        }
    }
    crate::sys::close(fd);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_what_is_ours_alone_is_used() {
        let base = std::env::temp_dir().join(format!("millrace-folder-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        let made = base.join("made");
        assert!(is_made(&made, user) && is_made(&made, user));
        mode(&made, 0o750);
        assert!(!is_made(&made, user), "others can look into it");
        mode(&made, 0o700);
        assert!(!is_made(&made, user + 1), "somebody else's");
        let (link, file) = (base.join("link"), base.join("file"));
        symlink(&made, &link).unwrap();
        std::fs::write(&file, "").unwrap();
        assert!(!is_made(&link, user) && !is_made(&file, user) && !is_made(&base.join("no/where"), user));
        mode(&base, 0o777);
        assert!(!is_sticky(&base));
        mode(&base, 0o1777);
        assert!(is_sticky(&base));
        std::fs::remove_dir_all(&base).unwrap();
    }
}
