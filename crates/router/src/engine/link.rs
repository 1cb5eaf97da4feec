//! A link of BPF: the engine's program on an interface as XDP, for as long as somebody has the link. `libbpf-rs` opens links of others by their place in a
//! file system of BPF only, and a router that was killed may have kept its own in one that this process does not see: so links are found by their numbers,
//! too.
//!
//! Unsafe code: four calls of libbpf, for which `libbpf-rs` has no safe ones, and the descriptor that one of them gives.
#![allow(unsafe_code)]

use super::EngineError;
use super::layout::global::HEARTBEAT;
use libbpf_rs::libbpf_sys;
use libbpf_rs::query::{LinkInfo, LinkInfoIter, LinkTypeInfo, ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{ErrorKind, Link, MapCore, MapFlags, MapHandle, Program, ProgramMut};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// The program, and maps of it, by whose names it is known again.
pub(super) const PROGRAM: &str = "router_xdp";
const MAPS: [&str; 2] = ["rules4", "hop_index"];

/// What the names of all of the engine's programs at interfaces begin with.
const PROGRAMS: &str = "router_";

/// Maps of one program that are looked at.
const MOST_MAPS: usize = 64;

/// Links and programs of the machine that are looked at.
const MOST: usize = 1 << 16;

/// The program on an interface. Dropped, it is not there any more, also if the link is kept somewhere else; but somebody else's program stays that has
/// taken its place meanwhile.
pub(super) struct XdpLink {
    fd: OwnedFd,
    /// The number of the program that was put there last.
    program: u32,
}

/// Where a link has which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Where {
    /// 0: nowhere any more.
    pub ifindex: u32,
    pub program: u32,
}

impl Where {
    fn of(link: BorrowedFd<'_>) -> Option<Self> {
        Self::of_info(&LinkInfo::from_fd(link).ok()?)
    }

    fn of_info(link: &LinkInfo) -> Option<Self> {
        let LinkTypeInfo::Xdp(xdp) = &link.info else { return None };
        Some(Self { ifindex: xdp.ifindex, program: link.prog_id })
    }

    /// Of the link that is kept at that place, which stays as it is.
    pub(super) fn kept_at(path: &Path) -> Option<Self> {
        Self::of(Link::open(path).ok()?.as_fd())
    }
}

impl XdpLink {
    /// The program on an interface that has none.
    pub(super) fn attach(program: &ProgramMut<'_>, ifindex: u32) -> libbpf_rs::Result<Self> {
        let link = program.attach_xdp(ifindex as i32)?;
        Self::of(&link)
    }

    /// The one that is kept at that place.
    pub(super) fn open(path: &Path) -> libbpf_rs::Result<Self> {
        Self::of(&Link::open(path)?)
    }

    fn of(link: &Link) -> libbpf_rs::Result<Self> {
        let program = LinkInfo::from_fd(link.as_fd())?.prog_id;
        Ok(Self { fd: link.as_fd().try_clone_to_owned()?, program })
    }

    /// The one by which program number `program` is on an interface, if that program is the engine's, of whatever process. That takes CAP_SYS_ADMIN.
    pub(super) fn of_engine(ifindex: u32, program: u32) -> Option<Self> {
        let wanted = Some(Where { ifindex, program });
        // Whose it is costs less than where all links of the machine are.
        if !is_engine(program) {
            return None;
        }
        let number = LinkInfoIter::default().take(MOST).find(|link| Where::of_info(link) == wanted)?.id;
        // SAFETY: no memory is passed.
        let fd = unsafe { libbpf_sys::bpf_link_get_fd_by_id(number) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the kernel has made this descriptor just now, for us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // By now it may be another one's number, which must not end when this is dropped.
        (Where::of(fd.as_fd()) == wanted).then_some(Self { fd, program })
    }

    /// Puts a program in the place of the one that is there. Fails if the interface is gone.
    pub(super) fn replace(&mut self, program: &ProgramMut<'_>) -> Result<(), Errno> {
        // SAFETY: both descriptors are open for as long as the call lasts, and without options nothing is pointed to.
        done(unsafe { libbpf_sys::bpf_link_update(self.fd.as_raw_fd(), program.as_fd().as_raw_fd(), ptr::null()) })?;
        self.program = Program::id_from_fd(program.as_fd()).map_err(|_| Errno::BADF)?;
        Ok(())
    }

    /// Whether the program is still where it was put.
    pub(super) fn is_on(&self, ifindex: u32) -> bool {
        Where::of(self.fd.as_fd()) == Some(Where { ifindex, program: self.program })
    }

    /// Keeps it at that place for the next process.
    pub(super) fn keep(&self, path: &Path) -> Result<(), EngineError> {
        let failed = |source: std::io::Error| EngineError::Pin { path: path.display().to_string(), source };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| failed(error.into()))?;
        // SAFETY: `name` ends with a zero, and outlives the call.
        done(unsafe { libbpf_sys::bpf_obj_pin(self.fd.as_raw_fd(), name.as_ptr()) })
            .map_err(|error| failed(error.into()))
    }
}

impl Drop for XdpLink {
    fn drop(&mut self) {
        if Where::of(self.fd.as_fd()).is_some_and(|now| now.program == self.program) {
            // Its interface may be gone, and the link with it. SAFETY: no memory is passed.
            let _ = unsafe { libbpf_sys::bpf_link_detach(self.fd.as_raw_fd()) };
        }
    }
}

/// Calls of libbpf return a negative number of an error.
fn done(answer: i32) -> Result<(), Errno> {
    if answer < 0 { Err(Errno::from_raw_os_error(-answer)) } else { Ok(()) }
}

/// Whether a program is the engine's for XDP, by its name and by its maps.
fn is_engine(program: u32) -> bool {
    let names: Vec<_> = maps_of(program, PROGRAM).map(|map| map.name().to_owned()).collect();
    MAPS.iter().all(|wanted| names.iter().any(|name| name == wanted))
}

/// Of the daemon that has a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    /// The jiffies of its last heartbeat.
    At(u32),
    /// It is no engine's, or has gone.
    NoEngine,
    /// Without CAP_SYS_ADMIN it cannot be seen.
    Hidden,
}

/// When the daemon of the engine that has program number `program` has beaten last.
pub(super) fn heartbeat_of(program: u32) -> Beat {
    match Program::fd_from_id(program) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Beat::Hidden,
        Err(_) => return Beat::NoEngine,
        Ok(_) => {}
    }
    let beat = || {
        let globals = maps_of(program, PROGRAMS).find(|map| map.name() == "globals")?;
        let globals = globals.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        globals.get(HEARTBEAT..)?.first_chunk().copied().map(u32::from_ne_bytes)
    };
    beat().map_or(Beat::NoEngine, Beat::At)
}

/// The maps of a program whose name begins like one of the engine's.
fn maps_of(program: u32, name: &str) -> impl Iterator<Item = MapHandle> {
    let mut programs = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true)).take(MOST);
    let found =
        programs.find(|found| found.id == program).filter(|found| found.name.to_string_lossy().starts_with(name));
    let maps = found.map(|found| found.map_ids).unwrap_or_default();
    maps.into_iter().take(MOST_MAPS).filter_map(|map| MapHandle::from_map_id(map).ok())
}
