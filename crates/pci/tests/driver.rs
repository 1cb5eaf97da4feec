//! A driver of Medusa queues in a machine: registers by message, doorbells by stores, rings in the machine's memory.

use super::machine::{MEMORY, Machine, PATIENCE};
use millrace_abi::control::{CARD_SLEEPS_AT, DOORBELL_AT, QueueState, SOFTWARE_SLEEPS_AT, STATE_AT};
use millrace_abi::pci;
use millrace_abi::queue::{Direction, QueueId};
use millrace_abi::register::map::dma_base;
use millrace_abi::register::{Offset, medusa as m};
use millrace_dma::{Iova, Ordering, fence};
use millrace_ring::medusa::{Buffer, Descriptor, RxHeader};
use std::time::Instant;

pub const ENTRIES: u32 = 64;
const HEADERS: u64 = 0x1000;
pub const UPDATE: u64 = 0x2000;
const BUFFERS: u64 = 0x4000;
pub const BUFFER: u64 = 2048;
/// Memory that a queue takes.
pub const ROOM: u64 = BUFFERS + ENTRIES as u64 * BUFFER;

/// A queue, as the function counts it, with its memory from `at` on.
pub struct Queue {
    pub id: QueueId,
    pub at: u64,
    sdp: u32,
    shp: u32,
    upper: Option<u64>,
    posted: u64,
    taken: u64,
}

impl Queue {
    /// Starts it by its registers; one that receives has buffers.
    pub fn start(machine: &mut Machine, id: QueueId, at: u64) -> Option<Self> {
        let mut queue = Self::start_empty(machine, id, at)?;
        if id.direction == Direction::Rx {
            queue.post_all(machine);
        }
        Some(queue)
    }

    /// The same without buffers.
    pub fn start_empty(machine: &mut Machine, id: QueueId, at: u64) -> Option<Self> {
        let queue = Self { id, at, sdp: 0, shp: 0, upper: None, posted: 0, taken: 0 };
        machine.word64(at + UPDATE).store(0, Ordering::Relaxed);
        machine.write64(queue.register(m::DESC_BASE), MEMORY + at);
        machine.write64(queue.register(m::HDR_BASE), MEMORY + at + HEADERS);
        machine.write64(queue.register(m::UPDATE_BASE), MEMORY + at + UPDATE);
        machine.write32(queue.register(m::MDP), ENTRIES - 1);
        let headers = if id.direction == Direction::Rx { ENTRIES - 1 } else { u32::MAX };
        machine.write32(queue.register(m::MHP), headers);
        machine.write64(queue.register(m::SDP), 0);
        machine.write32(queue.register(m::CONTROL), m::CONTROL_START);
        queue.is_running(machine).then_some(queue)
    }

    /// As its page says.
    pub fn state(&self, machine: &Machine) -> Option<QueueState> {
        let word = machine.doorbells.window().word32(self.page() + STATE_AT).unwrap();
        QueueState::from_word(word.load(Ordering::Relaxed))
    }

    pub fn register(&self, register: Offset) -> u32 {
        register.at(dma_base(self.id).unwrap())
    }

    pub fn is_running(&self, machine: &mut Machine) -> bool {
        machine.read32(self.register(m::STATUS)) & m::STATUS_RUNNING != 0
    }

    pub fn stop(&self, machine: &mut Machine) {
        machine.write32(self.register(m::CONTROL), m::CONTROL_STOP);
        let begin = Instant::now();
        while self.is_running(machine) {
            assert!(begin.elapsed() < PATIENCE);
        }
    }

    fn page(&self) -> usize {
        pci::doorbell(self.id) as usize
    }

    /// Moves the pointers by a store. `true`: the worker sleeps, and a register has to wake it.
    fn store_doorbell(&self, machine: &Machine) -> bool {
        let doorbell = machine.doorbells.window().word64(self.page() + DOORBELL_AT).unwrap();
        doorbell.store(self.pointer(), Ordering::Release);
        fence(Ordering::SeqCst);
        machine.doorbells.window().word32(self.page() + CARD_SLEEPS_AT).unwrap().load(Ordering::Relaxed) != 0
    }

    /// Moves the pointers; returns whether that took a message.
    pub fn ring(&self, machine: &mut Machine) -> bool {
        let sleeps = self.store_doorbell(machine);
        if sleeps {
            machine.write64(self.register(m::SDP), self.pointer());
        }
        sleeps
    }

    /// Says that this driver sleeps. `true`: nothing has come meanwhile.
    pub fn sleep(&self, machine: &Machine) -> bool {
        machine.doorbells.window().word32(self.page() + SOFTWARE_SLEEPS_AT).unwrap().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        (self.pointers(machine) >> 32) as u32 == self.shp
    }

    /// SDP and SHP as they are to be rung.
    pub fn pointer(&self) -> u64 {
        u64::from(self.sdp) | u64::from(self.shp) << 32
    }

    pub fn pointers(&self, machine: &Machine) -> u64 {
        machine.word64(self.at + UPDATE).load(Ordering::Acquire)
    }

    fn free(&self, machine: &Machine) -> u32 {
        (self.pointers(machine) as u32).wrapping_sub(self.sdp).wrapping_sub(1) & (ENTRIES - 1)
    }

    fn put(&mut self, machine: &Machine, descriptor: Descriptor) {
        machine.word64(self.at + u64::from(self.sdp) * 8).store(descriptor.encode(), Ordering::Relaxed);
        self.sdp = (self.sdp + 1) & (ENTRIES - 1);
    }

    /// Posts a buffer anywhere.
    pub fn post_at(&mut self, machine: &Machine, address: u64, len: u16) {
        if self.upper.replace(address >> 30) != Some(address >> 30) {
            self.put(machine, Descriptor::Upper(address >> 30));
        }
        self.put(machine, Descriptor::Buffer(Buffer::whole(Iova::new(address), len)));
    }

    fn slot(&self, number: u64) -> u64 {
        self.at + BUFFERS + number % u64::from(ENTRIES) * BUFFER
    }

    fn post_all(&mut self, machine: &mut Machine) {
        while self.free(machine) >= 2 {
            self.post_at(machine, MEMORY + self.slot(self.posted), BUFFER as u16);
            self.posted += 1;
        }
        self.ring(machine);
    }

    /// Puts a frame into the ring if there is room.
    pub fn send(&mut self, machine: &Machine, frame: &[u8]) -> bool {
        if self.free(machine) < 2 {
            return false;
        }
        machine.put(self.slot(self.posted), frame);
        self.post_at(machine, MEMORY + self.slot(self.posted), frame.len() as u16);
        self.posted += 1;
        true
    }

    /// Takes the next frame, if it is there, and gives its buffer back.
    pub fn take(&mut self, machine: &mut Machine) -> Option<Vec<u8>> {
        if (self.pointers(machine) >> 32) as u32 == self.shp {
            return None;
        }
        let header = RxHeader::decode(machine.load32(self.at + HEADERS + u64::from(self.shp) * 4));
        let frame = machine.get(self.slot(self.taken), header.len.into());
        (self.shp, self.taken) = ((self.shp + 1) & (ENTRIES - 1), self.taken + 1);
        self.post_all(machine);
        Some(frame)
    }
}

/// A frame that shows its number, and that it is whole.
pub fn frame(number: u64) -> Vec<u8> {
    let len = 60 + (number * 37 % 1400) as usize;
    let mut frame = vec![number as u8; len];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..22].copy_from_slice(&number.to_le_bytes());
    frame
}

/// Sends frames `0..count` through a pair of queues; returns how many doorbells took a message.
pub fn exchange(machine: &mut Machine, tx: &mut Queue, rx: &mut Queue, count: u64) -> u64 {
    let (mut sent, mut received, mut messages, begin) = (0, 0, 0, Instant::now());
    while received < count {
        while sent < count && sent - received < 32 && tx.send(machine, &frame(sent)) {
            sent += 1;
        }
        messages += u64::from(tx.ring(machine));
        while let Some(got) = rx.take(machine) {
            assert_eq!(got, frame(received));
            received += 1;
        }
        assert!(begin.elapsed() < PATIENCE, "{received} of {sent} frames came");
    }
    messages
}

/// A pair of queues of the same number, at the beginning of memory.
pub fn pair(machine: &mut Machine, index: u32) -> (Queue, Queue) {
    let at = u64::from(index) * 2 * ROOM;
    let rx = Queue::start(machine, QueueId::rx(index), at).unwrap();
    let tx = Queue::start(machine, QueueId::tx(index), at + ROOM).unwrap();
    (tx, rx)
}
