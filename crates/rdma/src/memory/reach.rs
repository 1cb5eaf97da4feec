//! How requests reach memory: [`Memory`] over [`Regions`].

use super::regions::Regions;
use super::table::{Side, Wanted};
use super::{Asker, Binding, Memory, Refused};
use crate::number::Key;
use crate::work::Access;
use core::ops::Range;
use millrace_dma::Place;

/// What the owner's own requests need to read: nothing more than the region (volume 1, 10.6.3.1).
const NOTHING: Access = Access(0);
/// Copied between two looks at whether the memory is still there. Who takes memory away waits for one of these.
const PIECE: usize = 256 << 10;

impl Regions {
    /// Lets `act` work on all bytes wanted, piece by piece. Everything is checked before the first byte, and again
    /// for each piece, because memory can be taken away in between.
    #[inline(always)]
    fn pieces(
        &mut self,
        asker: Asker,
        side: Side,
        wanted: Wanted,
        mut act: impl FnMut(&Place, usize, Range<usize>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let len = wanted.len as usize;
        let mut done = 0;
        while done < len {
            let end = len.min(done + PIECE);
            let outcome = self.inside(|table| {
                let (entry, offset) = table.check(asker, side, wanted)?;
                act(&entry.place, offset + done, done..end)
            });
            if let Err(refused) = outcome.and_then(|outcome| outcome) {
                return Err(self.note(refused));
            }
            done = end;
        }
        self.counters.copied += wanted.len;
        Ok(())
    }

    /// Lets `act` work on bytes of the program's own, behind a local key. Nothing may be allocated or freed meanwhile.
    ///
    /// # Errors
    /// [`Refused`], uncounted: the request comes again.
    #[inline(always)]
    pub(crate) fn with_own<R>(
        &mut self,
        asker: Asker,
        lkey: Key,
        address: u64,
        len: u32,
        access: Access,
        act: impl FnOnce(&Place, usize) -> R,
    ) -> Result<R, Refused> {
        let wanted = Wanted { key: lkey, address, len: len.into(), access };
        self.inside(|table| {
            let (entry, offset) = table.check(asker, Side::Local, wanted)?;
            Ok(act(&entry.place, offset))
        })?
    }

    /// The same with bytes that another end of this process's card reaches, behind a remote key.
    ///
    /// # Errors
    /// [`Refused`], uncounted: the request comes again as packets.
    #[inline(always)]
    pub(crate) fn with_reached<R>(
        &mut self,
        asker: Asker,
        rkey: Key,
        address: u64,
        len: u32,
        access: Access,
        act: impl FnOnce(&Place, usize) -> R,
    ) -> Result<R, Refused> {
        let wanted = Wanted { key: rkey, address, len: len.into(), access };
        self.inside(|table| {
            let (entry, offset) = table.check(asker, Side::Remote, wanted)?;
            Ok(act(&entry.place, offset))
        })?
    }

    /// Counts what was refused.
    #[cold]
    pub(super) fn note(&mut self, refused: Refused) -> Refused {
        let counter = match refused {
            Refused::Key => &mut self.counters.refused_key,
            Refused::Bounds => &mut self.counters.refused_bounds,
            Refused::Permission => &mut self.counters.refused_permission,
            Refused::Alignment => &mut self.counters.refused_alignment,
            Refused::Gone => &mut self.counters.refused_gone,
        };
        *counter += 1;
        refused
    }

    fn copy_out(&mut self, asker: Asker, side: Side, wanted: Wanted, to: &mut [u8]) -> Result<(), Refused> {
        self.pieces(asker, side, wanted, |place, at, part| place.read(at, &mut to[part]).map_err(|_| Refused::Gone))
    }

    fn copy_in(&mut self, asker: Asker, side: Side, wanted: Wanted, from: &[u8]) -> Result<(), Refused> {
        let around = from.len() >= self.limits.around_from;
        self.pieces(asker, side, wanted, |place, at, part| {
            place.write(at, &from[part], around).map_err(|_| Refused::Gone)
        })
    }

    /// Changes eight bytes in one step. They have to lie at a multiple of eight in the program's memory, too, which is
    /// another matter where addresses are counted from elsewhere.
    fn change_word(
        &mut self,
        asker: Asker,
        key: Key,
        address: u64,
        act: impl FnOnce(&Place, usize) -> Result<u64, millrace_dma::Vanished>,
    ) -> Result<u64, Refused> {
        let wanted = Wanted { key, address, len: 8, access: Access::REMOTE_ATOMIC };
        let outcome = self.inside(|table| {
            let (entry, offset) = table.check(asker, Side::Remote, wanted)?;
            if !address.is_multiple_of(8) || entry.place.check_word(offset).is_err() {
                return Err(Refused::Alignment);
            }
            act(&entry.place, offset).map_err(|_| Refused::Gone)
        });
        outcome.and_then(|outcome| outcome).map_err(|refused| self.note(refused))
    }
}

fn wanted(key: Key, address: u64, len: usize, access: Access) -> Wanted {
    Wanted { key, address, len: len as u64, access }
}

impl Memory for Regions {
    #[inline]
    fn gather(&mut self, asker: Asker, lkey: Key, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        self.copy_out(asker, Side::Local, wanted(lkey, address, to.len(), NOTHING), to)
    }

    #[inline]
    fn scatter(&mut self, asker: Asker, lkey: Key, address: u64, from: &[u8]) -> Result<(), Refused> {
        self.copy_in(asker, Side::Local, wanted(lkey, address, from.len(), Access::LOCAL_WRITE), from)
    }

    fn allows(&mut self, asker: Asker, rkey: Key, address: u64, len: u64, access: Access) -> Result<(), Refused> {
        if len == 0 {
            return Ok(());
        }
        let wanted = Wanted { key: rkey, address, len, access };
        let outcome = self.inside(|table| table.check(asker, Side::Remote, wanted).map(drop));
        outcome.and_then(|outcome| outcome).map_err(|refused| self.note(refused))
    }

    #[inline]
    fn read(&mut self, asker: Asker, rkey: Key, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        self.copy_out(asker, Side::Remote, wanted(rkey, address, to.len(), Access::REMOTE_READ), to)
    }

    #[inline]
    fn write(&mut self, asker: Asker, rkey: Key, address: u64, from: &[u8]) -> Result<(), Refused> {
        self.copy_in(asker, Side::Remote, wanted(rkey, address, from.len(), Access::REMOTE_WRITE), from)
    }

    fn compare_swap(&mut self, asker: Asker, rkey: Key, address: u64, compare: u64, swap: u64) -> Result<u64, Refused> {
        self.change_word(asker, rkey, address, |place, at| place.compare_swap(at, compare, swap))
    }

    fn fetch_add(&mut self, asker: Asker, rkey: Key, address: u64, add: u64) -> Result<u64, Refused> {
        self.change_word(asker, rkey, address, |place, at| place.fetch_add(at, add))
    }

    fn invalidate(&mut self, asker: Asker, key: Key, remote: bool) -> Result<(), Refused> {
        self.close_key(asker, key, remote).map_err(|refused| self.note(refused))
    }

    fn bind(&mut self, asker: Asker, window: Binding) -> Result<(), Refused> {
        self.bind_posted(asker, window).map_err(|refused| self.note(refused))
    }
}
