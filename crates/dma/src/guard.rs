//! The guard over memory that its owner may take away. May use `unsafe`.
//!
//! An access beyond the end of a mapped file raises SIGBUS, which ends the process. The first guard therefore
//! installs a handler for that signal. For an address inside a guarded range it puts zeroed memory of our own in the
//! place of the whole mapping and notes that the range was cut; the access then goes on as if nothing had happened.
//! Any other SIGBUS is handed to whatever handled it before, by default the end of the process.
//!
//! What the handler does is safe in a signal handler: it reads atomics in a list whose nodes are never freed, and makes
//! one system call. It runs on the thread that made the access, while a view keeps the region, so that the region
//! cannot vanish under it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::sync::Once;

/// How many foreign regions have been cut since the program began: as long as it does not change, none has been.
#[inline(always)]
pub fn foreign_cuts() -> u64 {
    // Acquire pairs with the Release in `replace`: who sees the count sees which region it was.
    CUTS.load(Ordering::Acquire)
}

static CUTS: AtomicU64 = AtomicU64::new(0);

/// An address range that the handler knows.
pub(crate) struct Guard {
    /// 0: the range is nobody's.
    base: AtomicUsize,
    len: AtomicUsize,
    taken: AtomicBool,
    cut: AtomicBool,
    next: AtomicPtr<Guard>,
}

/// All guards there ever were.
static GUARDS: AtomicPtr<Guard> = AtomicPtr::new(core::ptr::null_mut());

fn guards() -> impl Iterator<Item = &'static Guard> {
    // SAFETY: null, or a guard that `over` has leaked; Acquire pairs with its Release.
    let follow = |at: &AtomicPtr<Guard>| unsafe { at.load(Ordering::Acquire).as_ref::<'static>() };
    core::iter::successors(follow(&GUARDS), move |guard| follow(&guard.next))
}

impl Guard {
    pub(crate) fn over(base: usize, len: usize) -> &'static Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(handler::install);
        let free =
            |guard: &&Guard| guard.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let guard = guards().find(free).unwrap_or_else(Self::another);
        guard.cut.store(false, Ordering::Relaxed);
        guard.len.store(len, Ordering::Relaxed);
        // Release pairs with the Acquire in `replace`: the length belongs to this base.
        guard.base.store(base, Ordering::Release);
        guard
    }

    /// Whether the owner has taken memory of this range away since the guard stands.
    pub(crate) fn was_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    fn another() -> &'static Self {
        let guard: &'static Guard = Box::leak(Box::new(Guard {
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            taken: AtomicBool::new(true),
            cut: AtomicBool::new(false),
            next: AtomicPtr::new(core::ptr::null_mut()),
        }));
        let new = core::ptr::from_ref(guard).cast_mut();
        let mut first = GUARDS.load(Ordering::Relaxed);
        loop {
            guard.next.store(first, Ordering::Relaxed);
            // Release pairs with the Acquire in `guards`.
            match GUARDS.compare_exchange_weak(first, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return guard,
                Err(other) => first = other,
            }
        }
    }

    /// Forgets the range. To be called before it is unmapped: the addresses may be somebody else's right after.
    pub(crate) fn release(&self) {
        self.base.store(0, Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }

    /// Replaces the mapping that holds `address` by zeroed memory. `false`: no foreign region, or no memory.
    fn replace(address: usize) -> bool {
        let holds = |guard: &&Guard| {
            // Acquire pairs with the Release in `over`.
            let base = guard.base.load(Ordering::Acquire);
            base != 0 && address.wrapping_sub(base) < guard.len.load(Ordering::Relaxed)
        };
        let Some(guard) = guards().find(holds) else { return false };
        let base = core::ptr::with_exposed_provenance_mut::<c_void>(guard.base.load(Ordering::Relaxed));
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: replaces exactly the mapping of one region, which the thread that faulted keeps mapped. Its views
        // only copy bytes and use atomics, for which zeros are as good as anything.
        if unsafe { mmap_anonymous(base, guard.len.load(Ordering::Relaxed), rights, flags | MapFlags::FIXED) }.is_err()
        {
            return false;
        }
        // Release pairs with the Acquire in `was_cut`.
        guard.cut.store(true, Ordering::Release);
        // Release pairs with the Acquire in `foreign_cuts`.
        CUTS.fetch_add(1, Ordering::Release);
        true
    }
}

mod handler {
    use super::{Guard, c_int, c_void};
    use crate::signal::Before;

    static BEFORE: Before = Before::new();

    pub(super) fn install() {
        // Without it (which cannot fail for a valid signal) there is no guard, and a peer that cuts its memory ends the
        // process.
        BEFORE.install(libc::SIGBUS, on_bus_error);
    }

    extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: with SA_SIGINFO the kernel gives a valid siginfo; for signals that it raises itself, which have a
        // positive code, si_addr is the address that was accessed.
        let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
        if code <= 0 || !Guard::replace(address) {
            BEFORE.call(signal, info, context);
        }
    }
}
