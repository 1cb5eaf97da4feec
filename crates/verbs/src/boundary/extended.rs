//! Queue pairs with functions of their own (`ibv_wr_*`, `struct ibv_qp_ex`): requests are built one after the other, and posted
//! together by `ibv_wr_complete`.

use super::guarded;
use super::pair::{AhObject, QpObject};
use super::window::bind_two;
use super::work::PIECES;
use crate::abi::{Ah, DataBuf, Mw, MwBindInfo, Qp, QpEx, Sge, send_flags};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::{ptr, slice};
use millrace_rdma::number::{Key, Qpn};
use millrace_rdma::work::{Data, Flags, Operation, Piece, Request, Target};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// No queue pair takes more bytes inline.
const INLINE: usize = 1 << 16;

/// Requests that are being built.
#[derive(Default)]
pub(super) struct Session {
    /// Between `ibv_wr_start` and `ibv_wr_complete` or `ibv_wr_abort`.
    is_open: AtomicBool,
    build: UnsafeCell<Build>,
}

#[derive(Default)]
struct Build {
    requests: Vec<Built>,
    pieces: Vec<Piece>,
    inline: Vec<u8>,
    error: i32,
}

struct Built {
    id: u64,
    flags: Flags,
    operation: Operation,
    pieces: Range<usize>,
    inline: Option<Range<usize>>,
    target: Option<Target>,
}

impl Build {
    fn inline_of(&self, built: &Built) -> &[u8] {
        built.inline.clone().map_or(&[], |inline| &self.inline[inline])
    }

    fn request<'r>(&'r self, built: &'r Built, inline: &'r [&'r [u8]; 1]) -> Request<'r> {
        let data = match built.inline {
            Some(_) => Data::Inline(inline),
            None => Data::Pieces(&self.pieces[built.pieces.clone()]),
        };
        let Built { id, operation, flags, target, .. } = built;
        Request { id: *id, operation: *operation, data, flags: *flags, target: target.as_ref() }
    }
}

/// A queue pair as programs see it.
pub(super) fn queue_pair(base: Qp) -> QpEx {
    QpEx {
        base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        atomic_cmp_swp: Some(compare_swap),
        atomic_fetch_add: Some(fetch_add),
        bind_mw: Some(bind_mw),
        local_inv: Some(local_invalidate),
        rdma_read: Some(read),
        rdma_write: Some(write),
        rdma_write_imm: Some(write_immediate),
        send: Some(send),
        send_imm: Some(send_immediate),
        send_inv: Some(send_invalidate),
        send_tso: ptr::null(),
        set_ud_addr: Some(set_target),
        set_xrc_srqn: ptr::null(),
        set_inline_data: Some(set_inline),
        set_inline_data_list: Some(set_inline_list),
        set_sge: Some(set_piece),
        set_sge_list: Some(set_pieces),
        start: Some(start),
        complete: Some(complete),
        abort: Some(abort),
        atomic_write: ptr::null(),
    }
}

/// What is being built for a queue pair.
///
/// # Safety
/// `qp` is a queue pair, and this thread has called `ibv_wr_start` on it last.
#[inline]
unsafe fn building<'b>(qp: *mut QpEx) -> &'b mut Build {
    // SAFETY: the session is open for this thread alone: the caller's promise, and `start` waits for others.
    unsafe { &mut *QpObject::of(qp.cast()).session.build.get() }
}

/// Begins a request.
unsafe fn begin(qp: *mut QpEx, operation: Operation) {
    // SAFETY: the caller's promise.
    let (build, id, flags) = unsafe { (building(qp), (*qp).wr_id, (*qp).wr_flags) };
    let flags = Flags {
        signaled: flags & send_flags::SIGNALED != 0,
        solicited: flags & send_flags::SOLICITED != 0,
        fence: flags & send_flags::FENCE != 0,
    };
    let at = build.pieces.len();
    build.requests.push(Built { id, flags, operation, pieces: at..at, inline: None, target: None });
}

/// Changes the request that was begun last; without one, the whole session fails.
unsafe fn change(qp: *mut QpEx, with: impl FnOnce(&mut Built, &mut Vec<Piece>, &mut Vec<u8>)) {
    // SAFETY: the caller's promise.
    let Build { requests, pieces, inline, error } = unsafe { building(qp) };
    match requests.last_mut() {
        Some(last) => with(last, pieces, inline),
        None => *error = libc::EINVAL,
    }
}

unsafe extern "C" fn bind_mw(qp: *mut QpEx, mw: *mut Mw, rkey: u32, info: *const MwBindInfo) {
    // SAFETY: the caller's promise.
    match unsafe { info.as_ref() }.ok_or(libc::EINVAL).and_then(|info| unsafe { bind_two(mw, rkey, info) }) {
        // SAFETY: the caller's promise.
        Ok(operation) => unsafe { begin(qp, operation) },
        // SAFETY: the caller's promise.
        Err(error) => unsafe { building(qp) }.error = error,
    }
}

unsafe extern "C" fn start(qp: *mut QpEx) {
    // SAFETY: the caller's promise.
    let object = unsafe { QpObject::of(qp.cast()) };
    let session = &object.session;
    // Pairs with the release in `close`: what another thread has built is gone.
    while session.is_open.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // A child would wait for a thread that only its parent has; `complete` says EIO to it.
        if object.opened.place.is_inherited() {
            return;
        }
        thread::yield_now();
    }
}

/// Forgets what was built, and lets others in.
unsafe fn close(qp: *mut QpEx) {
    // SAFETY: the caller's promise.
    unsafe {
        let build = building(qp);
        build.requests.clear();
        build.pieces.clear();
        build.inline.clear();
        build.error = 0;
        // Pairs with the acquire in `start`.
        QpObject::of(qp.cast()).session.is_open.store(false, Ordering::Release);
    }
}

unsafe extern "C" fn abort(qp: *mut QpEx) {
    // SAFETY: the caller's promise.
    unsafe { close(qp) }
}

unsafe extern "C" fn complete(qp: *mut QpEx) -> c_int {
    // SAFETY: the caller's promise.
    let (object, build) = unsafe { (QpObject::of(qp.cast()), building(qp)) };
    let posted = guarded(libc::EIO, || {
        if build.error != 0 {
            return build.error;
        }
        super::code(object.opened.place.posting(|running| {
            // All of them or none.
            let parts: Vec<[&[u8]; 1]> = build.requests.iter().map(|built| [build.inline_of(built)]).collect();
            let all = || build.requests.iter().zip(&parts).map(|(built, parts)| build.request(built, parts));
            running.would_post(object.number, all())?;
            for request in all() {
                running.post_send(object.number, &request)?;
            }
            Ok(())
        }))
    });
    // SAFETY: the caller's promise.
    unsafe { close(qp) };
    posted
}

unsafe extern "C" fn compare_swap(qp: *mut QpEx, rkey: u32, address: u64, compare: u64, swap: u64) {
    // SAFETY: the caller's promise.
    unsafe { begin(qp, Operation::CompareSwap { address, rkey: Key::new(rkey), compare, swap }) }
}

unsafe extern "C" fn fetch_add(qp: *mut QpEx, rkey: u32, address: u64, add: u64) {
    // SAFETY: the caller's promise.
    unsafe { begin(qp, Operation::FetchAdd { address, rkey: Key::new(rkey), add }) }
}

unsafe extern "C" fn local_invalidate(qp: *mut QpEx, key: u32) {
    // SAFETY: the caller's promise.
    unsafe { begin(qp, Operation::LocalInvalidate(Key::new(key))) }
}

unsafe extern "C" fn read(qp: *mut QpEx, rkey: u32, address: u64) {
    // SAFETY: the caller's promise.
    unsafe { begin(qp, Operation::Read { address, rkey: Key::new(rkey) }) }
}

unsafe extern "C" fn write(qp: *mut QpEx, rkey: u32, address: u64) {
    // SAFETY: the caller's promise.
    unsafe { begin(qp, Operation::Write { address, rkey: Key::new(rkey), immediate: None }) }
}

unsafe extern "C" fn write_immediate(qp: *mut QpEx, rkey: u32, address: u64, immediate: u32) {
    let immediate = Some(immediate.to_ne_bytes());
    // SAFETY: the caller's promise.
    unsafe { begin(qp, Operation::Write { address, rkey: Key::new(rkey), immediate }) }
}

unsafe extern "C" fn send(qp: *mut QpEx) {
    // SAFETY: the caller's promise.
    unsafe { begin(qp, Operation::Send) }
}

unsafe extern "C" fn send_immediate(qp: *mut QpEx, immediate: u32) {
    // SAFETY: the caller's promise.
    unsafe { begin(qp, Operation::SendImmediate(immediate.to_ne_bytes())) }
}

unsafe extern "C" fn send_invalidate(qp: *mut QpEx, key: u32) {
    // SAFETY: the caller's promise.
    unsafe { begin(qp, Operation::SendInvalidate(Key::new(key))) }
}

unsafe extern "C" fn set_target(qp: *mut QpEx, ah: *mut Ah, number: u32, qkey: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        if ah.is_null() {
            building(qp).error = libc::EINVAL;
            return;
        }
        let path = AhObject::of(ah).path;
        change(qp, |built, _, _| built.target = Some(Target { path, qpn: Qpn::new(number), qkey }));
    }
}

unsafe extern "C" fn set_piece(qp: *mut QpEx, lkey: u32, address: u64, len: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        change(qp, |built, pieces, _| {
            pieces.push(Piece { address, len, lkey: Key::new(lkey) });
            built.pieces.end = pieces.len();
        });
    }
}

unsafe extern "C" fn set_pieces(qp: *mut QpEx, count: usize, list: *const Sge) {
    if count > PIECES {
        // SAFETY: the caller's promise.
        unsafe { building(qp) }.error = libc::EINVAL;
        return;
    }
    for at in 0..count {
        // SAFETY: there are `count` of them: the caller's promise.
        unsafe {
            let Sge { addr, length, lkey } = *list.add(at);
            set_piece(qp, lkey, addr, length);
        }
    }
}

unsafe extern "C" fn set_inline(qp: *mut QpEx, first: *mut c_void, len: usize) {
    let list = DataBuf { addr: first, length: len };
    // SAFETY: the caller's promise.
    unsafe { set_inline_list(qp, 1, &list) }
}

unsafe extern "C" fn set_inline_list(qp: *mut QpEx, count: usize, list: *const DataBuf) {
    // SAFETY: the caller's promise: there are `count` of them, and their bytes are there now.
    unsafe {
        // What the queue pair does not take is found when it is posted; here only what cannot be.
        let lengths = || (0..count.min(PIECES)).map(|at| (*list.add(at)).length);
        if count > PIECES || lengths().try_fold(0, usize::checked_add).is_none_or(|all| all > INLINE) {
            building(qp).error = libc::ENOMEM;
            return;
        }
        change(qp, |built, _, inline| {
            let begin = inline.len();
            for at in 0..count {
                let DataBuf { addr, length } = *list.add(at);
                if length > 0 {
                    inline.extend_from_slice(slice::from_raw_parts(addr.cast(), length));
                }
            }
            built.inline = Some(begin..inline.len());
        });
    }
}
