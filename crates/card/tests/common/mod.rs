//! A card driven through its registers, without a driver.

use millrace_abi::control::{PAGE_SIZE, QueueState};
use millrace_abi::name::{CardOptions, DeviceName};
use millrace_abi::queue::{Direction, Engine, QueueId};
use millrace_abi::register::map::dma_base;
use millrace_abi::register::{Offset, medusa as m, sze as s};
use millrace_card::{Attachment, Card, StartError};
use millrace_dma::{Access, Domain, Iova, Region};
use millrace_ring::medusa::{HostRx, HostTx};
use millrace_ring::sze::descriptor_list;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(10);
pub const ENTRIES: u32 = 256;

pub fn card(options: &str) -> Card {
    let options: CardOptions = match format!("embedded:{options}").parse() {
        Ok(DeviceName::Embedded(options)) => options,
        other => panic!("{other:?}"),
    };
    Card::new(&options).unwrap()
}

pub fn read32(card: &Card, address: u32) -> u32 {
    let mut bytes = [0; 4];
    card.read(address, &mut bytes);
    u32::from_le_bytes(bytes)
}

pub fn read64(card: &Card, address: u32) -> u64 {
    let mut bytes = [0; 8];
    card.read(address, &mut bytes);
    u64::from_le_bytes(bytes)
}

pub fn wait_for(what: &str, mut until: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !until() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// One queue, its memory and its control page.
///
/// ```text
/// 0x00000 descriptors   0x10000 headers   0x20000 update   0x21000 read-only copy   0x40000 data
/// ```
pub struct Bench<'c> {
    pub card: &'c Card,
    pub id: QueueId,
    pub memory: Region,
    pub control: Region,
    pub at: Iova,
    pub read_only: Iova,
}

pub const HEADERS: u64 = 0x1_0000;
pub const UPDATE: u64 = 0x2_0000;
pub const DATA: u64 = 0x4_0000;
pub const LEN: usize = 0x10_0000;

impl<'c> Bench<'c> {
    pub fn new(card: &'c Card, id: QueueId) -> Self {
        let (memory, control) = (Region::heap(LEN), Region::heap(PAGE_SIZE));
        let domain = Arc::new(Domain::new());
        let at = domain.map(memory.window().clone(), Access::ReadWrite, None).unwrap();
        let read_only = domain.map(memory.window().clone(), Access::Read, None).unwrap();
        let attachment = Attachment {
            domain,
            control: control.window().clone(),
            reclaimer: None,
            openers: Vec::new(),
            buffers: None,
            is_noted: false,
        };
        card.attach(id, attachment).unwrap();
        Self { card, id, memory, control, at, read_only }
    }

    pub fn write32(&self, register: Offset, value: u32) {
        self.card.write(register.at(dma_base(self.id).unwrap()), &value.to_le_bytes());
    }

    pub fn write64(&self, register: Offset, value: u64) {
        self.card.write(register.at(dma_base(self.id).unwrap()), &value.to_le_bytes());
    }

    pub fn read32(&self, register: Offset) -> u32 {
        read32(self.card, register.at(dma_base(self.id).unwrap()))
    }

    pub fn read64(&self, register: Offset) -> u64 {
        read64(self.card, register.at(dma_base(self.id).unwrap()))
    }

    pub fn is_running(&self) -> bool {
        assert_eq!(m::STATUS, s::STATUS);
        self.read32(m::STATUS) & 1 != 0
    }

    /// What is right: every register that START latches.
    pub fn program(&self) {
        match self.card.engine(self.id).unwrap() {
            Engine::Medusa | Engine::Calypte | Engine::Dd => {
                self.write64(m::DESC_BASE, self.at.get());
                self.write64(m::HDR_BASE, self.at.get() + HEADERS);
                self.write64(m::UPDATE_BASE, self.at.get() + UPDATE);
                self.write32(m::MDP, ENTRIES - 1);
                self.write32(m::MHP, ENTRIES - 1);
                self.write64(m::SDP, 0);
            }
            Engine::Sze => {
                for (index, word) in descriptor_list(self.at.plus(DATA), 1 << 16, 0, self.at).into_iter().enumerate() {
                    let slot = self.memory.window().word64(index * 8).unwrap();
                    slot.store(word, millrace_dma::Ordering::Relaxed);
                }
                self.write64(s::DESC_BASE, self.at.get());
                self.write64(s::UPDATE_BASE, self.at.get() + UPDATE);
                self.write32(s::RING_MASK, (1 << 16) - 1);
                self.write32(s::SW_POINTER, 0);
            }
        }
    }

    pub fn start(&self) -> Option<StartError> {
        self.write32(m::CONTROL, m::CONTROL_START);
        self.card.refusal(self.id)
    }

    pub fn started(card: &'c Card, id: QueueId) -> Self {
        let bench = Self::new(card, id);
        bench.program();
        assert_eq!(bench.start(), None);
        assert!(bench.is_running());
        bench
    }

    pub fn tx(&self) -> HostTx {
        let window = self.memory.window();
        let doorbell = self.control.window().word64(millrace_abi::control::DOORBELL_AT).unwrap();
        let update = window.word64(UPDATE as usize).unwrap();
        HostTx::new(window.slots64(0, ENTRIES).unwrap(), doorbell, update).unwrap()
    }

    pub fn rx(&self) -> HostRx {
        let window = self.memory.window();
        let doorbell = self.control.window().word64(millrace_abi::control::DOORBELL_AT).unwrap();
        let update = window.word64(UPDATE as usize).unwrap();
        let headers = window.slots32(HEADERS as usize, ENTRIES).unwrap();
        HostRx::new(window.slots64(0, ENTRIES).unwrap(), headers, doorbell, update).unwrap()
    }

    pub fn frame(&self, number: u64) -> Iova {
        self.at.plus(DATA + number % 64 * 2048)
    }

    /// Takes everything off, as a driver does before the memory goes.
    pub fn end(self) {
        self.card.detach(self.id);
        assert_eq!(self.card.state(self.id), Some(QueueState::Stopped));
    }
}

/// Posts frames and rings through the register, which also wakes a worker that sleeps.
pub fn send(bench: &Bench<'_>, host: &mut HostTx, count: u64, len: u16) {
    (0..count).for_each(|number| assert!(host.post(bench.frame(number), len)));
    bench.write32(m::SDP, host.sdp());
}

/// Nothing is lost without a name, at rest: what queues and ports took is what they passed and dropped, and what one
/// hands over the other takes.
pub fn check_equations(card: &Card) {
    let stats = card.stats();
    let dropped = |drops: &[millrace_abi::stats::Count]| drops.iter().map(|drop| drop.count).sum::<u64>();
    for queue in &stats.queues {
        assert_eq!(queue.offered, queue.passed + dropped(&queue.drops), "{queue:?}");
    }
    for port in &stats.ports {
        let ports = stats.ports.len();
        let of_port = |direction| {
            let of_way: Vec<_> = stats.queues.iter().filter(|queue| queue.queue.direction == direction).collect();
            let count = of_way.len();
            let mine = |(index, _): &(usize, _)| index * ports / count == port.port as usize;
            of_way.into_iter().enumerate().filter(mine).map(|(_, queue)| queue).collect::<Vec<_>>()
        };
        let offered: u64 = of_port(Direction::Rx).iter().map(|queue| queue.offered).sum();
        assert_eq!(port.rx_frames, offered, "{stats:#?}");
        let passed: u64 = of_port(Direction::Tx).iter().map(|queue| queue.passed).sum();
        assert_eq!(port.tx_frames + dropped(&port.tx_drops), passed, "{stats:#?}");
    }
}

/// Writes a frame to where [`Bench::frame`] of that number is.
pub fn write_frame(bench: &Bench<'_>, number: u64, bytes: &[u8]) {
    let at = (DATA + number % 64 * 2048) as usize;
    bench.memory.window().span_mut(at, bytes.len()).unwrap().write_from(bytes);
}

/// The bytes of the frame of that number.
pub fn read_frame(bench: &Bench<'_>, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let at = (DATA + number % 64 * 2048) as usize;
    bench.memory.window().span(at, len).unwrap().read_into(&mut bytes);
    bytes
}
