//! Memory of messages that are handed over instead of being copied: blocks of a pool that two ends share, filled by one, seen by the other.

use crate::control::Message;
use crate::endpoint::Peer;
use millrace_dma::{OutOfRange, Pages, Region, RegionError, Window};
use rustix::fd::BorrowedFd;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Blocks begin and end at multiples of that, so that no two of them have a line of the cache in common.
const GRAIN: usize = 64;

/// There is no block.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The other endpoint is gone.
    #[error("the other endpoint is gone")]
    Lost,
    /// It is on another host.
    #[error("the other endpoint is on another host: send messages to it, there is no memory that both have")]
    Elsewhere,
    /// Others have been handed over, and are not given back yet.
    #[error("no block of that size is free: what was handed over has not been given back")]
    Full,
    /// There never is.
    #[error("a block has {0} bytes at most (Config::pool)")]
    TooLong(usize),
    /// The system has no memory.
    #[error(transparent)]
    Memory(#[from] RegionError),
}

/// A block was not handed over. It is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GiveError {
    /// The other endpoint is gone.
    #[error("the other endpoint is gone")]
    Lost,
    /// The block is for somebody else.
    #[error("the block was allocated for another endpoint, which alone can see it")]
    Elsewhere,
}

/// Memory for one other end, which has the same memory.
pub(crate) struct Pool {
    region: Region,
    /// What is free: where it begins, and how long it is.
    free: Mutex<BTreeMap<usize, usize>>,
}

impl Pool {
    /// One of so many bytes.
    pub(crate) fn new(len: usize) -> Result<Arc<Self>, RegionError> {
        Ok(Self::behind(Region::allocate(len, Pages::Ordinary)?, 0))
    }

    /// That of a region from `first` on, a multiple of 64.
    pub(crate) fn behind(region: Region, first: usize) -> Arc<Self> {
        let len = region.len().saturating_sub(first) & !(GRAIN - 1);
        Arc::new(Self { region, free: Mutex::new(BTreeMap::from([(first, len)])) })
    }

    /// The file that the other end needs.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.region.fd()
    }

    fn free(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of so many bytes, from the first place that is long enough. `None`: there is none now.
    pub(crate) fn allocate(self: &Arc<Self>, len: usize) -> Option<Block> {
        let whole = len.max(1).checked_next_multiple_of(GRAIN)?;
        let mut free = self.free();
        let (at, has) = free.iter().find(|(_, has)| **has >= whole).map(|(at, has)| (*at, *has))?;
        free.remove(&at);
        if has > whole {
            free.insert(at + whole, has - whole);
        }
        drop(free);
        let window = self.region.part(at, len).ok()?;
        Some(Block { pool: self.clone(), window, at, whole })
    }

    fn give_back(&self, at: usize, whole: usize) {
        let mut free = self.free();
        let (mut at, mut whole) = (at, whole);
        if let Some(behind) = free.remove(&(at + whole)) {
            whole += behind;
        }
        let before = free.range(..at).next_back().map(|(before, has)| (*before, *has));
        if let Some((before, has)) = before.filter(|(before, has)| before + has == at) {
            (at, whole) = (before, has + whole);
        }
        free.insert(at, whole);
    }
}

/// Memory that is filled, and then handed over ([`crate::Endpoint::give`]). The other end has the pool from the beginning: it could write there, and
/// what is read here is what stands there.
pub struct Block {
    pool: Arc<Pool>,
    window: Window,
    at: usize,
    whole: usize,
}

impl Block {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// [`OutOfRange`]: they do not fit there.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        let part = self.window.part(offset, bytes.len())?;
        part.span_mut(0, bytes.len()).map(|to| to.write_from(bytes));
        Ok(())
    }

    /// Copies bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfRange`]: there are not so many.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), OutOfRange> {
        let part = self.window.part(offset, to.len())?;
        part.span(0, to.len()).map(|span| span.read_into(to));
        Ok(())
    }

    /// By which the other end finds it ([`crate::Endpoint::window`]), as long as it is not given and not dropped.
    pub fn number(&self) -> u64 {
        self.at as u64
    }

    /// All of it.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        let _ = self.read(0, &mut bytes);
        bytes
    }

    /// Whether it is of that pool.
    pub(crate) fn is_of(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes at {})", self.len(), self.at)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.give_back(self.at, self.whole);
    }
}

/// Whoever takes back what is not needed any more.
pub(crate) trait TakesBack: Send + Sync {
    fn take_back(&self, peer: Peer, message: Message);
}

/// A message that the sender has handed over: its own memory, seen here. The sender, if it does not keep to its word, could still write there; so
/// bytes are read once, and then looked at. When it is dropped, the memory is the sender's again.
pub struct Given {
    window: Window,
    peer: Peer,
    message: Message,
    from: Weak<dyn TakesBack>,
}

impl Given {
    pub(crate) fn new(window: Window, peer: Peer, message: Message, from: Weak<dyn TakesBack>) -> Self {
        Self { window, peer, message, from }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Copies bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfRange`]: there are not so many.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), OutOfRange> {
        let part = self.window.part(offset, to.len())?;
        part.span(0, to.len()).map(|span| span.read_into(to));
        Ok(())
    }

    /// All of it.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        let _ = self.read(0, &mut bytes);
        bytes
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Given({} bytes of {:?})", self.len(), self.peer)
    }
}

/// The same message.
impl PartialEq for Given {
    fn eq(&self, other: &Self) -> bool {
        (self.peer, self.message) == (other.peer, other.message)
    }
}

impl Eq for Given {}

impl Drop for Given {
    fn drop(&mut self) {
        if let Some(from) = self.from.upgrade() {
            from.take_back(self.peer, self.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tag;
    use crate::channel::Side;
    use crate::control::Origin;
    use crate::engine::{Limits, Outcome};
    use crate::local::{Local, Reach, memory_len};
    use proptest::prelude::*;

    /// Another end that cannot see the pool gets what was handed over by buffers, whether it wants to hold it or not.
    #[test]
    fn who_cannot_see_a_block_gets_a_copy() {
        let limits = Limits { mtu: 1024, ..Limits::default() };
        let [mut one, mut other] = [(); 2].map(|()| Local::<Vec<u8>>::new(limits).unwrap());
        let memory = Region::heap(memory_len(one.terms(), other.terms()));
        let to = one.join(memory.window(), Side::Maker, other.terms(), Reach::default()).unwrap();
        let from = other.join(memory.window(), Side::Taker, one.terms(), Reach::default()).unwrap();
        let (pool, bytes) = (Pool::new(1 << 20).unwrap(), (0..10_000).map(|at| at as u8).collect::<Vec<u8>>());
        for holds in [false, true] {
            let mut block = pool.allocate(bytes.len()).unwrap();
            block.write(0, &bytes).unwrap();
            let origin = Origin { key: 4, address: block.number() };
            one.give(to, Tag(1), block, origin).unwrap();
            let room: Vec<u8> = vec![0; bytes.len()];
            match holds {
                true => other.receive_held(Some(from), Tag(1), u64::MAX, room).unwrap(),
                false => other.receive(Some(from), Tag(1), u64::MAX, room).unwrap(),
            };
            while one.progress() | other.progress() | !one.is_quiet() | !other.is_quiet() {}
            let done = other.done().unwrap();
            assert!(matches!(done.outcome, Outcome::Received { .. }) && done.buffer == bytes);
            assert!(one.done().is_none());
        }
        assert_eq!((one.returned(), &*pool.free()), (2, &BTreeMap::from([(0, 1 << 20)])));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Blocks never have bytes in common, and all of the pool is there when they are gone.
        #[test]
        fn blocks_are_apart(turns in prop::collection::vec((0usize..2000, any::<prop::sample::Index>(), any::<bool>()), 1..200)) {
            let pool = Pool::new(16 << 10).unwrap();
            let mut blocks: Vec<Block> = Vec::new();
            for (len, which, frees) in turns {
                if frees && !blocks.is_empty() {
                    blocks.remove(which.index(blocks.len()));
                } else if let Some(mut block) = pool.allocate(len) {
                    prop_assert_eq!((block.len(), block.is_empty()), (len, len == 0));
                    block.write(0, &vec![7; len]).unwrap();
                    prop_assert!(block.write(1, &vec![7; len]).is_err());
                    blocks.push(block);
                }
                let mut places: Vec<(usize, usize)> = blocks.iter().map(|block| (block.at, block.at + block.len())).collect();
                places.sort_unstable();
                prop_assert!(places.windows(2).all(|two| two[0].1 <= two[1].0));
                let used: usize = blocks.iter().map(|block| block.whole).sum();
                let free: usize = pool.free().values().sum();
                prop_assert_eq!(used + free, 16 << 10);
            }
            drop(blocks);
            prop_assert_eq!(&*pool.free(), &BTreeMap::from([(0, 16 << 10)]));
            prop_assert!(pool.allocate((16 << 10) + 1).is_none() && pool.allocate(usize::MAX).is_none());
        }
    }
}
