//! Engines against one another, over a link that loses, doubles and delays packets, compared with what must be.

#[path = "../common/mod.rs"]
mod common;

mod errors;
mod hostile;
mod incast;
mod many;
mod queues;
mod reliable;
mod short;
mod states;
mod turns;
mod unreliable;
