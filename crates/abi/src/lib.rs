//! The interface between a card and its software: registers, device tree, control page, messages, names.
//!
//! As a data sheet would: the words for queues ([`queue`]), the control page through which one opener and the card
//! talk without the kernel ([`control`]), the register table ([`register`]), the device tree ([`tree`]), device names
//! ([`name`]), who may do what ([`access`]), the metadata before received frames ([`header`]), launch times ([`launch`]), when queues may send ([`schedule`]), the messages between a program and the
//! driver ([`message`]; those about rules: [`flow`]), the clock page and what steers the clock ([`clock`]), who uses the card ([`visible`]), the numbers that come back ([`stats`]), and what one card hands to the next ([`handover`]). No code here touches memory, sockets or threads; both sides include it and neither owns it.
#![forbid(unsafe_code)]

pub mod access;
pub mod clock;
pub mod control;
pub mod flow;
pub mod handover;
pub mod header;
pub mod launch;
pub mod message;
pub mod name;
pub mod pci;
pub mod queue;
pub mod register;
pub mod schedule;
pub mod stats;
pub mod tree;
pub mod visible;
