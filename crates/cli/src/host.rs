//! The host library under one name.
//!
//! STAND-IN: until `crates/host` exists this is [`crate::standin`]. Then it becomes
//! `pub use millrace::{Device, Error, IdleRx, IdleTx, RxQueue, TxQueue};` and `standin.rs` goes.

pub use crate::standin::{Device, Error, RxQueue, TxQueue};
