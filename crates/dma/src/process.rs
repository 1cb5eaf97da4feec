//! Domains whose addresses are those of this very process (IOVA = VA), as a native queue driver uses them: it writes
//! plain pointers to the card's registers and descriptors (`docs/spec/nfb-card.md` §5.2).
//!
//! What is mapped, and how, the system says: `/proc/thread-self/maps` is read when an address is not in the domain's
//! table. Only what was asked for enters the table, so that other memory of the process may come and go while a queue
//! runs; together with it comes what lies right beside it and is of the same kind, because a pool of packet buffers is
//! often made of many mappings (a file for each huge page), and should be one entry.

use crate::region::own_memory;
use crate::{Access, Domain, Window};

impl Domain {
    /// The address space of this process: every address that the process itself could load from or store to.
    ///
    /// As with DMA of real cards, nothing keeps the memory mapped: whoever starts a queue on such addresses leaves them
    /// mapped, with the same rights, until the queue has stopped. An address that is not mapped when a queue first comes
    /// to it is a [`Fault`](crate::Fault). A page behind the end of the file that it maps is none: touching it ends the
    /// process, as it does when the process touches it itself.
    ///
    /// ```
    /// # use millrace_dma::{Domain, Iotlb, Iova};
    /// let frame = *b"a frame of the program's own";
    /// let iotlb = Iotlb::new(Domain::own_process().into());
    /// let mut copy = [0; 28];
    /// iotlb.read(Iova::new(frame.as_ptr().expose_provenance() as u64), 28)?.read_into(&mut copy);
    /// assert_eq!(copy, frame);
    /// # Ok::<(), millrace_dma::Fault>(())
    /// ```
    pub fn own_process() -> Self {
        Self::with_lookup(look_up)
    }
}

/// The run of mappings that holds all addresses from `first` to `last`: where it begins, and a window over it.
fn look_up(first: u64, last: u64, access: Access) -> Option<(u64, Window)> {
    // The files of a thread, not those of the process: these are empty when the first thread has ended.
    let maps = std::fs::read("/proc/thread-self/maps").or_else(|_| std::fs::read("/proc/self/maps")).ok()?;
    let run = cover(&runs(&maps), first, last, access)?;
    Some((run.first, own_memory(run.first, run.last - run.first + 1, run.writable)?))
}

/// Addresses without a gap that can all be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u64,
    // Inclusive.
    last: u64,
    writable: bool,
    // Of the file behind it; (0, 0) for anonymous memory.
    device: (u64, u64),
}

impl Run {
    /// What a line of the file says; `None` for what cannot be read.
    fn parse(line: &[u8]) -> Option<Self> {
        let line = String::from_utf8_lossy(line);
        let mut fields = line.split_ascii_whitespace();
        let (first, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?.as_bytes();
        let device = fields.nth(1)?.split_once(':')?;
        let name = fields.nth(1).unwrap_or("");
        // Pages of the kernel, some of which end a process that reads them.
        if !rights.starts_with(b"r") || name.starts_with("[vvar") || name == "[vsyscall]" {
            return None;
        }
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let (first, last) = (number(first)?, number(end)?.checked_sub(1)?);
        let device = (number(device.0)?, number(device.1)?);
        (first <= last).then_some(Self { first, last, writable: rights.get(1) == Some(&b'w'), device })
    }

    fn is_continued_by(&self, next: &Self) -> bool {
        self.last.checked_add(1) == Some(next.first)
    }
}

/// The runs of a maps file, neighbours of one kind joined. The system lists mappings in ascending order.
fn runs(maps: &[u8]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for next in maps.split(|&byte| byte == b'\n').filter_map(Run::parse) {
        match runs.last_mut() {
            Some(run) if run.is_continued_by(&next) && (run.writable, run.device) == (next.writable, next.device) => {
                run.last = next.last;
            }
            _ => runs.push(next),
        }
    }
    runs
}

/// The run that holds an access; of neighbours of different kinds as many as it needs.
fn cover(runs: &[Run], first: u64, last: u64, access: Access) -> Option<Run> {
    let place = runs.partition_point(|run| run.last < first);
    let mut runs = runs[place..].iter();
    let mut cover = *runs.next().filter(|run| run.first <= first)?;
    while cover.last < last {
        let next = runs.next().filter(|next| cover.is_continued_by(next))?;
        cover = Run { last: next.last, writable: cover.writable && next.writable, ..cover };
    }
    (access == Access::Read || cover.writable).then_some(cover)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, Iotlb, Iova, MapError, Ordering, Pages, Protection, Region};
    use std::sync::Arc;

    const MAPS: &[u8] = b"\
00400000-00452000 r-xp 00000000 fd:01 173521      /usr/bin/with a space
00452000-00453000 rw-p 00052000 fd:01 173521      /usr/bin/with a space
10000000-10200000 rw-s 00000000 00:12 7           /dev/hugepages/rtemap_0
10200000-10400000 rw-s 00000000 00:12 8           /dev/hugepages/rtemap_1
10400000-10401000 ---p 00000000 00:00 0
10401000-10402000 rw-p 00000000 00:00 0
10402000-10403000 r--p 00000000 00:00 0
10403000-10404000 -w-p 00000000 00:00 0
7ffc00000000-7ffc00004000 r--p 00000000 00:00 0   [vvar]
7ffc00004000-7ffc00006000 r-xp 00000000 00:00 0   [vdso]
ffffffffff600000-ffffffffff601000 r-xp 00000000 00:00 0 [vsyscall]
nonsense
";

    fn find(first: u64, len: u64, access: Access) -> Option<(u64, u64)> {
        cover(&runs(MAPS), first, first + (len - 1), access).map(|run| (run.first, run.last))
    }

    #[test]
    fn neighbours_of_one_kind_are_one_run() {
        let pool = Some((0x1000_0000, 0x103f_ffff));
        assert_eq!(find(0x101f_ffff, 2, Access::ReadWrite), pool, "across two huge pages");
        assert_eq!(find(0x103f_ffff, 1, Access::Read), pool);
        assert_eq!(find(0x1000_0000, 0x40_0000, Access::ReadWrite), pool);
        assert_eq!(find(0x0040_0000, 1, Access::Read), Some((0x40_0000, 0x45_1fff)), "code may be sent");
    }

    #[test]
    fn what_may_not_be_touched_is_not_found() {
        for (first, len, access, what) in [
            (0, 1, Access::Read, "nothing there"),
            (0x0fff_ffff, 2, Access::Read, "begins before"),
            (0x103f_ffff, 2, Access::Read, "ends in PROT_NONE"),
            (0x1040_0800, 1, Access::Read, "PROT_NONE"),
            (0x1040_2000, 1, Access::ReadWrite, "read-only"),
            (0x1040_3000, 1, Access::ReadWrite, "write-only"),
            (0x1040_2fff, 2, Access::Read, "ends in write-only"),
            (0x0040_0000, 1, Access::ReadWrite, "code"),
            (0x7ffc_0000_0000, 1, Access::Read, "vvar"),
            (0xffff_ffff_ff60_0000, 8, Access::Read, "vsyscall"),
            (0xffff_ffff_ffff_fff0, 16, Access::Read, "the end of all addresses"),
        ] {
            assert_eq!(find(first, len, access), None, "{what}");
        }
    }

    #[test]
    fn an_access_across_different_kinds_takes_the_rights_of_both() {
        assert_eq!(find(0x1040_1ffc, 8, Access::Read), Some((0x1040_1000, 0x1040_2fff)));
        assert_eq!(find(0x1040_1ffc, 8, Access::ReadWrite), None);
        assert_eq!(find(0x1040_1ffc, 4, Access::ReadWrite), Some((0x1040_1000, 0x1040_1fff)));
        assert_eq!(find(0x0045_1fff, 2, Access::Read), Some((0x40_0000, 0x45_2fff)));
        assert!(!cover(&runs(MAPS), 0x45_1fff, 0x45_2000, Access::Read).unwrap().writable);
    }

    fn address(region: &Region) -> Iova {
        Iova::new(region.window().slice(0, 1).unwrap().as_ptr().expose_provenance() as u64)
    }

    #[test]
    fn the_memory_of_this_process_is_reached_where_it_lies() {
        let domain = Arc::new(Domain::own_process());
        let mut iotlb = Iotlb::new(domain.clone());
        let region = Region::allocate(64 << 12, Pages::Ordinary).unwrap();
        let at = address(&region);
        iotlb.write(at.plus(5), 6).unwrap().write_from(b"packet");
        assert_eq!(region.window().slice(5, 6).unwrap(), b"packet");
        region.window().word64(128).unwrap().store(77, Ordering::Relaxed);
        assert_eq!(iotlb.read_u64(at.plus(128)), Ok(77));
        // Found once, then cached: one entry for all of it, and every further access is a hit.
        iotlb.sync();
        let before = iotlb.counts();
        for page in 0..64 {
            assert!(iotlb.read(at.plus(page << 12), 4096).is_ok());
        }
        let (hits, misses) = iotlb.counts();
        assert!(hits - before.0 == 64 && misses == before.1, "{before:?} {hits} {misses}");
        assert_eq!((domain.mappings(), domain.faults()), (1, 0));
    }

    #[test]
    fn spans_outlive_the_search_for_others() {
        let iotlb = Iotlb::new(Arc::new(Domain::own_process()));
        let regions: Vec<Region> = (0..50).map(|_| Region::allocate(4096, Pages::Ordinary).unwrap()).collect();
        let spans: Vec<_> = regions.iter().map(|region| iotlb.write(address(region), 8).unwrap()).collect();
        for (number, span) in spans.iter().enumerate() {
            span.write_from(&(number as u64).to_le_bytes());
        }
        for (number, region) in regions.iter().enumerate() {
            assert_eq!(region.window().word64(0).unwrap().load(Ordering::Relaxed), number as u64);
        }
    }

    #[test]
    fn what_is_not_mapped_is_a_fault_and_found_once_it_is() {
        let domain = Arc::new(Domain::own_process());
        let iotlb = Iotlb::new(domain.clone());
        let wild = [0, 8, 1 << 47, 1 << 63, u64::MAX - 7, u64::MAX];
        for (place, &address) in wild.iter().enumerate() {
            let iova = Iova::new(address);
            let fault = Fault { iova, len: 8, access: Access::Read };
            assert_eq!(iotlb.read(iova, 8).err(), Some(fault));
            assert!(iotlb.read(iova, 0).is_err(), "not even no bytes");
            assert!(iotlb.peek(iova, 8, Access::Read).is_none());
            assert!(domain.resolve(iova, 8, Access::ReadWrite).is_err());
            assert_eq!(domain.faults(), 2 * (place as u64 + 1));
        }
        assert_eq!(domain.mappings(), 0, "nothing enters the table that is not there");
        let region = Region::allocate(4096, Pages::Ordinary).unwrap();
        assert!(iotlb.read(address(&region), usize::MAX).is_err(), "past the end of all addresses");
        assert!(iotlb.read(address(&region), 4096).is_ok());
    }

    #[test]
    fn memory_that_cannot_be_written_is_not_written() {
        let region = Region::allocate(4096, Pages::Ordinary).unwrap();
        let fd = rustix::io::dup(region.fd().unwrap()).unwrap();
        let read_only = Region::map(fd, 4096, Protection::Read, false).unwrap();
        let domain = Arc::new(Domain::own_process());
        let iotlb = Iotlb::new(domain.clone());
        assert!(iotlb.read(address(&read_only), 4096).is_ok());
        assert!(iotlb.write(address(&read_only), 1).is_err());
        assert!(domain.resolve(address(&read_only), 8, Access::ReadWrite).is_err());
        assert!(iotlb.write(address(&region), 1).is_ok());
    }

    #[test]
    fn rings_are_pinned_and_nothing_can_be_mapped() {
        let domain = Arc::new(Domain::own_process());
        let region = Region::allocate(8192, Pages::Ordinary).unwrap();
        let ring = domain.resolve(address(&region).plus(4096), 64, Access::ReadWrite).unwrap();
        assert_eq!(ring.window().len(), 64);
        ring.window().word64(56).unwrap().store(9, Ordering::Relaxed);
        assert_eq!(region.window().word64(4096 + 56).unwrap().load(Ordering::Relaxed), 9);
        let mapped = domain.map(region.window().clone(), Access::Read, None);
        assert_eq!(mapped, Err(MapError::OwnProcess));
    }
}
