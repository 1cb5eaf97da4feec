//! What an ordinary ring of a bell costs in system calls, beside what it is without one:
//!
//! ```text
//! strace -f -c target/debug/examples/rings signal 3200
//! strace -f -c target/debug/examples/rings event 3200
//! ```
//!
//! A trace makes some rings slow, and then that user is looked at closely: `clock_gettime` is called twice a ring. With `--seccomp-bpf -e trace=clock_gettime` it is
//! not called.
//!
//! `signal` signals an eventfd and `event` rings a bell of one, `send` sends to a socket and `socket` rings a bell of one.

use millrace_port::{Bell, signal};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use std::sync::Arc;

/// A user who has no other bells.
const USER: u32 = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().ok_or("what: signal, event, send or socket")?;
    let count: u32 = arguments.next().ok_or("how often")?.parse()?;
    let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (socket, _other) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let socket = Arc::new(socket);
    let (of_event, of_socket) = (Bell::event(USER, event.clone()), Bell::of(USER, socket.clone()));
    for _ in 0..count {
        match kind.as_str() {
            "signal" => signal(&*event),
            "event" => of_event.ring(),
            "send" => drop(send(&*socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)),
            "socket" => of_socket.ring(),
            other => return Err(format!("{other} is none of them").into()),
        }
    }
    Ok(())
}
