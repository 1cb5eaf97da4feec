//! Copies and atomic operations that may fail: on memory which another thread can unmap at any moment. May use `unsafe`.
//!
//! All of them are one function in assembly, which keeps nothing on the stack. An access that the processor refuses
//! raises SIGSEGV or SIGBUS; our handler sees that the thread stands inside of that function and sends it to its last
//! lines, which return "fault". This is what a kernel does when it copies from and to a program. Any other signal is handed
//! to whoever handled it before. Nothing is paid while nothing fails.
//!
//! A program that puts a handler of its own in front of ours takes that away: [`can_fail`] says so, and the system's own
//! copies (`process_vm_readv`, `process_vm_writev`) are used instead, as on processors without the assembly.

use core::ffi::{c_int, c_void};
use rustix::io::Errno;

/// The memory is not there, or not with the right that was needed. Some of the bytes may have been moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory is not there any more")]
pub struct Vanished;

/// From this length on, bytes can be stored around the caches.
pub const LARGE: usize = 4096;

/// Copies `len` bytes in any order.
///
/// # Safety
/// What is at `from` and `to` is shared memory, or memory that the caller may read or write; the two do not overlap.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Vanished> {
    // SAFETY: as promised; an access that the processor refuses comes back as a fault.
    unsafe { direct::touch(to.cast(), from as u64, len as u64, direct::COPY) }.map(drop)
}

/// Copies `len` bytes so that the last one is stored last.
///
/// Programs (perftest is one) learn that a message is there by looking at the last byte of their buffer. So everything
/// else is stored first; stores of the processor become visible in their order, except those of one string
/// instruction among themselves and those around the caches, behind which there is a fence.
///
/// # Safety
/// As [`copy`].
#[inline]
pub(crate) unsafe fn copy_last_last(from: *const u8, to: *mut u8, len: usize, around: bool) -> Result<(), Vanished> {
    let kind = if around && len >= LARGE { direct::wide_kind() } else { direct::LAST_LAST };
    // SAFETY: as `copy`.
    unsafe { direct::touch(to.cast(), from as u64, len as u64, kind) }.map(drop)
}

/// Puts `swap` where `compare` is, in one step for every thread and process; what was there.
///
/// # Safety
/// As [`copy`]; `at` is a multiple of eight.
#[inline]
pub(crate) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64) -> Result<u64, Vanished> {
    // SAFETY: as `copy`.
    unsafe { direct::touch(at, compare, swap, direct::COMPARE_SWAP) }
}

/// Adds, in one step for every thread and process; what was there.
///
/// # Safety
/// As [`compare_swap`].
#[inline]
pub(crate) unsafe fn fetch_add(at: *mut u64, add: u64) -> Result<u64, Vanished> {
    // SAFETY: as `copy`.
    unsafe { direct::touch(at, add, 0, direct::FETCH_ADD) }
}

/// Whether an access that the processor refuses comes back as [`Vanished`]: our handlers stand first. The first call
/// installs them.
pub(crate) fn can_fail() -> bool {
    direct::can_fail()
}

/// The same copy by a system call, at about a microsecond: it needs no handler.
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn system_read(from: usize, to: &mut [u8]) -> Result<(), Vanished> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(from), iov_len: to.len() };
    // SAFETY: one vector each; the system checks the addresses of `remote`, and `to` may be written.
    let moved = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if moved == to.len() as isize { Ok(()) } else { Err(Vanished) }
}

/// The same the other way; the last byte is stored last by a call of its own.
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn system_write(from: &[u8], to: usize) -> Result<(), Vanished> {
    let Some(last) = from.len().checked_sub(1) else { return Ok(()) };
    for part in [0..last, last..from.len()] {
        let bytes = &from[part.clone()];
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let to: *mut c_void = core::ptr::with_exposed_provenance_mut(to + part.start);
        let remote = libc::iovec { iov_base: to, iov_len: bytes.len() };
        // SAFETY: one vector each; the system checks the addresses of `remote`, and only reads `bytes`.
        let moved = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
        if moved != bytes.len() as isize {
            return Err(Vanished);
        }
    }
    Ok(())
}

/// Whether every page of a range is mapped, with whatever rights.
pub(crate) fn is_mapped(first: usize, len: usize) -> bool {
    let page = rustix::param::page_size();
    let start = first & !(page - 1);
    let start_of: *mut c_void = core::ptr::with_exposed_provenance_mut(start);
    // SAFETY: starts no writing and changes nothing; it only says ENOMEM where nothing is mapped.
    match unsafe { rustix::mm::msync(start_of, first - start + len, rustix::mm::MsyncFlags::ASYNC) } {
        Err(Errno::NOMEM) => false,
        Ok(()) | Err(_) => true,
    }
}

#[cfg(target_arch = "x86_64")]
mod direct {
    use super::{Vanished, c_int, c_void};
    use crate::signal::{Before, is_handled_by};
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{LazyLock, Once};

    pub(super) const COPY: u64 = 0;
    pub(super) const LAST_LAST: u64 = 1;
    const AROUND_AVX2: u64 = 2;
    const AROUND_AVX512: u64 = 3;
    pub(super) const COMPARE_SWAP: u64 = 4;
    pub(super) const FETCH_ADD: u64 = 5;
    const END: u64 = 6;
    const RESCUE: u64 = 7;

    /// What comes back in RAX and RDX.
    #[repr(C)]
    struct Outcome {
        value: u64,
        fault: u64,
    }

    /// The one function that may fault. RDI: where to; RSI: from where, or the first operand; RDX: length, or the second
    /// operand; RCX: what to do.
    ///
    /// Stores behind one another stay in order on this processor, but those of one string instruction do not among
    /// themselves, and those around the caches only with a fence.
    #[unsafe(naked)]
    unsafe extern "sysv64" fn touch_raw(to: *mut u64, first: u64, second: u64, what: u64) -> Outcome {
        core::arch::naked_asm!(
            "cmp ecx, 1",
            "ja 30f",
            "jb 24f",
            // Last byte last: all the others first; a store of a whole aligned word is one step anyway.
            "test rdx, rdx",
            "jz 90f",
            "cmp rdx, 8",
            "jne 2f",
            "test dil, 7",
            "jnz 2f",
            "mov rax, [rsi]",
            "mov [rdi], rax",
            "jmp 90f",
            "2:",
            "movzx ecx, byte ptr [rsi + rdx - 1]",
            "lea r9, [rdi + rdx - 1]",
            "mov r10d, ecx",
            "mov r8d, 1",
            "dec rdx",
            "jmp 25f",
            // Any order.
            "24:",
            "xor r8d, r8d",
            "25:",
            "cmp rdx, 16",
            "jb 14f",
            "cmp rdx, 32",
            "ja 12f",
            "movups xmm0, [rsi]",
            "movups xmm1, [rsi + rdx - 16]",
            "movups [rdi], xmm0",
            "movups [rdi + rdx - 16], xmm1",
            "jmp 20f",
            "12:",
            "cmp rdx, 64",
            "ja 13f",
            "movups xmm0, [rsi]",
            "movups xmm1, [rsi + 16]",
            "movups xmm2, [rsi + rdx - 32]",
            "movups xmm3, [rsi + rdx - 16]",
            "movups [rdi], xmm0",
            "movups [rdi + 16], xmm1",
            "movups [rdi + rdx - 32], xmm2",
            "movups [rdi + rdx - 16], xmm3",
            "jmp 20f",
            "13:",
            "cmp rdx, 128",
            "ja 16f",
            "movups xmm0, [rsi]",
            "movups xmm1, [rsi + 16]",
            "movups xmm2, [rsi + 32]",
            "movups xmm3, [rsi + 48]",
            "movups xmm4, [rsi + rdx - 64]",
            "movups xmm5, [rsi + rdx - 48]",
            "movups xmm6, [rsi + rdx - 32]",
            "movups xmm7, [rsi + rdx - 16]",
            "movups [rdi], xmm0",
            "movups [rdi + 16], xmm1",
            "movups [rdi + 32], xmm2",
            "movups [rdi + 48], xmm3",
            "movups [rdi + rdx - 64], xmm4",
            "movups [rdi + rdx - 48], xmm5",
            "movups [rdi + rdx - 32], xmm6",
            "movups [rdi + rdx - 16], xmm7",
            "jmp 20f",
            "14:",
            "cmp rdx, 8",
            "jb 15f",
            "mov rax, [rsi]",
            "mov rcx, [rsi + rdx - 8]",
            "mov [rdi], rax",
            "mov [rdi + rdx - 8], rcx",
            "jmp 20f",
            "15:",
            "cmp rdx, 4",
            "jb 17f",
            "mov eax, [rsi]",
            "mov ecx, [rsi + rdx - 4]",
            "mov [rdi], eax",
            "mov [rdi + rdx - 4], ecx",
            "jmp 20f",
            "17:",
            "test rdx, rdx",
            "jz 20f",
            "mov r11, rdx",
            "shr r11, 1",
            "movzx eax, byte ptr [rsi]",
            "movzx ecx, byte ptr [rsi + rdx - 1]",
            "movzx esi, byte ptr [rsi + r11]",
            "mov [rdi + r11], sil",
            "mov [rdi], al",
            "mov [rdi + rdx - 1], cl",
            "jmp 20f",
            "16:",
            "mov rcx, rdx",
            "rep movsb",
            "20:",
            "test r8d, r8d",
            "jz 90f",
            "mov [r9], r10b",
            "jmp 90f",
            "30:",
            "cmp ecx, 3",
            "ja 50f",
            // Around the caches, at least 4096 bytes. The last byte is kept for the end.
            "movzx r10d, byte ptr [rsi + rdx - 1]",
            "lea r9, [rdi + rdx - 1]",
            "dec rdx",
            // The head up to a line of the destination.
            "mov r11d, ecx",
            "mov rcx, rdi",
            "neg rcx",
            "and ecx, 63",
            "sub rdx, rcx",
            "rep movsb",
            "cmp r11d, 3",
            "je 42f",
            "41:",
            "vmovdqu ymm0, [rsi]",
            "vmovdqu ymm1, [rsi + 32]",
            "vmovdqu ymm2, [rsi + 64]",
            "vmovdqu ymm3, [rsi + 96]",
            "vmovntdq [rdi], ymm0",
            "vmovntdq [rdi + 32], ymm1",
            "vmovntdq [rdi + 64], ymm2",
            "vmovntdq [rdi + 96], ymm3",
            "add rsi, 128",
            "add rdi, 128",
            "sub rdx, 128",
            "cmp rdx, 128",
            "jae 41b",
            "jmp 45f",
            "42:",
            "vmovdqu64 zmm0, [rsi]",
            "vmovdqu64 zmm1, [rsi + 64]",
            "vmovdqu64 zmm2, [rsi + 128]",
            "vmovdqu64 zmm3, [rsi + 192]",
            "vmovntdq [rdi], zmm0",
            "vmovntdq [rdi + 64], zmm1",
            "vmovntdq [rdi + 128], zmm2",
            "vmovntdq [rdi + 192], zmm3",
            "add rsi, 256",
            "add rdi, 256",
            "sub rdx, 256",
            "cmp rdx, 256",
            "jae 42b",
            "45:",
            "vzeroupper",
            "mov rcx, rdx",
            "rep movsb",
            "sfence",
            "mov [r9], r10b",
            "jmp 90f",
            "50:",
            "cmp ecx, 5",
            "je 60f",
            "ja 70f",
            "mov rax, rsi",
            "lock cmpxchg [rdi], rdx",
            "xor edx, edx",
            "ret",
            "60:",
            "mov rax, rsi",
            "lock xadd [rdi], rax",
            "xor edx, edx",
            "ret",
            // Not accesses: where this function ends, and where it is left after a fault.
            "70:",
            "lea rax, [rip + 99f]",
            "lea rdx, [rip + 80f]",
            "cmp ecx, 7",
            "cmove rax, rdx",
            "xor edx, edx",
            "ret",
            "80:",
            "xor eax, eax",
            "mov edx, 1",
            "ret",
            "90:",
            "xor eax, eax",
            "xor edx, edx",
            "ret",
            "99:",
        )
    }

    /// # Safety
    /// As [`super::copy`]; around the caches only with the instructions for it ([`wide_kind`]) and at least
    /// [`super::LARGE`] bytes.
    #[inline]
    pub(super) unsafe fn touch(to: *mut u64, first: u64, second: u64, what: u64) -> Result<u64, Vanished> {
        // SAFETY: as promised.
        let outcome = unsafe { touch_raw(to, first, second, what) };
        if outcome.fault == 0 { Ok(outcome.value) } else { Err(Vanished) }
    }

    /// How this processor stores around its caches.
    pub(super) fn wide_kind() -> u64 {
        static KIND: LazyLock<u64> = LazyLock::new(|| {
            let wide = [("avx512f", AROUND_AVX512), ("avx2", AROUND_AVX2)];
            let has = [is_x86_feature_detected!("avx512f"), is_x86_feature_detected!("avx2")];
            wide.iter().zip(has).find(|(_, has)| *has).map_or(LAST_LAST, |((_, kind), _)| *kind)
        });
        *KIND
    }

    static END_AT: AtomicUsize = AtomicUsize::new(0);
    static RESCUE_AT: AtomicUsize = AtomicUsize::new(0);
    static BEFORE_SEGV: Before = Before::new();
    static BEFORE_BUS: Before = Before::new();

    pub(super) fn can_fail() -> bool {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            // SAFETY: these two touch no memory.
            let [end, rescue] = [END, RESCUE].map(|what| unsafe { touch_raw(core::ptr::null_mut(), 0, 0, what) });
            RESCUE_AT.store(rescue.value as usize, Ordering::Relaxed);
            // Release pairs with the Acquire in `rescue`: who sees the end sees where to go, too.
            END_AT.store(end.value as usize, Ordering::Release);
            BEFORE_SEGV.install(libc::SIGSEGV, on_fault);
            BEFORE_BUS.install(libc::SIGBUS, on_fault);
        });
        // For SIGBUS the guard over foreign memory may stand in front of us: it hands on what is not its own.
        is_handled_by(libc::SIGSEGV, on_fault)
    }

    extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        if !rescue(context) {
            let before = if signal == libc::SIGSEGV { &BEFORE_SEGV } else { &BEFORE_BUS };
            before.call(signal, info, context);
        }
    }

    /// Sends the thread to the end of the function if it stands in it.
    fn rescue(context: *mut c_void) -> bool {
        let context: *mut libc::ucontext_t = context.cast();
        // SAFETY: with SA_SIGINFO the kernel gives the registers of the thread, which it restores when the handler returns.
        let at = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
        let (begin, end) = (touch_raw as *const () as usize, END_AT.load(Ordering::Acquire));
        let inside = (begin..end).contains(&(*at as usize));
        if inside {
            *at = RESCUE_AT.load(Ordering::Relaxed) as i64;
        }
        inside
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod direct {
    use super::Vanished;
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    pub(super) const COPY: u64 = 0;
    pub(super) const LAST_LAST: u64 = 1;
    pub(super) const COMPARE_SWAP: u64 = 4;
    pub(super) const FETCH_ADD: u64 = 5;

    pub(super) fn wide_kind() -> u64 {
        LAST_LAST
    }

    /// There is no assembly for this processor: nothing fails, so that this serves only memory that cannot vanish.
    pub(super) fn can_fail() -> bool {
        false
    }

    /// # Safety
    /// As [`super::copy`], and the memory stays mapped.
    pub(super) unsafe fn touch(to: *mut u64, first: u64, second: u64, what: u64) -> Result<u64, Vanished> {
        let (from, len) = (core::ptr::with_exposed_provenance::<u8>(first as usize), second as usize);
        // SAFETY: as promised by the caller.
        unsafe {
            match what {
                COMPARE_SWAP => {
                    let word = AtomicU64::from_ptr(to);
                    let done = word.compare_exchange(first, second, Ordering::SeqCst, Ordering::SeqCst);
                    return Ok(done.unwrap_or_else(|now| now));
                }
                FETCH_ADD => return Ok(AtomicU64::from_ptr(to).fetch_add(first, Ordering::SeqCst)),
                LAST_LAST if len > 0 => {
                    core::ptr::copy_nonoverlapping(from, to.cast(), len - 1);
                    // Release pairs with the Acquire of whoever looks at the last byte.
                    AtomicU8::from_ptr(to.cast::<u8>().add(len - 1)).store(*from.add(len - 1), Ordering::Release);
                }
                _ => core::ptr::copy_nonoverlapping(from, to.cast(), len),
            }
        }
        Ok(0)
    }
}
