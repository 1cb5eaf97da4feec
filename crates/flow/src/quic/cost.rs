//! What steering costs its thread, so that whoever sends is charged for it: a packet that begins a connection costs a hundred times
//! as much as one that goes by the directory.

use std::cell::Cell;

/// Asking the table, as a frame that is classified counts 1 (some 50 ns): 4 us with a new connection, 1 us otherwise.
pub const ASK: u32 = 40;
/// Decrypting the Initial packets of a datagram: 3.4 us.
pub const INITIALS: u32 = 64;
/// Decrypting a packet behind the handshake: about 1 us.
pub const SEALED: u32 = 20;

thread_local! {
    static SPENT: Cell<u32> = const { Cell::new(0) };
}

/// Remembers what something has cost.
pub fn spend(cost: u32) {
    SPENT.set(SPENT.get().saturating_add(cost));
}

/// What steering has cost on this thread since the last call, beyond the directory; a frame counts 1.
#[inline]
pub fn take() -> u32 {
    SPENT.take()
}
