//! `millrace regs`: every register of the card by name, as the device tree and the register tables have them.

use clap::Args;
use millrace_abi::queue::Direction;
use millrace_abi::register::map::Component;
use millrace_abi::register::{Block, Offset, Register, Way};
use millrace_abi::tree::Tree;
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::Device;
use millrace_tool::options::Shared;
use millrace_tool::output::{Cell, Output, Row};
use millrace_tool::session::Session;

use crate::commands::tree;

/// Options of `regs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Parts of a card: test, tsu, rx0, tx0 (DMA controllers), rxmac0, txmac0, pcs0,
i2c0, pmd0, and so on. The counters of a DMA controller show the last snapshot;
`millrace stats` shows what is counted now.

Examples:
  millrace regs
  millrace regs rx0 tx0 --device unix:/tmp/card.sock
  millrace regs rxmac0 --json")]
pub struct RegsArgs {
    /// Parts to show [default: all]
    #[arg(value_name = "PART")]
    parts: Vec<Component>,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &RegsArgs) -> Result<(), Failure> {
    let session = Session::open(shared)?;
    let blob = tree::blob(&session)?;
    let parts = parts(&Tree::parse(&blob)?)?;
    if let Some(absent) = args.parts.iter().find(|wanted| !parts.iter().any(|part| part.component == **wanted)) {
        return Err(Failure::Usage(format!("this card has no {absent}; `millrace tree` shows what it has")));
    }
    let output = Output::new(shared.json);
    for part in parts.iter().filter(|part| args.parts.is_empty() || args.parts.contains(&part.component)) {
        let title = format!("{} at 0x{:x}: {} ({})", part.component, part.base, part.block.name, part.block.reference);
        output.rows(&title, &part.rows(&session.device)?)?;
    }
    Ok(())
}

/// A block of registers that this card has.
struct Part {
    component: Component,
    base: u32,
    block: &'static Block,
}

/// The blocks in the order of the tree. Which engine answers at a DMA controller is what the tree says.
fn parts(tree: &Tree<'_>) -> Result<Vec<Part>, Failure> {
    let mut queues = tree.queues(Direction::Rx)?;
    queues.extend(tree.queues(Direction::Tx)?);
    let part = |base| {
        let (component, _) = Component::at(base).filter(|(_, offset)| *offset == 0)?;
        let engine = match component {
            Component::Dma(id) => queues.iter().find(|queue| queue.queue == id).map(|queue| queue.engine),
            _ => None,
        };
        Some(Part {
            component,
            base,
            block: component.block(|_| engine.unwrap_or(millrace_abi::queue::Engine::Medusa)),
        })
    };
    // The bus itself has a `reg` too; only what hangs on it is a part. What hangs on the second are no registers.
    let on_the_bus = tree.nodes().filter(|node| node.parent().is_some_and(|bus| bus.name() == "mi_bus0"));
    Ok(on_the_bus.filter_map(|node| part(node.reg().ok()?.0)).collect())
}

impl Part {
    fn rows(&self, device: &Device) -> Result<Vec<Row>, Failure> {
        let each = self.block.registers.iter().flat_map(|register| (0..register.count).map(move |at| (register, at)));
        each.filter_map(|(register, at)| Some((register, at, register.nth(at)?)))
            .map(|(register, at, offset)| self.row(device, register, at, offset))
            .collect()
    }

    fn row(&self, device: &Device, register: &Register, at: u32, offset: Offset) -> Result<Row, Failure> {
        let name = if register.count > 1 { format!("{}[{at}]", register.name) } else { register.name.to_owned() };
        let address = offset.at(self.base);
        let value = match register.access.allows(Way::Read) {
            true => Some(read(device, address, register.width.bytes() as usize)?),
            false => None,
        };
        let digits = register.width.bytes() as usize * 2;
        Ok(Row::new()
            .tag("part", self.component)
            .text("address", format!("0x{address:07x}"))
            .text("register", name)
            .cell("value", value.map_or(Cell::Missing, |value| Cell::Text(format!("0x{value:0digits$x}"))))
            .text("access", register.access)
            .text("meaning", register.meaning))
    }
}

/// Reads a little-endian register of up to eight bytes.
fn read(device: &Device, address: u32, width: usize) -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    device.read(address, &mut bytes[..width]).doing(|| format!("cannot read register 0x{address:x}"))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_abi::name::CardOptions;
    use millrace_abi::tree::CardDescription;

    #[test]
    fn every_part_of_a_card_is_found_with_its_table() {
        let mut options = CardOptions::default();
        options.set("engine", Some("sze@1")).unwrap();
        options.set("engine", Some("calypte@2")).unwrap();
        options.set("engine", Some("dd@3")).unwrap();
        options.set("queues", Some("4")).unwrap();
        let blob = CardDescription::new(&options).to_blob().unwrap();
        let parts = parts(&Tree::parse(&blob).unwrap()).unwrap();
        let names: Vec<String> = parts.iter().map(|part| format!("{}:{}", part.component, part.block.name)).collect();
        for wanted in
            ["test:test", "rx0:medusa", "rx1:sze", "tx0:medusa", "tx1:sze", "rx2:calypte", "tx2:calypte", "tx3:dd"]
        {
            assert!(names.iter().any(|name| name == wanted), "{wanted} is not among {names:?}");
        }
    }
}
