//! Unmodified NFB programs on a Millrace card.
//!
//! libnfb loads an extension library when a device name begins with `libnfb-ext:`, and takes the device tree, the
//! registers, the locks and the queues from it (`docs/spec/nfb-card.md` §1). This is such a library, and a thin one: what
//! crosses the border to C is in [`boundary`](self), all `unsafe` with it; the rest speaks to the host library.
//!
//! ```text
//! libnfb-ext:/path/libnfb-ext-millrace.so:DEVICE             DEVICE as everywhere: unix:PATH, embedded:...
//! libnfb-ext:/path/libnfb-ext-millrace.so:direct:DEVICE      every queue as with the user-space flag
//!
//! nfb_open             open             a connection to the card; all opens of one embedded card share it
//! nfb_comp_read/write  bus read/write   registers
//! nfb_comp_lock        comp_lock        locks that hold across processes, and end with theirs
//! ndp_open_*_queue     queue            shared by default; exclusive and direct with the user-space flag
//! ```
//!
//! `docs/nfb.md` is for people who use it.

mod aside;
mod boundary;
mod device;
mod errno;
mod queue;
