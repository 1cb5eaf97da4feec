//! `af_packet:IFACE[,queues=N]`: any interface that Linux has, by way of a packet socket.
//!
//! What arrives at the interface comes in here, whoever it is for, and what the card sends leaves through it. Linux
//! sees what arrives as well; an interface that shall belong to the card alone has no addresses. What Linux itself
//! sends there is not shown.
//!
//! Linux hands over frames as its drivers and neighbours make them: with checksums to fill in, or as up to 64 KiB of
//! TCP or UDP at once. They pass whole where the card passes them to somebody who takes them so, and are finished here
//! otherwise; the other way round Linux takes unfinished frames. A VLAN tag that Linux has taken out is put back.
//!
//! Frames come in a ring that is shared with the kernel, without a system call and without a copy besides the kernel's;
//! those longer than a slot are fetched from the socket. They leave in bursts with `sendmmsg`. When they come and leave the
//! kernel notes, which is asked for that where the card stamps frames ([`Sink::wants_arrivals`]). With `queues=N` the
//! flows are spread over N sockets. `docs/ports.md` says what else was measured.

mod error;
mod kernel_time;
mod slot;
pub(crate) mod sys;

pub use error::AfPacketError;

use crate::{
    Burst, DropReason, MAX_FRAME_LEN, PortCounters, PortQueue, Sink, TxOutcome,
    link::{Interface, Reports, State, Watch},
    null::check_len,
    spec::{InterfaceName, InterfaceSpec},
    unfinished::{Delivered, check_unfinished_len, deliver},
};
use kernel_time::KernelTime;
use millrace_dma::Span;
use millrace_packet::offload::{MAX_LARGE_FRAME_LEN, Offload, Offloads, VIRTIO_HEADER_LEN};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, netdevice::name_to_index, socket_with, sockopt::socket_error},
};
use slot::{Slot, put_back};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Instant,
};
use sys::{BURST, Ring};

/// Bytes of a ring.
const RING_LEN: usize = 4 << 20;
/// Bytes of memory that the kernel takes at once for a ring.
const BLOCK_LEN: usize = 64 << 10;
/// Bytes that a slot needs besides what the interface's MTU says: its header, that of Ethernet, two VLAN tags.
const SLOT_EXTRA: usize = 256;
/// Memory for frames that are longer than a slot.
const LONG_LEN: usize = 8 << 20;
/// Calls that found nothing before we ask the kernel again what it has dropped; a worker that sleeps asks then.
const QUIET: u32 = 1 << 16;

/// Bytes in front of a frame that was fetched from the socket: room for a VLAN tag, then its header.
const PAD: usize = 8;
const SCRATCH: usize = PAD + VIRTIO_HEADER_LEN + MAX_LARGE_FRAME_LEN + 1;

/// Frames of which the kernel is asked at once when they left.
const MOST_STAMPS: usize = 256;

/// The first Linux whose packet sockets take UDP to be cut.
const UDP_SINCE: (u32, u32) = (6, 2);

/// What the kernel is to note. `tx` is how many frames have been sent since; `was_tx` is whether that ever was so.
#[derive(Clone, Copy, Debug, Default)]
struct Stamps {
    rx: bool,
    tx: Option<usize>,
    was_tx: bool,
}

/// One queue of an interface.
pub struct AfPacketPort {
    socket: OwnedFd,
    ring: Ring,
    name: InterfaceName,
    offloads: Offloads,
    /// A frame that is longer than a slot.
    scratch: Box<[u8; SCRATCH]>,
    state: Arc<State>,
    _watch: Arc<Watch>,
    /// Calls that found nothing.
    quiet: u32,
    /// Whether the kernel notes when frames come and leave.
    stamps: Stamps,
    /// Errors that are no news any more are not logged.
    warned: bool,
    counters: Arc<PortCounters>,
}

impl AfPacketPort {
    /// Opens an interface; each of its queues is a port. It need not be up.
    ///
    /// # Errors
    /// [`AfPacketError`].
    pub fn open(spec: &InterfaceSpec) -> Result<Vec<Self>, AfPacketError> {
        let name = &spec.name;
        let failed = |step| move |errno| AfPacketError::from_errno(errno, step, name);
        let reports = Reports::subscribe().map_err(failed("watch"))?;
        let index = name_to_index(&reports, name.as_str()).map_err(failed("find"))?;
        let interface = Interface::find(index).map_err(failed("look at"))?;
        if !interface.is_ethernet() {
            return Err(AfPacketError::NotEthernet(name.clone()));
        }
        let several = spec.queues.get() > 1;
        let (mut group, mut queues) = (None, Vec::new());
        for _ in 0..spec.queues.get() {
            let (socket, ring) = open_socket(name, &interface, several)?;
            if several {
                group = Some(sys::join(&socket, group).map_err(failed("spread the flows of"))?);
            }
            queues.push((socket, ring, Arc::new(PortCounters::new())));
        }
        let counters = queues.iter().map(|(_, _, counters)| counters.clone()).collect();
        let watch = Arc::new(Watch::start("af_packet", name, &interface, reports, counters).map_err(failed("watch"))?);
        let offloads = Offloads { udp: cuts_udp(), ..Offloads::ALL };
        let port = |(socket, ring, counters): (OwnedFd, Ring, Arc<PortCounters>)| {
            // Only now, when no other socket of the group gets the same frames.
            if several {
                sys::shut(&socket, false).map_err(failed("open"))?;
            }
            counters.set_mode("ring, whole frames of TCP and UDP");
            Ok(Self {
                socket,
                ring,
                name: name.clone(),
                offloads,
                scratch: Box::new([0; SCRATCH]),
                state: watch.state().clone(),
                _watch: watch.clone(),
                quiet: 0,
                stamps: Stamps::default(),
                warned: false,
                counters,
            })
        };
        queues.into_iter().map(port).collect()
    }

    fn drop_tx(&self, reason: DropReason) -> TxOutcome {
        self.counters.count_tx_drops(reason, 1);
        TxOutcome::Dropped(reason)
    }

    #[cold]
    fn warn(&mut self, what: &str, errno: Errno) {
        if !self.warned {
            self.warned = true;
            crate::notice::warn(format!("af_packet:{}: {what}: {errno}; further errors are only counted", self.name));
        }
    }

    /// Without a link Linux takes frames and forgets them.
    #[cold]
    fn drop_all(&self, frames: &[Span<'_>]) -> Burst {
        self.counters.count_tx_drops(DropReason::LinkDown, frames.len() as u64);
        let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
        Burst { taken: frames.len(), dropped: frames.len() as u64, dropped_bytes: bytes }
    }

    /// Why the first of several frames was not sent.
    #[cold]
    fn not_sent(&mut self, errno: Errno, offload: &Offload) -> TxOutcome {
        let reason = match errno {
            Errno::AGAIN | Errno::INTR => return TxOutcome::Full,
            Errno::NETDOWN | Errno::NXIO | Errno::NODEV => DropReason::LinkDown,
            // Linux had no room in a queue, or the other end of a veth is down.
            Errno::NOBUFS => DropReason::KernelFull,
            Errno::MSGSIZE => {
                self.warn("a frame is longer than the MTU; `ip link set dev INTERFACE mtu N` raises that", errno);
                DropReason::TooLong
            }
            Errno::INVAL if !offload.is_done() => DropReason::Offload,
            _ => {
                self.warn("cannot send", errno);
                DropReason::WriteFailed
            }
        };
        self.drop_tx(reason)
    }

    /// Takes the errors away for which the socket would be "readable" for ever, and counts what the kernel has dropped.
    #[cold]
    fn poll_errors(&mut self) {
        self.quiet = 0;
        // What it was (the interface went down), `Watch` says.
        let _ = socket_error(&self.socket);
        if self.stamps.was_tx {
            // Of frames that had to wait in a queue of the interface, and left later than they were asked after.
            sys::departures(&self.socket, MOST_STAMPS);
        }
        self.count_kernel_drops();
    }

    fn count_kernel_drops(&self) {
        self.counters.count_rx_drops(DropReason::KernelFull, sys::drops(&self.socket));
    }

    /// Has the kernel note when frames come and leave. Where it does not, the card's worker says when it saw them.
    #[cold]
    fn stamp(&mut self, stamps: Stamps) {
        if let Err(errno) = sys::stamp(&self.socket, stamps.rx, stamps.tx.is_some()) {
            self.warn("cannot have Linux note when frames pass", errno);
        }
        self.stamps = stamps;
    }

    /// Says when the frame at the front of the ring came, if there is one. `now`: if it is wanted.
    fn say_arrival(&self, now: Option<KernelTime>, sink: &mut dyn Sink) {
        if let (Some(now), Some(slot)) = (now, self.ring.slot(0)) {
            let came = Slot::read(slot).came();
            sink.arrived(now.monotonic(came).unwrap_or(now.monotonic));
        }
    }

    /// Offers the plain frames at the front of the ring together. Returns how many there were, and how many were taken.
    fn receive_plain(
        &mut self,
        most: usize,
        now: Option<KernelTime>,
        sink: &mut dyn Sink,
        losing: &mut bool,
    ) -> (usize, usize) {
        let found = self.ring.look(if now.is_some() { 1 } else { most.min(BURST) });
        self.say_arrival(now, sink);
        let mut frames = [Span::EMPTY; BURST];
        let (mut count, mut bytes) = (0, 0);
        while count < found {
            let Some(bytes_of_slot) = self.ring.slot(count) else { break };
            let slot = Slot::read(bytes_of_slot);
            *losing |= slot.tells_of_drops();
            let Some(frame) = slot.plain(bytes_of_slot).filter(|frame| check_len(frame.len()).is_ok()) else { break };
            frames[count] = Span::from_slice(frame);
            count += 1;
        }
        if count == 0 {
            return (0, 0);
        }
        let taken = sink.take_burst(&frames[..count]);
        frames[..taken].iter().for_each(|frame| bytes += frame.len() as u64);
        self.counters.count_rx(taken as u64, bytes);
        if taken < count {
            self.counters.count_rx_drops(DropReason::NoRoom, (count - taken) as u64);
        }
        self.ring.give_back(count);
        (count, taken)
    }

    /// Offers the frame at the front of the ring on which something is left to do.
    fn receive_special(&mut self, offloads: Offloads, sink: &mut dyn Sink) -> Delivered {
        let dropped = |counters: &PortCounters, reason| {
            counters.count_rx_drops(reason, 1);
            Delivered { frames: 1, taken: 0, full: false }
        };
        let Some(bytes) = self.ring.slot_mut(0) else { return Delivered { frames: 1, taken: 0, full: false } };
        let slot = Slot::read(bytes);
        let (bytes, place) = if slot.is_elsewhere() {
            match rustix::io::read(&self.socket, &mut self.scratch[PAD..]) {
                Ok(len) => (&mut self.scratch[..], PAD..PAD + len),
                Err(errno) => {
                    self.ring.give_back(1);
                    // Segments of a kind that a header cannot tell of.
                    let unknown = errno == Errno::INVAL;
                    return dropped(&self.counters, if unknown { DropReason::Offload } else { DropReason::ReadFailed });
                }
            }
        } else {
            match slot.whole().filter(|place| place.end <= bytes.len()) {
                Some(place) => (bytes, place),
                None => {
                    self.ring.give_back(1);
                    // It did not fit, and there was no room in the socket.
                    return dropped(&self.counters, DropReason::KernelFull);
                }
            }
        };
        let (mut start, end) = (place.start, place.end);
        if let Some(tag) = slot.tag() {
            start = put_back(&mut bytes[..end], start + VIRTIO_HEADER_LEN, tag).unwrap_or(start);
        }
        let delivered = match bytes.get_mut(start..end).and_then(|bytes| bytes.split_first_chunk_mut()) {
            Some((header, frame)) => deliver(header, frame, offloads, sink, &self.counters),
            None => dropped(&self.counters, DropReason::ReadFailed),
        };
        self.ring.give_back(1);
        delivered
    }
}

/// A socket that receives what passes an interface; nothing yet if it is one of several.
fn open_socket(name: &InterfaceName, interface: &Interface, several: bool) -> Result<(OwnedFd, Ring), AfPacketError> {
    let failed = |step| move |errno| AfPacketError::from_errno(errno, step, name);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0: nothing comes until it is bound.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(failed("open"))?;
    sys::set_up(&socket).map_err(failed("set the options of"))?;
    sys::set_buffer(&socket, LONG_LEN).map_err(failed("set the buffer of"))?;
    let slot_len = (interface.mtu as usize + SLOT_EXTRA).clamp(2048, MAX_FRAME_LEN + 1).next_power_of_two();
    let ring = Ring::new(&socket, RING_LEN / slot_len, slot_len, BLOCK_LEN).map_err(failed("map the ring of"))?;
    if several {
        sys::shut(&socket, true).map_err(failed("shut"))?;
    }
    sys::bind(&socket, interface.index).map_err(failed("bind"))?;
    Ok((socket, ring))
}

/// Whether this Linux takes UDP to be cut.
fn cuts_udp() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= UDP_SINCE
}

impl PortQueue for AfPacketPort {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        match check_len(frame.len()) {
            Ok(()) => self.transmit_offloaded(frame, &Offload::default()),
            Err(reason) => self.drop_tx(reason),
        }
    }

    fn transmit_burst(&mut self, frames: &[Span<'_>]) -> Burst {
        if self.state.is_down() {
            return self.drop_all(frames);
        }
        let mut burst = Burst::default();
        while let [first, ..] = frames[burst.taken..] {
            let rest = &frames[burst.taken..][..BURST.min(frames.len() - burst.taken)];
            let fit = rest.iter().position(|frame| check_len(frame.len()).is_err()).unwrap_or(rest.len());
            let taken = match sys::send(&self.socket, &[0; VIRTIO_HEADER_LEN], &rest[..fit]) {
                Ok(sent) if sent > 0 => {
                    let bytes = rest[..sent].iter().map(|frame| frame.len() as u64).sum();
                    self.counters.count_tx(sent as u64, bytes);
                    self.stamps.tx = self.stamps.tx.map(|before| before + sent);
                    burst.taken += sent;
                    continue;
                }
                Ok(_) => self.transmit(first),
                Err(errno) => self.not_sent(errno, &Offload::default()),
            };
            match taken {
                TxOutcome::Full => break,
                TxOutcome::Sent => {}
                TxOutcome::Dropped(_) => {
                    burst.dropped += 1;
                    burst.dropped_bytes += first.len() as u64;
                }
            }
            burst.taken += 1;
        }
        burst
    }

    fn watch_departures(&mut self) {
        // What is said of frames that were sent before is not of these.
        sys::departures(&self.socket, MOST_STAMPS);
        self.stamp(Stamps { tx: Some(0), was_tx: true, ..self.stamps });
    }

    fn departed(&mut self) -> Option<u64> {
        let sent = self.stamps.tx?;
        let (count, last) = sys::departures(&self.socket, sent.min(MOST_STAMPS));
        self.stamp(Stamps { tx: None, ..self.stamps });
        // A frame that waits in a queue of the interface has not left.
        last.filter(|_| count == sent).and_then(|at| KernelTime::now().monotonic(at))
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn transmit_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> TxOutcome {
        if let Err(reason) = check_unfinished_len(frame.len(), offload) {
            return self.drop_tx(reason);
        }
        if self.state.is_down() {
            return self.drop_tx(DropReason::LinkDown);
        }
        match sys::send(&self.socket, &offload.to_virtio(), &[frame]) {
            Ok(_) => {
                self.counters.count_tx(1, frame.len() as u64);
                self.stamps.tx = self.stamps.tx.map(|before| before + 1);
                TxOutcome::Sent
            }
            Err(errno) => self.not_sent(errno, offload),
        }
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let offloads = sink.offloads();
        if sink.wants_arrivals() != self.stamps.rx {
            self.stamp(Stamps { rx: !self.stamps.rx, ..self.stamps });
        }
        // What is found while it is called came before: a look at the clocks is enough for all of it.
        let now = (self.stamps.rx && self.ring.look(1) > 0).then(KernelTime::now);
        let (mut seen, mut taken, mut losing) = (0, 0, false);
        while seen < budget {
            let (plain, plain_taken) = self.receive_plain(budget - seen, now, sink, &mut losing);
            seen += plain;
            taken += plain_taken;
            if plain_taken < plain {
                break;
            }
            if seen < budget && self.ring.look(1) > 0 {
                // Not plain, or it has only just come; both ways it is in good hands.
                self.say_arrival(now, sink);
                let delivered = self.receive_special(offloads, sink);
                seen += delivered.frames;
                taken += delivered.taken;
                if delivered.full {
                    break;
                }
            } else if plain == 0 {
                break;
            }
        }
        if seen > 0 {
            self.quiet = 0;
        } else {
            self.quiet += 1;
        }
        if losing {
            self.count_kernel_drops();
        } else if self.quiet == QUIET {
            self.poll_errors();
        }
        taken
    }

    fn can_wait(&self) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        // Of an interface that is gone nothing comes but errors.
        (!self.state.is_gone()).then(|| self.socket.as_fd())
    }

    fn prepare_sleep(&mut self) {
        self.poll_errors();
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

#[cfg(test)]
mod tests;
