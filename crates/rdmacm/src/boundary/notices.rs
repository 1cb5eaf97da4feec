//! Events: taken, given back.

use super::ids::{New, give_device, give_path, make_id, migrate};
use super::{IdObject, call, pairs, queue_of};
use crate::card::vector;
use crate::cma::{CmEvent, CmId, ConnParam, EventChannel, EventParam, SockAddr, UdParam, event};
use crate::state::{self, Acks, Handle, Locked, What};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr;
use millrace_rdma::cm::address::{IP_HEADER_LEN, IpHeader, ServiceId};
use millrace_rdma::cm::connection::{Event, Id, Peer, State as Stands};
use millrace_rdma::cm::message::{Reply, Request, ServiceReply, ServiceRequest};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// An event: what programs see, and what is behind it.
#[repr(C)]
struct EventObject {
    abi: UnsafeCell<CmEvent>,
    acks: Arc<Acks>,
    private: [u8; 256],
}

const NO_CONN: ConnParam = ConnParam {
    private_data: ptr::null(),
    private_data_len: 0,
    responder_resources: 0,
    initiator_depth: 0,
    flow_control: 0,
    retry_count: 0,
    rnr_retry_count: 0,
    srq: 0,
    qp_num: 0,
};

/// What an event is made of.
struct Made {
    id: *mut CmId,
    listen_id: *mut CmId,
    event: u32,
    status: i32,
    private: Vec<u8>,
    param: EventParam,
    is_datagram: bool,
}

impl Made {
    fn new(id: *mut CmId, event: u32, status: i32) -> Self {
        let param = EventParam { conn: NO_CONN };
        Self { id, listen_id: ptr::null_mut(), event, status, private: Vec::new(), param, is_datagram: false }
    }

    /// The object that a program gets. The event was counted in `acks` already.
    fn finish(self, acks: Arc<Acks>) -> *mut CmEvent {
        let mut private = [0; 256];
        let len = self.private.len().min(255);
        private[..len].copy_from_slice(&self.private[..len]);
        let Self { id, listen_id, event, status, param, is_datagram, .. } = self;
        let abi = UnsafeCell::new(CmEvent { id, listen_id, event, status, param });
        let object = Box::into_raw(Box::new(EventObject { abi, acks, private }));
        // SAFETY: just made; the pointer leads into the same object, and both kinds begin with it.
        unsafe {
            let data: *const c_void = if len == 0 { ptr::null() } else { (&raw const (*object).private).cast() };
            let param = &mut (*(*object).abi.get()).param;
            if is_datagram {
                (param.ud.private_data, param.ud.private_data_len) = (data, len as u8);
            } else {
                (param.conn.private_data, param.conn.private_data_len) = (data, len as u8);
            }
        }
        object.cast()
    }
}

/// How long who asks a channel that is not there waits for his answer. A thread that is told of the end asks again at once, while another one
/// destroys the channel and returns from `main`; an error would make it end the process as failed (rping of Debian 12). With Linux it
/// has mostly asked before, and waits for ever.
const ENDING: Duration = Duration::from_secs(1);

/// `rdma_get_cm_event`: waits, unless the program has made the descriptor non-blocking.
///
/// # Safety
/// `to` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(channel: *mut EventChannel, to: *mut *mut CmEvent) -> c_int {
    call(|| {
        let queue = queue_of(channel).inspect_err(|_| thread::sleep(ENDING))?;
        loop {
            let number = queue.take(|_| ()).map_err(|error| error.raw_os_error())?;
            let mut state = state::lock()?;
            let Some(notice) = state.take_notice(number) else { continue };
            let Some(one) = state.ones.get(&notice.owner) else { continue };
            let (id, acks) = (one.object as *mut CmId, one.acks.clone());
            // Before the state is unlocked, or the identifier could be destroyed while the event is made.
            acks.give();
            // SAFETY: the object is there until the event is given back: who destroys it waits.
            if let Some(made) = unsafe { made_of(state, id, notice.owner, notice.what) } {
                // SAFETY: the caller's promise.
                unsafe { to.write(made.finish(acks)) };
                return Ok(());
            }
            acks.take_back();
        }
    })
}

/// `rdma_ack_cm_event`
///
/// # Safety
/// `event` came from [`rdma_get_cm_event`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int {
    call(|| {
        if event.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: made as a box, and given back once: the caller's promise.
        let object = unsafe { Box::from_raw(event.cast::<EventObject>()) };
        object.acks.take_back();
        Ok(())
    })
}

/// What a program is told; nothing where it is over already.
///
/// # Safety
/// `id` is the identifier with that handle.
unsafe fn made_of(state: Locked, id: *mut CmId, owner: Handle, what: What) -> Option<Made> {
    let happened = match what {
        What::Resolved(Ok(())) => return Some(Made::new(id, event::ADDR_RESOLVED, 0)),
        What::Resolved(Err(error)) => return Some(Made::new(id, event::ADDR_ERROR, -error)),
        What::Removed => return Some(Made::new(id, event::DEVICE_REMOVAL, 0)),
        What::Routed => return Some(Made::new(id, event::ROUTE_RESOLVED, 0)),
        What::Happened(happened) => happened,
    };
    Some(match happened {
        Event::Requested { id: connection, peer, request, .. } => {
            // SAFETY: the caller's promise.
            return unsafe { requested(state, id, owner, connection, peer, &request) };
        }
        Event::ServiceRequested { id: connection, peer, request, .. } => {
            // SAFETY: the same.
            return unsafe { service_requested(state, id, owner, connection, peer, &request) };
        }
        Event::Replied(connection, reply) => {
            // SAFETY: the same.
            return unsafe { replied(state, id, owner, connection, &reply) };
        }
        Event::ServiceReplied(_, reply) => service_replied(state, id, owner, &reply),
        Event::Established(_) => Made::new(id, event::ESTABLISHED, 0),
        Event::Rejected(_, reason, private) => {
            drop(state);
            // SAFETY: the same: the program uses the identifier nowhere else now.
            unsafe { pairs::to_error(id) };
            Made { private: private.to_vec(), ..Made::new(id, event::REJECTED, reason.into()) }
        }
        Event::Unreachable(_) => Made::new(id, event::UNREACHABLE, -libc::ETIMEDOUT),
        Event::Disconnected(_) => Made::new(id, event::DISCONNECTED, 0),
        Event::TimewaitOver(_) => Made::new(id, event::TIMEWAIT_EXIT, 0),
    })
}

/// An identifier for somebody who calls; he is refused if there can be none.
///
/// # Safety
/// `listener` is the identifier with the handle `owner`.
unsafe fn child(
    state: &mut Locked,
    listener: *mut CmId,
    owner: Handle,
    connection: Id,
    peer: Peer,
    private: &[u8],
    service: u64,
) -> Option<*mut CmId> {
    // SAFETY: the caller's promise.
    let made = unsafe { try_child(state, listener, owner, connection, peer, private, service) };
    if made.is_err() {
        let now = state.now();
        state.manager.destroy(now, connection);
        state.step();
    }
    made.ok()
}

/// # Safety
/// As [`child`].
unsafe fn try_child(
    state: &mut Locked,
    listener: *mut CmId,
    owner: Handle,
    connection: Id,
    peer: Peer,
    private: &[u8],
    service: u64,
) -> Result<*mut CmId, i32> {
    let header = IpHeader::parse(private).ok_or(libc::EINVAL)?;
    let one = state.one(owner)?;
    let (space, is_datagram) = (one.space, one.is_datagram);
    let source = SocketAddr::new(header.destination, ServiceId(service).port());
    let target = SocketAddr::new(header.source, header.source_port);
    // SAFETY: the caller's promise; the channel of a listener is there as long as it.
    unsafe {
        let new = New { channel: (*listener).channel, context: (*listener).context, space, is_datagram };
        let id = make_id(state, &new)?;
        give_device(state, id)?;
        let addr = &mut (*id).route.addr;
        (addr.src, addr.dst) = (SockAddr::new(source), SockAddr::new(target));
        (addr.sgid, addr.dgid, addr.pkey) = (state.gid(peer.index).0, peer.gid.0, 0xffff);
        give_path(state, id);
        let handle = IdObject::of(id).handle;
        state.own(handle, connection);
        state.one(handle)?.peer = Some((peer, target));
        Ok(id)
    }
}

/// # Safety
/// As [`child`].
unsafe fn requested(
    mut state: Locked,
    listener: *mut CmId,
    owner: Handle,
    connection: Id,
    peer: Peer,
    request: &Request,
) -> Option<Made> {
    if !state.manager.see(connection) {
        return None;
    }
    // SAFETY: the caller's promise.
    let id = unsafe { child(&mut state, listener, owner, connection, peer, &request.private, request.service) }?;
    let conn = ConnParam {
        responder_resources: request.initiator_depth,
        initiator_depth: request.responder_resources,
        flow_control: request.flow_control.into(),
        retry_count: request.retry_count,
        rnr_retry_count: request.rnr_retry_count,
        srq: request.shared_receive.into(),
        qp_num: request.local_qpn.value(),
        ..NO_CONN
    };
    // SAFETY: the caller's promise, and just made.
    unsafe {
        state.one(IdObject::of(id).handle).ok()?.depths = (conn.responder_resources, conn.initiator_depth);
        let is_sync = state.one(owner).is_ok_and(|one| one.is_sync);
        drop(state);
        if is_sync {
            migrate(id, ptr::null_mut()).ok()?;
        }
    }
    Some(Made {
        listen_id: listener,
        private: request.private[IP_HEADER_LEN..].to_vec(),
        param: EventParam { conn },
        ..Made::new(id, event::CONNECT_REQUEST, 0)
    })
}

/// # Safety
/// As [`child`].
unsafe fn service_requested(
    mut state: Locked,
    listener: *mut CmId,
    owner: Handle,
    connection: Id,
    peer: Peer,
    request: &ServiceRequest,
) -> Option<Made> {
    if !state.manager.see(connection) {
        return None;
    }
    // SAFETY: the caller's promise.
    let id = unsafe { child(&mut state, listener, owner, connection, peer, &request.private, request.service) }?;
    let is_sync = state.one(owner).is_ok_and(|one| one.is_sync);
    drop(state);
    if is_sync {
        // SAFETY: just made.
        unsafe { migrate(id, ptr::null_mut()) }.ok()?;
    }
    let ud =
        UdParam { private_data: ptr::null(), private_data_len: 0, ah_attr: vector(peer, 64, 0), qp_num: 0, qkey: 0 };
    Some(Made {
        listen_id: listener,
        private: request.private[IP_HEADER_LEN..].to_vec(),
        param: EventParam { ud },
        is_datagram: true,
        ..Made::new(id, event::CONNECT_REQUEST, 0)
    })
}

/// Who was called has accepted. A queue pair of the identifier is made ready here; otherwise the program does that.
///
/// # Safety
/// `id` is an identifier that the program uses nowhere else now.
unsafe fn replied(state: Locked, id: *mut CmId, owner: Handle, connection: Id, reply: &Reply) -> Option<Made> {
    if state.manager.state(connection) != Some(Stands::Replied) {
        return None;
    }
    let terms = state.manager.terms(connection)?;
    let conn = ConnParam {
        responder_resources: reply.initiator_depth,
        initiator_depth: reply.responder_resources,
        flow_control: reply.flow_control.into(),
        rnr_retry_count: reply.rnr_retry_count,
        srq: reply.shared_receive.into(),
        qp_num: reply.local_qpn.value(),
        ..NO_CONN
    };
    let told = |event, status| {
        Some(Made { private: reply.private.to_vec(), param: EventParam { conn }, ..Made::new(id, event, status) })
    };
    // SAFETY: the caller's promise.
    if unsafe { (*id).qp.is_null() } {
        return told(event::CONNECT_RESPONSE, 0);
    }
    drop(state);
    // SAFETY: the same.
    let made = unsafe { pairs::connect(id, &terms) };
    let mut state = state::lock().ok()?;
    // The card may have gone meanwhile, and with it the connection.
    state.connection(owner).ok().filter(|own| *own == connection)?;
    let now = state.now();
    let ready = match made {
        Ok(()) => state.manager.ready(now, connection).map_err(state::errno_of),
        Err(error) => {
            state.disown(connection);
            state.manager.destroy(now, connection);
            Err(error)
        }
    };
    state.step();
    drop(state);
    crate::thread::wake();
    match ready {
        Ok(()) => told(event::ESTABLISHED, 0),
        // It is over; that comes as an event of its own.
        Err(libc::ENOTCONN) => None,
        Err(error) => told(event::CONNECT_ERROR, -error),
    }
}

fn service_replied(mut state: Locked, id: *mut CmId, owner: Handle, reply: &ServiceReply) -> Made {
    let peer = state.one(owner).ok().and_then(|one| one.peer).map(|(peer, _)| peer).unwrap_or_default();
    if reply.status != 0 {
        return Made { is_datagram: true, ..Made::new(id, event::UNREACHABLE, reply.status.into()) };
    }
    let ud = UdParam {
        private_data: ptr::null(),
        private_data_len: 0,
        ah_attr: vector(peer, 64, 0),
        qp_num: reply.qpn.value(),
        qkey: reply.qkey,
    };
    Made {
        private: reply.private.to_vec(),
        param: EventParam { ud },
        is_datagram: true,
        ..Made::new(id, event::ESTABLISHED, 0)
    }
}

/// Where an identifier has no channel of the program's, calls wait for their event, which is then in the identifier.
///
/// # Safety
/// `id` is an identifier that the program uses nowhere else now.
pub(super) unsafe fn complete(id: *mut CmId) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    let object = unsafe { IdObject::of(id) };
    if !state::lock()?.one(object.handle)?.is_sync {
        return Ok(());
    }
    // SAFETY: the caller's promise; an event that is in the identifier was taken here.
    unsafe {
        forget(id);
        if rdma_get_cm_event((*id).channel, &raw mut (*id).event) != 0 {
            return Err(crate::card::errno());
        }
        let found = &*(*id).event;
        match (found.event, found.status) {
            (event::REJECTED, _) => Err(libc::ECONNREFUSED),
            (event::DEVICE_REMOVAL, _) => Err(libc::ENODEV),
            (_, 0) => Ok(()),
            (_, status) if status < 0 => Err(-status),
            _ => Err(libc::ECONNREFUSED),
        }
    }
}

/// Gives back the event that is in the identifier.
///
/// # Safety
/// As [`complete`].
pub(super) unsafe fn forget(id: *mut CmId) {
    // SAFETY: the caller's promise.
    unsafe {
        if !(*id).event.is_null() {
            rdma_ack_cm_event((*id).event);
            (*id).event = ptr::null_mut();
        }
    }
}
