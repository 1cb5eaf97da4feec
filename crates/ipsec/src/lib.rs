//! ESP as a library: no thread, no clock, no socket. Packets are encrypted and decrypted in place, in a buffer with room before
//! and behind them; time comes in as seconds since 1970.
//!
//! * [`algorithm`]: algorithms by Linux's names, and keys. [`cipher`]: keys, expanded.
//! * [`association`]: security associations: encrypting and decrypting a packet, and everything around that.
//! * [`window`]: which sequence numbers have come. [`lifetime`]: when an association is over.
//! * [`ip`], [`traversal`]: IP headers; ESP in UDP.
//! * [`selector`], [`policy`]: which packets have to be protected by what.
//! * [`database`]: associations and policies together, and what is to be reported.
//! * [`refusal`], [`counter`]: why packets did not pass, and how often.
//! * [`netlink`]: what the kernel says of associations and policies, and what it is told. [`text`]: both in files, in the words of `ip xfrm`.
#![forbid(unsafe_code)]

pub mod algorithm;
pub mod association;
pub mod cipher;
pub mod counter;
pub mod database;
pub mod ip;
pub mod lifetime;
pub mod netlink;
pub mod policy;
pub mod refusal;
pub mod selector;
pub mod text;
pub mod traversal;
pub mod window;
