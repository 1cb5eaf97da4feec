//! Completion queues with functions of their own: `ibv_create_cq_ex`, and taking completions one by one without a copy of
//! what nobody asks for.

use super::completion::{CqObject, create};
use super::guarded;
use super::work::line;
use crate::abi::{Context, CqEx, CqInitAttrEx, Wc};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint};
use core::ptr;
use millrace_rdma::work::Completion;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// `IBV_WC_STANDARD_FLAGS`: all that a completion can be asked for, but time stamps, tags of VLANs and flows, and tag matching.
const STANDARD: u64 = 0x7f;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`.
const MASK_FLAGS: u32 = 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`: a promise of the program, which nothing here needs.
const SINGLE_THREADED: u32 = 1;

/// What is between `ibv_start_poll` and `ibv_end_poll`: one thread, and the completion that it looks at.
pub(super) struct Polling {
    is_held: AtomicBool,
    now: UnsafeCell<Option<Wc>>,
}

impl Default for Polling {
    fn default() -> Self {
        Self { is_held: AtomicBool::new(false), now: UnsafeCell::new(None) }
    }
}

impl Polling {
    /// Waits for the thread that polls.
    fn enter(&self) {
        // Acquire pairs with the Release in `leave`.
        while self.is_held.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
    }

    fn leave(&self) {
        // Release pairs with the Acquire in `enter`: what was looked at is not looked at any more.
        self.is_held.store(false, Ordering::Release);
    }
}

/// Lets others in at its end.
struct Begun<'p>(&'p Polling);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// `create_cq_ex` of a context.
///
/// # Safety
/// The context is open, and the attributes are there.
pub(super) unsafe extern "C" fn create_cq_ex(context: *mut Context, init: *mut CqInitAttrEx) -> *mut CqEx {
    guarded(ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let init = unsafe { &*init };
        let flags = if init.comp_mask & MASK_FLAGS != 0 { init.flags } else { 0 };
        if init.comp_mask & !MASK_FLAGS != 0 || flags & !SINGLE_THREADED != 0 || init.wc_flags & !STANDARD != 0 {
            return super::null(libc::EOPNOTSUPP);
        }
        let Ok(cqe) = c_int::try_from(init.cqe) else { return super::null(libc::EINVAL) };
        let Ok(vector) = c_int::try_from(init.comp_vector) else { return super::null(libc::EINVAL) };
        // SAFETY: the caller's promise.
        unsafe { create(context, cqe, init.cq_context, init.channel, vector, offer) }.cast()
    })
}

/// The functions of a queue that was made so.
fn offer(queue: &mut CqEx) {
    queue.start_poll = Some(start_poll);
    queue.next_poll = Some(next_poll);
    queue.end_poll = Some(end_poll);
    queue.read_opcode = Some(read_opcode);
    queue.read_vendor_err = Some(read_vendor_err);
    queue.read_byte_len = Some(read_byte_len);
    queue.read_imm_data = Some(read_imm_data);
    queue.read_qp_num = Some(read_qp_num);
    queue.read_src_qp = Some(read_src_qp);
    queue.read_wc_flags = Some(read_wc_flags);
    queue.read_slid = Some(read_slid);
    queue.read_sl = Some(read_sl);
    queue.read_dlid_path_bits = Some(read_dlid_path_bits);
}

/// Takes the next completion; `ENOENT` when there is none.
///
/// # Safety
/// The queue is one of `create_cq_ex`, and this thread polls it.
unsafe fn take(queue: *mut CqEx) -> c_int {
    // SAFETY: queues are only made by `create`, as the beginning of this object.
    let object = unsafe { CqObject::of(queue.cast()) };
    let has_some = |running: &mut crate::place::Running| running.has_completions(object.number);
    let each = |completion: &Completion| {
        let line = line(completion);
        // SAFETY: only the thread that polls comes here.
        unsafe {
            (*queue).wr_id = line.wr_id;
            (*queue).status = line.status;
            *object.polling.now.get() = Some(line);
        }
    };
    match object.opened.place.taking(has_some, |running| running.poll(object.number, 1, each)) {
        Ok(0) => libc::ENOENT,
        Ok(_) => 0,
        Err(error) => error,
    }
}

unsafe extern "C" fn start_poll(queue: *mut CqEx, attributes: *const u32) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: `struct ibv_poll_cq_attr` is one word, which says what else there is; nothing else is known.
        if !attributes.is_null() && unsafe { *attributes } != 0 {
            return libc::EINVAL;
        }
        // SAFETY: the caller's promise: a queue of `create_cq_ex`.
        let object = unsafe { CqObject::of(queue.cast()) };
        // A child would wait for a thread that only its parent has.
        if object.opened.place.is_inherited() {
            return libc::EIO;
        }
        object.polling.enter();
        // Unless there is something, `ibv_end_poll` is not called; after a panic there is nothing.
        let begun = Begun(&object.polling);
        // SAFETY: as above; this thread polls.
        let outcome = unsafe { take(queue) };
        if outcome == 0 {
            core::mem::forget(begun);
        }
        outcome
    })
}

unsafe extern "C" fn next_poll(queue: *mut CqEx) -> c_int {
    // SAFETY: the caller's promise: between `ibv_start_poll` and `ibv_end_poll`.
    guarded(libc::EIO, || unsafe { take(queue) })
}

unsafe extern "C" fn end_poll(queue: *mut CqEx) {
    // SAFETY: the caller's promise: a queue of `create_cq_ex`.
    unsafe { CqObject::of(queue.cast()) }.polling.leave();
}

/// What the thread that polls looks at; nothing before the first.
unsafe fn now<T: Default>(queue: *mut CqEx, what: impl FnOnce(&Wc) -> T) -> T {
    // SAFETY: the caller's promise: between `ibv_start_poll` and `ibv_end_poll`, in the thread that polls.
    let now = unsafe { &*CqObject::of(queue.cast()).polling.now.get() };
    now.as_ref().map(what).unwrap_or_default()
}

macro_rules! read {
    ($($name:ident: $type:ty = $field:ident;)*) => {$(
        unsafe extern "C" fn $name(queue: *mut CqEx) -> $type {
            // SAFETY: the caller's promise: as `now`.
            unsafe { now(queue, |line| line.$field.into()) }
        }
    )*};
}

read! {
    read_opcode: u32 = opcode;
    read_vendor_err: u32 = vendor_err;
    read_byte_len: u32 = byte_len;
    read_imm_data: u32 = imm_data;
    read_qp_num: u32 = qp_num;
    read_src_qp: u32 = src_qp;
    read_wc_flags: c_uint = wc_flags;
    read_slid: u32 = slid;
    read_sl: u8 = sl;
    read_dlid_path_bits: u8 = dlid_path_bits;
}
