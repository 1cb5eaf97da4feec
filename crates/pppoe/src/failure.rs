//! Why there is no session, or no session any more.

use crate::{MacAddress, Method};
use std::time::Duration;

/// What an access concentrator says when it does not give a session (RFC 2516 appendix A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no such service.
    ServiceName,
    /// It cannot now.
    AcSystem,
    /// Something else.
    Generic,
}

/// Why there is no session, or no session any more. The texts of others are cut and printable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nobody has answered a PADI.
    #[error(
        "no access concentrator has answered: is this the interface that leads to the modem, and is there a VLAN to be on?"
    )]
    NoOffer,
    /// Somebody has, but not whom we want.
    #[error("none that has answered is the one that was asked for; there are {0}")]
    NoSuitableOffer(String),
    /// Those who have offered a session do not give one.
    #[error("{0} has offered a session, and does not answer when it is to give one")]
    NoAnswer(MacAddress),
    /// An access concentrator says why not.
    #[error("the access concentrator refuses{}: {text}", match what { Refusal::ServiceName => " the service", Refusal::AcSystem => ", because of itself", Refusal::Generic => "" })]
    Refused {
        /// What it is about.
        what: Refusal,
        /// In its words.
        text: String,
    },
    /// It does not answer PPP's requests.
    #[error("the access concentrator does not answer {0}")]
    Silent(&'static str),
    /// It wants one thing and then another, or what cannot be.
    #[error("no agreement with the access concentrator about {0}")]
    NoAgreement(&'static str),
    /// It all took too long.
    #[error("the session was not ready after {} s", .0.as_secs())]
    TooLong(Duration),
    /// It wants to know who we are in a way that we do not speak, or that was not allowed.
    #[error("the access concentrator wants authentication by {0}, which is not among those allowed")]
    NoMethod(String),
    /// It does not believe who we are.
    #[error("wrong user name or password ({method}); the access concentrator says: {text}", text = if text.is_empty() { "nothing" } else { text })]
    NotAuthenticated {
        /// In which way it was asked.
        method: Method,
        /// In its words.
        text: String,
    },
    /// It does not ask for our name, or says nothing to it.
    #[error("the access concentrator does not finish authentication ({0})")]
    AuthenticationSilent(Method),
    /// It does not know our password, which it had to prove (MS-CHAPv2).
    #[error("the access concentrator has not proved that it knows the password: it may be somebody else's")]
    Impostor,
    /// What we send comes back.
    #[error("the line is looped: what is sent comes back")]
    Looped,
    /// We are given no address.
    #[error("the access concentrator gives no IPv4 address")]
    NoAddress,
    /// It has neither IPv4 nor IPv6 for us.
    #[error("the access concentrator refuses IPv4 and IPv6, as far as they were asked for")]
    NoNetwork,
    /// It is not there any more.
    #[error("the access concentrator does not answer any more: {0} echo requests in a row")]
    Gone(u8),
    /// It has ended PPP.
    #[error("the access concentrator has ended the session{}", said(.0))]
    Terminated(String),
    /// It has ended the session.
    #[error("the access concentrator has ended the session (PADT){}", said(.0))]
    Padt(String),
    /// It negotiates anew; the session may come back as another.
    #[error("the access concentrator negotiates anew")]
    Renegotiation,
    /// We wanted it.
    #[error("ended by us")]
    Closed,
}

fn said(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(", it says: {text}") }
}

impl Failure {
    /// A name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoOffer => "no-offer",
            Self::NoSuitableOffer(_) => "no-suitable-offer",
            Self::NoAnswer(_) => "no-answer",
            Self::Refused { .. } => "refused",
            Self::Silent(_) => "silent",
            Self::NoAgreement(_) => "no-agreement",
            Self::TooLong(_) => "too-long",
            Self::NoMethod(_) => "no-method",
            Self::NotAuthenticated { .. } => "not-authenticated",
            Self::AuthenticationSilent(_) => "authentication-silent",
            Self::Impostor => "impostor",
            Self::Looped => "looped",
            Self::NoAddress => "no-address",
            Self::NoNetwork => "no-network",
            Self::Gone(_) => "gone",
            Self::Terminated(_) => "terminated",
            Self::Padt(_) => "padt",
            Self::Renegotiation => "renegotiation",
            Self::Closed => "closed",
        }
    }

    /// Whether trying again is of no use before somebody changes something, and may lock an account.
    pub fn needs_somebody(&self) -> bool {
        matches!(self, Self::NotAuthenticated { .. } | Self::NoMethod(_) | Self::Impostor | Self::NoNetwork)
    }
}
