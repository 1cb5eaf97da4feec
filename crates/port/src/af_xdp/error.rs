//! Why there is no AF_XDP port, and what to do.

use crate::spec::InterfaceName;
use rustix::io::Errno;

/// Why an interface cannot be driven by AF_XDP.
#[derive(Debug, thiserror::Error)]
pub enum AfXdpError {
    /// There is no such interface.
    #[error("there is no interface {0}; `ip link` lists those of this network namespace")]
    NoInterface(InterfaceName),
    /// Not allowed.
    #[error(
        "af_xdp:{0} needs root, or CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF; try sudo, or give them to the program: \
         `setcap cap_net_raw,cap_net_admin,cap_bpf+ep $(command -v millrace)` \
         (a card that root started has given that up, unless it was started with --keep-privileges)"
    )]
    NotPermitted(InterfaceName),
    /// A kernel without AF_XDP, or one that is too old for what is needed here.
    #[error("af_xdp:{0} needs Linux 5.10 or later with AF_XDP (CONFIG_XDP_SOCKETS); use af_packet:{0} instead")]
    NoKernelSupport(InterfaceName),
    /// Another card has the interface.
    #[error("af_xdp:{0} is in use by another card; stop that card, or give this one another interface")]
    OtherCard(InterfaceName),
    /// Somebody else's XDP program is on the interface.
    #[error(
        "{0} has an XDP program of somebody else (`bpftool net show dev {0}` says whose); stop the program that uses it, or \
         remove what it left behind: `ip link set dev {0} xdp off`"
    )]
    OtherProgram(InterfaceName),
    /// Another AF_XDP socket has the queue.
    #[error(
        "queue {queue} of {name} is in use by another AF_XDP program; stop that program or choose another interface"
    )]
    QueueBusy {
        /// The interface.
        name: InterfaceName,
        /// Its queue, from 0.
        queue: u32,
    },
    /// There are not as many queues.
    #[error(
        "{name} has fewer than {queues} queues; write af_xdp:{name},queues=N with fewer, or give it more: \
         `ethtool -L {name} combined {queues}` (for veth: rx and tx instead of combined)"
    )]
    NoSuchQueue {
        /// The interface.
        name: InterfaceName,
        /// How many were asked for.
        queues: u32,
    },
    /// The driver cannot do it.
    #[error("the driver of {0} has no zero copy; write mode=auto or mode=copy")]
    NoZeroCopy(InterfaceName),
    /// Frames of the interface do not fit.
    #[error(
        "frames of {name} do not fit: its MTU is {mtu} and at most {most} is possible here; \
         `ip link set dev {name} mtu {most}`"
    )]
    Mtu {
        /// The interface.
        name: InterfaceName,
        /// Its MTU, in bytes.
        mtu: u32,
        /// The largest MTU that would do, in bytes.
        most: u32,
    },
    /// Memory for the frames.
    #[error(transparent)]
    Memory(#[from] millrace_dma::RegionError),
    /// The memory may not be locked.
    #[error(
        "af_xdp:{0} needs {1} KiB of locked memory, more than the limit; raise it with `ulimit -l unlimited`, or give the \
         program CAP_IPC_LOCK"
    )]
    LockedMemory(InterfaceName, usize),
    /// Anything else.
    #[error("cannot {step} af_xdp:{name}: {source}; `dmesg` may say more")]
    System {
        /// What failed.
        step: &'static str,
        /// The interface.
        name: InterfaceName,
        /// What the system said.
        source: std::io::Error,
    },
}

impl AfXdpError {
    /// What `errno` in `step` means where it means nothing particular.
    pub(super) fn from_errno(errno: Errno, step: &'static str, name: &InterfaceName) -> Self {
        let name = name.clone();
        match errno {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted(name),
            Errno::NODEV | Errno::NXIO => Self::NoInterface(name),
            Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT | Errno::NOSYS => Self::NoKernelSupport(name),
            _ => Self::System { step, name, source: errno.into() },
        }
    }
}
