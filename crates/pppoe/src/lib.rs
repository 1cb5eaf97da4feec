//! A PPPoE client (RFC 2516), with all of PPP that it takes, for hosts whose kernel has no PPP.
//!
//! There is no thread, no clock and no socket in here: frames and the time come in, frames and events come out.
//!
//! - [`Client`] ([`client`]): everything together; begins, ends, and begins again;
//! - [`discovery`]: who offers a session, and which one it is; its frames are in [`frame`] and [`tag`];
//! - `link`: PPP in a session: [`automaton`] is RFC 1661's table, `layer` what it drives, `lcp`, `ipcp`, `ipv6cp` what is agreed on,
//!   `auth` and `mschap` who we are;
//! - [`Session`] ([`session`]): what came out of it, for those who move packets;
//! - [`data`]: the session header on and off, and [`clamp`](mod@clamp) what TCP may send through it.
//!
//! The other side is hostile: each list, each retry and each text of it has a limit, how often it may change its mind has one, and so has how
//! many control frames of it are looked at in a second. What is left out has a counter ([`Unheard`]).
//!
//! ```
//! use millrace_pppoe::{Client, Config, MacAddress};
//! use std::time::Duration;
//!
//! let config = Config { user: "me".into(), password: "secret".into(), ..Config::default() };
//! let mut client = Client::new(config, MacAddress([2, 0, 0, 0, 0, 1]), 7, Duration::ZERO)?;
//! let padi = client.take_frame().expect("it asks who is there");
//! assert_eq!(padi[12..14], [0x88, 0x63]);
//! // Nobody answers: it asks again, a second later.
//! assert_eq!(client.next_tick(), Some(Duration::from_secs(1)));
//! client.tick(Duration::from_secs(1));
//! assert!(client.take_frame().is_some());
//! # Ok::<(), millrace_pppoe::ConfigError>(())
//! ```
#![forbid(unsafe_code)]

mod auth;
pub mod automaton;
pub mod clamp;
pub mod client;
pub mod config;
mod control;
pub mod data;
pub mod discovery;
mod echo;
pub mod failure;
pub mod frame;
mod ipcp;
mod ipv6cp;
mod layer;
mod lcp;
mod link;
mod mschap;
pub mod session;
pub mod tag;

pub use client::{Client, Event, Received, Unheard};
pub use config::{Config, ConfigError, Method, Secret};
pub use failure::Failure;
pub use millrace_packet::parse::MacAddress;
pub use session::{Ipv4Ends, Ipv6Ends, Session};

/// A time since a beginning that whoever calls has chosen; it never goes back.
pub type Moment = std::time::Duration;

/// The largest packet that a session carries where nobody has agreed on more (RFC 2516 §7): 1500 bytes without 8 of headers.
pub const USUAL_MTU: u16 = 1492;

/// What others say, for people: printable, and not longer than a line.
pub(crate) fn text(bytes: &[u8]) -> String {
    let most = &bytes[..bytes.len().min(128)];
    String::from_utf8_lossy(most).chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}
