//! Why a call did nothing.

use crate::transport::Unfit;

/// Why a call did nothing. The error number that verbs returns for each is [`Error::errno`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such object.
    #[error("there is no such {0}")]
    Missing(&'static str),
    /// Others use it.
    #[error("the {0} is in use: destroy what uses it first")]
    Busy(&'static str),
    /// There are as many as there may be.
    #[error("there are as many {0} as the engine may have: destroy some, or make the engine with a higher limit")]
    Limit(&'static str),
    /// A queue is full.
    #[error("the queue is full: poll completions, then post again")]
    Full,
    /// A number is out of its range.
    #[error("{0} is out of its range")]
    Range(&'static str),
    /// Attributes do not fit.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The queue pair is in a state in which this cannot be posted.
    #[error("the queue pair is in a state in which this cannot be posted")]
    State,
    /// This kind of queue pair does not do that.
    #[error("this kind of queue pair does not do that")]
    Operation,
    /// A datagram needs to be told where it goes.
    #[error("a request of datagrams needs a target")]
    Target,
}

impl Error {
    /// The number of Linux for it: EINVAL, ENOMEM, EBUSY.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Busy(_) => 16,
            Self::Limit(_) | Self::Full => 12,
            _ => 22,
        }
    }
}
