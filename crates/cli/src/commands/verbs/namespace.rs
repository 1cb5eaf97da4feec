//! A `/dev` of its own for a program, with a folder `/dev/infiniband`.
//!
//! UCX takes a device only if `/dev/infiniband/NAME` is a character device that it may read and write, and never opens it. The
//! library calls its device `../null` there, so that the folder has to exist and nothing has to be in it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

const DEV: &str = "/dev";

/// What UCX looks at.
const NODE: &str = "/dev/infiniband/../null";

/// What could not be done.
#[derive(Debug)]
pub struct NamespaceError {
    pub doing: String,
    pub source: Errno,
}

fn failed(doing: impl Into<String>) -> impl FnOnce(Errno) -> NamespaceError {
    move |source| NamespaceError { doing: doing.into(), source }
}

fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> NamespaceError {
    move |error| failed(doing)(Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32)))
}

/// Whether the folder is there, so that no namespace is needed.
pub fn has_folder() -> bool {
    fs::metadata(NODE).is_ok_and(|node| node.file_type().is_char_device())
}

/// Gives this process, which has one thread, a `/dev` of its own with the folder. Everything else in it is what was there.
pub fn enter() -> Result<(), NamespaceError> {
    separate()?;
    // What is mounted elsewhere later is to appear here, and nothing of this there.
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none).map_err(failed("cannot separate mounts"))?;
    // Reached by its descriptor when something else is mounted upon it.
    let old = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_DIRECTORY).open(DEV);
    let old = old.map_err(system("cannot open /dev"))?;
    let entries = entries(DEV)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_STRICTATIME;
    mount(Some("millrace"), DEV, Some("tmpfs"), flags, Some("mode=755,size=64k,nr_inodes=16k"))
        .map_err(failed("cannot mount a tmpfs"))?;
    for entry in &entries {
        bring(&old, entry)?;
    }
    let folder = Path::new(DEV).join("infiniband");
    match fs::create_dir(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(system("cannot make a folder")(error)),
        _ => Ok(()),
    }
}

/// A mount namespace; for who may not make one, in a user namespace in which only this user and this group exist.
fn separate() -> Result<(), NamespaceError> {
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => return Ok(()),
        Err(Errno::EPERM) => {}
        Err(error) => return Err(failed("cannot make a mount namespace")(error)),
    }
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(failed("cannot make a user namespace"))?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text).map_err(system(format!("cannot write /proc/self/{file}")))
    };
    write("uid_map", format!("{user} {user} 1"))?;
    // Whoever may drop groups could reach what is closed to one of them, so it has to be given up first.
    write("setgroups", "deny".to_owned())?;
    write("gid_map", format!("{group} {group} 1"))
}

/// An entry of the `/dev` that was there.
struct Entry {
    name: PathBuf,
    kind: fs::FileType,
}

fn entries(folder: &str) -> Result<Vec<Entry>, NamespaceError> {
    let entry = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok(Entry { name: entry.file_name().into(), kind: entry.file_type()? })
    };
    fs::read_dir(folder)
        .and_then(|entries| entries.map(entry).collect())
        .map_err(system(format!("cannot read {folder}")))
}

/// The same entry in the new `/dev`: links are made again, and all else is mounted there.
fn bring(old: &File, Entry { name, kind }: &Entry) -> Result<(), NamespaceError> {
    let from = Path::new("/proc/self/fd").join(old.as_raw_fd().to_string()).join(name);
    let to = Path::new(DEV).join(name);
    let doing = || format!("cannot bring {}", to.display());
    if kind.is_symlink() {
        return fs::read_link(&from).and_then(|target| symlink(target, &to)).map_err(system(doing()));
    }
    let made = if kind.is_dir() { fs::create_dir(&to) } else { File::create_new(&to).map(drop) };
    made.map_err(system(doing()))?;
    let none = None::<&str>;
    match mount(Some(&from), &to, none, MsFlags::MS_BIND | MsFlags::MS_REC, none) {
        // It went away since the folder was read.
        Err(Errno::ENOENT) => Ok(()),
        done => done.map_err(failed(doing())),
    }
}
