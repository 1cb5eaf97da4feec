//! `libmillrace-memory.so`: `malloc` and its like for programs that are written for verbs and run in guests (decision 126).
//!
//! There memory that is registered has to be pages of the transport from when it is allocated. Whoever has such pages (our libibverbs, if `MILLRACE_VERBS`
//! names a transport of that kind) offers them by [`millrace_serve_memory`]; until then, and in every program where nobody does, each function here is that of
//! the C library behind one branch. It is loaded before the C library (`LD_PRELOAD`), allocates nothing itself, and has no other state than that offer.
//!
//! Everything here is `unsafe`, because it is what C calls: a pointer that is given back or made longer came from one of these functions, and is not used
//! afterwards.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

// SAFETY of `no_mangle` in this file: these are the names of the C library, for whose functions these stand, and one of our own.

/// Who has memory to give.
#[repr(C)]
pub struct Server {
    /// Its addresses: from the first on so many.
    pub base: usize,
    /// How many.
    pub len: usize,
    /// Blocks of so many bytes and more are asked for there.
    pub from: usize,
    /// A block with that alignment, a power of two; NULL: there is none.
    pub allocate: extern "C" fn(len: usize, align: usize) -> *mut c_void,
    /// A block is given back.
    pub free: extern "C" fn(block: *mut c_void),
    /// Bytes of a block; 0: nobody knows.
    pub size: extern "C" fn(block: *mut c_void) -> usize,
    /// Bytes from there on that can be read.
    pub readable: extern "C" fn(block: *mut c_void) -> usize,
}

/// What a page has, and blocks of `valloc` begin with.
const PAGE: usize = 4096;
/// The alignment that `malloc` gives.
const USUAL: usize = 16;

static SERVER: AtomicPtr<Server> = AtomicPtr::new(ptr::null_mut());
/// `malloc_usable_size` of the C library, which has no second name.
static SIZE: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, len: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, len: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// Memory for this program is asked for there from now on.
///
/// # Safety
/// What is pointed to stays as it is until the program ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millrace_serve_memory(server: *mut Server) {
    // Release pairs with the Acquire in `server`.
    SERVER.store(server, Ordering::Release);
}

#[inline(always)]
fn server() -> Option<&'static Server> {
    // Acquire pairs with the Release in `millrace_serve_memory`.
    let server = SERVER.load(Ordering::Acquire);
    // SAFETY: NULL, or what stays as it is: the promise to `millrace_serve_memory`.
    unsafe { server.as_ref() }
}

impl Server {
    fn has(&self, block: *mut c_void) -> bool {
        block.addr().wrapping_sub(self.base) < self.len
    }

    /// A block of it, or NULL.
    fn block(&self, len: usize, align: usize) -> *mut c_void {
        if len < self.from { ptr::null_mut() } else { (self.allocate)(len, align) }
    }
}

/// Whose block this is, if not the C library's.
#[inline(always)]
fn owner(block: *mut c_void) -> Option<&'static Server> {
    server().filter(|server| server.has(block))
}

/// `malloc`
#[unsafe(no_mangle)]
pub extern "C" fn malloc(len: usize) -> *mut c_void {
    if let Some(server) = server() {
        let block = server.block(len, USUAL);
        if !block.is_null() {
            return block;
        }
    }
    // SAFETY: takes any number.
    unsafe { __libc_malloc(len) }
}

/// `calloc`
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, len: usize) -> *mut c_void {
    if let (Some(server), Some(all)) = (server(), count.checked_mul(len)) {
        let block = server.block(all, USUAL);
        if !block.is_null() {
            // SAFETY: a block of so many bytes, which nobody else has. It may have been somebody's before.
            unsafe { ptr::write_bytes(block.cast::<u8>(), 0, all) };
            return block;
        }
    }
    // SAFETY: takes any numbers.
    unsafe { __libc_calloc(count, len) }
}

/// `free`
///
/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    match owner(block) {
        Some(server) => (server.free)(block),
        // SAFETY: it is the C library's, or NULL.
        None => unsafe { __libc_free(block) },
    }
}

/// `realloc`
///
/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, len: usize) -> *mut c_void {
    let Some(server) = server() else {
        // SAFETY: it is the C library's, or NULL.
        return unsafe { __libc_realloc(block, len) };
    };
    if block.is_null() {
        return malloc(len);
    }
    let is_its = server.has(block);
    if len == 0 || !is_its && len < server.from {
        if !is_its {
            // SAFETY: it is the C library's.
            return unsafe { __libc_realloc(block, len) };
        }
        (server.free)(block);
        return ptr::null_mut();
    }
    // SAFETY: a block of this program's.
    let has = if is_its { (server.size)(block) } else { unsafe { size_of_libc(block) } };
    // A little shorter is the same block.
    if is_its && len <= has && len >= has / 2 {
        return block;
    }
    let readable = if is_its && has == 0 { (server.readable)(block) } else { has };
    if !is_its && has == 0 {
        // Nobody knows how long it is.
        // SAFETY: it is the C library's.
        return unsafe { __libc_realloc(block, len) };
    }
    let longer = malloc(len);
    if !longer.is_null() {
        // SAFETY: both have so many bytes, and one is new.
        unsafe { ptr::copy_nonoverlapping(block.cast::<u8>(), longer.cast::<u8>(), len.min(readable)) };
        // SAFETY: the caller's promise: it is not used any more.
        unsafe { free(block) };
    }
    longer
}

fn aligned(align: usize, len: usize) -> *mut c_void {
    if let Some(server) = server().filter(|_| align.is_power_of_two()) {
        let block = server.block(len, align.max(USUAL));
        if !block.is_null() {
            return block;
        }
    }
    // SAFETY: takes any numbers.
    unsafe { __libc_memalign(align, len) }
}

/// `memalign`
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, len: usize) -> *mut c_void {
    aligned(align, len)
}

/// `aligned_alloc`
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, len: usize) -> *mut c_void {
    aligned(align, len)
}

/// `posix_memalign`
///
/// # Safety
/// `to` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, len: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let block = aligned(align, len);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *to = block };
    0
}

/// `valloc`
#[unsafe(no_mangle)]
pub extern "C" fn valloc(len: usize) -> *mut c_void {
    aligned(PAGE, len)
}

/// `pvalloc`
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(len: usize) -> *mut c_void {
    match len.checked_next_multiple_of(PAGE) {
        Some(len) => aligned(PAGE, len.max(PAGE)),
        // More than there is: the C library says so.
        None => aligned(PAGE, len),
    }
}

/// `malloc_usable_size`
///
/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    match owner(block) {
        Some(server) => (server.size)(block),
        // SAFETY: it is the C library's, or NULL.
        None => unsafe { size_of_libc(block) },
    }
}

/// # Safety
/// The block is the C library's, or NULL.
unsafe fn size_of_libc(block: *mut c_void) -> usize {
    // Relaxed: everybody finds the same.
    let mut at = SIZE.load(Ordering::Relaxed);
    if at == 0 {
        // SAFETY: a name that ends with 0.
        at = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_usable_size".as_ptr()) }.addr();
        SIZE.store(at, Ordering::Relaxed);
    }
    if at == 0 || block.is_null() {
        return 0;
    }
    // SAFETY: what the C library calls so has this type.
    let size = unsafe {
        core::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut c_void) -> usize>(ptr::with_exposed_provenance(
            at,
        ))
    };
    // SAFETY: the caller's promise.
    unsafe { size(block) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const LEN: usize = 1 << 20;

    #[repr(align(4096))]
    struct Memory(#[expect(dead_code, reason = "its bytes are reached by their addresses")] [u8; LEN]);

    /// What a server has: blocks one behind the other, and which were given back.
    struct Given {
        at: usize,
        sizes: Vec<(usize, usize)>,
        freed: Vec<usize>,
    }
    static GIVEN: Mutex<Given> = Mutex::new(Given { at: 0, sizes: Vec::new(), freed: Vec::new() });
    static mut MEMORY: Memory = Memory([0xee; LEN]);

    fn base() -> usize {
        (&raw mut MEMORY).expose_provenance()
    }

    // What the server itself needs is not asked for there: its lists are long enough from the first.
    extern "C" fn allocate(len: usize, align: usize) -> *mut c_void {
        let Ok(mut given) = GIVEN.try_lock() else { return ptr::null_mut() };
        let at = (base() + given.at).next_multiple_of(align) - base();
        if at + len > LEN || given.sizes.len() == given.sizes.capacity() {
            return ptr::null_mut();
        }
        given.at = at + len;
        given.sizes.push((base() + at, len));
        ptr::with_exposed_provenance_mut(base() + at)
    }

    extern "C" fn give_back(block: *mut c_void) {
        GIVEN.lock().unwrap().freed.push(block.addr());
    }

    extern "C" fn size(block: *mut c_void) -> usize {
        let given = GIVEN.lock().unwrap();
        given.sizes.iter().find(|(at, _)| *at == block.addr()).map_or(0, |(_, len)| *len)
    }

    extern "C" fn readable(block: *mut c_void) -> usize {
        base() + LEN - block.addr()
    }

    fn is_served(block: *mut c_void) -> bool {
        assert!(!block.is_null());
        block.addr().wrapping_sub(base()) < LEN
    }

    /// One test, because it changes what all of this process allocates.
    #[test]
    fn blocks_come_from_whoever_offers_them_and_go_back_there() {
        let before = malloc(100_000);
        assert!(!is_served(before));
        {
            let mut given = GIVEN.lock().unwrap();
            given.sizes.reserve(64);
            given.freed.reserve(64);
        }
        // What other threads of this test harness allocate is shorter, mostly; if not, it is served.
        let from = 10_000;
        let server = Server { base: base(), len: LEN, from, allocate, free: give_back, size, readable };
        // SAFETY: it stays.
        unsafe { millrace_serve_memory(Box::into_raw(Box::new(server))) };
        let short = malloc(from - 1);
        let long = calloc(2, from / 2);
        assert!(!is_served(short) && is_served(long));
        // SAFETY: a block of so many bytes.
        let bytes = unsafe { core::slice::from_raw_parts_mut(long.cast::<u8>(), from) };
        assert!(bytes.iter().all(|byte| *byte == 0), "calloc");
        bytes.fill(7);
        // SAFETY: below, blocks that came from here, each given back once, and read as far as they go.
        unsafe {
            assert_eq!((malloc_usable_size(long), malloc_usable_size(ptr::null_mut())), (from, 0));
            assert!(malloc_usable_size(short) >= from - 1);
            assert_eq!(realloc(long, from - 8), long, "a little shorter");
            let longer = realloc(long, 3 * from);
            assert!(is_served(longer) && longer != long);
            assert!(core::slice::from_raw_parts(longer.cast::<u8>(), from - 8).iter().all(|byte| *byte == 7));
            // From one to the other, both ways.
            short.cast::<u8>().write_bytes(9, from - 1);
            let moved = realloc(short, from);
            assert!(is_served(moved));
            assert!(core::slice::from_raw_parts(moved.cast::<u8>(), from - 1).iter().all(|byte| *byte == 9));
            let back = realloc(moved, 100);
            assert!(!is_served(back));
            assert!(core::slice::from_raw_parts(back.cast::<u8>(), 100).iter().all(|byte| *byte == 9));
            assert!(realloc(longer, 0).is_null());
            for freed in [long, longer, moved] {
                assert!(GIVEN.lock().unwrap().freed.contains(&freed.addr()));
            }
            let mut page = ptr::null_mut();
            assert_eq!((posix_memalign(&mut page, 3, from), posix_memalign(&mut page, PAGE, from)), (libc::EINVAL, 0));
            let all = [page, memalign(64, from), aligned_alloc(1 << 15, from), valloc(from), pvalloc(from)];
            for (block, align) in all.into_iter().zip([PAGE, 64, 1 << 15, PAGE, PAGE]) {
                assert!(is_served(block) && block.addr().is_multiple_of(align));
                free(block);
            }
            // There is no room: the C library has some.
            let much = malloc(2 * LEN);
            assert!(!is_served(much));
            [much, back, before].into_iter().for_each(|block| free(block));
            free(ptr::null_mut());
        }
    }
}
