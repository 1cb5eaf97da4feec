//! Whose turn it is: a worker divides its time between *owners*, programs mostly, and then between what each has there.
//!
//! ```text
//! pass      every owner with something hot is given a quantum, and its rings are looked at in turn until that is spent
//!           (deficit round robin); who has spent more than it was given waits until that is made up for
//! hot       a ring or port queue that is looked at when its owner has a turn
//! cold      a ring that has been quiet for long: never looked at, but its control page says that the card sleeps, so
//! its
//!           program kicks when it sends; see `cold`
//! waiting   a ring whose next frame has a launch time that is not near: it comes back by the wheel; see `waiting`
//! armed     a ring whose launch time is near: sorted, and served before anything else when it comes; see `armed`
//! ```
//!
//! So however much one program sends, and through however many rings, the ring of another is looked at after one
//! quantum of each owner, and a pass costs what the hot rings cost. An owner that is alone has longer turns: nobody
//! waits for them.
//!
//! * `armed`: rings that leave soon. `item`: what has turns. `group`: one owner and what it has hot. `cold`: rings that wait for a kick. `kicked`: which of
//!   them are looked through. `waiting`: rings that wait for a time. `wheel`: times. `cost`: what is charged.

mod armed;
mod cold;
pub(crate) mod cost;
mod group;
mod item;
mod kicked;
#[cfg(test)]
mod tests;
mod waiting;
mod wheel;

pub(crate) use armed::{Armed, Places, Queue};
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
/// The same if launches are near all the time.
const MOST_BETWEEN_NEWS: u64 = 4 * BETWEEN_NEWS;
/// Flags that are looked at in a pass while a launch is near: each may be a miss of the cache.
const FEW_FLAGS: usize = 8;

/// All that one worker serves.
pub(crate) struct Turns {
    // Those with something hot or armed.
    groups: Vec<Group>,
    // Groups that have nothing hot any more, so that a ring that comes back needs no memory.
    spare: Vec<Group>,
    cold: Cold,
    waiting: Waiting,
    // Of rings that are armed.
    places: Places,
    // The earliest time of all that is armed; `u64::MAX`: nothing is.
    first_launch: u64,
    // Since the last look at who has kicked.
    spent: u64,
    rings: usize,
    items: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            groups: Vec::new(),
            spare: Vec::new(),
            cold: Cold::default(),
            waiting: Waiting::default(),
            places: Places::default(),
            first_launch: u64::MAX,
            spent: 0,
            rings: 0,
            items: 0,
        }
    }
}

impl Turns {
    /// Rings, hot, cold, waiting or armed.
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
        self.places.make_room(item);
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
            let Self { groups, places, .. } = self;
            let Some(at) = groups.iter_mut().position(|group| group.remove(item, places)) else { return };
            if self.groups[at].is_empty() {
                self.drop_group(at);
            }
            self.find_first_launch();
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

    /// The ring that [`Turns::note`] spoke of leaves later, and has nothing to do until a time, in ns of the oscillator; then it is
    /// armed.
    pub fn wait(&mut self, group: usize, armed: Armed, until: u64) {
        let owner = self.groups[group].owner;
        if self.waiting.add(armed, owner, until) {
            self.groups[group].drop_last_noted();
        }
    }

    /// The ring that [`Turns::note`] spoke of leaves soon.
    pub fn arm_noted(&mut self, group: usize, armed: Armed) {
        self.groups[group].drop_last_noted();
        self.arm(group, armed);
    }

    /// Ends a turn, and says where the next group is.
    #[inline(always)]
    pub fn end(&mut self, at: usize) -> usize {
        // Who owes something and has nothing at the moment is remembered.
        if self.groups[at].is_empty() && self.groups[at].credit >= 0 {
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

    /// Whether it is time to look who has kicked; while a launch is near that can wait, but not for ever. To be asked once per pass.
    #[inline(always)]
    pub fn wants_news(&mut self, is_near: bool) -> bool {
        self.spent += 1;
        if self.spent < if is_near { MOST_BETWEEN_NEWS } else { BETWEEN_NEWS } {
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

    /// What a pass does for cold rings: looks through some of those behind kicks, fewer while a launch is near. `true` when one is hot
    /// now.
    #[inline(always)]
    pub fn serve_cold(&mut self, is_near: bool) -> bool {
        self.is_scanning() && self.scan(is_near)
    }

    /// Looks through some of the rings behind kicks. `true` when one was rung and is hot now.
    fn scan(&mut self, is_near: bool) -> bool {
        let looks = if self.groups.len() <= 1 { ALONE } else { QUANTUM } as usize / 2;
        let rung = self.cold.scan(if is_near { FEW_FLAGS } else { looks });
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

    /// Arms rings for which it is time at `now`, in ns of the oscillator; if there are many, some at once, and fewer while a launch is
    /// near.
    #[inline(always)]
    pub fn serve_waiting(&mut self, now: u64, is_near: bool) {
        if self.waiting.is_due(now) {
            self.expire(now, if is_near { waiting::FEW_STEPS } else { waiting::STEPS });
        }
    }

    fn expire(&mut self, now: u64, most: usize) {
        let Self { groups, spare, waiting, places, first_launch, .. } = self;
        waiting.expire(now, most, |owner, item, armed| match armed {
            Some(armed) => {
                *first_launch = armed.at.min(*first_launch);
                group_of(groups, spare, owner).arm(armed, places);
            }
            None => heat(groups, spare, item, owner),
        });
    }

    /// When the first ring leaves that is armed, in ns of the card's clock; `u64::MAX`: none is.
    #[inline(always)]
    pub fn first_launch(&self) -> u64 {
        self.first_launch
    }

    /// A ring that has no turns leaves soon. `group`: that of its owner.
    pub fn arm(&mut self, group: usize, armed: Armed) {
        self.groups[group].arm(armed, &mut self.places);
        self.first_launch = self.first_launch.min(armed.at);
    }

    /// The first ring of all that may leave before its owner has its turn, and its group.
    pub fn first_ahead(&self) -> Option<(usize, Armed)> {
        let firsts = self.groups.iter().enumerate();
        firsts.filter_map(|(at, group)| Some((at, group.first_ahead()?))).min_by_key(|&(_, armed)| armed)
    }

    /// The first ring of a group that leaves soon.
    pub fn first_of(&self, group: usize) -> Option<Armed> {
        self.groups[group].first_armed()
    }

    /// The same, as long as the turn of the group lasts.
    pub fn first_in_turn(&self, group: usize) -> Option<Armed> {
        self.first_of(group).filter(|_| self.groups[group].credit > 0)
    }

    /// Takes the first ring of the group out of those that leave soon.
    pub fn take_armed(&mut self, group: usize) -> Option<Armed> {
        let armed = self.groups[group].take_armed(&mut self.places);
        self.find_first_launch();
        armed
    }

    fn find_first_launch(&mut self) {
        let firsts = self.groups.iter().filter_map(Group::first_armed);
        self.first_launch = firsts.map(|armed| armed.at).min().unwrap_or(u64::MAX);
    }

    /// The owner of a group pays for what was done for a ring that has no turns.
    pub fn charge(&mut self, group: usize, cost: u32) {
        self.spent += u64::from(cost);
        self.groups[group].credit -= i64::from(cost);
    }

    /// A ring that was taken out has turns again.
    pub fn heat_in(&mut self, group: usize, item: Item) {
        self.groups[group].add(item);
    }

    /// A ring that was taken out runs no more.
    pub fn has_ended(&mut self) {
        self.rings -= 1;
        self.items -= 1;
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
            return;
        }
        let Self { groups, places, .. } = self;
        if let Some(at) = groups.iter_mut().position(|group| group.disarm(item, places)) {
            groups[at].add(item);
            self.find_first_launch();
        }
    }
}

/// Gives an item turns, with the others of its owner.
fn heat(groups: &mut Vec<Group>, spare: &mut Vec<Group>, item: Item, owner: Owner) {
    group_of(groups, spare, owner).add(item);
}

/// The group of an owner; an empty one if it had none.
fn group_of<'g>(groups: &'g mut Vec<Group>, spare: &mut Vec<Group>, owner: Owner) -> &'g mut Group {
    let at = groups.iter().position(|group| group.owner == owner).unwrap_or_else(|| {
        groups.push(spare.pop().unwrap_or_default().of(owner));
        groups.len() - 1
    });
    &mut groups[at]
}
