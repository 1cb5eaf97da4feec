//! Sending replies, without ever waiting for who reads them.

use super::Server;
use crate::codec::{self, WireError};
use millrace_abi::message::Reply;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// What became of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Whole,
    /// The system does not let its fds travel. Nothing was sent.
    NoFds,
    /// The program is gone, or does not read its replies.
    Lost,
}

/// Whether most of what a socket can hold is free. Linux says that it can be written to only as long as it is.
fn has_room(socket: &OwnedFd) -> bool {
    let mut room = [PollFd::new(socket, PollFlags::OUT)];
    poll(&mut room, Some(&Timespec::default())).is_ok() && room[0].revents().contains(PollFlags::OUT)
}

impl Server {
    /// Sends a reply without fds. `false`: the connection is to be ended.
    pub(super) fn reply(&self, number: u64, reply: &Reply) -> bool {
        self.send_reply(number, reply, &[]) == Sent::Whole
    }

    pub(super) fn send_reply(&self, number: u64, reply: &Reply, fds: &[BorrowedFd<'_>]) -> Sent {
        let Some(client) = self.clients.get(&number) else { return Sent::Lost };
        // Fds that travel are limited for all of us together: they are not sent to one who lets much lie unread.
        if !fds.is_empty() && !has_room(&client.socket) {
            return Sent::Lost;
        }
        match codec::send(&client.socket, reply, fds) {
            Ok(()) => Sent::Whole,
            Err(WireError::System(Errno::TOOMANYREFS | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS))
                if !fds.is_empty() =>
            {
                Sent::NoFds
            }
            // A program that does not read its replies is disconnected rather than waited for.
            Err(_) => Sent::Lost,
        }
    }
}
