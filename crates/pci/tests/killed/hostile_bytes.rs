//! Messages byte by byte, with descriptors.

use rustix::fd::BorrowedFd;
use rustix::io::IoSlice;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longer than what is waited for.
const LINGERS: Duration = Duration::from_secs(30);

pub fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(16))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || rights.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut rights, SendFlags::NOSIGNAL).unwrap();
}

pub fn message(command: u16, body: &[u8]) -> Vec<u8> {
    let mut all = vec![1, 0];
    all.extend(command.to_le_bytes());
    all.extend((16 + body.len() as u32).to_le_bytes());
    all.extend([0; 8]);
    all.extend(body);
    all
}

/// Command and error of an answer; `None`: the other side has hung up.
pub fn answer(mut socket: &UnixStream) -> Option<(u16, u32)> {
    let mut head = [0; 16];
    socket.read_exact(&mut head).ok()?;
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
    socket.read_exact(&mut vec![0; word(4) as usize - 16]).ok()?;
    Some((u16::from_le_bytes([head[2], head[3]]), word(12)))
}

/// A socket that takes long to be closed, and its other end.
pub fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    set_socket_linger(&writer, Some(LINGERS)).unwrap();
    writer.set_nonblocking(true).unwrap();
    while writer.write(&[0; 1 << 16]).is_ok() {}
    (writer, listener.accept().unwrap().0)
}
