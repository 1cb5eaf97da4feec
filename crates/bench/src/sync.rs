//! `millrace bench sync`: what one packet costs at each step (the thesis's tables 4.1 and 4.2).
//!
//! For 10,000 single packets, the way to the synchronisation, the synchronisation, and the way back:
//!
//! | step | before | sync | after |
//! |---|---|---|---|
//! | A preparing TX | nothing but the clock | `get`, which learns from the card how much room there is | filling the slot |
//! | B sending TX | `put` | `flush`, which tells the card | nothing but the clock |
//! | C receiving a packet | nothing but the clock | a `get` that finds a packet | reading it, and giving it back |
//! | D receiving nothing | nothing but the clock | a `get` that finds nothing | giving back an empty burst |
//!
//! The columns are cut at the public calls of the host library, so `sync` contains the library's own work around the
//! synchronisation. Every column contains one reading of the clock, whose cost is printed on standard error.

use std::hint;

use millrace_abi::queue::{Engine, Mode, QueueId};
use millrace_packet::structured::{self, Checker, Sequence, Stamping};
use millrace_tool::clock::Moment;
use millrace_tool::distribution::Distribution;
use millrace_tool::echo::cannot_receive;
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{RxQueue, TxQueue};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::progress::Steps;
use millrace_tool::{send, stop};

use crate::choice::{engines, first_queue, modes};
use crate::latency::one_size;
use crate::rig::{Cores, Rig};
use millrace_tool::trips::no_room;

/// Packets unless `--count` says otherwise.
const DEFAULT_COUNT: u64 = 10_000;

/// Packets before those that count.
const WARM_UP: u64 = 500;

/// How long a packet is given to arrive before step C looks for it, in ns; again, if that was too short.
const FLIGHT: u64 = 5_000;

/// A packet that is not back after so many nanoseconds is lost.
const LOST_AFTER: u64 = 5_000_000_000;

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores) -> Result<(), Failure> {
    let size = one_size(shared, 64)?;
    let count = shared.count.unwrap_or(DEFAULT_COUNT);
    let output = Output::new(shared.json);
    let engines = engines(shared);
    let count_of = |&engine: &Option<Engine>| modes(shared, engine).len() as u64;
    let steps = Steps::new("sync", engines.iter().map(count_of).sum());
    for engine in engines {
        let rig = Rig::start(shared, cores, engine, "loopback")?;
        for mode in modes(shared, engine) {
            steps.next(format!("{} {mode}", engine.map_or_else(String::new, |engine| engine.to_string())));
            let case = measure(&rig.in_mode(mode), mode, size, count, first_queue(shared))?;
            output
                .rows(&format!("{} packets of {size} bytes, {}, {mode}", case.done, case.engine), &case.rows(size))?;
            if case.done < count {
                return Err(Failure::Interrupted);
            }
        }
        rig.end()?;
    }
    Ok(())
}

struct Case {
    engine: Engine,
    mode: Mode,
    done: u64,
    steps: [Split; 4],
}

/// Letters and meanings of the steps.
const STEPS: [(&str, &str); 4] =
    [("A", "preparing TX"), ("B", "sending TX"), ("C", "receiving a packet"), ("D", "receiving nothing")];

impl Case {
    fn rows(&self, size: u16) -> Vec<Row> {
        let row = |((step, meaning), split): ((&str, &str), &Split)| {
            let row = Row::new()
                .tag("bench", "sync")
                .tag("engine", self.engine)
                .tag("mode", self.mode)
                .cell("size", millrace_tool::output::Cell::Count(u64::from(size)))
                .count("count", self.done)
                .text("step", step)
                .text("meaning", meaning);
            split.cells(row)
        };
        STEPS.into_iter().zip(&self.steps).map(row).collect()
    }
}

/// Four moments of one step.
///
/// Cut at public calls. When the host library can say when its synchronisation itself began and ended, those moments
/// replace
/// `sync_begins` and `sync_ends` here, and the table at the top of this file changes accordingly.
#[derive(Clone, Copy)]
struct Laps {
    begins: Moment,
    sync_begins: Moment,
    sync_ends: Moment,
    ends: Moment,
}

/// The times of one step, split at the synchronisation.
#[derive(Default)]
struct Split {
    before: Distribution,
    sync: Distribution,
    after: Distribution,
}

impl Split {
    fn record(&mut self, laps: Laps) {
        self.before.record(laps.sync_begins.nanos_since(laps.begins));
        self.sync.record(laps.sync_ends.nanos_since(laps.sync_begins));
        self.after.record(laps.ends.nanos_since(laps.sync_ends));
    }

    fn cells(&self, row: Row) -> Row {
        row.maybe("before_ns", self.before.mean(), 1)
            .maybe("before_ns_sd", self.before.deviation(), 1)
            .maybe("sync_ns", self.sync.mean(), 1)
            .maybe("sync_ns_sd", self.sync.deviation(), 1)
            .maybe("after_ns", self.after.mean(), 1)
            .maybe("after_ns_sd", self.after.deviation(), 1)
    }
}

fn measure(rig: &Rig, mode: Mode, size: u16, count: u64, queue: u32) -> Result<Case, Failure> {
    let session = rig.session()?;
    let engine = session.engine(QueueId::tx(queue))?;
    let (mut rx, mut tx) = rig.pair(&session)?;
    let mut case = Case { engine, mode, done: 0, steps: Default::default() };
    let mut packet = Packet { lens: [size], next: Sequence::ZERO, checker: Checker::new(Stamping::Off) };
    for number in 0..WARM_UP + count {
        if stop::asked() {
            break;
        }
        let laps = packet.go(&mut rx, &mut tx)?;
        if number >= WARM_UP {
            case.steps.iter_mut().zip(laps).for_each(|(split, laps)| split.record(laps));
            case.done += 1;
        }
    }
    send::finish(tx)?;
    if packet.checker.findings().is_clean() {
        Ok(case)
    } else {
        Err(Failure::Found(format!("packets came back wrong: {:?}", packet.checker.findings())))
    }
}

/// The packet that goes through all steps.
struct Packet {
    lens: [u16; 1],
    next: Sequence,
    checker: Checker,
}

impl Packet {
    fn go(&mut self, rx: &mut RxQueue, tx: &mut TxQueue) -> Result<[Laps; 4], Failure> {
        let nothing = self.receive_nothing(rx)?;
        let (prepare, send) = self.send(tx)?;
        let receive = self.receive(rx)?;
        self.next = self.next.next();
        Ok([prepare, send, receive, nothing])
    }

    /// Steps A and B.
    fn send(&mut self, tx: &mut TxQueue) -> Result<(Laps, Laps), Failure> {
        let begins = Moment::now();
        let sync_begins = Moment::now();
        let slot = tx.get(&self.lens).doing(|| "cannot get room for a packet".to_owned())?;
        let sync_ends = Moment::now();
        let mut slot = slot.ok_or_else(no_room)?;
        structured::fill(&mut slot[0], self.next);
        let prepared = Moment::now();
        slot.put();
        let flush_begins = Moment::now();
        send::flush(tx)?;
        let flush_ends = Moment::now();
        let prepare = Laps { begins, sync_begins, sync_ends, ends: prepared };
        let send = Laps { begins: prepared, sync_begins: flush_begins, sync_ends: flush_ends, ends: Moment::now() };
        Ok((prepare, send))
    }

    /// Step C. A `get` that comes too early is no measurement of it, so the packet is given time first, and again if
    /// that was not enough.
    fn receive(&mut self, rx: &mut RxQueue) -> Result<Laps, Failure> {
        let sent = Moment::now();
        while Moment::now().nanos_since(sent) < LOST_AFTER {
            wait(FLIGHT);
            let begins = Moment::now();
            let sync_begins = Moment::now();
            let burst = rx.get(1).doing(cannot_receive)?;
            let sync_ends = Moment::now();
            if !burst.is_empty() {
                let _ = self.checker.check(&burst[0]);
                drop(burst);
                return Ok(Laps { begins, sync_begins, sync_ends, ends: Moment::now() });
            }
        }
        Err(Failure::Found("a packet did not come back within five seconds".to_owned()))
    }

    /// Step D.
    fn receive_nothing(&mut self, rx: &mut RxQueue) -> Result<Laps, Failure> {
        let begins = Moment::now();
        let sync_begins = Moment::now();
        let burst = rx.get(1).doing(cannot_receive)?;
        let sync_ends = Moment::now();
        if !burst.is_empty() {
            return Err(Failure::Found("a packet came that was not sent; use a card that nobody else uses".to_owned()));
        }
        drop(burst);
        Ok(Laps { begins, sync_begins, sync_ends, ends: Moment::now() })
    }
}

fn wait(nanos: u64) {
    let start = Moment::now();
    while Moment::now().nanos_since(start) < nanos {
        hint::spin_loop();
    }
}
