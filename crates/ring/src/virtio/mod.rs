//! Split virtqueues of a network device (virtio 1.2, 2.7 and 5.1).
//!
//! ```text
//! driver: buffers -> table; heads -> avail[avail_index..]; avail_index += n     device: buffers <- table
//!         used[..used_index] -> heads                                           device: heads -> used; used_index += n
//! ```
//!
//! Names are the driver's: TX goes from the driver to the device. Addresses in the rings are those of the driver's memory
//! ([`Iova`](millrace_dma::Iova)), in which a [`Domain`](millrace_dma::Domain) finds the bytes. Every frame has a
//! [`NetHeader`] in front of it.

mod chain;
mod device_rx;
mod device_tx;
pub mod driver;
mod layout;
mod queue;
mod rings;
#[cfg(all(test, not(loom)))]
mod tests;

pub use chain::{Fault, MAX_CHAIN};
pub use device_rx::{Delivered, DeviceRx};
pub use device_tx::{DeviceTx, NetSink, Sent};
pub use layout::{
    AVAIL_NO_INTERRUPT, Descriptor, MAX_SIZE, NetHeader, USED_NO_NOTIFY, descriptor_flag, feature, gso, header_flag,
    needs_event,
};
pub use rings::{Rings, RingsError, Table, Used, UsedSlots};
