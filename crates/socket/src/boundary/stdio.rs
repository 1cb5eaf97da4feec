//! Files of the C library over connections. It reads and writes past functions that are ours.

use crate::counters::Reason;
use crate::table;
use core::ffi::{c_char, c_int, c_void};
use libc::{FILE, size_t, ssize_t};

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C-unwind" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
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
    // SAFETY: the number of a file.
    unsafe { super::number::close(cookie.addr() as c_int) }
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

/// A connection that has met is standard input, output or error of a program from its beginning: so is its file.
pub(super) fn replace(fd: c_int) {
    // SAFETY: before the program runs, nobody else uses these variables of the C library, which are there to be set.
    unsafe {
        match fd {
            0 => stdin = over(fd, c"r".as_ptr()),
            1 => stdout = over(fd, c"w".as_ptr()),
            2 => {
                stderr = over(fd, c"w".as_ptr());
                libc::setvbuf(stderr, core::ptr::null_mut(), libc::_IONBF, 0);
            }
            _ => {}
        }
    }
}
