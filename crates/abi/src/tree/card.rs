//! What a card is made of.

use super::writer;
use crate::queue::{Direction, Engine, QueueId};
use crate::register::map::{MAX_PORTS, MAX_QUEUES};
use crate::{name::CardOptions, name::OptionError};
use serde::{Deserialize, Serialize};

/// What the device tree of a card is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardDescription {
    /// Name of the card and of its board.
    pub name: String,
    /// Serial number of the board; DPDK derives MAC addresses from it for boards that it knows.
    pub serial: u32,
    /// A number that tells cards of one machine apart.
    pub id: u32,
    /// When the card was built or started, in seconds since 1970. The caller says, so that equal cards have equal trees.
    pub build_time: u32,
    /// NUMA node of the card's memory, if it is known.
    pub numa_node: Option<u32>,
    /// Shortest frame of all queues, in bytes without FCS.
    pub frame_min: u32,
    /// Longest frame of all queues, in bytes without FCS.
    pub frame_max: u32,
    /// Whether it is a PCI function, whose queues have doorbell pages and interrupts ([`crate::pci`]).
    pub function: bool,
    /// The ports; their index is their place.
    pub ports: Vec<PortDescription>,
    /// The receive queues; their index is their place.
    pub rx_queues: Vec<QueueDescription>,
    /// The transmit queues; their index is their place.
    pub tx_queues: Vec<QueueDescription>,
}

/// A port of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortDescription {
    /// Nominal speed in Gbit/s; a port without a speed of its own says 100.
    pub speed_gbps: u32,
    /// Longest frame that the MAC can be told to let through, in bytes with FCS; 1518 at least (trap T17).
    pub mtu: u32,
    /// What sits in the cage: `QSFP28`, behind which tools find a module (§2.3).
    pub cage: String,
}

/// A queue of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueDescription {
    /// The protocol of its DMA controller.
    pub engine: Engine,
    /// Size of its packet memory in bytes: the SZE or Calypte ring, or the Medusa or DD buffers.
    pub size: u64,
    /// What an application maps, in bytes. 0 says that the queue exists but cannot be opened (trap T11).
    pub mmap_size: u64,
}

/// Why there is no device tree for a description.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum BuildError {
    /// The address space has no room for so many.
    #[error("{count} {what}; a card has room for {max}")]
    TooMany {
        /// Ports or queues.
        what: &'static str,
        /// How many were asked for.
        count: usize,
        /// How many can be.
        max: u32,
    },
    /// A name or value that a blob cannot hold, such as one with a zero byte.
    #[error("the device tree cannot hold the description, check it for zero bytes: {0}")]
    Write(#[from] vm_fdt::Error),
}

impl Default for PortDescription {
    fn default() -> Self {
        Self::for_frames(CardOptions::default().frame_max)
    }
}

impl PortDescription {
    /// A port for frames of at most `longest` bytes without FCS.
    fn for_frames(longest: u32) -> Self {
        // The registers of a MAC count the FCS, and so does what the tree says of them.
        const FCS: u32 = 4;
        Self { speed_gbps: 100, mtu: (longest + FCS).max(LEAST_MTU), cage: "QSFP28".to_owned() }
    }
}

/// What DPDK wants of a MAC at least (trap T17).
const LEAST_MTU: u32 = 1518;

impl Default for CardDescription {
    /// The card of the default [`CardOptions`].
    fn default() -> Self {
        Self::new(&CardOptions::default())
    }
}

impl CardDescription {
    /// The card that the options ask for, which must be [valid](CardOptions::validate): one port per specification, one
    /// queue per number, and memory as large as the options say.
    pub fn new(options: &CardOptions) -> Self {
        let queues = |direction, count| {
            (0..count)
                .map(|index| QueueId { direction, index })
                .map(|queue| QueueDescription {
                    engine: options.engine_of(queue),
                    size: options.packet_memory_of(queue),
                    mmap_size: options.packet_memory_of(queue),
                })
                .collect()
        };
        Self {
            name: "MILLRACE".to_owned(),
            serial: 0,
            id: 0,
            build_time: 0,
            numa_node: None,
            function: false,
            frame_min: options.frame_min,
            frame_max: options.frame_max,
            ports: vec![PortDescription::for_frames(options.frame_max); options.ports.len()],
            rx_queues: queues(Direction::Rx, options.rx_queues),
            tx_queues: queues(Direction::Tx, options.tx_queues),
        }
    }

    /// The queues of one direction.
    pub fn queues(&self, direction: Direction) -> &[QueueDescription] {
        match direction {
            Direction::Rx => &self.rx_queues,
            Direction::Tx => &self.tx_queues,
        }
    }

    /// The engine of a queue; `None` if the card has no such queue.
    pub fn engine_of(&self, queue: QueueId) -> Option<Engine> {
        self.queues(queue.direction).get(queue.index as usize).map(|queue| queue.engine)
    }

    /// The flattened device tree blob of this card, laid out as §2.1 says.
    ///
    /// # Errors
    /// More ports or queues than the address space has room for, or text that a blob cannot hold.
    pub fn to_blob(&self) -> Result<Vec<u8>, BuildError> {
        let room = |what, count, max: u32| {
            if count <= max as usize { Ok(()) } else { Err(BuildError::TooMany { what, count, max }) }
        };
        room("ports", self.ports.len(), MAX_PORTS)?;
        room("receive queues", self.rx_queues.len(), MAX_QUEUES)?;
        room("transmit queues", self.tx_queues.len(), MAX_QUEUES)?;
        Ok(writer::write(self)?)
    }
}

impl TryFrom<&CardOptions> for CardDescription {
    type Error = OptionError;

    fn try_from(options: &CardOptions) -> Result<Self, OptionError> {
        options.validate()?;
        Ok(Self::new(options))
    }
}
