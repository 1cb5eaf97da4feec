//! Where `millrace message receive` writes: into a file beside the one that was named, which takes its place when all has come. What was there
//! before stays until then, and for good if nobody calls or the sender ends too early.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use millrace_tool::stop;

/// Something to write to.
pub enum Target {
    /// Standard output, a device or a pipe: what is written is gone, and writing may take as long as others like.
    Stream(Box<dyn Write>),
    /// A file that takes the place of another one.
    Beside {
        /// It, and where it is until then.
        file: File,
        part: PathBuf,
        /// Where it belongs.
        path: PathBuf,
    },
}

impl Target {
    /// Opens it; `-` is standard output.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stream(Box::new(io::stdout())));
        }
        // Behind links, so that these stay.
        let found = fs::metadata(path);
        let path = if found.is_ok() { fs::canonicalize(path)? } else { path.to_owned() };
        if found.as_ref().is_ok_and(|found| !found.is_file()) {
            return Ok(Self::Stream(Box::new(stop::at_once(|| File::options().write(true).open(path))?)));
        }
        let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
        let part = path.with_file_name(format!(".{name}.{}", std::process::id()));
        let file = File::create(&part)?;
        let target = Self::Beside { file, part, path };
        if let (Ok(found), Self::Beside { file, .. }) = (found, &target) {
            file.set_permissions(found.permissions())?;
        }
        Ok(target)
    }

    /// Writes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stop::at_once(|| stream.write_all(bytes)),
            Self::Beside { file, .. } => file.write_all(bytes),
        }
    }

    /// All has come.
    pub fn complete(&mut self) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stop::at_once(|| stream.flush()),
            Self::Beside { part, path, .. } => fs::rename(part, path),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Self::Beside { part, .. } = self {
            // It is not there any more when all has come.
            let _ = fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

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
}
