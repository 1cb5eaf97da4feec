//! Which instance of a server a QUIC datagram belongs to.
//!
//! A connection of QUIC keeps its server when the client's address changes, so the hash over addresses and ports that is
//! right for TCP sends it elsewhere. What stays is the connection id. [`Steering`] learns ids from handshakes, reads them
//! (QUIC-LB), or decrypts what an application hands over keys for; `docs/quic.md` says which works by what.
//!
//! | File | What is in it |
//! |---|---|
//! | `steering`, `sent`, `answer` | what is asked: where a datagram goes; what an instance sends; the answer and why |
//! | `group`, `directory`, `limiter`, `stripes` | the same for several threads: what they read without a lock; how often they take it |
//! | `look`, `cost` | where a datagram would go, for explanations; what steering costs a worker |
//! | `table`, `slots`, `connection` | connections, by id, by path and by age |
//! | `config`, `spec`, `names` | what somebody configures; the same of a group, by queues; server names and protocols of the application |
//! | `routable` | ids that say which server they belong to (QUIC-LB) |
//! | `initial`, `hello` | Initial packets, decrypted; the ClientHello in them |
//! | `one_rtt`, `keyring`, `keylog` | packets behind the handshake; the keys that a thread has used; lines of `SSLKEYLOGFILE` |
//! | `keys`, `protection` | keys from secrets; removing the protection of packets |

mod answer;
mod config;
mod connection;
mod cost;
mod directory;
mod group;
mod hello;
mod initial;
mod keylog;
mod keyring;
mod keys;
mod limiter;
mod look;
mod names;
mod one_rtt;
mod protection;
mod routable;
mod sent;
mod slots;
mod spec;
mod steering;
mod stripes;
mod table;
#[cfg(test)]
pub(crate) mod tests;

pub use answer::{Answer, Counters, Target, Why};
pub use config::{Config, ConfigError, Limits};
pub use connection::{ConnectionId, Learned, Path};
pub use cost::take as take_cost;
pub use group::Group;
pub use hello::{Hello, LONGEST_HELLO, Progress};
pub use keylog::{HandedOver, KeyLogError, KeyLogLine};
pub use keys::{Side, Version};
pub use look::Look;
pub use names::NameRule;
pub use routable::{RoutableError, RoutableIds, RoutableSpec};
pub use spec::{GroupSpec, LbSpec, NameSpec, Other, SpecError};
pub use steering::Steering;
