use super::*;
use crate::{
    Accept, PortSpec,
    namespace::{self, Rights, ip},
};
use millrace_packet::{
    checksum::Sum,
    offload::{PartialChecksum, SegmentKind, Segments},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;

/// Runs the test of this name again in a network namespace with two ends of a cable, `pkt-a` and `pkt-b`; `true` where
/// that is done or not possible.
fn with_cable(test: &str) -> bool {
    if namespace::enter(&format!("af_packet::tests::{test}"), Rights::OfAnyUser) {
        return true;
    }
    if !ip("link add pkt-a type veth peer name pkt-b") {
        println!("skipped: `ip` of iproute2 is missing, or this kernel has no veth");
        return true;
    }
    for end in ["pkt-a", "pkt-b"] {
        // Linux shall say nothing unless it is asked.
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/addr_gen_mode"), "1").unwrap();
        assert!(ip(&format!("link set {end} up")));
    }
    false
}

fn ports(spec: &str) -> Result<Vec<AfPacketPort>, AfPacketError> {
    match spec.parse().unwrap() {
        PortSpec::AfPacket(spec) => AfPacketPort::open(&spec),
        other => panic!("{other}"),
    }
}

fn port(spec: &str) -> AfPacketPort {
    ports(spec).unwrap_or_else(|error| panic!("{spec}: {error}")).remove(0)
}

/// Frame number `number`, of `len` bytes.
fn frame(number: usize, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.extend((14..len).map(|at| (at * 31 + number * 7) as u8));
    frame
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
    }
}

/// Keeps what comes.
#[derive(Default)]
struct Basket {
    offloads: Offloads,
    frames: Vec<Vec<u8>>,
    left: Vec<Offload>,
}

impl Sink for Basket {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        let mut bytes = vec![0; frame.len()];
        frame.read_into(&mut bytes);
        self.frames.push(bytes);
        Accept::Taken
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn take_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> Accept {
        // How long the headers are is a hint, and Linux has its own idea.
        let segments = offload.segments.map(|segments| Segments { header_len: 0, ..segments });
        self.left.push(Offload { segments, ..*offload });
        self.take(frame)
    }
}

/// Notes when frames came.
#[derive(Default)]
struct Times {
    wanted: bool,
    came: Vec<u64>,
    frames: usize,
}

impl Sink for Times {
    fn take(&mut self, _: Span<'_>) -> Accept {
        self.frames += 1;
        Accept::Taken
    }

    fn wants_arrivals(&mut self) -> bool {
        self.wanted
    }

    fn arrived(&mut self, monotonic_ns: u64) {
        self.came.push(monotonic_ns);
    }
}

/// Everything that comes to `port` until there are `count` frames.
fn receive(port: &mut AfPacketPort, count: usize, offloads: Offloads) -> Basket {
    let mut basket = Basket { offloads, ..Basket::default() };
    until("frames", || {
        port.receive(64, &mut basket);
        basket.frames.len() >= count
    });
    basket
}

#[test]
fn the_kernel_says_when_frames_left_and_came_however_late_one_looks() {
    if with_cable("the_kernel_says_when_frames_left_and_came_however_late_one_looks") {
        return;
    }
    let monotonic = || rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = || monotonic().tv_sec as u64 * 1_000_000_000 + monotonic().tv_nsec as u64;
    let (mut a, mut b) = (port("af_packet:pkt-a"), port("af_packet:pkt-b"));
    let mut times = Times { wanted: true, ..Times::default() };
    // From the first look on; the kernel begins a little later, and a machine that is busy may hold up a frame on its way.
    assert_eq!(b.receive(64, &mut times), 0);
    let frames = [frame(1, 60), frame(2, 61)];
    let mut left = 0;
    until("a frame whose stamps are those of its way", || {
        let before = now();
        a.watch_departures();
        assert_eq!(a.transmit(Span::from_slice(&frames[0])), TxOutcome::Sent);
        left = a.departed().expect("a stamp of the kernel");
        assert!(before <= left + 1_000 && left <= now() + 1_000, "{before} {left}");
        std::thread::sleep(Duration::from_millis(5));
        let count = times.frames;
        until("the frame", || {
            b.receive(64, &mut times);
            times.frames > count
        });
        assert_eq!(times.came.len(), times.frames);
        let came = times.came[count];
        assert!(left <= came + 1_000, "{left} {came}");
        // Nobody has looked for 5 ms.
        came < left + 1_000_000
    });
    // Of several, when the last one left; nothing where none was sent, and nothing of what was not asked for.
    a.watch_departures();
    let spans = [0, 1].map(|at: usize| Span::from_slice(&frames[at]));
    assert_eq!(a.transmit_burst(&spans).taken, 2);
    let last = a.departed().expect("a stamp of the second one");
    assert!(last <= now() && last > left);
    assert_eq!(a.departed(), None);
    a.watch_departures();
    assert_eq!(a.departed(), None);
    // Not wanted any more: frames come together again, and no time is said.
    times = Times::default();
    until("frames", || {
        b.receive(64, &mut times);
        times.frames == 2
    });
    assert!(times.came.is_empty());
}

#[test]
fn frames_of_all_lengths_pass_both_ways() {
    if with_cable("frames_of_all_lengths_pass_both_ways") {
        return;
    }
    let (mut a, mut b) = (port("af_packet:pkt-a"), port("af_packet:pkt-b"));
    assert!(!a.can_wait() && a.wake_fd().is_some());
    for _ in 0..2 {
        let frames: Vec<_> = (0..300).map(|number| frame(number, 14 + number * 5)).collect();
        for frame in &frames[..10] {
            assert_eq!(a.transmit(Span::from_slice(frame)), TxOutcome::Sent);
        }
        let spans: Vec<_> = frames[10..].iter().map(|frame| Span::from_slice(frame)).collect();
        let sent = a.transmit_burst(&spans);
        assert_eq!((sent.taken, sent.dropped), (290, 0));
        let basket = receive(&mut b, 300, Offloads::NONE);
        assert!(basket.frames == frames && basket.left.is_empty());
        let bytes: u64 = frames.iter().map(|frame| frame.len() as u64).sum();
        assert_eq!((a.counters().tx_frames() % 300, a.counters().tx_bytes() % bytes), (0, 0));
        assert_eq!((b.counters().rx_offered() % 300, b.counters().rx_bytes() % bytes), (0, 0));
        // What the card has sent does not come back to it.
        assert_eq!(a.receive(64, &mut Basket::default()), 0);
        std::mem::swap(&mut a, &mut b);
    }
}

#[test]
fn what_cannot_pass_is_counted() {
    if with_cable("what_cannot_pass_is_counted") {
        return;
    }
    let (mut a, mut b) = (port("af_packet:pkt-a"), port("af_packet:pkt-b"));
    let frames = [frame(0, 60), frame(1, 1600), vec![2; 13], frame(3, 20_000), frame(4, 61)];
    let burst = a.transmit_burst(&frames.each_ref().map(|frame| Span::from_slice(frame)));
    assert_eq!(burst, Burst { taken: 5, dropped: 3, dropped_bytes: 1600 + 13 + 20_000 });
    assert_eq!((a.counters().tx_dropped(DropReason::TooLong), a.counters().tx_dropped(DropReason::TooShort)), (2, 1));
    assert_eq!(receive(&mut b, 2, Offloads::NONE).frames, [frame(0, 60), frame(4, 61)]);

    // No room in the card.
    assert_eq!(a.transmit(Span::from_slice(&frames[0])), TxOutcome::Sent);
    until("a drop", || {
        b.receive(64, &mut |_: Span<'_>| Accept::Full);
        b.counters().rx_dropped(DropReason::NoRoom) == 1
    });

    // No room in the ring: nobody looks into it.
    let many = [Span::from_slice(&frames[0]); 100];
    for _ in 0..30 {
        assert_eq!(a.transmit_burst(&many).taken, 100);
    }
    let got = receive(&mut b, 2048, Offloads::NONE).frames.len() as u64;
    b.prepare_sleep();
    assert_eq!(got + b.counters().rx_dropped(DropReason::KernelFull), 3000);
    assert_eq!(b.counters().rx_offered(), 3003);
}

#[test]
fn a_vlan_tag_comes_as_it_was_sent() {
    if with_cable("a_vlan_tag_comes_as_it_was_sent") {
        return;
    }
    let (mut a, mut b) = (port("af_packet:pkt-a"), port("af_packet:pkt-b"));
    for tag in [[0x81, 0, 0x20, 5], [0x88, 0xa8, 0, 7]] {
        let mut tagged = frame(0, 100);
        tagged.splice(12..12, tag);
        assert_eq!(a.transmit(Span::from_slice(&tagged)), TxOutcome::Sent);
        assert_eq!(receive(&mut b, 1, Offloads::NONE).frames, [tagged]);
    }
    // The place of a checksum moves with it.
    let (large, offload) = large_frame(3000);
    let mut tagged = large;
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let checksum = offload.checksum.map(|checksum| PartialChecksum { start: checksum.start + 4, ..checksum });
    let offload = Offload { checksum, ..offload };
    assert_eq!(a.transmit_offloaded(Span::from_slice(&tagged), &offload), TxOutcome::Sent);
    let basket = receive(&mut b, 1, Offloads::ALL);
    assert!(basket.frames == [tagged]);
    assert_eq!(basket.left, [offload]);
}

/// TCP over IPv4 with `payload` bytes in segments of 1448.
fn large_frame(payload: usize) -> (Vec<u8>, Offload) {
    let mut bytes = vec![2; 14 + 40];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 7, 7, 1, 10, 7, 7, 2]);
    bytes[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    let checksum = Sum::of(&bytes[14..34]).checksum();
    bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    bytes[46] = 0x50;
    let pseudo = Sum::of(&bytes[26..34]).with(6 + 20 + payload as u32).folded();
    bytes[50..52].copy_from_slice(&pseudo.to_be_bytes());
    bytes.extend((0..payload).map(|at| (at * 31) as u8));
    let segments = Segments { kind: SegmentKind::Tcp4, ecn: false, size: 1448, header_len: 0 };
    (bytes, Offload { checksum: Some(PartialChecksum { start: 34, offset: 16 }), segments: Some(segments) })
}

#[test]
fn large_frames_pass_whole_or_are_cut() {
    if with_cable("large_frames_pass_whole_or_are_cut") {
        return;
    }
    let (mut a, mut b) = (port("af_packet:pkt-a"), port("af_packet:pkt-b"));
    // One that fits into a slot, and one that does not.
    for payload in [1460, 60_000] {
        let (large, offload) = large_frame(payload);
        assert_eq!(a.transmit_offloaded(Span::from_slice(&large), &offload), TxOutcome::Sent);
        let basket = receive(&mut b, 1, Offloads::ALL);
        assert!(basket.frames == [large.clone()]);
        assert_eq!(basket.left, [offload]);

        assert_eq!(a.transmit_offloaded(Span::from_slice(&large), &offload), TxOutcome::Sent);
        let segments = receive(&mut b, payload.div_ceil(1448), Offloads::NONE).frames;
        let joined: Vec<u8> = segments.iter().flat_map(|segment| segment[54..].to_vec()).collect();
        assert!(joined == large[54..]);
        for segment in &segments {
            let pseudo = Sum::of(&segment[26..34]).with(6 + segment.len() as u32 - 34);
            assert_eq!(pseudo.plus(Sum::of(&segment[34..])).folded(), 0xffff);
        }
    }
    assert_eq!((a.counters().tx_frames(), b.counters().rx_offered()), (4, 1 + 2 + 1 + 42));

    let (large, offload) = large_frame(3000);
    let wrong = Offload { checksum: Some(PartialChecksum { start: 60_000, offset: 16 }), ..offload };
    assert_eq!(a.transmit_offloaded(Span::from_slice(&large), &wrong), TxOutcome::Dropped(DropReason::Offload));
}

#[test]
fn an_interface_goes_down_and_up_and_away() {
    if with_cable("an_interface_goes_down_and_up_and_away") {
        return;
    }
    let mut a = port("af_packet:pkt-a");
    let counters = a.counters().clone();
    let bytes = frame(0, 60);
    assert_eq!(a.transmit(Span::from_slice(&bytes)), TxOutcome::Sent);
    until("link", || counters.link());
    assert!(ip("link set pkt-b down"));
    until("no link", || !counters.link());
    assert_eq!(a.transmit(Span::from_slice(&bytes)), TxOutcome::Dropped(DropReason::LinkDown));
    let burst = a.transmit_burst(&[Span::from_slice(&bytes); 3]);
    assert_eq!(burst, Burst { taken: 3, dropped: 3, dropped_bytes: 180 });
    assert!(ip("link set pkt-b up"));
    until("link", || counters.link());

    assert!(ip("link set pkt-a down"));
    until("no link", || !counters.link());
    assert_eq!(a.transmit(Span::from_slice(&bytes)), TxOutcome::Dropped(DropReason::LinkDown));
    // The socket's error is taken away, so that a worker that waits for the socket sleeps.
    a.prepare_sleep();
    assert_eq!(a.receive(64, &mut Basket::default()), 0);
    let mut waits = [PollFd::from_borrowed_fd(a.wake_fd().unwrap(), PollFlags::IN)];
    assert_eq!(poll(&mut waits, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })), Ok(0));
    assert!(ip("link set pkt-a up"));
    until("link", || counters.link());
    until("sending", || a.transmit(Span::from_slice(&bytes)) == TxOutcome::Sent);
    let mut b = port("af_packet:pkt-b");
    until("a frame", || {
        assert_eq!(b.transmit(Span::from_slice(&bytes)), TxOutcome::Sent);
        a.receive(64, &mut Basket::default()) > 0
    });

    assert!(ip("link delete pkt-a"));
    until("the end", || a.wake_fd().is_none());
    assert!(!counters.link());
    assert_eq!(a.transmit(Span::from_slice(&bytes)), TxOutcome::Dropped(DropReason::LinkDown));
    let dropped = counters.tx_drops().map(|(_, count)| count).sum::<u64>();
    assert_eq!(counters.tx_offered(), counters.tx_frames() + dropped);
}

#[test]
fn every_flow_goes_to_one_of_several_queues() {
    if with_cable("every_flow_goes_to_one_of_several_queues") {
        return;
    }
    let mut a = port("af_packet:pkt-a");
    let mut queues = ports("af_packet:pkt-b,queues=3").unwrap();
    assert_eq!(queues.len(), 3);
    for flow in 0..200u8 {
        let (mut frame, _) = large_frame(10);
        frame[29] = flow;
        frame[24..26].fill(0);
        let checksum = Sum::of(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(a.transmit(Span::from_slice(&frame)), TxOutcome::Sent);
    }
    until("frames", || {
        queues.iter_mut().for_each(|queue| {
            queue.receive(64, &mut Basket::default());
        });
        queues.iter().map(|queue| queue.counters().rx_frames()).sum::<u64>() == 200
    });
    assert!(queues.iter().all(|queue| queue.counters().rx_frames() > 20), "flows are not spread");
}

#[test]
fn errors_say_what_to_do() {
    let name: InterfaceName = "eth0".parse().unwrap();
    for (errno, hint) in
        [(Errno::PERM, "cap_net_raw"), (Errno::NODEV, "`ip link`"), (Errno::NOMEM, "cannot bind af_packet:eth0")]
    {
        let error = AfPacketError::from_errno(errno, "bind", &name).to_string();
        assert!(error.contains(hint) && error.contains("eth0"), "{error}");
    }
    let error = ports("af_packet:no-such-if").err().expect("an error").to_string();
    assert!(error.contains("no interface no-such-if"), "{error}");
}
