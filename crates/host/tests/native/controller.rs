//! What a native driver has to begin with: memory, and the registers of a DMA controller with its lock.

use crate::common::PATIENCE;
use millrace::{Device, Pages, QueueId, Region};
use millrace_abi::register::Offset;
use millrace_abi::register::map::dma_base;
use millrace_abi::register::medusa as m;
use millrace_abi::stats::QueueStats;
use millrace_abi::tree::Tree;
use millrace_dma::{Ordering, Word64};
use std::time::Instant;

/// Memory of the program, and where it lies.
pub struct Memory {
    pub region: Region,
    pub at: u64,
}

impl Memory {
    pub fn of(region: Region) -> Self {
        let at = region.window().slice(0, 1).unwrap().as_ptr().expose_provenance() as u64;
        Self { region, at }
    }

    pub fn new(len: usize) -> Self {
        Self::of(Region::allocate(len, Pages::Ordinary).unwrap())
    }

    pub fn word64(&self, offset: u64) -> Word64 {
        self.region.window().word64(offset as usize).unwrap()
    }

    pub fn load32(&self, offset: u64) -> u32 {
        self.region.window().word32(offset as usize).unwrap().load(Ordering::Relaxed)
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        assert_eq!(self.region.window().span_mut(offset as usize, bytes.len()).unwrap().write_from(bytes), bytes.len());
    }

    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(self.region.window().span(offset as usize, len).unwrap().read_into(&mut bytes), len);
        bytes
    }
}

/// Why a queue did not start, as the driver of §3.2.2 sees it.
#[derive(Debug, PartialEq)]
pub enum NotStarted {
    Exists,
    Already,
    TooMany,
    Refused,
}

/// Registers of one DMA controller, and its lock.
pub struct Controller<'d> {
    pub device: &'d Device,
    pub id: QueueId,
    pub path: String,
}

impl<'d> Controller<'d> {
    pub fn new(device: &'d Device, id: QueueId) -> Self {
        let blob = device.device_tree().unwrap();
        let queues = Tree::parse(&blob).unwrap().queues(id.direction).unwrap();
        Self { device, id, path: queues[id.index as usize].controller.clone() }
    }

    pub fn read32(&self, register: Offset) -> u32 {
        self.device.read32(register.at(dma_base(self.id).unwrap())).unwrap()
    }

    pub fn read64(&self, register: Offset) -> u64 {
        self.device.read64(register.at(dma_base(self.id).unwrap())).unwrap()
    }

    pub fn write32(&self, register: Offset, value: u32) {
        self.device.write32(register.at(dma_base(self.id).unwrap()), value).unwrap();
    }

    pub fn write64(&self, register: Offset, value: u64) {
        self.device.write64(register.at(dma_base(self.id).unwrap()), value).unwrap();
    }

    pub fn is_running(&self) -> bool {
        self.read32(m::STATUS) & m::STATUS_RUNNING != 0
    }

    pub fn lock(&self) -> Result<(), NotStarted> {
        if self.device.try_lock(&self.path, 1).unwrap() { Ok(()) } else { Err(NotStarted::Exists) }
    }

    pub fn unlock(&self) {
        self.device.unlock(&self.path, 1).unwrap();
    }

    /// The end of every stop: STATUS, 101 times without delay.
    pub fn has_stopped(&self) -> bool {
        (0..=100).any(|_| !self.is_running())
    }

    pub fn stats(&self) -> QueueStats {
        stats_of(self.device, self.id)
    }
}

pub fn stats_of(device: &Device, id: QueueId) -> QueueStats {
    device.stats().unwrap().queues.into_iter().find(|queue| queue.queue == id).unwrap()
}

pub fn device(options: &str) -> Device {
    Device::open(&format!("embedded:spin=20,{options}")).unwrap()
}

/// Waits until a worker has published what it counted, which it does after it has moved the pointers.
pub fn wait_for_count(device: &Device, id: QueueId, passed: u64) {
    let begin = Instant::now();
    while stats_of(device, id).passed != passed {
        assert!(begin.elapsed() < PATIENCE, "{:?}", stats_of(device, id));
    }
}
