//! Why a call did nothing.

use crate::rights::Right;
use millrace_dma::{OutOfRange, RegionError};
use millrace_slurpoe::Address;
use rustix::io::Errno;

/// Why a call did nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was to be done.
        what: String,
        /// What the system said.
        source: Errno,
    },
    /// Granted memory cannot be mapped.
    #[error("granted memory cannot be mapped: {0}")]
    Region(#[from] RegionError),
    /// What was granted is too short for what is to lie in it.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// The backend has ended, or serves this guest no more.
    #[error("the backend has ended, or serves this program no more: connect again")]
    Gone,
    /// It does not answer.
    #[error("the backend does not answer: is `millrace split backend` running there, and not stopped?")]
    Silent,
    /// It speaks another version, or no such thing.
    #[error("the backend speaks another version of the protocol: use the same release on both sides")]
    Version,
    /// The backend refused a request; with the number of Linux for it.
    #[error("the backend refuses {what}: {}", Errno::from_raw_os_error(*errno))]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The number.
        errno: i32,
    },
    /// The guest lacks a right.
    #[error("this guest does not have the right `{0}`: start the backend with it")]
    Right(Right),
    /// No such endpoint, for now.
    #[error("there is no endpoint {0}, or it takes no connections")]
    NoEndpoint(Address),
    /// Memory that virtual machines share.
    #[error("memory shared with virtual machines: {0}")]
    Shared(String),
    /// The port of a backend.
    #[error("no port for guests: {0}")]
    Port(String),
    /// No connection.
    #[error("there is no connection to {0}: connect first")]
    NotConnected(Address),
    /// Too many transfers that have not ended.
    #[error("there is no room for more: poll completions, then post again")]
    Full,
    /// Not all of these bytes belong to the region.
    #[error("{len} bytes at offset {offset} do not belong to a region of {region} bytes")]
    Bounds {
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the region.
        region: u64,
    },
    /// A message that no buffer takes.
    #[error("a message of {0} bytes is too long: 1 MiB at most; write into memory of the other end instead")]
    Message(u32),
    /// Too much to be told at once.
    #[error("{0} bytes are too many to be told: 200 at most")]
    Told(usize),
}

impl Error {
    /// Something that the system refused.
    pub fn system(what: impl Into<String>) -> impl FnOnce(Errno) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }

    /// The same, of the standard library.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::System { what, source: Errno::from_io_error(&error).unwrap_or(Errno::IO) }
    }
}
