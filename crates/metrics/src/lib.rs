//! What a card counts, for Prometheus: [`text`] in the words of OpenMetrics, and a server that hands it out ([`Server`]).
#![forbid(unsafe_code)]

mod exposition;
mod server;

pub use exposition::text;
pub use server::{Answer, Limits, Server};
