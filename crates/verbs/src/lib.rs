//! `libibverbs.so.1`: programs that are written for verbs run over Millrace cards, as they are.
//!
//! Rooms, in the order in which a call passes them:
//! * `abi`: what programs see of our objects, byte by byte.
//! * `boundary`: the functions that they call. Everything `unsafe` of this crate is there.
//! * `place`: the transport engine in this process, between the program and the queues of a card.
//! * `config`: which card, and as whom.
//!
//! The archive becomes a library with versions of symbols by `scripts/link-verbs.sh` (decision 56).
#![deny(unsafe_code)]

mod abi;
mod address;
#[allow(unsafe_code)]
mod boundary;
mod config;
mod place;
