//! A program that speaks the protocol of the socket itself, and keeps to it as much as it likes.

use super::Daemon;
use millrace::{Mode, QueueId, Sharing};
use millrace_abi::message::*;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::path::Path;

/// A peer that sends what it likes.
pub struct Peer {
    pub socket: OwnedFd,
}

impl Peer {
    pub fn try_connect(path: &Path) -> Result<Self, rustix::io::Errno> {
        let address = SocketAddrUnix::new(path)?;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &address)?;
        Ok(Self { socket })
    }

    pub fn stranger(daemon: &Daemon) -> Self {
        Self::try_connect(&daemon.path).unwrap()
    }

    pub fn connect(daemon: &Daemon) -> Self {
        Self::introduced(&daemon.path)
    }

    /// One that has said Hello.
    pub fn introduced(path: &Path) -> Self {
        let mut peer = Self::try_connect(path).unwrap();
        assert!(matches!(peer.ask(&Request::Hello { version: VERSION }), Some(Reply::Hello { .. })));
        peer
    }

    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).is_ok()
    }

    /// The next reply and its fds, if there is one by now.
    pub fn reply_by_now(&mut self) -> Option<(Reply, Vec<OwnedFd>)> {
        self.receive(RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC)
    }

    /// The next reply and its fds; `None` when the connection is closed.
    pub fn reply_with_fds(&mut self) -> Option<(Reply, Vec<OwnedFd>)> {
        self.receive(RecvFlags::CMSG_CLOEXEC)
    }

    fn receive(&mut self, flags: RecvFlags) -> Option<(Reply, Vec<OwnedFd>)> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags).ok()?;
        let messages = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights.collect::<Vec<_>>()),
            _ => None,
        });
        let fds = messages.flatten().collect();
        let bytes = &bytes[..received.bytes];
        (!bytes.is_empty()).then(|| (decode(bytes).expect("the daemon keeps to its protocol"), fds))
    }

    /// The next reply; `None` when the connection is closed.
    pub fn reply(&mut self) -> Option<Reply> {
        let mut bytes = vec![0; MAX_MESSAGE];
        // Descriptors that come with it are not taken, and so are closed.
        let (len, _) = rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty()).ok()?;
        (len > 0).then(|| decode(&bytes[..len]).expect("the daemon keeps to its protocol"))
    }

    pub fn ask_with(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Option<Reply> {
        self.send_bytes(&encode(request).unwrap(), fds);
        self.reply()
    }

    pub fn ask(&mut self, request: &Request) -> Option<Reply> {
        self.ask_with(request, &[])
    }

    pub fn open(&mut self, queue: QueueId, mode: Mode, sharing: Sharing) -> Handle {
        match self.ask(&Request::Open { queue, mode, sharing, buffers: Buffers::Driver, joiners: None }) {
            Some(Reply::Opened { handle, .. }) => handle,
            other => panic!("{other:?}"),
        }
    }

    pub fn done(&mut self, request: &Request) {
        assert_eq!(self.ask(request), Some(Reply::Done));
    }

    pub fn refused(&mut self, request: &Request) -> ErrorCode {
        refused(self.ask(request))
    }
}

pub fn refused(reply: Option<Reply>) -> ErrorCode {
    match reply {
        Some(Reply::Error { code, text }) => {
            assert!(!text.is_empty());
            code
        }
        other => panic!("{other:?}"),
    }
}

pub fn hello() -> Vec<u8> {
    encode(&Request::Hello { version: VERSION }).unwrap()
}
