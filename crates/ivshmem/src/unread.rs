//! How much the other end of a socket has not read. May use `unsafe`.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::ioctl::{Getter, ioctl};

/// `SIOCOUTQ` (`linux/sockios.h`), which is `TIOCOUTQ`.
const SIOCOUTQ: u32 = 0x5411;

/// Bytes, as the system counts them for the memory that they take: 0 only when all was read.
///
/// # Errors
/// It is no socket.
pub(crate) fn unread(socket: impl AsFd) -> Result<u32, Errno> {
    // SAFETY: with this number the system writes one `int` to where it is told, and `Getter` has room for one.
    let count = unsafe { ioctl(socket, Getter::<SIOCOUTQ, i32>::new())? };
    Ok(count.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_was_read_is_not_counted() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        assert_eq!(unread(&one), Ok(0));
        one.write_all(&[1; 8]).unwrap();
        one.write_all(&[2; 8]).unwrap();
        let both = unread(&one).unwrap();
        other.read_exact(&mut [0; 8]).unwrap();
        let second = unread(&one).unwrap();
        assert!(0 < second && second < both, "{second} {both}");
        other.read_exact(&mut [0; 8]).unwrap();
        assert_eq!(unread(&one), Ok(0));
        assert!(unread(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
