//! What C programs are told.

use millrace::{Error, ErrorCode};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The number of an error, as `errno` has it: positive.
pub fn of(error: &Error) -> i32 {
    match error {
        Error::Clock(_) => libc::EOPNOTSUPP,
        Error::Name(_) | Error::Card(_) => libc::EINVAL,
        Error::FrameTooLong { .. } | Error::BurstTooLong { .. } | Error::Unfit(_) => libc::EINVAL,
        Error::Driver(_) => libc::ENODEV,
        gone if gone.must_reopen() => libc::ENODEV,
        Error::Gone => libc::ENODEV,
        Error::Evicted(_) => libc::ECONNRESET,
        Error::Faulted { .. } => libc::EFAULT,
        Error::Stopped(_) => libc::EBADF,
        Error::NotDrained(_) => libc::EAGAIN,
        Error::BadRing { .. } => libc::EIO,
        Error::Wait(source) => source.raw_os_error().unwrap_or(libc::EIO),
        Error::Client(client) => match client.code() {
            Some(ErrorCode::Busy) => libc::EBUSY,
            Some(ErrorCode::NotFound) => libc::ENODEV,
            Some(ErrorCode::NotDrained) => libc::EAGAIN,
            Some(ErrorCode::Evicted) => libc::ECONNRESET,
            Some(ErrorCode::System) => libc::ENOMEM,
            Some(ErrorCode::Denied) => libc::EACCES,
            Some(ErrorCode::Quota) => libc::EDQUOT,
            Some(ErrorCode::Ended) => libc::ENODEV,
            Some(ErrorCode::Invalid) => libc::EINVAL,
            Some(ErrorCode::Protocol) => libc::EPROTO,
            None => client.system_error().unwrap_or(libc::EIO),
        },
    }
}

/// As [`report`], but each text once: for what programs try again and again.
pub fn report_once(what: &str, error: &Error) -> i32 {
    // More are not remembered, and not said either.
    const MOST: usize = 256;
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() < MOST && said.insert(format!("{what}: {error}")) {
        report(what, error);
    }
    of(error)
}

/// Says it to whoever sits at the terminal, as libnfb itself does: a number alone tells nobody what to do.
pub fn report(what: &str, error: &Error) -> i32 {
    eprintln!("libnfb-ext-millrace: {what}: {error}");
    of(error)
}
