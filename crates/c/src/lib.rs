//! `libmillrace`: the host library for programs in C and C++.
//!
//! [`boundary`] is what C sees, and the only folder with `unsafe`: it turns pointers into references, and everything else
//! is safe code. `include/millrace.h` is made from it and [`types`] by `make header`.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod boundary;
mod burst;
mod device;
mod failure;
mod flow;
mod guard;
mod queue;
mod supplied;
mod tap;
mod types;
