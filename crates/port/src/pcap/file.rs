//! Opening the file of a port without ever waiting: opening a pipe waits for its other end, opening some devices for
//! worse, and whoever plugs a wire in waits for us.

use rustix::fs::OFlags;
use std::fs::{File, FileType, OpenOptions, metadata};
use std::io::{self, Error, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a capture to be read from its beginning, perhaps again and again: a regular file.
///
/// # Errors
/// What the system says, and `InvalidInput` for anything else.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let wanted = |kind: FileType| if kind.is_file() { Ok(()) } else { Err(name_of(kind)) };
    open_as(path, OpenOptions::new().read(true), wanted)
}

/// Makes or overwrites a capture: a regular file, or a pipe that somebody reads. What the reader does not take at once
/// is lost, as on a full disk.
///
/// # Errors
/// As [`open`].
pub(super) fn create(path: &Path) -> io::Result<File> {
    let wanted = |kind: FileType| if kind.is_file() || kind.is_fifo() { Ok(()) } else { Err(name_of(kind)) };
    open_as(path, OpenOptions::new().write(true).create(true).truncate(true), wanted)
}

fn open_as(
    path: &Path,
    options: &mut OpenOptions,
    wanted: impl Fn(FileType) -> Result<(), &'static str>,
) -> io::Result<File> {
    let check = |kind| wanted(kind).map_err(|name| Error::new(ErrorKind::InvalidInput, format!("this is {name}")));
    // Looked at before, because to open some devices does something already, and once more afterwards: it may be
    // another file.
    if let Ok(there) = metadata(path) {
        check(there.file_type())?;
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits() as i32).open(path).map_err(explain)?;
    check(file.metadata()?.file_type())?;
    Ok(file)
}

fn explain(error: Error) -> Error {
    if error.raw_os_error() == Some(libc::ENXIO) {
        return Error::new(ErrorKind::NotConnected, "nobody reads this pipe; start its reader first");
    }
    error
}

fn name_of(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a folder, and a file is needed"
    } else if kind.is_fifo() {
        "a pipe, and a file is needed"
    } else if kind.is_socket() {
        "a socket, and a file is needed"
    } else {
        "a device, and a file is needed"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, mkfifoat};
    use std::io::{Read, Write};

    #[test]
    fn a_pipe_makes_nobody_wait() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        // On a thread: without O_NONBLOCK both would wait for ever.
        let (done, wait) = std::sync::mpsc::channel();
        let path = pipe.clone();
        std::thread::spawn(move || done.send((open(&path).unwrap_err(), create(&path).unwrap_err())));
        let (read, written) = wait.recv_timeout(std::time::Duration::from_secs(60)).expect("calls that return");
        assert_eq!(read.to_string(), "this is a pipe, and a file is needed");
        assert_eq!(written.to_string(), "nobody reads this pipe; start its reader first");
        // With a reader it can be used, and one that does not read makes nobody wait.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let mut reader = OpenOptions::new().read(true).custom_flags(flags).open(&pipe).unwrap();
        let mut writer = create(&pipe).unwrap();
        writer.write_all(b"frames").unwrap();
        let mut bytes = [0; 6];
        reader.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"frames");
        let full = (0..1000).find_map(|_| writer.write_all(&[0; 4096]).err()).expect("a pipe has an end");
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn folders_devices_and_sockets_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, name) in [(folder.path(), "a folder"), (Path::new("/dev/null"), "a device"), (&socket, "a socket")] {
            for error in [open(path).unwrap_err(), create(path).unwrap_err()] {
                assert!(error.to_string().contains(name), "{error}");
            }
        }
        let file = folder.path().join("file");
        create(&file).unwrap().write_all(b"frames").unwrap();
        assert_eq!(open(&file).unwrap().metadata().unwrap().len(), 6);
        assert_eq!(create(&file).unwrap().metadata().unwrap().len(), 0);
    }
}
