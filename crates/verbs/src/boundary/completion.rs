//! Completion channels, completion queues, and events of all kinds.

use super::device::ContextObject;
use super::polling::Polling;
use super::{code, guarded, minus_one, null};
use crate::abi::{AsyncEvent, CompChannel, Cond, Context, Cq, CqEx, Mutex, Qp, Srq};
use crate::place::{DEVICE_FATAL, Events, Opened, Place, Told};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

// SAFETY of `no_mangle` in this file: these are the names of the library that this one stands for, and nothing else in the
// program has them.

/// Events that a program was given, and those that it has acknowledged.
#[derive(Default)]
pub(super) struct Acks {
    given: AtomicU32,
    taken: AtomicU32,
}

impl Acks {
    pub fn give(&self) {
        // Relaxed: a count; the lock of the queue of events orders it before the look of whoever destroys the object.
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    pub fn take(&self, count: u32) {
        // Pairs with the load in `wait`: what the program did with the object is over.
        self.taken.fetch_add(count, Ordering::Release);
    }

    /// Until all are acknowledged: the object may be in use by another thread that has an event of it.
    pub fn wait(&self) {
        // Pairs with `take`.
        while self.taken.load(Ordering::Acquire) != self.given.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

#[repr(C)]
struct ChannelObject {
    abi: UnsafeCell<CompChannel>,
    place: Arc<Place>,
    events: Arc<Events<u64>>,
    /// Completion queues with this channel.
    users: AtomicU32,
}

#[repr(C)]
pub(super) struct CqObject {
    abi: UnsafeCell<CqEx>,
    pub opened: Arc<Opened>,
    pub number: u32,
    channel: *mut CompChannel,
    completions: Acks,
    pub asynchronous: Acks,
    pub polling: Polling,
}

impl CqObject {
    /// # Safety
    /// `cq` came from [`ibv_create_cq`] and was not destroyed.
    #[inline]
    pub unsafe fn of<'c>(cq: *mut Cq) -> &'c Self {
        // SAFETY: completion queues are only made here, as the beginning of this object.
        unsafe { &*cq.cast() }
    }
}

/// `ibv_create_comp_channel`
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    guarded(ptr::null_mut(), || match Events::new() {
        Ok(events) => {
            // SAFETY: the caller's promise.
            let place = unsafe { ContextObject::of(context) }.opened.place.clone();
            let abi = UnsafeCell::new(CompChannel { context, fd: events.fd(), refcnt: 0 });
            let (events, users) = (Arc::new(events), AtomicU32::new(0));
            Box::into_raw(Box::new(ChannelObject { abi, place, events, users })).cast()
        }
        Err(error) => null(error.raw_os_error()),
    })
}

/// `ibv_destroy_comp_channel`
///
/// # Safety
/// `channel` came from [`ibv_create_comp_channel`], and is not used afterwards if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: channels are only made here, as the beginning of this object.
        let object = unsafe { &*channel.cast::<ChannelObject>() };
        // Pairs with the release in `ibv_destroy_cq`.
        if object.users.load(Ordering::Acquire) > 0 {
            return libc::EBUSY;
        }
        // SAFETY: made as a box, and given back once: the caller's promise.
        drop(unsafe { Box::from_raw(channel.cast::<ChannelObject>()) });
        0
    })
}

/// `ibv_create_cq`
///
/// # Safety
/// `context` is open; `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    vector: c_int,
) -> *mut Cq {
    // SAFETY: the caller's promise.
    guarded(ptr::null_mut(), || unsafe { create(context, cqe, cq_context, channel, vector, |_| {}) })
}

/// A completion queue; `offer` gives it its functions.
///
/// # Safety
/// As [`ibv_create_cq`].
pub(super) unsafe fn create(
    context: *mut Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    vector: c_int,
    offer: impl FnOnce(&mut CqEx),
) -> *mut Cq {
    if vector != 0 || cqe < 1 {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let opened = unsafe { ContextObject::of(context) }.opened.clone();
    let made = opened.place.with_room(|running| {
        if let Some(card) = &mut running.card {
            return card.create_queue(cqe as u32).map(|number| (number, cqe as u32));
        }
        let number = running.engine.create_cq(cqe as u32).map_err(|error| error.errno())?;
        Ok((number, running.engine.cq_depth(number).map_err(|error| error.errno())?))
    });
    let (number, depth) = match made {
        Ok(made) => made,
        Err(error) => return null(error),
    };
    let base = Cq {
        context,
        channel,
        cq_context,
        handle: number,
        cqe: depth as c_int,
        mutex: Mutex([0; 40]),
        cond: Cond([0; 48]),
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let mut abi = plain(base);
    offer(&mut abi);
    let (completions, asynchronous, polling) = Default::default();
    let abi = UnsafeCell::new(abi);
    let object = CqObject { abi, opened: opened.clone(), number, channel, completions, asynchronous, polling };
    let object = Box::into_raw(Box::new(object));
    let told = opened.place.with(|running| {
        if !channel.is_null() {
            // SAFETY: channels are only made here, as the beginning of this object.
            let channel = unsafe { &*channel.cast::<ChannelObject>() };
            // Relaxed: only the end of a use orders anything.
            channel.users.fetch_add(1, Ordering::Relaxed);
            running.channels.insert(number, Told { events: channel.events.clone(), object: object as u64 });
        }
        running.queues.insert(number, Told { events: opened.events.clone(), object: object as u64 });
        Ok(())
    });
    match told {
        Ok(()) => object.cast(),
        Err(error) => {
            // SAFETY: made above, and known to nobody.
            drop(unsafe { Box::from_raw(object) });
            null(error)
        }
    }
}

/// A completion queue without functions of its own.
fn plain(base: Cq) -> CqEx {
    CqEx {
        base,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: None,
        next_poll: None,
        end_poll: None,
        read_opcode: None,
        read_vendor_err: None,
        read_byte_len: None,
        read_imm_data: None,
        read_qp_num: None,
        read_src_qp: None,
        read_wc_flags: None,
        read_slid: None,
        read_sl: None,
        read_dlid_path_bits: None,
        read_completion_ts: ptr::null(),
        read_cvlan: ptr::null(),
        read_flow_tag: ptr::null(),
        read_tm_info: ptr::null(),
        read_completion_wallclock_ns: ptr::null(),
    }
}

/// `ibv_resize_cq`
///
/// # Safety
/// `cq` is a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut Cq, cqe: c_int) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq) };
        let done = object.opened.place.with_room(|running| {
            let depth = u32::try_from(cqe).map_err(|_| libc::EINVAL)?;
            if let Some(card) = &mut running.card {
                return card.resize_queue(object.number, depth);
            }
            running.engine.resize_cq(object.number, depth).map_err(|error| error.errno())?;
            running.engine.cq_depth(object.number).map_err(|error| error.errno())
        });
        if let Ok(depth) = done {
            // SAFETY: the caller's promise: nobody else changes the queue now.
            unsafe { (*object.abi.get()).base.cqe = depth as c_int };
        }
        code(done.map(drop))
    })
}

/// `ibv_destroy_cq`
///
/// # Safety
/// `cq` came from [`ibv_create_cq`], and is not used afterwards if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq) };
        let (number, address) = (object.number, cq as u64);
        let done = object.opened.place.with(|running| {
            match &mut running.card {
                Some(card) => card.destroy_queue(number)?,
                None => running.engine.destroy_cq(number).map_err(|error| error.errno())?,
            }
            if let Some(told) = running.channels.remove(&number) {
                told.events.forget(|event| *event == address);
            }
            if let Some(told) = running.queues.remove(&number) {
                told.events.forget(|event| event.element == address && event.event_type == 0);
            }
            Ok(())
        });
        if done.is_ok() {
            object.completions.wait();
            object.asynchronous.wait();
            if !object.channel.is_null() {
                // SAFETY: a channel lives as long as queues use it.
                let channel = unsafe { &*object.channel.cast::<ChannelObject>() };
                // Pairs with the acquire in `ibv_destroy_comp_channel`.
                channel.users.fetch_sub(1, Ordering::Release);
            }
            // SAFETY: made as a box, and given back once: the caller's promise.
            drop(unsafe { Box::from_raw(cq.cast::<CqObject>()) });
        }
        code(done)
    })
}

/// `ibv_get_cq_event`
///
/// # Safety
/// `channel` is a channel; the places may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    guarded(-1, || {
        // SAFETY: channels are only made here, as the beginning of this object.
        let object = unsafe { &*channel.cast::<ChannelObject>() };
        // SAFETY: events of queues that are destroyed are taken out first, which waits until this one is counted.
        let claim = |event: &u64| unsafe { CqObject::of(*event as *mut Cq) }.completions.give();
        match object.place.await_event(&object.events, claim) {
            Ok(event) => {
                let found = event as *mut Cq;
                // SAFETY: it is counted: the queue is there until it is acknowledged.
                unsafe {
                    *cq = found;
                    *cq_context = (*found).cq_context;
                }
                0
            }
            Err(error) => minus_one(error.raw_os_error()),
        }
    })
}

/// `ibv_ack_cq_events`
///
/// # Safety
/// `cq` is a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut Cq, count: u32) {
    // SAFETY: the caller's promise.
    unsafe { CqObject::of(cq) }.completions.take(count);
}

/// The counts of what an event is about; `None`: the whole device.
unsafe fn acks<'a>(event: &AsyncEvent) -> Option<&'a Acks> {
    Some(match event.event_type {
        DEVICE_FATAL => return None,
        // SAFETY: the event is about a completion queue that is not destroyed: its events are taken out first.
        0 => &unsafe { CqObject::of(event.element as *mut Cq) }.asynchronous,
        // SAFETY: the same for a shared receive queue.
        15 => &unsafe { super::pair::SrqObject::of(event.element as *mut Srq) }.asynchronous,
        // SAFETY: the same for a queue pair.
        _ => &unsafe { super::pair::QpObject::of(event.element as *mut Qp) }.asynchronous,
    })
}

/// `ibv_get_async_event`
///
/// # Safety
/// `context` is open, and `to` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(context: *mut Context, to: *mut AsyncEvent) -> c_int {
    guarded(-1, || {
        let claim = |event: &AsyncEvent| {
            // SAFETY: see `acks`; who takes events out waits until this one is counted.
            if let Some(acks) = unsafe { acks(event) } {
                acks.give();
            }
        };
        // SAFETY: the caller's promise.
        match unsafe { ContextObject::of(context) }.opened.events.take(claim) {
            Ok(event) => {
                // SAFETY: the caller's promise.
                unsafe { to.write(event) };
                0
            }
            Err(error) => minus_one(error.raw_os_error()),
        }
    })
}

/// `ibv_ack_async_event`
///
/// # Safety
/// `event` came from [`ibv_get_async_event`], once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut AsyncEvent) {
    // SAFETY: the caller's promise; the object is there until its last event is acknowledged.
    unsafe { acks(&*event) }.inspect(|acks| acks.take(1));
}
