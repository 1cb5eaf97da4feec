//! Packet formats and test traffic: frames that are checked when they come back, checksums, segmentation offload, parsing.
//!
//! - [`structured`]: the frames with which generators, loopback tests and benchmarks detect loss, reordering,
//!   duplication and corruption (`docs/spec/nfb-card.md` §6).
//! - [`probe`]: the same with real headers, for networks that look at them.
//! - [`checksum`]: the Internet checksum.
//! - [`offload`]: checksums and segmentation that were left to the next in line.
//! - [`number`]: numbers as people write them.
//! - [`parse`]: where the headers of any frame are, and what is in them.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod number;
pub mod offload;
pub mod parse;
pub mod probe;
pub mod structured;
