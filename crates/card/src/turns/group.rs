//! One owner, and what it has hot.

use super::QUANTUM;
use super::armed::{Armed, Places, Queue};
use super::item::{Item, Look, Owner};

/// A ring gets cold after so many fruitless looks, divided by how many items its owner has hot.
pub(super) const COLD_AFTER: u32 = 32_768;

struct Hot {
    item: Item,
    // Fruitless looks in a row.
    quiet: u32,
}

/// One owner. Never without an item, except within its turn.
#[derive(Default)]
pub(super) struct Group {
    pub owner: Owner,
    hot: Vec<Hot>,
    // Rings that leave soon.
    armed: Queue,
    // Whose turn is next.
    next: usize,
    // Items that have not been looked at in this turn.
    left: usize,
    /// What may be spent yet; below 0: what is owed.
    pub credit: i64,
}

impl Group {
    /// An empty one as that of an owner.
    pub fn of(self, owner: Owner) -> Self {
        Self { owner, hot: self.hot, armed: self.armed, ..Self::default() }
    }

    pub fn add(&mut self, item: Item) {
        self.hot.push(Hot { item, quiet: 0 });
    }

    /// Whether there is nothing here that has turns, or leaves soon.
    pub fn is_empty(&self) -> bool {
        self.hot.is_empty() && self.armed.is_empty()
    }

    /// A ring that has no turns leaves soon.
    pub fn arm(&mut self, armed: Armed, places: &mut Places) {
        self.armed.add(armed, places);
    }

    /// The first of those that leave soon.
    #[inline(always)]
    pub fn first_armed(&self) -> Option<Armed> {
        self.armed.first()
    }

    /// The same, if the owner may be served before it has its turn: as long as it has not used up that one.
    #[inline(always)]
    pub fn first_ahead(&self) -> Option<Armed> {
        if self.credit > -QUANTUM { self.armed.first() } else { None }
    }

    /// Takes it out.
    pub fn take_armed(&mut self, places: &mut Places) -> Option<Armed> {
        self.armed.take_first(places)
    }

    pub fn items(&self) -> impl Iterator<Item = Item> {
        self.hot.iter().map(|hot| hot.item)
    }

    /// `false`: it is not here.
    pub fn remove(&mut self, item: Item, places: &mut Places) -> bool {
        let Some(at) = self.hot.iter().position(|hot| hot.item == item) else { return self.disarm(item, places) };
        self.hot.swap_remove(at);
        self.left = self.left.min(self.hot.len());
        true
    }

    /// Takes a ring from those that leave soon. `false`: it is not there.
    pub fn disarm(&mut self, item: Item, places: &mut Places) -> bool {
        self.armed.remove(item, places)
    }

    /// What was not spent in the turn before is gone: there was nothing to spend it on.
    #[inline(always)]
    pub fn begin(&mut self, quantum: i64) {
        self.credit = self.credit.min(0) + quantum;
        self.left = self.hot.len();
    }

    #[inline(always)]
    pub fn next(&self) -> Option<Item> {
        if self.left == 0 || self.credit <= 0 {
            return None;
        }
        let next = if self.next < self.hot.len() { self.next } else { 0 };
        self.hot.get(next).map(|hot| hot.item)
    }

    /// Notes what a look at the next item found. `true`: it has been quiet for long.
    #[inline(always)]
    pub fn note(&mut self, look: Look, cost: u32) -> bool {
        if self.next >= self.hot.len() {
            self.next = 0;
        }
        let among = self.hot.len() as u32;
        let hot = &mut self.hot[self.next];
        (self.next, self.left, self.credit) = (self.next + 1, self.left - 1, self.credit - i64::from(cost));
        if look != Look::Quiet {
            hot.quiet = 0;
            return false;
        }
        hot.quiet += 1;
        let tired = hot.quiet.saturating_mul(among) > COLD_AFTER;
        if tired {
            hot.quiet = 0;
        }
        tired
    }

    /// Takes away the item that [`Group::next`] says.
    pub fn drop_current(&mut self) {
        if self.next >= self.hot.len() {
            self.next = 0;
        }
        self.hot.swap_remove(self.next);
        self.left -= 1;
    }

    /// Takes away the item that [`Group::note`] was told about.
    pub fn drop_last_noted(&mut self) {
        self.next -= 1;
        self.hot.swap_remove(self.next);
    }
}
