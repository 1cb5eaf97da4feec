//! What a driver asks for over its socket, and what becomes of its queues: the handler for `vhost`.

use super::memory::{GuestMemory, MAX_REGIONS, MemoryError, Place};
use super::queue::{Pair, Queue};
use crate::peer::{only_event, plural};
use crate::{Bell, MAX_FRAME_LEN, MIN_FRAME_LEN};
use millrace_dma::Iotlb;
use millrace_packet::offload::Offloads;
use millrace_ring::FrameLimits;
use millrace_ring::virtio::{DeviceRx, DeviceTx, Rings, RingsError, feature};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures as Protocol,
};

const LIMITS: FrameLimits = FrameLimits { min: MIN_FRAME_LEN as u16, max: MAX_FRAME_LEN as u16 };

/// What every driver is offered. Not among them: IN_ORDER, although order is kept
/// (`docs/decisions/0019-vhost-user.md`).
const FEATURES: u64 = feature::VERSION_1
    | feature::MRG_RXBUF
    | feature::RING_INDIRECT_DESC
    | feature::RING_EVENT_IDX
    | feature::VHOST_USER_PROTOCOL
    | UNFINISHED
    | feature::GUEST_CSUM
    | GUEST_TSO4
    | GUEST_TSO6;

/// Features with which a driver sends frames on which something is left to do.
const UNFINISHED: u64 = feature::CSUM | feature::HOST_TSO4 | feature::HOST_TSO6 | feature::HOST_ECN;

/// What a driver has to take before it is given large frames of either kind. Without mergeable buffers each of its buffers
/// would have to be 64 KiB.
const GUEST_TSO4: u64 = feature::GUEST_TSO4 | feature::GUEST_ECN | feature::MRG_RXBUF | feature::GUEST_CSUM;
const GUEST_TSO6: u64 = feature::GUEST_TSO6 | feature::GUEST_ECN | feature::MRG_RXBUF | feature::GUEST_CSUM;

/// What a driver with these features takes unfinished.
fn offloads(features: u64) -> Offloads {
    let all = |needed| features & needed == needed;
    Offloads { checksum: all(feature::GUEST_CSUM), tcp4: all(GUEST_TSO4), tcp6: all(GUEST_TSO6), udp: false }
}

/// How long a queue that is to stop waits for its worker to take what the driver has sent before.
const LINGER: Duration = Duration::from_millis(20);

/// How the driver says that there is work.
#[derive(Clone, Default)]
enum Kick {
    /// The queue has not been started.
    #[default]
    None,
    /// It does not: the worker has to look.
    Polled,
    Event(Arc<File>),
}

/// One queue as the driver has described it so far.
#[derive(Clone, Default)]
struct Vring {
    size: u16,
    addresses: Option<Addresses>,
    base: u16,
    kick: Kick,
    call: Option<Arc<Bell>>,
    error: Option<Arc<Bell>>,
    enabled: bool,
    running: bool,
}

/// In the address space of the process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Addresses {
    table: u64,
    avail: u64,
    used: u64,
}

/// Why a queue cannot be started.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("the {0} lies outside the memory of the driver")]
    Outside(&'static str),
    #[error(transparent)]
    Rings(#[from] RingsError),
}

/// One connection's worth of state.
pub(super) struct Backend {
    pairs: Arc<[Arc<Pair>]>,
    vrings: Vec<Vring>,
    memory: Option<Arc<GuestMemory>>,
    features: u64,
    /// What the first words of `mode` are.
    role: &'static str,
    /// The user at the other end.
    uid: u32,
}

impl Backend {
    pub fn new(pairs: Arc<[Arc<Pair>]>, role: &'static str, uid: u32) -> Self {
        let vrings = vec![Vring::default(); pairs.len() * 2];
        let backend = Self { pairs, vrings, memory: None, features: 0, role, uid };
        backend.show();
        backend
    }

    /// The connection is gone.
    pub fn close(&mut self) {
        (0..self.vrings.len()).for_each(|index| self.forget(index));
        self.memory = None;
        show_waiting(&self.pairs, self.role);
    }

    /// Whether the driver has chosen its features, and the one that goes with more messages among them.
    pub fn is_negotiated(&self) -> bool {
        self.features & feature::VHOST_USER_PROTOCOL != 0
    }

    fn offered(&self) -> u64 {
        FEATURES | if self.pairs.len() > 1 { feature::MQ } else { 0 }
    }

    fn vring(&mut self, index: u32) -> Result<(usize, &mut Vring)> {
        let index = usize::try_from(index).map_err(|_| Error::InvalidParam)?;
        self.vrings.get_mut(index).map(|vring| (index, vring)).ok_or(Error::InvalidParam)
    }

    /// Everything that a driver needs to have said before a queue can run.
    fn may_run(&self, index: usize) -> bool {
        let vring = &self.vrings[index];
        let enabled = vring.enabled || self.features & feature::VHOST_USER_PROTOCOL == 0;
        let described = vring.size != 0 && vring.addresses.is_some() && self.memory.is_some() && self.features != 0;
        enabled && described && !matches!(vring.kick, Kick::None)
    }

    /// Starts or stops a queue if what the driver has said makes it so.
    fn refresh(&mut self, index: usize) -> Result<()> {
        let (may_run, runs) = (self.may_run(index), self.vrings[index].running);
        if may_run && !runs {
            self.start(index).map_err(|error| refuse(format_args!("queue {index}: {error}")))?;
        } else if !may_run && runs {
            self.stop(index);
        }
        self.show();
        Ok(())
    }

    /// Something that a running queue rests on has changed.
    fn restart(&mut self, index: usize) -> Result<()> {
        if self.vrings[index].running {
            self.stop(index);
        }
        self.refresh(index)
    }

    fn restart_all(&mut self) -> Result<()> {
        (0..self.vrings.len()).try_for_each(|index| self.restart(index))
    }

    fn start(&mut self, index: usize) -> std::result::Result<(), StartError> {
        let (Some(memory), Some(at)) = (self.memory.clone(), self.vrings[index].addresses) else { return Ok(()) };
        let size = self.vrings[index].size;
        let part = |name, at, len| memory.at_user(at, len).ok_or(StartError::Outside(name));
        let table = part("descriptor table", at.table, Rings::table_len(size))?;
        let avail = part("available ring", at.avail, Rings::avail_len(size))?;
        let used = part("used ring", at.used, Rings::used_len(size))?;
        let rings = Rings::over(&table, &avail, &used, size)?;
        let iotlb = Iotlb::new(memory.domain().clone());
        let vring = &mut self.vrings[index];
        let (pair, features) = (&self.pairs[index / 2], self.features);
        let (call, error) = (vring.call.clone(), vring.error.clone());
        let stopped = None;
        // The driver counts its receive queues first: 0 receives, 1 sends.
        if index.is_multiple_of(2) {
            let device = DeviceRx::new(rings, features, iotlb);
            pair.offloads.set(offloads(features));
            pair.rx.change(|slot| *slot = Some(Queue { device, call, error, memory, stopped }));
        } else {
            let device = DeviceTx::new(rings, features, features & UNFINISHED != 0, LIMITS, iotlb);
            pair.tx.change(|slot| *slot = Some(Queue { device, call, error, memory, stopped }));
        }
        vring.running = true;
        pair.wake.wake();
        Ok(())
    }

    /// What the driver has sent before it stops the queue, or goes, is taken by the worker, if that is not long in coming.
    fn linger(&self, index: usize) {
        let has_some = |queue: &mut Queue<DeviceTx>| queue.stopped.is_none() && queue.device.has_some();
        let until = Instant::now() + LINGER;
        self.pairs[index / 2].wake.wake();
        while self.pairs[index / 2].tx.change(|slot| slot.as_mut().is_some_and(has_some)) && Instant::now() < until {
            std::thread::sleep(LINGER / 200);
        }
    }

    /// Takes a queue from its worker. When this returns, nobody uses its memory.
    fn stop(&mut self, index: usize) {
        if !index.is_multiple_of(2) {
            self.linger(index);
        }
        let pair = &self.pairs[index / 2];
        let next = if index.is_multiple_of(2) {
            pair.rx.change(Option::take).map(|mut queue| {
                queue.device.publish();
                if queue.device.must_notify() {
                    queue.signal();
                }
                queue.device.next()
            })
        } else {
            pair.tx.change(Option::take).map(|queue| queue.device.next())
        };
        let vring = &mut self.vrings[index];
        vring.base = next.unwrap_or(vring.base);
        vring.running = false;
    }

    /// Stops a queue and forgets what was said of it.
    fn forget(&mut self, index: usize) {
        if self.vrings[index].running {
            self.stop(index);
        }
        if let Kick::Event(kick) = &self.vrings[index].kick {
            self.pairs[index / 2].wake.forget(kick);
        }
        self.vrings[index] = Vring::default();
    }

    fn set_memory(&mut self, memory: std::result::Result<GuestMemory, MemoryError>) -> Result<()> {
        let memory = memory.map_err(|error| refuse(format_args!("memory: {error}")))?;
        let running: Vec<usize> = (0..self.vrings.len()).filter(|&index| self.vrings[index].running).collect();
        running.iter().for_each(|&index| self.stop(index));
        // The old memory is unmapped here, as nobody uses it any more.
        self.memory = Some(Arc::new(memory));
        (0..self.vrings.len()).try_for_each(|index| self.refresh(index))
    }

    /// Says in the counters of every pair how it stands.
    fn show(&self) {
        let has = |bit, name| if self.features & bit != 0 { name } else { "" };
        let features = [
            has(feature::MRG_RXBUF, ", mergeable"),
            has(feature::RING_EVENT_IDX, ", event index"),
            if self.features & UNFINISHED != 0 { ", offloads" } else { "" },
        ]
        .concat();
        for (number, pair) in self.pairs.iter().enumerate() {
            let runs = self.vrings[number * 2].running && self.vrings[number * 2 + 1].running;
            pair.counters.set_link(runs);
            let state = if runs { "driver ready" } else { "peer connected" };
            let pairs = plural(self.pairs.len());
            pair.counters.set_mode(format!("vhost-user {}, {pairs}{features}, {state}", self.role));
        }
    }
}

/// Says that nobody is at the other end.
pub(super) fn show_waiting(pairs: &[Arc<Pair>], role: &str) {
    for pair in pairs {
        pair.counters.set_link(false);
        pair.counters.set_mode(format!("vhost-user {role}, {}, no peer", plural(pairs.len())));
    }
}

fn refuse(why: std::fmt::Arguments<'_>) -> Error {
    Error::ReqHandlerError(std::io::Error::other(why.to_string()))
}

/// A file of the driver that a worker watches or signals.
fn checked(file: File, what: &str, queue: usize) -> Result<File> {
    only_event(file).map_err(|error| refuse(format_args!("the {what} of queue {queue} is no event: {error}")))
}

/// An event of the driver that a worker writes to: a write must not wait, even if the driver has filled it up.
fn event(file: Option<File>, uid: u32, what: &str, queue: usize) -> Result<Option<Arc<Bell>>> {
    let Some(file) = file else { return Ok(None) };
    let file = checked(file, what, queue)?;
    if let Ok(flags) = fcntl_getfl(&file) {
        let _ = fcntl_setfl(&file, flags | OFlags::NONBLOCK);
    }
    Ok(Some(Bell::event(uid, OwnedFd::from(file))))
}

fn place(region: &VhostUserMemoryRegion) -> Place {
    let VhostUserMemoryRegion { guest_phys_addr: guest, memory_size: len, user_addr: user, mmap_offset: offset } =
        *region;
    Place { guest, user, len, offset }
}

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        (0..self.vrings.len()).for_each(|index| self.forget(index));
        self.features = 0;
        self.show();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered() != 0 {
            return Err(refuse(format_args!("features {features:#x} that were not offered")));
        }
        if features & feature::VERSION_1 == 0 {
            return Err(refuse(format_args!(
                "a driver older than virtio 1.0; it has to offer VIRTIO_F_VERSION_1 (QEMU: disable-legacy=on)"
            )));
        }
        if features == self.features {
            return Ok(());
        }
        self.features = features;
        self.restart_all()
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        self.set_memory(GuestMemory::map(regions.iter().map(place).zip(files)))?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        let (index, vring) = self.vring(index)?;
        vring.size = size;
        self.restart(index)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        table: u64,
        used: u64,
        avail: u64,
        _: u64,
    ) -> Result<()> {
        let (index, vring) = self.vring(index)?;
        vring.addresses = Some(Addresses { table, avail, used });
        self.restart(index)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        // Where the queue really stands says its used index; this is only handed back.
        self.vring(index)?.1.base = base as u16;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let (at, _) = self.vring(index)?;
        if self.vrings[at].running {
            self.stop(at);
        }
        if let Kick::Event(kick) = std::mem::take(&mut self.vrings[at].kick) {
            self.pairs[at / 2].wake.forget(kick);
        }
        self.show();
        Ok(VhostUserVringState::new(index, u32::from(self.vrings[at].base)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let (index, _) = self.vring(u32::from(index))?;
        if let Kick::Event(before) = std::mem::take(&mut self.vrings[index].kick) {
            self.pairs[index / 2].wake.forget(before);
        }
        self.vrings[index].kick = match file {
            None => Kick::Polled,
            Some(kick) => {
                let kick = checked(kick, "kick", index)?;
                let failed = |errno| refuse(format_args!("the kick of queue {index} is no event: {errno}"));
                self.pairs[index / 2].wake.watch(&kick).map_err(failed)?;
                Kick::Event(Arc::new(kick))
            }
        };
        self.refresh(index)
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let uid = self.uid;
        let (index, vring) = self.vring(u32::from(index))?;
        vring.call = event(file, uid, "call", index)?;
        self.restart(index)
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let uid = self.uid;
        let (index, vring) = self.vring(u32::from(index))?;
        vring.error = event(file, uid, "err", index)?;
        self.restart(index)
    }

    fn get_protocol_features(&mut self) -> Result<Protocol> {
        Ok(Protocol::MQ | Protocol::REPLY_ACK | Protocol::RESET_DEVICE | Protocol::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.pairs.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let (index, vring) = self.vring(index)?;
        vring.enabled = enable;
        self.refresh(index)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let place = place(region);
        let memory = match &self.memory {
            Some(memory) => memory.with(place, &file),
            None => GuestMemory::map([(place, file)]),
        };
        self.set_memory(memory)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self.memory.clone().ok_or(Error::InvalidParam)?;
        self.set_memory(memory.without(place(region)))
    }

    // None of the following is offered in the protocol features.

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(Error::InvalidOperation("no configuration space"))
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InvalidOperation("no configuration space"))
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("no GPU"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("no shared objects"))
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation("nothing stays in flight"))
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(Error::InvalidOperation("nothing stays in flight"))
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("no state to transfer"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("no state to transfer"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("no shared memory regions"))
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(Error::InvalidOperation("no dirty log"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_listeners::{Listeners, ring_until_apart};
    use rustix::event::{EventfdFlags, epoll, eventfd};

    /// Of tests.
    const USER: u32 = 1 << 20 | 10 << 8;

    #[test]
    fn whose_call_has_many_listeners_keeps_his_own_thread_and_no_worker() {
        let pairs: Arc<[_]> = [Arc::new(Pair::new().unwrap())].into();
        let mut eve = Backend::new(pairs.clone(), "server", USER | 1);
        let theirs = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let Some(_listeners) = Listeners::of(&theirs) else { return };
        let ours = || Some(File::from(theirs.try_clone().unwrap()));
        for (set, what) in [
            (Backend::set_vring_call as fn(&mut Backend, u8, Option<File>) -> Result<()>, "call"),
            (Backend::set_vring_err, "err"),
        ] {
            set(&mut eve, 1, ours()).unwrap();
            let bell = if what == "call" { &eve.vrings[1].call } else { &eve.vrings[1].error };
            let bell = bell.clone().unwrap();
            // The second one is that user's from the first time on.
            ring_until_apart(&theirs, || bell.ring(), || bell.is_apart());
        }
        let mut honest = Backend::new(pairs, "server", USER | 2);
        honest.set_vring_call(1, Some(eventfd(0, EventfdFlags::CLOEXEC).unwrap().into())).unwrap();
        assert!(honest.vrings[1].call.as_ref().is_some_and(|bell| !bell.is_apart()));
    }

    #[test]
    fn a_worker_watches_and_signals_nothing_but_eventfds() {
        let pairs: Arc<[_]> = [Arc::new(Pair::new().unwrap())].into();
        let mut backend = Backend::new(pairs, "server", USER);
        let epoll = || Some(File::from(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()));
        let pipe = || Some(File::from(rustix::pipe::pipe().unwrap().1));
        let event = || Some(File::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap()));
        for (what, set) in [
            ("kick", Backend::set_vring_kick as fn(&mut Backend, u8, Option<File>) -> Result<()>),
            ("call", Backend::set_vring_call),
            ("err", Backend::set_vring_err),
        ] {
            let error = set(&mut backend, 1, epoll()).expect_err(what).to_string();
            assert!(error.contains(&format!("the {what} of queue 1 is no event: anon_inode:[eventpoll]")), "{error}");
            set(&mut backend, 1, pipe()).expect_err(what);
            set(&mut backend, 1, event()).expect(what);
            set(&mut backend, 1, None).expect(what);
        }
    }
}
