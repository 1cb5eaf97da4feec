//! Receiving.

use super::arguments::{give_new, opened, places};
use super::{millrace_device, millrace_rx, MILLRACE_MAX_BURST};
use crate::burst;
use crate::device::{joiners, wishes};
use crate::failure::Failure;
use crate::guard;
use crate::queue::Rx;
use crate::types::millrace_packet;
use core::mem::MaybeUninit;
use core::time::Duration;
use host::{IdleRx, QueueId, RxQueue};
use std::ffi::c_int;

/// Opens RX queue number index. Packets come after millrace_rx_start().
///
/// flags: 0 or those of enum millrace_open_flags. rx: where to put the queue, NULL after an error. To be closed with
/// millrace_rx_close().
///
/// Returns 0; -EBUSY: somebody else has the queue, and the text says who; -EACCES: this program may not use the queue, or
/// not share it like that; -EDQUOT: this user, or this program, has as much as it may have; -ENOENT: there is no such queue; -EINVAL: an
/// argument is NULL, or the flags do not go together, or the queue's engine has no such mode; -ENOMEM: no memory for it;
/// -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_rx_open(
    device: Option<&millrace_device>,
    index: u32,
    flags: u32,
    rx: Option<&mut MaybeUninit<*mut millrace_rx>>,
) -> c_int {
    give_new(rx, "rx", || {
        let (mode, sharing) = wishes(flags)?;
        let options = opened(device)?.device.rx(index).mode(mode).sharing(sharing);
        let idle = joiners(flags).into_iter().fold(options, host::RxOptions::joiners).open()?;
        Ok(millrace_rx(Rx::new(QueueId::rx(index), idle)))
    })
}

/// Starts the queue: from now on packets arrive.
///
/// Returns 0; -EINVAL: rx is NULL, or started already; -ENODEV: the card is gone. After any other error the queue can
/// only be closed.
#[no_mangle]
pub extern "C" fn millrace_rx_start(rx: Option<&mut millrace_rx>) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| rx.start(IdleRx::start).map(|()| 0))
}

/// Takes up to count packets (at most MILLRACE_MAX_BURST). Never waits, and makes no system call in direct mode.
///
/// packets: where to describe them. They stay where they are until millrace_rx_burst_put(), so several bursts can be
/// taken before one put; a mediated queue yields nothing more until then.
///
/// Returns how many were taken, 0 if there are none; -EINVAL: an argument is NULL; -ESHUTDOWN: the queue is not
/// started; -EIO: the card has stopped it, and the text says why; -ESTALE: it went on without us, because we fell
/// behind; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_rx_burst_get(
    rx: Option<&mut millrace_rx>,
    packets: *mut millrace_packet,
    count: usize,
) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| {
        // SAFETY: the caller gives `count` places, or NULL.
        let places = unsafe { places(packets, count.min(MILLRACE_MAX_BURST), "packets") }?;
        Ok(burst::receive(rx.running()?, places)? as c_int)
    })
}

/// Gives all packets back that were taken. Without any it does nothing.
///
/// Returns 0; -EINVAL: rx is NULL; -ESHUTDOWN: the queue is not started.
#[no_mangle]
pub extern "C" fn millrace_rx_burst_put(rx: Option<&mut millrace_rx>) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| {
        rx.running()?.release();
        Ok(0)
    })
}

/// Waits until there are packets beyond those taken, at most timeout_ns nanoseconds. Spins for some microseconds, then
/// sleeps without missing one. Signals do not end it.
///
/// Returns 1: there are; 0: none came; otherwise as millrace_rx_burst_get().
#[no_mangle]
pub extern "C" fn millrace_rx_wait(rx: Option<&mut millrace_rx>, timeout_ns: u64) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| Ok(rx.running()?.wait(Duration::from_nanos(timeout_ns))?.into()))
}

/// How much a queue opened with MILLRACE_OPEN_SHARED_DROP has skipped because this program was too slow, since it was
/// started: packets, or units of 8 bytes (SZE).
///
/// Returns 0; -EINVAL: an argument is NULL; -ESHUTDOWN: the queue is not started.
#[no_mangle]
pub extern "C" fn millrace_rx_lost(rx: Option<&mut millrace_rx>, lost: Option<&mut MaybeUninit<u64>>) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| {
        lost.ok_or_else(|| Failure::null("lost"))?.write(rx.running()?.lost());
        Ok(0)
    })
}

/// Stops the queue; it can be started again. Packets that were not taken are lost, and pointers to those that were
/// become invalid.
///
/// Returns 0; -EINVAL: rx is NULL; -ESHUTDOWN: the queue is not started; -ENODEV: the card is gone. After the last one
/// the queue can only be closed.
#[no_mangle]
pub extern "C" fn millrace_rx_stop(rx: Option<&mut millrace_rx>) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| rx.stop(RxQueue::stop).map(|()| 0))
}

/// Stops the queue if it is started, and closes it; NULL is closed already. rx is invalid afterwards, whatever is
/// returned.
///
/// Returns 0; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_rx_close(rx: Option<Box<millrace_rx>>) -> c_int {
    guard::run(|| {
        rx.map_or(Ok(()), |rx| rx.0.close(IdleRx::close, RxQueue::close))?;
        Ok(0)
    })
}
