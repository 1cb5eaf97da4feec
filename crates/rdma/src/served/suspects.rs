//! Whose memory the engine has used, in case it turns out that it had to wait, and whose use is looked at one by one.

/// Programs that are known to have been used between two looks: with more, it may have been any.
const MOST: usize = 16;

/// Numbers are those of regions in [`Reach`](super::memory::Reach).
#[derive(Default)]
pub(super) struct Suspects {
    /// Whose memory was used last, and 1.
    last: usize,
    used: Vec<usize>,
    too_many: bool,
    /// Whose use is looked at one by one, and how many these are.
    watched: Vec<bool>,
    count: usize,
}

impl Suspects {
    /// Memory of a program is used.
    #[inline(always)]
    pub fn note(&mut self, owner: usize) {
        if self.last != owner + 1 {
            self.add(owner);
        }
    }

    fn add(&mut self, owner: usize) {
        self.last = owner + 1;
        if self.used.contains(&owner) {
            return;
        }
        match self.used.len() < MOST {
            true => self.used.push(owner),
            false => self.too_many = true,
        }
    }

    /// Nothing has been used yet.
    #[inline]
    pub fn clear(&mut self) {
        if self.last > 0 {
            self.last = 0;
            self.used.clear();
            self.too_many = false;
        }
    }

    /// For whose memory the engine may have waited; `None`: for anybody's. Not for memory whose use is looked at one by one.
    pub fn suspects(&self) -> Option<Vec<usize>> {
        let suspects = || self.used.iter().copied().filter(|owner| !self.is_watched(*owner)).collect();
        (!self.too_many).then(suspects)
    }

    /// Each use of its memory is looked at from now on.
    pub fn watch(&mut self, owner: usize) {
        if self.watched.len() <= owner {
            self.watched.resize(owner + 1, false);
        }
        self.count += usize::from(!core::mem::replace(&mut self.watched[owner], true));
    }

    /// No use is looked at any more.
    pub fn unwatch_all(&mut self) {
        (self.watched, self.count) = (Vec::new(), 0);
    }

    #[inline(always)]
    pub fn is_watched(&self, owner: usize) -> bool {
        self.count > 0 && self.watched.get(owner) == Some(&true)
    }

    /// The program has gone: its number may be another one's soon.
    pub fn forget(&mut self, owner: usize) {
        if self.is_watched(owner) {
            (self.watched[owner], self.count) = (false, self.count - 1);
        }
        self.used.retain(|other| *other != owner);
    }
}
