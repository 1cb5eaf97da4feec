//! From an interface to queues that run.

use super::{
    AfXdpError,
    loan::Loan,
    program::Program,
    queue::{Assembly, Dropped, Queue},
    ring::{Consumer, Producer, RING},
    sys::{self, RingMemory, SocketOption},
};
use crate::link::Interface;
use crate::spec::{AfXdpSpec, InterfaceName, XdpMode};
use millrace_dma::Window;
use rustix::{
    io::{self, Errno},
    net::{
        AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt,
        xdp::{
            SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
            XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags,
        },
    },
};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// What the kernel leaves free before a frame that it receives.
pub(super) const HEADROOM: usize = 256;

/// Ethernet header and two VLAN tags.
const LINK_HEADERS: usize = 14 + 8;

/// How frames of an interface lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of memory for each frame, or for each piece of one.
    pub frame_size: usize,
    /// The longest frame, in bytes.
    pub longest: u32,
    /// Whether frames may need several.
    pub pieces: bool,
}

impl Layout {
    /// The smallest that holds frames of packets of `mtu` bytes.
    pub fn for_mtu(mtu: u32) -> Self {
        let longest = mtu + LINK_HEADERS as u32;
        let len = longest as usize + HEADROOM;
        Self { frame_size: if len <= 2048 { 2048 } else { 4096 }, longest, pieces: len > 4096 }
    }

    /// Bytes of memory for `queues` queues.
    pub fn memory(self, queues: u32) -> usize {
        2 * RING as usize * queues as usize * self.frame_size
    }
}

/// The largest MTU whose frames fit into one piece.
pub(super) const MTU_OF_ONE_PIECE: u32 = (4096 - HEADROOM - LINK_HEADERS) as u32;

/// The memory of a queue.
pub(super) struct Memory {
    /// All of it, as the kernel sees it.
    pub window: Window,
    /// What the kernel may write of a frame, in bytes.
    pub chunk: u32,
    /// Bytes of an application at its beginning; 0: none.
    pub loan: usize,
    /// Where our own frames begin. Those for receiving, unless the application's are used for that; then those for sending.
    pub own_at: usize,
}

impl Memory {
    /// The part of queue `number` in memory of our own that all queues share.
    pub fn own(window: &Window, layout: Layout, number: u32) -> Self {
        let own_at = layout.memory(number);
        Self { window: window.clone(), chunk: layout.frame_size as u32, loan: 0, own_at }
    }
}

/// Opens as many sockets as the specification asks for, bound to nothing yet.
pub(super) fn open(spec: &AfXdpSpec) -> Result<Vec<OwnedFd>, AfXdpError> {
    (0..spec.queues.get()).map(|_| open_one(spec)).collect()
}

fn open_one(spec: &AfXdpSpec) -> Result<OwnedFd, AfXdpError> {
    let opened = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
    opened.map_err(|errno| AfXdpError::from_errno(errno, "open a socket for", &spec.name))
}

/// Binds the sockets to the queues of the interface, over one memory that they share.
pub(super) fn start(
    spec: &AfXdpSpec,
    interface: &Interface,
    program: &Program,
    layout: Layout,
    window: &Window,
    sockets: Vec<OwnedFd>,
) -> Result<Vec<Queue>, AfXdpError> {
    let first = &sockets[0];
    register(spec, first, &Memory::own(window, layout, 0))?;
    for (queue, socket) in sockets.iter().enumerate() {
        let shared = (queue > 0).then_some(first);
        bind_queue(spec, interface, program, layout, queue as u32, socket, shared)?;
    }
    let run = |(number, socket)| {
        let number = number as u32;
        run_queue(spec, program, layout, number, socket, &Memory::own(window, layout, number))
    };
    sockets.into_iter().enumerate().map(run).collect()
}

/// Opens queue `number` of the interface once more, over memory that it shares with no other.
pub(super) fn restart(
    spec: &AfXdpSpec,
    interface: &Interface,
    program: &Program,
    layout: Layout,
    number: u32,
    memory: &Memory,
) -> Result<Queue, AfXdpError> {
    let socket = open_one(spec)?;
    register(spec, &socket, memory)?;
    bind_queue(spec, interface, program, layout, number, &socket, None)?;
    run_queue(spec, program, layout, number, socket, memory)
}

fn register(spec: &AfXdpSpec, socket: &OwnedFd, memory: &Memory) -> Result<(), AfXdpError> {
    let (name, len) = (&spec.name, memory.window.len());
    let registration = sys::umem(&memory.window, memory.chunk, memory.loan > 0);
    sockopt::set_xdp_umem_reg(socket, registration).map_err(|errno| match errno {
        Errno::NOBUFS | Errno::NOMEM => AfXdpError::LockedMemory(name.clone(), len / 1024),
        _ => AfXdpError::from_errno(errno, "register the memory of", name),
    })
}

fn run_queue(
    spec: &AfXdpSpec,
    program: &Program,
    layout: Layout,
    number: u32,
    socket: OwnedFd,
    memory: &Memory,
) -> Result<Queue, AfXdpError> {
    let failed = |step| move |errno| AfXdpError::from_errno(errno, step, &spec.name);
    tune(&socket, spec.busy_poll);
    let queue = map_rings(memory, layout, socket, spec.busy_poll).map_err(failed("map the rings of"))?;
    program.redirect(number, &queue).map_err(failed("direct frames to"))?;
    Ok(queue)
}

pub(super) fn size_rings(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_xdp_umem_fill_ring_size(socket, RING)?;
    sockopt::set_xdp_umem_completion_ring_size(socket, RING)?;
    sockopt::set_xdp_rx_ring_size(socket, RING)?;
    sockopt::set_xdp_tx_ring_size(socket, RING)
}

/// How long a queue may still be busy whose socket has been closed: Linux lets go of it in a kernel thread.
pub(super) const RELEASE: Duration = Duration::from_millis(500);

fn bind_queue(
    spec: &AfXdpSpec,
    interface: &Interface,
    program: &Program,
    layout: Layout,
    queue: u32,
    socket: &OwnedFd,
    shared: Option<&OwnedFd>,
) -> Result<(), AfXdpError> {
    let name = &spec.name;
    size_rings(socket).map_err(|errno| AfXdpError::from_errno(errno, "make the rings of", name))?;
    // Sockets that share take over how the first was bound.
    let try_to_bind = || {
        if let Some(first) = shared {
            let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, interface.index, queue);
            return bind(socket, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: first.as_fd() });
        }
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        flags.set(SocketAddrXdpFlags::XDP_USE_SG, layout.pieces);
        match spec.mode {
            XdpMode::ZeroCopy => flags |= SocketAddrXdpFlags::XDP_ZEROCOPY,
            XdpMode::Auto if program.generic.is_none() => {}
            _ => flags |= SocketAddrXdpFlags::XDP_COPY,
        }
        bind(socket, &SocketAddrXdp::new(flags, interface.index, queue))
    };
    let end = Instant::now() + RELEASE;
    let mut bound = try_to_bind();
    while bound == Err(Errno::BUSY) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
        bound = try_to_bind();
    }
    bound.map_err(|errno| match errno {
        Errno::BUSY => AfXdpError::QueueBusy { name: name.clone(), queue },
        Errno::OPNOTSUPP if spec.mode == XdpMode::ZeroCopy => AfXdpError::NoZeroCopy(name.clone()),
        Errno::INVAL if queue > 0 => AfXdpError::NoSuchQueue { name: name.clone(), queues: spec.queues.get().into() },
        Errno::INVAL | Errno::OPNOTSUPP if layout.pieces => too_long(name, interface),
        _ => AfXdpError::from_errno(errno, "bind to a queue of", name),
    })
}

/// Frames of several pieces are needed and cannot be had (before Linux 6.6, and from some drivers).
pub(super) fn too_long(name: &InterfaceName, interface: &Interface) -> AfXdpError {
    AfXdpError::Mtu { name: name.clone(), mtu: interface.mtu, most: MTU_OF_ONE_PIECE }
}

/// What makes it faster and is no harm where it is missing.
pub(super) fn tune(socket: &OwnedFd, busy_poll: bool) {
    let _ = sys::set_option(socket, SocketOption::TransmitBudget, RING as i32);
    let _ = sockopt::set_socket_send_buffer_size_force(socket, 4 << 20);
    if busy_poll {
        let _ = sys::set_option(socket, SocketOption::PreferBusyPoll, 1);
        let _ = sys::set_option(socket, SocketOption::BusyPoll, 20);
        let _ = sys::set_option(socket, SocketOption::BusyPollBudget, 64);
    }
}

fn map_rings(memory: &Memory, layout: Layout, socket: OwnedFd, busy_poll: bool) -> io::Result<Queue> {
    let at = sockopt::xdp_mmap_offsets(&socket)?;
    let fd = socket.as_fd();
    let mut fill = Producer::new(RingMemory::map(fd, XDP_UMEM_PGOFF_FILL_RING, at.fr, RING)?);
    let completion = Consumer::new(RingMemory::map(fd, XDP_UMEM_PGOFF_COMPLETION_RING, at.cr, RING)?);
    let rx = Consumer::new(RingMemory::map(fd, XDP_PGOFF_RX_RING, at.rx, RING)?);
    let tx = Producer::new(RingMemory::map(fd, XDP_PGOFF_TX_RING, at.tx, RING)?);
    let own = |from: u32| {
        let at = move |frame: u32| (memory.own_at + frame as usize * layout.frame_size) as u64;
        (from..from + RING).map(at)
    };
    let loan = (memory.loan > 0).then(|| Loan::new(memory.loan));
    let for_sending = if loan.is_some() { own(0) } else { own(RING) };
    if loan.is_none() {
        own(0).for_each(|frame| fill.push(frame));
        fill.publish();
    }
    let zero_copy = sockopt::xdp_options(&socket)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
    Ok(Queue {
        memory: memory.window.clone(),
        frame_size: layout.frame_size.min(memory.chunk as usize),
        loan,
        fill,
        completion,
        rx,
        tx,
        free: for_sending.rev().collect(),
        socket,
        assembly: layout.pieces.then(Assembly::new),
        zero_copy,
        busy_poll,
        dropped: Dropped::default(),
    })
}
