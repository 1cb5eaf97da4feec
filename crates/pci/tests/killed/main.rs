//! Cards that are killed, with SIGKILL and at any moment, as processes of their own: their keeper has another one, and machines notice a pause.

#[expect(dead_code, reason = "shared with the other tests")]
#[path = "../bytes.rs"]
mod bytes;
mod corners;
#[expect(dead_code, reason = "shared with the other tests")]
#[path = "../driver.rs"]
mod driver;
#[expect(dead_code, reason = "shared with the other tests")]
#[path = "../machine.rs"]
mod machine;

use driver::{Queue, exchange, frame, pair};
use machine::{MEMORY, Machine, PATIENCE, wait_until};
use millrace_abi::name::{CardOptions, DeviceName};
use millrace_abi::pci;
use millrace_abi::queue::QueueId;
use millrace_abi::register::map::{Component, dma_base};
use millrace_abi::register::medusa as m;
use millrace_card::Card;
use millrace_driver::Driver;
use millrace_pci::{Functions, Keeper, Kept, KeptEnd};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the card is made of.
const OPTIONS: &str = "MILLRACE_TEST_KEPT";
/// How many cards are killed, if not these.
const KILLS: &str = "MILLRACE_TEST_KILLS";
const USUAL_KILLS: u32 = 20;

/// The card that there is.
fn pid_of(served: &Served) -> Pid {
    Pid::from_raw(served.card.load(Ordering::Relaxed) as i32).unwrap()
}

fn options_of(text: &str) -> CardOptions {
    let Ok(DeviceName::Embedded(options)) = format!("embedded:{text}").parse() else { panic!("{text}") };
    options
}

#[test]
#[ignore = "the card that the other tests kill"]
fn card() {
    let Ok(made_of) = std::env::var(OPTIONS) else { return };
    let (count, options) = made_of.split_once(' ').unwrap();
    match options {
        "queues=1,cpu=0" => std::process::exit(3),
        "queues=1,cpu=1" => std::process::abort(),
        _ => {}
    }
    let (options, count) = (options_of(options), count.parse().unwrap());
    let kept = Kept::from_standard_input().unwrap();
    let mut functions = Functions::kept(&options, &PathBuf::from("/nowhere/pci"), count, kept).unwrap();
    let driver = Arc::new(Driver::embedded(Card::new(&options).unwrap()).unwrap());
    functions.start(&driver).unwrap();
    // Until the keeper ends.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// A keeper, and its card.
struct Served {
    folder: tempfile::TempDir,
    functions: u32,
    card: Arc<AtomicU32>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<KeptEnd>>,
    random: u64,
}

impl Served {
    fn new(options: &str, functions: u32) -> Self {
        Self::with(options, functions, |_| {})
    }

    /// With this before each card but the first.
    fn with(options: &str, functions: u32, mut before: impl FnMut(u32) + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keeper = Keeper::listen(&options_of(options), &folder.path().join("pci"), functions, None).unwrap();
        let (card, ends) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (shown, asked, made_of) = (card.clone(), ends.clone(), format!("{functions} {options}"));
        let (says, said) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut number = 0;
            let launch = |socket: OwnedFd| -> std::io::Result<Child> {
                before(number);
                number += 1;
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["--ignored", "--exact", "card"]).env(OPTIONS, &made_of);
                let child = command.stdin(Stdio::from(socket)).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
                shown.store(child.id(), Ordering::Relaxed);
                let _ = says.send(());
                Ok(child)
            };
            keeper.run(launch, || asked.load(Ordering::Relaxed)).unwrap()
        });
        said.recv().unwrap();
        Self { folder, functions, card, ends, thread: Some(thread), random: 88_172_645_463_325_252 }
    }

    fn path(&self, index: usize) -> PathBuf {
        let path = self.folder.path().join("pci");
        if self.functions > 1 { path.with_extension(index.to_string()) } else { path }
    }

    fn machine(&self, index: usize) -> Machine {
        let mut machine = Machine::at(&self.path(index));
        machine.map_memory();
        machine.set_master(true);
        machine
    }

    /// Returns when there is another card, which may not be ready.
    fn kill(&self) {
        let before = pid_of(self);
        kill_process(before, Signal::KILL).unwrap();
        wait_until("another card", || pid_of(self) != before);
    }

    fn random(&mut self, most: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % most
    }

    fn end(&mut self) -> Option<KeptEnd> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(|thread| thread.join().unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}

/// Frames that came, were lost in a card, and came twice.
#[derive(Default)]
struct Tally {
    came: AtomicU64,
    lost: AtomicU64,
    twice: AtomicU64,
}

/// Sends numbered frames, each whole, until `ends`; those that lie in the card when it is killed may be lost, or come twice.
fn traffic(machine: &mut Machine, (tx, rx): (&mut Queue, &mut Queue), tally: &Tally, ends: &AtomicBool) {
    let (mut sent, mut next, mut moved) = (0, 0, Instant::now());
    while !ends.load(Ordering::Relaxed) || next < sent {
        while !ends.load(Ordering::Relaxed) && sent - next < 32 && tx.send(machine, &frame(sent)) {
            sent += 1;
        }
        tx.ring(machine);
        while let Some(got) = rx.take(machine) {
            let number = u64::from_le_bytes(got[14..22].try_into().unwrap());
            assert_eq!(got, frame(number), "a frame that is not whole");
            assert!(number < sent, "a frame that nobody has sent");
            moved = Instant::now();
            if number < next {
                tally.twice.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            tally.lost.fetch_add(number - next, Ordering::Relaxed);
            tally.came.fetch_add(1, Ordering::Relaxed);
            next = number + 1;
        }
        // All that were under way are gone, when the queue is empty and nothing comes.
        if moved.elapsed() > PATIENCE / 4 && tx.is_running(machine) && next < sent {
            tally.lost.fetch_add(sent - next, Ordering::Relaxed);
            (next, moved) = (sent, Instant::now());
        }
        assert!(moved.elapsed() < PATIENCE, "nothing comes any more");
    }
}

#[test]
fn frames_go_on_though_cards_are_killed() {
    let kills = std::env::var(KILLS).map_or(USUAL_KILLS, |kills| kills.parse().unwrap());
    let mut served = Served::new("queues=2", 2);
    let (ends, tallies) = (AtomicBool::new(false), [Tally::default(), Tally::default()]);
    let mut gaps = Vec::new();
    std::thread::scope(|scope| {
        for (index, tally) in tallies.iter().enumerate() {
            let (ends, served) = (&ends, &served);
            let mut machine = served.machine(index);
            scope.spawn(move || {
                let (mut tx, mut rx) = pair(&mut machine, 0);
                traffic(&mut machine, (&mut tx, &mut rx), tally, ends);
            });
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let came = || tallies.each_ref().map(|tally| tally.came.load(Ordering::Relaxed));
            let mut random = 1_u64;
            for _ in 0..kills {
                let before = came();
                wait_until("frames that move", || came().iter().zip(before).all(|(now, before)| *now > before + 50));
                random = random.wrapping_mul(6_364_136_223_846_793_005_u64).wrapping_add(1);
                std::thread::sleep(Duration::from_micros((random >> 33) % 20_000));
                let begin = Instant::now();
                served.kill();
                let before = came();
                wait_until("frames of the next card", || came().iter().zip(before).all(|(now, before)| *now > before));
                gaps.push(begin.elapsed());
            }
        }));
        ends.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    gaps.sort_unstable();
    for tally in &tallies {
        let [came, lost, twice] = [&tally.came, &tally.lost, &tally.twice].map(|count| count.load(Ordering::Relaxed));
        println!(
            "{kills} kills: {came} frames came, {lost} lost, {twice} twice; pause {:?}, at most {:?}",
            gaps[gaps.len() / 2],
            gaps[gaps.len() - 1]
        );
        // What lay in the card, a burst and not the ring.
        assert!(lost + twice <= u64::from(kills) * 32);
    }
    assert!(matches!(served.end(), Some(KeptEnd::Asked(_))));
}

/// Everything that a machine can read, but for what a kill changes: in which word it is noted how far the card is, and that interrupts wait, which may have been lost.
fn seen(machine: &mut Machine) -> Vec<Vec<u8>> {
    let mut all = machine.seen();
    all[1].truncate(4096);
    let pages = all.last_mut().unwrap();
    pages.chunks_exact_mut(4096).for_each(|page| page[0x140..0x158].fill(0));
    all
}

#[test]
fn a_machine_finds_everything_as_it_was() {
    let served = Served::new("queues=2", 1);
    let mut machine = served.machine(0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    machine.write32(tx.register(m::COUNTER_COMMAND), m::COUNTERS_STROBE_AND_RESET);
    exchange(&mut machine, &mut tx, &mut rx, 10);
    machine.write32(tx.register(m::COUNTER_COMMAND), m::COUNTERS_STROBE);
    // One that has stopped, and keeps what was written.
    Queue::start(&mut machine, QueueId::tx(1), 2 * driver::ROOM).unwrap().stop(&mut machine);
    machine.write64(m::DESC_BASE.at(dma_base(QueueId::rx(1)).unwrap()), 0x1234_5000);
    let mac = Component::RxMac(0).base().unwrap();
    machine.write64(mac + 0x88, 0x1_0203_0405_0607);
    machine.write32(mac + 0x34, 9000);
    machine.write32(0x1c, 0xdead_beef);
    machine.write_config(0x10, &[0xff; 4]);
    machine.client.region_write(pci::MSIX_BAR, 0, &[0x11; 16]).unwrap();
    let events = [(); 4].map(|()| eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let fds = events.each_ref().map(AsRawFd::as_raw_fd);
    machine.client.set_irqs(2, 0x20 | 4, 0, 4, &fds).unwrap();
    machine.client.set_irqs(2, 0x08 | 1, 0, 1, &[]).unwrap();
    let clear = |event: &OwnedFd| rustix::io::read(event, &mut [0; 8]).is_ok();
    for _ in 0..3 {
        events.iter().for_each(|event| while clear(event) {});
        let before = seen(&mut machine);
        served.kill();
        for (place, (now, before)) in seen(&mut machine).iter().zip(&before).enumerate() {
            let other = (0..now.len()).find(|&at| now[at] != before[at]);
            assert_eq!(other.map(|at| (at, now[at], before[at])), None, "of what is read in place {place}");
        }
        // One may have been under way: all that can, come.
        wait_until("interrupts", || clear(&events[1]));
        wait_until("interrupts", || clear(&events[3]));
        assert!(!clear(&events[0]), "a vector that is masked");
    }
    machine.client.set_irqs(2, 0x10 | 1, 0, 1, &[]).unwrap();
    assert!(clear(&events[0]), "it waited");
    exchange(&mut machine, &mut tx, &mut rx, 300);
    machine.write32(tx.register(m::COUNTER_COMMAND), m::COUNTERS_STROBE);
    assert!(machine.read64(tx.register(m::PASSED_FRAMES)) >= 310, "what the machine has seen counted stays");
    // Memory can be taken away, and queues started, as in the first card.
    machine.client.dma_unmap(MEMORY, machine::MEMORY_LEN as u64).unwrap();
    assert!(!tx.is_running(&mut machine));
    served.kill();
    assert!(!tx.is_running(&mut machine));
    machine.map_memory();
    let (mut tx, mut rx) = pair(&mut machine, 1);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    served.kill();
    exchange(&mut machine, &mut tx, &mut rx, 100);
    drop(machine);
    // The next one finds the function as the first did.
    let mut machine = served.machine(0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
}

/// The client ends when an answer is missing, or there is one too many.
#[test]
fn each_access_is_answered_once() {
    let mut served = Served::new("queues=1", 1);
    let mut machine = served.machine(0);
    let (ends, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0_u32;
            let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            while !ends.load(Ordering::Relaxed) {
                number += 1;
                machine.write32(0x20, number);
                assert_eq!(machine.read32(0x20), number);
                machine.write_config(0x3c, &[number as u8]);
                assert_eq!(machine.read_config(0x3c) as u8, number as u8);
                machine.client.set_irqs(2, 0x20 | 4, 0, 1, &[event.as_raw_fd()]).unwrap();
                let second = machine.memory.fd().unwrap().as_raw_fd();
                machine.client.dma_map(0, MEMORY << 1, 4096, second).unwrap();
                machine.client.dma_unmap(MEMORY << 1, 4096).unwrap();
                answered.fetch_add(7, Ordering::Relaxed);
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..USUAL_KILLS {
                let before = answered.load(Ordering::Relaxed);
                wait_until("answers", || answered.load(Ordering::Relaxed) > before);
                std::thread::sleep(Duration::from_micros(served.random(3000)));
                served.kill();
            }
            let before = answered.load(Ordering::Relaxed);
            wait_until("answers of the last", || answered.load(Ordering::Relaxed) > before + 7);
        }));
        ends.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    println!("{} accesses", answered.load(Ordering::Relaxed));
}

#[test]
fn machines_come_and_go_and_wait_while_there_is_no_card() {
    let served = Served::with("queues=1", 1, |number| {
        if number > 0 {
            std::thread::sleep(Duration::from_millis(500));
        }
    });
    let machine = served.machine(0);
    kill_process(pid_of(&served), Signal::KILL).unwrap();
    // It goes while there is none, and another one comes.
    drop(machine);
    let mut machine = served.machine(0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    served.kill();
    exchange(&mut machine, &mut tx, &mut rx, 100);
}

#[test]
fn a_card_that_ends_by_itself_is_the_last_and_so_is_the_tenth_that_does_not_begin() {
    let mut served = Served::new("queues=1,cpu=0", 1);
    let thread = served.thread.take().unwrap();
    assert!(matches!(thread.join().unwrap(), KeptEnd::By(status) if status.code() == Some(3)));
    let starts = Arc::new(AtomicU32::new(0));
    let count = starts.clone();
    let mut served = Served::with("queues=1,cpu=1", 1, move |number| count.store(number + 1, Ordering::Relaxed));
    let thread = served.thread.take().unwrap();
    assert!(matches!(thread.join().unwrap(), KeptEnd::Failing(status) if status.code().is_none()));
    assert_eq!(starts.load(Ordering::Relaxed), 10);
    assert!(!served.path(0).exists(), "its socket goes with the keeper");
}

#[test]
fn only_rings_whose_place_is_noted_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let refused = Keeper::listen(&options_of("queues=2,engine=dd"), &folder.path().join("pci"), 1, None);
    let said = refused.map(drop).unwrap_err().to_string();
    assert!(said.contains("Medusa only"), "{said}");
}
