//! What can go wrong when a tap interface is opened.

use super::TUN;
use crate::spec::InterfaceName;
use rustix::io::Errno;
use std::io;

/// Why there is no tap interface.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The kernel or the container has no tap interfaces.
    #[error(
        "tap:{0} needs {TUN}, which is missing; load it with `modprobe tun`, or give it to the container \
         (`--device {TUN}`)"
    )]
    NoDevice(InterfaceName),
    /// Not allowed.
    #[error(
        "tap:{0} needs root or CAP_NET_ADMIN; try sudo, or have root make the interface for you: \
         `ip tuntap add {0} mode tap user $USER`, `ip link set {0} up` \
         (a card that root started has given that up, unless it was started with --keep-privileges)"
    )]
    NotPermitted(InterfaceName),
    /// Somebody else has it.
    #[error("tap:{0} is in use by another program; stop that program or choose another name")]
    Busy(InterfaceName),
    /// An interface of another kind has this name, or a tap interface with one queue where several are asked for.
    #[error(
        "there is an interface {0} and it is no tap interface, or was made for one queue only; choose another name \
         (`ip link` lists those taken), or make it with `ip tuntap add {0} mode tap multi_queue`"
    )]
    OtherKind(InterfaceName),
    /// Anything else.
    #[error("cannot {step} tap:{name}: {source}; `dmesg` may say more")]
    System {
        /// What failed.
        step: &'static str,
        /// The interface.
        name: InterfaceName,
        /// What the system said.
        source: io::Error,
    },
}

impl TapError {
    pub(super) fn from_errno(errno: Errno, step: &'static str, name: &InterfaceName) -> Self {
        let name = name.clone();
        match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO if step == "open" => Self::NoDevice(name),
            Errno::PERM | Errno::ACCESS => Self::NotPermitted(name),
            Errno::BUSY => Self::Busy(name),
            Errno::INVAL if step == "create" => Self::OtherKind(name),
            _ => Self::System { step, name, source: errno.into() },
        }
    }
}
