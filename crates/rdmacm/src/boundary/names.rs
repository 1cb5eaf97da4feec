//! `rdma_getaddrinfo`: names and services, as the system resolves them.

use super::call;
use super::endpoint::PASSIVE;
use crate::card::{DATAGRAM, RELIABLE};
use crate::cma::{AddrInfo, SockAddr, space};
use core::ffi::{CStr, c_char, c_int};
use core::{mem, ptr};

/// `RAI_NUMERICHOST`, `RAI_FAMILY`.
const NUMERIC: c_int = 2;
const FAMILY: c_int = 8;

/// A copy of an address of `len` bytes; NULL of none.
///
/// # Safety
/// There are as many bytes.
unsafe fn copy(address: *const u8, len: u32) -> *mut u8 {
    if address.is_null() || len == 0 {
        return ptr::null_mut();
    }
    let mut bytes = SockAddr::NONE;
    let len = (len as usize).min(bytes.0.len());
    // SAFETY: the caller's promise.
    bytes.0[..len].copy_from_slice(unsafe { core::slice::from_raw_parts(address, len) });
    Box::into_raw(Box::new(bytes)).cast()
}

/// # Safety
/// As [`rdma_getaddrinfo`].
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
) -> Result<Box<AddrInfo>, c_int> {
    let flags = hints.map_or(0, |hints| hints.flags);
    let is_passive = flags & PASSIVE != 0;
    let port_space = hints.map(|hints| hints.port_space).filter(|space| *space != 0);
    let qp_type = hints.map(|hints| hints.qp_type).filter(|kind| *kind != 0);
    let is_datagram =
        port_space == Some(space::UDP.into()) || (port_space.is_none() && qp_type == Some(DATAGRAM as c_int));
    // SAFETY: all zeros are such structures.
    let (mut wanted, mut info) = unsafe { (mem::zeroed::<libc::addrinfo>(), Box::new(mem::zeroed::<AddrInfo>())) };
    info.flags = flags;
    info.port_space = port_space.unwrap_or(if is_datagram { space::UDP } else { space::TCP }.into());
    info.qp_type = qp_type.unwrap_or(if is_datagram { DATAGRAM } else { RELIABLE } as c_int);
    if let Some(hints) = hints.filter(|_| !is_passive) {
        // SAFETY: the caller's promise.
        info.src_addr = unsafe { copy(hints.src_addr, hints.src_len) };
        info.src_len = if info.src_addr.is_null() { 0 } else { hints.src_len };
    }
    if node.is_null() && service.is_null() {
        // Only what the hints say.
        let hints = hints.ok_or(libc::EAI_NONAME)?;
        // SAFETY: the caller's promise.
        unsafe {
            if is_passive {
                (info.src_addr, info.src_len) = (copy(hints.src_addr, hints.src_len), hints.src_len);
            } else {
                (info.dst_addr, info.dst_len) = (copy(hints.dst_addr, hints.dst_len), hints.dst_len);
            }
        }
        info.family = hints.family;
        return Ok(info);
    }
    wanted.ai_flags = if is_passive { libc::AI_PASSIVE } else { 0 };
    wanted.ai_flags |= if flags & NUMERIC != 0 { libc::AI_NUMERICHOST } else { 0 };
    wanted.ai_family = hints.filter(|_| flags & FAMILY != 0).map_or(libc::AF_UNSPEC, |hints| hints.family);
    wanted.ai_socktype = if is_datagram { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    let mut found = ptr::null_mut();
    // SAFETY: the caller's promise; the list is given back below.
    let code = unsafe { libc::getaddrinfo(node, service, &wanted, &mut found) };
    if code != 0 {
        return Err(code);
    }
    // SAFETY: there is at least one in it, with an address as long as it says.
    unsafe {
        let first = &*found;
        info.family = first.ai_family;
        let (address, len) = (copy(first.ai_addr.cast(), first.ai_addrlen), first.ai_addrlen);
        let name = match first.ai_canonname.is_null() {
            true => ptr::null_mut(),
            false => CStr::from_ptr(first.ai_canonname).to_owned().into_raw(),
        };
        if is_passive {
            (info.src_addr, info.src_len, info.src_name) = (address, len, name);
        } else {
            (info.dst_addr, info.dst_len, info.dst_name) = (address, len, name);
        }
        libc::freeaddrinfo(found);
    }
    Ok(info)
}

/// `rdma_getaddrinfo`: 0, -1, or a number of `getaddrinfo`.
///
/// # Safety
/// `node` and `service` are texts or NULL; `hints` may be read, or is NULL; `to` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    to: *mut *mut AddrInfo,
) -> c_int {
    let mut code = 0;
    // SAFETY: the caller's promise.
    let called = call(|| unsafe {
        match look_up(node, service, hints.as_ref()) {
            Ok(info) => to.write(Box::into_raw(info)),
            Err(error) => code = error,
        }
        Ok(())
    });
    if called != 0 { called } else { code }
}

/// `rdma_freeaddrinfo`
///
/// # Safety
/// `info` came from [`rdma_getaddrinfo`], or is NULL, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(info: *mut AddrInfo) {
    let mut next = info;
    while !next.is_null() {
        // SAFETY: all of it was made as boxes, and is given back once: the caller's promise.
        unsafe {
            let info = Box::from_raw(next);
            for address in [info.src_addr, info.dst_addr] {
                if !address.is_null() {
                    drop(Box::from_raw(address.cast::<SockAddr>()));
                }
            }
            for name in [info.src_name, info.dst_name] {
                if !name.is_null() {
                    drop(std::ffi::CString::from_raw(name));
                }
            }
            next = info.next;
        }
    }
}
