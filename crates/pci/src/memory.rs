//! The memory of a machine: what its client maps becomes the domain by which the card reaches it.
//!
//! A piece that comes without a file, such as firmware, cannot be mapped here. It is remembered, since a client ends that is
//! refused one, and reaching it is a fault as anywhere else outside.

use crate::books::{Books, Debt, OF_MACHINE};
use crate::counters::{Counting, count};
use crate::handover::{Fds, SavedPiece, TakenFds};
use crate::wire::message::Fields;
use millrace_dma::{Access, Domain, ForeignRegion, Iova, UnmapError, foreign_cuts};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Most pieces at once.
pub(crate) const MOST_PIECES: usize = 1024;
/// How long a worker may take to let go of a piece.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a client maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    pub writable: bool,
    /// Where it begins in its file.
    pub offset: u64,
    /// Where it begins in the machine's memory, and its length.
    pub at: u64,
    pub len: u64,
}

impl Map {
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let (_argsz, flags) = (fields.u32()?, fields.u32()?);
        let (offset, at, len) = (fields.u64()?, fields.u64()?, fields.u64()?);
        // Readable it is in any case.
        (flags & !0b11 == 0 && flags & 0b11 != 0).then_some(Self { writable: flags & 0b10 != 0, offset, at, len })
    }

    /// Its last address; `None`: there is no such range.
    fn last(&self) -> Option<u64> {
        self.len.checked_sub(1).and_then(|rest| self.at.checked_add(rest))
    }
}

/// What a client takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmap {
    /// Everything.
    All,
    /// What lies from the first address to the last.
    Range(u64, u64),
}

impl Unmap {
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let (_argsz, flags, at, len) = (fields.u32()?, fields.u32()?, fields.u64()?, fields.u64()?);
        match flags {
            0 => Some(Self::Range(at, len.checked_sub(1).and_then(|rest| at.checked_add(rest))?)),
            // `VFIO_DMA_UNMAP_FLAG_ALL`.
            2 if (at, len) == (0, 0) => Some(Self::All),
            _ => None,
        }
    }
}

struct Piece {
    last: u64,
    // As it was mapped.
    writable: bool,
    offset: u64,
    // `None`: it came without one.
    memory: Option<Mapped>,
}

/// Keeps the file's memory, and what it takes, until that is unmapped.
struct Mapped {
    region: ForeignRegion,
    debt: Debt,
    // For another card; `None`: the machine has more files than are kept.
    file: Option<FileName>,
}

/// Which file it is: the numbers of its file system, and there; and whether it has to be open for writing.
pub(crate) type FileName = (u64, u64, bool);

/// A file of which there is a descriptor as long as a piece lies in it.
struct Kept {
    file: Arc<OwnedFd>,
    pieces: usize,
}

/// Most files of a machine of which descriptors are kept, so that another card can map them.
const MOST_FILES: usize = 64;

/// The memory of a machine.
pub(crate) struct Memory {
    domain: Arc<Domain>,
    // By first address; none overlaps another.
    pieces: BTreeMap<u64, Piece>,
    books: Arc<Books>,
    files: HashMap<FileName, Kept>,
    // Addresses that the pieces take, in bytes.
    mapped: u64,
    // [`foreign_cuts`] when nothing of this had been cut yet.
    cuts: u64,
}

impl Memory {
    pub fn new(books: Arc<Books>) -> Self {
        Self {
            domain: Arc::default(),
            pieces: BTreeMap::new(),
            books,
            files: HashMap::new(),
            mapped: 0,
            cuts: foreign_cuts(),
        }
    }

    /// Whether its owner has taken any of it away from under the card, which reads zeros there and writes to where nobody reads.
    pub fn was_cut(&mut self) -> bool {
        // Cuts of other memory are no concern of this, and nothing is cut that has been cut.
        let cuts = foreign_cuts();
        if cuts == self.cuts {
            return false;
        }
        let is_cut =
            self.pieces.values().filter_map(|piece| piece.memory.as_ref()).any(|mapped| mapped.region.was_cut());
        if !is_cut {
            self.cuts = cuts;
        }
        is_cut
    }

    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Adds a piece.
    pub fn map(&mut self, map: Map, fd: Option<BorrowedFd<'_>>, counting: &Counting) -> Result<(), Errno> {
        let last = map.last().ok_or(Errno::INVAL)?;
        if self.pieces.len() >= MOST_PIECES {
            return Err(Errno::NOSPC);
        }
        if self.pieces.range(..=last).next_back().is_some_and(|(_, before)| before.last >= map.at) {
            return Err(Errno::EXIST);
        }
        let memory = match fd {
            Some(fd) => {
                let (region, debt) = self.map_file(map, fd).inspect_err(|errno| {
                    if *errno == Errno::NOSPC {
                        count(&counting.memory_refused);
                    }
                })?;
                let access = if map.writable { Access::ReadWrite } else { Access::Read };
                let mapped = self.domain.map(region.window().clone(), access, Some(Iova::new(map.at)));
                mapped.map_err(|_| Errno::INVAL)?;
                self.mapped += debt.bytes();
                Some(Mapped { region, debt, file: self.keep(fd, map.writable) })
            }
            None => {
                count(&counting.memory_without_file);
                None
            }
        };
        let Map { writable, offset, .. } = map;
        self.pieces.insert(map.at, Piece { last, writable, offset, memory });
        Ok(())
    }

    /// A descriptor of the file, of which there is one however many pieces of it are mapped.
    fn keep(&mut self, fd: BorrowedFd<'_>, writable: bool) -> Option<FileName> {
        let found = fstat(fd).ok()?;
        let name = (found.st_dev, found.st_ino, writable);
        if let Some(kept) = self.files.get_mut(&name) {
            kept.pieces += 1;
            return Some(name);
        }
        if self.files.len() >= MOST_FILES {
            return None;
        }
        let file = Arc::new(fd.try_clone_to_owned().ok()?);
        self.files.insert(name, Kept { file, pieces: 1 });
        Some(name)
    }

    /// A piece does not lie in this file any more.
    fn release(&mut self, name: FileName) {
        let Some(kept) = self.files.get_mut(&name) else { return };
        kept.pieces -= 1;
        if kept.pieces == 0 {
            self.files.remove(&name);
        }
    }

    /// The files that it lies in.
    pub fn files(&self) -> impl Iterator<Item = (FileName, &Arc<OwnedFd>)> {
        self.files.iter().map(|(&name, kept)| (name, &kept.file))
    }

    /// All pieces: first and last address, whether the card may write there, where it begins in its file, and which that is. `None`: it came without one. `Some(None)`:
    /// it is one of too many.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, u64, bool, u64, Option<Option<FileName>>)> {
        self.pieces.iter().map(|(&at, &Piece { last, writable, offset, ref memory })| {
            (at, last, writable, offset, memory.as_ref().map(|mapped| mapped.file))
        })
    }

    /// All pieces in words.
    pub fn save<'s>(&'s self, fds: &mut Fds<'s>) -> Result<Vec<SavedPiece>, String> {
        let mut numbers = HashMap::new();
        let save = |(&at, piece): (&u64, &'s Piece)| {
            let file = match &piece.memory {
                None => None,
                Some(Mapped { file: None, .. }) => {
                    return Err(format!("the machine has its memory in more than {MOST_FILES} files"));
                }
                Some(Mapped { file: Some(name), .. }) => {
                    let kept = self.files.get(name).ok_or("memory of a file that is missing")?;
                    Some(*numbers.entry(*name).or_insert_with(|| fds.add(kept.file.as_fd())))
                }
            };
            let Piece { last, writable, offset, .. } = *piece;
            Ok(SavedPiece { at, last, writable, offset, file })
        };
        self.pieces.iter().map(save).collect()
    }

    /// Maps what another card has had mapped.
    pub fn restore(&mut self, saved: &[SavedPiece], fds: &TakenFds, counting: &Counting) -> Result<(), String> {
        for &SavedPiece { at, last, writable, offset, file } in saved {
            let len = last.checked_sub(at).and_then(|rest| rest.checked_add(1)).ok_or("memory of no length")?;
            let fd = file.map(|file| fds.borrow(file)).transpose()?;
            let mapped = self.map(Map { writable, offset, at, len }, fd, counting);
            mapped.map_err(|errno| format!("memory of the machine at {at:#x} cannot be mapped: {errno}"))?;
        }
        Ok(())
    }

    /// Maps a part of a file here, if there are addresses for it.
    fn map_file(&self, map: Map, fd: BorrowedFd<'_>) -> Result<(ForeignRegion, Debt), Errno> {
        let len = usize::try_from(map.len).map_err(|_| Errno::INVAL)?;
        let book = |bytes: u64| {
            let is_too_much = self.mapped.checked_add(bytes).is_none_or(|all| all > OF_MACHINE);
            if is_too_much { Err(Errno::NOSPC) } else { self.books.book(bytes).ok_or(Errno::NOSPC) }
        };
        let debt = book(map.len)?;
        let region = ForeignRegion::map(fd, map.offset, len).map_err(|_| Errno::INVAL)?;
        drop(debt);
        // Pages of its file may be large, and are whole.
        let debt = book(region.mapped() as u64)?;
        Ok((region, debt))
    }

    /// Takes pieces away; where there is none, nothing, as Linux's own driver does: a machine's IOMMU forgets all that it could have. `stop` stops the queues of the machine: called when one of them has a ring in such a piece. `nudge`
    /// makes workers come round.
    pub fn unmap(
        &mut self,
        unmap: Unmap,
        mut stop: impl FnMut() -> Result<(), Errno>,
        mut nudge: impl FnMut(),
        counting: &Counting,
    ) -> Result<(), Errno> {
        let (first, last) = match unmap {
            Unmap::All => (0, u64::MAX),
            Unmap::Range(first, last) => (first, last),
        };
        let inside: Vec<u64> = self.pieces.range(first..=last).map(|(&at, _)| at).collect();
        let before = self.pieces.range(..first).next_back();
        let cuts = before.is_some_and(|(_, piece)| piece.last >= first)
            || inside.last().is_some_and(|at| self.pieces[at].last > last);
        if cuts {
            // A piece goes as a whole.
            return Err(Errno::INVAL);
        }
        for at in inside {
            self.take(at, &mut stop, &mut nudge, counting)?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        at: u64,
        stop: &mut impl FnMut() -> Result<(), Errno>,
        nudge: &mut impl FnMut(),
        counting: &Counting,
    ) -> Result<(), Errno> {
        if self.pieces.get(&at).is_some_and(|piece| piece.memory.is_some()) {
            let iova = Iova::new(at);
            let mut gone = self.domain.unmap(iova, PATIENCE, &mut *nudge);
            if matches!(gone, Err(UnmapError::InUse(_))) {
                stop()?;
                gone = self.domain.unmap(iova, PATIENCE, &mut *nudge);
            }
            match gone {
                // The worker holds on to it as long as it does; nothing new reaches it.
                Err(UnmapError::Timeout(_)) => count(&counting.late_unmaps),
                Ok(()) | Err(UnmapError::NotMapped(_)) => {}
                Err(UnmapError::InUse(_)) => return Err(Errno::BUSY),
            }
        }
        if let Some(Piece { memory: Some(Mapped { debt, file, .. }), .. }) = self.pieces.remove(&at) {
            self.mapped -= debt.bytes();
            file.into_iter().for_each(|name| self.release(name));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_dma::{Iotlb, Pages, Region};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn fd(len: usize) -> OwnedFd {
        let region = Region::allocate(len, Pages::Ordinary).unwrap();
        region.fd().unwrap().try_clone_to_owned().unwrap()
    }

    fn map(at: u64, len: u64) -> Map {
        Map { writable: true, offset: 0, at, len }
    }

    fn memory() -> Memory {
        Memory::new(Arc::default())
    }

    fn no_stop() -> Result<(), Errno> {
        panic!("no queue runs")
    }

    #[test]
    fn what_is_mapped_is_reached_until_it_is_taken_away() {
        let (mut memory, counting) = (memory(), Counting::default());
        memory.map(Map { offset: 4096, ..map(0x10000, 8192) }, Some(fd(12288).as_fd()), &counting).unwrap();
        let mut iotlb = Iotlb::new(memory.domain().clone());
        assert!(iotlb.read(Iova::new(0x10000), 8192).is_ok() && iotlb.write(Iova::new(0x11fff), 1).is_ok());
        assert!(iotlb.read(Iova::new(0x11fff), 2).is_err());
        for (first, last) in [(0x10001, 0x11fff), (0x10000, 0x11ffe), (0, 0x10fff)] {
            let cut = memory.unmap(Unmap::Range(first, last), no_stop, || iotlb.sync(), &counting);
            assert_eq!(cut, Err(Errno::INVAL), "a part of a piece");
        }
        memory.unmap(Unmap::Range(0, 0xfffff), no_stop, || iotlb.sync(), &counting).unwrap();
        assert!(iotlb.read(Iova::new(0x10000), 1).is_err());
        assert_eq!(memory.unmap(Unmap::Range(0, 0xfffff), no_stop, || {}, &counting), Ok(()), "there is nothing left");
        memory.unmap(Unmap::All, no_stop, || {}, &counting).unwrap();
    }

    #[test]
    fn pieces_do_not_overlap_and_fit_their_files() {
        let (mut memory, counting) = (memory(), Counting::default());
        memory.map(map(0x10000, 8192), Some(fd(8192).as_fd()), &counting).unwrap();
        for (at, len) in [(0xf000, 4097), (0x11fff, 1), (0, u64::MAX), (0x10000, 8192), (0x10800, 8)] {
            assert_eq!(memory.map(map(at, len), None, &counting), Err(Errno::EXIST), "{at:#x} {len}");
        }
        for (offset, at, len) in [(0, 0x20000, 0), (0, u64::MAX, 2), (0, 0x20000, 8193), (u64::MAX, 0x20000, 1)] {
            let refused = memory.map(Map { offset, ..map(at, len) }, Some(fd(8192).as_fd()), &counting);
            assert_eq!(refused, Err(Errno::INVAL), "{offset:#x} {at:#x} {len}");
        }
        let pipe = rustix::pipe::pipe().unwrap().0;
        assert_eq!(memory.map(map(0x20000, 4096), Some(pipe.as_fd()), &counting), Err(Errno::INVAL));
        assert_eq!(memory.domain().mappings(), 1);
    }

    #[test]
    fn addresses_are_no_machines_to_use_up() {
        let (mut one, mut two, counting) = (memory(), memory(), Counting::default());
        two.books = one.books.clone();
        let file = memfd_create("long", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, OF_MACHINE * 2).unwrap();
        let half = OF_MACHINE / 2;
        let all = |memory: &mut Memory| [0, half].map(|at| memory.map(map(at, half), Some(file.as_fd()), &counting));
        assert_eq!(all(&mut one), [Ok(()); 2]);
        // What lies before it takes none.
        let more = Map { offset: OF_MACHINE * 2 - 4096, ..map(OF_MACHINE, 4096) };
        assert_eq!(one.map(more, Some(file.as_fd()), &counting), Err(Errno::NOSPC));
        assert_eq!((two.map(more, Some(file.as_fd()), &counting), two.mapped), (Ok(()), 4096));
        assert_eq!(counting.read().memory_refused, 1);
        one.unmap(Unmap::Range(half, OF_MACHINE - 1), no_stop, || {}, &counting).unwrap();
        assert_eq!(one.map(more, Some(file.as_fd()), &counting), Ok(()));
        drop((one, two));
    }

    #[test]
    fn memory_that_is_cut_is_noticed() {
        let (mut memory, mut other, counting) = (memory(), memory(), Counting::default());
        let file = memfd_create("cut", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        memory.map(map(0, 8192), Some(file.as_fd()), &counting).unwrap();
        other.map(map(0, 8192), Some(fd(8192).as_fd()), &counting).unwrap();
        assert!(!memory.was_cut());
        ftruncate(&file, 4096).unwrap();
        let mut iotlb = Iotlb::new(memory.domain().clone());
        assert_eq!(iotlb.read(Iova::new(4096), 8).unwrap().read_into(&mut [1; 8]), 8);
        assert!(memory.was_cut() && memory.was_cut() && !other.was_cut());
        iotlb.sync();
        memory.unmap(Unmap::All, no_stop, || iotlb.sync(), &counting).unwrap();
        assert!(!memory.was_cut(), "there is nothing of it left");
    }

    #[test]
    fn a_piece_without_a_file_is_a_hole() {
        let (mut memory, counting) = (memory(), Counting::default());
        memory.map(map(0xc0000, 0x40000), None, &counting).unwrap();
        assert_eq!((memory.domain().mappings(), counting.read().memory_without_file), (0, 1));
        memory.unmap(Unmap::Range(0xc0000, 0xfffff), no_stop, || {}, &counting).unwrap();
        for number in 0..MOST_PIECES as u64 {
            memory.map(map(number * 2, 1), None, &counting).unwrap();
        }
        assert_eq!(memory.map(map(u64::MAX, 1), None, &counting), Err(Errno::NOSPC));
    }

    #[test]
    fn messages_that_map_are_read_strictly() {
        let message = |flags: u32, numbers: &[u64]| {
            let mut body = 32u32.to_le_bytes().to_vec();
            body.extend(flags.to_le_bytes());
            numbers.iter().for_each(|number| body.extend(number.to_le_bytes()));
            body
        };
        let decoded = Map::decode(&message(3, &[1, 2, 3]));
        assert_eq!(decoded, Some(Map { writable: true, offset: 1, at: 2, len: 3 }));
        assert!(!Map::decode(&message(1, &[1, 2, 3])).unwrap().writable);
        for flags in [0, 4, 7, u32::MAX] {
            assert_eq!(Map::decode(&message(flags, &[1, 2, 3])), None);
        }
        assert_eq!(Map::decode(&message(3, &[1, 2])), None);
        assert_eq!(Unmap::decode(&message(0, &[4096, 4096])), Some(Unmap::Range(4096, 8191)));
        assert_eq!(Unmap::decode(&message(2, &[0, 0])), Some(Unmap::All));
        for (flags, at, len) in [(0, 0, 0), (0, u64::MAX, 2), (1, 0, 1), (2, 0, 1), (4, 0, 0)] {
            assert_eq!(Unmap::decode(&message(flags, &[at, len])), None, "{flags} {at} {len}");
        }
    }
}
