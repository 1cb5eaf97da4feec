//! Where `millrace message receive` writes: into a file beside the one that was named, which takes its place when all has come. What was there
//! before stays until then, and for good if nobody calls or the sender ends too early. Where no file can be beside it, it is written over.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use millrace_tool::stop;
use rustix::fs::OFlags;
use tempfile::NamedTempFile;

/// Links that are followed one after the other, as by Linux.
const MOST_LINKS: u32 = 40;

/// Something to write to.
pub enum Target {
    /// Standard output, a device or a pipe: what is written is gone, and writing may take as long as others like.
    Stream(Box<dyn Write>),
    /// A file that takes the place of another one.
    Beside {
        /// It, and where it is until then. It has a name that nobody can know before, and was not there before.
        part: NamedTempFile,
        /// Where it belongs.
        path: PathBuf,
    },
    /// A file that is written over, from the first byte on that comes.
    Over {
        /// It.
        file: File,
        /// What was in it is gone.
        is_empty: bool,
    },
}

impl Target {
    /// Opens it; `-` is standard output.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stream(Box::new(io::stdout())));
        }
        // Behind links, so that these stay.
        let (path, found) = match fs::metadata(path) {
            Ok(found) => (fs::canonicalize(path)?, Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => (behind_links(path)?, None),
            Err(error) => return Err(error),
        };
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            return Ok(Self::Stream(Box::new(stop::at_once(|| File::options().write(true).open(path))?)));
        }
        path.file_name().ok_or(ErrorKind::InvalidFilename)?;
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let permissions = Permissions::from_mode(0o666);
        let part = match tempfile::Builder::new().prefix(".millrace-").permissions(permissions).tempfile_in(folder) {
            Ok(part) => part,
            Err(error) if found.is_some() && is_forbidden(&error) => {
                return Ok(Self::Over { file: existing(&path)?, is_empty: false });
            }
            Err(error) => return Err(error),
        };
        if let Some(found) = found {
            part.as_file().set_permissions(found.permissions())?;
        }
        Ok(Self::Beside { part, path })
    }

    /// Writes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stop::at_once(|| stream.write_all(bytes)),
            Self::Beside { part, .. } => part.write_all(bytes),
            Self::Over { file, is_empty } => {
                empty(file, is_empty)?;
                file.write_all(bytes)
            }
        }
    }

    /// All has come.
    pub fn complete(self) -> io::Result<()> {
        match self {
            Self::Stream(mut stream) => stop::at_once(|| stream.flush()),
            Self::Beside { part, path } => {
                let Err(failed) = part.persist(&path) else { return Ok(()) };
                // Another file system is mounted there, or the file is somebody else's in a folder such as /tmp.
                if failed.error.kind() != ErrorKind::ResourceBusy && !is_forbidden(&failed.error) {
                    return Err(failed.error);
                }
                copy(&mut failed.file.reopen()?, &path)
            }
            Self::Over { file, mut is_empty } => empty(&file, &mut is_empty),
        }
    }
}

/// Where links lead that end at nothing.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(to) = fs::read_link(&path) else { return Ok(path) };
        path = path.parent().map_or_else(|| to.clone(), |folder| folder.join(&to));
    }
    Err(ErrorKind::NotFound.into())
}

/// Whether a folder is not for this program to change. `/proc`, where nobody can, says that nothing is found.
fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound)
}

/// A file that is there, and was one when it was looked: nothing that anybody has put in its place meanwhile is waited for.
fn existing(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    File::options().write(true).custom_flags(flags.bits() as i32).open(path)
}

fn empty(file: &File, is_empty: &mut bool) -> io::Result<()> {
    if !*is_empty {
        file.set_len(0)?;
        *is_empty = true;
    }
    Ok(())
}

fn copy(part: &mut File, path: &Path) -> io::Result<()> {
    let mut file = existing(path)?;
    file.set_len(0)?;
    part.rewind()?;
    io::copy(part, &mut file).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_stays_as_it_was_until_all_has_come() {
        let folder = std::env::temp_dir().join(format!("millrace-receive-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, link) = (folder.join("file"), folder.join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        for is_complete in [false, true] {
            let mut target = Target::open(&link).unwrap();
            target.write(b"new").unwrap();
            assert_eq!(fs::read(&file).unwrap(), b"old");
            if is_complete {
                target.complete().unwrap();
            }
        }
        assert_eq!(fs::read(&link).unwrap(), b"new");
        assert!(link.is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "nothing is left behind");
        assert!(Target::open(&folder.join("none/file")).is_err());
        let mut device = Target::open(Path::new("/dev/null")).unwrap();
        device.write(b"gone").unwrap();
        device.complete().unwrap();
        fs::remove_dir_all(folder).unwrap();
    }

    fn folder(name: &str) -> tempfile::TempDir {
        tempfile::Builder::new().prefix(name).tempdir().unwrap()
    }

    fn receive(path: &Path, bytes: &[u8]) {
        let mut target = Target::open(path).unwrap();
        target.write(bytes).unwrap();
        target.complete().unwrap();
    }

    /// Somebody who can write to the folder has put links there, to where this program can write and he cannot.
    #[test]
    fn what_others_put_beside_it_is_not_written_to() {
        let folder = folder("beside");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("precious"), "old").unwrap();
        symlink("precious", at(&format!(".file.{}", std::process::id()))).unwrap();
        receive(&at("file"), b"new");
        assert_eq!(["precious", "file"].map(|name| fs::read(at(name)).unwrap()), [b"old", b"new"]);
    }

    #[test]
    fn links_stay_where_they_lead_to_nothing_too() {
        let folder = folder("dangling");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("inner")).unwrap();
        symlink("inner/second", at("first")).unwrap();
        symlink("../file", at("inner/second")).unwrap();
        receive(&at("first"), b"new");
        assert_eq!(fs::read(at("file")).unwrap(), b"new");
        assert!(at("first").is_symlink() && at("inner/second").is_symlink());
        symlink("round", at("round")).unwrap();
        assert!(Target::open(&at("round")).is_err());
    }

    /// Nobody, root neither, makes files in this folder; the name of a thread is a file that can be written.
    #[test]
    fn where_no_file_can_be_beside_it_is_written_over() {
        let path = PathBuf::from(format!("/proc/self/task/{}/comm", rustix::thread::gettid().as_raw_nonzero()));
        let before = fs::read(&path).unwrap();
        drop(Target::open(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), before, "nobody has called");
        receive(&path, b"received");
        assert_eq!(fs::read(&path).unwrap(), b"received\n");
    }

    #[test]
    fn what_cannot_be_put_in_its_place_is_copied_there() {
        let folder = folder("copied");
        let (part, path) = (folder.path().join("part"), folder.path().join("file"));
        fs::write(&part, "new").unwrap();
        fs::write(&path, "longer").unwrap();
        copy(&mut File::open(&part).unwrap(), &path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::remove_file(&path).unwrap();
        symlink("part", &path).unwrap();
        assert!(copy(&mut File::open(&part).unwrap(), &path).is_err(), "somebody has put a link there");
    }
}
