//! The one message that QEMU sends earlier than the `vhost` crate takes it.
//!
//! `VHOST_USER_SET_VRING_ENABLE` is for those who have negotiated `VHOST_USER_F_PROTOCOL_FEATURES`. For QEMU that is done
//! with `SET_PROTOCOL_FEATURES`: it enables the first pair of queues as soon as it is connected, long before its guest
//! chooses features. The crate waits for `SET_FEATURES` and takes the message for an error, after which a connection cannot
//! go on. So until then, this message is read and answered here.

use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::AsFd;
use vhost::vhost_user::{Error, Result};

/// Request, flags and size of what follows, 32 bits each in the byte order of the machine.
const HEADER: usize = 12;
/// The header, the queue, and 1 or 0.
const LEN: usize = HEADER + 8;
const SET_VRING_ENABLE: u32 = 18;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Waits for a message. If it is this one, takes it, gives queue and state to `enable`, and answers if that is asked for;
/// all others stay where they are. Says whether it was.
pub(super) fn take(socket: impl AsFd, enable: impl FnOnce(u32, bool) -> Result<()>) -> Result<bool> {
    let mut message = [0; LEN];
    let (_, len) = recv(&socket, &mut message[..HEADER], RecvFlags::PEEK | RecvFlags::WAITALL).map_err(broken)?;
    if len < HEADER || word(&message, 0) != SET_VRING_ENABLE || word(&message, 2) as usize != LEN - HEADER {
        return Ok(false);
    }
    // Files that came with it, which it cannot have, are closed by this.
    let (_, len) = recv(&socket, &mut message, RecvFlags::WAITALL).map_err(broken)?;
    let state = match word(&message, 4) {
        _ if len < LEN => return Err(Error::PartialMessage),
        0 => false,
        1 => true,
        _ => return Err(Error::InvalidParam),
    };
    let done = enable(word(&message, 3), state);
    if word(&message, 1) & NEED_REPLY != 0 {
        let reply = [SET_VRING_ENABLE, VERSION | REPLY, (LEN - HEADER) as u32, u32::from(done.is_err()), 0];
        let bytes: Vec<u8> = reply.iter().flat_map(|word| word.to_ne_bytes()).collect();
        send(&socket, &bytes, SendFlags::NOSIGNAL).map_err(broken)?;
    }
    done.map(|()| true)
}

fn word(message: &[u8; LEN], number: usize) -> u32 {
    let at = number * 4;
    u32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]])
}

fn broken(error: rustix::io::Errno) -> Error {
    Error::SocketBroken(error.into())
}
