//! The daemon: what Linux has, told to the engine the moment that it changes.
//!
//! - `router`: the daemon itself, one thread; `options`: how it is started; `changes`: from an event to the engine; `requests`: from a client;
//!   `standing`: how a rule is, as clients see it;
//! - `sight`: all that is known of Linux; `devices`, `tell`: what of it the engine is told; `flows`: what the engine has made of it;
//!   `errors`: how often Linux says errors of ICMP; `groups`: multicast routes;
//!   `compared`: what comparing packets has found; `sessions`: sessions of PPPoE that programs tell of;
//! - `quiet`: what changes without an event; `reread`: when all is read anew; `resets`, `unseen`: connections of TCP that were reset, and what conntrack has not
//!   seen of those whose rules have ended;
//! - `pattern`, `choice`, `off`, `claims`, `attach`: which interfaces, where, and why not; `parts`: which work is done;
//! - `capabilities`, `advice`: what the process may do, and what Linux would better be told; `delays`, `waited`: how long it took;
//! - `protocol`, `ipsec`, `control`, `client`, `peer`: how it is asked.

pub mod advice;
#[cfg(feature = "bpf")]
mod attach;
pub mod capabilities;
#[cfg(feature = "bpf")]
mod changes;
pub mod choice;
#[cfg(feature = "bpf")]
mod claims;
pub mod client;
#[cfg(feature = "bpf")]
mod compared;
pub mod control;
pub mod delays;
pub mod devices;
#[cfg(feature = "bpf")]
mod errors;
#[cfg(feature = "bpf")]
mod flows;
#[cfg(feature = "bpf")]
mod groups;
pub mod ipsec;
pub mod off;
pub mod options;
pub mod parts;
pub mod pattern;
pub mod peer;
pub mod protocol;
#[cfg(feature = "bpf")]
mod quiet;
#[cfg(feature = "bpf")]
mod requests;
#[cfg(feature = "bpf")]
mod reread;
#[cfg(feature = "bpf")]
mod resets;
#[cfg(feature = "bpf")]
pub mod router;
pub mod sessions;
pub mod sight;
#[cfg(feature = "bpf")]
mod standing;
#[cfg(feature = "bpf")]
mod tell;
#[cfg(feature = "bpf")]
mod unseen;
#[cfg(feature = "bpf")]
mod waited;
