//! What falling asleep and waking up cost.

use super::*;

/// An RX queue as its program has it.
struct Receiver {
    host: HostRx,
    control: Region,
    kick: Arc<OwnedFd>,
    buffer: Iova,
}

impl Receiver {
    fn flag(&self) -> millrace_dma::Word32 {
        self.control.window().word32(CARD_SLEEPS_AT).unwrap()
    }

    fn is_marked(&self) -> bool {
        self.flag().load(Ordering::Relaxed) != 0
    }

    /// Makes room for a frame, and wakes the worker if it has said that it sleeps.
    fn post(&mut self) {
        assert!(self.host.post(self.buffer, 2048));
        self.host.flush();
        if Ringer::new(self.flag()).must_signal() {
            rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
        }
    }
}

/// Starts so many RX queues, which have no room yet. Those after the first get no frames from the port.
fn start_receivers(worker: &mut Worker, count: u32) -> Vec<Receiver> {
    let mut start = |index| {
        let queue = Arc::new(QueueStatus::new(QueueId::rx(index), Engine::Medusa));
        let detached = Detached { port_queues: Vec::new(), rx: vec![RxSlot::new(queue, 0, index)], tx: Vec::new() };
        worker.carry_out(Command::Adopt(Box::new(detached)));
        let (memory, control) = (Region::heap(0x2000), Region::heap(PAGE_SIZE));
        let domain = Arc::new(Domain::new());
        let at = domain.map(memory.window().clone(), Access::ReadWrite, None).unwrap();
        let descriptors = memory.window().slots64(0, ENTRIES).unwrap();
        let headers = memory.window().slots32(0x1000, ENTRIES).unwrap();
        let doorbell = control.window().word64(DOORBELL_AT).unwrap();
        let update = memory.window().word64(0x1400).unwrap();
        let host = HostRx::new(descriptors.clone(), headers.clone(), doorbell.clone(), update.clone()).unwrap();
        let rings = RxRings { descriptors, descriptors_at: at, headers, doorbell, update };
        let engine = CardRx::new(rings, FrameLimits::ETHERNET, Iotlb::new(domain)).unwrap();
        let kick = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let opener =
            Opener { id: 1, owner: 7, control: control.window().clone(), kick: Some(kick.clone()), call: None };
        worker.carry_out(Command::StartRx(index, Box::new(RxEngine::Medusa(engine)), None, vec![opener], false));
        Receiver { host, control, kick, buffer: at.plus(0x1800) }
    };
    (0..count).map(&mut start).collect()
}

/// A worker whose port loops back, with so many pairs.
fn looped(count: u32) -> (Worker, Vec<Program>, Vec<Receiver>) {
    let (mut worker, programs) = scene(&vec![7; count as usize], Box::new(NullPort::new()));
    let receivers = start_receivers(&mut worker, count);
    worker.carry_out(Command::Shape(0, crate::shard::Shape { loopback: true, ..Default::default() }));
    (worker, programs, receivers)
}

fn sleeps(worker: &Worker) -> u64 {
    worker.counts.sleeps.load(Count::Relaxed)
}

#[test]
fn only_queues_for_whose_room_somebody_waits_say_that_the_card_sleeps() {
    let (mut worker, mut programs, mut receivers) = looped(64);
    // Blocked in two rings: nobody has posted a buffer there.
    [3, 60].iter().for_each(|&at: &usize| programs[at].post(1));
    (0..10).for_each(|_| _ = worker.pass());
    assert!(!receivers.iter().any(Receiver::is_marked), "it is awake");
    let (done, wait) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        worker.fall_asleep();
        done.send(()).unwrap();
        worker
    });
    let begin = Instant::now();
    while !(receivers[3].is_marked() && receivers[60].is_marked()) {
        assert!(begin.elapsed() < Duration::from_secs(60), "nobody says that the card sleeps");
        std::thread::yield_now();
    }
    let marked = receivers.iter().filter(|receiver| receiver.is_marked()).count();
    assert_eq!(marked, 2);
    // Room where nobody waits for it wakes nobody.
    receivers[5].post();
    assert!(wait.recv_timeout(Duration::from_millis(50)).is_err(), "it was woken for nothing");
    receivers[60].post();
    wait.recv_timeout(Duration::from_secs(60)).expect("a kick that wakes");
    let mut worker = sleeper.join().unwrap();
    assert_eq!(sleeps(&worker), 1);
    assert!(!receivers.iter().any(Receiver::is_marked));
    pass_until(&mut worker, &mut programs, 0, |programs| programs[60].passed() == 1);
    assert_eq!(programs[3].passed(), 0);
}

#[test]
fn who_finds_no_room_in_the_last_look_before_a_sleep_keeps_the_worker_awake() {
    let (mut worker, mut programs, mut receivers) = looped(2);
    programs[1].post(1);
    // The first to see the frame is the pass after the flags.
    worker.fall_asleep();
    assert_eq!((sleeps(&worker), receivers[1].is_marked()), (0, false));
    // Again: it is known by now. The mailbox wakes the worker at once.
    worker.mailbox.rouse();
    worker.fall_asleep();
    assert_eq!(sleeps(&worker), 1);
    receivers[1].post();
    pass_until(&mut worker, &mut programs, 0, |programs| programs[1].passed() == 1);
    // And then nobody waits any more, once that was noticed.
    for _ in 0..2 {
        worker.mailbox.rouse();
        worker.fall_asleep();
    }
    assert_eq!((sleeps(&worker), worker.shard.wants_more()), (3, false));
}

#[test]
fn queues_that_run_are_counted_as_they_start_stop_and_move() {
    let (mut worker, _programs, _receivers) = looped(3);
    let counted = |worker: &Worker| worker.shard.receiving_queues();
    assert_eq!(counted(&worker), 3);
    (0..2).for_each(|_| assert!(worker.carry_out(Command::Halt(QueueId::rx(1))).done));
    assert_eq!(counted(&worker), 2);
    let moved = crate::shard::Detach { port_queues: Vec::new(), queues: vec![QueueId::rx(0), QueueId::rx(1)] };
    let detached = worker.carry_out(Command::Detach(0, moved)).detached.unwrap();
    assert_eq!(counted(&worker), 1);
    worker.carry_out(Command::Adopt(detached));
    assert_eq!(counted(&worker), 2);
}

/// A worker with so many queues of each direction that have been quiet for long.
fn quiet(count: u32) -> (Worker, Vec<Program>, Vec<Receiver>) {
    let (mut worker, mut programs) = scene(&vec![7; count as usize], Box::new(NullPort::new()));
    let receivers = start_receivers(&mut worker, count);
    if count as usize > 8 {
        cool(&mut worker, &mut programs, 0);
    }
    (worker, programs, receivers)
}

/// Prints what falling asleep and waking up costs. Under callgrind (`--toggle-collect='*asleep::counted*'`) the instructions are
/// those of `TIMES`.
#[test]
#[ignore = "prints figures for docs/decisions/0048-sleep-flags.md"]
fn cost_of_a_sleep() {
    const TIMES: u32 = 1000;
    let count: u32 = std::env::var("QUEUES").map_or(4096, |count| count.parse().unwrap());
    let (mut worker, _programs, _receivers) = quiet(count);
    let begin = Instant::now();
    for _ in 0..TIMES {
        // So that it wakes up at once.
        worker.mailbox.rouse();
        counted(&mut worker);
    }
    let sleeps = worker.counts.sleeps.load(Count::Relaxed);
    println!("{count} queue pairs: {:?} for {sleeps} sleeps", begin.elapsed());
}

#[inline(never)]
fn counted(worker: &mut Worker) {
    worker.fall_asleep();
}
