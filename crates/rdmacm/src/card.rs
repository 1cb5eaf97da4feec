//! Verbs, as this library uses them: the device, and queue pair 1 with what comes and goes by it.
//!
//! Why `unsafe`: the functions are those of our `libibverbs.so.1`, which is C to us. All objects are made here, destroyed once, by
//! [`Card::close`], and used only between.

use crate::abi::{
    Ah, AhAttr, CompChannel, Context, Cq, Device, DeviceAttr, GidBytes, Grh, Mr, OLD_PORT_ATTR, Pd, PortAttr, Qp,
    QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Sge, Wc, qp_mask, send_flags, wc_flags,
};
use core::ffi::{c_int, c_void};
use core::{mem, ptr};
use millrace_rdma::cm::address::ServiceId;
use millrace_rdma::cm::connection::Peer;
use millrace_rdma::cm::manager::Ids;
use millrace_rdma::cm::message::{Bytes, GENERAL_QKEY, LEN};
use millrace_rdma::number::Gid;
use rustix::fd::BorrowedFd;

unsafe extern "C" {
    pub fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device;
    pub fn ibv_free_device_list(list: *mut *mut Device);
    pub fn ibv_open_device(device: *mut Device) -> *mut Context;
    pub fn ibv_close_device(context: *mut Context) -> c_int;
    pub fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int;
    pub fn ibv_query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int;
    pub fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, to: *mut GidBytes) -> c_int;
    pub fn ibv_alloc_pd(context: *mut Context) -> *mut Pd;
    pub fn ibv_dealloc_pd(pd: *mut Pd) -> c_int;
    pub fn ibv_reg_mr(pd: *mut Pd, address: *mut c_void, len: usize, access: c_int) -> *mut Mr;
    pub fn ibv_dereg_mr(mr: *mut Mr) -> c_int;
    pub fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel;
    pub fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int;
    pub fn ibv_create_cq(
        context: *mut Context,
        entries: c_int,
        cq_context: *mut c_void,
        channel: *mut CompChannel,
        vector: c_int,
    ) -> *mut Cq;
    pub fn ibv_destroy_cq(cq: *mut Cq) -> c_int;
    pub fn ibv_get_cq_event(channel: *mut CompChannel, cq: *mut *mut Cq, context: *mut *mut c_void) -> c_int;
    pub fn ibv_ack_cq_events(cq: *mut Cq, count: u32);
    pub fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp;
    pub fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int;
    pub fn ibv_destroy_qp(qp: *mut Qp) -> c_int;
    pub fn ibv_destroy_ah(ah: *mut Ah) -> c_int;
    fn ibv_init_ah_from_wc(context: *mut Context, port: u8, wc: *mut Wc, grh: *mut Grh, attr: *mut AhAttr) -> c_int;
    fn millrace_create_general_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp;
    fn millrace_general_ids(context: *mut Context, first: *mut u32, bits: *mut u8) -> c_int;
    fn millrace_has_gone(context: *mut Context) -> c_int;
    fn millrace_offer_service(context: *mut Context, service: u64, offers: c_int) -> c_int;
    fn millrace_create_ah_now(pd: *mut Pd, attr: *const AhAttr, asks: c_int) -> *mut Ah;
}

/// Messages that can wait in the receive queue, and in the send queue.
const DEPTH: usize = 256;
/// Bytes before a datagram.
const GRH: usize = 40;
const SLOT: usize = GRH + LEN;
/// Completions taken at once.
const TAKEN: usize = 32;
const LOCAL_WRITE: c_int = 1;
/// Of a completion of a receive request.
const RECEIVED: u32 = 128;
/// `IBV_QPT_UD`.
pub(crate) const DATAGRAM: u32 = 4;
/// `IBV_QPT_RC`.
pub(crate) const RELIABLE: u32 = 2;

/// The error number of this thread.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn there<T>(object: *mut T) -> Result<*mut T, i32> {
    if object.is_null() { Err(errno()) } else { Ok(object) }
}

fn done(code: c_int) -> Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// The descriptor of [`Card::fd`], for waiting.
pub(crate) fn borrow(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: at most another descriptor of the process is waited on, after the card is closed; nothing is read from it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// An open device with queue pair 1.
pub(crate) struct Card {
    context: *mut Context,
    pd: *mut Pd,
    channel: *mut CompChannel,
    cq: *mut Cq,
    qp: *mut Qp,
    region: *mut Mr,
    buffers: Box<[u8]>,
    /// The table of GIDs.
    pub gids: [Gid; 4],
    /// The number of the device, in the order of the processor.
    pub guid: u64,
    /// Numbers that connections may have.
    pub ids: Ids,
    /// Strangers whose MAC addresses may be asked for at once. In a card there are 16 of each program, and some are for those that it calls.
    pub most_asked: usize,
    /// Longest payload of packets, as 1 to 5.
    pub mtu: u8,
    /// READs and atomic operations that there may be at once.
    pub most_reads: u8,
    /// Datagrams that came to queue pair 1 and were none of connection management between two of its kind.
    pub foreign: u64,
}

// SAFETY: objects of verbs may be used by any thread; this one is used by one at a time, as no function takes it shared but those that
// only read.
unsafe impl Send for Card {}

impl Card {
    /// Opens the first device.
    pub fn open() -> Result<Self, i32> {
        // SAFETY: the list is given back once, its devices live as long as the process.
        let context = unsafe {
            let list = there(ibv_get_device_list(ptr::null_mut()))?;
            let device = *list;
            ibv_free_device_list(list);
            if device.is_null() {
                return Err(libc::ENODEV);
            }
            there(ibv_open_device(device))?
        };
        let mut card = Self {
            context,
            pd: ptr::null_mut(),
            channel: ptr::null_mut(),
            cq: ptr::null_mut(),
            qp: ptr::null_mut(),
            region: ptr::null_mut(),
            buffers: vec![0; DEPTH * SLOT].into_boxed_slice(),
            gids: [Gid([0; 16]); 4],
            guid: 0,
            ids: Ids::ALL,
            most_asked: usize::MAX,
            mtu: 1,
            most_reads: 0,
            foreign: 0,
        };
        match card.prepare() {
            Ok(()) => Ok(card),
            Err(error) => {
                card.close();
                Err(error)
            }
        }
    }

    fn prepare(&mut self) -> Result<(), i32> {
        // SAFETY: all zeros are such structures; the context is open, and its functions write into them.
        unsafe {
            let mut device: DeviceAttr = mem::zeroed();
            done(ibv_query_device(self.context, &mut device))?;
            self.guid = u64::from_be(device.node_guid);
            self.most_reads = device.max_qp_rd_atom.clamp(0, 255) as u8;
            const { assert!(size_of::<PortAttr>() >= OLD_PORT_ATTR) };
            let mut port: PortAttr = mem::zeroed();
            done(ibv_query_port(self.context, 1, &mut port))?;
            self.mtu = port.active_mtu as u8;
            for index in 0..self.gids.len() {
                let mut gid = GidBytes([0; 16]);
                if ibv_query_gid(self.context, 1, index as c_int, &mut gid) == 0 {
                    self.gids[index] = Gid(gid.0);
                }
            }
            self.pd = there(ibv_alloc_pd(self.context))?;
            self.channel = there(ibv_create_comp_channel(self.context))?;
            self.cq = there(ibv_create_cq(self.context, 2 * DEPTH as c_int, ptr::null_mut(), self.channel, 0))?;
            let first = self.buffers.as_mut_ptr().cast();
            self.region = there(ibv_reg_mr(self.pd, first, self.buffers.len(), LOCAL_WRITE))?;
            let cap = QpCap {
                max_send_wr: DEPTH as u32,
                max_recv_wr: DEPTH as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: LEN as u32,
            };
            let mut init = QpInitAttr {
                qp_context: ptr::null_mut(),
                send_cq: self.cq,
                recv_cq: self.cq,
                srq: ptr::null_mut(),
                cap,
                qp_type: DATAGRAM,
                sq_sig_all: 1,
            };
            self.qp = there(millrace_create_general_qp(self.pd, &mut init))?;
            datagrams_ready(self.qp, GENERAL_QKEY)?;
            let Ids { first, bits, .. } = &mut self.ids;
            done(millrace_general_ids(self.context, first, bits))?;
            if *bits < 32 {
                self.ids.gids = self.gids;
                self.most_asked = 8;
            }
        }
        self.set_nonblocking()?;
        (0..DEPTH).try_for_each(|slot| self.post(slot))?;
        self.watch()
    }

    /// Calls of a service are for this process from now on, or no longer. EADDRINUSE: they are another's, which has the same address.
    pub fn offer(&self, service: ServiceId, offers: bool) -> Result<(), i32> {
        // SAFETY: the context is open.
        done(unsafe { millrace_offer_service(self.context, service.0, offers.into()) })
    }

    fn set_nonblocking(&self) -> Result<(), i32> {
        // SAFETY: only flags of a descriptor that is open.
        let code = unsafe { libc::fcntl(self.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        if code == 0 { Ok(()) } else { Err(errno()) }
    }

    /// Whether there is no card any more. [`Card::fd`] is readable then.
    pub fn has_gone(&self) -> bool {
        // SAFETY: the context is open.
        unsafe { millrace_has_gone(self.context) != 0 }
    }

    pub fn context(&self) -> *mut Context {
        self.context
    }

    /// The protection domain of identifiers whose program names none.
    pub fn domain(&self) -> *mut Pd {
        self.pd
    }

    /// What is readable when something has come.
    pub fn fd(&self) -> c_int {
        // SAFETY: the channel is there as long as the card.
        unsafe { (*self.channel).fd }
    }

    fn post(&mut self, slot: usize) -> Result<(), i32> {
        // SAFETY: the slot is one of ours, in the region, and nobody looks at it until its completion.
        unsafe {
            let piece = Sge {
                addr: self.buffers.as_ptr() as u64 + (slot * SLOT) as u64,
                length: SLOT as u32,
                lkey: (*self.region).lkey,
            };
            let mut request = RecvWr { wr_id: slot as u64, next: ptr::null_mut(), sg_list: &piece, num_sge: 1 };
            let mut bad = ptr::null_mut();
            let post = (*self.context).ops.post_recv.ok_or(libc::ENOSYS)?;
            done(post(self.qp, &mut request, &mut bad))
        }
    }

    /// The next completion is to be told by the descriptor.
    fn watch(&self) -> Result<(), i32> {
        // SAFETY: the queue is there as long as the card.
        unsafe { done((*self.context).ops.req_notify_cq.ok_or(libc::ENOSYS)?(self.cq, 0)) }
    }

    /// Takes what has come, some of it. Whether there may be more.
    pub fn receive(&mut self, mut take: impl FnMut(Peer, &[u8])) -> bool {
        // SAFETY: as for all calls here.
        unsafe {
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            let mut events = 0;
            while events < TAKEN as u32 && ibv_get_cq_event(self.channel, &mut cq, &mut context) == 0 {
                events += 1;
            }
            if events > 0 {
                ibv_ack_cq_events(self.cq, events);
            }
        }
        let _ = self.watch();
        // SAFETY: all zeros are completions.
        let mut found: [Wc; TAKEN] = unsafe { mem::zeroed() };
        // SAFETY: there is room for as many.
        let count = unsafe {
            let poll = (*self.context).ops.poll_cq;
            poll.map_or(0, |poll| poll(self.cq, TAKEN as c_int, found.as_mut_ptr()))
        };
        let count = usize::try_from(count).unwrap_or(0);
        for wc in &mut found[..count] {
            if wc.opcode & RECEIVED == 0 {
                continue;
            }
            let slot = wc.wr_id as usize;
            if wc.status == 0 {
                match self.sender(wc, slot) {
                    Some(peer) => {
                        let len = (wc.byte_len as usize).clamp(GRH, SLOT);
                        take(peer, &self.buffers[slot * SLOT + GRH..slot * SLOT + len]);
                    }
                    None => self.foreign += 1,
                }
                let _ = self.post(slot);
            }
        }
        count == TAKEN
    }

    /// Who has sent it: queue pair 1 of somebody.
    fn sender(&self, wc: &mut Wc, slot: usize) -> Option<Peer> {
        if wc.wc_flags & wc_flags::GRH == 0 || wc.src_qp != 1 {
            return None;
        }
        let mut grh = Grh(*self.buffers.get(slot * SLOT..)?.first_chunk()?);
        let mut attr = NO_VECTOR;
        // SAFETY: the context is open; all three are ours.
        let code = unsafe { ibv_init_ah_from_wc(self.context, 1, wc, &mut grh, &mut attr) };
        (code == 0).then_some(Peer { gid: Gid(attr.dgid.0), index: attr.sgid_index })
    }

    /// Sends a message to queue pair 1 of somebody. EAGAIN while its MAC address is not known, for which it `asks`; ENOMEM when too many
    /// wait.
    pub fn send(&mut self, peer: Peer, bytes: &Bytes, asks: bool) -> Result<(), i32> {
        let ah = self.handle(peer, asks)?;
        let piece = Sge { addr: bytes.as_ptr() as u64, length: LEN as u32, lkey: 0 };
        // SAFETY: bytes that are inline are copied by the call; requests have the way by themselves, so the handle goes at once.
        unsafe {
            let mut request: SendWr = mem::zeroed();
            (request.sg_list, request.num_sge) = (&piece, 1);
            request.opcode = crate::abi::opcode::SEND;
            request.send_flags = send_flags::INLINE | send_flags::SIGNALED;
            request.wr.ud = crate::abi::UdWr { ah, remote_qpn: 1, remote_qkey: GENERAL_QKEY };
            let mut bad = ptr::null_mut();
            let code = match (*self.context).ops.post_send {
                Some(post) => post(self.qp, &mut request, &mut bad),
                None => libc::ENOSYS,
            };
            ibv_destroy_ah(ah);
            done(code)
        }
    }

    /// Whether the MAC address of somebody is known. EAGAIN while it is not; it `asks` for it.
    pub fn reach(&mut self, peer: Peer, asks: bool) -> Result<(), i32> {
        let ah = self.handle(peer, asks)?;
        // SAFETY: just made.
        unsafe { ibv_destroy_ah(ah) };
        Ok(())
    }

    fn handle(&self, peer: Peer, asks: bool) -> Result<*mut Ah, i32> {
        let attr = vector(peer, 64, 0);
        // SAFETY: the domain is there as long as the card.
        unsafe { there(millrace_create_ah_now(self.pd, &attr, asks.into())) }
    }

    /// Destroys everything. What a program has made with the context keeps the device open until it goes, too.
    pub fn close(self) {
        // SAFETY: each object was made here, and is destroyed once, after those that use it.
        unsafe {
            if !self.qp.is_null() {
                ibv_destroy_qp(self.qp);
            }
            if !self.cq.is_null() {
                ibv_destroy_cq(self.cq);
            }
            if !self.channel.is_null() {
                ibv_destroy_comp_channel(self.channel);
            }
            if !self.region.is_null() {
                ibv_dereg_mr(self.region);
            }
            if !self.pd.is_null() {
                ibv_dealloc_pd(self.pd);
            }
            ibv_close_device(self.context);
        }
    }
}

const NO_VECTOR: AhAttr = AhAttr {
    dgid: GidBytes([0; 16]),
    flow_label: 0,
    sgid_index: 0,
    hop_limit: 0,
    traffic_class: 0,
    dlid: 0,
    sl: 0,
    src_path_bits: 0,
    static_rate: 0,
    is_global: 1,
    port_num: 1,
};

/// The address vector of somebody.
pub(crate) fn vector(peer: Peer, hop_limit: u8, traffic_class: u8) -> AhAttr {
    AhAttr { dgid: GidBytes(peer.gid.0), sgid_index: peer.index, hop_limit, traffic_class, ..NO_VECTOR }
}

/// From RESET to RTS.
///
/// # Safety
/// `qp` is a queue pair for datagrams.
pub(crate) unsafe fn datagrams_ready(qp: *mut Qp, qkey: u32) -> Result<(), i32> {
    // SAFETY: all zeros are such a structure; the caller's promise.
    unsafe {
        let mut attr: QpAttr = mem::zeroed();
        (attr.qp_state, attr.port_num, attr.qkey) = (1, 1, qkey);
        let mask = qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | qp_mask::QKEY;
        done(ibv_modify_qp(qp, &mut attr, mask as c_int))?;
        attr.qp_state = 2;
        done(ibv_modify_qp(qp, &mut attr, qp_mask::STATE as c_int))?;
        attr.qp_state = 3;
        done(ibv_modify_qp(qp, &mut attr, (qp_mask::STATE | qp_mask::SEND_PSN) as c_int))
    }
}
