//! What a machine finds: configuration space, BARs, the device tree, registers that are its own and that are not.

use super::machine::{Machine, Served};
use millrace_abi::pci;
use millrace_abi::queue::QueueId;
use millrace_abi::register::map::{Component, dma_base};
use millrace_abi::register::{medusa, tsu};
use millrace_abi::tree::Tree;
use std::io::Write;
use std::process::{Command, Stdio};

/// As a driver of the hardware reads it.
fn tree(machine: &mut Machine) -> Option<Vec<u8>> {
    let mut at = 0x100;
    while machine.read_config(at + 4) != pci::TREE_HEADER {
        at = u64::from(machine.read_config(at) >> 20);
        assert_ne!(at, 0, "no tree");
    }
    let len = machine.read_config(at + pci::TREE_LENGTH as u64);
    let mut packed = Vec::new();
    for word in 0..len / 4 {
        machine.write_config(at + pci::TREE_INDEX as u64, &word.to_le_bytes());
        packed.extend(machine.read_config(at + pci::TREE_WORD as u64).to_le_bytes());
    }
    let mut xz = Command::new("xz").arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    xz.stdin.take().unwrap().write_all(&packed).unwrap();
    Some(xz.wait_with_output().unwrap().stdout)
}

#[test]
fn a_machine_finds_the_card_by_its_tree() {
    let served = Served::new("queues=4", 2);
    let mut machine = Machine::bare(&served, 1);
    assert_eq!(machine.read_config(0), 0xc000_18ec);
    assert_eq!(machine.client.region(0).unwrap().size, 1 << 26);
    assert_eq!(machine.client.region(2).unwrap().sparse_areas[0].size, 4 * 4096);
    assert_eq!(machine.client.region(3).unwrap().size, 0);
    let info = machine.client.get_irq_info(2).unwrap();
    assert_eq!((info.index, info.count), (2, 4));
    assert_eq!(machine.client.get_irq_info(0).unwrap().count, 0);
    if let Some(blob) = tree(&mut machine) {
        let tree = Tree::parse(&blob).unwrap();
        let rx: Vec<_> = tree.compatible("netcope,dma_ctrl_ndp_rx").map(|node| node.reg().unwrap().0).collect();
        assert_eq!(rx, [0x0100_0000, 0x0100_0080], "numbered from 0");
    }
}

#[test]
fn registers_are_the_cards_where_they_are_the_functions() {
    let served = Served::new("queues=2,port=null,port=null", 2);
    let (mut one, mut two) = (Machine::bare(&served, 0), Machine::bare(&served, 1));
    one.write32(0x1c, 0xdead_beef);
    assert_eq!((one.read32(0x1c), two.read32(0x1c)), (0xdead_beef, 0), "each has a test space");
    // The MAC of port 1 is port 0 of the second function.
    let mac = Component::RxMac(0).base().unwrap();
    assert_eq!((one.read32(mac + 0x20), two.read32(mac + 0x20)), (1, 1));
    two.write32(mac + 0x20, 0);
    assert_eq!((one.read32(mac + 0x20), two.read32(mac + 0x20)), (1, 0));
    let desc_base = medusa::DESC_BASE.at(dma_base(QueueId::rx(0)).unwrap());
    one.write64(desc_base, 0x1000);
    two.write64(desc_base, 0x2000);
    assert_eq!((one.read64(desc_base), two.read64(desc_base)), (0x1000, 0x2000));
    let beyond = medusa::DESC_BASE.at(dma_base(QueueId::rx(1)).unwrap());
    one.write64(beyond, 0x3000);
    assert_eq!((one.read64(beyond), two.read64(desc_base)), (0, 0x2000), "there is no second queue");
    // The clock is for asking.
    let clock = |register: u32| Component::Tsu.base().unwrap() + register;
    one.write32(clock(0x0c), tsu::COMMAND_READ_TIME);
    assert_ne!(one.read64(clock(0x04)), 0, "seconds and the larger part of their fraction");
    let refused = served.counters(0).refused_registers;
    one.write32(clock(0x0c), tsu::COMMAND_WRITE_TIME);
    assert_eq!(served.counters(0).refused_registers, refused + 1);
    // What one had the next one does not see.
    drop(one);
    let mut next = Machine::bare(&served, 0);
    assert_eq!((next.read64(desc_base), next.read32(0x1c)), (0, 0));
}

#[test]
fn a_port_that_two_functions_have_is_nobodys_to_change() {
    let served = Served::new("queues=2", 2);
    let mut machine = Machine::bare(&served, 0);
    let mac = Component::RxMac(0).base().unwrap();
    machine.write32(mac + 0x20, 0);
    assert_eq!(machine.read32(mac + 0x20), 1);
    assert_eq!(served.counters(0).refused_registers, 1);
}
