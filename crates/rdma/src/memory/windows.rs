//! Memory windows: keys for parts of a region, opened and closed by requests (volume 1, 10.6.7).

use super::regions::{Regions, RegisterError};
use super::table::{Entry, Kind};
use super::{Asker, Binding, ProtectionDomain, Refused};
use crate::number::{Key, Qpn};
use crate::work::Access;
use std::collections::VecDeque;

/// Bindings of one window of type 1 that are still to be done; with more, the oldest is refused.
const MOST_AHEAD: usize = 64;

/// Which windows a window is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// Open for every queue pair of its protection domain; each binding has a key that it is given.
    One,
    /// Open for the queue pair that bound it; the owner chooses the lower eight bits of the key.
    Two,
}

/// A window that was allocated.
pub(super) struct Window {
    domain: ProtectionDomain,
    kind: WindowType,
    /// The key as of the allocation, or the last binding.
    key: Key,
    /// Of type 1: keys that were given out for bindings that are still to be done, in this order.
    ahead: VecDeque<Key>,
    /// The slot of the region that it is bound to.
    region: Option<usize>,
}

impl Regions {
    /// A window that opens nothing yet, and its key.
    ///
    /// # Errors
    /// [`RegisterError::Domain`], [`RegisterError::Limit`].
    pub fn allocate_window(&mut self, domain: ProtectionDomain, kind: WindowType) -> Result<Key, RegisterError> {
        self.users(domain)?;
        let limit = RegisterError::Limit { what: "windows", limit: self.limits.windows as u64 };
        let slot = self.table.take_window().ok_or(limit)?;
        *self.users(domain)? += 1;
        let key = self.table.next_key(slot, 0);
        self.windows.insert(slot, Window { domain, kind, key, ahead: VecDeque::new(), region: None });
        Ok(key)
    }

    /// The slot of the window with this key, bound or not. One of type 1 is also found by the key that it will have, one of type 2
    /// by what its owner may choose.
    fn window(&self, key: Key) -> Result<(usize, &Window), RegisterError> {
        let slot = self.table.keys.slot(key);
        let is_it = |window: &&Window| match window.kind {
            WindowType::One => window.key == key || window.ahead.back() == Some(&key),
            WindowType::Two => super::key::Keys::same_window(window.key, key),
        };
        let found = self.windows.get(&slot).filter(is_it);
        found.map(|window| (slot, window)).ok_or(RegisterError::Key(key))
    }

    /// Gives a window back; if it is bound, it opens nothing from now on.
    ///
    /// # Errors
    /// [`RegisterError::Key`].
    pub fn free_window(&mut self, key: Key) -> Result<(), RegisterError> {
        let (slot, window) = self.window(key)?;
        let domain = window.domain;
        self.close(slot);
        self.windows.remove(&slot);
        self.table.give_back(slot);
        *self.users(domain)? -= 1;
        Ok(())
    }

    /// Binds a window of type 1, bound or not, and returns its new key; the old one opens nothing from now on. With no bytes
    /// it is only closed.
    ///
    /// # Errors
    /// [`RegisterError::Key`], [`RegisterError::Bind`]: then it is as it was.
    pub fn bind_window(&mut self, window: Key, binding: Binding) -> Result<Key, RegisterError> {
        let rkey = self.next_window_key(window)?;
        let bound = self.bind_one(self.table.keys.slot(rkey), Binding { rkey, ..binding });
        // Bound or not, nothing is to be done with it any more.
        self.forget_window_key(rkey);
        bound.map(|()| rkey).map_err(RegisterError::Bind)
    }

    /// The key that a window of type 1 will have by a [`Binding`] that is posted now. It opens nothing before.
    ///
    /// # Errors
    /// [`RegisterError::Key`], [`RegisterError::Bind`]: it is of type 2.
    pub fn next_window_key(&mut self, window: Key) -> Result<Key, RegisterError> {
        let (slot, found) = self.window(window)?;
        if found.kind != WindowType::One {
            return Err(RegisterError::Bind(Refused::Permission));
        }
        let key = self.table.next_key(slot, window.value().wrapping_add(1) as u8);
        if let Some(window) = self.windows.get_mut(&slot) {
            if window.ahead.len() == MOST_AHEAD {
                window.ahead.pop_front();
            }
            window.ahead.push_back(key);
        }
        Ok(key)
    }

    /// The binding for which this key was given out will not be done.
    pub fn forget_window_key(&mut self, rkey: Key) {
        if let Some(window) = self.windows.get_mut(&self.table.keys.slot(rkey)) {
            window.ahead.retain(|ahead| *ahead != rkey);
        }
    }

    fn bind_one(&mut self, slot: usize, binding: Binding) -> Result<(), Refused> {
        let domain = self.windows.get(&slot).ok_or(Refused::Key)?.domain;
        // Addresses of a window of type 1 are those of its region.
        if binding.access.allows(Access::ZERO_BASED) {
            return Err(Refused::Permission);
        }
        let opened = match binding.len {
            0 => None,
            _ => Some(self.part(domain, binding, Kind::Window1)?),
        };
        self.close(slot);
        self.open(slot, binding.rkey, opened);
        Ok(())
    }

    /// As [`Memory::bind`](super::Memory::bind). A window of type 1 takes a key of [`Regions::next_window_key`], once, and none that was
    /// given out before one that it had: an old key never opens anything again.
    pub(super) fn bind_posted(&mut self, asker: Asker, binding: Binding) -> Result<(), Refused> {
        let slot = self.table.keys.slot(binding.rkey);
        let window = self.windows.get_mut(&slot).filter(|window| window.domain == asker.domain).ok_or(Refused::Key)?;
        if window.kind == WindowType::One {
            let at = window.ahead.iter().position(|ahead| *ahead == binding.rkey).ok_or(Refused::Key)?;
            self.bind_one(slot, binding)?;
            if let Some(window) = self.windows.get_mut(&slot) {
                window.ahead.drain(..=at);
            }
            return Ok(());
        }
        if !super::key::Keys::same_window(window.key, binding.rkey) {
            return Err(Refused::Key);
        }
        // A window of type 2 is invalidated before it is bound anew (10.6.7.2.4).
        if window.region.is_some() || binding.len == 0 {
            return Err(Refused::Permission);
        }
        let (region, mut entry) = self.part(asker.domain, binding, Kind::Window2)?;
        entry.qpn = asker.qpn;
        self.open(slot, binding.rkey, Some((region, entry)));
        Ok(())
    }

    /// What a window would open, if it may.
    fn part(&mut self, domain: ProtectionDomain, wanted: Binding, kind: Kind) -> Result<(usize, Entry), Refused> {
        self.sync();
        let known = Access::REMOTE_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_ATOMIC).with(Access::ZERO_BASED);
        if !known.allows(wanted.access) {
            return Err(Refused::Permission);
        }
        let (slot, region) = self.table.find(wanted.region).ok_or(Refused::Key)?;
        if region.kind != Kind::Region || region.domain != domain {
            return Err(Refused::Key);
        }
        let writes = wanted.access.allows(Access::REMOTE_WRITE) || wanted.access.allows(Access::REMOTE_ATOMIC);
        let may = region.access.allows(Access::WINDOW_BIND);
        // A window of type 1 takes over the addresses of its region, which has to have some.
        let has_addresses = kind == Kind::Window2 || !region.access.allows(Access::ZERO_BASED);
        if !may || !has_addresses || (writes && !region.access.allows(Access::LOCAL_WRITE)) {
            return Err(Refused::Permission);
        }
        let offset = usize::try_from(wanted.address.wrapping_sub(region.base)).map_err(|_| Refused::Bounds)?;
        let len = usize::try_from(wanted.len).map_err(|_| Refused::Bounds)?;
        let place = region.place.part(offset, len).map_err(|_| Refused::Bounds)?;
        if region.gone {
            return Err(Refused::Gone);
        }
        let base = if wanted.access.allows(Access::ZERO_BASED) { 0 } else { wanted.address };
        let (key, qpn, access) = (wanted.rkey, Qpn::default(), wanted.access);
        Ok((slot, Entry { key, domain, qpn, access, base, place, kind, gone: false }))
    }

    fn open(&mut self, slot: usize, key: Key, opened: Option<(usize, Entry)>) {
        let Some(window) = self.windows.get_mut(&slot) else { return };
        window.key = key;
        window.region = opened.as_ref().map(|(region, _)| *region);
        if let Some((region, entry)) = opened {
            self.table.set(slot, Some(Entry { key, ..entry }));
            self.count_windows(region, |windows| *windows += 1);
        }
    }

    /// A window opens nothing from now on.
    fn close(&mut self, slot: usize) {
        self.table.set(slot, None);
        if let Some(region) = self.windows.get_mut(&slot).and_then(|window| window.region.take()) {
            self.count_windows(region, |windows| *windows -= 1);
        }
    }

    /// As [`Memory::invalidate`](super::Memory::invalidate). Only windows of type 2 can be closed by requests: a region
    /// is closed by its owner's call, and so is a window of type 1 (10.6.7.2.4).
    pub(super) fn close_key(&mut self, asker: Asker, key: Key, remote: bool) -> Result<(), Refused> {
        let (slot, entry) = self.table.find(key).ok_or(Refused::Key)?;
        if entry.domain != asker.domain {
            return Err(Refused::Key);
        }
        if entry.kind != Kind::Window2 {
            return Err(Refused::Permission);
        }
        // The other end can close only what its own queue pair opens; the owner can by any of its own.
        if remote && entry.qpn != asker.qpn {
            return Err(Refused::Key);
        }
        self.close(slot);
        Ok(())
    }
}
