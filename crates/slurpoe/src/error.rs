//! Why a call did nothing.

use crate::address::Address;
use millrace_link::LinkError;
use millrace_rdma::memory::RegisterError;

/// Why a call did nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The card or the port cannot be used.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Memory cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Memory cannot be had.
    #[error("{0} bytes of memory cannot be had: {1}")]
    Allocate(usize, String),
    /// A number of [`Config`](crate::Config) or of a call is out of its range.
    #[error("{0}")]
    Range(&'static str),
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
    /// Too much to be told at once.
    #[error("{0} bytes are too many to be told: 200 at most")]
    Told(usize),
    /// No region of this endpoint has these bytes.
    #[error("no registered region has all of {len} bytes at {address:#x}")]
    Unregistered {
        /// First address.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// There is no connection to it.
    #[error("there is no connection to {0}: connect first")]
    NotConnected(Address),
    /// It is the endpoint's own address.
    #[error("{0} is this endpoint itself")]
    Itself(Address),
    /// It does not answer.
    #[error("{0} does not answer")]
    NoAnswer(Address),
    /// It has as many connections as it may have, or takes none.
    #[error("{0} refuses the connection: it has as many as it may have, or takes none")]
    Refused(Address),
    /// There are too many transfers or buffers that have not ended.
    #[error("there is no room for more: poll completions, then post again")]
    Full,
    /// As many other ends as there may be.
    #[error("there are {0} connections, as many as there may be: open the endpoint with more peers")]
    Peers(u32),
    /// The transport does not do it.
    #[error(transparent)]
    Engine(#[from] millrace_rdma::engine::Error),
    /// The card or the port has failed; the endpoint is of no more use.
    #[error("the endpoint has lost its card or port: {0}")]
    Lost(String),
}

impl Error {
    /// The number of Linux for it.
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Self::Link(error) => return error.errno(),
            Self::Engine(error) => return error.errno(),
            Self::Register(RegisterError::Limit { .. }) | Self::Allocate(..) => Errno::NOMEM,
            Self::Register(_) | Self::Range(_) | Self::Itself(_) => Errno::INVAL,
            Self::Bounds { .. } | Self::Told(_) => Errno::RANGE,
            Self::Unregistered { .. } => Errno::FAULT,
            Self::NotConnected(_) => Errno::NOTCONN,
            Self::NoAnswer(_) => Errno::TIMEDOUT,
            Self::Refused(_) => Errno::CONNREFUSED,
            Self::Full => Errno::AGAIN,
            Self::Peers(_) => Errno::USERS,
            Self::Lost(_) => Errno::NODEV,
        };
        errno.raw_os_error()
    }
}
