//! What bytes mean.
//!
//! So far one subject: [`structured`], the frames with which generators, loopback tests and benchmarks detect loss,
//! reordering, duplication and corruption (`specs/nfb-card.md` §6).
#![forbid(unsafe_code)]

pub mod structured;
