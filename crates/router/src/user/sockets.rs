//! Raw sockets: ESP and ESP in UDP from the network, and whole protected packets into it, by Linux's routes.
//!
//! | Socket | What it gets or sends |
//! |---|---|
//! | raw, protocol 50, of each version of IP | ESP for this host, put together from fragments by Linux; with it there, Linux sends no "protocol unreachable" |
//! | raw, protocol 17, of each version | copies of UDP to port 4500 without the marker of IKE's messages; a filter in the kernel leaves out everything else |
//! | raw, `IPPROTO_RAW`, of each version | what is sent, with its header |
//! | UDP, port 4500 | nothing: it is there so that Linux sends no "port unreachable" while no program of IKE has the port ([`Port`]) |

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use millrace_ipsec::ip::{V4_LEN, V6_LEN, protocol};
use millrace_ipsec::traversal::{Datagram, PORT};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt, sockopt,
};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::batch::{BEFORE, Batch, LONGEST, MOST};
use super::drops::{Drop, Drops};

/// What may wait in a socket: at 1,400 bytes, some thousand packets.
const WAITING: usize = 4 << 20;

/// What a raw socket says is protocol 255: whoever sends writes the header.
const RAW: i32 = 255;

/// A socket by which protected packets come.
#[derive(Debug)]
pub(super) struct Receiver {
    socket: Socket,
    protocol: u8,
    is_v4: bool,
    /// Packets that it had no room for, as it says.
    flooded: u32,
}

/// A packet that came: where it is in its buffer.
pub(super) type Came = Option<std::ops::Range<usize>>;

impl Receiver {
    /// One for each protocol and version; IPv6 may be missing.
    pub(super) fn all() -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for (is_v4, protocol) in
            [(true, protocol::ESP), (true, protocol::UDP), (false, protocol::ESP), (false, protocol::UDP)]
        {
            match Self::open(is_v4, protocol) {
                Err(error) if !is_v4 && error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32) => {}
                other => all.push(other?),
            }
        }
        Ok(all)
    }

    fn open(is_v4: bool, number: u8) -> io::Result<Self> {
        let domain = if is_v4 { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(i32::from(number))))?;
        socket.set_nonblocking(true)?;
        if number == protocol::UDP {
            socket.attach_filter(&filter(is_v4))?;
        }
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, WAITING).is_err() {
            socket.set_recv_buffer_size(WAITING)?;
        }
        setsockopt(&socket, sockopt::RxqOvfl, &1)?;
        if !is_v4 {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
            setsockopt(&socket, sockopt::Ipv6RecvTClass, &true)?;
        }
        Ok(Self { socket, protocol: number, is_v4, flooded: 0 })
    }

    /// Takes what has come, at most as many as there are buffers, and says where each packet begins and ends in its buffer.
    pub(super) fn receive(&mut self, batch: &mut Batch, drops: &mut Drops) -> Vec<Came> {
        let before = if self.is_v4 { BEFORE } else { BEFORE + V6_LEN };
        let room = before..BEFORE + LONGEST;
        let mut slices: Vec<_> = batch.emptied().map(|place| [IoSliceMut::new(&mut place[room.clone()])]).collect();
        // New for each call: those that were used are as long as what came last.
        let mut headers =
            MultiHeaders::<SockaddrStorage>::preallocate(MOST, Some(cmsg_space!(nix::libc::in6_pktinfo, i32, u32)));
        let flags = MsgFlags::MSG_DONTWAIT;
        let fd = self.socket.as_raw_fd();
        let Ok(results) = recvmmsg(fd, &mut headers, slices.iter_mut(), flags, None) else { return Vec::new() };
        let mut outer = Vec::with_capacity(MOST);
        for message in results {
            let mut ends = (message.address.and_then(v6_of), None, 0);
            for said in message.cmsgs().into_iter().flatten() {
                match said {
                    ControlMessageOwned::Ipv6PacketInfo(info) => ends.1 = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr)),
                    ControlMessageOwned::Ipv6TClass(class) => ends.2 = class as u8,
                    ControlMessageOwned::RxqOvfl(count) => {
                        drops.add(Drop::Flood, u64::from(count.wrapping_sub(self.flooded)));
                        self.flooded = count;
                    }
                    _ => {}
                }
            }
            outer.push((message.bytes, message.flags.contains(MsgFlags::MSG_TRUNC), ends));
        }
        let whole = |(at, (len, is_cut, ends)): (usize, (usize, bool, _))| {
            if is_cut || (self.is_v4 && len < V4_LEN) {
                drops.count(Drop::CutOff);
                return None;
            }
            if self.is_v4 {
                return Some(BEFORE..BEFORE + len);
            }
            let (Some(source), Some(destination), class) = ends else { return None };
            let header = &mut batch.place(at)[BEFORE..before];
            write_v6(header, source, destination, class, self.protocol, len);
            Some(BEFORE..before + len)
        };
        outer.into_iter().enumerate().map(whole).collect()
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn v6_of(address: SockaddrStorage) -> Option<Ipv6Addr> {
    address.as_sockaddr_in6().map(|address| address.ip())
}

/// The header that Linux has taken off, as far as anybody looks at it.
fn write_v6(header: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr, class: u8, protocol: u8, len: usize) {
    header[..4].copy_from_slice(&(6 << 28 | u32::from(class) << 20).to_be_bytes());
    header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    header[6..8].copy_from_slice(&[protocol, 64]);
    header[8..24].copy_from_slice(&source.octets());
    header[24..40].copy_from_slice(&destination.octets());
}

/// Classic BPF (`linux/filter.h`): UDP to port 4500 whose first word is not 0. What is too short for that is none.
fn filter(is_v4: bool) -> Vec<SockFilter> {
    // Where UDP begins is in X: of IPv4 behind the header, which the socket sees; of IPv6 at 0.
    const LOAD_X_HEADER_LEN: u16 = 0xb1;
    const LOAD_X: u16 = 0x01;
    const LOAD_HALF_AT_X: u16 = 0x48;
    const LOAD_WORD_AT_X: u16 = 0x40;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    vec![
        SockFilter::new(if is_v4 { LOAD_X_HEADER_LEN } else { LOAD_X }, 0, 0, 0),
        SockFilter::new(LOAD_HALF_AT_X, 0, 0, 2),
        SockFilter::new(JUMP_EQUAL, 0, 3, PORT.into()),
        SockFilter::new(LOAD_WORD_AT_X, 0, 0, 8),
        SockFilter::new(JUMP_EQUAL, 1, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

/// Packets of one version of IP that leave, and where they go.
#[derive(Default)]
struct Leaving<'a> {
    slices: Vec<[IoSlice<'a>; 1]>,
    addresses: Vec<Option<SockaddrStorage>>,
}

/// What protected packets leave by.
pub(super) struct Sender {
    sockets: [Option<Socket>; 2],
    headers: MultiHeaders<SockaddrStorage>,
}

impl Sender {
    /// With that mark on what it sends, for rules of routing (`ip rule add fwmark`).
    pub(super) fn open(mark: Option<u32>) -> io::Result<Self> {
        let open = |domain| -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))?;
            socket.set_nonblocking(true)?;
            // Nothing is received by this protocol, and it does not cost to say so.
            socket.set_send_buffer_size(WAITING)?;
            mark.map_or(Ok(()), |mark| socket.set_mark(mark))?;
            Ok(socket)
        };
        let sockets = [Some(open(Domain::IPV4)?), open(Domain::IPV6).ok()];
        Ok(Self { sockets, headers: MultiHeaders::preallocate(MOST, None) })
    }

    /// Sends all packets of the batch.
    pub(super) fn send<'a>(&mut self, packets: impl Iterator<Item = &'a [u8]>, drops: &mut Drops) {
        let mut by_version: [Leaving<'_>; 2] = Default::default();
        for packet in packets {
            let Some(destination) = destination(packet) else {
                drops.count(Drop::NoIp);
                continue;
            };
            let side = &mut by_version[usize::from(destination.is_ipv6())];
            side.slices.push([IoSlice::new(packet)]);
            side.addresses.push(Some(SockaddrStorage::from(SocketAddr::new(destination, 0))));
        }
        for (socket, Leaving { slices, addresses }) in self.sockets.iter().zip(by_version) {
            let Some(socket) = socket else {
                drops.add(Drop::Unreachable, slices.len() as u64);
                continue;
            };
            let mut from = 0;
            while from < slices.len() {
                let to = slices.len().min(from + MOST);
                let flags = MsgFlags::MSG_DONTWAIT;
                match sendmmsg(
                    socket.as_raw_fd(),
                    &mut self.headers,
                    &slices[from..to],
                    &addresses[from..to],
                    [],
                    flags,
                ) {
                    Ok(sent) => from += sent.count().max(1),
                    Err(error) => {
                        drops.count(Drop::of_sending(error));
                        from += 1;
                    }
                }
            }
        }
    }
}

fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(Ipv4Addr::from(*packet.get(16..)?.first_chunk::<4>()?).into()),
        6 => Some(Ipv6Addr::from(*packet.get(24..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// Who has UDP port 4500: a program of IKE, or, while there is none, we.
#[derive(Debug)]
pub(super) struct Port {
    held: Vec<UdpSocket>,
}

impl Port {
    /// Takes the port of both versions where nobody has it. A program of IKE that comes later, and says `SO_REUSEADDR`, as they do, gets its messages
    /// all the same: of two sockets Linux gives them to the one that came last.
    pub(super) fn hold() -> Self {
        let all = [(Domain::IPV6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)), (Domain::IPV4, Ipv4Addr::UNSPECIFIED.into())];
        let hold = |(domain, any): (Domain, IpAddr)| -> io::Result<UdpSocket> {
            let socket = Socket::new(domain, Type::DGRAM, None)?;
            if any.is_ipv6() {
                socket.set_only_v6(true)?;
            }
            // It keeps nothing of what comes.
            const RETURN: u16 = 0x06;
            socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])?;
            socket.set_nonblocking(true)?;
            socket.bind(&SocketAddr::new(any, PORT).into())?;
            // Only now: who has the port already keeps it for himself.
            socket.set_reuse_address(true)?;
            Ok(socket.into())
        };
        Self { held: all.into_iter().filter_map(|one| hold(one).ok()).collect() }
    }

    /// Keeps the entries of translators on the way alive (RFC 3948 §2.3). Where a program of IKE has the port, that does it.
    pub(super) fn keep_alive(&self, destination: IpAddr, port: u16) {
        let same = |socket: &&UdpSocket| socket.local_addr().is_ok_and(|own| own.is_ipv4() == destination.is_ipv4());
        if let Some(socket) = self.held.iter().find(same) {
            // Another one follows.
            let _ = socket.send_to(&Datagram::KEEPALIVE, (destination, port));
        }
    }

    /// In words.
    pub(super) fn said(&self) -> &'static str {
        match self.held.is_empty() {
            true => "a program of IKE has UDP port 4500",
            false => "no program of IKE had UDP port 4500 at the start; one that comes gets its messages",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_packets_go() {
        let mut packet = [0; 40];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[192, 0, 2, 1]);
        assert_eq!(destination(&packet), Some(IpAddr::from([192, 0, 2, 1])));
        write_v6(&mut packet, "2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap(), 0xb8, 50, 0);
        assert_eq!(destination(&packet), Some("2001:db8::2".parse().unwrap()));
        let header = millrace_ipsec::ip::Header::parse(&packet).unwrap();
        assert_eq!(
            (header.class, header.protocol, header.source),
            (0xb8, 50, "2001:db8::1".parse::<IpAddr>().unwrap())
        );
        assert!(
            destination(&packet[..39]).is_none() && destination(&[]).is_none() && destination(&[0x10; 40]).is_none()
        );
    }
}
