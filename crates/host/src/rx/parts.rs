//! The memory that the driver has made for a queue.

use millrace_abi::message::Layout;
use millrace_dma::Region;

/// The memory of a queue.
pub(super) struct Parts {
    pub(super) layout: Layout,
    pub(super) status: Region,
    pub(super) data: Region,
    pub(super) descriptors: Option<Region>,
}
