//! The three `ioctl`s that make a tap interface; the only `unsafe` of this crate.
#![allow(unsafe_code)]

use crate::spec::TapName;
use rustix::{
    io,
    ioctl::{Opcode, Updater, ioctl, opcode},
};
use std::{ffi::c_int, os::fd::AsFd};

/// `TUNSETIFF` of `linux/if_tun.h`. Its number says `int`, but what it takes is an `ifreq`.
const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
/// `SIOCGIFFLAGS` of `linux/sockios.h`.
const SIOCGIFFLAGS: Opcode = 0x8913;
/// `SIOCSIFFLAGS` of `linux/sockios.h`.
const SIOCSIFFLAGS: Opcode = 0x8914;

const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const IFF_UP: u16 = 0x0001;

/// `struct ifreq` of `linux/if.h` on 64-bit systems, as far as it concerns flags.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);

impl InterfaceRequest {
    fn new(name: &TapName, flags: u16) -> Self {
        let mut request = Self { name: [0; 16], flags, rest: [0; 22] };
        // At most 15 bytes, so a zero follows.
        request.name[..name.as_str().len()].copy_from_slice(name.as_str().as_bytes());
        request
    }
}

fn request<const OPCODE: Opcode>(fd: impl AsFd, request: &mut InterfaceRequest) -> io::Result<()> {
    // SAFETY: this function is called with the three codes above only, all of which take an `ifreq`, read its name and
    // read or write its flags; the request outlives the call.
    unsafe { ioctl(fd, Updater::<OPCODE, InterfaceRequest>::new(request)) }
}

/// Makes `tun`, which is `/dev/net/tun`, the other end of the tap interface `name`, creating it if need be.
pub(super) fn attach(tun: impl AsFd, name: &TapName) -> io::Result<()> {
    request::<TUNSETIFF>(tun, &mut InterfaceRequest::new(name, IFF_TAP | IFF_NO_PI))
}

/// Brings interface `name` up; `socket` is any socket of its network namespace.
pub(super) fn bring_up(socket: impl AsFd, name: &TapName) -> io::Result<()> {
    let mut flags = InterfaceRequest::new(name, 0);
    request::<SIOCGIFFLAGS>(socket.as_fd(), &mut flags)?;
    // Whoever was lent a ready interface by root may use it, but may not set its flags.
    if flags.flags & IFF_UP != 0 {
        return Ok(());
    }
    flags.flags |= IFF_UP;
    request::<SIOCSIFFLAGS>(socket, &mut flags)
}
