//! What a port has passed and what it has dropped, by reason.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Why a frame did not pass a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Towards the card: a live port had a frame for which the card had no room.
    NoRoom,
    /// Longer than [`MAX_FRAME_LEN`](crate::MAX_FRAME_LEN).
    TooLong,
    /// Shorter than an Ethernet header ([`MIN_FRAME_LEN`](crate::MIN_FRAME_LEN)).
    TooShort,
    /// A capture file ends in the middle of this record.
    Truncated,
    /// A capture record with a length that no capture program writes; nothing behind it can be found.
    Damaged,
    /// The file or the interface failed to deliver.
    ReadFailed,
    /// The file or the interface failed to take the frame (a full disk, for one).
    WriteFailed,
    /// The interface is down, or the other side is not there.
    LinkDown,
    /// The frame asks for something that cannot be done: a checksum or a segmentation that does not fit its headers.
    Offload,
    /// Linux had no room for it: in the ring in which it puts frames, or in a queue towards the interface.
    KernelFull,
    /// Lost on purpose ([`fault`](crate::fault)).
    FaultLoss,
    /// The other side of a shared ring has written what cannot be, and the ring was stopped; `mode` says which one, and why.
    BadRing,
}

impl DropReason {
    /// All reasons, in the order in which they are printed.
    pub const ALL: [DropReason; 12] = [
        DropReason::NoRoom,
        DropReason::TooLong,
        DropReason::TooShort,
        DropReason::Truncated,
        DropReason::Damaged,
        DropReason::ReadFailed,
        DropReason::WriteFailed,
        DropReason::LinkDown,
        DropReason::Offload,
        DropReason::KernelFull,
        DropReason::FaultLoss,
        DropReason::BadRing,
    ];

    /// The name in statistics, in kebab-case.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::NoRoom => "no-room",
            DropReason::TooLong => "too-long",
            DropReason::TooShort => "too-short",
            DropReason::Truncated => "truncated",
            DropReason::Damaged => "damaged",
            DropReason::ReadFailed => "read-failed",
            DropReason::WriteFailed => "write-failed",
            DropReason::LinkDown => "link-down",
            DropReason::Offload => "offload",
            DropReason::KernelFull => "kernel-full",
            DropReason::FaultLoss => "fault-loss",
            DropReason::BadRing => "bad-ring",
        }
    }
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What can happen to a frame besides that it passes or is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// It passed twice; the second one is a frame that nobody offered.
    FaultDuplicate,
    /// It passed after the one that followed it.
    FaultReorder,
    /// It passed with a wrong bit.
    FaultCorrupt,
    /// It passed later.
    FaultDelay,
    /// It passed, and is missing in the file that should have it ([`trace`](crate::trace)).
    TraceLost,
}

impl Event {
    /// All events, in the order in which they are printed.
    pub const ALL: [Event; 5] =
        [Event::FaultDuplicate, Event::FaultReorder, Event::FaultCorrupt, Event::FaultDelay, Event::TraceLost];

    /// The name in statistics, in kebab-case.
    pub const fn name(self) -> &'static str {
        match self {
            Event::FaultDuplicate => "fault-duplicate",
            Event::FaultReorder => "fault-reorder",
            Event::FaultCorrupt => "fault-corrupt",
            Event::FaultDelay => "fault-delay",
            Event::TraceLost => "trace-lost",
        }
    }
}

/// Counters of one direction.
#[derive(Debug, Default)]
struct Direction {
    frames: AtomicU64,
    bytes: AtomicU64,
    copies: AtomicU64,
    drops: [AtomicU64; DropReason::ALL.len()],
    events: [AtomicU64; Event::ALL.len()],
}

/// Counters of a port: "rx" is from the wire towards the card, "tx" from the card towards the wire.
///
/// Written by the worker that owns the port and by nobody else, which is why an increment is a load and a store
/// instead of a locked instruction; read by anyone. All accesses are relaxed: the numbers order nothing. Two words about
/// the wire itself stand beside the counters: whether it has a link, and how the port drives it.
#[derive(Debug, Default)]
#[repr(align(128))] // Not on one cache line with something that another core writes.
pub struct PortCounters {
    rx: Direction,
    tx: Direction,
    link_lost: AtomicBool,
    mode: Mutex<String>,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

impl Direction {
    fn pass(&self, frames: u64, bytes: u64) {
        add(&self.frames, frames);
        add(&self.bytes, bytes);
    }

    fn drop(&self, reason: DropReason, frames: u64) {
        add(&self.drops[reason as usize], frames);
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].load(Ordering::Relaxed)
    }

    fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.into_iter().map(|reason| (reason, self.dropped(reason)))
    }

    fn event(&self, event: Event) -> u64 {
        self.events[event as usize].load(Ordering::Relaxed)
    }

    fn events(&self) -> impl Iterator<Item = (Event, u64)> {
        Event::ALL.into_iter().map(|event| (event, self.event(event)))
    }

    fn offered(&self) -> u64 {
        let dropped = self.drops().map(|(_, count)| count).sum::<u64>();
        (self.frames.load(Ordering::Relaxed) + dropped).saturating_sub(self.event(Event::FaultDuplicate))
    }
}

impl PortCounters {
    /// All zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Frames that came in from the wire and that the card took.
    pub fn rx_frames(&self) -> u64 {
        self.rx.frames.load(Ordering::Relaxed)
    }

    /// Bytes of [`Self::rx_frames`], without FCS.
    pub fn rx_bytes(&self) -> u64 {
        self.rx.bytes.load(Ordering::Relaxed)
    }

    /// Frames that went out to the wire, or wait in the buffer of a file. When a file then fails, those that were lost
    /// move from here to [`DropReason::WriteFailed`], so this number can shrink.
    pub fn tx_frames(&self) -> u64 {
        self.tx.frames.load(Ordering::Relaxed)
    }

    /// Bytes of [`Self::tx_frames`], without FCS.
    pub fn tx_bytes(&self) -> u64 {
        self.tx.bytes.load(Ordering::Relaxed)
    }

    /// Frames from the wire that were dropped for `reason`.
    pub fn rx_dropped(&self, reason: DropReason) -> u64 {
        self.rx.dropped(reason)
    }

    /// Frames towards the wire that were dropped for `reason`.
    pub fn tx_dropped(&self, reason: DropReason) -> u64 {
        self.tx.dropped(reason)
    }

    /// Every reason with its count, zeros included, for frames from the wire.
    pub fn rx_drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        self.rx.drops()
    }

    /// Every reason with its count, zeros included, for frames towards the wire.
    pub fn tx_drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        self.tx.drops()
    }

    /// What else happened to frames from the wire, with its count, zeros included.
    pub fn rx_events(&self) -> impl Iterator<Item = (Event, u64)> {
        self.rx.events()
    }

    /// What else happened to frames towards the wire, with its count, zeros included.
    pub fn tx_events(&self) -> impl Iterator<Item = (Event, u64)> {
        self.tx.events()
    }

    /// Counts what else happened to frames from the wire. For the owner of the port only.
    pub fn count_rx_events(&self, event: Event, frames: u64) {
        add(&self.rx.events[event as usize], frames);
    }

    /// Counts what else happened to frames towards the wire. For the owner of the port only.
    pub fn count_tx_events(&self, event: Event, frames: u64) {
        add(&self.tx.events[event as usize], frames);
    }

    /// Frames from the wire, whatever became of them; [second ones](Event::FaultDuplicate) are not among them.
    pub fn rx_offered(&self) -> u64 {
        self.rx.offered()
    }

    /// Frames towards the wire, whatever became of them; [second ones](Event::FaultDuplicate) are not among them. A frame answered with `Taken::Full` was not offered yet.
    pub fn tx_offered(&self) -> u64 {
        self.tx.offered()
    }

    /// Counts frames that came in from the wire. For the owner of the port only.
    pub fn count_rx(&self, frames: u64, bytes: u64) {
        self.rx.pass(frames, bytes);
    }

    /// Counts frames from the wire that were dropped. For the owner of the port only.
    pub fn count_rx_drops(&self, reason: DropReason, frames: u64) {
        self.rx.drop(reason, frames);
    }

    /// Counts frames that went out to the wire. For the owner of the port only.
    pub fn count_tx(&self, frames: u64, bytes: u64) {
        self.tx.pass(frames, bytes);
    }

    /// Counts frames towards the wire that were dropped. For the owner of the port only.
    pub fn count_tx_drops(&self, reason: DropReason, frames: u64) {
        self.tx.drop(reason, frames);
    }

    /// Copies of frames from the wire that the port has made on their way to the card. What the kernel copies is not among
    /// them.
    pub fn rx_copies(&self) -> u64 {
        self.rx.copies.load(Ordering::Relaxed)
    }

    /// Copies of frames towards the wire that the port has made.
    pub fn tx_copies(&self) -> u64 {
        self.tx.copies.load(Ordering::Relaxed)
    }

    /// Counts copies of frames from the wire. For the owner of the port only.
    pub fn count_rx_copies(&self, frames: u64) {
        add(&self.rx.copies, frames);
    }

    /// Counts copies of frames towards the wire. For the owner of the port only.
    pub fn count_tx_copies(&self, frames: u64) {
        add(&self.tx.copies, frames);
    }

    /// Whether there is somebody at the other end, as far as the port can know: an interface that is up, a peer that is
    /// connected.
    pub fn link(&self) -> bool {
        !self.link_lost.load(Ordering::Relaxed)
    }

    /// Says whether there is a link. May be called by any thread of the port.
    pub fn set_link(&self, up: bool) {
        self.link_lost.store(!up, Ordering::Relaxed);
    }

    /// How the port drives its wire, in words for `stats`, such as "native XDP, zero copy"; empty if there is nothing to
    /// say.
    pub fn mode(&self) -> String {
        self.mode.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says how the port drives its wire. Not on the data path.
    pub fn set_mode(&self, mode: impl Into<String>) {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode.into();
    }

    /// Takes back frames that were counted as passed to the card and then did not get there.
    pub(crate) fn take_back_rx(&self, frames: u64, bytes: u64) {
        self.rx.pass(frames.wrapping_neg(), bytes.wrapping_neg());
    }

    /// Moves frames that were counted as sent, and then were not, to the drops.
    pub(crate) fn take_back_tx(&self, reason: DropReason, frames: u64, bytes: u64) {
        self.tx.pass(frames.wrapping_neg(), bytes.wrapping_neg());
        self.tx.drop(reason, frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_at_their_own_place_and_have_their_own_name() {
        for (at, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
            assert!(DropReason::ALL.into_iter().filter(|other| other.name() == reason.name()).count() == 1);
        }
    }

    #[test]
    fn offered_is_passed_plus_dropped() {
        let counters = PortCounters::new();
        counters.count_tx(5, 500);
        counters.count_tx_drops(DropReason::LinkDown, 2);
        counters.take_back_tx(DropReason::WriteFailed, 3, 300);
        assert_eq!((counters.tx_frames(), counters.tx_bytes(), counters.tx_offered()), (2, 200, 7));
        counters.count_rx(1, 60);
        counters.count_rx_drops(DropReason::NoRoom, 4);
        counters.count_rx_copies(1);
        assert_eq!((counters.rx_copies(), counters.tx_copies()), (1, 0));
        assert!(counters.link());
        counters.set_link(false);
        assert!(!counters.link());
        counters.set_mode("wood");
        assert_eq!(counters.mode(), "wood");
        assert_eq!((counters.rx_frames(), counters.rx_bytes(), counters.rx_offered()), (1, 60, 5));
        assert_eq!(counters.rx_drops().filter(|(_, count)| *count > 0).count(), 1);
        assert_eq!(counters.tx_dropped(DropReason::WriteFailed), 3);
    }

    #[test]
    fn a_second_frame_was_not_offered() {
        let counters = PortCounters::new();
        counters.count_rx(3, 180);
        counters.count_rx_events(Event::FaultDuplicate, 1);
        counters.count_rx_drops(DropReason::FaultLoss, 2);
        counters.count_tx_events(Event::TraceLost, 5);
        assert_eq!((counters.rx_offered(), counters.tx_offered()), (4, 0));
        assert_eq!(counters.rx_events().map(|(_, count)| count).sum::<u64>(), 1);
        assert_eq!(counters.tx_events().last(), Some((Event::TraceLost, 5)));
        for (at, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, at);
        }
    }
}
