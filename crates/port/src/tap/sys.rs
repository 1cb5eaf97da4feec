//! The system calls of a tap interface that take `unsafe`: its `ioctl`s, and sending from memory that is shared.
#![allow(unsafe_code)]

use crate::spec::InterfaceName;
use millrace_dma::Span;
use millrace_packet::offload::{Offloads, VIRTIO_HEADER_LEN};
use rustix::{
    io,
    ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl, opcode},
};
use std::{
    ffi::{c_int, c_uint},
    os::fd::{AsFd, AsRawFd},
};

/// `TUNSETIFF` of `linux/if_tun.h`. Its number says `int`, but what it takes is an `ifreq`.
const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
/// `TUNSETOFFLOAD`: its argument is a number, not a pointer.
const TUNSETOFFLOAD: Opcode = opcode::write::<c_uint>(b'T', 208);
/// `TUNSETVNETHDRSZ`: bytes of the header in front of each frame.
const TUNSETVNETHDRSZ: Opcode = opcode::write::<c_int>(b'T', 216);
/// `TUNSETVNETLE`: the header is little-endian, also on machines that are not.
const TUNSETVNETLE: Opcode = opcode::write::<c_int>(b'T', 220);
/// `SIOCGIFFLAGS` of `linux/sockios.h`.
const SIOCGIFFLAGS: Opcode = 0x8913;
/// `SIOCSIFFLAGS` of `linux/sockios.h`.
const SIOCSIFFLAGS: Opcode = 0x8914;

const IFF_TUN: u16 = 0x0001;
const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const IFF_UP: u16 = 0x0001;

/// `TUN_F_*`: what Linux may leave to us. Checksums, TCP over IPv4 and IPv6, TCP with ECN.
const TUN_F_TCP: usize = 0x01 | 0x02 | 0x04 | 0x08;
/// UDP over IPv4 and IPv6, since Linux 6.2.
const TUN_F_USO: usize = 0x20 | 0x40;

/// `struct ifreq` of `linux/if.h` on 64-bit systems, as far as it concerns flags.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);

impl InterfaceRequest {
    fn new(name: &InterfaceName, flags: u16) -> Self {
        let mut request = Self { name: [0; 16], flags, rest: [0; 22] };
        // At most 15 bytes, so a zero follows.
        request.name[..name.as_str().len()].copy_from_slice(name.as_str().as_bytes());
        request
    }
}

fn request<const OPCODE: Opcode>(fd: impl AsFd, request: &mut InterfaceRequest) -> io::Result<()> {
    // SAFETY: this function is called with three of the codes above only, all of which take an `ifreq`, read its name and
    // read or write its flags; the request outlives the call.
    unsafe { ioctl(fd, Updater::<OPCODE, InterfaceRequest>::new(request)) }
}

/// Makes `tun`, which is `/dev/net/tun`, a queue of the tap interface `name`, creating that if need be.
pub(super) fn attach(tun: impl AsFd, name: &InterfaceName, several: bool) -> io::Result<()> {
    let several = if several { IFF_MULTI_QUEUE } else { 0 };
    request::<TUNSETIFF>(tun, &mut InterfaceRequest::new(name, IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | several))
}

/// Makes `tun`, which is `/dev/net/tun`, the TUN interface `name`, which has packets without an Ethernet header, creating that if need be.
pub(crate) fn attach_packets(tun: impl AsFd, name: &InterfaceName) -> io::Result<()> {
    request::<TUNSETIFF>(tun, &mut InterfaceRequest::new(name, IFF_TUN | IFF_NO_PI))
}

/// Says what a header looks like and what Linux may leave to us, and returns what may be left to Linux.
pub(super) fn set_offloads(tun: impl AsFd) -> io::Result<Offloads> {
    let tun = tun.as_fd();
    // SAFETY: both take a pointer to an int, which they read.
    unsafe {
        ioctl(tun, Setter::<TUNSETVNETHDRSZ, c_int>::new(VIRTIO_HEADER_LEN as c_int))?;
        ioctl(tun, Setter::<TUNSETVNETLE, c_int>::new(1))?;
    }
    // SAFETY: takes a number.
    let set = |flags| unsafe { ioctl(tun, IntegerSetter::<TUNSETOFFLOAD>::new_usize(flags)) };
    match set(TUN_F_TCP | TUN_F_USO) {
        Ok(()) => Ok(Offloads::ALL),
        Err(io::Errno::INVAL) => set(TUN_F_TCP).map(|()| Offloads { udp: false, ..Offloads::ALL }),
        Err(errno) => Err(errno),
    }
}

/// Whether interface `name` is up; `socket` is any socket of its network namespace.
pub(super) fn is_up(socket: impl AsFd, name: &InterfaceName) -> io::Result<bool> {
    let mut flags = InterfaceRequest::new(name, 0);
    request::<SIOCGIFFLAGS>(socket, &mut flags)?;
    Ok(flags.flags & IFF_UP != 0)
}

/// Sends a frame and its header from where they lie.
pub(super) fn send(tun: impl AsFd, header: &[u8; VIRTIO_HEADER_LEN], frame: Span<'_>) -> io::Result<()> {
    let part = |at: *const u8, len| libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
    let parts = [part(header.as_ptr(), header.len()), part(frame.as_ptr(), frame.len())];
    // SAFETY: both parts are readable as long as this call. Another process may write to the frame meanwhile; the kernel
    // copies it once and no reference to it is made here. (`rustix` wants slices, which would be such references.)
    let sent = unsafe { libc::writev(tun.as_fd().as_raw_fd(), parts.as_ptr(), 2) };
    if sent >= 0 {
        Ok(())
    } else {
        Err(io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(io::Errno::IO))
    }
}

/// Brings interface `name` up; `socket` is any socket of its network namespace.
pub(super) fn bring_up(socket: impl AsFd, name: &InterfaceName) -> io::Result<()> {
    let mut flags = InterfaceRequest::new(name, 0);
    request::<SIOCGIFFLAGS>(socket.as_fd(), &mut flags)?;
    // Whoever was lent a ready interface by root may use it, but may not set its flags.
    if flags.flags & IFF_UP != 0 {
        return Ok(());
    }
    flags.flags |= IFF_UP;
    request::<SIOCSIFFLAGS>(socket, &mut flags)
}
