//! Sending.

use super::arguments::{array, give_new, opened, places};
use super::{millrace_device, millrace_tx};
use crate::burst;
use crate::device::wishes;
use crate::guard;
use crate::queue::Tx;
use crate::types::millrace_packet;
use core::mem::MaybeUninit;
use core::time::Duration;
use host::{IdleTx, QueueId, TxQueue};
use std::ffi::c_int;

/// Opens TX queue number index. Packets go after millrace_tx_start().
///
/// flags: 0 or those of enum millrace_open_flags. tx: where to put the queue, NULL after an error. To be closed with
/// millrace_tx_close().
///
/// Returns as millrace_rx_open().
#[no_mangle]
pub extern "C" fn millrace_tx_open(
    device: Option<&millrace_device>,
    index: u32,
    flags: u32,
    tx: Option<&mut MaybeUninit<*mut millrace_tx>>,
) -> c_int {
    give_new(tx, "tx", || {
        let (mode, sharing) = wishes(flags)?;
        let idle = opened(device)?.device.tx(index).mode(mode).sharing(sharing).open()?;
        Ok(millrace_tx(Tx::new(QueueId::tx(index), idle)))
    })
}

/// Starts the queue.
///
/// Returns 0; -EINVAL: tx is NULL, or started already; -ENODEV: the card is gone. After any other error the queue can
/// only be closed.
#[no_mangle]
pub extern "C" fn millrace_tx_start(tx: Option<&mut millrace_tx>) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| tx.start(IdleTx::start).map(|()| 0))
}

/// Longest frame that can be sent here, in bytes without FCS.
///
/// Returns it; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started.
#[no_mangle]
pub extern "C" fn millrace_tx_longest(tx: Option<&mut millrace_tx>) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| Ok(tx.running()?.longest() as c_int))
}

/// Takes one slot for each of count lengths (bytes without FCS), all or none. Never waits, and makes no system call in
/// direct mode.
///
/// packets: where to describe the count slots. What is in a slot is what lay there before; write all of it, and then
/// call millrace_tx_burst_put(). Several bursts can be taken before one put. What was taken is sent: it cannot be
/// given back unsent.
///
/// Returns count, or 0 if there is no room for all of them now: call millrace_tx_flush() or millrace_tx_wait();
/// -EINVAL: an argument is NULL; -E2BIG: more than MILLRACE_MAX_BURST, or than the ring has; -EMSGSIZE: a frame is
/// longer than millrace_tx_longest(); -ESHUTDOWN: the queue is not started; -EIO: the card has stopped it, and the
/// text says why; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_tx_burst_get(
    tx: Option<&mut millrace_tx>,
    lengths: *const u16,
    packets: *mut millrace_packet,
    count: usize,
) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| {
        // SAFETY: the caller gives `count` lengths, or NULL.
        let lengths = unsafe { array(lengths, count, "lengths") }?;
        // SAFETY: the caller gives `count` places, or NULL.
        let places = unsafe { places(packets, count, "packets") }?;
        Ok(if burst::send(tx.running()?, lengths, places)? { count as c_int } else { 0 })
    })
}

/// All slots that were taken have been written: they will be sent, at the latest at the next millrace_tx_flush().
///
/// Returns 0; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started; in mediated mode also -ENODEV: the card is
/// gone.
#[no_mangle]
pub extern "C" fn millrace_tx_burst_put(tx: Option<&mut millrace_tx>) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| {
        tx.running()?.commit()?;
        Ok(0)
    })
}

/// Sends everything now that was taken, put or not.
///
/// Returns 0; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started; -EIO: the card has stopped it, and the text
/// says why; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_tx_flush(tx: Option<&mut millrace_tx>) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| {
        tx.running()?.flush()?;
        Ok(0)
    })
}

/// Flushes, and waits until the card has taken at least a quarter of the ring, or everything, at most timeout_ns
/// nanoseconds. Signals do not end it.
///
/// Returns 1: there is room; 0: the time is over; otherwise as millrace_tx_flush().
#[no_mangle]
pub extern "C" fn millrace_tx_wait(tx: Option<&mut millrace_tx>, timeout_ns: u64) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| Ok(tx.running()?.wait(Duration::from_nanos(timeout_ns))?.into()))
}

/// Flushes, waits up to a second until the card has taken everything, and stops the queue; it can be started again.
///
/// Returns 0; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started; -ETIMEDOUT: the card did not take everything,
/// and the rest is lost; -ENODEV: the card is gone. After the last two the queue can only be closed.
#[no_mangle]
pub extern "C" fn millrace_tx_stop(tx: Option<&mut millrace_tx>) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| tx.stop(TxQueue::stop).map(|()| 0))
}

/// Stops the queue if it is started, as millrace_tx_stop() does, and closes it; NULL is closed already. tx is invalid
/// afterwards, whatever is returned.
///
/// Returns 0; -ETIMEDOUT: the card did not take everything, and the rest is lost; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_tx_close(tx: Option<Box<millrace_tx>>) -> c_int {
    guard::run(|| {
        tx.map_or(Ok(()), |tx| tx.0.close(IdleTx::close, TxQueue::close))?;
        Ok(0)
    })
}
