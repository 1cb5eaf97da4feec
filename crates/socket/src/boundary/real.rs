//! The functions of the C library, behind ours.

use core::ffi::{c_int, c_void};
use libc::{epoll_event, fd_set, iovec, mmsghdr, msghdr, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the C library has the function of that name.
#[cold]
fn find(name: &core::ffi::CStr, known: &AtomicUsize) -> usize {
    // SAFETY: a name that ends with 0.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }.addr();
    known.store(at, Ordering::Relaxed);
    at
}

macro_rules! real {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => { $(
        /// # Safety
        /// As the function of the C library of this name.
        #[inline(always)]
        pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
            static KNOWN: AtomicUsize = AtomicUsize::new(0);
            let mut at = KNOWN.load(Ordering::Relaxed);
            if at == 0 {
                at = find(const { match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name with a 0 in it"),
                } }, &KNOWN);
            }
            if at == 0 {
                super::set_errno(libc::ENOSYS);
                return -1;
            }
            // SAFETY: what the C library calls so has this type.
            let function = unsafe {
                core::mem::transmute::<*const c_void, unsafe extern "C-unwind" fn($($ty),*) -> $ret>(
                    core::ptr::with_exposed_provenance(at),
                )
            };
            // SAFETY: as the caller promises.
            unsafe { function($($arg),*) }
        }
    )* };
}

real! {
    read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, to: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, room: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int, timeout: *mut libc::timespec) -> c_int;
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t;
    send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, from: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, room: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int;
    sendfile(out: c_int, file: c_int, place: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_place: *mut i64, to: c_int, to_place: *mut i64, len: size_t, flags: u32) -> ssize_t;
    connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int;
    accept(fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: u32, last: u32, flags: c_int) -> c_int;
    fileno(file: *mut libc::FILE) -> c_int;
    vdprintf(fd: c_int, format: *const core::ffi::c_char, arguments: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const core::ffi::c_char, arguments: *mut c_void) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut libc::posix_spawn_file_actions_t, fd: c_int, copy: c_int) -> c_int;
    posix_spawn_file_actions_init(actions: *mut libc::posix_spawn_file_actions_t) -> c_int;
    posix_spawn_file_actions_destroy(actions: *mut libc::posix_spawn_file_actions_t) -> c_int;
    posix_spawn(process: *mut libc::pid_t, path: *const core::ffi::c_char, actions: *const libc::posix_spawn_file_actions_t, attributes: *const libc::posix_spawnattr_t, arguments: *const *mut core::ffi::c_char, environment: *const *mut core::ffi::c_char) -> c_int;
    posix_spawnp(process: *mut libc::pid_t, file: *const core::ffi::c_char, actions: *const libc::posix_spawn_file_actions_t, attributes: *const libc::posix_spawnattr_t, arguments: *const *mut core::ffi::c_char, environment: *const *mut core::ffi::c_char) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, what: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, what: libc::c_ulong, argument: usize) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: libc::nfds_t, timeout: *const libc::timespec, signals: *const libc::sigset_t) -> c_int;
    select(count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set, timeout: *mut libc::timeval) -> c_int;
    pselect(count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set, timeout: *const libc::timespec, signals: *const libc::sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epoll: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epoll: c_int, to: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    epoll_pwait(epoll: c_int, to: *mut epoll_event, most: c_int, timeout: c_int, signals: *const libc::sigset_t) -> c_int;
    epoll_pwait2(epoll: c_int, to: *mut epoll_event, most: c_int, timeout: *const libc::timespec, signals: *const libc::sigset_t) -> c_int;
}
