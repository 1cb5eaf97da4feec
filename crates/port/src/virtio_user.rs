//! `virtio-user:PATH`: a wire into somebody else's switch, plugged in as a virtual machine would be.

mod device;

pub use device::{Device, DeviceError, Pair, Wishes};
pub use millrace_ring::virtio::driver::{Agreed, CAPACITY, Size};
