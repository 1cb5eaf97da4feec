//! Why a call did not work, as C programs get it: a negative `errno` number, and a text for people.

use host::ErrorCode;
use rustix::io::Errno;
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{c_char, c_int, CStr, CString};

/// What went wrong.
#[derive(Debug)]
pub struct Failure {
    errno: Errno,
    text: String,
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

impl Failure {
    /// A failure that this library finds by itself.
    #[cold]
    pub fn new(errno: Errno, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    /// An argument that cannot be.
    #[cold]
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(Errno::INVAL, text)
    }

    /// An argument that must not be NULL.
    #[cold]
    pub fn null(name: &str) -> Self {
        Self::invalid(format!("{name} is NULL"))
    }

    /// An error that has a number if the system is behind it, and is the caller's mistake otherwise.
    #[cold]
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        Self::new(of_the_system(error).unwrap_or(Errno::INVAL), error.to_string())
    }

    /// Remembers the text for this thread; what the call returns.
    #[cold]
    pub fn report(self) -> c_int {
        let mut text = self.text.into_bytes();
        text.retain(|&byte| byte != 0);
        // A thread that is ending, whose variables are gone, has nobody who could ask.
        let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(text).ok());
        -self.errno.raw_os_error()
    }
}

/// The name of one of `enum millrace_slurpoe_failed`.
pub fn of_transfer(failed: u32) -> &'static CStr {
    match failed {
        0 => c"done",
        1 => c"remote-access",
        2 => c"unreachable",
        3 => c"flushed",
        4 => c"local-access",
        5 => c"length",
        6 => c"remote",
        7 => c"local",
        _ => c"unknown",
    }
}

/// The text of the last failure of this thread, which stays where it is until the next one; empty before the first.
pub fn last() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ref().map(|text| text.as_ptr()));
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// The same for tests.
#[cfg(test)]
pub fn last_text() -> String {
    LAST.with(|last| last.borrow().clone()).unwrap_or_default().into_string().unwrap()
}

impl From<host::Error> for Failure {
    #[cold]
    fn from(error: host::Error) -> Self {
        Self::new(errno(&error), error.to_string())
    }
}

fn errno(error: &host::Error) -> Errno {
    use host::Error::*;
    use host::PageError;
    match error {
        Name(_) | Unfit(_) => Errno::INVAL,
        FrameTooLong { .. } => Errno::MSGSIZE,
        BurstTooLong { .. } => Errno::TOOBIG,
        Evicted(_) => Errno::STALE,
        Stopped(_) => Errno::SHUTDOWN,
        Clock(PageError::Namespace | PageError::Torn | PageError::Strange) => Errno::OPNOTSUPP,
        NotDrained(_) => Errno::TIMEDOUT,
        error if error.must_reopen() => Errno::NODEV,
        Client(refused) => refused.code().map(refusal).or_else(|| of_the_system(error)).unwrap_or(Errno::IO),
        _ => of_the_system(error).unwrap_or(Errno::IO),
    }
}

fn refusal(code: ErrorCode) -> Errno {
    match code {
        ErrorCode::Protocol => Errno::PROTO,
        ErrorCode::NotFound => Errno::NOENT,
        ErrorCode::Busy => Errno::BUSY,
        ErrorCode::Invalid => Errno::INVAL,
        ErrorCode::NotDrained => Errno::TIMEDOUT,
        ErrorCode::Evicted => Errno::STALE,
        ErrorCode::System => Errno::NOMEM,
        ErrorCode::Denied => Errno::ACCESS,
        ErrorCode::Quota => Errno::DQUOT,
        ErrorCode::Ended => Errno::NODEV,
    }
}

/// What the system said at the bottom of it, if it said anything.
fn of_the_system(error: &(dyn Error + 'static)) -> Option<Errno> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(errno) = error.downcast_ref::<Errno>() {
            return Some(*errno);
        }
        if let Some(number) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return Some(Errno::from_raw_os_error(number));
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::Device;

    fn refused(name: &str) -> Failure {
        Failure::from(Device::open(name).err().expect("a refusal"))
    }

    #[test]
    fn errors_have_the_numbers_that_a_c_program_expects() {
        assert_eq!(refused("nonsense").errno, Errno::INVAL);
        assert_eq!(refused("embedded:rx=many").errno, Errno::INVAL);
        assert_eq!(refused("unix:/nowhere/at/all").errno, Errno::NOENT);
        assert_eq!(refused("embedded:port=pcap:/nowhere/at/all").errno, Errno::NOENT);
        let device = Device::open("embedded").unwrap();
        let held = device.rx(0).open().unwrap();
        assert_eq!(Failure::from(device.rx(0).open().err().unwrap()).errno, Errno::BUSY);
        assert_eq!(Failure::from(device.rx(99).open().err().unwrap()).errno, Errno::NOENT);
        assert_eq!(Failure::from(host::Error::Gone).errno, Errno::NODEV);
        held.close().unwrap();
    }

    #[test]
    fn the_text_is_the_threads_own_and_survives_a_nul() {
        assert_eq!(Failure::invalid("one\0two").report(), -Errno::INVAL.raw_os_error());
        assert_eq!(last_text(), "onetwo");
        std::thread::spawn(|| assert_eq!(last_text(), "")).join().unwrap();
    }
}
