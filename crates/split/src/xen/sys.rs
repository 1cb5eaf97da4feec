//! Calls to the drivers of Xen. One of the files of this crate that may use `unsafe`; the headers of Linux for Xen (evtchn, gntalloc, gntdev) have what stands here as numbers.

use core::ffi::c_ulong;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

/// A byte is cleared when a page is unmapped, and an event is sent.
const CLEAR_BYTE: u32 = 1;
const SEND_EVENT: u32 = 2;
const WRITABLE: u64 = 1;

/// The number of a call: these drivers say no direction in it.
const fn call(kind: u8, number: u8, size: usize) -> c_ulong {
    (size as c_ulong) << 16 | (kind as c_ulong) << 8 | number as c_ulong
}

const ALLOCATE: c_ulong = call(b'G', 5, 24);
const DEALLOCATE: c_ulong = call(b'G', 6, 16);
const MAP: c_ulong = call(b'G', 0, 24);
const UNMAP: c_ulong = call(b'G', 1, 16);
/// The same for both drivers.
const NOTIFY_OF_UNMAP: c_ulong = call(b'G', 7, 16);
const BIND_INTERDOMAIN: c_ulong = call(b'E', 1, 8);
const BIND_UNBOUND: c_ulong = call(b'E', 2, 4);
const NOTIFY: c_ulong = call(b'E', 4, 4);

/// Calls a driver, which reads and writes no more than `words` has: each caller says why. What it returns.
fn ioctl(fd: impl AsFd, number: c_ulong, words: &mut [u64]) -> Result<u32, Errno> {
    // SAFETY: the callers below, all in this file, give buffers with as many words as the driver reads and writes for this
    // number and the counts in them; the drivers keep no pointer.
    let done = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number, words.as_mut_ptr()) };
    u32::try_from(done).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

fn two(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Grants so many new pages to a domain: where they are in the file of `gntalloc`, and their references.
pub fn allocate(gntalloc: impl AsFd, domain: u16, pages: u32) -> Result<(u64, Vec<u32>), Errno> {
    // A header of two words, and four bytes for each reference, of which the driver always writes one.
    let mut words = vec![0; 2 + (pages as usize).div_ceil(2).max(1)];
    words[0] = u64::from(domain) | WRITABLE << 16 | u64::from(pages) << 32;
    ioctl(gntalloc, ALLOCATE, &mut words)?;
    let mut references: Vec<u32> = words[2..].iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).collect();
    references.truncate(pages as usize);
    Ok((words[1], references))
}

/// Addresses that nobody else of this process gets, with nothing behind them.
pub fn reserve(len: usize) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: fresh addresses; nothing of this process is replaced.
    let base = unsafe { mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::empty(), flags)? };
    Ok(base.expose_provenance())
}

/// Maps pages of a driver over reserved addresses: callers, all in this crate, give some of [`reserve`] that have nothing behind them yet.
pub fn map_over(fd: impl AsFd, place: u64, at: usize, len: usize) -> Result<(), Errno> {
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
    // SAFETY: what is replaced are reserved addresses, which nobody reads or writes.
    unsafe { mmap(core::ptr::with_exposed_provenance_mut(at), len, rights, flags, fd, place) }.map(drop)
}

/// They are granted no more, when nobody has them mapped.
pub fn deallocate(gntalloc: impl AsFd, at: u64, pages: u32) -> Result<(), Errno> {
    ioctl(gntalloc, DEALLOCATE, &mut [at, pages.into()]).map(drop)
}

/// Prepares pages of a domain for being mapped: where they are in the file of `gntdev`.
pub fn map(gntdev: impl AsFd, domain: u16, references: &[u32]) -> Result<u64, Errno> {
    let count = u32::try_from(references.len()).map_err(|_| Errno::INVAL)?;
    let mut words = vec![u64::from(count), 0];
    words.extend(references.iter().map(|reference| two(domain.into(), *reference)));
    ioctl(gntdev, MAP, &mut words)?;
    Ok(words[1])
}

/// The file forgets them; mappings that there are stay until they are unmapped.
pub fn unmap(gntdev: impl AsFd, at: u64, pages: u32) -> Result<(), Errno> {
    ioctl(gntdev, UNMAP, &mut [at, pages.into()]).map(drop)
}

/// That byte is cleared, and that port is rung, when its page is unmapped here: also because this process has ended.
pub fn notify_of_unmap(fd: impl AsFd, byte_at: u64, port: u32) -> Result<(), Errno> {
    ioctl(fd, NOTIFY_OF_UNMAP, &mut [byte_at, two(CLEAR_BYTE | SEND_EVENT, port)]).map(drop)
}

/// A port that a domain may bind to.
pub fn bind_unbound(evtchn: impl AsFd, domain: u16) -> Result<u32, Errno> {
    ioctl(evtchn, BIND_UNBOUND, &mut [domain.into()])
}

/// Binds to a port of a domain: the port at this end.
pub fn bind_interdomain(evtchn: impl AsFd, domain: u16, port: u32) -> Result<u32, Errno> {
    ioctl(evtchn, BIND_INTERDOMAIN, &mut [two(domain.into(), port)])
}

/// Sends an event.
pub fn notify(evtchn: impl AsFd, port: u32) -> Result<(), Errno> {
    ioctl(evtchn, NOTIFY, &mut [port.into()]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the headers of Linux, if they are installed: what a C compiler makes of their macros is what stands here.
    #[test]
    fn numbers_are_those_of_the_headers() {
        let headers = ["evtchn", "gntalloc", "gntdev"];
        if !headers.iter().all(|name| std::path::Path::new(&format!("/usr/include/xen/{name}.h")).exists()) {
            println!("skipped: there are no headers of Xen in /usr/include/xen (linux-libc-dev)");
            return;
        }
        let names = [
            ("ALLOC_GREF", ALLOCATE),
            ("DEALLOC_GREF", DEALLOCATE),
            ("MAP_GRANT_REF", MAP),
            ("UNMAP_GRANT_REF", UNMAP),
            ("IOCTL_GNTDEV_SET_UNMAP_NOTIFY", NOTIFY_OF_UNMAP),
            ("IOCTL_GNTALLOC_SET_UNMAP_NOTIFY", NOTIFY_OF_UNMAP),
            ("BIND_INTERDOMAIN", BIND_INTERDOMAIN),
            ("BIND_UNBOUND_PORT", BIND_UNBOUND),
            ("IOCTL_EVTCHN_NOTIFY", NOTIFY),
        ];
        let prefix = |name: &str| match name {
            name if name.starts_with("IOCTL") => name.to_owned(),
            name if name.starts_with("BIND") => format!("IOCTL_EVTCHN_{name}"),
            name if name.contains("GRANT_REF") => format!("IOCTL_GNTDEV_{name}"),
            name => format!("IOCTL_GNTALLOC_{name}"),
        };
        let mut program = String::from("#include <sys/ioctl.h>\n#include <linux/ioctl.h>\n#include <stdint.h>\n");
        program.push_str("typedef uint16_t domid_t;\ntypedef uint32_t grant_ref_t;\n");
        headers.iter().for_each(|name| program.push_str(&format!("#include <xen/{name}.h>\n")));
        for (name, number) in names {
            program.push_str(&format!("_Static_assert({} == {number}UL, \"{name}\");\n", prefix(name)));
        }
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("numbers.c");
        std::fs::write(&source, program).unwrap();
        let Ok(compiled) = std::process::Command::new("cc").args(["-fsyntax-only"]).arg(&source).output() else {
            println!("skipped: there is no C compiler");
            return;
        };
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    }
}
