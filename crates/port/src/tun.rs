//! An interface of Linux whose packets have no Ethernet header (TUN): one system call a packet, for what need not be fast.
//!
//! Addresses, MTU and routes are set as `ip` would set them. All of it goes with the interface, and that with [`Tun`].

mod settings;

use crate::spec::InterfaceName;
use crate::tap::{TUN, sys};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Why there is no such interface.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The kernel or the container has none.
    #[error(
        "{0} needs {TUN}, which is missing; load it with `modprobe tun`, or give it to the container (`--device {TUN}`)"
    )]
    NoDevice(InterfaceName),
    /// Not allowed.
    #[error("{0} needs root, or CAP_NET_ADMIN; try sudo")]
    NotPermitted(InterfaceName),
    /// Somebody else has it.
    #[error(
        "{0} is in use by another program, or an interface of another kind; choose another name, or end that program"
    )]
    Busy(InterfaceName),
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

/// An address of the interface, and who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Of this end.
    pub own: IpAddr,
    /// Of the other end, if it has one. Of the same version.
    pub peer: Option<IpAddr>,
}

/// The interface; there as long as this.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: InterfaceName,
    index: u32,
}

impl Tun {
    /// Makes it, or takes one over that is there and that nobody uses. It is down.
    ///
    /// # Errors
    /// [`TunError`].
    pub fn open(name: &InterfaceName) -> Result<Self, TunError> {
        let failed = |step| move |errno| from_errno(errno, step, name);
        let options = OFlags::NONBLOCK.bits() as i32;
        let file = File::options().read(true).write(true).custom_flags(options).open(TUN);
        let file = file.map_err(|error| from_errno(Errno::from_io_error(&error).unwrap_or(Errno::IO), "open", name))?;
        sys::attach_packets(&file, name).map_err(failed("create"))?;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let index = socket.and_then(|socket| name_to_index(&socket, name.as_str())).map_err(failed("find"))?;
        Ok(Self { file, name: name.clone(), index })
    }

    /// Sets its MTU, and sets it up. Linux makes no IPv6 address of its own for it.
    ///
    /// # Errors
    /// [`TunError`].
    pub fn set_up(&self, mtu: u16) -> Result<(), TunError> {
        // Where there is no IPv6, there is nothing to be kept from.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/addr_gen_mode", self.name), "1");
        settings::link(self.index, mtu).map_err(|errno| from_errno(errno, "set up", &self.name))
    }

    /// Adds an address. One that is there already is as well.
    ///
    /// # Errors
    /// [`TunError`]; also if there is no IPv6.
    pub fn add(&self, address: &Address) -> Result<(), TunError> {
        settings::address(self.index, address, true).map_err(|errno| from_errno(errno, "add an address to", &self.name))
    }

    /// Takes an address away. One that is not there is not missed.
    ///
    /// # Errors
    /// [`TunError`].
    pub fn remove(&self, address: &Address) -> Result<(), TunError> {
        match settings::address(self.index, address, false) {
            Err(Errno::ADDRNOTAVAIL) | Ok(()) => Ok(()),
            Err(errno) => Err(from_errno(errno, "take an address from", &self.name)),
        }
    }

    /// Makes it the way to everywhere, by IPv6 or IPv4. False: there is one of this metric already, by whatever interface, and it stays.
    ///
    /// # Errors
    /// [`TunError`].
    pub fn add_default_route(&self, ipv6: bool, metric: u32) -> Result<bool, TunError> {
        match settings::default_route(self.index, ipv6, metric, true) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(from_errno(errno, "make a route by", &self.name)),
        }
    }

    /// Takes that away again. What is not there need not be.
    pub fn remove_default_route(&self, ipv6: bool, metric: u32) {
        let _ = settings::default_route(self.index, ipv6, metric, false);
    }

    /// The next packet that Linux sends; `None` when there is none.
    ///
    /// # Errors
    /// As the system says; also when somebody has deleted the interface.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.file, buffer) {
            Ok(len) => Ok(Some(len)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives Linux a packet.
    ///
    /// # Errors
    /// As the system says: the interface is down, or it is no packet.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.file, packet)?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn from_errno(errno: Errno, step: &'static str, name: &InterfaceName) -> TunError {
    let name = name.clone();
    match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO if step == "open" => TunError::NoDevice(name),
        Errno::PERM | Errno::ACCESS => TunError::NotPermitted(name),
        Errno::BUSY => TunError::Busy(name),
        Errno::INVAL if step == "create" => TunError::Busy(name),
        _ => TunError::System { step, name, source: errno.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::{Rights, enter, ip};
    use std::net::UdpSocket;

    #[test]
    fn packets_of_linux_and_for_linux() {
        if !std::path::Path::new(TUN).exists() {
            println!("skipped: there is no {TUN}");
            return;
        }
        if enter("tun::tests::packets_of_linux_and_for_linux", Rights::OfRoot) {
            return;
        }
        let name: InterfaceName = "tun7".parse().unwrap();
        let tun = Tun::open(&name).unwrap();
        assert!(matches!(Tun::open(&name), Err(TunError::Busy(_))));
        tun.set_up(1400).unwrap();
        let address = |own: &str, peer: Option<&str>| Address {
            own: own.parse().unwrap(),
            peer: peer.map(|peer| peer.parse().unwrap()),
        };
        let first = address("192.0.2.7", Some("192.0.2.1"));
        for address in [first, address("192.0.2.8", None), address("fe80::7", Some("fe80::1"))] {
            tun.add(&address).unwrap();
            tun.add(&address).unwrap();
        }
        assert!(tun.add_default_route(false, 50).unwrap());
        assert!(!tun.add_default_route(false, 50).unwrap());
        assert!(ip("route get 203.0.113.9 oif tun7"), "there is no route");
        let socket = UdpSocket::bind("192.0.2.7:1000").unwrap();
        socket.send_to(b"hello", "203.0.113.9:2000").unwrap();
        let mut buffer = [0; 2000];
        let packet = loop {
            let len = tun.receive(&mut buffer).unwrap().expect("a packet of ours");
            // Linux looks for routers by itself.
            if buffer[0] >> 4 == 4 && buffer[9] == 17 {
                break buffer[..len].to_vec();
            }
        };
        assert_eq!(
            (packet.len(), &packet[12..20], &packet[28..]),
            (33, &[192, 0, 2, 7, 203, 0, 113, 9][..], &b"hello"[..])
        );
        // Back where it came from: addresses and ports exchanged, which no sum notices.
        let back = [&packet[..12], &packet[16..20], &packet[12..16], &packet[22..24], &packet[20..22], &packet[24..]];
        tun.send(&back.concat()).unwrap();
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((len, from.to_string().as_str()), (5, "203.0.113.9:2000"));
        tun.remove(&first).unwrap();
        tun.remove(&first).unwrap();
        assert!(UdpSocket::bind("192.0.2.7:1001").is_err());
    }
}
