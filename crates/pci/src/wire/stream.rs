//! A connection as a stream of messages. Nothing here waits: what has not come yet comes later, and what does not go now
//! goes later; there is never more than one answer to be sent, and nothing is read before it has gone.

use super::message::{HEADER, Header, MOST_BODY, MOST_FDS};
use crate::handover::{Fds, SavedStream, TakenFds, hex, unhex};
use crate::keeper::Shared;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// A message as it came.
pub(crate) struct Message {
    pub header: Header,
    pub body: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// What came of a look at the connection.
pub(crate) enum Came {
    /// A message.
    Message(Message),
    /// Nothing yet, or not all of it.
    Nothing,
    /// The other side has hung up, or is to be hung up on, for this reason.
    End(&'static str),
}

/// One connection.
pub(crate) struct Stream {
    socket: UnixStream,
    // The message that is coming, and of which header.
    bytes: Vec<u8>,
    header: Option<Header>,
    fds: Vec<OwnedFd>,
    // What has not gone yet of the last answer, and what goes with its first byte.
    out: Vec<u8>,
    gone: usize,
    out_fds: Vec<Shared>,
}

impl Stream {
    /// Over a socket that never waits.
    pub fn new(socket: UnixStream) -> Self {
        let (bytes, fds, out) = (Vec::new(), Vec::new(), Vec::new());
        Self { socket, bytes, header: None, fds, out, gone: 0, out_fds: Vec::new() }
    }

    /// What of it is under way, in words.
    pub fn save<'s>(&'s self, fds: &mut Fds<'s>) -> SavedStream {
        SavedStream {
            socket: fds.add(self.socket.as_fd()),
            came: hex(&self.bytes),
            came_fds: self.fds.iter().map(|fd| fds.add(fd.as_fd())).collect(),
            rest: hex(&self.out[self.gone..]),
            rest_fd: self.out_fds.iter().find_map(Shared::fd).map(|fd| fds.add(fd)),
        }
    }

    /// A connection that another card has had, at the byte where that one was.
    pub fn restore(saved: &SavedStream, fds: &mut TakenFds) -> Result<Self, String> {
        let mut stream = Self::new(fds.take(saved.socket)?.into());
        (stream.bytes, stream.out) = (unhex(&saved.came)?, unhex(&saved.rest)?);
        stream.fds = saved.came_fds.iter().map(|&fd| fds.take(fd)).collect::<Result<_, _>>()?;
        let rest_fd = saved.rest_fd.map(|fd| fds.take(fd)).transpose()?;
        stream.out_fds = rest_fd.into_iter().map(|fd| Shared::File(Arc::new(fd))).collect();
        if stream.bytes.len() > HEADER + MOST_BODY || stream.fds.len() > MOST_FDS {
            return Err("more of a message than any message has".to_owned());
        }
        Ok(stream)
    }

    /// The other side sees the end. To be dropped where it may take long: what has come, and what nobody has read, is closed with it.
    pub fn shut(&self) {
        // It has hung up already.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Whether a message has begun and not ended.
    pub fn is_midway(&self) -> bool {
        !self.bytes.is_empty() || self.header.is_some()
    }

    /// Whether an answer has not gone yet.
    pub fn is_sending(&self) -> bool {
        self.gone < self.out.len()
    }

    /// Takes what has come, up to the end of one message.
    pub fn receive(&mut self) -> Came {
        loop {
            let wanted = match &self.header {
                None => HEADER,
                Some(header) => match header.body() {
                    Some(body) => HEADER + body,
                    None => return Came::End("a message of a size that no message has"),
                },
            };
            if self.bytes.len() < wanted {
                match self.receive_some(wanted) {
                    Ok(0) => return Came::End("it hung up"),
                    Ok(_) => continue,
                    Err(Errno::AGAIN) => return Came::Nothing,
                    Err(Errno::INTR) => continue,
                    // Too many descriptors.
                    Err(Errno::MSGSIZE) => {
                        return Came::End("more descriptors than a message has, or none are left here");
                    }
                    Err(_) => return Came::End("the socket failed"),
                }
            }
            match self.header.take() {
                None => self.header = self.bytes.first_chunk().map(Header::decode),
                Some(header) => {
                    let body = self.bytes.split_off(HEADER);
                    self.bytes.clear();
                    return Came::Message(Message { header, body, fds: core::mem::take(&mut self.fds) });
                }
            }
        }
    }

    /// Reads on, up to `wanted` bytes of this message and none of the next, whose descriptors would be taken for this one's.
    fn receive_some(&mut self, wanted: usize) -> Result<usize, Errno> {
        let begun = self.bytes.len();
        self.bytes.resize(wanted, 0);
        let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.bytes[begun..])];
        let received = recvmsg(&self.socket, &mut into, &mut ancillary, RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC);
        self.bytes.truncate(begun + received.as_ref().map_or(0, |received| received.bytes));
        let received = received?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.fds.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > MOST_FDS {
            return Err(Errno::MSGSIZE);
        }
        Ok(received.bytes)
    }

    /// Sends an answer, as far as it goes now. There is none before it that has not gone. Of one that the system does not take, nothing is left: it can be sent again.
    pub fn send(&mut self, answer: Vec<u8>, fds: Vec<Shared>) -> Result<(), Errno> {
        (self.out, self.gone, self.out_fds) = (answer, 0, fds);
        let sent = self.send_on();
        if sent.is_err() && self.gone == 0 {
            self.out.clear();
            self.out_fds.clear();
        }
        sent
    }

    /// Goes on with the answer that has not gone yet.
    pub fn send_on(&mut self) -> Result<(), Errno> {
        while self.is_sending() {
            let fds: Vec<BorrowedFd<'_>> = self.out_fds.iter().filter_map(Shared::fd).collect();
            let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MOST_FDS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(Errno::MSGSIZE);
            }
            let rest = [IoSlice::new(&self.out[self.gone..])];
            match sendmsg(&self.socket, &rest, &mut ancillary, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.gone += sent;
                    self.out_fds.clear();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
