//! A virtio driver behind a vhost-user socket, as far as the tests need one.

use millrace_dma::{ForeignRegion, Iova, Ordering, fence};
use millrace_ring::virtio::{Descriptor, NetHeader, Rings, descriptor_flag, feature, needs_event};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use vhost::VhostBackend;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures as Protocol};
use vhost::{VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const SIZE: u16 = 256;
/// Rings of one queue, and then buffers of 2 KiB for each of its descriptors.
const QUEUE_LEN: usize = (16 << 10) + 2048 * SIZE as usize;
const MEMORY_LEN: usize = 8 * QUEUE_LEN;
/// Addresses of the driver's memory in the rings, and in the driver's process.
const GUEST: u64 = 0x4000_0000;
const USER: u64 = 0x7f00_0000_0000;

struct Queue {
    rings: Rings,
    /// Where its memory begins.
    at: usize,
    posted: u16,
    taken: u16,
    kick: EventFd,
    call: EventFd,
}

pub struct Driver {
    frontend: Frontend,
    file: OwnedFd,
    memory: ForeignRegion,
    queues: Vec<Queue>,
}

impl Driver {
    fn new(frontend: Frontend, pairs: usize) -> Self {
        let file = memfd_create("driver", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, MEMORY_LEN as u64).unwrap();
        let memory = ForeignRegion::map(&file, 0, MEMORY_LEN).unwrap();
        let queue = |number: usize| {
            let at = number * QUEUE_LEN;
            let part = |offset| memory.window().part(at + offset, 4096 << usize::from(offset == 8192)).unwrap();
            let rings = Rings::over(&part(0), &part(4096), &part(8192), SIZE).unwrap();
            let event = || EventFd::new(EFD_NONBLOCK).unwrap();
            Queue { rings, at, posted: 0, taken: 0, kick: event(), call: event() }
        };
        let queues = (0..2 * pairs).map(queue).collect();
        Self { frontend, file, memory, queues }
    }

    /// Connected, every queue running.
    pub fn ready(path: &Path, pairs: usize) -> Self {
        Self::set_up(Frontend::connect(path, 8).unwrap(), pairs)
    }

    pub fn over(stream: UnixStream, pairs: usize) -> Self {
        Self::set_up(Frontend::from_stream(stream, 8), pairs)
    }

    fn set_up(frontend: Frontend, pairs: usize) -> Self {
        let mut driver = Self::new(frontend, pairs);
        driver.negotiate(u64::MAX);
        driver
    }

    /// Takes so many steps, and dies.
    pub fn half(path: &Path, pairs: usize, steps: u64) {
        let mut driver = Self::new(Frontend::connect(path, 8).unwrap(), pairs);
        driver.negotiate(steps);
    }

    fn negotiate(&mut self, steps: u64) {
        let mut left = steps;
        let mut step = |run: &mut dyn FnMut(&mut Self), driver: &mut Self| {
            if left > 0 {
                run(driver);
            }
            left = left.saturating_sub(1);
        };
        step(&mut |driver| driver.frontend.set_owner().unwrap(), self);
        let wanted = feature::VERSION_1
            | feature::MRG_RXBUF
            | feature::RING_EVENT_IDX
            | feature::RING_INDIRECT_DESC
            | feature::VHOST_USER_PROTOCOL;
        step(&mut |driver| assert_eq!(driver.frontend.get_features().unwrap() & wanted, wanted), self);
        step(
            &mut |driver| {
                let offered = driver.frontend.get_protocol_features().unwrap();
                let wanted = Protocol::MQ | Protocol::REPLY_ACK | Protocol::CONFIGURE_MEM_SLOTS;
                assert!(offered.contains(wanted));
                driver.frontend.set_protocol_features(wanted).unwrap();
                driver.frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
            },
            self,
        );
        step(&mut |driver| driver.frontend.set_features(wanted).unwrap(), self);
        step(&mut Self::describe_memory, self);
        for number in 0..self.queues.len() {
            step(&mut |driver| driver.frontend.set_vring_call(number, &driver.queues[number].call).unwrap(), self);
            step(&mut |driver| driver.describe_ring(number), self);
            step(&mut |driver| driver.start(number), self);
            step(&mut |driver| driver.frontend.set_vring_enable(number, true).unwrap(), self);
        }
    }

    fn region(&self, guest_phys_addr: u64) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr,
            memory_size: MEMORY_LEN as u64,
            userspace_addr: USER + (guest_phys_addr - GUEST),
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    pub fn describe_memory(&mut self) {
        let region = self.region(GUEST);
        self.frontend.set_mem_table(&[region]).unwrap();
    }

    /// Adds more memory, or takes it away again.
    pub fn change_memory(&mut self, there: bool) {
        let region = self.region(GUEST + MEMORY_LEN as u64);
        if there {
            self.frontend.add_mem_region(&region).unwrap();
        } else {
            self.frontend.remove_mem_region(&region).unwrap();
        }
    }

    fn describe_ring(&mut self, number: usize) {
        let at = USER + self.queues[number].at as u64;
        self.frontend.set_vring_num(number, SIZE).unwrap();
        self.frontend.set_vring_base(number, 0).unwrap();
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: at,
            used_ring_addr: at + 8192,
            avail_ring_addr: at + 4096,
            log_addr: None,
        };
        self.frontend.set_vring_addr(number, &config).unwrap();
    }

    pub fn start(&mut self, number: usize) {
        self.frontend.set_vring_kick(number, &self.queues[number].kick).unwrap();
    }

    /// Stops a queue and returns how far the device had come.
    pub fn stop(&mut self, number: usize) -> u32 {
        self.frontend.get_vring_base(number).unwrap()
    }

    pub fn truncate(&self) {
        ftruncate(&self.file, 0).unwrap();
    }

    fn buffer(&self, number: usize, index: u16) -> usize {
        self.queues[number].at + (16 << 10) + 2048 * usize::from(index)
    }

    /// Makes chains available, and says whether the device wants to hear of it.
    fn publish(&mut self, number: usize, count: u16) -> bool {
        let queue = &mut self.queues[number];
        let old = queue.posted;
        queue.posted = old.wrapping_add(count);
        // Release pairs with the device's Acquire.
        queue.rings.avail_index.store(queue.posted, Ordering::Release);
        fence(Ordering::SeqCst);
        let wanted = needs_event(queue.rings.avail_event.load(Ordering::Relaxed), queue.posted, old);
        if wanted {
            queue.kick.write(1).unwrap();
        }
        wanted
    }

    fn describe(&self, number: usize, ahead: u16, address: u64, len: usize, flags: u16) {
        let queue = &self.queues[number];
        let at = queue.posted.wrapping_add(ahead);
        let index = at % SIZE;
        queue.rings.table.store(index, Descriptor { address: Iova::new(address), len: len as u32, flags, next: 0 });
        queue.rings.avail.store(u32::from(at), index);
    }

    /// Sends frames; `true` if the device was kicked.
    pub fn send(&mut self, pair: usize, frames: &[Vec<u8>]) -> bool {
        let number = 2 * pair + 1;
        for (ahead, frame) in frames.iter().enumerate() {
            let ahead = ahead as u16;
            let at = self.buffer(number, self.queues[number].posted.wrapping_add(ahead) % SIZE);
            let room = self.memory.window().span_mut(at, NetHeader::LEN + frame.len()).unwrap();
            room.split_at(NetHeader::LEN).1.write_from(frame);
            self.describe(number, ahead, GUEST + at as u64, NetHeader::LEN + frame.len(), 0);
        }
        self.publish(number, frames.len() as u16)
    }

    /// Sends what is not there.
    pub fn post_wild(&mut self, pair: usize) {
        self.describe(2 * pair + 1, 0, GUEST - 4096, 100, 0);
        self.publish(2 * pair + 1, 1);
    }

    /// How many frames have been sent since this was asked last.
    pub fn take_sent(&mut self, pair: usize) -> u16 {
        let queue = &mut self.queues[2 * pair + 1];
        let used = queue.rings.used_index.load(Ordering::Acquire);
        used.wrapping_sub(std::mem::replace(&mut queue.taken, used))
    }

    /// Posts receive buffers of so many bytes.
    pub fn post(&mut self, pair: usize, count: u16, len: usize) {
        let number = 2 * pair;
        for ahead in 0..count {
            let at = self.buffer(number, self.queues[number].posted.wrapping_add(ahead) % SIZE);
            self.describe(number, ahead, GUEST + at as u64, len, descriptor_flag::WRITE);
        }
        self.publish(number, count);
    }

    /// Frames that have come, each in one buffer.
    pub fn take_received(&mut self, pair: usize) -> Vec<Vec<u8>> {
        let number = 2 * pair;
        let used = self.queues[number].rings.used_index.load(Ordering::Acquire);
        let mut frames = Vec::new();
        while self.queues[number].taken != used {
            let queue = &mut self.queues[number];
            let entry = queue.rings.used.load(queue.taken);
            queue.taken = queue.taken.wrapping_add(1);
            let at = self.buffer(number, entry.head as u16);
            let mut bytes = vec![0; entry.len as usize];
            self.memory.window().span(at, bytes.len()).unwrap().read_into(&mut bytes);
            assert_eq!(bytes[..NetHeader::LEN], NetHeader::of_buffers(1).encode());
            frames.push(bytes.split_off(NetHeader::LEN));
        }
        frames
    }

    /// Asks for an interrupt when the next frame has been sent, or for none.
    pub fn want_interrupts(&mut self, pair: usize, wanted: bool) {
        let rings = &self.queues[2 * pair + 1].rings;
        let used = rings.used_index.load(Ordering::Relaxed);
        rings.used_event.store(if wanted { used } else { used.wrapping_sub(1) }, Ordering::Relaxed);
    }

    /// How many interrupts have come.
    pub fn interrupts(&self, pair: usize) -> u64 {
        self.queues[2 * pair + 1].call.read().unwrap_or(0)
    }
}
