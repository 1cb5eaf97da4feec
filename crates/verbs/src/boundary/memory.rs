//! Protection domains and regions.

use super::device::ContextObject;
use super::{code, guarded, null};
use crate::abi::{Context, Mr, Pd};
use crate::place::card::OwnMemory;
use crate::place::{Place, Running, share};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use millrace_rdma::memory::{Change, ProtectionDomain, RegisterError, Source};
use millrace_rdma::number::Key;
use millrace_rdma::work::Access;
use std::sync::Arc;

// SAFETY of `no_mangle` in this file: these are the names of the library that this one stands for, and nothing else in the
// program has them.

/// Bits of access that are known; those from 20 on are hints, and have no effect.
const ACCESS: u32 = 0x3f;
const HINTS: u32 = 0x3ff0_0000;
/// `IBV_ACCESS_HUGETLB`, `IBV_ACCESS_ON_DEMAND`: pages are as they are, and are fetched when they are touched.
const NO_MATTER: u32 = 1 << 6 | 1 << 7;

#[repr(C)]
pub(super) struct PdObject {
    abi: UnsafeCell<Pd>,
    pub place: Arc<Place>,
    pub domain: ProtectionDomain,
}

impl PdObject {
    /// # Safety
    /// `pd` came from [`ibv_alloc_pd`] and was not given back.
    pub unsafe fn of<'p>(pd: *mut Pd) -> &'p Self {
        // SAFETY: domains are only made by `ibv_alloc_pd`, as the beginning of this object.
        unsafe { &*pd.cast() }
    }
}

#[repr(C)]
pub(super) struct MrObject {
    abi: UnsafeCell<Mr>,
    place: Arc<Place>,
}

pub(crate) fn errno(error: &RegisterError) -> i32 {
    match error {
        RegisterError::Limit { .. } => libc::ENOMEM,
        RegisterError::Busy(_) => libc::EBUSY,
        RegisterError::Place(_) | RegisterError::ReadOnly => libc::EFAULT,
        _ => libc::EINVAL,
    }
}

/// `ibv_alloc_pd`
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let place = unsafe { ContextObject::of(context) }.opened.place.clone();
        let made = place.with_room(|running| {
            if let Some(card) = &mut running.card {
                return card.create_domain();
            }
            let domain = running.engine.create_domain().map_err(|error| error.errno())?;
            let reach = running.engine.memory();
            let ours = reach.regions.allocate_domain().map_err(|error| errno(&error));
            match ours {
                Ok(ours) => {
                    reach.join(domain, ours);
                    Ok(domain)
                }
                Err(error) => {
                    running.engine.destroy_domain(domain).map_err(|error| error.errno())?;
                    Err(error)
                }
            }
        });
        match made {
            Ok(domain) => {
                let abi = UnsafeCell::new(Pd { context, handle: domain.0 });
                Box::into_raw(Box::new(PdObject { abi, place, domain })).cast()
            }
            Err(error) => null(error),
        }
    })
}

/// `ibv_dealloc_pd`
///
/// # Safety
/// `pd` came from [`ibv_alloc_pd`], and is not used afterwards if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let object = unsafe { PdObject::of(pd) };
        let done = object.place.with(|running| {
            if let Some(card) = &mut running.card {
                return card.destroy_domain(object.domain);
            }
            let ours = running.engine.memory().domain(object.domain);
            if ours.is_some_and(|ours| running.engine.memory().regions.has_users(ours)) {
                return Err(libc::EBUSY);
            }
            // It changes nothing while it has queue pairs; nor does this call.
            running.engine.destroy_domain(object.domain).map_err(|error| error.errno())?;
            match ours {
                Some(ours) => running.engine.memory().regions.free_domain(ours).map_err(|error| errno(&error)),
                None => Ok(()),
            }
        });
        if done.is_ok() {
            // SAFETY: made as a box, and given back once: the caller's promise.
            drop(unsafe { Box::from_raw(pd.cast::<PdObject>()) });
        }
        code(done)
    })
}

unsafe fn register(pd: *mut Pd, addr: *mut c_void, len: usize, base: u64, access: c_uint) -> *mut Mr {
    guarded(core::ptr::null_mut(), || {
        if access & !(ACCESS | HINTS | NO_MATTER) != 0 {
            return null(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller's promise.
        let object = unsafe { PdObject::of(pd) };
        let source = || Source::Own { address: addr as u64, len: len as u64 };
        let made = object.place.with_room(|running| {
            let base = if access & Access::ZERO_BASED.0 != 0 { 0 } else { base };
            if running.card.is_some() {
                let memory = OwnMemory { address: addr as u64, len: len as u64, base };
                return running.register_in_card(object.domain, &memory, Access(access & ACCESS));
            }
            let reach = running.engine.memory();
            let domain = reach.domain(object.domain).ok_or(libc::EINVAL)?;
            let made = reach
                .regions
                .register(domain, source(), Some(base), Access(access & ACCESS))
                .map_err(|error| errno(&error))?;
            if object.place.config().adopt.is_some() {
                say_why_not_adopted(running, made.lkey);
            }
            share(running, made.lkey);
            Ok(made)
        });
        match made {
            Ok(made) => {
                // SAFETY: the caller's promise.
                let context = unsafe { (*object.abi.get()).context };
                let (lkey, rkey) = (made.lkey.value(), made.rkey.value());
                let abi = UnsafeCell::new(Mr { context, pd, addr, length: len, handle: lkey, lkey, rkey });
                Box::into_raw(Box::new(MrObject { abi, place: object.place.clone() })).cast()
            }
            Err(error) => null(error),
        }
    })
}

/// Who has asked for memory to be adopted, and cannot have it, is told once: only speed would tell otherwise.
fn say_why_not_adopted(running: &mut Running, lkey: Key) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    if let Ok(reached) = running.engine.memory().regions.reached(lkey)
        && let Some(error) = &reached.error
    {
        ONCE.call_once(|| super::say(format_args!("adopt= does nothing, and system calls move the bytes: {error}")));
    }
}

/// `ibv_reg_mr`
///
/// # Safety
/// `pd` is a protection domain; the memory stays until the region is given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, len: usize, access: c_int) -> *mut Mr {
    // SAFETY: the caller's promise.
    unsafe { register(pd, addr, len, addr as u64, access as c_uint) }
}

/// `ibv_reg_mr_iova`
///
/// # Safety
/// As [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut Pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    // SAFETY: the caller's promise.
    unsafe { register(pd, addr, len, iova, access as c_uint) }
}

/// `ibv_reg_mr_iova2`
///
/// # Safety
/// As [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    // SAFETY: the caller's promise.
    unsafe { register(pd, addr, len, iova, access) }
}

/// `ibv_reg_dmabuf_mr`: memory of other devices cannot be reached from here.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut Pd,
    _offset: u64,
    _len: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut Mr {
    null(libc::EOPNOTSUPP)
}

/// `ibv_rereg_mr`: -1 and the region as it was, when it cannot be.
///
/// # Safety
/// As [`ibv_reg_mr`]; `mr` is a region, and `pd` a protection domain if the flags say so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut Mr,
    flags: c_int,
    pd: *mut Pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> c_int {
    const INPUT: c_int = -1;
    const COMMAND: c_int = -6;
    guarded(COMMAND, || {
        let (translation, domain, rights) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        if flags & !7 != 0
            || (domain && pd.is_null())
            || (rights && access as c_uint & !(ACCESS | HINTS | NO_MATTER) != 0)
        {
            super::set_errno(libc::EINVAL);
            return INPUT;
        }
        // SAFETY: regions are only made by `register`, as the beginning of this object.
        let object = unsafe { &*mr.cast::<MrObject>() };
        // SAFETY: the caller's promise.
        let key = Key::new(unsafe { (*object.abi.get()).lkey });
        let done = object.place.with_room(|running| {
            // SAFETY: the caller's promise.
            let domain = domain.then(|| unsafe { PdObject::of(pd) }.domain);
            let access = rights.then_some(Access(access as c_uint & ACCESS));
            if running.card.is_some() {
                let memory = OwnMemory { address: addr as u64, len: len as u64, base: addr as u64 };
                return running.reregister_in_card(key, translation.then_some(&memory), domain, access);
            }
            let reach = running.engine.memory();
            let domain = domain.map(|domain| reach.domain(domain).ok_or(libc::EINVAL)).transpose()?;
            let source = || (Source::Own { address: addr as u64, len: len as u64 }, Some(addr as u64));
            let change = Change { translation: translation.then(source), domain, access };
            let made = reach.regions.reregister(key, change).map_err(|error| errno(&error))?;
            share(running, made.lkey);
            Ok(made)
        });
        match done {
            Ok(made) => {
                // SAFETY: the caller's promise: nobody else looks at the region now.
                let abi = unsafe { &mut *object.abi.get() };
                (abi.lkey, abi.rkey, abi.handle) = (made.lkey.value(), made.rkey.value(), made.lkey.value());
                if translation {
                    (abi.addr, abi.length) = (addr, len);
                }
                if domain {
                    abi.pd = pd;
                }
                0
            }
            Err(error) => {
                super::set_errno(error);
                COMMAND
            }
        }
    })
}

/// `ibv_dereg_mr`
///
/// # Safety
/// `mr` is a region, and is not used afterwards if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: regions are only made by `register`, as the beginning of this object.
        let object = unsafe { &*mr.cast::<MrObject>() };
        // SAFETY: the caller's promise.
        let key = Key::new(unsafe { (*object.abi.get()).lkey });
        let done = object.place.with(|running| match running.card {
            Some(_) => running.deregister_in_card(key),
            None => running.engine.memory().regions.deregister(key).map_err(|error| errno(&error)),
        });
        if done.is_ok() {
            // SAFETY: made as a box, and given back once: the caller's promise.
            drop(unsafe { Box::from_raw(mr.cast::<MrObject>()) });
        }
        code(done)
    })
}

macro_rules! refuse {
    ($($name:ident)*) => {$(
        /// Nothing is shared with other processes that way.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> *mut c_void {
            null(libc::EOPNOTSUPP)
        }
    )*};
}

refuse! { ibv_import_pd ibv_import_mr ibv_import_dm }

macro_rules! nothing {
    ($($name:ident)*) => {$(
        /// Nothing was imported that could be given back.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() {}
    )*};
}

nothing! { ibv_unimport_pd ibv_unimport_mr ibv_unimport_dm }
