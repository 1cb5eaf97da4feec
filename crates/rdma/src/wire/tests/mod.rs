//! Whole frames: known ones (`frames`), generated ones there and back (`properties`), what `tshark` and `scapy` say of
//! them (`judges`), captures (`captures`), and the examples of `docs/spec/slurpoe.md` (`document`).

mod build;
mod captures;
mod document;
mod frames;
mod judges;
mod properties;
