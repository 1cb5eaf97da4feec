//! The host library, as far as the commands use it.

pub use millrace::{Device, Error, Pool, PoolRx, PoolTx, RxOptions, RxQueue, TxQueue};
