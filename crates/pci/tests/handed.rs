//! What a machine hands over: descriptors that close slowly, and memory that it takes away.

use super::bytes::{access, answer, give, lingering, whole};
use super::driver::{Queue, exchange, frame, pair};
use super::hostile::{introduced, still_works};
use super::machine::{MEMORY, Machine, PATIENCE, Served, wait_until};
use millrace_abi::control::QueueState;
use millrace_abi::queue::QueueId;
use millrace_dma::{ForeignRegion, Ordering, Pages, Region};
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longer than all that is waited for.
const LINGERS: Duration = Duration::from_secs(100);
const SECOND: u64 = MEMORY + (1 << 30);

/// Sends a message with such a socket. The other side has the last one: it has it in hand until the message ends.
fn give_lingering(mut stream: &UnixStream, message: &[u8]) -> TcpStream {
    let (linger, end) = lingering(LINGERS);
    assert_eq!(give(stream, &message[..2], &[linger.as_fd()]), Ok(2));
    drop(linger);
    stream.write_all(&message[2..]).unwrap();
    end
}

fn map(at: u64) -> Vec<u8> {
    let mut body = 32u32.to_le_bytes().to_vec();
    body.extend(3u32.to_le_bytes());
    [0, at, 4096].iter().for_each(|number: &u64| body.extend(number.to_le_bytes()));
    body
}

#[test]
fn descriptors_that_close_slowly_keep_nobody() {
    let served = Served::new("queues=1", 1);
    let mut stream = introduced(&served);
    let events: Vec<u8> = [20, 0x24, 2, 0, 1].iter().flat_map(|number: &u32| number.to_le_bytes()).collect();
    let mut ends = Vec::new();
    let begin = Instant::now();
    // One that takes no descriptors, and the two that take some, but none of these.
    for message in [whole(4, 0, &[0; 16]), whole(2, 0, &map(MEMORY)), whole(8, 0, &events)] {
        ends.push(give_lingering(&stream, &message));
        assert_ne!(answer(&mut stream).unwrap().1, 0, "refused");
    }
    stream.write_all(&whole(9, 0, &access(0, 7, 4, &[]))).unwrap();
    assert_eq!(answer(&mut stream).unwrap().1, 0, "it goes on");
    // One that comes with a message that does not end.
    let (linger, end) = lingering(LINGERS);
    assert_eq!(give(&stream, &[4, 0], &[linger.as_fd()]), Ok(2));
    drop(linger);
    ends.push(end);
    drop(stream);
    still_works(&served);
    assert!(begin.elapsed() < LINGERS);
    drop(ends);
}

/// As many as are closed at a time: then nothing is read from the machine, and that it has gone is seen all the same.
#[test]
fn a_machine_that_goes_while_much_is_being_closed_has_gone() {
    let served = Served::new("queues=1", 1);
    let stream = introduced(&served);
    let message = whole(4, 0, &[0; 16]);
    let (lingers, ends): (Vec<_>, Vec<_>) = (0..16).map(|_| lingering(LINGERS)).unzip();
    let begin = Instant::now();
    let fds: Vec<_> = lingers.iter().map(AsFd::as_fd).collect();
    assert_eq!(give(&stream, &message[..2], &fds), Ok(2));
    drop(lingers);
    (&stream).write_all(&message[2..]).unwrap();
    drop(stream);
    still_works(&served);
    assert!(begin.elapsed() < LINGERS);
    drop(ends);
}

#[test]
fn a_stranger_with_such_descriptors_does_not_keep_the_machine_that_is_there() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::new(&served, 0);
    let mut ends = Vec::new();
    let begin = Instant::now();
    for number in 0..5 {
        let stranger = UnixStream::connect(served.path(0)).unwrap();
        let (linger, end) = lingering(LINGERS);
        // Refused by Linux 6.16 and later, or too late. Whoever closes it last waits, which is not to be this thread.
        let _ = give(&stranger, b"x", &[linger.as_fd()]);
        std::thread::spawn(move || drop(linger));
        ends.push(end);
        served.wait_for(0, "turned away", |counters| counters.turned_away == number + 1);
        assert_eq!(machine.read_config(0), 0xc000_18ec);
    }
    assert!(begin.elapsed() < LINGERS);
}

#[test]
fn a_function_is_its_owners_alone() {
    let served = Served::new("queues=1", 1);
    assert_eq!(std::fs::metadata(served.path(0)).unwrap().permissions().mode() & 0o7777, 0o600);
}

#[test]
fn memory_that_is_cut_stops_the_queues_and_is_told() {
    let served = Served::new("queues=1", 1);
    let mut machine = Machine::new(&served, 0);
    let file = memfd_create("cut", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 1 << 16).unwrap();
    machine.client.dma_map(0, SECOND, 1 << 16, file.as_raw_fd()).unwrap();
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 50);
    ftruncate(&file, 0).unwrap();
    tx.post_at(&machine, SECOND, 100);
    tx.ring(&mut machine);
    served.wait_for(0, "a cut", |counters| counters.memory_cut == 1);
    wait_until("queues that stand", || !tx.is_running(&mut machine) && !rx.is_running(&mut machine));
    assert!(Queue::start(&mut machine, QueueId::rx(0), 0).is_none(), "not on such memory");
    machine.client.dma_unmap(SECOND, 1 << 16).unwrap();
    // It is seen at the next look.
    let mut queues = None;
    wait_until("sound memory", || {
        queues = Queue::start(&mut machine, QueueId::rx(0), 0);
        queues.is_some()
    });
    machine.client.reset().unwrap();
    machine.set_master(true);
    let (mut tx, mut rx) = pair(&mut machine, 0);
    exchange(&mut machine, &mut tx, &mut rx, 50);
    assert_eq!(served.counters(0).memory_cut, 1);
}

/// Buffers lie in memory that comes and goes: while it is there frames come into it, and when its end has been answered nobody writes there any more.
#[test]
fn memory_is_taken_away_under_traffic() {
    const LEN: usize = 1 << 16;
    let served = Served::new("queues=1,poll", 1);
    let mut machine = Machine::new(&served, 0);
    let second = Region::allocate(LEN, Pages::Ordinary).unwrap();
    let (mut filled, mut faulted, begin) = (0, 0, Instant::now());
    for round in 0..200_u64 {
        machine.client.dma_map(0, SECOND, LEN as u64, second.fd().unwrap().as_raw_fd()).unwrap();
        second.window().span_mut(0, LEN).unwrap().write_from(&[0xaa; LEN]);
        let rx = Queue::start_empty(&mut machine, QueueId::rx(0), 0);
        let tx = Queue::start(&mut machine, QueueId::tx(0), super::driver::ROOM);
        let (Some(mut rx), Some(mut tx)) = (rx, tx) else { panic!("queues that start") };
        for buffer in 0..16 {
            rx.post_at(&machine, SECOND + buffer * 2048, 2048);
        }
        rx.ring(&mut machine);
        for number in 0..16 {
            assert!(tx.send(&machine, &frame(number)));
        }
        tx.ring(&mut machine);
        // Sometimes after the first frames, sometimes before.
        while round % 4 != 0 && rx.pointers(&machine) >> 32 < round % 16 && begin.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        machine.client.dma_unmap(SECOND, LEN as u64).unwrap();
        let mut before = vec![0; LEN];
        second.window().span(0, LEN).unwrap().read_into(&mut before);
        filled += u64::from(before[22] != 0xaa);
        for number in 0..16 {
            tx.send(&machine, &frame(number));
        }
        tx.ring(&mut machine);
        wait_until("a queue that has come to its end", || {
            rx.state(&machine) != Some(QueueState::Running) || rx.pointers(&machine) >> 32 >= 16
        });
        faulted += u64::from(matches!(rx.state(&machine), Some(QueueState::Faulted(_))));
        let mut after = vec![0; LEN];
        second.window().span(0, LEN).unwrap().read_into(&mut after);
        assert!(before == after, "round {round}: written after it was gone");
        machine.client.reset().unwrap();
        machine.set_master(true);
    }
    // Both have been seen, or it has seen nothing.
    assert!(filled > 0 && faulted > 0, "{filled} {faulted}");
    assert_eq!(served.counters(0).late_unmaps, 0);
}

#[test]
fn a_machine_cannot_use_up_the_addresses_of_the_card() {
    const LEN: u64 = 1 << 46;
    let served = Served::new("queues=2", 2);
    let (mut bad, mut good) = (Machine::new(&served, 0), Machine::new(&served, 1));
    let file = memfd_create("long", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, LEN).unwrap();
    for step in 0..64_u64 {
        let len = (LEN >> (step % 36)).max(4096);
        // Refused or not: the client does not say.
        let _ = bad.client.dma_map(LEN - len, SECOND + (step << 40), len.min(1 << 39), file.as_raw_fd());
    }
    assert!(served.counters(0).memory_refused > 0);
    // There is room for others.
    let another = memfd_create("another", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&another, 1 << 38).unwrap();
    good.client.dma_map(0, SECOND, 1 << 38, another.as_raw_fd()).unwrap();
    let ours = ForeignRegion::map(&another, 0, 1 << 38).unwrap();
    ours.window().word64(0).unwrap().store(1, Ordering::Relaxed);
    let (mut tx, mut rx) = pair(&mut good, 0);
    exchange(&mut good, &mut tx, &mut rx, 50);
}
