//! The guest's side.

use super::store::Store;
use super::{BACKEND, PLACE, device, sys};
use crate::page::{GUEST_LIVES, VERSION};
use crate::transport::{Counts, Granted, Grants};
use crate::{Error, PAGE};
use millrace_dma::Window;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::{Errno, read, write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Places that are tried.
const TRIED: u16 = 64;

/// A program in a domain of Xen that grants pages to domain 0.
pub struct XenGrants {
    gntalloc: OwnedFd,
    evtchn: OwnedFd,
    port: u32,
    counts: Counts,
}

/// Tells the backend in domain 0 that this program is there: the transport, and the control page.
///
/// `prepare` is called with the control page before anybody else has it.
///
/// # Errors
/// [`Error`].
pub fn connect<T>(prepare: impl FnOnce(&Window) -> Result<T, Error>) -> Result<(XenGrants, Granted, T), Error> {
    let mut store = Store::open()?;
    let gntalloc = device("gntalloc", OFlags::empty())?;
    let evtchn = device("evtchn", OFlags::NONBLOCK)?;
    let port = sys::bind_unbound(&evtchn, BACKEND).map_err(Error::system("cannot make an event channel"))?;
    // Three devices, and the channel.
    let counts = Counts { system_calls: 4, hypercalls: 1, ..Counts::default() };
    let mut grants = XenGrants { gntalloc, evtchn, port, counts };
    let control = grants.grant(1)?;
    let prepared = prepare(&control.window)?;
    sys::notify_of_unmap(&grants.gntalloc, control.place + GUEST_LIVES as u64, port)
        .map_err(Error::system("cannot have the backend told of the end of this program"))?;
    let entry = free_entry(&mut store)?;
    let says = format!("{} {port} {VERSION}", control.references[0]);
    store.write(&entry, &says).map_err(Error::system(format!("cannot write {entry} in XenStore")))?;
    // One that notes the end, and two requests and their answers.
    grants.counts.system_calls += 7;
    Ok((grants, control, prepared))
}

/// Where nobody has said yet that he is there: by the number of this process, if that is free. Others may have the same: of another container, or 65,536 further.
fn free_entry(store: &mut Store) -> Result<String, Error> {
    let first = std::process::id() as u16;
    for step in 0..TRIED {
        let entry = format!("{PLACE}/{}", first.wrapping_add(step));
        match store.read(&entry) {
            Ok(_) => {}
            Err(Errno::NOENT) => return Ok(entry),
            Err(error) => return Err(Error::system(format!("cannot read {entry} in XenStore"))(error)),
        }
    }
    let what = format!("{PLACE} in XenStore is full of programs; if they have ended, remove it (xenstore-rm {PLACE})");
    Err(Error::system(what)(Errno::EXIST))
}

impl Grants for XenGrants {
    fn grant(&mut self, pages: u32) -> Result<Granted, Error> {
        let few = format!(
            "cannot grant {pages} pages; as many as there may be are in /sys/module/xen_gntalloc/parameters/limit, which can be written"
        );
        let (place, references) = sys::allocate(&self.gntalloc, BACKEND, pages).map_err(Error::system(few))?;
        let window = Window::of_device(&self.gntalloc, place, pages as usize * PAGE)?;
        self.counts.system_calls += 2;
        self.counts.pages += u64::from(pages);
        Ok(Granted { window, references: references.into_iter().map(u64::from).collect(), place })
    }

    fn end(&mut self, granted: Granted) {
        let (place, pages) = (granted.place, granted.references.len() as u32);
        drop(granted);
        // If not, they are granted until this process ends.
        let _ = sys::deallocate(&self.gntalloc, place, pages);
        self.counts.system_calls += 2;
    }

    fn ring(&mut self) {
        // Nobody is bound to it yet, or no more: there is nobody to be woken.
        let _ = sys::notify(&self.evtchn, self.port);
        self.counts.system_calls += 1;
        self.counts.hypercalls += 1;
        self.counts.rung += 1;
    }

    fn wait(&mut self, most: Duration) -> Result<(), Error> {
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let ready = poll(&mut [PollFd::new(&self.evtchn, PollFlags::IN)], Some(&most));
        self.counts.system_calls += 1;
        if matches!(ready, Ok(1)) {
            self.counts.system_calls += hear(&self.evtchn);
            self.counts.heard += 1;
        }
        Ok(())
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.evtchn.as_fd())
    }

    fn hear(&mut self) {
        self.counts.system_calls += hear(&self.evtchn);
        self.counts.heard += 1;
    }
}

/// As many pages as a domain may have granted at a time.
const LIMIT: &str = "/sys/module/xen_gntalloc/parameters/limit";

/// Memory of a program in pages of `gntalloc`, which are granted to domain 0 from when they are made until the program ends.
pub struct XenLand {
    gntalloc: OwnedFd,
    base: usize,
    most: u32,
    /// Of its pages, in order.
    references: Mutex<Vec<u32>>,
}

impl XenLand {
    /// Addresses for as many pages as may be granted, less a quarter, which is for rings and for others.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn open() -> Result<Self, Error> {
        let gntalloc = device("gntalloc", OFlags::empty())?;
        let limit = std::fs::read_to_string(LIMIT).ok().and_then(|text| text.trim().parse::<u32>().ok());
        let most = limit.unwrap_or(1024) / 4 * 3;
        // More than there are grants.
        let most = most.clamp(1, 1 << 24);
        let base = sys::reserve(most as usize * PAGE).map_err(Error::system("addresses for memory to be granted"))?;
        Ok(Self { gntalloc, base, most, references: Mutex::default() })
    }

    /// Where it begins, and how many pages it may have.
    pub fn extent(&self) -> (usize, u32) {
        (self.base, self.most)
    }

    /// Makes pages behind those that there are. Whether that was so.
    pub fn take(&self, first: u32, pages: u32) -> bool {
        let mut references = self.references.lock().unwrap_or_else(PoisonError::into_inner);
        if references.len() != first as usize || first.checked_add(pages).is_none_or(|end| end > self.most) {
            return false;
        }
        let Ok((place, made)) = sys::allocate(&self.gntalloc, BACKEND, pages) else { return false };
        if sys::map_over(&self.gntalloc, place, self.base + first as usize * PAGE, pages as usize * PAGE).is_err() {
            let _ = sys::deallocate(&self.gntalloc, place, pages);
            return false;
        }
        references.extend(made);
        true
    }

    /// By which domain 0 knows pages.
    pub fn references(&self, first: u32, pages: u32) -> Option<Vec<u64>> {
        let references = self.references.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = references.get(first as usize..first.checked_add(pages)? as usize)?;
        Some(wanted.iter().copied().map(u64::from).collect())
    }
}

/// Takes the events that have come, and lets more come. System calls that it took.
pub(super) fn hear(evtchn: &OwnedFd) -> u64 {
    let mut ports = [0; 64];
    match read(evtchn, &mut ports[..]) {
        Ok(len) if len > 0 => {
            // The same ports: they were masked until now.
            let _: Result<usize, Errno> = write(evtchn, &ports[..len]);
            2
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::Sim;
    use super::*;

    #[test]
    fn a_place_that_another_program_has_is_not_taken() {
        let sim = Sim::start();
        let mut store = sim.connect();
        let first = free_entry(&mut store).unwrap();
        assert_eq!(first, format!("{PLACE}/{}", std::process::id() as u16));
        store.write(&first, "another program").unwrap();
        let second = free_entry(&mut store).unwrap();
        assert_eq!(second, format!("{PLACE}/{}", (std::process::id() as u16).wrapping_add(1)));
        (0..TRIED)
            .for_each(|step| sim.set(&format!("{PLACE}/{}", (std::process::id() as u16).wrapping_add(step)), "x"));
        assert!(free_entry(&mut store).is_err());
    }
}
