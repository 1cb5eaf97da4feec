//! The XDP program that hands the frames of an interface to our sockets.
//!
//! Six instructions: the frame goes to the socket of the queue on which it came, or to Linux where there is none. The
//! program hangs on the interface by a `bpf_link`, which the kernel removes with its last fd: at the end of the card,
//! however it comes about, so that a crash leaves nothing behind.

use super::{error::AfXdpError, sys};
use crate::link::Interface;
use crate::spec::{InterfaceName, XdpMode};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of linux/if_link.h.
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// `BPF_F_XDP_HAS_FRAGS` of linux/bpf.h: frames of several pieces may come.
const HAS_FRAGS: u32 = 1 << 5;

/// By this name a card recognises the program of another.
const NAME: [u8; 16] = *b"millrace_af_xdp\0";

/// A program on an interface. Gone from it when this is dropped.
pub(super) struct Program {
    map: OwnedFd,
    _link: OwnedFd,
    /// Why the driver does not run it, in which case Linux does, later and slower.
    pub generic: Option<Errno>,
}

impl Program {
    /// Loads the program for `queues` queues and puts it on `interface`; natively if the driver can and
    /// `mode` does not matter, or wants zero copy, which is native.
    pub fn attach(
        name: &InterfaceName,
        interface: &Interface,
        queues: u32,
        mode: XdpMode,
        pieces: bool,
    ) -> Result<Self, AfXdpError> {
        let failed = |step| move |errno| AfXdpError::from_errno(errno, step, name);
        let map = sys::create_socket_map(queues, NAME).map_err(failed("make a map for"))?;
        let flags = if pieces { HAS_FRAGS } else { 0 };
        let program = sys::load_program(&instructions(&map), flags, NAME).map_err(failed("load a program for"))?;
        let mut generic = None;
        let link = match sys::attach(&program, interface.index, NATIVE) {
            Err(errno) if may_be_generic(errno) && mode != XdpMode::ZeroCopy => {
                generic = Some(errno);
                sys::attach(&program, interface.index, GENERIC)
            }
            attached => attached,
        };
        let link = link.map_err(|errno| match errno {
            // Another program, attached as a link, natively or generically.
            Errno::BUSY | Errno::EXIST if is_of_a_card(interface) => AfXdpError::OtherCard(name.clone()),
            Errno::BUSY | Errno::EXIST => AfXdpError::OtherProgram(name.clone()),
            Errno::OPNOTSUPP if mode == XdpMode::ZeroCopy => AfXdpError::NoZeroCopy(name.clone()),
            _ => AfXdpError::from_errno(errno, "attach a program to", name),
        })?;
        Ok(Self { map, _link: link, generic })
    }

    /// From now on the frames of `queue` come to `socket`.
    pub fn redirect(&self, queue: u32, socket: impl AsFd) -> Result<(), Errno> {
        sys::set_socket(&self.map, queue, socket)
    }

    /// From now on the frames of `queue` stay with Linux.
    pub fn leave(&self, queue: u32) {
        // It fails only where that is so already.
        let _ = sys::clear_socket(&self.map, queue);
    }
}

/// Whether the program on the interface is that of a card.
fn is_of_a_card(interface: &Interface) -> bool {
    let now = Interface::find(interface.index).ok();
    now.and_then(|interface| sys::program_name(interface.program?)) == Some(NAME)
}

/// Whether it is the driver that does not like the program, and not somebody else's program or a missing right.
fn may_be_generic(errno: Errno) -> bool {
    !matches!(errno, Errno::PERM | Errno::ACCESS | Errno::BUSY | Errno::EXIST | Errno::NODEV | Errno::NOMEM)
}

/// `return bpf_redirect_map(&map, context->rx_queue_index, XDP_PASS)`. The last argument is what the helper returns for a
/// queue without a socket.
fn instructions(map: &OwnedFd) -> [u64; 6] {
    use std::os::fd::AsRawFd;
    // Field `rx_queue_index` of `struct xdp_md`.
    const RX_QUEUE_INDEX: i16 = 16;
    const XDP_PASS: i32 = 2;
    const BPF_REDIRECT_MAP: i32 = 51;
    // In a 64-bit load: the number is an fd of a map.
    const MAP_FD: u8 = 1;
    let (r1, r2, r3) = (1, 2, 3);
    [
        // r2 = *(u32 *)(r1 + RX_QUEUE_INDEX)
        instruction(0x61, r2, r1, RX_QUEUE_INDEX, 0),
        // r1 = map, of two parts
        instruction(0x18, r1, MAP_FD, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0, 0),
        // r3 = XDP_PASS
        instruction(0xb7, r3, 0, 0, XDP_PASS),
        instruction(0x85, 0, 0, 0, BPF_REDIRECT_MAP),
        instruction(0x95, 0, 0, 0, 0),
    ]
}

/// `struct bpf_insn` of linux/bpf.h on a little-endian machine.
fn instruction(code: u8, to: u8, from: u8, offset: i16, number: i32) -> u64 {
    u64::from(code)
        | u64::from(from << 4 | to) << 8
        | u64::from(offset.cast_unsigned()) << 16
        | u64::from(number.cast_unsigned()) << 32
}
