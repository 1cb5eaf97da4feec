//! Which instance of a server a QUIC datagram belongs to.
//!
//! A connection of QUIC keeps its server when the client's address changes, so the hash over addresses and ports that is
//! right for TCP sends it elsewhere. What stays is the connection id. [`Steering`] learns ids from handshakes, reads them
//! (QUIC-LB), or decrypts what an application hands over keys for; `docs/quic.md` says which works by what.
//!
//! | File | What is in it |
//! |---|---|
//! | `steering`, `sent`, `answer` | what is asked: where a datagram goes; what an instance sends; the answer and why |
//! | `table`, `slots`, `connection` | connections, by id, by path and by age |
//! | `config`, `names` | what somebody configures; server names and protocols of the application |
//! | `routable` | ids that say which server they belong to (QUIC-LB) |
//! | `initial`, `hello` | Initial packets, decrypted; the ClientHello in them |
//! | `one_rtt`, `keylog` | packets behind the handshake; lines of `SSLKEYLOGFILE` |
//! | `keys`, `protection` | keys from secrets; removing the protection of packets |

mod answer;
mod config;
mod connection;
mod hello;
mod initial;
mod keylog;
mod keys;
mod names;
mod one_rtt;
mod protection;
mod routable;
mod sent;
mod slots;
mod steering;
mod table;
#[cfg(test)]
pub(crate) mod tests;

pub use answer::{Answer, Counters, Target, Why};
pub use config::{Config, ConfigError, Limits};
pub use connection::{ConnectionId, Learned, Path};
pub use hello::{Hello, LONGEST_HELLO, Progress};
pub use keylog::{KeyLogError, KeyLogLine};
pub use keys::{Side, Version};
pub use names::NameRule;
pub use routable::{RoutableError, RoutableIds, RoutableSpec};
pub use steering::Steering;
