//! Queues that a machine starts: frames, doorbells, interrupts, and every way to lose them.

use super::driver::{Queue, ROOM, exchange, frame, pair};
use super::machine::{MEMORY, MEMORY_LEN, Machine, PATIENCE, Served, wait_until};
use millrace_abi::control::{QueueState, STATE_AT};
use millrace_abi::pci;
use millrace_abi::queue::QueueId;
use millrace_abi::register::medusa as m;
use millrace_dma::Ordering;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

const TRIGGER_EVENTS: u32 = 0x20 | 4;

fn state(machine: &Machine, id: QueueId) -> Option<QueueState> {
    let word = machine.doorbells.window().word32(pci::doorbell(id) as usize + STATE_AT).unwrap();
    QueueState::from_word(word.load(Ordering::Relaxed))
}

#[test]
fn frames_go_both_ways_and_doorbells_are_stores() {
    let served = Served::new("queues=2,poll", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 1);
    let before = served.counters(0).messages;
    let by_message = exchange(&mut machine, &mut tx, &mut rx, 3000);
    assert_eq!((by_message, served.counters(0).messages - before), (0, 0), "no message for 3000 frames");
    assert_eq!(state(&machine, QueueId::tx(1)), Some(QueueState::Running));
    tx.stop(&mut machine);
    rx.stop(&mut machine);
    // Again, where it ended.
    let (mut tx, mut rx) = pair(&mut machine, 1);
    exchange(&mut machine, &mut tx, &mut rx, 300);
}

#[test]
fn a_worker_that_sleeps_is_woken_by_a_register() {
    let served = Served::new("queues=1,spin=20", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    for number in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        assert!(tx.send(&machine, &frame(number)));
        tx.ring(&mut machine);
        let mut got = None;
        wait_until("a frame", || {
            got = rx.take(&mut machine);
            got.is_some()
        });
        assert_eq!(got, Some(frame(number)));
    }
}

#[test]
fn a_register_does_not_take_a_doorbell_back() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    // As a write that has been on its way for long: it wakes, and that is all.
    let before = machine.read64(tx.register(m::SDP));
    machine.write64(tx.register(m::SDP), before.wrapping_sub(5) & 63);
    assert_eq!(machine.read64(tx.register(m::SDP)), before);
    std::thread::sleep(Duration::from_millis(20));
    assert!(rx.take(&mut machine).is_none(), "a frame that was sent before");
    exchange(&mut machine, &mut tx, &mut rx, 100);
}

#[test]
fn every_function_has_its_queues() {
    let served = Served::new("queues=4", 2);
    let (mut one, mut two) = (Machine::new(&served, 0), Machine::new(&served, 1));
    let (mut one_tx, mut one_rx) = pair(&mut one, 1);
    let (mut two_tx, mut two_rx) = pair(&mut two, 1);
    exchange(&mut one, &mut one_tx, &mut one_rx, 500);
    exchange(&mut two, &mut two_tx, &mut two_rx, 500);
    drop(one);
    exchange(&mut two, &mut two_tx, &mut two_rx, 500);
    assert!(Queue::start(&mut two, QueueId::rx(2), 0).is_none(), "it has two");
}

fn came(event: &OwnedFd, most: Duration) -> bool {
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    let ready = matches!(poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&most)), Ok(1));
    ready && rustix::io::read(event, &mut [0; 8]).is_ok()
}

#[test]
fn who_sleeps_is_woken_by_an_interrupt() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    let events = [(); 2].map(|()| eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let fds = events.each_ref().map(AsRawFd::as_raw_fd);
    machine.client.set_irqs(2, TRIGGER_EVENTS, 0, 2, &fds).unwrap();
    // The queues have said that they run.
    while came(&events[0], Duration::from_millis(50)) {}
    for number in 0..10 {
        assert!(rx.sleep(&machine), "nothing is there");
        assert!(tx.send(&machine, &frame(number)));
        tx.ring(&mut machine);
        assert!(came(&events[0], PATIENCE), "vector 0 is that of RX queue 0");
        let mut got = None;
        wait_until("a frame", || {
            got = rx.take(&mut machine);
            got.is_some()
        });
    }
    // Whoever does not sleep is not woken.
    exchange_quietly(&mut machine, &mut tx, &mut rx);
    assert!(!came(&events[0], Duration::from_millis(20)));
    assert!(served.counters(0).interrupts >= 10);
    // One that comes before there is a vector waits.
    machine.client.set_irqs(2, 0x20 | 1, 0, 0, &[]).unwrap();
    let before = served.counters(0).pending_interrupts;
    assert!(rx.sleep(&machine));
    assert!(tx.send(&machine, &frame(1)));
    tx.ring(&mut machine);
    served.wait_for(0, "an interrupt that waits", |counters| counters.pending_interrupts == before + 1);
    let mut pending = [0; 1];
    machine.client.region_read(pci::MSIX_BAR, 4096, &mut pending).unwrap();
    assert_eq!(pending, [1]);
    machine.client.set_irqs(2, TRIGGER_EVENTS, 0, 2, &fds).unwrap();
    assert!(came(&events[0], PATIENCE));
}

#[test]
fn a_flood_of_interrupts_holds_nobody_up() {
    let served = Served::new("queues=2", 2);
    let (mut hostile, mut other) = (Machine::new(&served, 0), Machine::new(&served, 1));
    let (mut tx, mut rx) = pair(&mut hostile, 0);
    let (mut other_tx, mut other_rx) = pair(&mut other, 0);
    // Events that are full, so that whoever writes to them waits for ever.
    let events = [(); 2].map(|()| eventfd(0, EventfdFlags::empty()).unwrap());
    events.iter().for_each(|event| assert!(rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).is_ok()));
    let fds = events.each_ref().map(AsRawFd::as_raw_fd);
    hostile.client.set_irqs(2, TRIGGER_EVENTS, 0, 2, &fds).unwrap();
    let before = served.counters(0).interrupts;
    for number in 0..300 {
        // By message, masked and unmasked, and by each frame that comes to somebody who sleeps.
        hostile.client.set_irqs(2, 0x20 | 1, 0, 2, &[]).unwrap();
        hostile.client.set_irqs(2, 0x08 | 1, 0, 2, &[]).unwrap();
        hostile.client.set_irqs(2, 0x10 | 1, 0, 2, &[]).unwrap();
        rx.sleep(&hostile);
        tx.sleep(&hostile);
        assert!(tx.send(&hostile, &frame(number)));
        tx.ring(&mut hostile);
        exchange(&mut other, &mut other_tx, &mut other_rx, 10);
        wait_until("a frame of its own", || rx.take(&mut hostile).is_some());
    }
    assert!(served.counters(0).interrupts >= before + 600, "each of them was sent");
    // The next machine has nothing to do with it.
    drop(hostile);
    let mut next = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut next, 0);
    exchange(&mut next, &mut tx, &mut rx, 100);
}

fn exchange_quietly(machine: &mut Machine, tx: &mut Queue, rx: &mut Queue) {
    while rx.take(machine).is_some() {}
    exchange(machine, tx, rx, 100);
}

#[test]
fn without_bus_mastering_nothing_starts_and_what_runs_stops() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::bare(&served, 0);
    machine.map_memory();
    assert!(Queue::start(&mut machine, QueueId::rx(0), 0).is_none());
    assert_eq!(served.counters(0).starts_without_bus_master, 1);
    machine.set_master(true);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    machine.set_master(false);
    assert!(!tx.is_running(&mut machine) && !rx.is_running(&mut machine));
    assert_eq!(state(&machine, QueueId::rx(0)), Some(QueueState::Stopped));
    // What is posted now nobody reads.
    assert!(tx.send(&machine, &frame(0)));
    let pointers = tx.pointers(&machine);
    tx.ring(&mut machine);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(tx.pointers(&machine), pointers);
    machine.set_master(true);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
}

#[test]
fn memory_with_the_rings_is_taken_away_when_the_queues_have_stopped() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    // The rings go: the queues stop first.
    for number in 0..20 {
        assert!(tx.send(&machine, &frame(number)));
    }
    tx.ring(&mut machine);
    machine.client.dma_unmap(MEMORY, MEMORY_LEN as u64).unwrap();
    assert!(!tx.is_running(&mut machine) && !rx.is_running(&mut machine));
    assert_eq!(served.counters(0).stops_by_machine, 1);
    let before = machine.get(0, 2 * ROOM as usize);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(machine.get(0, 2 * ROOM as usize), before, "nobody writes there any more");
    assert!(Queue::start(&mut machine, QueueId::rx(0), 0).is_none(), "there is no memory");
    machine.map_memory();
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
}

#[test]
fn a_buffer_outside_memory_stops_its_queue_and_nothing_else() {
    let served = Served::new("queues=2", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut bad, _rx) = pair(&mut machine, 0);
    let (mut tx, mut rx) = pair(&mut machine, 1);
    bad.post_at(&machine, MEMORY + MEMORY_LEN as u64 - 10, 64);
    bad.ring(&mut machine);
    wait_until("a fault", || matches!(state(&machine, QueueId::tx(0)), Some(QueueState::Faulted(_))));
    exchange(&mut machine, &mut tx, &mut rx, 300);
}

#[test]
fn a_reset_in_the_middle_is_a_beginning() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::new(&served, 0);
    for round in 0..20u32 {
        let (mut tx, mut rx) = pair(&mut machine, 0);
        exchange(&mut machine, &mut tx, &mut rx, 50);
        for number in 0..10 {
            assert!(tx.send(&machine, &frame(number)));
        }
        tx.ring(&mut machine);
        if round % 2 == 0 {
            machine.client.reset().unwrap();
        } else {
            // By the capability of PCI Express.
            machine.write_config(0x48, &0x8000u16.to_le_bytes());
        }
        assert!(!tx.is_running(&mut machine));
        assert_eq!(machine.read_config(4) & 0xffff, 0);
        assert_eq!(machine.doorbells.window().slice(0, 4096).unwrap(), [0; 4096]);
        machine.set_master(true);
    }
    assert_eq!(served.counters(0).stops_by_machine, 20);
}

#[test]
fn a_program_of_the_host_and_a_machine_share_no_queue() {
    use millrace_driver::Client;
    let served = Served::new("queues=2", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    let program = Client::embedded(served.driver.clone()).unwrap();
    let path = |queue: &str| format!("/firmware/mi_bus0/dma_ctrl_ndp_{queue}");
    assert!(program.lock(&path("tx0"), 1).is_err(), "the machine has it");
    program.lock(&path("rx1"), 1).unwrap();
    let refused = served.counters(0).refused_registers;
    assert!(Queue::start(&mut machine, QueueId::rx(1), 2 * ROOM).is_none(), "the program has it");
    assert!(served.counters(0).refused_registers > refused);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    drop(machine);
    wait_until("locks that are free", || program.lock(&path("tx0"), 1).is_ok());
}
