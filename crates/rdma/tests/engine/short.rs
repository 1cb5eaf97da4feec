//! Two ends with a ring for each direction, where SENDs of one packet are not answered: whatever is lost, whoever has no
//! buffer, each SEND comes once, in order, and ends once.

use crate::common::link::{PATH, Random, origin_of};
use crate::common::memory::Flat;
use crate::common::{Pair, Wish, create, engine, make_ready};
use millrace_dma::Region;
use millrace_rdma::engine::{Came, Engine, Near, Options, Rings};
use millrace_rdma::local::{CHANNEL_LEN, Receiver, Room, Sender, Short, Side, Source};
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Key, Moment, Qpn};
use millrace_rdma::transport::{Origin, Out, Sent};
use millrace_rdma::wire::{Headers, Packet, Path};
use millrace_rdma::work::{Access, Completion, Data, Ended, Extra, Flags, Operation, Piece, Request, Status};
use proptest::prelude::*;

/// A ring, as the way of packets and of short SENDs.
struct Way<'a> {
    rings: &'a mut Rings,
    random: &'a mut Random,
    /// Packets of a thousand that are lost; short SENDs never are.
    loss: u64,
}

impl Out for Way<'_> {
    fn packet<F>(&mut self, _path: &Path, _source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        let mut payload = vec![0; len];
        if self.rings.sender.has_room(len) != Room::Sent {
            return Sent::Busy;
        }
        if let Err(refused) = fill(&mut payload) {
            return Sent::Refused(refused);
        }
        if self.random.below(1000) >= self.loss {
            assert_eq!(self.rings.sender.send(headers, (0, 0), &payload), Room::Sent);
        }
        Sent::Taken
    }
}

impl Near for Way<'_> {
    fn short(&mut self, _path: &Path, source: Source, short: &Short, payload: &[u8]) -> bool {
        let heard = self.rings.receiver.heard();
        self.rings.sender.send_short(source, short, (0, 0), heard, payload) == Room::Sent
    }

    fn hurry(&mut self, _path: &Path, _qpn: Qpn) {
        self.rings.sender.hurry();
    }
}

const SLOT: u32 = 256;
const SLOTS: u32 = 64;

struct End {
    engine: Engine<Flat>,
    pairs: Vec<Pair>,
    rings: Rings,
    /// What is sent from, and what is received into, by queue pair.
    keys: Vec<[Key; 2]>,
    /// Of each queue pair: SENDs posted, ended; buffers posted, filled.
    posted: Vec<u32>,
    ended: Vec<u32>,
    buffers: Vec<u32>,
    filled: Vec<u32>,
    came: Came,
}

fn content(number: u32, pair: usize) -> Vec<u8> {
    let len = (number * 29 + pair as u32 * 7) % SLOT;
    (0..len).map(|at| (at + number * 3 + pair as u32) as u8).collect()
}

impl End {
    fn post(&mut self, at: usize, random: &mut Random, loss: u64) {
        let number = self.posted[at];
        if number - self.ended[at] >= 60 {
            return;
        }
        let bytes = content(number, at);
        let [key, _] = self.keys[at];
        let address = number % SLOTS * SLOT;
        self.engine.memory().bytes(key)[address as usize..][..bytes.len()].copy_from_slice(&bytes);
        let pieces = [Piece { address: address.into(), len: bytes.len() as u32, lkey: key }];
        let operation =
            if number.is_multiple_of(3) { Operation::SendImmediate(number.to_le_bytes()) } else { Operation::Send };
        let flags = Flags { signaled: true, ..Flags::default() };
        let request = Request { id: number.into(), operation, data: Data::Pieces(&pieces), flags, target: None };
        let mut way = Way { rings: &mut self.rings, random, loss };
        self.engine.post_send_near(self.pairs[at].qpn, &request, &mut way).unwrap();
        self.posted[at] += 1;
    }

    fn offer(&mut self, at: usize) {
        if self.buffers[at] - self.filled[at] < 60 {
            let [_, key] = self.keys[at];
            let address = u64::from(self.buffers[at] % SLOTS * SLOT);
            let pieces = [Piece { address, len: SLOT, lkey: key }];
            self.engine.post_receive(self.pairs[at].qpn, self.buffers[at].into(), &pieces).unwrap();
            self.buffers[at] += 1;
        }
    }

    fn look(&mut self, me: usize, now: u64, random: &mut Random, loss: u64) {
        let mut lines = [Completion::default(); 64];
        let origin = |gids| (gids == (0, 0)).then(|| origin_of(&PATH[1 - me]));
        let mut seen = 0;
        let mut show = |from: &Origin, _: &Packet<'_>| seen += u64::from(*from == origin_of(&PATH[1 - me]));
        let came = self.engine.take_from_ring(&mut || Moment::new(now), &mut self.rings, 64, origin, Some(&mut show));
        assert_eq!(seen, came.packets, "each is shown, and where it came from");
        assert_eq!((came.malformed, came.is_broken), (0, false));
        self.came.shorts += came.shorts;
        self.came.settled += came.settled;
        let mut way = Way { rings: &mut self.rings, random, loss };
        self.engine.transmit(Moment::new(now), 64, &mut way);
        for at in 0..self.pairs.len() {
            let count = self.engine.poll(self.pairs[at].cq, &mut lines).unwrap();
            for line in &lines[..count] {
                assert_eq!(line.status, Status::Success);
                if line.ended == Ended::Send {
                    assert_eq!(line.id, u64::from(self.ended[at]), "in order, each once");
                    self.ended[at] += 1;
                    continue;
                }
                let number = self.filled[at];
                let expected = content(number, at);
                let extra = if number.is_multiple_of(3) { Extra::Immediate(number.to_le_bytes()) } else { Extra::None };
                assert_eq!((line.id, line.len, line.extra), (number.into(), expected.len() as u32, extra));
                let [_, key] = self.keys[at];
                let found = &self.engine.memory().bytes(key)[(number % SLOTS * SLOT) as usize..][..expected.len()];
                assert_eq!(found, &expected[..]);
                self.filled[at] += 1;
            }
        }
    }
}

fn ends(count: usize) -> [End; 2] {
    let region = Region::heap(CHANNEL_LEN);
    let wish = Wish { timeout: 12, ..Wish::default() };
    let mut both = [Side::Maker, Side::Taker].map(|side| {
        let mut engine = engine(Options { extended: true, ..Options::default() });
        let pairs: Vec<_> = (0..count).map(|_| create(&mut engine, &wish)).collect();
        let keys = pairs
            .iter()
            .map(|pair| {
                [(); 2].map(|()| {
                    engine.memory().register(pair.domain, 0, vec![0; (SLOT * SLOTS) as usize], Access::LOCAL_WRITE)
                })
            })
            .collect();
        let (sender, receiver) =
            (Sender::new(region.window(), side).unwrap(), Receiver::new(region.window(), side).unwrap());
        let none = vec![0; count];
        End {
            engine,
            pairs,
            rings: Rings::new(sender, receiver),
            keys,
            posted: none.clone(),
            ended: none.clone(),
            buffers: none.clone(),
            filled: none,
            came: Came::default(),
        }
    });
    for at in 0..count {
        let numbers = [0, 1].map(|end: usize| both[end].pairs[at].qpn);
        for end in 0..2 {
            make_ready(&mut both[end].engine, numbers[end], &wish, PATH[end], numbers[1 - end]);
        }
    }
    both
}

/// Until nothing is on its way any more; buffers are posted for all that is.
fn finish(ends: &mut [End; 2], now: &mut u64, random: &mut Random, loss: u64) {
    for _ in 0..2_000_000 {
        *now += 2000;
        for me in 0..2 {
            for at in 0..ends[me].pairs.len() {
                while ends[me].buffers[at] < ends[1 - me].posted[at] + 8
                    && ends[me].buffers[at] - ends[me].filled[at] < 60
                {
                    ends[me].offer(at);
                }
            }
            ends[me].look(me, *now, random, loss);
        }
        if (0..2).all(|me| ends[me].ended == ends[me].posted && ends[me].posted == ends[1 - me].filled) {
            return;
        }
    }
    panic!("it ends: {:?} of {:?}, {:?} of {:?}", ends[0].ended, ends[0].posted, ends[1].ended, ends[1].posted);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn each_comes_once_and_ends_once(seed: u64, pairs in 1usize..4, loss in prop_oneof![Just(0u64), Just(50)], hungry: bool) {
        let (mut random, mut ends, mut now) = (Random(seed), ends(pairs), 0);
        for _ in 0..600 {
            now += random.below(3000);
            let (me, at) = (random.below(2) as usize, random.below(pairs as u64) as usize);
            match random.below(4) {
                0 | 1 => for _ in 0..random.below(6) {
                    ends[me].post(at, &mut random, loss);
                },
                // Whoever is hungry has fewer buffers than come.
                2 => for _ in 0..random.below(if hungry { 4 } else { 16 }) {
                    ends[me].offer(at);
                },
                _ => ends[me].look(me, now, &mut random, loss),
            }
        }
        finish(&mut ends, &mut now, &mut random, loss);
        let shorts = ends[0].came.shorts + ends[1].came.shorts;
        prop_assert!(loss > 0 || hungry || shorts > 0, "some were short");
    }
}

#[test]
fn a_run_with_buffers_needs_no_answers() {
    let (mut random, mut ends, mut now) = (Random(7), ends(1), 0);
    // The first says to the other end that this one is of our kind; it is answered.
    for turn in 0..400 {
        let me = turn % 2;
        ends[1 - me].offer(0);
        ends[1 - me].offer(0);
        ends[me].post(0, &mut random, 0);
        now += 2000;
        ends[1 - me].look(1 - me, now, &mut random, 0);
        ends[me].look(me, now, &mut random, 0);
    }
    finish(&mut ends, &mut now, &mut random, 0);
    let counters = [0, 1].map(|me| *ends[me].engine.counters());
    let (sent, repeated) = (counters[0].sent + counters[1].sent, counters[0].repeated + counters[1].repeated);
    assert_eq!(repeated, 0);
    // With a promise of buffers that is renewed now and then.
    assert!(sent < 400 + 60, "{sent} packets for 400 SENDs");
    assert!(ends[0].came.shorts + ends[1].came.shorts > 340);
}

#[test]
fn who_has_not_taken_them_is_asked_again_and_given_up() {
    let (mut random, mut ends) = (Random(7), ends(1));
    let mut now = 0;
    for me in [0, 1] {
        ends[1 - me].offer(0);
        ends[me].post(0, &mut random, 0);
    }
    finish(&mut ends, &mut now, &mut random, 0);
    ends[1].offer(0);
    ends[0].post(0, &mut random, 0);
    let mut lines = [Completion::default(); 4];
    for _ in 0..100_000 {
        now += 1_000_000;
        let End { engine, rings, pairs, .. } = &mut ends[0];
        engine.transmit(Moment::new(now), 64, &mut Way { rings, random: &mut random, loss: 0 });
        if engine.poll(pairs[0].cq, &mut lines).unwrap() > 0 {
            assert_eq!(lines[0].status, Status::RetryExceeded);
            return;
        }
    }
    panic!("it waits for ever");
}

/// Two ends that have met, of which the first has sent a packet that had to be one: it knows by now what else the other end may have.
fn met(now: &mut u64, random: &mut Random) -> [End; 2] {
    let mut ends = ends(1);
    for me in [0, 1] {
        ends[1 - me].offer(0);
        ends[me].post(0, random, 0);
    }
    finish(&mut ends, now, random, 0);
    ends
}

impl End {
    /// Posts a SEND of 8 bytes by that key, with that identity.
    fn send_by(&mut self, id: u64, key: Key, random: &mut Random) {
        let pieces = [Piece { address: 0, len: 8, lkey: key }];
        let flags = Flags { signaled: true, ..Flags::default() };
        let request = Request { id, operation: Operation::Send, data: Data::Pieces(&pieces), flags, target: None };
        let mut way = Way { rings: &mut self.rings, random, loss: 0 };
        self.engine.post_send_near(self.pairs[0].qpn, &request, &mut way).unwrap();
    }

    /// Takes what has come, and sends what there is.
    fn turn(&mut self, me: usize, now: u64, random: &mut Random) {
        let origin = |_| Some(origin_of(&PATH[1 - me]));
        self.engine.take_from_ring(&mut || Moment::new(now), &mut self.rings, 64, origin, None);
        self.engine.transmit(Moment::new(now), 64, &mut Way { rings: &mut self.rings, random, loss: 0 });
    }
}

#[test]
fn what_failed_behind_a_short_send_ends_the_queue_pair() {
    let (mut random, mut now) = (Random(3), 0);
    let mut ends = met(&mut now, &mut random);
    ends[1].offer(0);
    let [key, _] = ends[0].keys[0];
    for (id, key) in [(100, key), (101, Key::new(0x1234_5678)), (102, key)] {
        ends[0].send_by(id, key, &mut random);
    }
    let mut found = Vec::new();
    let mut lines = [Completion::default(); 8];
    for _ in 0..200 {
        now += 2000;
        for me in [0, 1] {
            ends[me].turn(me, now, &mut random);
        }
        let count = ends[0].engine.poll(ends[0].pairs[0].cq, &mut lines).unwrap();
        let sent = lines[..count].iter().filter(|line| line.ended == Ended::Send);
        found.extend(sent.map(|line| (line.id, line.status)));
    }
    assert_eq!(found, [(100, Status::Success), (101, Status::LocalProtection), (102, Status::Flushed)]);
}

#[test]
fn who_hears_of_some_asks_for_no_others_early() {
    let (mut random, mut now) = (Random(3), 0);
    let mut ends = met(&mut now, &mut random);
    let [key, _] = ends[0].keys[0];
    // The clock runs for long before that.
    now += 1_000_000_000;
    for round in 0..50 {
        (0..5).for_each(|_| ends[1].offer(0));
        (0..3).for_each(|id| ends[0].send_by(id, key, &mut random));
        ends[1].turn(1, now, &mut random);
        // These two are on their way when it hears of the three.
        (3..5).for_each(|id| ends[0].send_by(id, key, &mut random));
        for _ in 0..4 {
            ends[0].turn(0, now, &mut random);
        }
        assert_eq!(ends[0].engine.counters().repeated, 0, "round {round}");
        for _ in 0..8 {
            now += 1000;
            ends[1].turn(1, now, &mut random);
            ends[0].turn(0, now, &mut random);
        }
        ends[1].buffers[0] = ends[1].filled[0];
        let mut lines = [Completion::default(); 16];
        for end in &mut ends {
            let cq = end.pairs[0].cq;
            while end.engine.poll(cq, &mut lines).unwrap() > 0 {}
        }
    }
}

/// Programs (perftest) count on it: hardware acknowledges before a program can answer.
#[test]
fn a_send_ends_before_its_answer_comes_even_if_that_is_a_packet() {
    let (mut random, mut now) = (Random(3), 0);
    let mut ends = met(&mut now, &mut random);
    let (mut lines, mut orders) = ([Completion::default(); 8], Vec::new());
    for _ in 0..20 {
        (0..2).for_each(|me| ends[me].offer(0));
        let keys = [0, 1].map(|me: usize| ends[me].keys[0][0]);
        ends[0].send_by(1, keys[0], &mut random);
        ends[1].turn(1, now, &mut random);
        // As a packet: not by way of short SENDs.
        let pieces = [Piece { address: 0, len: 8, lkey: keys[1] }];
        let (operation, flags) = (Operation::Send, Flags { signaled: true, ..Flags::default() });
        let request = Request { id: 2, operation, data: Data::Pieces(&pieces), flags, target: None };
        let pair = ends[1].pairs[0].qpn;
        ends[1].engine.post_send(pair, &request).unwrap();
        for me in [1, 0, 1, 0] {
            ends[me].turn(me, now, &mut random);
        }
        now += 10_000;
        let cq = ends[0].pairs[0].cq;
        let count = ends[0].engine.poll(cq, &mut lines).unwrap();
        orders.push(lines[..count].iter().map(|line| line.ended).collect::<Vec<_>>());
        let cq = ends[1].pairs[0].cq;
        while ends[1].engine.poll(cq, &mut lines).unwrap() > 0 {}
        for end in &mut ends {
            end.buffers[0] = end.filled[0];
        }
    }
    assert!(orders.iter().all(|order| *order == [Ended::Send, Ended::Receive]), "{orders:?}");
}
