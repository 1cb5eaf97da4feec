//! Messages byte by byte, with descriptors.

use rustix::fd::BorrowedFd;
use rustix::io::{Errno, IoSlice};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub fn message(id: u16, command: u16, size: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend(command.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(body);
    bytes
}

pub fn whole(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    message(1, command, 16 + body.len() as u32, flags, body)
}

/// Sends bytes, and descriptors with them.
pub fn give(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(16))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || rights.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(stream, &[IoSlice::new(bytes)], &mut rights, SendFlags::NOSIGNAL)
}

/// Command and error of the next answer, and what is behind; `None`: the connection has ended.
pub fn answer(stream: &mut UnixStream) -> Option<(u16, u32, Vec<u8>)> {
    let mut header = [0; 16];
    stream.read_exact(&mut header).ok()?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let mut body = vec![0; word(4) as usize - 16];
    stream.read_exact(&mut body).ok()?;
    Some((u16::from_le_bytes([header[2], header[3]]), word(12), body))
}

pub fn access(offset: u64, region: u32, count: u32, data: &[u8]) -> Vec<u8> {
    let mut body = offset.to_le_bytes().to_vec();
    body.extend(region.to_le_bytes());
    body.extend(count.to_le_bytes());
    body.extend(data);
    body
}

/// A socket that takes so long to be closed, and its other end.
pub fn lingering(time: Duration) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    set_socket_linger(&writer, Some(time)).unwrap();
    writer.set_nonblocking(true).unwrap();
    while writer.write(&[0; 1 << 16]).is_ok() {}
    (writer, listener.accept().unwrap().0)
}
