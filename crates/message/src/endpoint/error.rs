//! Why a call did nothing.

use crate::engine::{LimitsError, RequestError};
use millrace_dma::RegionError;
use rustix::io::Errno;
use rustix::process::geteuid;

/// Why another endpoint does not take this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is another user's.
    #[error(
        "it takes no endpoints of user {0}: whoever opens it has to let that user in (`Config::users`, `millrace message listen --user {0}`)",
        geteuid().as_raw()
    )]
    User,
    /// It knows as many as it may.
    #[error("it is connected to as many as it may be: open it for more, or end one")]
    Full,
    /// It does not understand this one.
    #[error("it is of another version of millrace: use the same for both")]
    Version,
}

/// Why a call did nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// That is no name.
    #[error(
        "{0:?} is no name of an endpoint: use 1 to 64 letters, digits, '.', '_' and '-', such as solver. Who calls may say whose it is before it: \
         1000/solver is that of user 1000, b:solver that of host b"
    )]
    Name(String),
    /// It is to be opened as another user's, or another host's.
    #[error(
        "{0} cannot be opened: an endpoint is of the user and of the host who open it, so leave out what stands before '/' or ':'"
    )]
    Foreign(String),
    /// Another endpoint has that name.
    #[error("{0} is open already: close the other one, or choose another name")]
    Taken(String),
    /// No endpoint has that name.
    #[error("nobody has opened {0}: {hint}", hint = how_to_find(.0))]
    Nobody(String),
    /// Somebody else has taken that name.
    #[error("{name} is not open as user {expected}, but user {found} has taken its name: tell him to leave it")]
    Stranger {
        /// The name.
        name: String,
        /// Whose it should be.
        expected: u32,
        /// Whose it is.
        found: u32,
    },
    /// It was called, and refuses.
    #[error("{0} refuses: {1}")]
    Refused(String, Refusal),
    /// On several hosts there is one.
    #[error("{name} is open on several hosts: say which, such as {host}:{name} ({all})")]
    Several {
        /// The name.
        name: String,
        /// One of the hosts.
        host: String,
        /// All of them.
        all: String,
    },
    /// It is to be on another host, and none is reached.
    #[error(
        "{0} is on another host, and this endpoint has no rail that leads there: open it with one, a card or a port"
    )]
    NoRail(String),
    /// A rail cannot be used.
    #[error("rail {0} cannot be opened: {1}")]
    Rail(usize, millrace_slurpoe::Error),
    /// It was called, and says nothing.
    #[error("{0} is open and does not answer: it is stopped, or not an endpoint of this version")]
    Silent(String),
    /// This one knows as many as it may.
    #[error("there are {0} connections, as many as there may be: open this endpoint for more, or end one")]
    Full(u32),
    /// An endpoint cannot be like that.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// A message cannot be sent, or received.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Memory cannot be had, or what was given is none.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The system does not do it.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was to be done.
        doing: &'static str,
        /// What the system says.
        source: Errno,
    },
}

/// What to do about a name that nobody has.
pub(crate) fn how_to_find(name: &str) -> String {
    match (name.split_once(':'), name.contains('/')) {
        (Some((host, _)), _) => {
            format!("start it on host {host} first, with a rail on the same wire as one of this end")
        }
        (None, true) => "start the program of that user first".to_owned(),
        (None, false) => {
            format!(
                "start the other program first; or, if another user runs it, say who: 1000/{name} is that of user 1000"
            )
        }
    }
}

impl Error {
    /// What the system said when something was to be done.
    pub(super) const fn when(doing: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::System { doing, source }
    }

    /// The number of Linux for it.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::Name(_) | Self::Foreign(_) | Self::Limits(_) | Self::Several { .. } => Errno::INVAL,
            Self::NoRail(_) => Errno::HOSTUNREACH,
            Self::Rail(_, error) => return error.errno(),
            Self::Taken(_) => Errno::ADDRINUSE,
            Self::Nobody(_) => Errno::CONNREFUSED,
            Self::Refused(_, Refusal::Version) => Errno::PROTO,
            Self::Stranger { .. } | Self::Refused(_, Refusal::User) => Errno::ACCESS,
            Self::Silent(_) => Errno::TIMEDOUT,
            Self::Full(_) | Self::Refused(_, Refusal::Full) => Errno::USERS,
            Self::Request(_) => Errno::NOTCONN,
            Self::Memory(_) => Errno::NOMEM,
            Self::System { source, .. } => *source,
        };
        errno.raw_os_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_found_is_looked_for_in_the_right_place() {
        let said = |name: &str| Error::Nobody(name.to_owned()).to_string();
        assert!(said("solver").ends_with("1000/solver is that of user 1000"), "{}", said("solver"));
        assert!(said("7/solver").ends_with("start the program of that user first"), "{}", said("7/solver"));
        assert!(said("b:7/solver").contains("on host b first"), "{}", said("b:7/solver"));
    }
}
