//! What a card that is killed must not change, corner by corner.

use super::bytes::{answer, give, lingering, whole};
use super::driver::{Queue, ROOM, UPDATE, exchange, frame, pair};
use super::machine::{MEMORY, MEMORY_LEN, wait_until};
use super::{Served, kill_process, pid_of};
use millrace_abi::control::DOORBELL_AT;
use millrace_abi::pci;
use millrace_abi::queue::QueueId;
use millrace_abi::register::map::Component;
use millrace_abi::register::medusa as m;
use millrace_dma::Ordering;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd};
use rustix::process::Signal;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longer than a machine waits for a function.
const LINGERS: Duration = Duration::from_secs(30);

#[test]
fn a_register_does_not_take_a_doorbell_back() {
    let served = Served::new("queues=1", 1);
    let mut machine = served.machine(0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    let before = machine.read64(tx.register(m::SDP));
    for _ in 0..2 {
        machine.write64(tx.register(m::SDP), before.wrapping_sub(5) & 63);
        assert_eq!(machine.read64(tx.register(m::SDP)), before);
        served.kill();
        assert_eq!(machine.read64(tx.register(m::SDP)), before);
    }
    exchange(&mut machine, &mut tx, &mut rx, 100);
}

/// As a hypervisor that posts writes: the machine goes on with its doorbell while a register is on its way, and there is no card.
#[test]
fn a_register_that_was_on_its_way_does_not_either() {
    let slow = |number| {
        if number > 0 {
            std::thread::sleep(Duration::from_millis(300))
        }
    };
    let served = Served::with("queues=1", 1, slow);
    let mut machine = served.machine(0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    for round in 0..4_u64 {
        let before = pid_of(&served);
        kill_process(before, Signal::KILL).unwrap();
        std::thread::sleep(Duration::from_millis(60));
        let page = pci::doorbell(tx.id) as usize + DOORBELL_AT;
        let word = machine.doorbells.window().word64(page).unwrap();
        let old = word.load(Ordering::Relaxed);
        for more in 0..6 {
            assert!(tx.send(&machine, &frame(1000 + round * 10 + more)));
        }
        word.store((old + 6) & 63, Ordering::Release);
        machine.write64(tx.register(m::SDP), (old + 1) & 63);
        wait_until("another card", || pid_of(&served) != before);
        for more in 0..6 {
            let mut got = None;
            wait_until("a frame", || {
                got = rx.take(&mut machine);
                got.is_some()
            });
            assert_eq!(got, Some(frame(1000 + round * 10 + more)));
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(rx.take(&mut machine).is_none(), "nothing goes out again");
    }
}

/// Drivers that know registers only: each is a message, and counts in the next card as before.
#[test]
fn who_rings_by_registers_alone_goes_on_so() {
    let served = Served::new("queues=1", 1);
    let mut machine = served.machine(0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    let page = pci::doorbell(tx.id) as usize + DOORBELL_AT;
    for number in 0..30_u64 {
        assert!(tx.send(&machine, &frame(number)));
        let next = tx.pointer();
        machine.write64(tx.register(m::SDP), next);
        assert_eq!(machine.doorbells.window().word64(page).unwrap().load(Ordering::Acquire), next);
        let mut got = None;
        wait_until("a frame", || {
            got = rx.take(&mut machine);
            got.is_some()
        });
        assert_eq!(got, Some(frame(number)));
        if number % 10 == 9 {
            served.kill();
        }
    }
}

#[test]
fn registers_of_a_port_are_those_of_who_has_it() {
    let served = Served::new("queues=2,port=null,port=null", 2);
    let (mut one, mut other) = (served.machine(0), served.machine(1));
    let mac = Component::RxMac(0).base().unwrap();
    for round in 0..4 {
        one.write32(mac + 0x34, 2000 + round);
        other.write32(mac + 0x34, 9000 + round);
        served.kill();
        one.read_config(0);
        assert_eq!((one.read32(mac + 0x34), other.read32(mac + 0x34)), (2000 + round, 9000 + round));
    }
}

/// Its memory is not the card's any more.
#[test]
fn a_queue_that_has_stopped_by_itself_stays_so() {
    for faults in [false, true] {
        let served = Served::new("queues=1", 1);
        let mut machine = served.machine(0);
        let mut rx = Queue::start_empty(&mut machine, QueueId::rx(0), 0).unwrap();
        let mut tx = Queue::start(&mut machine, QueueId::tx(0), ROOM).unwrap();
        if faults {
            tx.post_at(&machine, MEMORY + MEMORY_LEN as u64 - 10, 64);
            tx.ring(&mut machine);
        } else {
            (0..20).for_each(|number| assert!(tx.send(&machine, &frame(number))));
            tx.ring(&mut machine);
            machine.write32(tx.register(m::CONTROL), m::CONTROL_STOP);
            // It ends when there is room, of which no message says anything.
            (0..30).for_each(|buffer| rx.post_at(&machine, MEMORY + 2 * ROOM + buffer * 2048, 2048));
            rx.ring(&mut machine);
        }
        wait_until("a queue that has ended", || !tx.is_running(&mut machine));
        machine.word64(tx.at + UPDATE).store(0x5555, Ordering::Relaxed);
        served.kill();
        assert!(!tx.is_running(&mut machine), "faults: {faults}");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(machine.word64(tx.at + UPDATE).load(Ordering::Relaxed), 0x5555, "faults: {faults}");
        machine.client.reset().unwrap();
        machine.set_master(true);
        let (mut tx, mut rx) = pair(&mut machine, 0);
        exchange(&mut machine, &mut tx, &mut rx, 50);
    }
}

#[test]
fn an_interrupt_that_waits_for_its_event_still_does() {
    let served = Served::new("queues=1", 1);
    let mut machine = served.machine(0);
    machine.client.set_irqs(2, 0x20 | 1, 1, 1, &[]).unwrap();
    served.kill();
    let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    machine.client.set_irqs(2, 0x20 | 4, 1, 1, &[event.as_raw_fd()]).unwrap();
    assert!(rustix::io::read(&event, &mut [0; 8]).is_ok(), "it waited");
}

#[test]
fn a_long_write_that_begins_at_the_pointers_is_more_than_a_doorbell() {
    let served = Served::new("queues=1", 1);
    let mut machine = served.machine(0);
    let (tx, _rx) = pair(&mut machine, 0);
    let (at, timeout) = (tx.register(m::SDP), (m::TIMEOUT.at(0) - m::SDP.at(0)) as usize);
    let mut bytes = vec![0; timeout + 4];
    machine.client.region_read(pci::REGISTERS_BAR, at.into(), &mut bytes).unwrap();
    bytes[timeout..].copy_from_slice(&0x1234u32.to_le_bytes());
    machine.client.region_write(pci::REGISTERS_BAR, at.into(), &bytes).unwrap();
    served.kill();
    assert_eq!(machine.read32(tx.register(m::TIMEOUT)), 0x1234);
}

#[test]
fn many_queues_are_kept() {
    let served = Served::new("queues=128", 1);
    let mut machine = served.machine(0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 50);
    served.kill();
    exchange(&mut machine, &mut tx, &mut rx, 50);
}

#[test]
fn what_is_slow_to_close_does_not_keep_the_function_of_who_goes() {
    let served = Served::new("queues=8", 1);
    let mut socket = UnixStream::connect(served.path(0)).unwrap();
    give(&socket, &whole(1, 0, &[0, 0, 1, 0]), &[]).unwrap();
    assert_eq!(answer(&mut socket).unwrap().1, 0);
    let (tcp, _end) = lingering(LINGERS);
    let (one, other) = UnixStream::pair().unwrap();
    give(&one, b"x", &[tcp.as_fd()]).unwrap();
    drop((tcp, one));
    let mut fds = vec![other];
    fds.extend((0..15).map(|_| UnixStream::pair().unwrap().0));
    // Events that are none.
    let events: Vec<u8> = [20u32, 0x20 | 4, 2, 0, 16].iter().flat_map(|word| word.to_le_bytes()).collect();
    give(&socket, &whole(8, 0, &events), &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>()).unwrap();
    drop(fds);
    assert_ne!(answer(&mut socket).unwrap().1, 0);
    drop(socket);
    let begin = Instant::now();
    served.machine(0).read_config(0);
    assert!(begin.elapsed() < LINGERS, "as long as that takes to close");
}

#[test]
fn commands_of_keepers_are_none_of_machines() {
    let served = Served::new("queues=1", 1);
    let mut socket = UnixStream::connect(served.path(0)).unwrap();
    give(&socket, &whole(1, 0, &[0, 0, 1, 0]), &[]).unwrap();
    assert_eq!(answer(&mut socket).unwrap().1, 0);
    for command in [0x7f00, 0x7f01, 0x7f02] {
        give(&socket, &whole(command, 0, &[]), &[]).unwrap();
        assert_eq!(
            answer(&mut socket),
            Some((command, rustix::io::Errno::OPNOTSUPP.raw_os_error() as u32, Vec::new()))
        );
    }
}
