//! Views of shared memory. One of the files of this crate that may use `unsafe`.
//!
//! Every view is checked against its window when it is made and keeps the mapping alive, so that using it needs no
//! further check. Integers are atomic. Bytes are moved with plain copies: the peer may write them meanwhile, which can
//! only make the copy a mixture of old and new bytes; nothing here gives bytes a meaning before they are copied.

use crate::{OutOfRange, mapping::Mapping};
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use core::{marker::PhantomData, ptr::NonNull};
use std::sync::Arc;

/// A full fence; the name under which loom can replace it.
#[inline(always)]
pub fn fence(order: Ordering) {
    core::sync::atomic::fence(order);
}

/// A part of a region: an address range that stays mapped as long as the window or any view of it lives.
#[derive(Clone)]
pub struct Window {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    mapping: Arc<Mapping>,
}

// SAFETY: a window is a checked address range; its views use atomics or bytewise copies, which any thread may do.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// # Safety
    /// `len` bytes at `base` stay mapped while `mapping` lives, readable, and writable if `writable`.
    pub(crate) unsafe fn over(base: NonNull<u8>, len: usize, writable: bool, mapping: Arc<Mapping>) -> Self {
        Self { base, len, writable, mapping }
    }

    /// Where it begins, whether it may be written, and what keeps it mapped.
    pub(crate) fn parts(&self) -> (usize, bool, Arc<Mapping>) {
        (self.base.as_ptr().expose_provenance(), self.writable, self.mapping.clone())
    }

    /// The same window without the right to store.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.writable = false;
        self
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether stores are allowed.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    fn check(&self, offset: usize, len: usize, align: usize) -> Result<NonNull<u8>, OutOfRange> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside {
            return Err(OutOfRange { offset, len, window: self.len });
        }
        // SAFETY: offset <= len of the range, checked above.
        let at = unsafe { self.base.add(offset) };
        if at.as_ptr().addr().is_multiple_of(align) {
            Ok(at)
        } else {
            Err(OutOfRange { offset, len, window: self.len })
        }
    }

    /// The part of `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`OutOfRange`] when it is not inside.
    pub fn part(&self, offset: usize, len: usize) -> Result<Window, OutOfRange> {
        let base = self.check(offset, len, 1)?;
        Ok(Window { base, len, writable: self.writable, mapping: self.mapping.clone() })
    }

    /// The 64-bit word at `offset` (a multiple of 8).
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn word64(&self, offset: usize) -> Result<Word64, OutOfRange> {
        let at = self.check(offset, 8, 8)?;
        Ok(Word64 { at: at.cast(), window: self.clone() })
    }

    /// The 32-bit word at `offset` (a multiple of 4).
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn word32(&self, offset: usize) -> Result<Word32, OutOfRange> {
        let at = self.check(offset, 4, 4)?;
        Ok(Word32 { at: at.cast(), window: self.clone() })
    }

    /// The 16-bit word at `offset` (a multiple of 2).
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn word16(&self, offset: usize) -> Result<Word16, OutOfRange> {
        let at = self.check(offset, 2, 2)?;
        Ok(Word16 { at: at.cast(), window: self.clone() })
    }

    /// A ring of `count` (a power of two) 64-bit words at `offset`.
    ///
    /// # Errors
    /// [`OutOfRange`]; also when `count` is no power of two.
    pub fn slots64(&self, offset: usize, count: u32) -> Result<Slots64, OutOfRange> {
        let bytes = (count as usize).saturating_mul(8);
        let at = self.check(offset, bytes, 8)?;
        if !count.is_power_of_two() {
            return Err(OutOfRange { offset, len: bytes, window: self.len });
        }
        Ok(Slots64 { at: at.cast(), mask: count - 1, window: self.clone() })
    }

    /// A ring of `count` (a power of two) 32-bit words at `offset`.
    ///
    /// # Errors
    /// [`OutOfRange`]; also when `count` is no power of two.
    pub fn slots32(&self, offset: usize, count: u32) -> Result<Slots32, OutOfRange> {
        let bytes = (count as usize).saturating_mul(4);
        let at = self.check(offset, bytes, 4)?;
        if !count.is_power_of_two() {
            return Err(OutOfRange { offset, len: bytes, window: self.len });
        }
        Ok(Slots32 { at: at.cast(), mask: count - 1, window: self.clone() })
    }

    /// A ring of `count` (a power of two) 16-bit words at `offset`.
    ///
    /// # Errors
    /// [`OutOfRange`]; also when `count` is no power of two.
    pub fn slots16(&self, offset: usize, count: u32) -> Result<Slots16, OutOfRange> {
        let bytes = (count as usize).saturating_mul(2);
        let at = self.check(offset, bytes, 2)?;
        if !count.is_power_of_two() {
            return Err(OutOfRange { offset, len: bytes, window: self.len });
        }
        Ok(Slots16 { at: at.cast(), mask: count - 1, window: self.clone() })
    }

    /// Bytes to be read.
    #[inline]
    pub fn span(&self, offset: usize, len: usize) -> Option<Span<'_>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: inside the range, checked above; alive as long as the borrow of the window.
        Some(Span { at: unsafe { self.base.add(offset) }, len, window: PhantomData })
    }

    /// Bytes to be written; `None` outside the window and in a read-only one.
    #[inline]
    pub fn span_mut(&self, offset: usize, len: usize) -> Option<SpanMut<'_>> {
        if !self.writable || offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: inside the range, checked above; alive as long as the borrow of the window.
        Some(SpanMut { at: unsafe { self.base.add(offset) }, len, window: PhantomData })
    }

    /// Bytes of a packet that the ring's protocol has given to us until we put it back.
    ///
    /// The card keeps that promise; a process that breaks it can change the bytes while they are read, which
    /// `u8` tolerates. Interpret nothing twice that was not copied.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let span = self.span(offset, len)?;
        // SAFETY: mapped and readable for the life of the borrow; every bit pattern is a u8; exclusive use until the
        // packet is put back is what the ring protocol grants (docs/decisions, "slices of shared memory").
        Some(unsafe { core::slice::from_raw_parts(span.at.as_ptr(), span.len) })
    }

    /// Bytes of a slot that the ring's protocol has given to us until we put it back.
    #[inline]
    pub fn slice_mut(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let span = self.span_mut(offset, len)?;
        // SAFETY: as `slice`; `&mut self` keeps this window from giving out a second slice meanwhile.
        Some(unsafe { core::slice::from_raw_parts_mut(span.at.as_ptr(), span.len) })
    }
}

/// A shared 64-bit word: a doorbell, an update word, a cursor.
#[derive(Clone)]
pub struct Word64 {
    at: NonNull<AtomicU64>,
    window: Window,
}

/// A shared 32-bit word: a flag, a state.
#[derive(Clone)]
pub struct Word32 {
    at: NonNull<AtomicU32>,
    window: Window,
}

/// A shared 16-bit word: an index or the flags of a virtqueue.
#[derive(Clone)]
pub struct Word16 {
    at: NonNull<AtomicU16>,
    window: Window,
}

/// A ring of 64-bit words; indices are masked, so none is outside.
#[derive(Clone)]
pub struct Slots64 {
    at: NonNull<AtomicU64>,
    mask: u32,
    window: Window,
}

/// A ring of 32-bit words; indices are masked, so none is outside.
#[derive(Clone)]
pub struct Slots32 {
    at: NonNull<AtomicU32>,
    mask: u32,
    window: Window,
}

/// A ring of 16-bit words; indices are masked, so none is outside.
#[derive(Clone)]
pub struct Slots16 {
    at: NonNull<AtomicU16>,
    mask: u32,
    window: Window,
}

macro_rules! send_and_sync {
    ($($name:ty),+) => { $(
        // SAFETY: only atomic access goes through the pointer, and the window keeps it valid.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )+ };
}
send_and_sync!(Word64, Word32, Word16, Slots64, Slots32, Slots16);

macro_rules! word {
    ($name:ident, $atomic:ty, $int:ty) => {
        impl $name {
            #[inline(always)]
            fn atomic(&self) -> &$atomic {
                // SAFETY: aligned and inside the window that `self` keeps alive, checked when the word was made.
                unsafe { self.at.as_ref() }
            }

            /// Loads the word.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $int {
                self.atomic().load(order)
            }

            /// Stores the word; does nothing in a read-only window.
            #[inline(always)]
            pub fn store(&self, value: $int, order: Ordering) {
                if self.window.writable {
                    self.atomic().store(value, order);
                }
            }

            /// Replaces `current` by `new`, or says what stands there instead.
            ///
            /// # Errors
            /// The word as it is, when it is not `current` or the window is read-only.
            #[inline(always)]
            pub fn compare_exchange(&self, current: $int, new: $int) -> Result<$int, $int> {
                if !self.window.writable {
                    return Err(self.load(Ordering::Relaxed));
                }
                self.atomic().compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
            }
        }
    };
}
word!(Word64, AtomicU64, u64);
word!(Word32, AtomicU32, u32);
word!(Word16, AtomicU16, u16);

macro_rules! slots {
    ($name:ident, $atomic:ty, $int:ty) => {
        impl $name {
            #[inline(always)]
            fn slot(&self, index: u32) -> &$atomic {
                // SAFETY: the masked index lies inside the range that was checked when the ring was made.
                unsafe { self.at.add((index & self.mask) as usize).as_ref() }
            }

            /// Loads slot `index & mask`. What publishes it is the pointer word of the ring.
            #[inline(always)]
            pub fn load(&self, index: u32) -> $int {
                <$int>::from_le(self.slot(index).load(Ordering::Relaxed))
            }

            /// Stores slot `index & mask`; does nothing in a read-only window.
            #[inline(always)]
            pub fn store(&self, index: u32, value: $int) {
                if self.window.writable {
                    self.slot(index).store(value.to_le(), Ordering::Relaxed);
                }
            }

            /// Number of slots minus one.
            #[inline(always)]
            pub fn mask(&self) -> u32 {
                self.mask
            }

            /// Asks the processor to fetch the cache line of slot `index & mask`.
            #[inline(always)]
            pub fn prefetch(&self, index: u32) {
                prefetch_read(core::ptr::from_ref(self.slot(index)).cast());
            }

            /// Asks the processor to own the cache line of slot `index & mask`.
            #[inline(always)]
            pub fn prefetch_write(&self, index: u32) {
                prefetch_own(core::ptr::from_ref(self.slot(index)).cast());
            }
        }
    };
}
slots!(Slots64, AtomicU64, u64);

/// For rings whose slots say by themselves that they are new.
impl Slots64 {
    /// Loads slot `index & mask` with Acquire: what its writer stored before it is visible.
    #[inline(always)]
    pub fn load_acquire(&self, index: u32) -> u64 {
        u64::from_le(self.slot(index).load(Ordering::Acquire))
    }

    /// Stores slot `index & mask` with Release; does nothing in a read-only window.
    #[inline(always)]
    pub fn store_release(&self, index: u32, value: u64) {
        if self.window.writable {
            self.slot(index).store(value.to_le(), Ordering::Release);
        }
    }
}
slots!(Slots32, AtomicU32, u32);
slots!(Slots16, AtomicU16, u16);

/// Bytes to be read, in shared memory or in a slice.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    at: NonNull<u8>,
    len: usize,
    window: PhantomData<&'a Window>,
}

/// Bytes to be written, in shared memory.
#[derive(Clone, Copy)]
pub struct SpanMut<'a> {
    at: NonNull<u8>,
    len: usize,
    window: PhantomData<&'a Window>,
}

impl<'a> Span<'a> {
    /// No bytes.
    pub const EMPTY: Span<'static> = Span { at: NonNull::dangling(), len: 0, window: PhantomData };

    /// The bytes of a slice.
    #[inline]
    pub fn from_slice(bytes: &'a [u8]) -> Self {
        Self { at: NonNull::from(bytes).cast(), len: bytes.len(), window: PhantomData }
    }

    /// Length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes are, for a system call that reads them. Another process may write them meanwhile, so no reference
    /// may be made from this.
    #[inline(always)]
    pub fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    /// The first `at` bytes and the rest.
    ///
    /// # Panics
    /// When `at` is greater than the length.
    #[inline]
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "split at {at} of {} bytes", self.len);
        // SAFETY: at <= len.
        let rest = unsafe { self.at.add(at) };
        (Self { len: at, ..self }, Self { at: rest, len: self.len - at, ..self })
    }

    /// Copies as many bytes as both have and returns how many that were.
    #[inline]
    pub fn read_into(&self, to: &mut [u8]) -> usize {
        let len = self.len.min(to.len());
        // SAFETY: both ranges have at least `len` bytes.
        unsafe { copy(self.at.as_ptr(), to.as_mut_ptr(), len) };
        len
    }

    /// The same for a part of many bytes, which need not stay in the caches: they are stored around them.
    #[inline]
    pub fn read_around_into(&self, to: &mut [u8]) -> usize {
        let len = self.len.min(to.len());
        // SAFETY: both ranges have at least `len` bytes; what is read is mapped for as long as this lives.
        let copied = unsafe { crate::careful::copy_last_last(self.at.as_ptr(), to.as_mut_ptr(), len, true) };
        if copied.is_ok() { len } else { 0 }
    }

    /// Copies as many bytes as both have and returns how many that were. The two may overlap.
    #[inline]
    pub fn copy_to(&self, to: SpanMut<'_>) -> usize {
        let len = self.len.min(to.len);
        // SAFETY: both ranges have at least `len` bytes.
        unsafe { copy(self.at.as_ptr(), to.at.as_ptr(), len) };
        len
    }

    /// The little-endian 32-bit word in the first four bytes, read once; `None` when there are fewer.
    #[inline]
    pub fn first_u32(&self) -> Option<u32> {
        if self.len < 4 {
            return None;
        }
        // SAFETY: four bytes are inside; volatile because a peer may write them and they must be read just once.
        Some(u32::from_le_bytes(unsafe { self.at.as_ptr().cast::<[u8; 4]>().read_volatile() }))
    }

    /// The first `N` bytes, read once; `None` when there are fewer.
    #[inline(always)]
    pub fn first_bytes<const N: usize>(&self) -> Option<[u8; N]> {
        if self.len < N {
            return None;
        }
        // SAFETY: as many bytes are inside; volatile because a peer may write them and they must be read just once.
        Some(unsafe { self.at.as_ptr().cast::<[u8; N]>().read_volatile() })
    }

    /// Asks the processor to fetch the first cache line.
    #[inline(always)]
    pub fn prefetch(&self) {
        prefetch_read(self.at.as_ptr());
    }
}

impl<'a> SpanMut<'a> {
    /// Length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `at` bytes and the rest.
    ///
    /// # Panics
    /// When `at` is greater than the length.
    #[inline]
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "split at {at} of {} bytes", self.len);
        // SAFETY: at <= len.
        let rest = unsafe { self.at.add(at) };
        (Self { len: at, ..self }, Self { at: rest, len: self.len - at, ..self })
    }

    /// The same bytes, to be read.
    #[inline]
    #[must_use]
    pub fn as_span(self) -> Span<'a> {
        Span { at: self.at, len: self.len, window: PhantomData }
    }

    /// Copies as many bytes as both have and returns how many that were.
    #[inline]
    pub fn write_from(&self, from: &[u8]) -> usize {
        Span::from_slice(from).copy_to(*self)
    }

    /// Asks the processor to own the first cache line.
    #[inline(always)]
    pub fn prefetch(&self) {
        prefetch_own(self.at.as_ptr());
    }
}

/// What a register of the processor holds.
#[cfg(target_arch = "x86_64")]
type Chunk = core::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Chunk = u128;

/// Copies `len` bytes; the ranges may overlap. Packets are mostly short, and a short copy in registers is cheaper than
/// the call to `memmove`.
///
/// # Safety
/// `len` bytes are readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // Loads come before stores in every arm, which makes overlap harmless. Head and tail of the range overlap each
    // other instead of needing a loop for the remainder. Each chunk is a value by itself: arrays go by way of the stack.
    macro_rules! head_and_tail {
        ($chunk:ty, $($at:tt),+) => {{
            let size = size_of::<$chunk>() * [$($at),+].len();
            // SAFETY: size <= len <= 2 * size, so that the chunks of head and tail lie inside `len` bytes.
            unsafe {
                let (head, tail) = (from.cast::<$chunk>(), from.add(len - size).cast::<$chunk>());
                let head = ($(head.add($at).read_unaligned(),)+);
                let tail = ($(tail.add($at).read_unaligned(),)+);
                let (to_head, to_tail) = (to.cast::<$chunk>(), to.add(len - size).cast::<$chunk>());
                $(to_head.add($at).write_unaligned(head.$at);)+
                $(to_tail.add($at).write_unaligned(tail.$at);)+
            }
        }};
    }
    match len {
        8..=16 => head_and_tail!(u64, 0),
        17..=32 => head_and_tail!(Chunk, 0),
        33..=64 => head_and_tail!(Chunk, 0, 1),
        65..=128 => head_and_tail!(Chunk, 0, 1, 2, 3),
        // SAFETY: as promised by the caller.
        _ => unsafe { core::ptr::copy(from, to, len) },
    }
}

#[inline(always)]
fn prefetch_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it faults on no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[inline(always)]
fn prefetch_own(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is a hint; it faults on no address, and processors without PREFETCHW ignore it.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use crate::Region;

    #[test]
    fn views_outside_the_window_are_refused() {
        let region = Region::heap(64);
        let window = region.window();
        assert!(window.word64(56).is_ok());
        assert!(window.word64(57).is_err(), "not aligned");
        assert!(window.word64(64).is_err());
        assert!(window.word32(62).is_err());
        assert!(window.slots64(0, 8).is_ok());
        assert!(window.slots64(0, 16).is_err());
        assert!(window.slots64(0, 3).is_err(), "no power of two");
        assert!(window.slots32(0, 0).is_err());
        assert!(window.word16(62).is_ok());
        assert!(window.word16(61).is_err(), "not aligned");
        assert!(window.slots16(2, 16).is_ok());
        assert!(window.slots16(34, 16).is_err());
        assert!(window.part(60, 5).is_err());
        assert!(window.span(usize::MAX, 2).is_none());
        assert!(window.span(64, 0).is_some());
    }

    #[test]
    fn slots_wrap_by_their_mask() {
        let region = Region::heap(64);
        let slots = region.window().slots64(0, 8).unwrap();
        slots.store(9, 77);
        assert_eq!(slots.load(1), 77);
        assert_eq!(slots.load(u32::MAX - 6), 77);
    }

    #[test]
    fn copies_of_every_length_are_exact() {
        let region = Region::heap(1024);
        let pattern: Vec<u8> = (0..400).map(|i| (i * 7 + 3) as u8).collect();
        for len in 0..=300 {
            region.window().span_mut(0, 1024).unwrap().write_from(&[0xee; 1024]);
            assert_eq!(region.window().span_mut(13, len).unwrap().write_from(&pattern), len);
            let all = region.window().slice(0, 1024).unwrap();
            assert_eq!(&all[13..13 + len], &pattern[..len]);
            assert!(all[..13].iter().chain(&all[13 + len..]).all(|&b| b == 0xee), "wrote outside at length {len}");
            let mut back = vec![0; len];
            region.window().span(13, len).unwrap().read_into(&mut back);
            assert_eq!(back, &pattern[..len]);
        }
    }

    #[test]
    fn overlapping_copies_behave_like_memmove() {
        let region = Region::heap(512);
        for len in 0..=200 {
            let bytes: Vec<u8> = (0..512).map(|i| (i % 251) as u8).collect();
            region.window().span_mut(0, 512).unwrap().write_from(&bytes);
            let mut expected = bytes.clone();
            expected.copy_within(10..10 + len, 17);
            region.window().span(10, len).unwrap().copy_to(region.window().span_mut(17, len).unwrap());
            assert_eq!(region.window().slice(0, 512).unwrap(), expected, "length {len}");
        }
    }

    #[test]
    fn a_read_only_window_keeps_its_words() {
        let region = Region::heap(64);
        region.window().word64(0).unwrap().store(5, super::Ordering::Relaxed);
        let window = region.window().clone().read_only();
        window.word64(0).unwrap().store(6, super::Ordering::Relaxed);
        assert_eq!(window.word64(0).unwrap().compare_exchange(5, 7), Err(5));
        assert_eq!(region.window().word64(0).unwrap().load(super::Ordering::Relaxed), 5);
    }
}
