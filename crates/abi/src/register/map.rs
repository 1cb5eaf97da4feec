//! Where the blocks of a card lie: on its bus, a 26-bit address space laid out as `docs/spec/nfb-card.md` §2.1 describes, and
//! on a second one behind it, which a card with Calypte TX queues has (§3.2.5).
//!
//! ```text
//! 0x0000000  test space
//! 0x0003010  I2C master of port 0, then one every 0x20; status byte of its cage 0xc behind it
//! 0x0004000  time-stamp unit
//! 0x0008000  TXMAC of port 0, RXMAC 0x200 behind it, then one pair every 0x2000
//! 0x0800000  PCS of ports 0 to 3 every 0x200000; ports 4 to 31 between them, every 0x40000
//! 0x1000000  DMA controllers of the RX queues, one every 0x80
//! 0x1200000  DMA controllers of the TX queues, one every 0x80
//!
//! 0x04000000  first address of the second bus: data buffers of Calypte TX queues, one every 0x20000
//! 0x24000000  their header buffers, one every 0x8000
//! ```
//!
//! On hardware the two buses are two BARs, each with addresses from 0, and so the device tree counts; everything else
//! of ours, such as `Device::read` and `Device::write` of the host library, adds [`SECOND_BUS`] to those of the second.
//!
//! Tools follow the device tree and need none of this; card and driver, which build it, do.

use super::{Block, calypte, dd, medusa, pcs, rxmac, sze, test_space, transceiver, tsu, txmac};
use crate::queue::{Direction, Engine, QueueId};
use core::{fmt, str::FromStr};

/// Size of the address space of the first bus in bytes.
pub const SPACE: u32 = 0x0400_0000;
/// First address of the second bus.
pub const SECOND_BUS: u32 = SPACE;
/// Size of the address space of the second bus in bytes.
pub const SECOND_SPACE: u32 = MAX_QUEUES * (calypte::tx_data::BLOCK.size + calypte::tx_headers::BLOCK.size);
/// Most queues that a card can have in one direction. They take 0x80000 of the 0x200000 bytes that are there.
pub const MAX_QUEUES: u32 = 4096;
/// Most ports that a card can have.
pub const MAX_PORTS: u32 = 32;

const TEST_SPACE: u32 = 0x0;
const I2C: u32 = 0x3010;
const PMD: u32 = 0x301c;
const CAGE_STRIDE: u32 = 0x20;
const TSU: u32 = 0x4000;
const MAC: u32 = 0x8000;
const MAC_STRIDE: u32 = 0x2000;
const RXMAC_BEHIND_TXMAC: u32 = 0x200;
const PCS: u32 = 0x80_0000;
const PCS_PORT_STRIDE: u32 = 0x20_0000;
const PCS_CHANNEL_STRIDE: u32 = 0x4_0000;
const PCS_PORTS: u32 = 4;
const RX_DMA: u32 = 0x0100_0000;
const TX_DMA: u32 = 0x0120_0000;
const DMA_STRIDE: u32 = 0x80;
const TX_DATA: u32 = SECOND_BUS;
const TX_DATA_STRIDE: u32 = calypte::tx_data::BLOCK.size;
const TX_HEADERS: u32 = TX_DATA + MAX_QUEUES * TX_DATA_STRIDE;
const TX_HEADERS_STRIDE: u32 = calypte::tx_headers::BLOCK.size;
const END: u32 = SECOND_BUS + SECOND_SPACE;

const _: () = {
    assert!(I2C + MAX_PORTS * CAGE_STRIDE <= TSU);
    assert!(MAC + MAX_PORTS * MAC_STRIDE <= PCS);
    assert!(PCS + PCS_PORTS * PCS_PORT_STRIDE <= RX_DMA);
    assert!(MAX_PORTS / PCS_PORTS * PCS_CHANNEL_STRIDE <= PCS_PORT_STRIDE);
    assert!(RX_DMA + MAX_QUEUES * DMA_STRIDE <= TX_DMA);
    assert!(TX_DMA + MAX_QUEUES * DMA_STRIDE <= SPACE);
};

/// Every kind of block there is.
pub static BLOCKS: [&Block; 13] = [
    &test_space::BLOCK,
    &transceiver::I2C,
    &transceiver::PMD,
    &tsu::BLOCK,
    &txmac::BLOCK,
    &rxmac::BLOCK,
    &pcs::BLOCK,
    &sze::BLOCK,
    &medusa::BLOCK,
    &calypte::BLOCK,
    &calypte::tx_data::BLOCK,
    &calypte::tx_headers::BLOCK,
    &dd::BLOCK,
];

/// One block of one card; written `test`, `tsu`, `i2c0`, `pmd0`, `txmac0`, `rxmac0`, `pcs0`, `rx3`, `tx3`,
/// `txdata3`, `txheaders3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The test space.
    TestSpace,
    /// The I2C master of a port.
    I2c(u32),
    /// The cage status of a port.
    Pmd(u32),
    /// The time-stamp unit.
    Tsu,
    /// The transmitting half of a port.
    TxMac(u32),
    /// The receiving half of a port.
    RxMac(u32),
    /// The PCS and PMA of a port.
    Pcs(u32),
    /// The DMA controller of a queue, whatever its engine.
    Dma(QueueId),
    /// The data buffer of a Calypte TX queue.
    TxData(u32),
    /// The header buffer of a Calypte TX queue.
    TxHeaders(u32),
}

impl Component {
    /// Address of the block on the bus, in bytes; `None` beyond [`MAX_PORTS`] and [`MAX_QUEUES`].
    pub const fn base(self) -> Option<u32> {
        Some(match self {
            Component::TestSpace => TEST_SPACE,
            Component::Tsu => TSU,
            Component::I2c(port) if port < MAX_PORTS => I2C + port * CAGE_STRIDE,
            Component::Pmd(port) if port < MAX_PORTS => PMD + port * CAGE_STRIDE,
            Component::TxMac(port) if port < MAX_PORTS => MAC + port * MAC_STRIDE,
            Component::RxMac(port) if port < MAX_PORTS => MAC + RXMAC_BEHIND_TXMAC + port * MAC_STRIDE,
            Component::Pcs(port) if port < MAX_PORTS => {
                PCS + port % PCS_PORTS * PCS_PORT_STRIDE + port / PCS_PORTS * PCS_CHANNEL_STRIDE
            }
            Component::Dma(queue) => match dma_base(queue) {
                Some(base) => base,
                None => return None,
            },
            Component::TxData(index) if index < MAX_QUEUES => TX_DATA + index * TX_DATA_STRIDE,
            Component::TxHeaders(index) if index < MAX_QUEUES => TX_HEADERS + index * TX_HEADERS_STRIDE,
            _ => return None,
        })
    }

    /// Size of the block's window in bytes.
    pub const fn size(self) -> u32 {
        match self {
            Component::TestSpace => test_space::BLOCK.size,
            Component::I2c(_) => transceiver::I2C.size,
            Component::Pmd(_) => transceiver::PMD.size,
            Component::Tsu => tsu::BLOCK.size,
            Component::TxMac(_) => txmac::BLOCK.size,
            Component::RxMac(_) => rxmac::BLOCK.size,
            Component::Pcs(_) => pcs::BLOCK.size,
            Component::Dma(_) => DMA_STRIDE,
            Component::TxData(_) => TX_DATA_STRIDE,
            Component::TxHeaders(_) => TX_HEADERS_STRIDE,
        }
    }

    /// The registers of the block. `engine_of` says which engine serves a queue, as the device tree does.
    pub fn block(self, engine_of: impl FnOnce(QueueId) -> Engine) -> &'static Block {
        match self {
            Component::TestSpace => &test_space::BLOCK,
            Component::I2c(_) => &transceiver::I2C,
            Component::Pmd(_) => &transceiver::PMD,
            Component::Tsu => &tsu::BLOCK,
            Component::TxMac(_) => &txmac::BLOCK,
            Component::RxMac(_) => &rxmac::BLOCK,
            Component::Pcs(_) => &pcs::BLOCK,
            Component::Dma(queue) => dma_block(engine_of(queue)),
            Component::TxData(_) => &calypte::tx_data::BLOCK,
            Component::TxHeaders(_) => &calypte::tx_headers::BLOCK,
        }
    }

    /// The block that answers at a bus address, and how far into it the address lies; `None` where nothing can.
    /// Whether the card at hand has that many ports and queues is for the caller to check.
    pub fn at(address: u32) -> Option<(Component, u32)> {
        let candidates = match address {
            ..I2C => [Some(Component::TestSpace), None],
            I2C..TSU => {
                let port = (address - I2C) / CAGE_STRIDE;
                [Some(Component::I2c(port)), Some(Component::Pmd(port))]
            }
            TSU..MAC => [Some(Component::Tsu), None],
            MAC..PCS => {
                let port = (address - MAC) / MAC_STRIDE;
                [Some(Component::TxMac(port)), Some(Component::RxMac(port))]
            }
            PCS..RX_DMA => {
                let (port, within) = ((address - PCS) / PCS_PORT_STRIDE, (address - PCS) % PCS_PORT_STRIDE);
                [Some(Component::Pcs(port + within / PCS_CHANNEL_STRIDE * PCS_PORTS)), None]
            }
            RX_DMA..SECOND_BUS => [queue_at(address).map(Component::Dma), None],
            TX_DATA..TX_HEADERS => [Some(Component::TxData((address - TX_DATA) / TX_DATA_STRIDE)), None],
            TX_HEADERS..END => [Some(Component::TxHeaders((address - TX_HEADERS) / TX_HEADERS_STRIDE)), None],
            END.. => [None, None],
        };
        candidates.into_iter().flatten().find_map(|component| {
            let offset = address.checked_sub(component.base()?)?;
            (offset < component.size()).then_some((component, offset))
        })
    }
}

/// All components on the first bus of a card with so many ports and queues, in the order in which `millrace regs` prints
/// them.
pub fn components(ports: u32, rx_queues: u32, tx_queues: u32) -> impl Iterator<Item = Component> {
    let of_port = |port| {
        use Component::{I2c, Pcs, Pmd, RxMac, TxMac};
        [RxMac(port), TxMac(port), Pcs(port), Pmd(port), I2c(port)]
    };
    [Component::TestSpace, Component::Tsu]
        .into_iter()
        .chain((0..ports).flat_map(of_port))
        .chain((0..rx_queues).map(|index| Component::Dma(QueueId::rx(index))))
        .chain((0..tx_queues).map(|index| Component::Dma(QueueId::tx(index))))
}

/// Address of the DMA controller of a queue, in bytes; `None` from [`MAX_QUEUES`] on.
pub const fn dma_base(queue: QueueId) -> Option<u32> {
    if queue.index >= MAX_QUEUES {
        return None;
    }
    Some(match queue.direction {
        Direction::Rx => RX_DMA + queue.index * DMA_STRIDE,
        Direction::Tx => TX_DMA + queue.index * DMA_STRIDE,
    })
}

/// The queue whose DMA controller holds the bus address; `None` outside those of [`MAX_QUEUES`] queues per direction.
pub const fn queue_at(address: u32) -> Option<QueueId> {
    let (direction, first) = match address {
        RX_DMA..TX_DMA => (Direction::Rx, RX_DMA),
        TX_DMA.. => (Direction::Tx, TX_DMA),
        _ => return None,
    };
    let index = (address - first) / DMA_STRIDE;
    if index < MAX_QUEUES { Some(QueueId { direction, index }) } else { None }
}

/// The registers of a DMA controller.
pub const fn dma_block(engine: Engine) -> &'static Block {
    match engine {
        Engine::Sze => &sze::BLOCK,
        Engine::Medusa => &medusa::BLOCK,
        Engine::Calypte => &calypte::BLOCK,
        Engine::Dd => &dd::BLOCK,
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Component::TestSpace => f.write_str("test"),
            Component::Tsu => f.write_str("tsu"),
            Component::I2c(port) => write!(f, "i2c{port}"),
            Component::Pmd(port) => write!(f, "pmd{port}"),
            Component::TxMac(port) => write!(f, "txmac{port}"),
            Component::RxMac(port) => write!(f, "rxmac{port}"),
            Component::Pcs(port) => write!(f, "pcs{port}"),
            Component::Dma(queue) => write!(f, "{queue}"),
            Component::TxData(index) => write!(f, "txdata{index}"),
            Component::TxHeaders(index) => write!(f, "txheaders{index}"),
        }
    }
}

/// A word that names no component of any card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{word:?} is no part of a card; accepted: test, tsu, and with a port from 0 to {last_port} i2c0, pmd0, txmac0, \
     rxmac0, pcs0, and with a queue from 0 to {last_queue} rx0, tx0, txdata0, txheaders0",
    last_port = MAX_PORTS - 1,
    last_queue = MAX_QUEUES - 1
)]
pub struct UnknownComponent {
    /// What was given.
    pub word: String,
}

impl FromStr for Component {
    type Err = UnknownComponent;

    fn from_str(word: &str) -> Result<Self, UnknownComponent> {
        let kind_length = word.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (kind, digits) = word.split_at(kind_length);
        let index = digits.parse::<u32>();
        let component = match (kind, index) {
            ("test", Err(_)) if digits.is_empty() => Component::TestSpace,
            ("tsu", Err(_)) if digits.is_empty() => Component::Tsu,
            ("i2c", Ok(port)) => Component::I2c(port),
            ("pmd", Ok(port)) => Component::Pmd(port),
            ("txmac", Ok(port)) => Component::TxMac(port),
            ("rxmac", Ok(port)) => Component::RxMac(port),
            ("pcs", Ok(port)) => Component::Pcs(port),
            ("rx", Ok(index)) => Component::Dma(QueueId::rx(index)),
            ("tx", Ok(index)) => Component::Dma(QueueId::tx(index)),
            ("txdata", Ok(index)) => Component::TxData(index),
            ("txheaders", Ok(index)) => Component::TxHeaders(index),
            _ => return Err(UnknownComponent { word: word.to_owned() }),
        };
        component.base().map(|_| component).ok_or_else(|| UnknownComponent { word: word.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Component> {
        let second = (0..MAX_QUEUES).flat_map(|index| [Component::TxData(index), Component::TxHeaders(index)]);
        components(MAX_PORTS, MAX_QUEUES, MAX_QUEUES).chain(second)
    }

    #[test]
    fn no_two_components_of_the_largest_card_overlap() {
        let mut windows: Vec<_> = all().map(|c| (c.base().unwrap(), c.size(), c)).collect();
        windows.sort();
        for pair in windows.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{} overlaps {}", pair[0].2, pair[1].2);
        }
        let (base, size, _) = windows[windows.len() - 1];
        assert_eq!(base + size, SECOND_BUS + SECOND_SPACE);
        let last_of_first = components(MAX_PORTS, MAX_QUEUES, MAX_QUEUES).map(|c| c.base().unwrap() + c.size()).max();
        assert!(last_of_first.unwrap() <= SPACE);
    }

    #[test]
    fn addresses_and_names_lead_back_to_the_component() {
        for component in all() {
            let (base, size) = (component.base().unwrap(), component.size());
            assert_eq!(Component::at(base), Some((component, 0)));
            assert_eq!(Component::at(base + size - 1), Some((component, size - 1)));
            assert_eq!(component.to_string().parse(), Ok(component));
            for engine in Engine::ALL {
                assert_eq!(component.block(|_| engine).size, size, "{component}");
            }
        }
    }

    #[test]
    fn the_addresses_are_those_of_the_specification() {
        let base = |name: &str| name.parse::<Component>().unwrap().base().unwrap();
        assert_eq!((base("test"), base("i2c0"), base("pmd0"), base("tsu")), (0, 0x3010, 0x301c, 0x4000));
        assert_eq!((base("txmac0"), base("rxmac0"), base("txmac1"), base("rxmac3")), (0x8000, 0x8200, 0xa000, 0xe200));
        assert_eq!((base("pcs0"), base("pcs3"), base("pcs4")), (0x80_0000, 0xe0_0000, 0x84_0000));
        assert_eq!((base("rx1"), base("tx0"), base("tx4095")), (0x0100_0080, 0x0120_0000, 0x0127_ff80));
        assert_eq!((base("txdata1"), base("txheaders1")), (0x0402_0000, 0x2400_8000));
    }

    #[test]
    fn between_the_components_there_is_nothing() {
        for address in [0x100, 0x300f, 0x3018, 0x3020, 0x3410, 0x5000, 0x8400, 0x4_8000, 0x0108_0000, 0x0128_0000] {
            assert_eq!(Component::at(address), None, "{address:#x}");
        }
        for address in [0x03ff_ffff, 0x2c00_0000, u32::MAX] {
            assert_eq!(Component::at(address), None, "{address:#x}");
        }
        assert_eq!(Component::Dma(QueueId::rx(MAX_QUEUES)).base(), None);
        assert_eq!(Component::Pcs(MAX_PORTS).base(), None);
    }

    #[test]
    fn other_names_are_refused_with_the_names_there_are() {
        for word in ["", "rx", "rx4096", "tsu0", "test1", "rxmac32", "RX0", "rx-1", "rx99999999999", "eth0", "é1"] {
            let error = word.parse::<Component>().unwrap_err().to_string();
            assert!(error.contains("accepted: test, tsu") && error.contains("0 to 4095"), "{error}");
        }
    }
}
