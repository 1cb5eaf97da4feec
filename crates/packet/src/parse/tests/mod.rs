//! Whole frames by hand: where everything is, and where parsing ends (`frames`, `wrapped`).

mod build;
mod frames;
mod wrapped;
