//! Random deaths of paths: what is said comes in order, each once, and a receive buffer has what its sender says that it has, though writes of
//! a path that died lie about and land whenever they like.

use super::record::MOST_PATHS;
use super::trunk::{Ended, Post, State, Trunk, Write};
use crate::engine::Ticket;
use proptest::prelude::*;
use std::collections::VecDeque;

const PATHS: usize = 3;
const SLOTS: u8 = 2;

/// What goes by a path.
#[derive(Clone, Debug)]
enum Thing {
    Record(u32, Said),
    Write(u8, u32),
    Over(usize, u32, u32),
    Join(u32, u32),
    Joined(u32),
}

/// What is said in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Number(u32),
    Done { slot: u8, ticket: u32 },
    Grant(u8),
}

#[derive(Default)]
struct Path {
    is_alive: bool,
    /// Whether each end has its half of the connection.
    halves: [bool; 2],
    /// What is on its way from each end, under which number, and acknowledgements to it.
    ways: [VecDeque<(u32, Thing)>; 2],
}

#[derive(Default)]
struct End {
    trunk: Trunk,
    places: Vec<Option<(u32, Said)>>,
    /// To be said when there is a place.
    waiting: VecDeque<Said>,
    numbers: u32,
    heard: u32,
    /// What has come and was not taken, and acknowledgements.
    came: VecDeque<(usize, Thing)>,
    acknowledged: VecDeque<u32>,
    /// Buffers of the other end that are this one's.
    slots: Vec<u8>,
    tickets: u32,
    written: u32,
    /// Own buffers.
    memory: [Option<u32>; SLOTS as usize],
}

struct World {
    ends: [End; 2],
    paths: [Path; PATHS],
}

#[derive(Clone, Debug)]
enum Turn {
    Say(usize),
    Write(usize),
    Post(usize),
    Tell(usize),
    Move(usize, usize),
    /// What lies about of a path that has died.
    Linger(usize, usize),
    Acknowledge(usize),
    Take(usize),
    Die(usize),
    Notice(usize, usize),
    Begin(usize),
}

impl World {
    fn new() -> Self {
        let end = || End { places: vec![None; 256], slots: (0..SLOTS).collect(), ..End::default() };
        let mut world = Self { ends: [end(), end()], paths: Default::default() };
        for path in 0..PATHS {
            world.begin(path);
        }
        world.settle();
        world
    }

    /// The first end has a connection, and asks the other one to use it.
    fn begin(&mut self, path: usize) {
        if !self.ends[0].trunk.may_begin(path) || self.paths[path].halves[0] {
            return;
        }
        // As with the RDMA engine: the half of the other end that is left of the time before goes now.
        self.notice(1, path);
        let (epoch, expected) = (self.ends[0].trunk.join(path), self.ends[0].trunk.expected());
        self.paths[path] = Path { is_alive: true, halves: [true; 2], ..Path::default() };
        let serial = self.ends[0].trunk.serial();
        self.paths[path].ways[0].push_back((serial, Thing::Join(epoch, expected)));
    }

    fn close(&mut self, end: usize, path: usize) {
        self.paths[path].halves[end] = false;
        self.paths[path].is_alive = false;
        self.ends[end].trunk.close(path);
    }

    fn notice(&mut self, end: usize, path: usize) -> bool {
        let is_open = matches!(self.ends[end].trunk.state(path), State::Live | State::Joining);
        if is_open {
            self.close(end, path);
        }
        is_open
    }

    fn handle(&mut self, end: usize, path: usize, thing: Thing) {
        let this = &mut self.ends[end];
        match thing {
            Thing::Record(number, said) => {
                if !matches!(this.trunk.state(path), State::Live | State::Closing)
                    || !this.trunk.arrive(number).unwrap()
                {
                    return;
                }
                match said {
                    Said::Number(number) => {
                        assert_eq!(number, this.heard, "out of order");
                        this.heard += 1;
                    }
                    Said::Done { slot, ticket } => {
                        assert_eq!(this.memory[usize::from(slot)], Some(ticket), "another message's bytes");
                        this.waiting.push_back(Said::Grant(slot));
                    }
                    Said::Grant(slot) => this.slots.push(slot),
                }
            }
            Thing::Over(path, epoch, expected) => {
                if this.trunk.was_over(path, epoch, expected).unwrap() {
                    self.close(end, path);
                }
            }
            Thing::Join(epoch, expected) => {
                if this.trunk.is_wanted(path, epoch, expected).unwrap() {
                    let serial = this.trunk.serial();
                    self.paths[path].ways[end].push_back((serial, Thing::Joined(epoch)));
                } else if this.trunk.state(path) != State::Live {
                    self.paths[path].is_alive = false;
                    self.paths[path].halves[end] = false;
                }
            }
            Thing::Joined(epoch) => {
                this.trunk.begin(path, epoch);
            }
            Thing::Write(..) => unreachable!("it lands"),
        }
    }

    /// The next thing on a way lands, if the other end has its half. One that went by a path that has died is not acknowledged.
    fn carry(&mut self, from: usize, path: usize) -> bool {
        let held = &mut self.paths[path];
        let Some((serial, thing)) = held.ways[from].pop_front() else { return false };
        if !held.halves[1 - from] {
            return true;
        }
        match thing {
            Thing::Write(slot, ticket) => self.ends[1 - from].memory[usize::from(slot)] = Some(ticket),
            other => self.ends[1 - from].came.push_back((path, other)),
        }
        if held.is_alive {
            self.ends[from].acknowledged.push_back(serial);
        }
        true
    }

    fn post(&mut self, end: usize) -> bool {
        let Self { ends, paths } = self;
        let End { trunk, places, .. } = &mut ends[end];
        trunk.post(|path, serial, post| {
            let thing = match post {
                Post::Record { place, .. } => {
                    let (number, said) = places[usize::from(place)].unwrap();
                    Thing::Record(number, said)
                }
                Post::Write(write) => Thing::Write(write.slot, write.ticket.0),
            };
            // Whoever has posted something to a connection that has died finds out later.
            paths[path].ways[end].push_back((serial, thing));
            true
        })
    }

    /// Whether there was something to do.
    fn apply(&mut self, turn: &Turn) -> bool {
        match *turn {
            Turn::Say(end) => {
                let this = &mut self.ends[end];
                if this.waiting.len() > 2 {
                    return false;
                }
                let said = Said::Number(this.numbers);
                this.numbers += 1;
                this.waiting.push_back(said);
                true
            }
            Turn::Write(end) => {
                let this = &mut self.ends[end];
                let Some(slot) = this.slots.pop() else { return false };
                // Tickets name the buffer, too, so that nothing has to be remembered.
                let ticket = this.tickets * u32::from(SLOTS) + u32::from(slot);
                this.tickets += 1;
                this.trunk.write(Write { ticket: Ticket(ticket), smb: 0, slot, len: 10 });
                true
            }
            Turn::Post(end) => {
                let this = &mut self.ends[end];
                if let Some(place) = this.trunk.place()
                    && let Some(said) = this.waiting.pop_front()
                {
                    this.places[usize::from(place)] = Some((this.trunk.number(), said));
                    this.trunk.push(8);
                }
                self.post(end)
            }
            Turn::Tell(end) => {
                let trunk = &mut self.ends[end].trunk;
                let Some((path, epoch, expected)) = trunk.news() else { return false };
                let Some(by) = trunk.any_live() else { return false };
                trunk.was_told();
                let serial = trunk.serial();
                self.paths[by].ways[end].push_back((serial, Thing::Over(path, epoch, expected)));
                true
            }
            Turn::Move(from, path) => {
                let has_some = |path: &usize| self.paths[*path].is_alive && !self.paths[*path].ways[from].is_empty();
                let path = (path..path + PATHS).map(|path| path % PATHS).find(has_some);
                path.is_some_and(|path| self.carry(from, path))
            }
            Turn::Linger(from, path) => !self.paths[path].is_alive && self.carry(from, path),
            Turn::Acknowledge(end) => {
                let this = &mut self.ends[end];
                let Some(serial) = this.acknowledged.pop_front() else { return false };
                if let Ended::Written(ticket) = this.trunk.acknowledged(serial) {
                    this.written += 1;
                    let slot = (ticket.0 % u32::from(SLOTS)) as u8;
                    this.waiting.push_back(Said::Done { slot, ticket: ticket.0 });
                }
                true
            }
            Turn::Take(end) => {
                let Some((path, thing)) = self.ends[end].came.pop_front() else {
                    let trunk = &mut self.ends[end].trunk;
                    let closing: Vec<usize> = trunk.closing().collect();
                    closing.iter().for_each(|path| trunk.drained(*path));
                    return !closing.is_empty();
                };
                self.handle(end, path, thing);
                true
            }
            Turn::Die(path) => {
                // The last one that both have stays.
                let is_live = |other: usize| {
                    self.paths[other].is_alive && self.ends.iter().all(|end| end.trunk.state(other) == State::Live)
                };
                let may = (0..PATHS).any(|other| other != path && is_live(other));
                if may {
                    self.paths[path].is_alive = false;
                }
                may
            }
            Turn::Notice(end, path) => !self.paths[path].is_alive && self.notice(end, path),
            Turn::Begin(path) => {
                self.begin(path);
                false
            }
        }
    }

    /// Until nothing happens any more.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut has_moved = false;
            for end in 0..2 {
                for path in 0..PATHS {
                    has_moved |= self.apply(&Turn::Move(end, path))
                        | self.apply(&Turn::Linger(end, path))
                        | self.apply(&Turn::Notice(end, path));
                }
                has_moved |= self.apply(&Turn::Acknowledge(end)) | self.apply(&Turn::Take(end));
                has_moved |= self.apply(&Turn::Post(end)) | self.apply(&Turn::Tell(end));
                has_moved |= !self.ends[end].waiting.is_empty();
            }
            if !has_moved {
                return;
            }
        }
        let states = self.ends.each_ref().map(|end| (0..PATHS).map(|path| end.trunk.state(path)).collect::<Vec<_>>());
        panic!("it goes on for ever: {states:?} {:#?}", self.ends.each_ref().map(|end| &end.trunk));
    }
}

/// A number below `most`, from a seed.
fn draw(seed: &mut u64, most: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % most
}

/// A turn, of kinds that are as frequent as `weights` says.
fn turn(seed: &mut u64, weights: &[usize; 11]) -> Turn {
    let mut kind = draw(seed, weights.iter().sum());
    let found = weights.iter().position(|weight| {
        let is_it = kind < *weight;
        kind = kind.saturating_sub(*weight);
        is_it
    });
    let (end, path) = (draw(seed, 2), draw(seed, PATHS));
    match found {
        Some(0) => Turn::Say(end),
        Some(1) => Turn::Write(end),
        Some(2) => Turn::Post(end),
        Some(3) => Turn::Tell(end),
        Some(4) => Turn::Move(end, path),
        Some(5) => Turn::Acknowledge(end),
        Some(6) => Turn::Take(end),
        Some(7) => Turn::Die(path),
        Some(8) => Turn::Notice(end, path),
        Some(9) => Turn::Begin(path),
        _ => Turn::Linger(end, path),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn nothing_is_lost_doubled_or_reordered(mut seed: u64, weights: [u8; 11]) {
        let mut world = World::new();
        // Deaths are rare, and heard of late, so that much happens before.
        let often = [1, 4, 8, 0, 8, 8, 8, 0, 0, 0, 0];
        let spread = [32, 8, 8, 64, 8, 8, 8, 255, 64, 64, 64];
        let weights = core::array::from_fn(|at| often[at] + usize::from(weights[at]) / spread[at] + usize::from(often[at] == 0));
        for _ in 0..10_000 {
            world.apply(&turn(&mut seed, &weights));
        }
        world.settle();
        for path in 0..PATHS {
            world.begin(path);
        }
        world.settle();
        for end in 0..2 {
            let (this, other) = (&world.ends[end], &world.ends[1 - end]);
            prop_assert!(this.trunk.is_quiet());
            prop_assert_eq!((this.numbers, this.tickets), (other.heard, this.written));
            prop_assert_eq!(this.slots.len(), usize::from(SLOTS));
            for path in 0..PATHS {
                prop_assert_eq!(this.trunk.state(path), State::Live);
            }
        }
    }

    /// Whatever the other end says of paths: it is refused, or nothing comes of it that this end would not do by itself.
    #[test]
    fn nonsense_about_paths_does_no_harm(turns in prop::collection::vec((0..MOST_PATHS, 0u32..5, prop_oneof![0u32..5, any::<u32>()], 0..4), 0..100)) {
        let mut trunk = Trunk::default();
        trunk.begin(0, 1);
        for (path, epoch, number, what) in turns {
            match what {
                0 => drop(trunk.begin(path, epoch)),
                1 => {
                    if trunk.was_over(path, epoch, number) == Ok(true) {
                        prop_assert!(trunk.close(path));
                        trunk.drained(path);
                    }
                }
                2 => drop(trunk.arrive(number)),
                _ => {
                    if trunk.place().is_some() {
                        trunk.push(8);
                    }
                    while trunk.post(|_, _, _| true) {}
                }
            }
            while trunk.news().is_some() {
                trunk.was_told();
            }
        }
    }
}
