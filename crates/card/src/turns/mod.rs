//! Whose turn it is: a worker divides its time between *owners*, programs mostly, and then between what each has there.
//!
//! ```text
//! pass      every owner with something hot is given a quantum, and its rings are looked at in turn until that is spent
//!           (deficit round robin); who has spent more than it was given waits until that is made up for
//! hot       a ring or port queue that is looked at when its owner has a turn
//! cold      a ring that has been quiet for long: never looked at, but its control page says that the card sleeps, so
//! its
//!           program kicks when it sends; see `cold`
//! waiting   a ring whose next frame has a launch time: it comes back by the wheel; see `waiting`
//! ```
//!
//! So however much one program sends, and through however many rings, the ring of another is looked at after one
//! quantum of each owner, and a pass costs what the hot rings cost. An owner that is alone has longer turns: nobody
//! waits for them.
//!
//! * `item`: what has turns. `group`: one owner and what it has hot. `cold`: rings that wait for a kick. `kicked`: which of
//!   them are looked through. `waiting`: rings that wait for a time. `wheel`: times. `cost`: what is charged.

mod cold;
pub(crate) mod cost;
mod group;
mod item;
mod kicked;
#[cfg(test)]
mod tests;
mod waiting;
mod wheel;

pub(crate) use cold::{ColdRing, Kick};
pub(crate) use item::{Item, Look, Owner};

use cold::Cold;
use group::Group;
use millrace_flow::table::BURST;
use waiting::Waiting;

/// What an owner may spend in one pass beside others: a burst of frames of 64 bytes.
const QUANTUM: i64 = cost::of(BURST as u64, BURST as u64 * 64) as i64;
/// What it may spend alone.
const ALONE: i64 = 512;
/// Items that are never cold, because looking at so few costs nothing.
const FEW: usize = 8;
/// What a worker spends between two looks at who has kicked, in units of [`cost`]: some 20 microseconds.
const BETWEEN_NEWS: u64 = 2048;

/// All that one worker serves.
#[derive(Default)]
pub(crate) struct Turns {
    // Those with something hot.
    groups: Vec<Group>,
    // Groups that have nothing hot any more, so that a ring that comes back needs no memory.
    spare: Vec<Group>,
    cold: Cold,
    waiting: Waiting,
    // Since the last look at who has kicked.
    spent: u64,
    rings: usize,
    items: usize,
}

impl Turns {
    /// Rings, hot, cold or waiting.
    pub fn rings(&self) -> usize {
        self.rings
    }

    /// Who has something hot.
    #[cfg(test)]
    pub fn owners(&self) -> Vec<Owner> {
        let mut owners: Vec<Owner> = self.groups.iter().map(|group| group.owner).collect();
        owners.sort_unstable();
        owners
    }

    /// Everything hot.
    pub fn hot(&self) -> impl Iterator<Item = Item> {
        self.groups.iter().flat_map(Group::items)
    }

    /// Adds an item, hot. Not one that is there.
    pub fn add(&mut self, item: Item, owner: Owner) {
        self.rings += usize::from(matches!(item, Item::Ring(_)));
        self.items += 1;
        self.waiting.make_room(item);
        self.heat(item, owner);
    }

    fn heat(&mut self, item: Item, owner: Owner) {
        heat(&mut self.groups, &mut self.spare, item, owner);
    }

    /// Takes away a group that has nothing hot any more.
    #[inline(always)]
    fn drop_group(&mut self, at: usize) {
        let group = self.groups.swap_remove(at);
        self.spare.push(group);
    }

    /// Takes an item away, if it is there.
    pub fn remove(&mut self, item: Item) {
        if self.cold.take(item).is_none() && self.waiting.take(item).is_none() {
            let Some(at) = self.groups.iter_mut().position(|group| group.remove(item)) else { return };
            if self.groups[at].is_empty() {
                self.drop_group(at);
            }
        }
        self.rings -= usize::from(matches!(item, Item::Ring(_)));
        self.items -= 1;
    }

    /// Says who answers for an item from now on.
    pub fn set_owner(&mut self, item: Item, owner: Owner) {
        if !self.groups.iter().any(|group| group.owner == owner && group.items().any(|there| there == item)) {
            self.remove(item);
            self.add(item, owner);
        }
    }

    /// Begins the turn of the group at `at`. `false`: that was the last of them.
    #[inline(always)]
    pub fn begin(&mut self, at: usize) -> bool {
        let quantum = if self.groups.len() == 1 { ALONE } else { QUANTUM };
        let Some(group) = self.groups.get_mut(at) else { return false };
        group.begin(quantum);
        true
    }

    /// What the group at `at` looks at next, as long as its turn lasts.
    #[inline(always)]
    pub fn next(&self, at: usize) -> Option<Item> {
        self.groups[at].next()
    }

    /// Notes what the look found and what it cost. `true`: the ring has been quiet for so long that it may get cold.
    #[inline(always)]
    #[must_use]
    pub fn note(&mut self, at: usize, look: Look, cost: u32) -> bool {
        self.spent += u64::from(cost);
        if look == Look::Ended {
            self.ended(at);
            return false;
        }
        self.groups[at].note(look, cost) && !self.are_few()
    }

    /// Whether there is so little to look at that looking ahead costs nobody anything.
    #[inline(always)]
    pub fn are_few(&self) -> bool {
        self.items <= FEW
    }

    #[cold]
    fn ended(&mut self, at: usize) {
        self.rings -= 1;
        self.items -= 1;
        self.groups[at].drop_current();
    }

    /// The ring that [`Turns::note`] spoke of is cold from now on.
    #[cold]
    pub fn cool(&mut self, at: usize, ring: ColdRing) {
        let owner = self.groups[at].owner;
        self.groups[at].drop_last_noted();
        self.cold.add(owner, ring);
    }

    /// The ring that [`Turns::note`] spoke of has nothing to do until a time, in ns of the oscillator.
    pub fn wait(&mut self, at: usize, item: Item, until: u64) {
        let owner = self.groups[at].owner;
        if self.waiting.add(item, owner, until) {
            self.groups[at].drop_last_noted();
        }
    }

    /// Ends a turn, and says where the next group is.
    #[inline(always)]
    pub fn end(&mut self, at: usize) -> usize {
        if self.groups[at].is_empty() {
            self.drop_group(at);
            return at;
        }
        at + 1
    }

    /// After a pass in which nobody did anything: nobody else wants the time, so those who owe less than others go on
    /// now.
    #[inline(always)]
    pub fn forgive(&mut self) {
        let least = self.groups.iter().map(|group| group.credit).filter(|&credit| credit < 0).max();
        // With less than a quantum of debt it is their turn in the next pass anyway.
        if let Some(least) = least.filter(|&least| least <= -QUANTUM) {
            self.groups.iter_mut().filter(|group| group.credit < 0).for_each(|group| group.credit -= least);
        }
    }

    #[inline(always)]
    pub fn has_cold(&self) -> bool {
        self.cold.len() > 0
    }

    /// Whether it is time to look who has kicked. To be asked once per pass.
    #[inline(always)]
    pub fn wants_news(&mut self) -> bool {
        self.spent += 1;
        if self.spent < BETWEEN_NEWS {
            return false;
        }
        self.spent = 0;
        true
    }

    /// Somebody has kicked: rings that are behind it are looked through in the passes that follow.
    pub fn kicked(&mut self, kick: Kick) {
        self.cold.kicked(kick);
    }

    /// As [`Turns::kicked`], for all of them.
    pub fn kicked_all(&mut self) {
        self.cold.kicked_all();
    }

    /// What a pass does for cold rings: looks through some of those behind kicks. `true` when one is hot now.
    #[inline(always)]
    pub fn serve_cold(&mut self) -> bool {
        self.is_scanning() && self.scan()
    }

    /// Looks through some of the rings behind kicks. `true` when one was rung and is hot now.
    fn scan(&mut self) -> bool {
        let looks = if self.groups.len() <= 1 { ALONE } else { QUANTUM } / 2;
        let rung = self.cold.scan(looks as usize);
        rung.iter().for_each(|&(owner, item)| self.heat(item, owner));
        !rung.is_empty()
    }

    /// Whether there are rings to look through.
    pub fn is_scanning(&self) -> bool {
        self.cold.is_scanning()
    }

    /// Whether rings that wait have not been judged again yet by a clock that was set.
    pub fn is_judging(&self) -> bool {
        self.waiting.is_judging()
    }

    /// Whether a ring waits for a time.
    #[inline(always)]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many rings wait for a time.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When the first of those rings is to be looked at, in ns of the oscillator; never too late.
    pub fn next_due(&self) -> Option<u64> {
        self.waiting.earliest()
    }

    /// Makes rings hot for which it is time at `now`, in ns of the oscillator; if there are many, some in each pass.
    #[inline(always)]
    pub fn serve_waiting(&mut self, now: u64) {
        if self.waiting.is_due(now) {
            self.expire(now);
        }
    }

    fn expire(&mut self, now: u64) {
        let Self { groups, spare, waiting, .. } = self;
        waiting.expire(now, |item, owner| heat(groups, spare, item, owner));
    }

    /// The clock of launch times goes differently from now on: the rings that wait for it are looked at again, some in each
    /// pass.
    pub fn judge_again(&mut self) {
        self.waiting.judge_again();
    }

    /// Makes a ring hot if it is not.
    pub fn warm(&mut self, item: Item) {
        if let Some(owner) = self.cold.take(item).or_else(|| self.waiting.take(item)) {
            self.heat(item, owner);
        }
    }
}

/// Gives an item turns, with the others of its owner.
fn heat(groups: &mut Vec<Group>, spare: &mut Vec<Group>, item: Item, owner: Owner) {
    match groups.iter_mut().find(|group| group.owner == owner) {
        Some(group) => group.add(item),
        None => groups.push(spare.pop().unwrap_or_default().with(owner, item)),
    }
}
