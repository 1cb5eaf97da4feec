//! The host library, as far as the commands use it.

pub use millrace::{Device, Error, RxQueue, TxQueue};
