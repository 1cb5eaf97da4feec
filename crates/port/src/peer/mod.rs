//! What ports have in common whose other end is a program behind a vhost-user socket: how the two find each other, how
//! a queue changes hands between the thread that speaks the protocol and the worker, and what wakes the worker and
//! the other side.

mod burst;
mod connector;
mod event;
mod offloads;
mod signal;
mod slot;
mod stopped;
mod sys;
mod wake;

pub(crate) use burst::{Run, in_runs};
pub use connector::{Bound, SocketError};
pub(crate) use connector::{Connector, ControlThread};
pub use event::{check_event, only_event};
pub(crate) use offloads::OffloadsCell;
pub use signal::{signal, try_signal};
pub(crate) use slot::Slot;
pub(crate) use stopped::{Stopped, show_stop};
pub(crate) use sys::user_of;
pub(crate) use wake::Wake;

/// So many pairs of queues, in words.
pub(crate) fn plural(pairs: usize) -> String {
    format!("{pairs} queue pair{}", if pairs == 1 { "" } else { "s" })
}
