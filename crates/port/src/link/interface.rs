//! What Linux says about an interface: `rtnetlink`, as far as a wire needs it.

use rustix::{
    io::{self, Errno},
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink::SocketAddrNetlink, recv, send,
        socket_with,
    },
};
use std::os::fd::{AsFd, OwnedFd};

// Message types, flags and attributes of linux/netlink.h, linux/rtnetlink.h and linux/if_link.h.
const ERROR: u16 = 2;
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const LINK_GROUP: u32 = 1;
const ATTRIBUTE_ADDRESS: u16 = 1;
const ATTRIBUTE_MTU: u16 = 4;
const ATTRIBUTE_XDP: u16 = 43;
const ATTRIBUTE_XDP_PROGRAM: u16 = 4;
/// The bits of an attribute's type that say something about its content.
const TYPE_FLAGS: u16 = 0xc000;

const UP: u32 = 1;
const LOWER_UP: u32 = 1 << 16;

/// `struct nlmsghdr` and `struct ifinfomsg`.
const HEADER_LEN: usize = 16;
const LINK_HEADER_LEN: usize = 16;

/// Room for one message about an interface with all its attributes, those of many virtual functions included.
const MESSAGE_LEN: usize = 32 << 10;

/// An interface, as Linux described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Its number in this network namespace.
    pub index: u32,
    /// What kind of frames it has: `ARPHRD_*` of linux/if_arp.h.
    pub kind: u16,
    /// The largest packet behind an Ethernet header, in bytes.
    pub mtu: u32,
    /// Its MAC address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// The number of the XDP program on it.
    pub program: Option<u32>,
    flags: u32,
}

/// `ARPHRD_ETHER`, and `ARPHRD_LOOPBACK`, whose frames look the same.
const ETHERNETS: [u16; 2] = [1, 772];

/// What became known about an interface.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    Changed(Interface),
    Deleted(u32),
}

impl Interface {
    /// Asks for interface number `index`.
    pub fn find(index: u32) -> io::Result<Self> {
        let socket = route_socket(0)?;
        send(&socket, &request(GET_LINK, REQUEST, index, 0, 0), SendFlags::empty())?;
        let mut buffer = vec![0; MESSAGE_LEN];
        let (len, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        match messages(&buffer[..len]).next() {
            Some(Ok(News::Changed(interface))) if interface.index == index => Ok(interface),
            Some(Err(errno)) => Err(errno),
            _ => Err(Errno::NODEV),
        }
    }

    /// Whether it is up and has somebody at the other end.
    pub fn has_link(&self) -> bool {
        self.flags & (UP | LOWER_UP) == UP | LOWER_UP
    }

    /// Whether its frames begin with an Ethernet header.
    pub fn is_ethernet(&self) -> bool {
        ETHERNETS.contains(&self.kind)
    }

    /// Sets it up if it is not.
    pub fn bring_up(&self) -> io::Result<()> {
        if self.flags & UP != 0 {
            return Ok(());
        }
        ask(&request(NEW_LINK, REQUEST | ACKNOWLEDGE, self.index, UP, UP))
    }
}

/// Asks Linux for a change, by a message that wants to be acknowledged.
pub(crate) fn ask(message: &[u8]) -> io::Result<()> {
    let socket = route_socket(0)?;
    send(&socket, message, SendFlags::empty())?;
    let mut buffer = vec![0; MESSAGE_LEN];
    let (len, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
    match messages(&buffer[..len]).next() {
        Some(Err(errno)) => Err(errno),
        _ => Ok(()),
    }
}

/// A source of [`News`] about all interfaces of this network namespace.
pub(crate) struct Reports {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Reports {
    /// What happens from now on.
    pub fn subscribe() -> io::Result<Self> {
        Ok(Self { socket: route_socket(LINK_GROUP)?, buffer: vec![0; MESSAGE_LEN] })
    }

    /// Gives `see` what is there, without waiting.
    ///
    /// # Errors
    /// [`Errno::NOBUFS`] when some of it got lost.
    pub fn read(&mut self, mut see: impl FnMut(News)) -> io::Result<()> {
        loop {
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => messages(&self.buffer[..len]).flatten().for_each(&mut see),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl AsFd for Reports {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn route_socket(groups: u32) -> io::Result<OwnedFd> {
    // Protocol 0 is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

fn request(kind: u16, flags: u16, index: u32, set: u32, change: u32) -> [u8; HEADER_LEN + LINK_HEADER_LEN] {
    let mut message = [0; HEADER_LEN + LINK_HEADER_LEN];
    let mut put = |at: usize, bytes: &[u8]| message[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &((HEADER_LEN + LINK_HEADER_LEN) as u32).to_ne_bytes());
    put(4, &kind.to_ne_bytes());
    put(6, &flags.to_ne_bytes());
    put(HEADER_LEN + 4, &index.to_ne_bytes());
    put(HEADER_LEN + 8, &set.to_ne_bytes());
    put(HEADER_LEN + 12, &change.to_ne_bytes());
    message
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// What the messages in `bytes` say: news, or the error that answers a request. Others are left out.
fn messages(bytes: &[u8]) -> impl Iterator<Item = Result<News, Errno>> {
    parts(bytes, HEADER_LEN, |header| Some((word32(header, 0)? as usize, word16(header, 4)?))).filter_map(
        |(kind, message)| match kind {
            // An error of 0 is an acknowledgement.
            ERROR => {
                let errno = word32(message, 0)?.cast_signed();
                (errno != 0).then(|| Err(Errno::from_raw_os_error(errno.wrapping_neg())))
            }
            // A bridge tells of its ports in messages of its own family.
            NEW_LINK | DELETE_LINK if message.first() != Some(&0) => None,
            NEW_LINK => link(message).map(|interface| Ok(News::Changed(interface))),
            DELETE_LINK => word32(message, 4).map(|index| Ok(News::Deleted(index))),
            _ => None,
        },
    )
}

fn link(message: &[u8]) -> Option<Interface> {
    let (kind, index, flags) = (word16(message, 2)?, word32(message, 4)?, word32(message, 8)?);
    let mut interface = Interface { index, kind, mtu: 0, mac: None, program: None, flags };
    for (kind, value) in attributes(message.get(LINK_HEADER_LEN..)?) {
        match kind {
            ATTRIBUTE_ADDRESS => interface.mac = value.try_into().ok(),
            ATTRIBUTE_MTU => interface.mtu = word32(value, 0)?,
            ATTRIBUTE_XDP => {
                let program = attributes(value).find(|(kind, _)| *kind == ATTRIBUTE_XDP_PROGRAM);
                interface.program = program.and_then(|(_, value)| word32(value, 0));
            }
            _ => {}
        }
    }
    Some(interface)
}

fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    parts(bytes, 4, |header| Some((word16(header, 0)?.into(), word16(header, 2)? & !TYPE_FLAGS)))
}

/// Cuts `bytes` into pieces that begin with a header of `header_len` bytes, which gives the length of the whole piece and
/// its kind, and begin at multiples of four. Ends where the rest is no such piece.
fn parts(
    mut bytes: &[u8],
    header_len: usize,
    header: impl Fn(&[u8]) -> Option<(usize, u16)>,
) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = header(bytes)?;
        let content = bytes.get(header_len..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(header: &[u8], content: &[u8]) -> Vec<u8> {
        let mut piece = [header, content].concat();
        piece.resize(piece.len().next_multiple_of(4), 0);
        piece
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = (value.len() + 4) as u16;
        piece(&[len.to_ne_bytes(), kind.to_ne_bytes()].concat(), value)
    }

    fn message(kind: u16, family: u8, index: u32, attributes: &[u8]) -> Vec<u8> {
        let mut message = request(kind, 0, index, UP | LOWER_UP, 0).to_vec();
        message[HEADER_LEN] = family;
        message.extend_from_slice(attributes);
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        message
    }

    #[test]
    fn messages_are_understood() {
        let xdp = attribute(ATTRIBUTE_XDP | 0x8000, &[attribute(2, &[1]), attribute(4, &77u32.to_ne_bytes())].concat());
        let mac = attribute(ATTRIBUTE_ADDRESS, &[2, 0, 0, 0, 0, 1]);
        let attributes = [attribute(3, b"eth7\0"), attribute(ATTRIBUTE_MTU, &9000u32.to_ne_bytes()), mac, xdp].concat();
        let bytes =
            [message(NEW_LINK, 0, 7, &attributes), message(DELETE_LINK, 7, 7, &[]), message(DELETE_LINK, 0, 8, &[])]
                .concat();
        let news: Vec<_> = messages(&bytes).flatten().collect();
        let interface = Interface {
            index: 7,
            kind: 0,
            mtu: 9000,
            mac: Some([2, 0, 0, 0, 0, 1]),
            program: Some(77),
            flags: UP | LOWER_UP,
        };
        assert!(interface.has_link());
        assert_eq!(news, [News::Changed(interface), News::Deleted(8)]);
        for len in 0..bytes.len() {
            assert!(messages(&bytes[..len]).count() < 2, "{len} bytes of {}", bytes.len());
        }
    }

    #[test]
    fn lengths_that_cannot_be_end_the_list() {
        for len in [0u32, 1, 15, 1000, u32::MAX] {
            let mut bytes = message(NEW_LINK, 0, 7, &[]);
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0, "{len}");
        }
    }

    #[test]
    fn linux_describes_its_loopback() {
        let interface = Interface::find(1).expect("lo");
        assert!(interface.index == 1 && interface.mtu > 0 && interface.program.is_none());
        assert_eq!(Interface::find(0x7fff_fff0), Err(Errno::NODEV));
    }
}
