//! `tap:NAME[,queues=N]`: a wire to the Linux network stack.
//!
//! What Linux sends to interface `NAME` comes in here, what the card sends Linux receives. The interface lives as long
//! as the port, unless it was there before (`ip tuntap add`), and needs no more than `ip address add` to be used. It is
//! a live wire: a frame for which the card has no room is dropped and counted as [`DropReason::NoRoom`].
//!
//! Linux is told that the other side finishes frames ([`offload`](millrace_packet::offload)), so it leaves checksums
//! out and sends up to 64 KiB of TCP or UDP as one frame. Such a frame goes on whole where the card passes it to
//! somebody who takes it so, and is finished here otherwise; the other way round Linux takes unfinished frames.
//!
//! A tap moves one frame per system call; Linux has no call that moves several. With `queues=N`, the flows are spread
//! over N ports, each with a worker's full attention.

mod error;
pub(crate) mod sys;

pub use error::TapError;

use crate::{
    DropReason, PortCounters, PortQueue, Sink, TxOutcome,
    null::check_len,
    spec::{InterfaceName, InterfaceSpec},
    unfinished::{check_unfinished_len, deliver},
};
use millrace_dma::Span;
use millrace_packet::offload::{MAX_LARGE_FRAME_LEN, Offload, Offloads, VIRTIO_HEADER_LEN};
use rustix::{
    fs::OFlags,
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
};
use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::fs::OpenOptionsExt,
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) const TUN: &str = "/dev/net/tun";

/// How long an interface that is down is left alone before we look again.
const LINK_LAG: Duration = Duration::from_millis(100);

/// Bytes in front of the header, so that what follows Ethernet is aligned.
const PAD: usize = 8;

/// Longest frame there is, one byte that shows that it is longer, and its header.
const SCRATCH: usize = PAD + VIRTIO_HEADER_LEN + MAX_LARGE_FRAME_LEN + 1;

/// One queue of a tap interface.
pub struct TapPort {
    tun: File,
    /// Any socket of the interface's network namespace, to ask for its state.
    socket: Arc<OwnedFd>,
    name: InterfaceName,
    offloads: Offloads,
    /// What was read: header and frame.
    scratch: Box<[u8; SCRATCH]>,
    /// Errors that are no news any more are not logged.
    warned: bool,
    /// The interface is down; when to look again.
    look_again: Option<Instant>,
    /// Somebody has deleted the interface; nothing can come any more.
    gone: bool,
    counters: Arc<PortCounters>,
}

impl TapPort {
    /// Makes the interface, or takes one over that is there and that nobody uses, and brings it up. Each of its queues
    /// is a port.
    ///
    /// # Errors
    /// [`TapError`].
    pub fn open(spec: &InterfaceSpec) -> Result<Vec<Self>, TapError> {
        let name = &spec.name;
        let queues =
            (0..spec.queues.get()).map(|_| open_queue(name, spec.queues.get() > 1)).collect::<Result<Vec<_>, _>>()?;
        let failed = |errno| TapError::from_errno(errno, "bring up", name);
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
        sys::bring_up(&socket, name).map_err(failed)?;
        let socket = Arc::new(socket);
        Ok(queues.into_iter().map(|(tun, offloads)| Self::new(tun, socket.clone(), name, offloads)).collect())
    }

    fn new(tun: File, socket: Arc<OwnedFd>, name: &InterfaceName, offloads: Offloads) -> Self {
        let counters = Arc::new(PortCounters::new());
        counters.set_mode(if offloads.udp { "offloads: checksum, TCP, UDP" } else { "offloads: checksum, TCP" });
        Self {
            tun,
            socket,
            name: name.clone(),
            offloads,
            scratch: Box::new([0; SCRATCH]),
            warned: false,
            look_again: None,
            gone: false,
            counters,
        }
    }

    fn drop_tx(&self, reason: DropReason) -> TxOutcome {
        self.counters.count_tx_drops(reason, 1);
        TxOutcome::Dropped(reason)
    }

    #[cold]
    fn warn(&mut self, what: &str, error: Errno) {
        if !self.warned {
            self.warned = true;
            crate::notice::warn(format!("tap:{}: {what}: {error}; further errors are only counted", self.name));
        }
    }

    fn send(&mut self, frame: Span<'_>, offload: &Offload) -> TxOutcome {
        loop {
            match sys::send(&self.tun, &offload.to_virtio(), frame) {
                // A tap takes a frame as a whole or not at all.
                Ok(()) => {
                    if self.look_again.is_some() {
                        self.link_is_back();
                    }
                    self.counters.count_tx(1, frame.len() as u64);
                    return TxOutcome::Sent;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return TxOutcome::Full,
                Err(errno) => return self.not_sent(errno, offload),
            }
        }
    }

    #[cold]
    fn not_sent(&mut self, errno: Errno, offload: &Offload) -> TxOutcome {
        match errno {
            // What Linux says of an interface that somebody has set down.
            Errno::IO => {
                self.warn("the interface is down", errno);
                self.counters.set_link(false);
                self.look_again.get_or_insert_with(|| Instant::now() + LINK_LAG);
                self.drop_tx(DropReason::LinkDown)
            }
            Errno::INVAL if !offload.is_done() => self.drop_tx(DropReason::Offload),
            _ => {
                self.warn("cannot send", errno);
                self.drop_tx(DropReason::WriteFailed)
            }
        }
    }

    #[cold]
    fn link_is_back(&mut self) {
        self.look_again = None;
        self.warned = false;
        self.counters.set_link(true);
    }

    #[cold]
    fn look_at_link(&mut self, now: Instant) {
        if sys::is_up(&self.socket, &self.name) == Ok(true) {
            self.link_is_back();
        } else {
            self.look_again = Some(now + LINK_LAG);
        }
    }

    /// Reads one frame behind its header; `None` when there is none.
    fn read(&mut self) -> Option<usize> {
        loop {
            match rustix::io::read(&self.tun, &mut self.scratch[PAD..]) {
                Ok(len) => return Some(len),
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    self.warn("cannot receive any more", errno);
                    self.gone = true;
                    self.counters.set_link(false);
                    self.counters.count_rx_drops(DropReason::ReadFailed, 1);
                    return None;
                }
            }
        }
    }
}

/// Opens one more queue of an interface, and says what may be left to Linux there.
fn open_queue(name: &InterfaceName, several: bool) -> Result<(File, Offloads), TapError> {
    let tun = File::options().read(true).write(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(TUN).map_err(
        |error| match Errno::from_io_error(&error) {
            Some(errno) => TapError::from_errno(errno, "open", name),
            None => TapError::System { step: "open", name: name.clone(), source: error },
        },
    )?;
    let attached = match sys::attach(&tun, name, several) {
        // Perhaps it is there and was made for several; one of them is enough.
        Err(Errno::INVAL) if !several => sys::attach(&tun, name, true),
        attached => attached,
    };
    attached.map_err(|errno| TapError::from_errno(errno, "create", name))?;
    let offloads = sys::set_offloads(&tun).map_err(|errno| TapError::from_errno(errno, "set the offloads of", name))?;
    Ok((tun, offloads))
}

impl PortQueue for TapPort {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        match check_len(frame.len()) {
            Ok(()) => self.send(frame, &Offload::default()),
            Err(reason) => self.drop_tx(reason),
        }
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn transmit_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> TxOutcome {
        match check_unfinished_len(frame.len(), offload) {
            Ok(()) => self.send(frame, offload),
            Err(reason) => self.drop_tx(reason),
        }
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        if self.gone {
            return 0;
        }
        if let Some(at) = self.look_again {
            let now = Instant::now();
            if now >= at {
                self.look_at_link(now);
            }
        }
        let offloads = sink.offloads();
        let (mut taken, mut seen) = (0, 0);
        while seen < budget {
            let Some(len) = self.read() else { break };
            let Some((header, frame)) = self.scratch[PAD..PAD + len].split_first_chunk_mut() else {
                self.counters.count_rx_drops(DropReason::ReadFailed, 1);
                seen += 1;
                continue;
            };
            let delivered = deliver(header, frame, offloads, sink, &self.counters);
            taken += delivered.taken;
            seen += delivered.frames;
            if delivered.full {
                // What else has come waits in the interface's own queue; perhaps there is room next time.
                break;
            }
        }
        taken
    }

    fn can_wait(&self) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        // Of an interface that is gone the fd is "readable" for ever.
        (!self.gone).then(|| self.tun.as_fd())
    }

    fn next_due(&self) -> Option<Instant> {
        self.look_again.filter(|_| !self.gone)
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

#[cfg(test)]
mod tests;
