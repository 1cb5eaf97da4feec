//! Sockets of AF_XDP for whoever has an XDP program of its own: frames are worked on where they lie, and leave by any of the sockets, because all of
//! them share one memory.
//!
//! A frame has an owner: the kernel, while it waits in a fill ring to be filled or in a transmit ring to be sent; otherwise whoever has the
//! [`Frame`]. One that is given back, or was sent, is filled again.

use super::{
    AfXdpError, checksum,
    queue::Dropped,
    ring::{Consumer, Producer, RING},
    socket::{HEADROOM, Layout, RELEASE, size_rings, tune},
    sys::{self, RingMemory},
};
use crate::link::Interface;
use crate::spec::InterfaceName;
use millrace_dma::{Pages, Region, RegionError, Window};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with, sockopt,
        xdp::{
            SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
            XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions,
        },
    },
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Bytes of memory for each frame.
const FRAME: usize = 2048;

/// The longest frame that is received: what the kernel leaves free in front of it, and as much behind it, are for what is put around a packet.
pub const LONGEST: usize = FRAME - 2 * HEADROOM;

/// A frame that is ours: a place in the memory of [`Sockets`].
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// Where its memory begins.
    base: usize,
    /// Where the frame lies in it.
    at: usize,
    len: usize,
}

impl Frame {
    /// Where the frame lies in [`Sockets::memory`].
    pub fn range(&self) -> std::ops::Range<usize> {
        self.at..self.at + self.len
    }
}

/// What was counted of one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that came, and found no place.
    pub no_room: u64,
    /// Frames that came, and were too long.
    pub too_long: u64,
    /// Frames that the kernel did not send.
    pub not_sent: u64,
}

/// One socket, on one queue of an interface.
struct Socket {
    interface: u32,
    queue: u32,
    fd: OwnedFd,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    rx: Consumer<XdpDesc>,
    tx: Producer<XdpDesc>,
    /// Frames that the kernel has of it: in the fill ring, or still to be sent.
    out: usize,
}

/// Sockets that share one memory.
pub struct Sockets {
    memory: Window,
    _region: Region,
    sockets: Vec<Option<Socket>>,
    /// Frames that are nobody's.
    free: Vec<u64>,
    /// Frames that a socket took with it when it was closed.
    lost: usize,
}

impl Sockets {
    /// Memory for `frames` frames, and no socket yet.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(frames: usize) -> Result<Self, RegionError> {
        let region = Region::allocate(frames * FRAME, Pages::HugeIfAny)?;
        let memory = region.part(0, frames * FRAME).expect("no more than was allocated");
        Ok(Self {
            memory,
            _region: region,
            sockets: Vec::new(),
            free: (0..frames).rev().map(|frame| (frame * FRAME) as u64).collect(),
            lost: 0,
        })
    }

    /// How many queues for receiving an interface has.
    pub fn queues(name: &InterfaceName) -> u32 {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        socket.ok().and_then(|socket| sys::receive_queues(&socket, name)).unwrap_or(1).max(1)
    }

    /// Opens a socket on one queue of the interface of that number, and gives its number. Frames come when an XDP program sends them to its [`fd`](Self::fd). While one socket is
    /// open, frames of the memory are only where they may be; so all have to be closed before memory is given up.
    ///
    /// # Errors
    /// [`AfXdpError`].
    pub fn open(&mut self, name: &InterfaceName, index: u32, queue: u32) -> Result<usize, AfXdpError> {
        let failed = |step| move |errno| AfXdpError::from_errno(errno, step, name);
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
        let fd = fd.map_err(failed("open a socket for"))?;
        let interface = Interface::find(index).map_err(failed("look at"))?;
        if Layout::for_mtu(interface.mtu).longest as usize > LONGEST {
            let most = (LONGEST - 22) as u32;
            return Err(AfXdpError::Mtu { name: name.clone(), mtu: interface.mtu, most });
        }
        let shared = self.sockets.iter().flatten().next().map(|first| &first.fd);
        if shared.is_none() {
            let registration = sys::umem(&self.memory, FRAME as u32, false);
            sockopt::set_xdp_umem_reg(&fd, registration).map_err(|errno| match errno {
                Errno::NOBUFS | Errno::NOMEM => AfXdpError::LockedMemory(name.clone(), self.memory.len() / 1024),
                _ => AfXdpError::from_errno(errno, "register the memory of", name),
            })?;
        }
        size_rings(&fd).map_err(failed("make the rings of"))?;
        bind_to(&fd, index, queue, shared).map_err(|errno| match errno {
            Errno::BUSY => AfXdpError::QueueBusy { name: name.clone(), queue },
            _ => AfXdpError::from_errno(errno, "bind to a queue of", name),
        })?;
        tune(&fd, false);
        let socket = map_rings(fd, index, queue).map_err(failed("map the rings of"))?;
        let number = self.sockets.iter().position(Option::is_none).unwrap_or(self.sockets.len());
        if number == self.sockets.len() {
            self.sockets.push(None);
        }
        self.sockets[number] = Some(socket);
        self.refill();
        Ok(number)
    }

    /// Closes a socket. The frames that the kernel has of it do not come back.
    pub fn close(&mut self, number: usize) {
        if let Some(socket) = self.sockets.get_mut(number).and_then(Option::take) {
            self.lost += socket.out;
        }
    }

    /// Frames that are of no more use: when there are many, everything is better begun anew.
    pub const fn lost(&self) -> usize {
        self.lost
    }

    /// The socket itself, for an XDP program's map.
    pub fn fd(&self, number: usize) -> Option<BorrowedFd<'_>> {
        self.sockets.get(number)?.as_ref().map(|socket| socket.fd.as_fd())
    }

    /// All sockets, to wait for frames.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().flatten().map(|socket| socket.fd.as_fd())
    }

    /// All memory, in which frames lie.
    pub fn memory(&mut self) -> &mut [u8] {
        let len = self.memory.len();
        self.memory.slice_mut(0, len).unwrap_or_default()
    }

    /// The memory of one frame, which it may move in: where that begins, and the bytes.
    pub fn place(&mut self, frame: &Frame) -> (usize, &mut [u8]) {
        (frame.base, self.memory.slice_mut(frame.base, FRAME).unwrap_or_default())
    }

    /// The next frame that has come to a socket, with its checksums complete. A frame of which the kernel says that it lies elsewhere is not there.
    #[inline]
    pub fn receive(&mut self, number: usize) -> Option<Frame> {
        let socket = self.sockets.get_mut(number)?.as_mut()?;
        if socket.rx.available(1) == 0 {
            return None;
        }
        let XdpDesc { addr, len, .. } = socket.rx.peek(0);
        socket.rx.release(1);
        socket.out -= 1;
        let (at, len) = (addr as usize, len as usize);
        let base = at / FRAME * FRAME;
        if at - base < HEADROOM || at + len > base + FRAME || base + FRAME > self.memory.len() {
            self.lost += 1;
            return None;
        }
        if self.memory.slice(at, len).is_some_and(checksum::is_unfinished) {
            self.memory.slice_mut(at, len).map(checksum::finish);
        }
        Some(Frame { base, at, len })
    }

    /// Sends what lies at `range` of the memory of a frame, by that socket, with the next [`flush`](Self::flush). `Err`: there is no room now, or no such
    /// socket, or the range is not in the frame's memory.
    #[inline]
    pub fn send(&mut self, number: usize, frame: Frame, range: std::ops::Range<usize>) -> Result<(), Frame> {
        let Some(Some(socket)) = self.sockets.get_mut(number) else { return Err(frame) };
        let is_inside = range.start >= frame.base && range.end <= frame.base + FRAME && range.start < range.end;
        if !is_inside || socket.tx.room(1) == 0 {
            return Err(frame);
        }
        socket.tx.push(XdpDesc { addr: range.start as u64, len: range.len() as u32, options: XdpDescOptions::empty() });
        socket.out += 1;
        Ok(())
    }

    /// A frame is not needed any more.
    #[inline]
    pub fn give_back(&mut self, frame: Frame) {
        self.free.push(frame.base as u64);
    }

    /// A frame of our own, with `bytes` in it; none where all are in use, or it is too long.
    pub fn fresh(&mut self, bytes: &[u8]) -> Option<Frame> {
        let base = self.free.pop()? as usize;
        let frame = Frame { base, at: base + HEADROOM, len: bytes.len() };
        match self.memory.slice_mut(frame.at, bytes.len()) {
            Some(place) if bytes.len() <= LONGEST => {
                place.copy_from_slice(bytes);
                Some(frame)
            }
            _ => {
                self.give_back(frame);
                None
            }
        }
    }

    /// Sends what was collected, takes back what was sent, and has the kernel fill what is free. How many frames the kernel refused to send.
    pub fn flush(&mut self) -> u64 {
        let mut failed = 0;
        for socket in self.sockets.iter_mut().flatten() {
            socket.tx.publish();
            failed += socket.wake();
            socket.reap(&mut self.free);
        }
        self.refill();
        failed
    }

    /// Gives frames that are free to all sockets whose fill rings have less than half.
    fn refill(&mut self) {
        let open = self.sockets.iter().flatten().count().max(1);
        let share = (self.free.len() / open).max(64) as u32;
        for socket in self.sockets.iter_mut().flatten() {
            let room = socket.fill.room(RING);
            if room < 64 {
                continue;
            }
            for _ in 0..room.min(share).min(RING) {
                let Some(at) = self.free.pop() else { break };
                socket.fill.push(at);
                socket.out += 1;
            }
            socket.fill.publish();
            if socket.fill.needs_wakeup() {
                let _ = recv(&socket.fd, &mut [0u8; 0][..], RecvFlags::DONTWAIT);
            }
        }
    }

    /// What the kernel has counted since the sockets were opened.
    pub fn counts(&self) -> Counts {
        self.sockets.iter().flatten().fold(Counts::default(), |sum, socket| {
            let Ok(statistics) = sockopt::xdp_statistics(&socket.fd) else { return sum };
            let [no_room, too_long, not_sent] = Dropped::of(&statistics, false).numbers();
            Counts {
                no_room: sum.no_room + no_room,
                too_long: sum.too_long + too_long,
                not_sent: sum.not_sent + not_sent,
            }
        })
    }

    /// Interface and queue of a socket.
    pub fn of(&self, number: usize) -> Option<(u32, u32)> {
        self.sockets.get(number)?.as_ref().map(|socket| (socket.interface, socket.queue))
    }
}

impl Socket {
    /// Has the kernel send what waits; one call takes as many as the kernel thinks fit.
    fn wake(&mut self) -> u64 {
        let mut waiting = self.tx.waiting();
        while waiting > 0 && self.tx.needs_wakeup() {
            match send(&self.fd, &[], SendFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                Err(_) => return waiting.into(),
            }
            let before = std::mem::replace(&mut waiting, self.tx.waiting());
            if waiting == before {
                break;
            }
        }
        0
    }

    fn reap(&mut self, free: &mut Vec<u64>) {
        let count = self.completion.available(RING);
        for ahead in 0..count {
            free.push(self.completion.peek(ahead) / FRAME as u64 * FRAME as u64);
        }
        self.completion.release(count);
        self.out = self.out.saturating_sub(count as usize);
    }
}

fn bind_to(fd: &OwnedFd, interface: u32, queue: u32, shared: Option<&OwnedFd>) -> Result<(), Errno> {
    let try_to_bind = || match shared {
        // Sockets that share take over how the first was bound.
        Some(first) => {
            let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, interface, queue);
            bind(fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: first.as_fd() })
        }
        None => {
            let flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | SocketAddrXdpFlags::XDP_COPY;
            bind(fd, &SocketAddrXdp::new(flags, interface, queue))
        }
    };
    let end = Instant::now() + RELEASE;
    let mut bound = try_to_bind();
    while bound == Err(Errno::BUSY) && Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(5));
        bound = try_to_bind();
    }
    bound
}

fn map_rings(fd: OwnedFd, interface: u32, queue: u32) -> Result<Socket, Errno> {
    let at = sockopt::xdp_mmap_offsets(&fd)?;
    let of = fd.as_fd();
    let fill = Producer::new(RingMemory::map(of, XDP_UMEM_PGOFF_FILL_RING, at.fr, RING)?);
    let completion = Consumer::new(RingMemory::map(of, XDP_UMEM_PGOFF_COMPLETION_RING, at.cr, RING)?);
    let rx = Consumer::new(RingMemory::map(of, XDP_PGOFF_RX_RING, at.rx, RING)?);
    let tx = Producer::new(RingMemory::map(of, XDP_PGOFF_TX_RING, at.tx, RING)?);
    Ok(Socket { interface, queue, fd, fill, completion, rx, tx, out: 0 })
}
