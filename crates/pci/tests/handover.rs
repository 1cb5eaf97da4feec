//! One card takes over from another while machines run.

use super::bytes::{access, answer, whole};
use super::driver::{Queue, exchange, frame, pair};
use super::hostile::introduced;
use super::machine::{CONFIGURATION, MEMORY, Machine, PATIENCE, Served, wait_until};
use millrace_abi::control::QueueState;
use millrace_abi::pci;
use millrace_abi::queue::QueueId;
use millrace_abi::register::medusa as m;
use millrace_pci::PciError;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsRawFd;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Frames that go round in each part of the traffic: numbered anew, and each is looked for.
const PART: u64 = 200;

/// Takes over again and again while machines exchange frames, of which each is there, whole and in order.
fn many_times(
    options: &str,
    functions: u32,
    rules: &str,
    times: u32,
    queues: impl Fn(&mut Machine, usize) -> (Queue, Queue) + Sync,
) {
    let mut served = Served::with_rules(options, functions, rules);
    let ends = AtomicBool::new(false);
    let parts: Vec<_> = (0..functions).map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (index, parts) in parts.iter().enumerate() {
            let path = served.path(index);
            let (ends, queues) = (&ends, &queues);
            scope.spawn(move || {
                let mut machine = Machine::at(&path);
                machine.map_memory();
                machine.set_master(true);
                let (mut tx, mut rx) = queues(&mut machine, index);
                while !ends.load(Ordering::Relaxed) {
                    exchange(&mut machine, &mut tx, &mut rx, PART);
                    parts.fetch_add(1, Ordering::Relaxed);
                }
                // Nothing comes twice.
                assert!(rx.take(&mut machine).is_none() && tx.is_running(&mut machine) && rx.is_running(&mut machine));
            });
        }
        // What fails here must end the others.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..times {
                let before: Vec<_> = parts.iter().map(|parts| parts.load(Ordering::Relaxed)).collect();
                wait_until("frames that move", || {
                    parts.iter().zip(&before).all(|(parts, before)| parts.load(Ordering::Relaxed) > before + 1)
                });
                let next = served.taken_over().unwrap();
                wait_until("a card that has nothing left", || served.functions.are_given());
                assert_eq!(next.counters(0).taken_over, 1);
                served = next;
            }
        }));
        ends.store(true, Ordering::Relaxed);
        done.unwrap();
    });
}

#[test]
fn frames_go_on_in_the_next_card() {
    many_times("queues=1", 1, "", 20, |machine, _| pair(machine, 0));
}

#[test]
fn workers_that_poll_and_several_functions_are_taken_over() {
    many_times("queues=4,poll,workers=2", 2, "", 5, |machine, _| pair(machine, 1));
}

#[test]
fn frames_that_rules_have_are_taken_over() {
    // From one worker to the other, and to queues that are full now and then.
    let rules = "in_port=0,actions=queue:1\n";
    many_times("queues=2,workers=2", 1, rules, 10, |machine, _| {
        let rx = Queue::start(machine, QueueId::rx(1), 0).unwrap();
        let tx = Queue::start(machine, QueueId::tx(0), super::driver::ROOM).unwrap();
        (tx, rx)
    });
}

#[test]
fn a_machine_finds_everything_as_it_was() {
    let served = Served::new("queues=2", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    machine.write32(tx.register(m::COUNTER_COMMAND), m::COUNTERS_STROBE_AND_RESET);
    exchange(&mut machine, &mut tx, &mut rx, 10);
    // One that has stopped, and keeps what was written.
    Queue::start(&mut machine, QueueId::tx(1), 2 * super::driver::ROOM).unwrap().stop(&mut machine);
    machine.write64(m::DESC_BASE.at(millrace_abi::register::map::dma_base(QueueId::rx(1)).unwrap()), 0x1234_5000);
    let mac = millrace_abi::register::map::Component::RxMac(0).base().unwrap();
    machine.write64(mac + 0x88, 0x1_0203_0405_0607);
    machine.write32(mac + 0x34, 9000);
    machine.write32(0x1c, 0xdead_beef);
    machine.write_config(0x10, &[0xff; 4]);
    machine.client.region_write(pci::MSIX_BAR, 0, &[0x11; 16]).unwrap();
    let events = [(); 4].map(|()| eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let fds = events.each_ref().map(AsRawFd::as_raw_fd);
    machine.client.set_irqs(2, 0x20 | 4, 0, 4, &fds).unwrap();
    machine.client.set_irqs(2, 0x08 | 1, 0, 1, &[]).unwrap();
    // One that waited came when there was an event for it.
    let waited = served.counters(0).pending_interrupts;
    assert!(rx.sleep(&machine));
    assert!(tx.send(&machine, &frame(0)));
    tx.ring(&mut machine);
    served.wait_for(0, "an interrupt that waits", |counters| counters.pending_interrupts == waited + 1);
    wait_until("the frame that it is about", || rx.take(&mut machine) == Some(frame(0)));
    let clear = |event: &rustix::fd::OwnedFd| rustix::io::read(event, &mut [0; 8]).is_ok();
    events.iter().for_each(|event| while clear(event) {});
    // The worker has fallen asleep, or not: that is not the machine's.
    let before = machine.seen();
    let next = served.taken_over().unwrap();
    drop(served);
    for (place, (now, before)) in machine.seen().iter().zip(&before).enumerate() {
        let other = (0..now.len()).find(|&at| now[at] != before[at]);
        assert_eq!(other.map(|at| (at, now[at], before[at])), None, "of what is read in place {place}");
    }
    assert!(!events.iter().any(clear), "an interrupt that nobody asked for");
    machine.client.set_irqs(2, 0x10 | 1, 0, 1, &[]).unwrap();
    assert!(clear(&events[0]), "what waited comes");
    machine.write32(tx.register(m::COUNTER_COMMAND), m::COUNTERS_STROBE);
    assert_eq!(machine.read64(tx.register(m::PASSED_FRAMES)), 11);
    exchange(&mut machine, &mut tx, &mut rx, 300);
    // Memory can be taken away, and queues started, as in the first card.
    machine.client.dma_unmap(MEMORY, super::machine::MEMORY_LEN as u64).unwrap();
    assert!(!tx.is_running(&mut machine));
    machine.map_memory();
    let (mut tx, mut rx) = pair(&mut machine, 1);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    assert_eq!(next.counters(0).stops_by_machine, 1);
}

#[test]
fn a_message_that_has_half_come_is_answered_by_the_next_card() {
    let served = Served::new("queues=1", 1);
    let mut stream = introduced(&served);
    let read = whole(9, 0, &access(0, CONFIGURATION, 4, &[]));
    stream.write_all(&read[..20]).unwrap();
    // Until it has come.
    let next = served.taken_over().unwrap();
    drop(served);
    stream.write_all(&read[20..]).unwrap();
    let (command, error, body) = answer(&mut stream).unwrap();
    assert_eq!((command, error, &body[16..20]), (9, 0, &[0xec, 0x18, 0x00, 0xc0][..]));
    let next = next.taken_over().unwrap();
    stream.write_all(&read).unwrap();
    assert_eq!(answer(&mut stream).unwrap().1, 0);
    drop(stream);
    // A machine that leaves makes room, and the next finds the function at its place.
    let mut machine = Machine::new(&next, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
}

#[test]
fn a_function_without_a_machine_is_taken_over_and_so_are_its_sockets() {
    let served = Served::new("queues=2", 2);
    let next = served.taken_over().unwrap();
    drop(served);
    assert!(next.path(0).exists() && next.path(1).exists() && next.handover().exists());
    let mut machine = Machine::new(&next, 1);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    drop(machine);
    let (one, two, three) = (next.path(0), next.path(1), next.handover());
    drop(next);
    assert!(!one.exists() && !two.exists() && !three.exists(), "the last one removes them");
}

/// A card that is no card, up to some step.
fn stranger(served: &Served) -> rustix::fd::OwnedFd {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(served.handover()).unwrap()).unwrap();
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
    socket
}

fn say(socket: &rustix::fd::OwnedFd, text: &str) {
    send(socket, text.as_bytes(), SendFlags::NOSIGNAL).unwrap();
}

/// What comes, as far as it matters; nothing: the other has hung up.
fn hear(socket: &rustix::fd::OwnedFd) -> String {
    let mut bytes = vec![0; 65536];
    let (count, _) = recv(socket, &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap_or((0, 0));
    String::from_utf8(bytes[..count].to_vec()).unwrap()
}

/// The right words of a card that begins.
fn hello(served: &Served, version: u32) -> String {
    let trees: Vec<String> = served.functions.trees().iter().map(u32::to_string).collect();
    format!(r#"{{"hello":{{"version":{version},"trees":[{}],"listen":null}}}}"#, trees.join(","))
}

#[test]
fn whoever_gives_up_at_any_step_leaves_the_card_as_it_was() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    let right = hello(&served, 1);
    for step in 0..6 {
        let socket = stranger(&served);
        let steps: &[&str] = match step {
            0 => &[],
            1 => &["nonsense"],
            2 => &[&right],
            3 => &[&right, r#""prepare""#],
            4 => &[&right, r#""prepare""#, r#"{"refused":"no"}"#],
            _ => &[&right, r#""taken""#],
        };
        for text in steps {
            say(&socket, text);
            let said = hear(&socket);
            if *text == right {
                assert!(said.contains("welcome"), "{said}");
            }
        }
        // Frames wait in the ring when it goes away.
        for number in 0..8 {
            assert!(tx.send(&machine, &frame(number)));
        }
        tx.ring(&mut machine);
        drop(socket);
        for number in 0..8 {
            let mut got = None;
            wait_until("a frame", || {
                got = rx.take(&mut machine);
                got.is_some()
            });
            assert_eq!(got, Some(frame(number)), "step {step}");
        }
        assert!(!served.functions.are_given());
    }
    // One that could, comes after all.
    let next = served.taken_over().unwrap();
    drop(served);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    drop(next);
}

#[test]
fn whoever_says_nothing_more_holds_the_machines_for_a_few_seconds() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    let right = hello(&served, 1);
    let socket = stranger(&served);
    say(&socket, &right);
    hear(&socket);
    say(&socket, r#""prepare""#);
    hear(&socket);
    // A machine asks meanwhile, and is answered afterwards.
    let begin = Instant::now();
    assert_eq!(machine.read_config(0), 0xc000_18ec);
    assert!(begin.elapsed() < PATIENCE);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    // Too late.
    let _ = send(&socket, br#""taken""#, SendFlags::NOSIGNAL);
    exchange(&mut machine, &mut tx, &mut rx, 100);
    assert!(!served.functions.are_given());
    assert_eq!(served.driver.card().state(QueueId::tx(0)), Some(QueueState::Running));
}

#[test]
fn a_card_of_another_kind_is_refused_and_told_why() {
    let served = Served::new("queues=2", 2);
    let mut machine = Machine::new(&served, 0);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    for (options, functions) in [("queues=2", 1), ("queues=4", 2), ("queues=2,engine=dd", 2), ("rx=2,tx=4", 2)] {
        let Err(PciError::TakeOver(error)) = served.taken_over_by(options, functions, "").map(drop) else {
            panic!("{options} was taken")
        };
        let said = error.to_string();
        assert!(said.contains("goes on") && said.contains("options of this card"), "{said}");
        exchange(&mut machine, &mut tx, &mut rx, 50);
    }
    let socket = stranger(&served);
    say(&socket, &hello(&served, 7));
    let said = hear(&socket);
    assert!(said.contains("version 7") && said.contains("version 1"), "{said}");
    assert!(!served.functions.are_given());
    let begin = Instant::now();
    let next = served.taken_over().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60));
    exchange(&mut machine, &mut tx, &mut rx, 50);
    drop((served, next));
}
