//! Event channels and identifiers: made, bound, destroyed.

use super::{Extra, IdObject, address, call, channels, make, queue_of, say};
use crate::card::{DATAGRAM, RELIABLE};
use crate::cma::{Addr, CmId, EventChannel, PathRec, Route, SockAddr, space};
use crate::state::{self, Acks, Locked, One, Queue, What};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr;
use millrace_rdma::cm::address::gid_of;
use millrace_rdma::cm::connection::Peer;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

/// Timeout of acknowledgements, as a time of five bits: 67 ms, as programs without connection management mostly have it.
const ACK_TIMEOUT: u8 = 14;
/// How long an address is looked for that nobody has set a time for.
const LOOK_UP: Duration = Duration::from_secs(2);

// SAFETY of `no_mangle` in this folder: these are the names of the library that this one stands for, and nothing else in the program has
// them.

fn channel() -> Result<*mut EventChannel, i32> {
    let queue = Arc::new(Queue::new().map_err(|error| error.raw_os_error())?);
    let channel = Box::into_raw(Box::new(EventChannel { fd: queue.fd() }));
    channels().insert(channel as usize, queue);
    Ok(channel)
}

/// # Safety
/// `channel` came from [`channel`], and is not used afterwards.
unsafe fn drop_channel(channel: *mut EventChannel) {
    if channels().remove(&(channel as usize)).is_some() {
        // SAFETY: it was in the table: made as a box by `channel`, and not given back yet.
        drop(unsafe { Box::from_raw(channel) });
    }
}

/// `rdma_create_event_channel`
#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut EventChannel {
    make(channel)
}

/// `rdma_destroy_event_channel`
///
/// # Safety
/// `channel` is one, and no identifier is told by it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut EventChannel) {
    // SAFETY: the caller's promise.
    unsafe { drop_channel(channel) };
}

/// What an identifier is made with.
pub(super) struct New {
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub space: u16,
    pub is_datagram: bool,
}

/// An identifier in `state`. Without a channel it gets its own, and calls wait.
///
/// # Safety
/// `new.channel` is one, or NULL.
pub(super) unsafe fn make_id(state: &mut Locked, new: &New) -> Result<*mut CmId, i32> {
    let is_sync = new.channel.is_null();
    let channel = if is_sync { channel()? } else { new.channel };
    let queue = queue_of(channel)?;
    let addr = Addr { src: SockAddr::NONE, dst: SockAddr::NONE, sgid: [0; 16], dgid: [0; 16], pkey: 0, rest: [0; 3] };
    let abi = CmId {
        verbs: ptr::null_mut(),
        channel,
        context: new.context,
        qp: ptr::null_mut(),
        route: Route { addr, path_rec: ptr::null_mut(), num_paths: 0 },
        ps: new.space.into(),
        port_num: 0,
        event: ptr::null_mut(),
        send_cq_channel: ptr::null_mut(),
        send_cq: ptr::null_mut(),
        recv_cq_channel: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        pd: ptr::null_mut(),
        qp_type: if new.is_datagram { DATAGRAM } else { RELIABLE },
    };
    let handle = state.number();
    let extra = Mutex::new(Extra::default());
    let object = Box::into_raw(Box::new(IdObject { abi: UnsafeCell::new(abi), handle, extra }));
    let one = One {
        object: object as usize,
        queue,
        acks: Arc::new(Acks::default()),
        space: new.space,
        is_datagram: new.is_datagram,
        is_sync,
        own: None,
        service: None,
        peer: None,
        connection: None,
        traffic_class: 0,
        ack_timeout: ACK_TIMEOUT,
        reuse: false,
        depths: (0, 0),
        is_lost: false,
    };
    state.ones.insert(handle, one);
    Ok(object.cast())
}

/// The identifier has a device from now on.
///
/// # Safety
/// `id` is one.
pub(super) unsafe fn give_device(state: &mut Locked, id: *mut CmId) -> Result<(), i32> {
    let card = state.card()?;
    // SAFETY: the caller's promise.
    unsafe {
        (*id).verbs = card.context();
        (*id).port_num = 1;
        if (*id).pd.is_null() {
            (*id).pd = card.domain();
        }
    }
    Ok(())
}

/// `rdma_create_id`
///
/// # Safety
/// `channel` is one, or NULL; `id` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut EventChannel,
    id: *mut *mut CmId,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    call(|| {
        at_exit();
        let space = u16::try_from(ps).map_err(|_| libc::EINVAL)?;
        if ![space::TCP, space::UDP, space::IB].contains(&space) {
            return Err(libc::EPROTONOSUPPORT);
        }
        let mut state = state::lock()?;
        let new = New { channel, context, space, is_datagram: space == space::UDP };
        // SAFETY: the caller's promise.
        unsafe { id.write(make_id(&mut state, &new)?) };
        Ok(())
    })
}

/// When the process ends, others are told that its connections are over.
fn at_exit() {
    static ONCE: Once = Once::new();
    extern "C" fn finish() {
        let _ = std::panic::catch_unwind(|| {
            if let Ok(mut state) = state::lock() {
                state.finish();
            }
        });
    }
    // SAFETY: the function stays: the library is never unloaded (nodelete).
    ONCE.call_once(|| unsafe {
        libc::atexit(finish);
    });
}

/// `rdma_destroy_id`: waits until all of its events are given back.
///
/// # Safety
/// `id` is one, and is not used afterwards; its queue pair is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut CmId) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) };
        let one = state::lock()?.remove(object.handle).ok_or(libc::EINVAL)?;
        crate::thread::wake();
        // SAFETY: the same.
        unsafe {
            if one.is_sync && !(*id).event.is_null() {
                super::notices::rdma_ack_cm_event((*id).event);
            }
        }
        one.acks.wait();
        // SAFETY: made as a box, and given back once; a channel of its own goes with it.
        unsafe {
            if one.is_sync {
                drop_channel((*id).channel);
            }
            drop(Box::from_raw(id.cast::<IdObject>()));
        }
        Ok(())
    })
}

/// `rdma_migrate_id`
///
/// # Safety
/// `id` is one, and `channel` or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { migrate(id, channel) })
}

/// # Safety
/// As [`rdma_migrate_id`].
pub(super) unsafe fn migrate(id: *mut CmId, to: *mut EventChannel) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    let object = unsafe { IdObject::of(id) };
    let is_sync = to.is_null();
    let to = if is_sync { channel()? } else { to };
    let queue = queue_of(to)?;
    let mut state = state::lock()?;
    let (was_sync, acks) = {
        let one = state.one(object.handle)?;
        (one.is_sync, one.acks.clone())
    };
    state.migrate(object.handle, queue, is_sync)?;
    drop(state);
    // SAFETY: the caller's promise; the old channel is the identifier's own if it was made so.
    unsafe {
        if was_sync {
            if !(*id).event.is_null() {
                super::notices::rdma_ack_cm_event((*id).event);
                (*id).event = ptr::null_mut();
            }
            drop_channel((*id).channel);
        } else {
            acks.wait();
        }
        (*id).channel = to;
    }
    Ok(())
}

/// `rdma_bind_addr`
///
/// # Safety
/// `id` is one, and `addr` an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut CmId, addr: *const c_void) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (object, address) = unsafe { (IdObject::of(id), address(addr)?) };
        let mut state = state::lock()?;
        let bound = state.bind(object.handle, address, true)?;
        // SAFETY: the caller's promise.
        unsafe {
            (*id).route.addr.src = SockAddr::new(bound);
            if !bound.ip().is_unspecified() {
                give_device(&mut state, id)?;
            }
        }
        Ok(())
    })
}

/// `rdma_resolve_addr`
///
/// # Safety
/// `id` is one, `dst` an address, and `src` one or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut CmId,
    src: *const c_void,
    dst: *const c_void,
    timeout_ms: c_int,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (object, target) = unsafe { (IdObject::of(id), address(dst)?) };
        // SAFETY: the caller's promise.
        let wanted = if src.is_null() { None } else { Some(unsafe { address(src)? }) };
        if target.ip().is_loopback() {
            say(format_args!(
                "{} is no address of a card: name the address of the other end, such as 198.18.0.1 (docs/rdma.md)",
                target.ip()
            ));
            return Err(libc::EADDRNOTAVAIL);
        }
        let mut state = state::lock()?;
        state.usable(object.handle)?;
        let (own, index) = state.own_towards(target.ip())?;
        let bound = state.one(object.handle)?.own;
        let port = match bound {
            Some(bound) => bound.port(),
            None => {
                let wanted = wanted.unwrap_or(SocketAddr::new(own, 0));
                state.bind(object.handle, wanted, false)?.port()
            }
        };
        let source = SocketAddr::new(own, port);
        let peer = Peer { gid: gid_of(target.ip()), index };
        let one = state.one(object.handle)?;
        (one.own, one.peer) = (Some(source), Some((peer, target)));
        // SAFETY: the caller's promise.
        unsafe {
            give_device(&mut state, id)?;
            let addr = &mut (*id).route.addr;
            (addr.src, addr.dst) = (SockAddr::new(source), SockAddr::new(target));
            (addr.sgid, addr.dgid, addr.pkey) = (gid_of(own).0, peer.gid.0, 0xffff);
        }
        let time = u64::try_from(timeout_ms).ok().filter(|time| *time > 0).map_or(LOOK_UP, Duration::from_millis);
        state.resolve(object.handle, time);
        drop(state);
        crate::thread::wake();
        // SAFETY: the caller's promise.
        unsafe { super::notices::complete(id) }
    })
}

/// `rdma_resolve_route`: there is one as soon as there is an address.
///
/// # Safety
/// `id` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut CmId, _timeout_ms: c_int) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) };
        let mut state = state::lock()?;
        if state.usable(object.handle)?.peer.is_none() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's promise.
        unsafe { give_path(&mut state, id) };
        state.tell(object.handle, What::Routed);
        drop(state);
        // SAFETY: the caller's promise.
        unsafe { super::notices::complete(id) }
    })
}

/// Programs see a path.
///
/// # Safety
/// `id` is one.
pub(super) unsafe fn give_path(state: &mut Locked, id: *mut CmId) {
    let mtu = state.card.as_ref().map_or(1, |card| card.mtu);
    // SAFETY: the caller's promise.
    unsafe {
        let addr = &(*id).route.addr;
        let mut path = Box::new(PathRec {
            dgid: addr.dgid,
            sgid: addr.sgid,
            dlid: 0,
            slid: 0,
            raw_traffic: 0,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            reversible: 1,
            numb_path: 1,
            pkey: 0xffff,
            sl: 0,
            mtu_selector: 2,
            mtu,
            rate_selector: 2,
            rate: 3,
            life_selector: 2,
            life: ACK_TIMEOUT,
            preference: 0,
        });
        ((*id).route.path_rec, (*id).route.num_paths) = (&raw mut *path, 1);
        IdObject::of(id).with_extra(|extra| extra.path = Some(path));
    }
}

/// `rdma_listen`
///
/// # Safety
/// `id` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut CmId, backlog: c_int) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) };
        let mut state = state::lock()?;
        state.listen(object.handle, backlog)?;
        if let Some(own) = state.one(object.handle)?.own {
            // SAFETY: the caller's promise.
            unsafe { (*id).route.addr.src = SockAddr::new(own) };
        }
        Ok(())
    })
}

/// `rdma_get_src_port`: in the order of the network.
///
/// # Safety
/// `id` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut CmId) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { (*id).route.addr.src.port() }
}

/// `rdma_get_dst_port`: in the order of the network.
///
/// # Safety
/// `id` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut CmId) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { (*id).route.addr.dst.port() }
}

/// `rdma_set_option`: the traffic class, whether a port is shared, the timeout of acknowledgements.
///
/// # Safety
/// `id` is one, and `value` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut CmId,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    const OF_ID: c_int = 0;
    call(|| {
        if value.is_null() || len == 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's promise: there is at least one byte; numbers of this machine have their lowest byte first.
        let (object, value) = unsafe { (IdObject::of(id), value.cast::<u8>().read()) };
        let mut state = state::lock()?;
        let one = state.one(object.handle)?;
        match (level, name) {
            (OF_ID, 0) => one.traffic_class = value,
            (OF_ID, 1) => one.reuse = value != 0,
            // An address of IPv6 is no address of IPv4 here anyway.
            (OF_ID, 2) => {}
            (OF_ID, 3) if value < 32 => one.ack_timeout = value,
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    })
}
