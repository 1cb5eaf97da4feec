//! A card's description as a flattened device tree, node by node as in `docs/spec/nfb-card.md` §2.1.

use super::{CardDescription, PortDescription, QueueDescription, compatible, dma_compatible};
use crate::header;
use crate::pci;
use crate::queue::{Direction, Engine, QueueId};
use crate::register::map::{Component, SECOND_BUS, SECOND_SPACE, SPACE};
use crate::register::{calypte, dd, medusa, rxmac, sze, txmac};
use vm_fdt::{Error, FdtWriter};

/// Names of the BARs of the two buses, and of the nodes that say where they are mapped.
const BAR: &str = "PCI0,BAR0";
const SECOND_BAR: &str = "PCI0,BAR2";

/// The phandles of a card, all different and small (§2.1): two shared by all queues, seven per port, one per queue, two
/// for the buffers of each TX queue.
struct Phandles {
    ports: u32,
    rx_queues: u32,
    tx_queues: u32,
}

impl Phandles {
    const PER_PORT: u32 = 7;
    const FIRST_PORT: u32 = 3;

    fn params(direction: Direction) -> u32 {
        match direction {
            Direction::Rx => 1,
            Direction::Tx => 2,
        }
    }

    fn part(port: u32, part: PortPart) -> u32 {
        Self::FIRST_PORT + port * Self::PER_PORT + part as u32
    }

    fn queue(&self, queue: QueueId) -> u32 {
        let first = Self::FIRST_PORT + self.ports * Self::PER_PORT;
        match queue.direction {
            Direction::Rx => first + queue.index,
            Direction::Tx => first + self.rx_queues + queue.index,
        }
    }

    /// The data buffer of a TX queue; that of its headers is one more.
    fn buffer(&self, index: u32) -> u32 {
        self.queue(QueueId::tx(self.tx_queues)) + 2 * index
    }
}

/// The parts of a port that others point at.
#[derive(Clone, Copy)]
enum PortPart {
    I2c,
    Pmd,
    TxMac,
    RxMac,
    Pcs,
    Transceiver,
    PcsPma,
}

/// The blob of a description whose numbers of ports and queues fit the address space.
pub(super) fn write(card: &CardDescription) -> Result<Vec<u8>, Error> {
    let (ports, rx_queues, tx_queues) = (card.ports.len(), card.rx_queues.len(), card.tx_queues.len());
    let phandles = Phandles { ports: ports as u32, rx_queues: rx_queues as u32, tx_queues: tx_queues as u32 };
    let mut writer = FdtWriter::new()?;
    let w = &mut writer;
    node(w, "", |w| {
        node(w, "firmware", |w| firmware(w, card, &phandles))?;
        node(w, "board", |w| {
            w.property_string("board-name", &card.name)?;
            w.property_u32("serial-number", card.serial)?;
            w.property_u64("fpga-uid", u64::from(card.serial))
        })?;
        node(w, "system", |w| {
            node(w, "device", |w| {
                w.property_u32("card-id", card.id)?;
                node(w, "endpoint0", |w| endpoint(w, card))
            })
        })?;
        node(w, "drivers", |w| drivers(w, card, &phandles))
    })?;
    writer.finish()
}

/// One node with what `content` writes into it.
fn node(w: &mut FdtWriter, name: &str, content: impl FnOnce(&mut FdtWriter) -> Result<(), Error>) -> Result<(), Error> {
    let node = w.begin_node(name)?;
    content(w)?;
    w.end_node(node)
}

fn firmware(w: &mut FdtWriter, card: &CardDescription, phandles: &Phandles) -> Result<(), Error> {
    w.property_string("build-tool", "rustc")?;
    w.property_string("build-author", env!("CARGO_PKG_AUTHORS"))?;
    w.property_string("build-revision", env!("CARGO_PKG_VERSION"))?;
    w.property_string("card-name", &card.name)?;
    w.property_string("project-name", "MILLRACE")?;
    w.property_string("project-variant", "software")?;
    w.property_string("project-version", env!("CARGO_PKG_VERSION"))?;
    w.property_u32("build-time", card.build_time)?;
    node(w, "mi_bus0", |w| bus(w, card, phandles))?;
    if has_second_bus(card) {
        node(w, "mi_bus1", |w| second_bus(w, card, phandles))?;
    }
    for direction in [Direction::Rx, Direction::Tx] {
        node(w, &format!("dma_params_{}0", way(direction)), |w| {
            w.property_u32("frame_size_max", card.frame_max)?;
            w.property_u32("frame_size_min", card.frame_min)?;
            w.property_phandle(Phandles::params(direction))
        })?;
    }
    node(w, "ndp_header_rx0", rx_header)?;
    for (index, port) in (0..).zip(&card.ports) {
        port_nodes(w, index, port)?;
    }
    Ok(())
}

/// What may stand before a received frame, §2.7.
fn rx_header(w: &mut FdtWriter) -> Result<(), Error> {
    w.property_string_list("compatible", vec![compatible::RX_HEADER.to_owned(), compatible::PACKED_ITEM.to_owned()])?;
    w.property_u32("header_id", header::ID)?;
    w.property_u32("header_length", header::LEN as u32)?;
    w.property_string_list("item-name", header::ITEMS.iter().map(|item| item.name.to_owned()).collect())?;
    let cells = |of: fn(&header::Item) -> u16| -> Vec<u8> {
        header::ITEMS.iter().flat_map(|item| of(item).to_be_bytes()).collect()
    };
    w.property("item-width", &cells(|item| item.width))?;
    w.property("item-offset", &cells(|item| item.offset))
}

fn bus(w: &mut FdtWriter, card: &CardDescription, phandles: &Phandles) -> Result<(), Error> {
    w.property_string("compatible", compatible::BUS)?;
    w.property_u32("#address-cells", 1)?;
    w.property_u32("#size-cells", 1)?;
    w.property_string("resource", BAR)?;
    w.property_u32("width", 32)?;
    // Not needed by any component, but without it nfb-bus cannot open the bus as a whole.
    w.property_array_u32("reg", &[0, SPACE])?;
    component(w, "mi_test_space", Component::TestSpace, Some(compatible::TEST_SPACE))?;
    component(w, "tsu", Component::Tsu, Some(compatible::TSU))?;
    for (index, port) in (0..).zip(&card.ports) {
        port_registers(w, index, port)?;
    }
    for direction in [Direction::Rx, Direction::Tx] {
        for (index, queue) in (0..).zip(card.queues(direction)) {
            dma_controller(w, QueueId { direction, index }, queue, card.function, phandles)?;
        }
    }
    Ok(())
}

fn has_second_bus(card: &CardDescription) -> bool {
    card.tx_queues.iter().any(|queue| queue.engine == Engine::Calypte)
}

/// The bus of the buffers into which software writes what Calypte queues send. Its addresses count from its own BAR.
fn second_bus(w: &mut FdtWriter, card: &CardDescription, phandles: &Phandles) -> Result<(), Error> {
    w.property_string("compatible", compatible::BUS)?;
    w.property_u32("#address-cells", 1)?;
    w.property_u32("#size-cells", 1)?;
    w.property_string("resource", SECOND_BAR)?;
    w.property_u32("width", 32)?;
    w.property_null("map-as-wc")?;
    w.property_array_u32("reg", &[0, SECOND_SPACE])?;
    for (index, _) in (0..).zip(&card.tx_queues).filter(|(_, queue)| queue.engine == Engine::Calypte) {
        let (data, headers) = (Component::TxData(index), Component::TxHeaders(index));
        let phandle = phandles.buffer(index);
        buffer(w, &format!("dma_calypte_tx_data_buff{index}"), data, compatible::CALYPTE_TX_DATA, phandle)?;
        buffer(w, &format!("dma_calypte_tx_hdr_buff{index}"), headers, compatible::CALYPTE_TX_HEADERS, phandle + 1)?;
    }
    Ok(())
}

fn buffer(w: &mut FdtWriter, name: &str, component: Component, compatible: &str, phandle: u32) -> Result<(), Error> {
    node(w, name, |w| {
        w.property_string("compatible", compatible)?;
        let base = component.base().unwrap_or(SECOND_BUS) - SECOND_BUS;
        w.property_array_u32("reg", &[base, component.size()])?;
        w.property_u32("pcie", 0)?;
        w.property_phandle(phandle)
    })
}

/// A node of the bus with nothing but its place and its kind.
fn component(w: &mut FdtWriter, name: &str, component: Component, compatible: Option<&str>) -> Result<(), Error> {
    node(w, name, |w| place(w, component, compatible))
}

fn place(w: &mut FdtWriter, component: Component, compatible: Option<&str>) -> Result<(), Error> {
    if let Some(compatible) = compatible {
        w.property_string("compatible", compatible)?;
    }
    // The caller has checked that the address space has room.
    let base = component.base().unwrap_or_default();
    w.property_array_u32("reg", &[base, component.size()])
}

fn port_registers(w: &mut FdtWriter, index: u32, port: &PortDescription) -> Result<(), Error> {
    let phandle = |part| Phandles::part(index, part);
    let speed = port.speed_gbps.to_string();
    node(w, &format!("i2c{index}"), |w| {
        place(w, Component::I2c(index), Some(compatible::I2C))?;
        w.property_phandle(phandle(PortPart::I2c))
    })?;
    node(w, &format!("pmdctrl{index}"), |w| {
        place(w, Component::Pmd(index), None)?;
        w.property_phandle(phandle(PortPart::Pmd))
    })?;
    node(w, &format!("txmac{index}"), |w| {
        place(w, Component::TxMac(index), Some(compatible::TXMAC))?;
        w.property_u32("version", txmac::VERSION)?;
        w.property_string("speed", &speed)?;
        w.property_u32("mtu", port.mtu)?;
        w.property_phandle(phandle(PortPart::TxMac))
    })?;
    node(w, &format!("rxmac{index}"), |w| {
        place(w, Component::RxMac(index), Some(compatible::RXMAC))?;
        w.property_u32("version", rxmac::VERSION)?;
        w.property_u32("mtu", port.mtu)?;
        w.property_string("speed", &speed)?;
        w.property_phandle(phandle(PortPart::RxMac))
    })?;
    node(w, &format!("pcsregs{index}"), |w| {
        place(w, Component::Pcs(index), Some(compatible::PCS))?;
        w.property_phandle(phandle(PortPart::Pcs))
    })
}

fn port_nodes(w: &mut FdtWriter, index: u32, port: &PortDescription) -> Result<(), Error> {
    let phandle = |part| Phandles::part(index, part);
    node(w, &format!("pmd{index}"), |w| {
        w.property_string("compatible", compatible::TRANSCEIVER)?;
        w.property_string("type", &port.cage)?;
        w.property_u32("status-reg", phandle(PortPart::Pmd))?;
        w.property_u32("control", phandle(PortPart::I2c))?;
        w.property_phandle(phandle(PortPart::Transceiver))?;
        node(w, "control-param", |w| w.property_u32("i2c-addr", 0xa0))
    })?;
    node(w, &format!("pcspma{index}"), |w| {
        w.property_string("type", &format!("{}G", port.speed_gbps))?;
        w.property_u32("control", phandle(PortPart::Pcs))?;
        w.property_phandle(phandle(PortPart::PcsPma))?;
        node(w, "control-param", |w| w.property_u32("dev", 0))
    })?;
    node(w, &format!("eth{index}"), |w| {
        w.property_string("compatible", compatible::ETH)?;
        w.property_u32("pmd", phandle(PortPart::Transceiver))?;
        w.property_u32("pcspma", phandle(PortPart::PcsPma))?;
        w.property_u32("rxmac", phandle(PortPart::RxMac))?;
        w.property_u32("txmac", phandle(PortPart::TxMac))?;
        node(w, "pmd-params", |w| w.property_array_u32("lines", &[0, 1, 2, 3]))
    })
}

fn dma_controller(
    w: &mut FdtWriter,
    queue: QueueId,
    description: &QueueDescription,
    function: bool,
    phandles: &Phandles,
) -> Result<(), Error> {
    let (protocol, version) = match description.engine {
        Engine::Medusa => ("ndp", medusa::VERSION),
        Engine::Sze => ("sze", sze::VERSION),
        Engine::Calypte => ("calypte", calypte::VERSION),
        Engine::Dd => ("dd", dd::VERSION),
    };
    node(w, &format!("dma_ctrl_{protocol}_{queue}"), |w| {
        place(w, Component::Dma(queue), Some(dma_compatible(description.engine, queue.direction)))?;
        w.property_u32("version", version)?;
        w.property_u32("pcie", 0)?;
        w.property_u32("params", Phandles::params(queue.direction))?;
        if (description.engine, queue.direction) == (Engine::Calypte, Direction::Tx) {
            let phandle = phandles.buffer(queue.index);
            w.property_u32("data_buff", phandle)?;
            w.property_u32("hdr_buff", phandle + 1)?;
        }
        if function {
            w.property_u32(pci::DOORBELL_PROPERTY, pci::doorbell(queue))?;
            w.property_u32(pci::VECTOR_PROPERTY, pci::vector(queue))?;
        }
        w.property_phandle(phandles.queue(queue))
    })
}

fn endpoint(w: &mut FdtWriter, card: &CardDescription) -> Result<(), Error> {
    w.property_string("pci-slot", "0000:00:00.0")?;
    w.property_u32("pci-speed", 0x16)?; // 8 GT/s
    w.property_u32("pcie-link-width", 16)?;
    w.property_u32("numa-node", numa(card))
}

fn drivers(w: &mut FdtWriter, card: &CardDescription, phandles: &Phandles) -> Result<(), Error> {
    w.property_u32("version", 0x0002_0000)?;
    node(w, "mi", |w| {
        node(w, BAR, |w| {
            w.property_u64("mmap_base", 0)?;
            w.property_u64("mmap_size", u64::from(SPACE))
        })?;
        if has_second_bus(card) {
            node(w, SECOND_BAR, |w| {
                w.property_u64("mmap_base", u64::from(SECOND_BUS))?;
                w.property_u64("mmap_size", u64::from(SECOND_SPACE))
            })?;
        }
        Ok(())
    })?;
    node(w, "ndp", |w| {
        w.property_u32("version", 1)?;
        for direction in [Direction::Rx, Direction::Tx] {
            node(w, &format!("{}_queues", way(direction)), |w| {
                for (index, queue) in (0..).zip(card.queues(direction)) {
                    driver_queue(w, QueueId { direction, index }, queue, card, phandles)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}

fn driver_queue(
    w: &mut FdtWriter,
    queue: QueueId,
    description: &QueueDescription,
    card: &CardDescription,
    phandles: &Phandles,
) -> Result<(), Error> {
    node(w, &queue.to_string(), |w| {
        w.property_u32("ctrl", phandles.queue(queue))?;
        w.property_u32("numa", numa(card))?;
        w.property_u64("size", description.size)?;
        w.property_u64("mmap_size", description.mmap_size)?;
        w.property_u64("mmap_base", 0)?;
        w.property_u32(
            "protocol",
            match description.engine {
                Engine::Sze => 1,
                Engine::Medusa => 2,
                Engine::Calypte => 3,
                // Ours: drivers know 1 to 3.
                Engine::Dd => 0x100,
            },
        )
    })
}

/// The NUMA node as drivers write it: -1 when nobody knows.
fn numa(card: &CardDescription) -> u32 {
    card.numa_node.unwrap_or(u32::MAX)
}

fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Rx => "rx",
        Direction::Tx => "tx",
    }
}
