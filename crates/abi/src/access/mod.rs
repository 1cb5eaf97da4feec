//! Who may do what with a card: rights, grants of rights, and quotas. Pure: nothing here asks the system.
//!
//! ```text
//! grant   = WHO "=" right { "+" right }        user:bob=use:rx0-1,tx0-1+registers:read
//! WHO     = "user:" NAME | "group:" NAME | "everyone"                 a name or a number
//! right   = "use:" queues | "use:all"
//!         | "registers:read" | "registers:write" | "registers:" COMPONENT ":write"
//!         | "configure:" ( "ports" | "workers" | "rules" | "clock" )
//!         | "capture" | "rdma" | "admin"
//! ```
//!
//! * `rights`: what a connection may do. `grant`: the grammar above. `names`: users and groups by name. `quota`: how much.

mod grant;
mod names;
mod quota;
mod rights;

pub use grant::{Access, Grant, GrantError, MAX_GRANT, MAX_GRANTS, Who};
pub use names::Names;
pub use quota::{Amounts, Quota, QuotaError, RESOURCES, Resource};
pub use rights::{Configure, Right, Rights, WORDS};

/// Who is at the other end of a connection, as the system says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Process id; 0: not known.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Groups: its own and the supplementary ones.
    pub gids: Vec<u32>,
}
