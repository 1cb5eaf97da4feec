//! The memory of a program in pages of a transport (decision 126): what `libmillrace-memory.so` asks when the program calls `malloc`, and what becomes of it
//! in a child of `fork`.
//!
//! What this library allocates for itself comes from the C library (`Own`): nothing of it can be reached by others, and no function here waits for itself.

use super::say;
use crate::config::Config;
use crate::place::arena::{Arena, PAGE};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::ffi::c_void;
use core::ptr;
use millrace_split::Land;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// As in `libmillrace-memory.so` (`crates/memory`).
#[repr(C)]
struct Server {
    base: usize,
    len: usize,
    from: usize,
    allocate: extern "C" fn(usize, usize) -> *mut c_void,
    free: extern "C" fn(*mut c_void),
    size: extern "C" fn(*mut c_void) -> usize,
    readable: extern "C" fn(*mut c_void) -> usize,
}

/// Pages of a transport, and what of the program lies in them.
pub(crate) struct Ground {
    pub land: Land,
    pub arena: Arena,
    /// Blocks of so many bytes and more are there.
    pub from: usize,
}

/// `None`: this program's memory is its own. `Err`: why it is, although it was to lie in pages of a transport.
static GROUND: OnceLock<Result<Ground, String>> = OnceLock::new();
/// Whether this process is a child that has a copy of the memory of its parent. Relaxed: it is written by the only thread of a child.
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// How many bytes such a child has of it, whichever of its threads asks. Relaxed as above.
static INHERITED: AtomicUsize = AtomicUsize::new(0);

/// Blocks of so many bytes and more lie there, unless `from=` says something else: `rping` registers parts of a structure of some hundred bytes.
const FROM: usize = 1;

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, len: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, len: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// The C library's memory for this library, whatever `malloc` is in this program.
struct Own;

/// The alignment that `malloc` gives.
const USUAL: usize = 16;

// SAFETY: the functions of the C library for it, by other names: blocks as long and as aligned as is asked for, and nobody else's.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: take any length, and alignments that are powers of two.
        unsafe {
            match layout.align() {
                ..=USUAL => __libc_malloc(layout.size()),
                align => __libc_memalign(align, layout.size()),
            }
        }
        .cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= USUAL {
            // SAFETY: takes any numbers.
            return unsafe { __libc_calloc(1, layout.size()) }.cast();
        }
        // SAFETY: the caller's promise; the block has so many bytes.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                ptr::write_bytes(block, 0, layout.size());
            }
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller's promise: it came from here.
        unsafe { __libc_free(block.cast()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        if layout.align() <= USUAL {
            // SAFETY: the caller's promise: it came from here.
            return unsafe { __libc_realloc(block.cast(), len) }.cast();
        }
        // SAFETY: the caller's promise; both have as many bytes as are copied.
        unsafe {
            let longer = self.alloc(Layout::from_size_align_unchecked(len, layout.align()));
            if !longer.is_null() {
                ptr::copy_nonoverlapping(block, longer, len.min(layout.size()));
                self.dealloc(block, layout);
            }
            longer
        }
    }
}

#[global_allocator]
static OWN: Own = Own;

/// What is called when this library has been loaded, before the program begins: what it allocates then is what it registers later.
#[used]
// SAFETY: functions without arguments stand there.
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    super::guarded((), || {
        // What is wrong with it is said when the program looks for devices.
        if let Ok(config) = Config::from_environment()
            && let Some(place) = &config.split
            && let Some(made) = prepare(place, config.from.unwrap_or(FROM))
        {
            let _ = GROUND.set(made);
            serve();
        }
    });
}

/// `None`: a transport that takes memory where it lies.
fn prepare(place: &str, from: usize) -> Option<Result<Ground, String>> {
    const NEEDS: &str = "programs for verbs register memory that they have already, which has to be the transport's from when it is allocated: start this \
                         program with LD_PRELOAD=libmillrace-memory.so, which lies beside this libibverbs.so.1";
    if place != "xen" && !place.starts_with("ivshmem:") {
        return None;
    }
    if offered().is_none() {
        return Some(Err(NEEDS.to_owned()));
    }
    let land = Land::open(place)?.map_err(|error| error.to_string());
    Some(land.and_then(|land| {
        let (base, pages) = land.extent().map_err(|error| error.to_string())?;
        Ok(Ground { arena: Arena::new(base, pages), land, from })
    }))
}

type Offer = unsafe extern "C" fn(*mut Server);

/// The function of `libmillrace-memory.so` by which memory is offered, if that has been loaded.
fn offered() -> Option<Offer> {
    // SAFETY: a name that ends with 0.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"millrace_serve_memory".as_ptr()) };
    // SAFETY: nobody else has that name, and there it has this type.
    (!at.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, Offer>(at) })
}

fn serve() {
    let (Some(Ok(ground)), Some(offer)) = (GROUND.get(), offered()) else { return };
    let (base, len, from) = (ground.arena.base(), ground.arena.len(), ground.from);
    let server = Box::leak(Box::new(Server { base, len, from, allocate, free, size, readable }));
    // SAFETY: what is called is below: handlers of `fork`, which the C library calls where they belong; and the server stays until the program ends.
    unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
        offer(server);
    }
}

impl Ground {
    /// That of this process: `None`, if its memory is its own.
    pub fn of_process() -> Option<Result<&'static Self, String>> {
        if IS_CHILD.load(Ordering::Relaxed) {
            return Some(Err(
                "a child of fork has a copy of its parent's memory, which nobody else reaches: have it run the program anew (exec)".to_owned(),
            ));
        }
        GROUND.get().map(|made| made.as_ref().map_err(Clone::clone))
    }
}

fn ground() -> Option<&'static Ground> {
    GROUND.get()?.as_ref().ok()
}

extern "C" fn allocate(len: usize, align: usize) -> *mut c_void {
    let Some(ground) = ground().filter(|_| !IS_CHILD.load(Ordering::Relaxed)) else { return ptr::null_mut() };
    match ground.arena.allocate(len, align, |first, pages| ground.land.take(first, pages)) {
        Ok(at) => ptr::with_exposed_provenance_mut(at),
        Err(count) => {
            if count == 1 {
                say(format_args!(
                    "{len} bytes have no room in the memory that can be registered, of which {} KiB are taken: they come from the C library, and others that have \
                     no room, too. More: --memory of the server of ivshmem, /sys/module/xen_gntalloc/parameters/limit in a domain of Xen; or have less there by from=BYTES",
                    ground.arena.taken() >> 10
                ));
            }
            ptr::null_mut()
        }
    }
}

extern "C" fn free(block: *mut c_void) {
    // A child's are a copy, which it has until its end.
    let Some(ground) = ground().filter(|_| !IS_CHILD.load(Ordering::Relaxed)) else { return };
    if !ground.arena.free(block.addr()) {
        say("free(): invalid pointer");
        std::process::abort();
    }
}

extern "C" fn size(block: *mut c_void) -> usize {
    // In a child it may have been asked for by another thread of the parent just then.
    let ground = ground().filter(|_| !IS_CHILD.load(Ordering::Relaxed));
    ground.and_then(|ground| ground.arena.size(block.addr())).unwrap_or(0)
}

extern "C" fn readable(block: *mut c_void) -> usize {
    let end = ground().map_or(0, |ground| ground.arena.base()) + INHERITED.load(Ordering::Relaxed);
    end.saturating_sub(block.addr())
}

thread_local! {
    /// A copy of the memory for the child that this thread is about to make: where, and how many bytes.
    static COPY: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
    static COPIED: Cell<usize> = const { Cell::new(0) };
}

/// Before a child is made: a copy of what has been taken, as it is now. Only then it is as the parent's: afterwards other threads of that go on.
extern "C" fn before_fork() {
    let Some(ground) = ground().filter(|_| !IS_CHILD.load(Ordering::Relaxed)) else { return };
    let len = ground.arena.taken();
    COPY.set(ptr::null_mut());
    COPIED.set(len);
    if len == 0 {
        return;
    }
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: fresh addresses; nothing of this process is replaced.
    let Ok(copy) = (unsafe { mmap_anonymous(ptr::null_mut(), len, rights, flags) }) else { return };
    // SAFETY: so many bytes can be read there as long as this program lives, and written here. Others may write there meanwhile, as the engine does: what
    // is copied then is their matter.
    unsafe { ptr::copy_nonoverlapping(ptr::with_exposed_provenance(ground.arena.base()), copy.cast::<u8>(), len) };
    COPY.set(copy);
}

extern "C" fn after_fork() {
    let (copy, len) = (COPY.replace(ptr::null_mut()), COPIED.get());
    if !copy.is_null() {
        // SAFETY: our own mapping, which nobody else knows.
        let _ = unsafe { munmap(copy, len) };
    }
}

/// In the child: the copy takes the place of what the parent has, and nothing of the transport is left there.
extern "C" fn in_child() {
    if IS_CHILD.load(Ordering::Relaxed) {
        return;
    }
    let Some(ground) = ground() else { return };
    IS_CHILD.store(true, Ordering::Relaxed);
    let (base, copy) = (ground.arena.base(), COPY.replace(ptr::null_mut()));
    let at = |offset: usize| ptr::with_exposed_provenance_mut::<c_void>(base + offset);
    let len = if copy.is_null() { 0 } else { COPIED.get() };
    // SAFETY: both are this process's own; what was there is the parent's memory, of which this has a copy.
    let moved = len == 0 || unsafe { mremap_fixed(copy, len, len, MremapFlags::MAYMOVE, at(0)) }.is_ok();
    let kept = if moved { len } else { 0 };
    INHERITED.store(kept, Ordering::Relaxed);
    let rest = ground.arena.len() - kept;
    if rest > 0 {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: this process's own; nobody looks there, and who does ends: better than to write where its parent reads.
        let _ = unsafe { mmap_anonymous(at(kept), rest, ProtFlags::empty(), flags) };
    }
    debug_assert!(kept.is_multiple_of(PAGE));
}
