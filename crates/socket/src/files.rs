//! Small files, read past the program's `open` and `close`.

use rustix::fs::{Mode, OFlags};

/// The first bytes of a file, as text.
pub(crate) fn text(path: &str) -> Option<String> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; 1024];
    let len = rustix::io::read(&fd, &mut bytes);
    crate::sys::close(fd);
    String::from_utf8(bytes[..len.ok()?].to_vec()).ok()
}

/// Adds a line to a file, all of it at once.
pub(crate) fn add_line(path: &std::path::Path, line: &str) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)) else { return };
    // A log that cannot be written is no reason to disturb a program.
    let _ = rustix::io::write(&fd, format!("{line}\n").as_bytes());
    crate::sys::close(fd);
}
