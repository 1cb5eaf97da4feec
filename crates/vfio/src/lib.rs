//! A PCI function of a card in the hands of a program, by Linux's vfio-pci: what a program in a virtual machine has, and what it could have of the
//! hardware (`docs/guests.md`, `docs/spec/pci.md`, decision 117).
//!
//! * `function`: opening it; registers by `pread` and `pwrite`, control pages mapped, interrupts as eventfds, memory that the
//!   function reaches.
//! * `tree`: the device tree in configuration space. `addresses`: which addresses of the device are free. `sys`: calls.
#![deny(unsafe_code)]

mod addresses;
mod error;
mod function;
#[allow(unsafe_code)]
mod sys;
mod tree;

pub use error::VfioError;
pub use function::Function;
