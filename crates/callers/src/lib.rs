//! Sockets at which other programs call (decision 114): the same answer everywhere to who may connect, and to what those leave behind who
//! were turned away, or have gone.
//!
//! * `listener`: a socket at a path, and its end. `taking`: of two who want a path, one has it. `caller`: who calls, and whether he may.
//! * `entrance`: lets in who may, and turns away everybody else without waiting for him.
//! * `closing`: what others have handed over is closed by a thread of its own: that takes as long as they like.
#![forbid(unsafe_code)]

mod caller;
mod closing;
mod entrance;
mod listener;
mod taking;

pub use caller::{Caller, May, caller_of, owner_only, process_of};
pub use closing::{Closer, Place, remember_cores};
pub use entrance::{Call, Entrance, WAITS};
pub use listener::{Carries, Listener};
