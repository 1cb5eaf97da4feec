//! What a machine finds: configuration space, BARs, the device tree, registers that are its own and that are not.

use super::driver::{exchange, pair};
use super::machine::{Machine, Served, wait_until};
use millrace_abi::pci;
use millrace_abi::queue::QueueId;
use millrace_abi::register::map::{Component, dma_base};
use millrace_abi::register::{medusa, tsu};
use millrace_abi::tree::Tree;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

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

/// What a machine asks of the clock goes by registers of its own: those of the card are arguments of whoever sets it.
#[test]
fn a_machine_that_asks_for_the_time_is_in_the_way_of_nobody_who_sets_it() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::bare(&served, 0);
    let clock = |register: u32| Component::Tsu.base().unwrap() + register;
    let (card, stop) = (served.driver.card(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                machine.write32(clock(0x0c), tsu::COMMAND_READ_TIME);
            }
        });
        let asked = served.counters(0).region_accesses;
        let mut wrong = 0;
        for number in 1..=2000_u32 {
            // An increment, low and high, set and read back.
            card.write(clock(0), &number.to_le_bytes());
            card.write(clock(4), &7_u32.to_le_bytes());
            card.write(clock(0x0c), &tsu::COMMAND_WRITE_INCREMENT.to_le_bytes());
            card.write(clock(0x0c), &tsu::COMMAND_READ_INCREMENT.to_le_bytes());
            let mut words = [0; 8];
            card.read(clock(0), &mut words);
            wrong += u32::from(words != (7_u64 << 32 | u64::from(number)).to_le_bytes());
        }
        served.wait_for(0, "a machine that asks", |counters| counters.region_accesses > asked + 100);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(wrong, 0);
    });
    assert_ne!(machine.read64(clock(4)), 0, "it has its answer");
    assert_eq!(served.counters(0).refused_registers, 0);
}

#[test]
fn nothing_of_a_queue_is_left_for_the_next_one() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 50);
    let pointers = |queue| {
        let mut bytes = [0; 8];
        served.driver.card().read(medusa::SDP.at(dma_base(queue).unwrap()), &mut bytes);
        u64::from_le_bytes(bytes)
    };
    assert_ne!((pointers(QueueId::tx(0)), pointers(QueueId::rx(0))), (0, 0));
    machine.client.reset().unwrap();
    assert_eq!((pointers(QueueId::tx(0)), pointers(QueueId::rx(0))), (0, 0));
    // One that was never started.
    machine.write64(medusa::SDP.at(dma_base(QueueId::tx(0)).unwrap()), 0x5_0000_0009);
    assert_ne!(pointers(QueueId::tx(0)), 0);
    drop(machine);
    wait_until("cleared registers", || pointers(QueueId::tx(0)) == 0);
}

#[test]
fn a_machine_reads_no_addresses_of_others() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::bare(&served, 0);
    let program = millrace_driver::Client::embedded(served.driver.clone()).unwrap();
    program.lock("/firmware/mi_bus0/dma_ctrl_ndp_rx0", 1).unwrap();
    let base = dma_base(QueueId::rx(0)).unwrap();
    program.write(medusa::DESC_BASE.at(base), &0x1234_5000_u64.to_le_bytes()).unwrap();
    let mut words = [0; 8];
    served.driver.card().read(medusa::DESC_BASE.at(base), &mut words);
    assert_eq!(u64::from_le_bytes(words), 0x1234_5000);
    assert_eq!(machine.read64(medusa::DESC_BASE.at(base)), 0);
    assert_eq!(machine.read32(medusa::DESC_BASE.at(base)), 0);
    machine.client.region_read(0, u64::from(base), &mut [0; 128]).unwrap();
    let mut all = [0xff; 128];
    machine.client.region_read(0, u64::from(base), &mut all).unwrap();
    assert!(!all.windows(4).any(|word| word == 0x1234_5000_u32.to_le_bytes()));
}

#[test]
fn what_a_program_of_the_host_has_left_in_registers_is_not_there_for_a_machine() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::bare(&served, 0);
    let program = millrace_driver::Client::embedded(served.driver.clone()).unwrap();
    program.lock("/firmware/mi_bus0/dma_ctrl_ndp_rx0", 1).unwrap();
    let base = dma_base(QueueId::rx(0)).unwrap();
    let [theirs, ours] = [medusa::DESC_BASE, medusa::UPDATE_BASE].map(|register| register.at(base));
    program.write(theirs, &0x1234_5000_u64.to_le_bytes()).unwrap();
    drop(program);
    wait_until("a queue that is the machine's", || {
        machine.write64(ours, 0x8000);
        machine.read64(ours) == 0x8000
    });
    assert_eq!(machine.read64(theirs), 0);
}

#[test]
fn what_happens_to_functions_is_among_the_counters_of_the_card() {
    let served = Served::new("queues=2", 2);
    let _machine = Machine::new(&served, 1);
    let functions = served.driver.card().stats().functions;
    assert_eq!(
        functions.iter().map(|function| Path::new(&function.path)).collect::<Vec<_>>(),
        [served.path(0), served.path(1)]
    );
    let count = |function: usize, what: &str| {
        functions[function].events.iter().find(|event| event.reason == what).map(|event| event.count)
    };
    assert_eq!(
        (count(0, "connections"), count(1, "connections"), count(1, "turned-away")),
        (Some(0), Some(1), Some(0))
    );
}
