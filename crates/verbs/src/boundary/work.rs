//! Posting and polling.

use super::completion::CqObject;
use super::device::{ibv_query_device, ibv_query_port};
use super::guarded;
use super::pair::{AhObject, QpObject, SrqObject};
use super::window::{alloc_mw, bind_mw, bind_two, dealloc_mw};
use crate::abi::{ContextOps, Cq, Qp, RecvWr, SendWr, Sge, Srq, Wc, opcode, send_flags, wc_flags};
use crate::place::Running;
use core::ffi::c_int;
use core::mem::offset_of;
use core::{ptr, slice};
use millrace_rdma::number::{Key, Qpn};
use millrace_rdma::work::{Completion, Data, Extra, Flags, Operation, Piece, Request, Target};

/// Most pieces of a request, as the engine has it by default.
pub(super) const PIECES: usize = 16;

/// The functions that programs call by way of a context.
pub(super) fn context_ops() -> ContextOps {
    ContextOps {
        query_device: Some(ibv_query_device),
        query_port: Some(ibv_query_port),
        old_regions: [ptr::null(); 5],
        alloc_mw: Some(alloc_mw),
        bind_mw: Some(bind_mw),
        dealloc_mw: Some(dealloc_mw),
        old_create_cq: ptr::null(),
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        old_queues: [ptr::null(); 7],
        post_srq_recv: Some(post_srq_recv),
        old_pairs: [ptr::null(); 4],
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        old_rest: [ptr::null(); 5],
    }
}

/// Pieces of a program, as the engine wants them.
///
/// # Safety
/// There are `count` of them at `first`, for as long as the slice is used.
#[inline]
unsafe fn pieces<'a>(first: *const Sge, count: c_int) -> Result<&'a [Piece], i32> {
    const {
        assert!(size_of::<Sge>() == size_of::<Piece>() && align_of::<Sge>() >= align_of::<Piece>());
        assert!(offset_of!(Sge, addr) == offset_of!(Piece, address));
        assert!(offset_of!(Sge, length) == offset_of!(Piece, len));
        assert!(offset_of!(Sge, lkey) == offset_of!(Piece, lkey));
    }
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise; the layouts are the same, and each field takes any bits.
        Ok(count) if count <= PIECES => Ok(unsafe { slice::from_raw_parts(first.cast(), count) }),
        _ => Err(libc::EINVAL),
    }
}

/// # Safety
/// What belongs to the opcode of `wr` is there.
#[inline]
unsafe fn operation(wr: &SendWr) -> Result<Operation, i32> {
    let immediate = wr.imm_data.to_ne_bytes();
    Ok(match wr.opcode {
        opcode::SEND => Operation::Send,
        opcode::SEND_IMM => Operation::SendImmediate(immediate),
        opcode::SEND_INVALIDATE => Operation::SendInvalidate(Key::new(wr.imm_data)),
        opcode::WRITE | opcode::WRITE_IMM | opcode::READ => {
            // SAFETY: the opcode says which one it is.
            let rdma = unsafe { wr.wr.rdma };
            let (address, rkey) = (rdma.remote_addr, Key::new(rdma.rkey));
            match wr.opcode {
                opcode::READ => Operation::Read { address, rkey },
                code => Operation::Write { address, rkey, immediate: (code == opcode::WRITE_IMM).then_some(immediate) },
            }
        }
        opcode::COMPARE_SWAP | opcode::FETCH_ADD => {
            // SAFETY: the opcode says which one it is.
            let atomic = unsafe { wr.wr.atomic };
            let (address, rkey) = (atomic.remote_addr, Key::new(atomic.rkey));
            match wr.opcode {
                opcode::FETCH_ADD => Operation::FetchAdd { address, rkey, add: atomic.compare_add },
                _ => Operation::CompareSwap { address, rkey, compare: atomic.compare_add, swap: atomic.swap },
            }
        }
        opcode::LOCAL_INVALIDATE => Operation::LocalInvalidate(Key::new(wr.imm_data)),
        opcode::BIND => {
            // SAFETY: the caller's promise.
            unsafe { bind_two(wr.bind.mw, wr.bind.rkey, &wr.bind.info)? }
        }
        _ => return Err(libc::EINVAL),
    })
}

/// # Safety
/// `wr` and what it leads to are there.
#[inline(never)]
unsafe fn post_one(running: &mut Running, number: Qpn, is_datagram: bool, wr: &SendWr) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    let (operation, pieces) = unsafe { (operation(wr)?, pieces(wr.sg_list, wr.num_sge)?) };
    let target = match is_datagram {
        true => {
            // SAFETY: the kind of queue pair says which one it is.
            let ud = unsafe { wr.wr.ud };
            if ud.ah.is_null() {
                return Err(libc::EINVAL);
            }
            // SAFETY: the caller's promise.
            let path = unsafe { AhObject::of(ud.ah) }.path;
            Some(Target { path, qpn: Qpn::new(ud.remote_qpn), qkey: ud.remote_qkey })
        }
        false => None,
    };
    let flags = Flags {
        signaled: wr.send_flags & send_flags::SIGNALED != 0,
        solicited: wr.send_flags & send_flags::SOLICITED != 0,
        fence: wr.send_flags & send_flags::FENCE != 0,
    };
    let mut post = |data: Data<'_>| {
        let request = Request { id: wr.wr_id, operation, data, flags, target: target.as_ref() };
        running.post_send(number, &request)
    };
    if wr.send_flags & send_flags::INLINE == 0 || !operation.sends() {
        return post(Data::Pieces(pieces));
    }
    let bytes = |piece: &Piece| match piece.len {
        0 => &[],
        // SAFETY: bytes given inline are memory of the program (the caller's promise), and are copied now.
        len => unsafe { slice::from_raw_parts(piece.address as *const u8, len as usize) },
    };
    // Nearly always it is one.
    if let [piece] = pieces {
        return post(Data::Inline(&[bytes(piece)]));
    }
    let mut parts: [&[u8]; PIECES] = [&[]; PIECES];
    parts.iter_mut().zip(pieces).for_each(|(to, piece)| *to = bytes(piece));
    post(Data::Inline(&parts[..pieces.len()]))
}

/// What is posted most, without what is only there for everything else: bytes given inline in one piece, as a WRITE that goes where
/// the one before it went, or as a SEND on a connection. False: it is to be posted as all else.
///
/// # Safety
/// `wr` and what it leads to are there.
#[inline(always)]
unsafe fn post_usual(running: &mut Running, number: Qpn, is_datagram: bool, wr: &SendWr) -> Result<bool, i32> {
    if wr.num_sge != 1 || wr.send_flags & send_flags::INLINE == 0 || is_datagram {
        return Ok(false);
    }
    // SAFETY: there is one piece: the caller's promise.
    let piece = unsafe { &*wr.sg_list };
    let bytes = match piece.length {
        0 => return Ok(false),
        // SAFETY: bytes given inline are memory of the program (the caller's promise), and are copied now.
        len => unsafe { slice::from_raw_parts(piece.addr as *const u8, len as usize) },
    };
    let signaled = wr.send_flags & send_flags::SIGNALED != 0;
    match wr.opcode {
        opcode::WRITE if wr.send_flags & send_flags::FENCE == 0 => {
            // SAFETY: the opcode says which one it is.
            let to = unsafe { wr.wr.rdma };
            let to = (to.remote_addr, Key::new(to.rkey));
            Ok(running.write_again(number, wr.wr_id, to, bytes, signaled))
        }
        opcode::SEND => {
            let solicited = wr.send_flags & send_flags::SOLICITED != 0;
            let fence = wr.send_flags & send_flags::FENCE != 0;
            let flags = Flags { signaled, solicited, fence };
            let (operation, data) = (Operation::Send, Data::Inline(&[bytes]));
            running.post_known(number, &Request { id: wr.wr_id, operation, data, flags, target: None })?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

unsafe extern "C" fn post_send(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    const DATAGRAM: u32 = 4;
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let (object, is_datagram) = unsafe { (QpObject::of(qp), (*qp).qp_type == DATAGRAM) };
        let mut next = wr;
        let done = object.opened.place.posting(|running| {
            // SAFETY: the list ends with NULL: the caller's promise.
            while let Some(wr) = unsafe { next.as_ref() } {
                // SAFETY: the caller's promise.
                if !unsafe { post_usual(running, object.number, is_datagram, wr) }? {
                    // SAFETY: the caller's promise.
                    unsafe { post_one(running, object.number, is_datagram, wr) }?;
                }
                next = wr.next;
            }
            Ok(())
        });
        finish(done, next, bad)
    })
}

/// What a posting function returns, and where the first request that was not posted is.
#[inline]
fn finish<W>(done: Result<(), i32>, next: *mut W, bad: *mut *mut W) -> c_int {
    let Err(error) = done else { return 0 };
    if !bad.is_null() {
        // SAFETY: the place of the caller, who wants to know.
        unsafe { *bad = next };
    }
    error
}

unsafe extern "C" fn post_recv(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) };
        let mut next = wr;
        let done = object.opened.place.with(|running| {
            // SAFETY: the list ends with NULL: the caller's promise.
            while let Some(wr) = unsafe { next.as_ref() } {
                // SAFETY: the caller's promise.
                let pieces = unsafe { pieces(wr.sg_list, wr.num_sge) }?;
                running.post_receive(object.number, wr.wr_id, pieces)?;
                next = wr.next;
            }
            Ok(())
        });
        finish(done, next, bad)
    })
}

unsafe extern "C" fn post_srq_recv(srq: *mut Srq, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let object = unsafe { SrqObject::of(srq) };
        let mut next = wr;
        let done = object.opened.place.with(|running| {
            // SAFETY: the list ends with NULL: the caller's promise.
            while let Some(wr) = unsafe { next.as_ref() } {
                // SAFETY: the caller's promise.
                let pieces = unsafe { pieces(wr.sg_list, wr.num_sge) }?;
                running.post_shared(object.number, wr.wr_id, pieces)?;
                next = wr.next;
            }
            Ok(())
        });
        finish(done, next, bad)
    })
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, count: c_int, to: *mut Wc) -> c_int {
    guarded(-1, || {
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq) };
        let Ok(most) = usize::try_from(count) else { return -1 };
        let has_some = |running: &mut Running| running.has_completions(object.number);
        let mut at = to;
        let each = |completion: &Completion| {
            // SAFETY: there is room for `count` (the caller's promise), and there are no more than that.
            unsafe {
                at.write(line(completion));
                at = at.add(1);
            }
        };
        let taken = object.opened.place.taking(has_some, |running| running.poll(object.number, most, each));
        taken.map_or(-1, |taken| taken as c_int)
    })
}

/// A completion as programs see it.
#[inline]
pub(super) fn line(completion: &Completion) -> Wc {
    let (imm_data, extra) = match completion.extra {
        Extra::None => (0, 0),
        Extra::Immediate(bytes) => (u32::from_ne_bytes(bytes), wc_flags::IMMEDIATE),
        Extra::Invalidated(key) => (key.value(), wc_flags::INVALIDATED),
    };
    Wc {
        wr_id: completion.id,
        status: completion.status as u32,
        opcode: completion.ended as u32,
        vendor_err: 0,
        byte_len: completion.len,
        imm_data,
        qp_num: completion.qpn.value(),
        src_qp: completion.source.value(),
        wc_flags: extra | if completion.has_grh { wc_flags::GRH } else { 0 },
        pkey_index: 0,
        slid: 0,
        sl: completion.service_level,
        dlid_path_bits: 0,
    }
}

unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq) };
        super::code(object.opened.place.moving(false, |running| running.arm(object.number, solicited_only != 0)))
    })
}
