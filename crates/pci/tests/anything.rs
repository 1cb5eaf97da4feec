//! A machine that writes anything anywhere: in its registers, its doorbell pages, its interrupt table, its rings and descriptors. Its neighbour on
//! the same card and the same worker does not notice, and a reset makes a sound function of it again.

use super::driver::{exchange, pair};
use super::machine::{CONFIGURATION, MEMORY, MEMORY_LEN, Machine, Served};
use millrace_abi::pci;
use millrace_abi::queue::QueueId;
use millrace_abi::register::map::dma_base;
use millrace_dma::Ordering;
use std::time::{Duration, Instant};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Often one that means something: an address in memory or close to its end, a small number, all ones.
    fn value(&mut self) -> u64 {
        match self.below(6) {
            0 => MEMORY + self.below(MEMORY_LEN as u64 + 4096) / 8 * 8,
            1 => MEMORY + MEMORY_LEN as u64 - self.below(64),
            2 => self.below(256),
            3 => (1 << self.below(64)) - 1,
            4 => 2 << 62 | self.below(1 << 12) << 32 | self.below(1 << 22),
            _ => self.next(),
        }
    }
}

/// One write, of whatever kind.
fn write_something(machine: &mut Machine, random: &mut Random) {
    let value = random.value().to_le_bytes();
    let len = [1, 2, 4, 8][random.below(4) as usize];
    match random.below(8) {
        0..=2 => {
            let queues = [QueueId::rx(0), QueueId::tx(0), QueueId::rx(1), QueueId::tx(7)];
            let base = dma_base(queues[random.below(4) as usize]).unwrap();
            let at = u64::from(base) + random.below(0x80);
            machine.client.region_write(pci::REGISTERS_BAR, at, &value[..len]).unwrap();
        }
        // START, which is what makes the rest count.
        3 => {
            let queue = if random.below(2) == 0 { QueueId::rx(0) } else { QueueId::tx(0) };
            machine.write32(dma_base(queue).unwrap(), (random.below(4) > 0).into());
        }
        4 => {
            let at = random.below(1 << 26) & !7;
            machine.client.region_write(pci::REGISTERS_BAR, at, &value).unwrap();
        }
        5 => {
            let words = machine.doorbells.len() / 8;
            let word = machine.doorbells.window().word64(random.below(words as u64) as usize * 8).unwrap();
            word.store(u64::from_le_bytes(value), Ordering::Relaxed);
        }
        6 => {
            // Not the PCI Express capability, which resets the function.
            let at = 0x80 + random.below(0x200);
            machine.client.region_write(CONFIGURATION, at, &value[..len.min(4)]).unwrap();
            machine.client.region_write(pci::MSIX_BAR, random.below(64), &value[..len]).unwrap();
        }
        _ => {
            for _ in 0..64 {
                let at = random.below(MEMORY_LEN as u64 / 8) * 8;
                machine.word64(at).store(random.value(), Ordering::Relaxed);
            }
        }
    }
}

#[test]
fn a_machine_that_writes_anything_anywhere_spoils_nobody_elses_queues() {
    let served = Served::new("queues=2,workers=1", 2);
    let (mut bad, mut good) = (Machine::new(&served, 0), Machine::new(&served, 1));
    let (mut tx, mut rx) = pair(&mut good, 0);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let (begin, mut rounds) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(3) {
        // Sound registers to begin with, so that queues do start; then anything.
        for index in 0..2u64 {
            let base = dma_base(if index == 0 { QueueId::rx(0) } else { QueueId::tx(0) }).unwrap();
            for (at, value) in [(0x40, 0), (0x48, 0x1000), (0x50, 0x2000)] {
                bad.write64(base + at, MEMORY + index * 0x10_0000 + value);
            }
            bad.write64(base + 0x58, 0x3f_0000_003f);
            bad.write32(base, 1);
        }
        for _ in 0..200 {
            write_something(&mut bad, &mut random);
        }
        exchange(&mut good, &mut tx, &mut rx, 50);
        rounds += 1;
        if rounds % 4 == 0 {
            bad.client.reset().unwrap();
            bad.set_master(true);
        }
    }
    let counters = served.counters(0);
    assert!(rounds > 2 && counters.region_accesses > 400, "{rounds} rounds: {counters}");
    assert!(counters.stops_by_machine > 0, "queues did run: {counters}");
    bad.client.reset().unwrap();
    bad.set_master(true);
    let (mut bad_tx, mut bad_rx) = pair(&mut bad, 0);
    exchange(&mut bad, &mut bad_tx, &mut bad_rx, 200);
    exchange(&mut good, &mut tx, &mut rx, 200);
}
