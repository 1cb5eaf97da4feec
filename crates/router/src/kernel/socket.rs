//! Netlink sockets: events as they come, and questions with their answers, however long these are.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::join::join;
use super::wire::{self, Message, Request};

/// The kernel writes answers in pieces of at most 32 KiB.
const BUFFER: usize = 64 << 10;

/// What the kernel may have ready for us before it drops events.
const WAITING: usize = 8 << 20;

/// How long an answer may take, all of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a list is asked for again that has changed while it was read.
const ATTEMPTS: u32 = 8;

/// Whom a socket talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, neighbours, traffic control.
    Route,
    /// Conntrack and nftables.
    Netfilter,
    /// IPsec.
    Xfrm,
    /// Whatever has a name of its own, such as ethtool.
    Generic,
    /// Sockets.
    Sockets,
}

/// Why the kernel was not asked, or did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It said no. `EPERM`: CAP_NET_ADMIN is missing; `EOPNOTSUPP`, `EPROTONOSUPPORT`: this kernel has it not.
    #[error("the kernel refused: {0}")]
    Refused(Errno),
    /// The socket failed.
    #[error("netlink failed: {0}")]
    Socket(#[from] Errno),
    /// It says nothing.
    #[error("the kernel has not answered for {} s", PATIENCE.as_secs())]
    Silent,
    /// A list has changed each time that it was read.
    #[error("a list has changed {ATTEMPTS} times while it was read")]
    Restless,
}

/// A socket that others are multicast to, and nobody asks by.
#[derive(Debug)]
pub struct Events {
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

/// What there was to receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// Nothing more.
    Nothing,
    /// Events were lost: what is known may be wrong.
    Overrun,
    /// Messages.
    Bytes(&'a [u8]),
}

impl Events {
    /// Listens to the groups of a mask: bit 0 is group 1.
    ///
    /// # Errors
    /// Without the protocol in this kernel, or without the right.
    pub fn listen(protocol: Protocol, groups: u32) -> Result<Self, Error> {
        let socket = open(protocol, groups)?;
        // With CAP_NET_ADMIN as much as is wanted, otherwise as much as everybody may have.
        sockopt::set_socket_recv_buffer_size_force(&socket, WAITING)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, WAITING))?;
        Ok(Self { socket, buffer: vec![0; BUFFER].into_boxed_slice() })
    }

    /// Listens to one more group, whose number is above those of the mask.
    ///
    /// # Errors
    /// When this kernel has no such group.
    pub fn join(&self, group: u32) -> Result<(), Error> {
        join(self.socket.as_fd(), group).map_err(Error::from)
    }

    /// The next datagram, without waiting.
    ///
    /// # Errors
    /// When the socket is of no more use.
    pub fn receive(&mut self) -> Result<Received<'_>, Error> {
        loop {
            return match receive(&self.socket, &mut self.buffer) {
                Ok(Some(length)) => Ok(Received::Bytes(&self.buffer[..length])),
                // Of another program, or cut off.
                Ok(None) => continue,
                Err(Errno::AGAIN) => Ok(Received::Nothing),
                Err(Errno::NOBUFS) => Ok(Received::Overrun),
                Err(Errno::INTR) => continue,
                Err(error) => Err(error.into()),
            };
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket by which the kernel is asked.
#[derive(Debug)]
pub struct Questions {
    socket: OwnedFd,
    buffer: Box<[u8]>,
    sequence: u32,
}

impl Questions {
    /// For one protocol.
    ///
    /// # Errors
    /// Without the protocol in this kernel.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        let socket = open(protocol, 0)?;
        // Dumps of conntrack come in one piece after the other, and each waits for us: this needs no room.
        Ok(Self { socket, buffer: vec![0; BUFFER].into_boxed_slice(), sequence: 0 })
    }

    /// Asks, and hands over every message of the answer. A list may come from its beginning several times, when it changes while it is read: `begin` is
    /// called each time.
    ///
    /// # Errors
    /// What the kernel says, or its silence.
    pub fn ask(
        &mut self,
        mut request: Request,
        mut begin: impl FnMut(),
        mut each: impl FnMut(Message<'_>),
    ) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            begin();
            if self.once(&mut request, &mut each)? {
                return Ok(());
            }
        }
        Err(Error::Restless)
    }

    /// Asks for something that is said in one message, or done.
    ///
    /// # Errors
    /// What the kernel says, or its silence.
    pub fn one<T>(&mut self, request: Request, read: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>, Error> {
        let mut found = None;
        self.ask(request, || (), |message| found = found.take().or_else(|| read(message.body)))?;
        Ok(found)
    }

    /// Whether the answer has no gaps.
    fn once(&mut self, request: &mut Request, each: &mut impl FnMut(Message<'_>)) -> Result<bool, Error> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let kernel = SocketAddrNetlink::new(0, 0);
        let end = Instant::now() + PATIENCE;
        rustix::net::sendto(&self.socket, request.numbered(self.sequence), SendFlags::empty(), &kernel)?;
        let mut whole = true;
        loop {
            let length = match receive(&self.socket, &mut self.buffer) {
                Ok(Some(length)) => length,
                Ok(None) | Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    self.wait(end)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for message in wire::messages(&self.buffer[..length]) {
                // What is left of a question that was given up.
                if message.sequence != self.sequence {
                    continue;
                }
                whole &= message.flags & wire::DUMP_INTERRUPTED == 0;
                match message.kind {
                    wire::DONE => return Ok(whole),
                    wire::ERROR => return refused(message.body).map(|()| whole),
                    _ => each(message),
                }
            }
        }
    }

    fn wait(&self, end: Instant) -> Result<(), Error> {
        let left = end.checked_duration_since(Instant::now()).ok_or(Error::Silent)?;
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
            Ok(0) => Err(Error::Silent),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// What an acknowledgement says.
fn refused(body: &[u8]) -> Result<(), Error> {
    match wire::u32_at(body, 0).unwrap_or_default() as i32 {
        0 => Ok(()),
        error => Err(Error::Refused(Errno::from_raw_os_error(error.saturating_neg().clamp(1, 4095)))),
    }
}

fn open(protocol: Protocol, groups: u32) -> Result<OwnedFd, Errno> {
    let protocol = match protocol {
        Protocol::Route => None,
        Protocol::Netfilter => Some(netlink::NETFILTER),
        Protocol::Xfrm => Some(netlink::XFRM),
        Protocol::Generic => Some(netlink::GENERIC),
        Protocol::Sockets => Some(netlink::SOCK_DIAG),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// The length of a datagram of the kernel's; `None` for one of somebody else, or one that has no place here, which the kernel never sends.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
    let space = buffer.len();
    let (_, length, from) = rustix::net::recvfrom(socket, buffer, RecvFlags::TRUNC)?;
    let of_kernel = from.and_then(|from| SocketAddrNetlink::try_from(from).ok()).is_some_and(|from| from.pid() == 0);
    Ok((of_kernel && length <= space).then_some(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_a_bit_is_joined_if_there_is_one() {
        let events = Events::listen(Protocol::Route, 0).unwrap();
        events.join(super::super::mirror::VLANS).unwrap();
        assert!(matches!(events.join(100_000), Err(Error::Socket(Errno::INVAL))));
    }

    #[test]
    fn the_kernel_answers_and_says_no() {
        let mut questions = Questions::open(Protocol::Route).unwrap();
        let mut count = 0;
        // RTM_GETLINK, all of them: there is always `lo`.
        questions.ask(Request::new(18, wire::DUMP, &[0; 16]), || (), |_| count += 1).unwrap();
        assert!(count > 0);
        let mut nobody = [0; 16];
        nobody[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
        let refused = questions.ask(Request::new(18, 0, &nobody), || (), |_| ()).unwrap_err();
        assert!(matches!(refused, Error::Refused(Errno::NODEV)), "{refused:?}");
        // What is left over does not disturb the next one.
        questions.ask(Request::new(18, wire::DUMP, &[0; 16]), || (), |_| ()).unwrap();
    }
}
