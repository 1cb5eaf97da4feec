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
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ProgramMut};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// The program, and maps of it, by whose names it is known again.
pub(super) const PROGRAM: &str = "router_xdp";
const MAPS: [&str; 2] = ["rules4", "hop_index"];

/// Maps of one program that are looked at.
const MOST_MAPS: usize = 64;

/// The program on an interface. Dropped, it is not there any more, also if the link is kept somewhere else.
pub(super) struct XdpLink(OwnedFd);

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
        Ok(Self(link.as_fd().try_clone_to_owned()?))
    }

    /// The one by which program number `program` is on an interface, if that program is the engine's, of whatever process. That takes CAP_SYS_ADMIN.
    pub(super) fn of_engine(ifindex: u32, program: u32) -> Option<Self> {
        let is_there = |link: &LinkInfo| matches!(&link.info, LinkTypeInfo::Xdp(xdp) if xdp.ifindex == ifindex);
        let number = LinkInfoIter::default().find(|link| link.prog_id == program && is_there(link))?.id;
        if !is_engine(program) {
            return None;
        }
        // SAFETY: no memory is passed.
        let fd = unsafe { libbpf_sys::bpf_link_get_fd_by_id(number) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the kernel has made this descriptor just now, for us alone.
        let link = unsafe { OwnedFd::from_raw_fd(fd) };
        // By now it may be another one's number, which must not end when this is dropped.
        let is_it = LinkInfo::from_fd(link.as_fd()).is_ok_and(|link| link.prog_id == program && is_there(&link));
        is_it.then(|| Self(link))
    }

    /// The number of the program of the one that is kept at that place, which stays as it is.
    pub(super) fn program_at(path: &Path) -> Option<u32> {
        let link = Link::open(path).ok()?;
        LinkInfo::from_fd(link.as_fd()).ok().map(|link| link.prog_id)
    }

    /// Puts a program in the place of the one that is there. Fails if the interface is gone.
    pub(super) fn replace(&self, program: &ProgramMut<'_>) -> Result<(), Errno> {
        // SAFETY: both descriptors are open for as long as the call lasts, and without options nothing is pointed to.
        let answer =
            unsafe { libbpf_sys::bpf_link_update(self.0.as_raw_fd(), program.as_fd().as_raw_fd(), ptr::null()) };
        done(answer)
    }

    /// Keeps it at that place for the next process.
    pub(super) fn keep(&self, path: &Path) -> Result<(), EngineError> {
        let failed = |source: std::io::Error| EngineError::Pin { path: path.display().to_string(), source };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| failed(error.into()))?;
        // SAFETY: `name` ends with a zero, and outlives the call.
        done(unsafe { libbpf_sys::bpf_obj_pin(self.0.as_raw_fd(), name.as_ptr()) })
            .map_err(|error| failed(error.into()))
    }
}

impl Drop for XdpLink {
    fn drop(&mut self) {
        // Its interface may be gone, and the link with it. SAFETY: no memory is passed.
        let _ = unsafe { libbpf_sys::bpf_link_detach(self.0.as_raw_fd()) };
    }
}

/// Calls of libbpf return a negative number of an error.
fn done(answer: i32) -> Result<(), Errno> {
    if answer < 0 { Err(Errno::from_raw_os_error(-answer)) } else { Ok(()) }
}

/// Whether a program is the engine's, by its name and by its maps.
fn is_engine(program: u32) -> bool {
    let names: Vec<_> = maps_of(program).map(|map| map.name().to_owned()).collect();
    MAPS.iter().all(|wanted| names.iter().any(|name| name == wanted))
}

/// The jiffies of the last heartbeat of the engine that has program number `program`, if an engine has it. That takes CAP_SYS_ADMIN.
pub(super) fn heartbeat_of(program: u32) -> Option<u32> {
    let globals =
        maps_of(program).find(|map| map.name() == "globals")?.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok()??;
    globals.get(HEARTBEAT..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// The maps of a program that has the name of the engine's.
fn maps_of(program: u32) -> impl Iterator<Item = MapHandle> {
    let mut programs = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true));
    let found = programs.find(|found| found.id == program).filter(|found| found.name == PROGRAM);
    let maps = found.map(|found| found.map_ids).unwrap_or_default();
    maps.into_iter().take(MOST_MAPS).filter_map(|map| MapHandle::from_map_id(map).ok())
}
