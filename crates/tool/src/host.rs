//! The host library, as far as the commands use it.

pub use millrace::{Buffer, Clock, Device, Error, Outcome, Pool, PoolRx, PoolTx, RxOptions, RxQueue, TxQueue, Verdict};
