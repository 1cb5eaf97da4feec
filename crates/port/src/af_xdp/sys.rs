//! What AF_XDP needs of the kernel and `rustix` has no safe call for: `bpf(2)`, the rings that a socket shares with the
//! kernel, and a handful of options. The only `unsafe` of this kind of port.
#![allow(unsafe_code)]

use crate::spec::InterfaceName;
use millrace_dma::Window;
use rustix::{
    io::{self, Errno},
    ioctl::{Opcode, Updater, ioctl},
    mm::{MapFlags, ProtFlags, mmap, munmap},
    net::xdp::{XdpDesc, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags},
};
use std::{
    ffi::{c_int, c_long, c_void},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr::NonNull,
    sync::atomic::AtomicU32,
};

fn result(returned: c_long) -> io::Result<c_int> {
    if returned >= 0 {
        return Ok(returned as c_int);
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

// bpf(2): `union bpf_attr` of linux/bpf.h, one structure for each command that is used here.

const MAP_CREATE: c_int = 0;
const MAP_UPDATE_ELEM: c_int = 2;
const MAP_DELETE_ELEM: c_int = 3;
const PROG_LOAD: c_int = 5;
const PROG_GET_FD_BY_ID: c_int = 13;
const OBJ_GET_INFO_BY_FD: c_int = 15;
const LINK_CREATE: c_int = 28;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}

#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// For the command that takes an id and gives a descriptor.
#[repr(C)]
struct ById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
struct GetInfo {
    fd: u32,
    len: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`, up to the name.
#[repr(C)]
#[derive(Default)]
struct ProgInfo {
    prog_type: u32,
    id: u32,
    tag: [u8; 8],
    lens: [u32; 2],
    pointers: [u64; 2],
    load_time: u64,
    created_by_uid: u32,
    nr_map_ids: u32,
    map_ids: u64,
    name: [u8; 16],
}

/// # Safety
/// `attributes` is what `command` takes, and every pointer in it is good for what the command does with it.
unsafe fn bpf<T>(command: c_int, attributes: &mut T) -> io::Result<c_int> {
    // SAFETY: the structure has the size that is passed; the rest is the caller's promise.
    result(unsafe { libc::syscall(libc::SYS_bpf, command, core::ptr::from_mut(attributes), size_of::<T>()) })
}

/// # Safety
/// As [`bpf`], for a command that returns a descriptor.
unsafe fn bpf_fd<T>(command: c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise; an fd that the kernel has just made is nobody else's.
    unsafe { bpf(command, attributes).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// By reference: an fd that is moved here would be closed before it is used.
fn raw(fd: &impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd() as u32
}

/// Makes a map from queue to AF_XDP socket.
pub(super) fn create_socket_map(entries: u32, name: [u8; 16]) -> io::Result<OwnedFd> {
    let mut attributes = MapCreate {
        map_type: MAP_TYPE_XSKMAP,
        key_size: 4,
        value_size: 4,
        max_entries: entries,
        map_flags: 0,
        inner_map_fd: 0,
        numa_node: 0,
        map_name: name,
    };
    // SAFETY: holds no pointers.
    unsafe { bpf_fd(MAP_CREATE, &mut attributes) }
}

/// Puts a socket into a map of [`create_socket_map`].
pub(super) fn set_socket(map: impl AsFd, queue: u32, socket: impl AsFd) -> io::Result<()> {
    let socket = raw(&socket);
    let mut attributes = MapUpdate {
        map_fd: raw(&map),
        padding: 0,
        key: (&raw const queue).expose_provenance() as u64,
        value: (&raw const socket).expose_provenance() as u64,
        flags: 0,
    };
    // SAFETY: key and value have four bytes each, as the map was made, and live on this stack.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Takes the socket of a queue out of such a map.
pub(super) fn clear_socket(map: impl AsFd, queue: u32) -> io::Result<()> {
    let key = (&raw const queue).expose_provenance() as u64;
    let mut attributes = MapUpdate { map_fd: raw(&map), padding: 0, key, value: 0, flags: 0 };
    // SAFETY: the key has four bytes, as the map was made, and lives on this stack.
    unsafe { bpf(MAP_DELETE_ELEM, &mut attributes) }.map(drop)
}

/// Loads an XDP program of instructions of 8 bytes each.
pub(super) fn load_program(instructions: &[u64], flags: u32, name: [u8; 16]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0 OR MIT";
    let mut attributes = ProgLoad {
        prog_type: PROG_TYPE_XDP,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: flags,
        prog_name: name,
        prog_ifindex: 0,
        expected_attach_type: ATTACH_XDP,
    };
    // SAFETY: the instructions are as many as said, the licence ends with a zero, both are only read.
    unsafe { bpf_fd(PROG_LOAD, &mut attributes) }
}

/// Attaches a program to an interface, for as long as the fd that is returned is open.
pub(super) fn attach(program: impl AsFd, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let mut attributes =
        LinkCreate { prog_fd: raw(&program), target_ifindex: interface, attach_type: ATTACH_XDP, flags };
    // SAFETY: holds no pointers.
    unsafe { bpf_fd(LINK_CREATE, &mut attributes) }
}

/// The name of program number `id`; `None` if it is gone or we may not look.
pub(super) fn program_name(id: u32) -> Option<[u8; 16]> {
    // SAFETY: holds no pointers.
    let program = unsafe { bpf_fd(PROG_GET_FD_BY_ID, &mut ById { id, next_id: 0, open_flags: 0 }) }.ok()?;
    let mut info = ProgInfo::default();
    let at = core::ptr::from_mut(&mut info).expose_provenance() as u64;
    let mut attributes = GetInfo { fd: raw(&program), len: size_of::<ProgInfo>() as u32, info: at };
    // SAFETY: the kernel writes at most the `len` bytes that are there, and all of them are integers.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attributes) }.ok()?;
    Some(info.name)
}

// Socket options.

/// Options of AF_XDP sockets and of sockets at all that `rustix` does not name.
#[derive(Clone, Copy)]
pub(super) enum SocketOption {
    /// `SO_BUSY_POLL`: microseconds.
    BusyPoll,
    /// `SO_PREFER_BUSY_POLL`.
    PreferBusyPoll,
    /// `SO_BUSY_POLL_BUDGET`: frames.
    BusyPollBudget,
    /// `XDP_MAX_TX_SKB_BUDGET` (Linux 6.17): frames that one `sendto` takes off the ring.
    TransmitBudget,
}

/// Sets an option that takes an `int`.
pub(super) fn set_option(socket: impl AsFd, option: SocketOption, value: c_int) -> io::Result<()> {
    let (level, name) = match option {
        SocketOption::BusyPoll => (libc::SOL_SOCKET, 46),
        SocketOption::PreferBusyPoll => (libc::SOL_SOCKET, 69),
        SocketOption::BusyPollBudget => (libc::SOL_SOCKET, 70),
        SocketOption::TransmitBudget => (libc::SOL_XDP, 9),
    };
    set(socket.as_fd().as_raw_fd(), level, name, &value)
}

/// Makes the interface take every frame, whomever it is for, as long as `socket`, a packet socket, is open.
pub(super) fn be_promiscuous(socket: impl AsFd, interface: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: interface as c_int,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(socket.as_fd().as_raw_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

fn set<T>(socket: RawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let at: *const c_void = core::ptr::from_ref(value).cast();
    // SAFETY: the kernel reads the bytes of `value`, which is one of the two structures without pointers above.
    result(unsafe { libc::setsockopt(socket, level, name, at, size_of::<T>() as u32) }.into()).map(drop)
}

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: Opcode = 0x8946;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ifreq` with a pointer.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    data: *mut Channels,
    rest: [u8; 16],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);

/// How many receive queues an interface uses, if its driver says so. `socket` is any socket of its network namespace.
pub(super) fn receive_queues(socket: impl AsFd, name: &InterfaceName) -> Option<u32> {
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    let mut request = InterfaceRequest { name: [0; 16], data: &raw mut channels, rest: [0; 16] };
    // At most 15 bytes, so a zero follows.
    request.name[..name.as_str().len()].copy_from_slice(name.as_str().as_bytes());
    // SAFETY: the code takes an `ifreq` whose pointer leads to what the command in it fills, and which outlives the call.
    unsafe { ioctl(socket, Updater::<SIOCETHTOOL, InterfaceRequest>::new(&mut request)) }.ok()?;
    Some(channels.rx + channels.combined)
}

// Memory.

/// The registration of `memory` as UMEM; frames may begin anywhere in it if `unaligned`. The caller keeps the memory mapped as long as the socket lives: the kernel, like a
/// card, writes to it.
pub(super) fn umem(memory: &Window, frame_size: u32, unaligned: bool) -> XdpUmemReg {
    let at = memory.slice(0, memory.len()).map_or(0, |bytes| bytes.as_ptr().expose_provenance());
    XdpUmemReg {
        addr: at as u64,
        len: memory.len() as u64,
        chunk_size: frame_size,
        headroom: 0,
        flags: if unaligned { XdpUmemRegFlags::XDP_UMEM_UNALIGNED_CHUNK_FLAG } else { XdpUmemRegFlags::empty() },
        tx_metadata_len: 0,
    }
}

/// What stands in a ring.
pub(super) trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for XdpDesc {}

/// A ring that a socket shares with the kernel: two indices, a word of flags, and a power of two of entries.
pub(super) struct RingMemory<T> {
    base: NonNull<u8>,
    len: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
}

// SAFETY: the mapping belongs to this value alone, and the kernel does not care from which thread it is used.
unsafe impl<T: Entry> Send for RingMemory<T> {}

impl<T: Entry> RingMemory<T> {
    /// Maps the ring of `count` entries that lies at `page_offset` of `socket`.
    pub fn map(socket: BorrowedFd<'_>, page_offset: u64, at: XdpRingOffset, count: u32) -> io::Result<Self> {
        let inside = |offset: u64, len: usize, end: usize| {
            let offset = usize::try_from(offset).ok()?;
            (offset.checked_add(len)? <= end && offset.is_multiple_of(len.min(8))).then_some(offset)
        };
        let bytes = size_of::<T>() * count as usize;
        let len = usize::try_from(at.desc).ok().and_then(|desc| desc.checked_add(bytes)).ok_or(Errno::INVAL)?;
        let word = |offset: Option<u64>| offset.and_then(|offset| inside(offset, 4, len)).ok_or(Errno::INVAL);
        let (producer, consumer) = (word(Some(at.producer))?, word(Some(at.consumer))?);
        let (flags, entries) = (word(at.flags)?, inside(at.desc, bytes, len).ok_or(Errno::INVAL)?);
        if !count.is_power_of_two() {
            return Err(Errno::INVAL);
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: maps a ring of the socket at fresh addresses; nothing of this process is replaced.
        let base = unsafe {
            mmap(core::ptr::null_mut(), len, rights, MapFlags::SHARED | MapFlags::POPULATE, socket, page_offset)
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        // SAFETY: all four offsets lie inside the mapping with what is behind them, as checked above.
        let (producer, consumer, flags, entries) =
            unsafe { (base.add(producer), base.add(consumer), base.add(flags), base.add(entries)) };
        Ok(Self {
            base,
            len,
            producer: producer.cast(),
            consumer: consumer.cast(),
            flags: flags.cast(),
            entries: entries.cast(),
            mask: count - 1,
        })
    }

    /// The index of whoever puts entries in.
    #[inline(always)]
    pub fn producer(&self) -> &AtomicU32 {
        // SAFETY: aligned and inside the mapping, which lives as long as `self`.
        unsafe { self.producer.as_ref() }
    }

    /// The index of whoever takes entries out.
    #[inline(always)]
    pub fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    /// `XdpRingFlags`, written by the kernel.
    #[inline(always)]
    pub fn flags(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.flags.as_ref() }
    }

    /// Entry `index & mask`, read once. What publishes it is the producer's index.
    #[inline(always)]
    pub fn load(&self, index: u32) -> T {
        // SAFETY: a masked index lies inside; volatile, so that the value that is checked is the value that is used; every
        // bit pattern is a value of the two types that are entries.
        unsafe { self.entries.add((index & self.mask) as usize).read_volatile() }
    }

    /// Sets entry `index & mask`.
    #[inline(always)]
    pub fn store(&mut self, index: u32, entry: T) {
        // SAFETY: a masked index lies inside.
        unsafe { self.entries.add((index & self.mask) as usize).write(entry) }
    }

    /// Number of entries.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.mask + 1
    }
}

impl<T> Drop for RingMemory<T> {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; no reference outlives `self`. An error would mean that it was not mapped.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
