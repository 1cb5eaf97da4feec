//! The engine in user space: IPsec for a host whose kernel has no ESP.
//!
//! Linux routes what is to be protected into a TUN interface; packets from it are encrypted and sent by Linux's routes. What comes by a raw socket of
//! ESP, or in UDP, is decrypted, checked, and goes into the interface; Linux forwards, filters and translates it from there.
//!
//! - `gateway`: the thread that does it, and how it is started; `outward`, `inward`: the two ways; `requests`: associations by the words of `ip xfrm`;
//! - `fast`: both ways again, for frames that the router's program in the kernel gives to it;
//! - `guard`: what keeps packets in the clear out; `drops`: why packets were let go;
//! - `sockets`, `batch`: how packets come and go; `paths`: how long they may be; `told`, `pieces`: what becomes of longer ones; `own`: whose they are.
//!
//! Why it is built as it is: decision 87.

mod batch;
pub mod drops;
#[cfg(feature = "bpf")]
mod fast;
pub mod gateway;
mod guard;
mod inward;
mod outward;
mod own;
mod paths;
mod pieces;
mod requests;
mod sockets;
mod told;

pub use guard::GuardError;
