//! `af_xdp:IFACE[,queues=N,mode=auto|zero-copy|copy,busy-poll=on|off]`: an interface of this machine, past the network stack of Linux.
//!
//! A small XDP program hands what arrives at the interface to the card before Linux sees it; what the card sends, the
//! driver sends. The program runs in the driver where that can do it (native), otherwise at the entry of the network
//! stack (generic); frames are copied by the kernel unless the driver works on the memory of the port (zero copy).
//! `stats` says which it is. Nothing stays behind on the interface when the card ends, however it does.
//!
//! It is a live wire: a frame for which there is no room is dropped and counted as [`DropReason::NoRoom`], whether the
//! card or the kernel had none. Each queue of the interface is a port of its own; they share the wire and its memory.

mod checksum;
pub mod direct;
mod error;
mod lent;
mod loan;
mod program;
mod queue;
mod ring;
mod socket;
mod sys;

pub use error::AfXdpError;

use crate::link::{Interface, Reports};
use crate::link::{State, Watch};
use crate::{
    Burst, DropReason, LendError, Lendable, LentSender, Pool, PortCounters, PortQueue, Sink, TxOutcome, spec::AfXdpSpec,
};
use loan::Loan;
use millrace_dma::{Pages, Region, RegionError, Span};
use program::Program;
use queue::Queue;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, netdevice::name_to_index, socket_with},
};
use socket::{Layout, Memory};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

/// Passes after which the kernel is asked what it dropped.
const PASSES_TO_STATISTICS: u32 = 1 << 13;

/// What the queues of an interface have in common. With the last of them, the program leaves the interface.
struct Wire {
    spec: AfXdpSpec,
    /// Number of the interface.
    index: u32,
    layout: Layout,
    opened: Instant,
    program: Program,
    /// As long as it is open, the interface takes frames for everybody.
    _promiscuous: Option<OwnedFd>,
    _watch: Watch,
}

/// One queue of an interface.
pub struct AfXdpPort {
    number: u32,
    /// `None` when the interface is gone.
    queue: Option<Queue>,
    state: Arc<State>,
    passes: u32,
    /// Errors that are no news any more are not logged.
    warned: bool,
    /// Frames of an application that were on their way when the interface went.
    lost: Option<Loan>,
    counters: Arc<PortCounters>,
    wire: Arc<Wire>,
}

/// Opens an interface: a port for each of its queues. An interface that is down is set up.
///
/// # Errors
/// [`AfXdpError`].
pub fn open(spec: &AfXdpSpec) -> Result<Vec<AfXdpPort>, AfXdpError> {
    let (name, queues) = (&spec.name, u32::from(spec.queues.get()));
    let failed = |step| move |errno| AfXdpError::from_errno(errno, step, name);
    let reports = Reports::subscribe().map_err(failed("watch"))?;
    let index = name_to_index(&reports, name.as_str()).map_err(failed("find"))?;
    let sockets = socket::open(spec)?;
    let interface = Interface::find(index).map_err(failed("look at"))?;
    interface.bring_up().map_err(failed("bring up"))?;
    let interface = Interface::find(index).map_err(failed("look at"))?;

    let layout = Layout::for_mtu(interface.mtu);
    let program = Program::attach(name, &interface, queues, spec.mode, layout.pieces)?;
    let memory = Region::allocate(layout.memory(queues), Pages::HugeIfAny)?;
    let memory = memory.part(0, layout.memory(queues)).expect("no more than was allocated");
    let queues = socket::start(spec, &interface, &program, layout, &memory, sockets)?;

    let counters: Vec<_> = queues.iter().map(|_| Arc::new(PortCounters::new())).collect();
    queues.iter().zip(&counters).for_each(|(queue, counters)| counters.set_mode(describe(&program, queue)));
    tell_of_other_queues(spec, &reports);
    let promiscuous = take_everything(index);
    if let Err(errno) = &promiscuous {
        crate::notice::warn(format!(
            "af_xdp:{name}: cannot be made promiscuous ({errno}): only frames to its own address may come"
        ));
    }
    let watch = Watch::start("af_xdp", name, &interface, reports, counters.clone()).map_err(failed("watch"))?;
    let state = watch.state().clone();
    let wire = Arc::new(Wire {
        spec: spec.clone(),
        index,
        layout,
        opened: Instant::now(),
        program,
        _promiscuous: promiscuous.ok(),
        _watch: watch,
    });
    let port = |(number, (queue, counters))| AfXdpPort {
        number: number as u32,
        queue: Some(queue),
        state: state.clone(),
        passes: 0,
        warned: false,
        lost: None,
        counters,
        wire: wire.clone(),
    };
    Ok(queues.into_iter().zip(counters).enumerate().map(port).collect())
}

fn describe(program: &Program, queue: &Queue) -> String {
    let place = match program.generic {
        None => "native XDP".to_owned(),
        Some(errno) => format!("generic XDP (the driver refuses native: {errno})"),
    };
    let copy = if queue.zero_copy { "zero copy" } else { "copied by the kernel" };
    let pieces = if queue.assembly.is_some() { ", frames in several pieces" } else { "" };
    let poll = if queue.busy_poll { ", busy poll" } else { "" };
    let lent = if queue.loan.is_some() { ", in memory of the application" } else { "" };
    format!("{place}, {copy}{pieces}{poll}{lent}")
}

fn tell_of_other_queues(spec: &AfXdpSpec, socket: &Reports) {
    let (name, ours) = (&spec.name, u32::from(spec.queues.get()));
    if let Some(there) = sys::receive_queues(socket, name).filter(|&there| there > ours) {
        crate::notice::warn(format!(
            "af_xdp:{name}: {name} has {there} queues, and what arrives on those after the first {ours} stays with Linux; \
             write queues={there}, or `ethtool -L {name} combined {ours}` (for veth: rx {ours})"
        ));
    }
}

/// Whoever is behind the card may have any address.
fn take_everything(interface: u32) -> Result<OwnedFd, Errno> {
    // Of protocol 0, so that it receives nothing itself.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    sys::be_promiscuous(&socket, interface)?;
    Ok(socket)
}

impl AfXdpPort {
    #[cold]
    fn warn(&mut self, errno: Errno) {
        if !self.warned && !self.state.is_down() {
            self.warned = true;
            crate::notice::warn(format!(
                "af_xdp:{}: cannot send: {errno}; further errors are not logged",
                self.wire.spec.name
            ));
        }
    }

    /// Lets go of an interface that has been deleted.
    #[cold]
    fn leave(&mut self) {
        if let Some(mut queue) = self.queue.take() {
            queue.count_kernel_drops(&self.counters);
            self.lost = queue.loan.take();
            self.lost.iter_mut().for_each(Loan::give_up);
        }
    }

    /// Memory of our own, and that of an application before it.
    fn memory(&self, pool: Option<&Pool>) -> Result<Memory, LendError> {
        let refused = |error: RegionError| LendError::Refused(error.to_string());
        let layout = self.wire.layout;
        let own = Region::allocate(layout.memory(1), Pages::Ordinary).map_err(refused)?;
        let Some(pool) = pool else { return Ok(Memory::own(own.window(), layout, 0)) };
        let chunk = lent::chunk_of(pool, layout)?;
        let (window, starts) = Region::adjoin(&[&pool.region, &own]).map_err(refused)?;
        Ok(Memory { window, chunk, loan: starts[1], own_at: starts[1] })
    }

    /// Gives the queue up. What comes until it is opened again is Linux's, as before this port was; what is here is
    /// counted.
    fn end(&mut self) {
        if let Some(mut queue) = self.queue.take() {
            self.wire.program.leave(self.number);
            queue.end(&self.counters);
        }
        self.lost = None;
    }

    /// Opens the queue once more, over other memory.
    fn restart(&mut self, pool: Option<&Pool>) -> Result<(), LendError> {
        let wire = self.wire.clone();
        let Wire { spec, index, layout, program, .. } = &*wire;
        // Whatever comes of it, memory that was lent before is let go of.
        if self.queue.as_ref().is_some_and(|queue| queue.loan.is_some()) {
            self.end();
        }
        let memory = self.memory(pool)?;
        // The kernel binds one socket to a queue.
        self.end();
        let interface = Interface::find(*index).map_err(|_| LendError::Gone)?;
        let queue = socket::restart(spec, &interface, program, *layout, self.number, &memory);
        let queue = queue.map_err(|error| LendError::Refused(error.to_string()))?;
        self.counters.set_mode(describe(program, &queue));
        self.queue = Some(queue);
        Ok(())
    }

    fn drop_tx(&self, reason: DropReason) -> TxOutcome {
        self.counters.count_tx_drops(reason, 1);
        TxOutcome::Dropped(reason)
    }

    fn send(&mut self) {
        if let Some(Err(errno)) = self.queue.as_mut().map(Queue::send) {
            self.warn(errno);
        }
    }

    fn must_send(&self) -> bool {
        !self.state.is_down() && self.queue.as_ref().is_some_and(Queue::must_send)
    }
}

impl PortQueue for AfXdpPort {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        let taken = match &mut self.queue {
            Some(queue) if !self.state.is_down() => queue.transmit(frame),
            _ => return self.drop_tx(DropReason::LinkDown),
        };
        match taken {
            TxOutcome::Sent => {
                self.counters.count_tx(1, frame.len() as u64);
                self.counters.count_tx_copies(1);
            }
            TxOutcome::Dropped(reason) => self.counters.count_tx_drops(reason, 1),
            TxOutcome::Full => self.send(),
        }
        taken
    }

    fn transmit_burst(&mut self, frames: &[Span<'_>]) -> Burst {
        let mut burst = Burst::default();
        let mut bytes = 0;
        for &frame in frames {
            let taken = match &mut self.queue {
                Some(queue) if !self.state.is_down() => queue.transmit(frame),
                _ => TxOutcome::Dropped(DropReason::LinkDown),
            };
            match taken {
                TxOutcome::Sent => bytes += frame.len() as u64,
                TxOutcome::Full => break,
                TxOutcome::Dropped(reason) => {
                    self.counters.count_tx_drops(reason, 1);
                    burst.dropped += 1;
                    burst.dropped_bytes += frame.len() as u64;
                }
            }
            burst.taken += 1;
        }
        let sent = burst.taken as u64 - burst.dropped;
        self.counters.count_tx(sent, bytes);
        self.counters.count_tx_copies(sent);
        burst
    }

    fn lendable(&mut self) -> Option<&mut dyn Lendable> {
        Some(self)
    }

    fn flush(&mut self) {
        self.send();
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        if self.state.is_gone() {
            self.leave();
            return 0;
        }
        let Some(queue) = &mut self.queue else { return 0 };
        self.passes = self.passes.wrapping_add(1);
        if self.passes.is_multiple_of(PASSES_TO_STATISTICS) {
            queue.count_kernel_drops(&self.counters);
        }
        let taken = queue.receive(budget, sink, &self.counters);
        if taken == 0 && self.must_send() {
            self.send();
        }
        taken
    }

    fn can_wait(&self) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.as_ref().map(|queue| queue.as_fd())
    }

    fn prepare_sleep(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.count_kernel_drops(&self.counters);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        // What the kernel did not take waits for us, not for the wire.
        self.must_send().then_some(self.wire.opened)
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

impl AfXdpPort {
    /// Works on this pool from now on, or on none.
    fn change_pool(&mut self, pool: Option<&Pool>) -> Result<(), LendError> {
        let Some(queue) = &self.queue else { return Err(LendError::Gone) };
        if pool.is_none() && queue.loan.is_none() {
            return Ok(());
        }
        if pool.is_some() && queue.zero_copy {
            return Err(LendError::Driver);
        }
        self.restart(pool).inspect_err(|_| {
            // As before, if that can be.
            if pool.is_some() && self.queue.is_none() {
                let _ = self.restart(None);
            }
            if self.queue.is_none() {
                crate::notice::warn(format!(
                    "af_xdp:{}: queue {} cannot be opened again",
                    self.wire.spec.name, self.number
                ));
                self.counters.set_link(false);
            }
        })
    }
}

impl Lendable for AfXdpPort {
    fn lend(&mut self, pool: &Pool) -> Result<(), LendError> {
        self.change_pool(Some(pool))
    }

    fn return_pool(&mut self) -> Result<(), LendError> {
        self.change_pool(None)
    }

    fn post(&mut self, next: &mut dyn FnMut() -> Option<usize>) {
        if let Some(queue) = &mut self.queue {
            queue.post(next);
        }
    }

    fn sender(&mut self) -> Option<&mut dyn LentSender> {
        Some(self)
    }
}

impl LentSender for AfXdpPort {
    fn send_from(&mut self, at: usize, frame: Span<'_>) -> TxOutcome {
        let len = frame.len();
        let taken = match &mut self.queue {
            Some(queue) => queue.transmit_lent(at, len, self.state.is_down()),
            None => TxOutcome::Full,
        };
        match taken {
            TxOutcome::Sent => self.counters.count_tx(1, len as u64),
            TxOutcome::Dropped(reason) => self.counters.count_tx_drops(reason, 1),
            TxOutcome::Full => self.send(),
        }
        taken
    }

    fn sent(&mut self) -> u32 {
        match &mut self.queue {
            Some(queue) => queue.sent_lent(),
            None => self.lost.as_mut().map_or(0, Loan::take_done),
        }
    }
}

#[cfg(test)]
mod tests;
