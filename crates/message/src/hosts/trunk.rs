//! What goes between two endpoints of different hosts by several paths: records in order, each once, and writes; whatever path dies. No
//! system call, no clock and no memory: who drives it posts what is to be posted, and says what has become of it.
//!
//! Each *path* is a connection of the RDMA engine, in which what is posted comes in order and is acknowledged. Records go by one of them, the
//! *through* path, writes by all. A record is kept until it was acknowledged.
//!
//! ```text
//! this end                                            the other end
//! the path dies: ends its half, takes what has come
//! over: this path, what it has of the records  --->   ends its half, takes what has come
//! sends again what the other end has not,      <---   over: this path, what it has
//! and writes again, by other paths                    does the same
//! ```
//!
//! So nothing is sent again before the other end has ended its half of the path that died: a write that is still somewhere on its way meets
//! nobody, though its buffer may have a new message in it.

use super::record::MOST_PATHS;
use crate::engine::{Breach, Ticket};
use slab::Slab;
use std::collections::VecDeque;

/// Places for records that were not acknowledged.
pub const PLACES: usize = 32;

/// How a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It was never there, or both ends have ended it.
    Down,
    /// This end has asked the other one to use it.
    Joining,
    /// Both use it.
    Live,
    /// This end has ended its half, and has not taken all that came.
    Closing,
}

#[derive(Clone, Debug)]
struct Path {
    state: State,
    epoch: u32,
    /// This end has said that it is over, and what the other end has said: its records up to there.
    has_told: bool,
    theirs: Option<u32>,
    /// Bytes of writes that were posted and not acknowledged.
    load: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posted {
    Not,
    /// By which path, under which number.
    By(usize, u32),
    /// By one that died.
    Unknown,
}

#[derive(Clone, Debug)]
struct Kept {
    number: u32,
    place: u8,
    len: u16,
    posted: Posted,
}

/// A write from a send buffer to a receive buffer of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub ticket: Ticket,
    pub smb: u16,
    pub slot: u8,
    pub len: u32,
}

#[derive(Clone, Debug)]
struct Flight {
    write: Write,
    flies: Flies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flies {
    Not,
    By(usize, u32),
    /// By that path, which died; not again before the other end has ended its half.
    Fenced(usize),
}

/// What is to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// A record, from its place.
    Record {
        /// Where it stands.
        place: u8,
        /// Bytes.
        len: u16,
    },
    /// A write.
    Write(Write),
}

/// What has become of something that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was a record, or is no matter any more.
    Nothing,
    /// A write is done.
    Written(Ticket),
}

/// One end.
#[derive(Clone, Debug)]
pub struct Trunk {
    paths: Vec<Path>,
    kept: VecDeque<Kept>,
    free: Vec<u8>,
    flights: Slab<Flight>,
    /// Numbers of the next record that is made, and of the next that is wanted.
    next: u32,
    expected: u32,
    /// The path of records; `None`: none, or it is not known yet what the other end has.
    through: Option<usize>,
    waits_for: Option<usize>,
    serial: u32,
    /// What is to be told: paths that are over, each with what this end has.
    news: VecDeque<usize>,
    /// Records that came twice.
    pub doubled: u64,
}

impl Default for Trunk {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            kept: VecDeque::new(),
            free: (0..PLACES as u8).rev().collect(),
            flights: Slab::new(),
            next: 0,
            expected: 0,
            through: None,
            waits_for: None,
            serial: 0,
            news: VecDeque::new(),
            doubled: 0,
        }
    }
}

impl Trunk {
    fn path(&mut self, path: usize) -> &mut Path {
        let at = path.min(MOST_PATHS - 1);
        while self.paths.len() <= at {
            self.paths.push(Path { state: State::Down, epoch: 0, has_told: true, theirs: Some(0), load: 0 });
        }
        &mut self.paths[at]
    }

    /// How a path is.
    pub fn state(&self, path: usize) -> State {
        self.paths.get(path).map_or(State::Down, |path| path.state)
    }

    /// Whether a path that is down may begin anew: both ends have ended their halves, and said what they have.
    pub fn may_begin(&self, path: usize) -> bool {
        self.paths.get(path).is_none_or(|path| path.state == State::Down && path.has_told && path.theirs.is_some())
    }

    /// This end asks the other one to use a path: its epoch.
    pub fn join(&mut self, path: usize) -> u32 {
        let path = self.path(path);
        *path =
            Path { state: State::Joining, epoch: path.epoch.wrapping_add(1), has_told: false, theirs: None, load: 0 };
        path.epoch
    }

    /// The other end wants to use a path anew: it has ended its half of the time before, and has so much. Whether it may be used.
    ///
    /// # Errors
    /// [`Breach`].
    pub fn is_wanted(&mut self, path: usize, epoch: u32, expected: u32) -> Result<bool, Breach> {
        let held = self.path(path);
        if held.state == State::Down && held.theirs.is_none() && is_later(epoch, held.epoch) {
            self.was_over(path, self.paths[path].epoch, expected)?;
        }
        Ok(self.begin(path, epoch))
    }

    /// The next record of the other end that is wanted.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Both ends use a path: the other one has answered, or asked. False: it may not be used like that.
    pub fn begin(&mut self, path: usize, epoch: u32) -> bool {
        let may_begin = self.may_begin(path);
        let held = self.path(path);
        match held.state {
            State::Joining if held.epoch == epoch => held.state = State::Live,
            State::Down if may_begin && is_later(epoch, held.epoch) => {
                *held = Path { state: State::Live, epoch, has_told: false, theirs: None, load: 0 };
            }
            _ => return false,
        }
        self.choose();
        true
    }

    /// Records go by some path, unless it has to be heard first what the other end has.
    fn choose(&mut self) {
        if self.through.is_none() && self.waits_for.is_none() {
            self.through = self.paths.iter().position(|path| path.state == State::Live);
        }
    }

    /// Whether there is a path that works as far as is known.
    pub fn is_alive(&self) -> bool {
        self.paths.iter().any(|path| path.state == State::Live)
    }

    /// A path has died; its half here has ended, and what has come by it is being taken. Whether that is new.
    pub fn close(&mut self, path: usize) -> bool {
        let Some(held) = self.paths.get_mut(path).filter(|path| matches!(path.state, State::Live | State::Joining))
        else {
            return false;
        };
        (held.state, held.load) = (State::Closing, 0);
        for kept in &mut self.kept {
            if matches!(kept.posted, Posted::By(by, _) if by == path) {
                kept.posted = Posted::Unknown;
            }
        }
        for (_, flight) in &mut self.flights {
            if matches!(flight.flies, Flies::By(by, _) if by == path) {
                flight.flies = Flies::Fenced(path);
            }
        }
        if self.through == Some(path) {
            (self.through, self.waits_for) = (None, Some(path));
        }
        true
    }

    /// All that has come by a path that was closed was taken.
    pub fn drained(&mut self, path: usize) {
        let Some(held) = self.paths.get_mut(path).filter(|path| path.state == State::Closing) else { return };
        (held.state, held.has_told) = (State::Down, true);
        // What was told before may have been on its way by this one.
        self.news = (0..self.paths.len())
            .filter(|at| self.paths[*at].state == State::Down && self.paths[*at].epoch > 0)
            .collect();
        self.resume(path);
    }

    /// Paths that this end has closed, and that were not drained.
    pub fn closing(&self) -> impl Iterator<Item = usize> {
        self.paths.iter().enumerate().filter(|(_, path)| path.state == State::Closing).map(|(at, _)| at)
    }

    /// The other end has said that a path is over, and what it has. Whether this end has to end its half, by [`Trunk::close`].
    ///
    /// # Errors
    /// [`Breach`].
    pub fn was_over(&mut self, path: usize, epoch: u32, expected: u32) -> Result<bool, Breach> {
        let oldest = self.kept.front().map_or(self.next, |kept| kept.number);
        let may_begin = self.may_begin(path);
        let (next, goes_by) = (self.next, [self.through, self.waits_for].contains(&Some(path)));
        let held = self.path(path);
        let is_newer = is_later(epoch, held.epoch);
        if held.epoch != epoch && !is_newer || held.epoch == epoch && held.theirs.is_some() {
            // It says so again, because what it has said may have been lost.
            return Ok(false);
        }
        if is_newer {
            // This end has not heard that it was there anew. So the time before is over, too, and this one is told of here as well.
            held.epoch = epoch;
            if may_begin {
                held.theirs = Some(expected);
                self.news.push_back(path);
                return Ok(false);
            }
        }
        // Not fewer than it has acknowledged, and not more than there are. Where records go by another path, that goes on.
        if goes_by && expected.wrapping_sub(oldest) > next.wrapping_sub(oldest) {
            return Err(Breach::Nonsense);
        }
        held.theirs = Some(expected);
        let must_close = matches!(held.state, State::Live | State::Joining);
        if is_newer && held.state == State::Down {
            self.news.push_back(path);
        }
        self.resume(path);
        Ok(must_close)
    }

    /// What went by a path may go by others, if both ends have ended their halves of it.
    fn resume(&mut self, path: usize) {
        let Some(held) = self.paths.get(path).filter(|path| matches!(path.state, State::Closing | State::Down)) else {
            return;
        };
        let Some(theirs) = held.theirs else { return };
        for (_, flight) in &mut self.flights {
            if flight.flies == Flies::Fenced(path) {
                flight.flies = Flies::Not;
            }
        }
        if self.waits_for != Some(path) {
            return;
        }
        self.waits_for = None;
        while let Some(kept) = self.kept.front().filter(|kept| is_later(theirs, kept.number)) {
            self.free.push(kept.place);
            self.kept.pop_front();
        }
        self.kept.iter_mut().for_each(|kept| kept.posted = Posted::Not);
        self.choose();
    }

    /// A place for a record, if there is one. It is taken by [`Trunk::push`].
    pub fn place(&self) -> Option<u8> {
        self.free.last().copied()
    }

    /// The number that the next record has.
    pub fn number(&self) -> u32 {
        self.next
    }

    /// A record stands in the place that [`Trunk::place`] has named, with the number that [`Trunk::number`] has said.
    pub fn push(&mut self, len: u16) {
        let Some(place) = self.free.pop() else { return };
        self.kept.push_back(Kept { number: self.next, place, len, posted: Posted::Not });
        self.next = self.next.wrapping_add(1);
    }

    /// A write is wanted.
    pub fn write(&mut self, write: Write) {
        self.flights.insert(Flight { write, flies: Flies::Not });
    }

    /// The next thing to post: by which path, under which number; it was, if `post` says so.
    pub fn post(&mut self, post: impl FnOnce(usize, u32, Post) -> bool) -> bool {
        let serial = self.serial.wrapping_add(1);
        if let Some(path) = self.through
            && let Some(kept) = self.kept.iter_mut().find(|kept| kept.posted == Posted::Not)
        {
            if !post(path, serial, Post::Record { place: kept.place, len: kept.len }) {
                return false;
            }
            kept.posted = Posted::By(path, serial);
        } else if let Some((_, flight)) = self.flights.iter_mut().find(|(_, flight)| flight.flies == Flies::Not) {
            let live = self.paths.iter_mut().enumerate().filter(|(_, path)| path.state == State::Live);
            let Some((at, path)) = live.min_by_key(|(_, path)| path.load) else { return false };
            if !post(at, serial, Post::Write(flight.write)) {
                return false;
            }
            flight.flies = Flies::By(at, serial);
            path.load += u64::from(flight.write.len);
        } else {
            return false;
        }
        self.serial = serial;
        true
    }

    /// A number for something else that is posted.
    pub fn serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    /// What was posted under that number was acknowledged.
    pub fn acknowledged(&mut self, serial: u32) -> Ended {
        let is_it = |flight: &Flight| matches!(flight.flies, Flies::By(_, number) if number == serial);
        if let Some(at) = self.flights.iter().find(|(_, flight)| is_it(flight)).map(|(at, _)| at) {
            let Flight { write, flies } = self.flights.remove(at);
            if let Flies::By(path, _) = flies {
                self.path(path).load -= u64::from(write.len);
            }
            return Ended::Written(write.ticket);
        }
        // In their order, by one path; those before were posted and acknowledged before.
        let is_it = |kept: &Kept| matches!(kept.posted, Posted::By(_, number) if number == serial);
        if let Some(at) = self.kept.iter().position(is_it) {
            for kept in self.kept.drain(..=at) {
                self.free.push(kept.place);
            }
        }
        Ended::Nothing
    }

    /// A record with that number has come. Whether it is the next one.
    ///
    /// # Errors
    /// [`Breach`]: some are left out.
    pub fn arrive(&mut self, number: u32) -> Result<bool, Breach> {
        if number == self.expected {
            self.expected = self.expected.wrapping_add(1);
            return Ok(true);
        }
        if !is_later(self.expected, number) {
            return Err(Breach::Nonsense);
        }
        self.doubled += 1;
        Ok(false)
    }

    /// The next path of which the other end is to be told that it is over: its epoch, and what this end has.
    pub fn news(&mut self) -> Option<(usize, u32, u32)> {
        // Who uses a path anew knows that it was over.
        while self.news.front().is_some_and(|path| self.paths[*path].state != State::Down) {
            self.news.pop_front();
        }
        let path = *self.news.front()?;
        Some((path, self.paths[path].epoch, self.expected))
    }

    /// It was told.
    pub fn was_told(&mut self) {
        self.news.pop_front();
    }

    /// A path by which it can be told.
    pub fn any_live(&self) -> Option<usize> {
        self.through.or_else(|| self.paths.iter().position(|path| path.state == State::Live))
    }

    /// The tickets of all writes that are not done. There are none any more.
    pub fn give_up(&mut self) -> Vec<Ticket> {
        self.flights.drain().map(|flight| flight.write.ticket).collect()
    }

    /// Whether all was acknowledged.
    pub fn is_quiet(&self) -> bool {
        self.kept.is_empty() && self.flights.is_empty()
    }
}

/// Modulo 2^32.
const fn is_later(one: u32, than: u32) -> bool {
    let ahead = one.wrapping_sub(than);
    ahead != 0 && ahead < 1 << 31
}
