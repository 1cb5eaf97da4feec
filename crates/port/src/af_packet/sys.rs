//! What a packet socket needs and `rustix` has no safe call for: its options, the ring that it shares with the kernel, and
//! sending many frames from where they lie. The only `unsafe` of this kind of port.
#![allow(unsafe_code)]

use libc::{c_int, c_void, socklen_t};
use millrace_dma::Span;
use millrace_packet::offload::VIRTIO_HEADER_LEN;
use rustix::{
    io::{self, Errno},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};
use std::{
    mem::{MaybeUninit, zeroed},
    os::fd::{AsFd, AsRawFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

/// Frames that are sent with one call.
pub(super) const BURST: usize = 32;

/// Every protocol, in the byte order of the network.
const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();

/// Unique in this network namespace; the kernel chooses the number of the group.
const FANOUT_UNIQUE: c_int = 0x2000;
const FANOUT_HASH: c_int = 0;

/// `TP_STATUS_USER`: the slot is ours.
const OURS: u32 = 1;

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn result(returned: c_int) -> io::Result<c_int> {
    if returned >= 0 { Ok(returned) } else { Err(last_error()) }
}

fn set<T>(socket: impl AsFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<T>() as socklen_t);
    // SAFETY: the kernel reads `len` bytes of `value`; a wrong length or content is an error to it.
    result(unsafe { libc::setsockopt(fd, level, option, std::ptr::from_ref(value).cast(), len) }).map(drop)
}

fn get<T: Copy>(socket: impl AsFd, option: c_int) -> io::Result<T> {
    let (mut value, mut len) = (MaybeUninit::<T>::zeroed(), size_of::<T>() as socklen_t);
    let (fd, at) = (socket.as_fd().as_raw_fd(), value.as_mut_ptr());
    // SAFETY: the kernel writes at most `len` bytes to `value`.
    result(unsafe { libc::getsockopt(fd, libc::SOL_PACKET, option, at.cast::<c_void>(), &raw mut len) })?;
    // SAFETY: `T` is one of two structures of integers here, for which zeros and everything else are values.
    Ok(unsafe { value.assume_init() })
}

/// Frames come with a `virtio_net_hdr`, in slots of version 2; what others on this machine send is not shown; what does not
/// fit into a slot waits in the socket.
pub(super) fn set_up(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    let on = |option| set(socket, libc::SOL_PACKET, option, &1 as &c_int);
    let version = libc::tpacket_versions::TPACKET_V2 as c_int;
    set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
    on(libc::PACKET_VNET_HDR)?;
    on(libc::PACKET_COPY_THRESH)?;
    on(libc::PACKET_IGNORE_OUTGOING)
}

/// How much memory the frames may take that wait in the socket.
pub(super) fn set_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let (socket, bytes) = (socket.as_fd(), bytes as c_int);
    // More than the system's limit needs a capability.
    set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
        .or_else(|_| set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes))
}

/// Shuts the socket to all frames, or opens it.
pub(super) fn shut(socket: impl AsFd, shut: bool) -> io::Result<()> {
    if !shut {
        return set(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0 as &c_int);
    }
    // `ret #0`: nothing of any frame.
    let mut drop_all = libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut drop_all };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Binds the socket to an interface, and lets everything in that passes there.
pub(super) fn bind(socket: impl AsFd, index: u32) -> io::Result<()> {
    let socket = socket.as_fd();
    // SAFETY: a structure of integers.
    let mut request: libc::packet_mreq = unsafe { zeroed() };
    (request.mr_ifindex, request.mr_type) = (index.cast_signed(), libc::PACKET_MR_PROMISC as u16);
    set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)?;
    bind_to(socket, index, ALL_PROTOCOLS)
}

/// Binds the socket to an interface, and to the frames of one protocol there, in the byte order of the network.
pub(crate) fn bind_to(socket: impl AsFd, index: u32, protocol: u16) -> io::Result<()> {
    let socket = socket.as_fd();
    // SAFETY: a structure of integers.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index.cast_signed();
    let len = size_of_val(&address) as socklen_t;
    // SAFETY: the kernel reads `len` bytes of the address.
    result(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Spreads the flows over the sockets of a group: `None` makes one, and the number of the group is returned.
pub(super) fn join(socket: impl AsFd, group: Option<u16>) -> io::Result<u16> {
    let socket = socket.as_fd();
    let flags = if group.is_none() { FANOUT_UNIQUE } else { 0 };
    let request = c_int::from(group.unwrap_or(0)) | (FANOUT_HASH | flags) << 16;
    set(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &request)?;
    get::<c_int>(socket, libc::PACKET_FANOUT).map(|joined| joined as u16)
}

/// Frames that the kernel has dropped since it was last asked.
pub(super) fn drops(socket: impl AsFd) -> u64 {
    get::<libc::tpacket_stats>(socket, libc::PACKET_STATISTICS).map_or(0, |stats| stats.tp_drops.into())
}

/// Whether the kernel notes when each frame comes at the interface, and not only when it comes to the socket; and whether it
/// says of each frame that is sent from now on when it left ([`departures`]).
pub(super) fn stamp(socket: impl AsFd, rx: bool, tx: bool) -> io::Result<()> {
    let departures = libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    let flags = if rx { libc::SOF_TIMESTAMPING_RX_SOFTWARE } else { 0 } | if tx { departures } else { 0 };
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &(flags | libc::SOF_TIMESTAMPING_SOFTWARE).cast_signed())
}

/// Room for what the kernel says of a frame that has left: two messages, each less than half of this.
#[repr(C, align(8))]
struct Said([u8; 256]);

/// Takes what the kernel has said of frames that have left, of `most` at most: of how many, and when the last one left, in ns
/// of `CLOCK_REALTIME`.
pub(super) fn departures(socket: impl AsFd, most: usize) -> (usize, Option<u64>) {
    let fd = socket.as_fd().as_raw_fd();
    let (mut count, mut last) = (0, None);
    while count < most {
        let mut said = Said([0; 256]);
        // SAFETY: null pointers and integers.
        let mut message: libc::msghdr = unsafe { zeroed() };
        (message.msg_control, message.msg_controllen) = ((&raw mut said).cast(), size_of::<Said>());
        // SAFETY: the kernel writes at most `msg_controllen` bytes to `said`, and nothing else has been given to it.
        if unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) } < 0 {
            break;
        }
        count += 1;
        last = stamp_of(&message).or(last);
    }
    (count, last)
}

/// The time stamp of the kernel in a message that it has written.
fn stamp_of(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: `msg_control` and `msg_controllen` are what the kernel has left of a buffer that outlives this call.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: a header that the macro has found lies whole in the buffer, which is aligned for it.
    while let Some(header) = unsafe { at.as_ref() } {
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_TIMESTAMPING {
            // SAFETY: of this kind are three of `struct timespec`, as the kernel writes them; the first one is its own stamp.
            let time = unsafe { libc::CMSG_DATA(at).cast::<libc::timespec>().read_unaligned() };
            let (seconds, nanoseconds) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
            return (seconds > 0).then_some(seconds * 1_000_000_000 + nanoseconds);
        }
        // SAFETY: as for the first one.
        at = unsafe { libc::CMSG_NXTHDR(message, at) };
    }
    None
}

/// Sends frames that all have the same header, from where they lie; returns how many, at least one.
pub(super) fn send(socket: impl AsFd, header: &[u8; VIRTIO_HEADER_LEN], frames: &[Span<'_>]) -> io::Result<usize> {
    let part = |at: *const u8, len| libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
    let mut parts = [[part(std::ptr::null(), 0); 2]; BURST];
    // SAFETY: null pointers and integers.
    let mut messages: [libc::mmsghdr; BURST] = unsafe { zeroed() };
    let count = frames.len().min(BURST);
    for ((frame, parts), message) in frames.iter().zip(&mut parts).zip(&mut messages) {
        *parts = [part(header.as_ptr(), header.len()), part(frame.as_ptr(), frame.len())];
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (parts.as_mut_ptr(), 2);
    }
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `count` messages of two parts each, readable as long as this call. Another process may write to the frames
    // meanwhile; the kernel copies them once and no reference to them is made here.
    let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT) };
    result(sent).map(|sent| sent as usize)
}

/// The ring of slots in which the kernel puts frames.
///
/// Who has a slot is said by its first word. From `head` on, `ours` slots are known to be ours: the kernel does not touch
/// them until they are given back.
pub(super) struct Ring {
    base: NonNull<u8>,
    slot_len: usize,
    slots: usize,
    head: usize,
    ours: usize,
}

// SAFETY: the memory belongs to the mapping, which nothing but this owns.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring of `slots` slots of `slot_len` bytes, both powers of two; `slot_len` from 2048 to `block_len`.
    pub fn new(socket: impl AsFd, slots: usize, slot_len: usize, block_len: usize) -> io::Result<Self> {
        let socket = socket.as_fd();
        let len = slots * slot_len;
        let request = libc::tpacket_req {
            tp_block_size: block_len as u32,
            tp_block_nr: (len / block_len) as u32,
            tp_frame_size: slot_len as u32,
            tp_frame_nr: slots as u32,
        };
        set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, socket, 0)
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, slot_len, slots, head: 0, ours: 0 })
    }

    /// Where slot `number`, counted from the first of ours, begins.
    fn at(&self, number: usize) -> NonNull<u8> {
        let slot = (self.head + number) % self.slots;
        // SAFETY: inside the mapping.
        unsafe { self.base.add(slot * self.slot_len) }
    }

    fn status(&self, number: usize) -> &AtomicU32 {
        // SAFETY: the first word of a slot is aligned, and both sides access it atomically.
        unsafe { self.at(number).cast().as_ref() }
    }

    /// Looks for up to `most` slots that are ours, and returns how many are.
    #[inline]
    pub fn look(&mut self, most: usize) -> usize {
        // Acquire: pairs with the kernel's write barrier before it gives us the slot, so what it put in is visible.
        while self.ours < most.min(self.slots) && self.status(self.ours).load(Ordering::Acquire) & OURS != 0 {
            self.ours += 1;
        }
        self.ours.min(most)
    }

    /// The bytes of slot `number` of ours.
    #[inline]
    pub fn slot(&self, number: usize) -> Option<&[u8]> {
        // SAFETY: the slot is ours, so the kernel leaves it alone until `give_back`, which needs `&mut self`.
        (number < self.ours).then(|| unsafe { std::slice::from_raw_parts(self.at(number).as_ptr(), self.slot_len) })
    }

    /// The bytes of slot `number` of ours, to be changed.
    #[inline]
    pub fn slot_mut(&mut self, number: usize) -> Option<&mut [u8]> {
        // SAFETY: as above, and `&mut self` is the only one.
        (number < self.ours).then(|| unsafe { std::slice::from_raw_parts_mut(self.at(number).as_ptr(), self.slot_len) })
    }

    /// Gives the first `count` slots of ours back to the kernel.
    #[inline]
    pub fn give_back(&mut self, count: usize) {
        let count = count.min(self.ours);
        for number in 0..count {
            // Release: pairs with the kernel's reading of the word before it writes to the slot; we have read it by then.
            self.status(number).store(0, Ordering::Release);
        }
        self.head = (self.head + count) % self.slots;
        self.ours -= count;
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.slots * self.slot_len) };
    }
}
