//! Memory of the program, for queues over buffers of its own.

use super::arguments::{give_new, opened, places};
use super::{millrace_device, millrace_memory, millrace_supplied_rx, millrace_supplied_tx};
use crate::device::Memory;
use crate::failure::Failure;
use crate::guard;
use crate::supplied::{Receiver, Sender};
use crate::types::millrace_received;
use core::mem::MaybeUninit;
use core::time::Duration;
use host::Iova;
use std::ffi::{c_int, c_void};

/// Allocates size bytes of memory, all zero, which the card can reach too.
///
/// memory: where to put it, NULL after an error. To be closed with millrace_memory_close().
///
/// Returns 0; -EINVAL: an argument is NULL, or size is 0; -ENOMEM: there is not so much; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_memory_open(
    device: Option<&millrace_device>,
    size: usize,
    memory: Option<&mut MaybeUninit<*mut millrace_memory>>,
) -> c_int {
    give_new(memory, "memory", || Ok(millrace_memory(Memory::new(&opened(device)?.device, size)?)))
}

/// Where the program finds the first byte; NULL for NULL. Valid until the memory is closed.
#[no_mangle]
pub extern "C" fn millrace_memory_data(memory: Option<&millrace_memory>) -> *mut c_void {
    memory.map_or(core::ptr::null_mut(), |memory| memory.0.data().cast())
}

/// Where the card finds the first byte: what is posted to a queue; 0 for NULL.
#[no_mangle]
pub extern "C" fn millrace_memory_iova(memory: Option<&millrace_memory>) -> u64 {
    memory.map_or(0, |memory| memory.0.iova())
}

/// Takes the memory away from the card and frees it; NULL is closed already. Close first the queues that have buffers
/// in it. memory is invalid afterwards, whatever is returned.
///
/// Returns 0; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_memory_close(memory: Option<Box<millrace_memory>>) -> c_int {
    guard::run(|| {
        memory.map_or(Ok(()), |memory| memory.0.close())?;
        Ok(0)
    })
}

/// Opens RX queue number index (Medusa only, direct, for this opener alone) and starts it, with a ring of so many
/// descriptors (a power of two) for buffers that the program posts.
///
/// rx: where to put the queue, NULL after an error. To be closed with millrace_supplied_rx_close().
///
/// Returns as millrace_rx_open().
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_open(
    device: Option<&millrace_device>,
    index: u32,
    descriptors: u32,
    rx: Option<&mut MaybeUninit<*mut millrace_supplied_rx>>,
) -> c_int {
    give_new(rx, "rx", || {
        let queue = opened(device)?.device.rx(index).open_supplied(descriptors)?;
        Ok(millrace_supplied_rx(Receiver::new(queue)))
    })
}

/// The supplied RX queue of a call.
fn receiver(rx: Option<&mut millrace_supplied_rx>) -> Result<&mut Receiver, Failure> {
    rx.map(|rx| &mut rx.0).ok_or_else(|| Failure::null("rx"))
}

/// Gives the card a buffer of len bytes at iova. It sees it after millrace_supplied_rx_flush(), and puts exactly one
/// packet into each buffer, in the order of posting.
///
/// Returns 1: posted; 0: the ring is full; -EINVAL: rx is NULL.
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_post(rx: Option<&mut millrace_supplied_rx>, iova: u64, len: u16) -> c_int {
    guard::run(|| Ok(receiver(rx)?.queue.post(Iova::new(iova), len).into()))
}

/// Tells the card of posted buffers and of packets released.
///
/// Returns 0, or -EINVAL: rx is NULL.
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_flush(rx: Option<&mut millrace_supplied_rx>) -> c_int {
    guard::run(|| {
        receiver(rx)?.queue.flush();
        Ok(0)
    })
}

/// Describes up to count packets, the first that were not released, in the order in which their buffers were posted.
///
/// Returns how many were described; -EINVAL: an argument is NULL; -EIO: the card has stopped the queue, and the text
/// says why; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_peek(
    rx: Option<&mut millrace_supplied_rx>,
    packets: *mut millrace_received,
    count: usize,
) -> c_int {
    guard::run(|| {
        // SAFETY: the caller gives `count` places, or NULL.
        let places = unsafe { places(packets, count, "packets") }?;
        Ok(receiver(rx)?.peek(places)? as c_int)
    })
}

/// Releases the first count packets: their buffers are the program's again.
///
/// Returns 0; -EINVAL: rx is NULL, or the last peek has not found so many.
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_release(rx: Option<&mut millrace_supplied_rx>, count: u32) -> c_int {
    guard::run(|| receiver(rx)?.release(count).map(|()| 0))
}

/// Waits for a packet that was not released, at most timeout_ns nanoseconds. Signals do not end it.
///
/// Returns 1: there is one; 0: none came; otherwise as millrace_supplied_rx_peek().
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_wait(rx: Option<&mut millrace_supplied_rx>, timeout_ns: u64) -> c_int {
    guard::run(|| Ok(receiver(rx)?.queue.wait(Duration::from_nanos(timeout_ns))?.into()))
}

/// Stops and closes the queue; NULL is closed already. The card is done with all buffers when this returns. rx is
/// invalid afterwards, whatever is returned.
///
/// Returns 0; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_close(rx: Option<Box<millrace_supplied_rx>>) -> c_int {
    guard::run(|| {
        rx.map_or(Ok(()), |rx| rx.0.queue.close())?;
        Ok(0)
    })
}

/// Opens TX queue number index (Medusa only, direct, for this opener alone) and starts it, with a ring of so many
/// descriptors (a power of two) for buffers that the program posts.
///
/// tx: where to put the queue, NULL after an error. To be closed with millrace_supplied_tx_close().
///
/// Returns as millrace_rx_open().
#[no_mangle]
pub extern "C" fn millrace_supplied_tx_open(
    device: Option<&millrace_device>,
    index: u32,
    descriptors: u32,
    tx: Option<&mut MaybeUninit<*mut millrace_supplied_tx>>,
) -> c_int {
    give_new(tx, "tx", || {
        Ok(millrace_supplied_tx(Sender(opened(device)?.device.tx(index).open_supplied(descriptors)?)))
    })
}

/// The supplied TX queue of a call.
fn sender(tx: Option<&mut millrace_supplied_tx>) -> Result<&mut Sender, Failure> {
    tx.map(|tx| &mut tx.0).ok_or_else(|| Failure::null("tx"))
}

/// Queues the len bytes at iova for sending. The card sees them after millrace_supplied_tx_flush().
///
/// Returns 1: queued; 0: the ring is full; -EINVAL: tx is NULL.
#[no_mangle]
pub extern "C" fn millrace_supplied_tx_post(tx: Option<&mut millrace_supplied_tx>, iova: u64, len: u16) -> c_int {
    guard::run(|| Ok(sender(tx)?.0.post(Iova::new(iova), len).into()))
}

/// Sends everything posted.
///
/// Returns 0, or -EINVAL: tx is NULL.
#[no_mangle]
pub extern "C" fn millrace_supplied_tx_flush(tx: Option<&mut millrace_supplied_tx>) -> c_int {
    guard::run(|| {
        sender(tx)?.0.flush();
        Ok(0)
    })
}

/// How many more buffers the card is done with since the last call, in the order of posting.
///
/// Returns it; -EINVAL: tx is NULL; -EIO: the card has stopped the queue, and the text says why; -ENODEV: the card is
/// gone.
#[no_mangle]
pub extern "C" fn millrace_supplied_tx_completed(tx: Option<&mut millrace_supplied_tx>) -> c_int {
    guard::run(|| Ok(sender(tx)?.0.completed()? as c_int))
}

/// Stops and closes the queue, whether all was sent or not; NULL is closed already. The card is done with all buffers
/// when this returns. tx is invalid afterwards, whatever is returned.
///
/// Returns 0; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_supplied_tx_close(tx: Option<Box<millrace_supplied_tx>>) -> c_int {
    guard::run(|| {
        tx.map_or(Ok(()), |tx| tx.0 .0.close())?;
        Ok(0)
    })
}
