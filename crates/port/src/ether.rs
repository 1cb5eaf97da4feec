//! Frames of one Ethernet type of an interface of Linux: for protocols that we speak ourselves, one frame at a time. Linux sees them as well.

use crate::af_packet::sys;
use crate::link::{Interface, Reports};
use crate::spec::InterfaceName;
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EtherError {
    /// Not allowed.
    #[error("frames of {0} need root, or CAP_NET_RAW and CAP_NET_ADMIN; try sudo")]
    NotPermitted(InterfaceName),
    /// There is none of this name.
    #[error("there is no interface {0} in this network namespace; `ip link` lists those that there are")]
    NoInterface(InterfaceName),
    /// It has no Ethernet frames, or no address.
    #[error("{0} is no Ethernet interface")]
    NotEthernet(InterfaceName),
    /// Anything else.
    #[error("cannot {step} {name}: {source}")]
    System {
        /// What failed.
        step: &'static str,
        /// The interface.
        name: InterfaceName,
        /// What the system said.
        source: io::Error,
    },
}

/// An interface whose frames we send and receive.
#[derive(Clone, Debug)]
pub struct EtherInterface {
    name: InterfaceName,
    index: u32,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// The largest packet behind an Ethernet header, in bytes.
    pub mtu: u32,
}

impl EtherInterface {
    /// Finds it, and sets it up if it is down.
    ///
    /// # Errors
    /// [`EtherError`].
    pub fn open(name: &InterfaceName) -> Result<Self, EtherError> {
        let failed = |step| move |errno| from_errno(errno, step, name);
        let reports = Reports::subscribe().map_err(failed("look for"))?;
        let index = name_to_index(&reports, name.as_str()).map_err(failed("find"))?;
        let interface = Interface::find(index).map_err(failed("find"))?;
        // The loopback's frames look the same, and come from nobody.
        let mac = interface.mac.filter(|mac| interface.is_ethernet() && *mac != [0; 6]);
        let mac = mac.ok_or_else(|| EtherError::NotEthernet(name.clone()))?;
        interface.bring_up().map_err(failed("set up"))?;
        Ok(Self { name: name.clone(), index, mac, mtu: interface.mtu })
    }

    /// Its frames of an Ethernet type.
    ///
    /// # Errors
    /// [`EtherError`].
    pub fn frames(&self, ether_type: u16) -> Result<EtherSocket, EtherError> {
        let failed = |step| move |errno| from_errno(errno, step, &self.name);
        // Of no protocol until it is bound: those of other interfaces are not for it.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(failed("open"))?;
        sys::bind_to(&socket, self.index, ether_type.to_be()).map_err(failed("bind a socket to"))?;
        Ok(EtherSocket { socket })
    }
}

fn from_errno(errno: Errno, step: &'static str, name: &InterfaceName) -> EtherError {
    let name = name.clone();
    match errno {
        Errno::PERM | Errno::ACCESS => EtherError::NotPermitted(name),
        Errno::NODEV | Errno::NXIO => EtherError::NoInterface(name),
        _ => EtherError::System { step, name, source: errno.into() },
    }
}

/// Frames of one Ethernet type of an interface.
#[derive(Debug)]
pub struct EtherSocket {
    socket: OwnedFd,
}

impl EtherSocket {
    /// The next frame, without its VLAN tag; what does not fit is cut off. `None` when there is none.
    ///
    /// # Errors
    /// As the system says, such as [`Errno::NETDOWN`] once when the interface goes down.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match recv(&self.socket, buffer, RecvFlags::DONTWAIT) {
            Ok((len, _)) => Ok(Some(len)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends a frame, Ethernet header and all.
    ///
    /// # Errors
    /// As the system says: the interface is down, or has no room.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(&self.socket, frame, SendFlags::DONTWAIT)?;
        Ok(())
    }
}

impl AsFd for EtherSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_ethernet_interface_is_refused() {
        let open = |name: &str| EtherInterface::open(&name.parse().unwrap()).unwrap_err();
        assert!(matches!(open("lo"), EtherError::NotEthernet(_)), "{}", open("lo"));
        assert!(matches!(open("nosuch0"), EtherError::NoInterface(_)), "{}", open("nosuch0"));
    }
}
