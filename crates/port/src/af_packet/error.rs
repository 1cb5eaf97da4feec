//! Why there is no packet socket, and what to do.

use crate::spec::InterfaceName;
use rustix::io::Errno;
use std::io;

/// Why an interface cannot be driven by a packet socket.
#[derive(Debug, thiserror::Error)]
pub enum AfPacketError {
    /// There is no such interface.
    #[error("there is no interface {0}; `ip link` lists those of this network namespace")]
    NoInterface(InterfaceName),
    /// Frames without an Ethernet header.
    #[error("{0} is no Ethernet interface; choose another one (`ip link` says link/ether there)")]
    NotEthernet(InterfaceName),
    /// Not allowed.
    #[error(
        "af_packet:{0} needs root or CAP_NET_RAW; try sudo, or give it to the program: \
         `setcap cap_net_raw+ep $(command -v millrace)` \
         (a card that root started has given that up, unless it was started with --keep-privileges)"
    )]
    NotPermitted(InterfaceName),
    /// Anything else.
    #[error("cannot {step} af_packet:{name}: {source}; Linux 4.20 or later is needed, `dmesg` may say more")]
    System {
        /// What failed.
        step: &'static str,
        /// The interface.
        name: InterfaceName,
        /// What the system said.
        source: io::Error,
    },
}

impl AfPacketError {
    pub(super) fn from_errno(errno: Errno, step: &'static str, name: &InterfaceName) -> Self {
        let name = name.clone();
        match errno {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted(name),
            Errno::NODEV | Errno::NXIO => Self::NoInterface(name),
            _ => Self::System { step, name, source: errno.into() },
        }
    }
}
