//! What the kernel is asked directly, by system calls: the functions of the C library are our own here. One of the files of
//! this crate that may use `unsafe`.

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use std::os::fd::RawFd;
use std::time::Duration;

/// A number of the program's, for system calls. A wrong one is what the kernel says EBADF to.
pub(crate) fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: not -1, and used for system calls only, which check it.
    unsafe { BorrowedFd::borrow_raw(fd.max(0)) }
}

/// Receives what is there.
pub(crate) fn receive(fd: RawFd, to: &mut [IoSliceMut<'_>], flags: i32) -> Result<usize, Errno> {
    let flags = RecvFlags::from_bits_retain(flags as u32) | RecvFlags::DONTWAIT;
    let message = rustix::net::recvmsg(borrow(fd), to, &mut RecvAncillaryBuffer::default(), flags)?;
    Ok(message.bytes)
}

/// Whether this process has no thread but this one, as far as the C library knows.
pub(crate) fn is_single_threaded() -> bool {
    static KNOWN: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let at = *KNOWN.get_or_init(|| {
        // SAFETY: a name that ends with 0.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) }.expose_provenance()
    });
    // SAFETY: where it is there (glibc since 2.32), it is a `char` that stays.
    at != 0 && unsafe { core::ptr::with_exposed_provenance::<libc::c_char>(at).read_volatile() } != 0
}

/// Waits until a byte can be received, or the end; how many are there, one at most. Unlike `poll`, the kernel goes on after a signal
/// of which the program wants that (`SA_RESTART`). Nobody else may receive meanwhile: Linux then may not see what comes ("race in
/// MSG_PEEK", tcp.c).
pub(crate) fn wait_for_byte(fd: RawFd) -> Result<usize, Errno> {
    let mut byte = [0];
    let to = &mut [IoSliceMut::new(&mut byte)];
    Ok(rustix::net::recvmsg(borrow(fd), to, &mut RecvAncillaryBuffer::default(), RecvFlags::PEEK)?.bytes)
}

/// Sends what there is room for.
pub(crate) fn send(fd: RawFd, from: &[IoSlice<'_>], flags: i32) -> Result<usize, Errno> {
    let flags = SendFlags::from_bits_retain(flags as u32) | SendFlags::DONTWAIT;
    rustix::net::sendmsg(borrow(fd), from, &mut SendAncillaryBuffer::default(), flags)
}

/// What TCP says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tcp {
    pub is_established: bool,
    /// Bytes that came, read or not.
    pub received: u64,
    /// Bytes that the program has sent, whether they are on their way or not.
    pub sent: u64,
}

/// `TCP_INFO`, of which the places of fields are part of Linux's interface.
pub(crate) fn tcp(fd: RawFd) -> Option<Tcp> {
    const ESTABLISHED: u8 = 1;
    const ALL: usize = 216;
    let mut bytes = [0_u8; 256];
    let len = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)?;
    // Linux 4.19 has all of it.
    if len < ALL {
        return None;
    }
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let unsent = u32::from_ne_bytes(bytes[144..148].try_into().expect("four bytes"));
    let sent = long(200).wrapping_sub(long(208)).wrapping_add(unsent.into());
    Some(Tcp { is_established: bytes[0] == ESTABLISHED, received: long(128), sent })
}

/// Bytes that wait in the kernel.
pub(crate) fn unread(fd: RawFd) -> Option<u64> {
    rustix::io::ioctl_fionread(borrow(fd)).ok()
}

/// Whether it is TCP and nothing else.
pub(crate) fn is_tcp(fd: RawFd) -> bool {
    number(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP as u32)
}

/// Whether the socket has no other end, and waits for none.
pub(crate) fn is_unconnected(fd: RawFd) -> bool {
    number(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(0)
        && rustix::net::getpeername(borrow(fd)) == Err(Errno::NOTCONN)
}

/// Which network the socket belongs to, by a number that Linux gives no other one.
pub(crate) fn network(fd: RawFd) -> Option<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let mut bytes = [0; 8];
    let len = option(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut bytes)?;
    (len == 8).then(|| u64::from_ne_bytes(bytes))
}

/// An option of TCP that is a number.
pub(crate) fn tcp_option(fd: RawFd, name: i32) -> Option<i32> {
    number(fd, libc::IPPROTO_TCP, name).map(|value| value as i32)
}

/// Sets an option of TCP.
pub(crate) fn set_tcp_option(fd: RawFd, name: i32, value: i32) {
    let len = size_of::<i32>();
    // SAFETY: the kernel reads a number.
    unsafe { libc::syscall(libc::SYS_setsockopt, fd, libc::IPPROTO_TCP, name, &raw const value, len) };
}

fn number(fd: RawFd, level: i32, name: i32) -> Option<u32> {
    let mut bytes = [0; 4];
    option(fd, level, name, &mut bytes)?;
    Some(u32::from_ne_bytes(bytes))
}

fn option(fd: RawFd, level: i32, name: i32, to: &mut [u8]) -> Option<usize> {
    let mut len = to.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `to`.
    let done = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, to.as_mut_ptr(), &raw mut len) };
    (done == 0).then_some(len as usize)
}

/// `ppoll`, with a set of signals of the program's or 0.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>, signals: usize) -> Result<usize, Errno> {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the kernel writes the results of so many entries; the set of signals is the program's, or none.
    let count = unsafe { libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), time, signals, SIGNALS) };
    result(count)
}

/// `epoll_pwait`, with a set of signals of the program's or 0.
pub(crate) fn epoll_wait(
    fd: RawFd,
    to: &mut [libc::epoll_event],
    timeout: Option<Duration>,
    signals: usize,
) -> Result<usize, Errno> {
    let most = to.len().min(i32::MAX as usize);
    if let Some(short) = timeout.filter(|time| !time.is_zero() && *time < Duration::from_millis(1)) {
        let time = timespec(short);
        // SAFETY: as below; the kernel reads the time.
        let count = unsafe {
            libc::syscall(libc::SYS_epoll_pwait2, fd, to.as_mut_ptr(), most, &raw const time, signals, SIGNALS)
        };
        // Linux before 5.11 has no such call, and a filter may not know it.
        if !matches!(result(count), Err(Errno::NOSYS | Errno::PERM)) {
            return result(count);
        }
    }
    // Rounded up: a timer that ends early makes its program look twice.
    let time = timeout.map_or(-1, |time| time.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32);
    // SAFETY: the kernel writes at most as many entries as there are; the set of signals is the program's, or none.
    let count = unsafe { libc::syscall(libc::SYS_epoll_pwait, fd, to.as_mut_ptr(), most, time, signals, SIGNALS) };
    result(count)
}

/// `epoll_ctl`.
pub(crate) fn epoll_ctl(epoll: RawFd, what: i32, fd: RawFd, events: u32, data: u64) -> Result<(), Errno> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: the kernel reads one entry.
    result(unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, what, fd, &raw mut event) }).map(drop)
}

/// `splice`'s cousin in memory: reads from a file, at a place or where it stands.
pub(crate) fn read_file(fd: RawFd, to: &mut [u8], place: Option<u64>) -> Result<usize, Errno> {
    match place {
        Some(at) => rustix::io::pread(borrow(fd), to, at),
        None => rustix::io::read(borrow(fd), to),
    }
}

/// Bytes of a set of signals, as the kernel knows it.
const SIGNALS: usize = 8;

fn result(count: libc::c_long) -> Result<usize, Errno> {
    // SAFETY: this thread's own variable.
    usize::try_from(count).map_err(|_| Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs().min(i64::MAX as u64) as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// The same file under a number far from those that the program gets, and not for programs that this one becomes. Three quarters of
/// few numbers are the program's own.
pub(crate) fn move_away(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    const FAR: u64 = 16 << 10;
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(FAR * 2);
    let moved = rustix::io::fcntl_dupfd_cloexec(&fd, (most / 4 * 3).min(FAR) as RawFd);
    close(fd);
    moved
}

/// Closes a file of ours, past the program's `close`, which is ours.
pub(crate) fn close(fd: OwnedFd) {
    use std::os::fd::IntoRawFd;
    // SAFETY: it was owned, and is nobody's after this.
    unsafe { rustix::io::close(fd.into_raw_fd()) };
}

/// What this process was started with and nobody in it knows is ours.
pub(crate) fn own(fd: RawFd) -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: open, and nobody else in this process closes it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Whether this thread is in a process of its own since the library knew its number last: after `vfork`, or a `clone` of the
/// program's.
pub(crate) fn process() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// How many cores the host has.
pub(crate) fn cores() -> i64 {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }
}

/// Ends this thread with the signal for who writes to nobody, or does what the program wants then.
pub(crate) fn raise_sigpipe() {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    // SAFETY: sends a signal, to this thread.
    unsafe { libc::syscall(libc::SYS_tgkill, process(), thread, libc::SIGPIPE) };
}
