//! The device tree: what a card tells software about itself (`docs/spec/nfb-card.md` §2.1).
//!
//! [`CardDescription`] says what a card is made of and turns it into a flattened device tree blob, with the nodes and
//! properties that libnfb, its tools, pynfb and DPDK look for. [`Tree`] reads such a blob, from a card or from anyone:
//! a blob that is not one is an error, never a panic.
//!
//! ```
//! use millrace_abi::tree::{CardDescription, Tree};
//! let blob = CardDescription::default().to_blob()?;
//! let tree = Tree::parse(&blob)?;
//! let first = tree.compatible("netcope,dma_ctrl_ndp_rx").next().expect("a card has queues");
//! assert_eq!(first.reg()?, (0x0100_0000, 0x80));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod card;
mod node;
mod reader;
mod writer;

pub use card::{BuildError, CardDescription, PortDescription, QueueDescription};
pub use node::{Node, PropertyError};
pub use reader::{QueueEntry, Tree, TreeError};

use crate::queue::{Direction, Engine};

/// The values of `compatible` by which software finds the parts of a card.
///
/// Those of Medusa and the rest are in `docs/spec/nfb-card.md` §2.1. The SZE ones are not; they are the ones that ndk-sw
/// defines in `libnfb/include/netcope/rxqueue.h` and `txqueue.h`, and that its kernel driver and pynfb look for; those of
/// Calypte's controllers are in its `dma_ctrl_ndp.h`, those of its buffers in §3.2.5.
pub mod compatible {
    /// The bus that all registers hang on.
    pub const BUS: &str = "netcope,bus,mi";
    /// The test space.
    pub const TEST_SPACE: &str = "cesnet,ofm,mi_test_space";
    /// An I2C master.
    pub const I2C: &str = "netcope,i2c";
    /// The time-stamp unit.
    pub const TSU: &str = "netcope,tsu";
    /// The transmitting half of a port.
    pub const TXMAC: &str = "netcope,txmac";
    /// The receiving half of a port.
    pub const RXMAC: &str = "netcope,rxmac";
    /// The PCS and PMA of a port.
    pub const PCS: &str = "netcope,pcsregs";
    /// The cage of a port.
    pub const TRANSCEIVER: &str = "netcope,transceiver";
    /// A port.
    pub const ETH: &str = "netcope,eth";
    /// What stands before received frames.
    pub const RX_HEADER: &str = "cesnet,ofm,ndp-header-rx";
    /// A list of items in a few bytes.
    pub const PACKED_ITEM: &str = "cesnet,ofm,packed-item";
    /// DMA controller of a Medusa receive queue.
    pub const MEDUSA_RX: &str = "netcope,dma_ctrl_ndp_rx";
    /// DMA controller of a Medusa transmit queue.
    pub const MEDUSA_TX: &str = "netcope,dma_ctrl_ndp_tx";
    /// DMA controller of a Calypte receive queue.
    pub const CALYPTE_RX: &str = "cesnet,dma_ctrl_calypte_rx";
    /// DMA controller of a Calypte transmit queue.
    pub const CALYPTE_TX: &str = "cesnet,dma_ctrl_calypte_tx";
    /// Data buffer of a Calypte transmit queue.
    pub const CALYPTE_TX_DATA: &str = "cesnet,dma_calypte_tx_data_buff";
    /// Header buffer of a Calypte transmit queue.
    pub const CALYPTE_TX_HEADERS: &str = "cesnet,dma_calypte_tx_hdr_buff";
    /// DMA controller of a DD receive queue: this project's own (`docs/spec/dd.md`).
    pub const DD_RX: &str = "millrace,dma_ctrl_dd_rx";
    /// DMA controller of a DD transmit queue.
    pub const DD_TX: &str = "millrace,dma_ctrl_dd_tx";
    /// DMA controller of an SZE receive queue.
    pub const SZE_RX: &str = "netcope,dma_ctrl_sze_rx";
    /// DMA controller of an SZE transmit queue.
    pub const SZE_TX: &str = "netcope,dma_ctrl_sze_tx";
}

/// The value of `compatible` of a DMA controller.
pub const fn dma_compatible(engine: Engine, direction: Direction) -> &'static str {
    match (engine, direction) {
        (Engine::Medusa, Direction::Rx) => compatible::MEDUSA_RX,
        (Engine::Medusa, Direction::Tx) => compatible::MEDUSA_TX,
        (Engine::Sze, Direction::Rx) => compatible::SZE_RX,
        (Engine::Sze, Direction::Tx) => compatible::SZE_TX,
        (Engine::Calypte, Direction::Rx) => compatible::CALYPTE_RX,
        (Engine::Calypte, Direction::Tx) => compatible::CALYPTE_TX,
        (Engine::Dd, Direction::Rx) => compatible::DD_RX,
        (Engine::Dd, Direction::Tx) => compatible::DD_TX,
    }
}

#[cfg(test)]
mod tests;
