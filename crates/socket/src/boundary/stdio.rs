//! Files of the C library over connections. It reads and writes past functions that are ours.

use crate::counters::Reason;
use crate::table;
use core::ffi::{c_char, c_int, c_void};
use libc::{FILE, size_t, ssize_t};
use std::sync::atomic::{AtomicPtr, Ordering};

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C-unwind" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn vasprintf(to: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __fpending(file: *mut FILE) -> size_t;
    fn __fpurge(file: *mut FILE);
    fn __flbf(file: *mut FILE) -> c_int;
    fn __fbufsize(file: *mut FILE) -> size_t;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { super::bytes::read(cookie.addr() as c_int, to.cast(), len) }
}

unsafe extern "C-unwind" fn write(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    let done = unsafe { super::bytes::write(cookie.addr() as c_int, from.cast(), len) };
    // An error is nothing written, here.
    done.max(0)
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    let fd = cookie.addr();
    if let Some(ours) = STANDARD.get(fd) {
        ours.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    // SAFETY: the number of a file.
    unsafe { super::number::close(fd as c_int) }
}

/// # Safety
/// `mode` is a text.
unsafe fn over(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read: Some(read), write: Some(write), seek: None, close: Some(close) };
    // SAFETY: as the caller promises.
    unsafe { fopencookie(core::ptr::without_provenance_mut(fd as usize), mode, functions) }
}

/// # Safety
/// As `fdopen`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let Some(stream) = table::stream_of(fd) {
        stream.look(fd);
        if !stream.leave(fd, Reason::Wanted) {
            // SAFETY: as the caller promises.
            return unsafe { over(fd, mode) };
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real_fdopen(fd, mode) }
}

/// # Safety
/// As `fdopen`.
unsafe fn real_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: a name that ends with 0.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, c"fdopen".as_ptr()) };
    if at.is_null() {
        super::set_errno(libc::ENOSYS);
        return core::ptr::null_mut();
    }
    // SAFETY: what the C library calls so has this type, and the caller promises what it wants.
    unsafe {
        core::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE>(at)(fd, mode)
    }
}

/// The files that are ours for standard input, output and error.
static STANDARD: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 3];

/// A connection is standard input, output or error from now on: so is its file. The one that was there is kept, because others
/// may have it.
pub(super) fn replace(fd: c_int) {
    let Some(ours) = usize::try_from(fd).ok().and_then(|at| STANDARD.get(at)) else { return };
    // It goes by way of the number, whatever is behind that.
    if !ours.load(Ordering::Relaxed).is_null() {
        return;
    }
    // SAFETY: these variables of the C library are there to be set, and have a file. A program that changes what is behind these
    // numbers lets no other thread use their files meanwhile.
    unsafe {
        let place = match fd {
            0 => &raw mut stdin,
            1 => &raw mut stdout,
            _ => &raw mut stderr,
        };
        let new = over(fd, if fd == 0 { c"r".as_ptr() } else { c"w".as_ptr() });
        if new.is_null() {
            return;
        }
        if fd == 2 || __fbufsize(*place) == 1 {
            libc::setvbuf(new, core::ptr::null_mut(), libc::_IONBF, 0);
        } else if __flbf(*place) != 0 {
            libc::setvbuf(new, core::ptr::null_mut(), libc::_IOLBF, 0);
        }
        let pending = __fpending(*place);
        if fd > 0 && pending > 0 {
            libc::fwrite(pending_at(*place), 1, pending, new);
            __fpurge(*place);
        }
        ours.store(new, Ordering::Relaxed);
        *place = new;
    }
}

/// Where the bytes are that a file has not written yet (`_IO_write_base`, the fifth word of glibc's `FILE`, which is part of its ABI).
///
/// # Safety
/// `file` is a file of glibc's.
unsafe fn pending_at(file: *mut FILE) -> *const c_void {
    // SAFETY: as the caller promises.
    unsafe { *file.cast::<*const c_void>().add(4) }
}

/// # Safety
/// As `fileno`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fileno(file: *mut FILE) -> c_int {
    match STANDARD.iter().position(|ours| !file.is_null() && ours.load(Ordering::Relaxed) == file) {
        Some(fd) => fd as c_int,
        // SAFETY: as the caller promises.
        None => unsafe { super::real::fileno(file) },
    }
}

/// # Safety
/// As `vdprintf`. `arguments` is a `va_list`, which is passed as an address on the processors that this library is for.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    if table::stream(fd).is_none() {
        // SAFETY: as the caller promises.
        return unsafe { super::real::vdprintf(fd, format, arguments) };
    }
    let mut text = core::ptr::null_mut();
    // SAFETY: as the caller promises.
    let len = unsafe { vasprintf(&raw mut text, format, arguments) };
    let mut done = 0;
    while done < len {
        // SAFETY: so many bytes are there.
        let count = unsafe { super::bytes::write(fd, text.add(done as usize).cast(), (len - done) as size_t) };
        if count <= 0 {
            break;
        }
        done += count as c_int;
    }
    if len >= 0 {
        // SAFETY: `vasprintf` has made it, and `free` changes no error number.
        unsafe { libc::free(text.cast()) };
    }
    if done < len { -1 } else { len }
}

/// # Safety
/// As `__vdprintf_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    if table::stream(fd).is_none() {
        // SAFETY: as the caller promises.
        return unsafe { super::real::__vdprintf_chk(fd, flag, format, arguments) };
    }
    // SAFETY: as the caller promises.
    unsafe { vdprintf(fd, format, arguments) }
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C-unwind" fn print(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { vdprintf(fd, format, arguments) }
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C-unwind" fn print_checked(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { __vdprintf_chk(fd, flag, format, arguments) }
}

/// A function with any number of arguments, which makes a `va_list` of them (System V ABI for x86-64, 3.5.7) and passes it on:
/// `$named` bytes of registers are arguments with a name, and `$list` is the register of the next one.
#[cfg(target_arch = "x86_64")]
macro_rules! with_list {
    ($name:ident, $named:literal, $list:literal, $to:path) => {
        /// # Safety
        /// As the function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 216",
                ".cfi_adjust_cfa_offset 216",
                // Where registers are kept: 6 for numbers and addresses, 8 for what floats.
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                concat!("mov dword ptr [rsp], ", $named),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $list, ", rsp"),
                "call {to}",
                "add rsp, 216",
                ".cfi_adjust_cfa_offset -216",
                "ret",
                ".cfi_endproc",
                to = sym $to,
            )
        }
    };
}

#[cfg(target_arch = "x86_64")]
with_list!(dprintf, 16, "rdx", print);
#[cfg(target_arch = "x86_64")]
with_list!(__dprintf_chk, 24, "rcx", print_checked);
