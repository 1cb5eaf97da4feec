use super::*;
use crate::{
    Accept, Lent, PortSpec,
    namespace::{self, Rights, ip},
};
use std::time::Duration;

/// Runs the test of this name again in a network namespace with two ends of a cable, `xdp-a` and `xdp-b`; `true` where
/// that is done or not possible.
fn with_cable(test: &str) -> bool {
    with_cable_of(test, "", 1500)
}

fn with_cable_of(test: &str, options: &str, mtu: u32) -> bool {
    if namespace::enter(&format!("af_xdp::tests::{test}"), Rights::OfRoot) {
        return true;
    }
    if !ip(&format!("link add xdp-a mtu {mtu}{options} type veth peer name xdp-b mtu {mtu}{options}")) {
        println!("skipped: `ip` of iproute2 is missing, or this kernel has no veth");
        return true;
    }
    for end in ["xdp-a", "xdp-b"] {
        // Linux shall say nothing unless it is asked.
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/addr_gen_mode"), "1").unwrap();
        assert!(ip(&format!("link set {end} up")));
    }
    false
}

fn ports(spec: &str) -> Result<Vec<AfXdpPort>, AfXdpError> {
    match spec.parse().unwrap() {
        PortSpec::AfXdp(spec) => open(&spec),
        other => panic!("{other}"),
    }
}

fn port(spec: &str) -> AfXdpPort {
    ports(spec).unwrap_or_else(|error| panic!("{spec}: {error}")).remove(0)
}

fn refused(spec: &str) -> String {
    ports(spec).err().unwrap_or_else(|| panic!("{spec} opens")).to_string()
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

/// Everything that comes to `port` until there are `count` frames.
fn receive(port: &mut AfXdpPort, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    until("frames", || {
        port.receive(32, &mut |span: Span<'_>| {
            let mut frame = vec![0; span.len()];
            span.read_into(&mut frame);
            frames.push(frame);
            Accept::Taken
        });
        frames.len() >= count
    });
    frames
}

fn send_all(port: &mut AfXdpPort, frames: &[Vec<u8>]) {
    let spans: Vec<_> = frames.iter().map(|frame| Span::from_slice(frame)).collect();
    let mut sent = 0;
    until("room to send", || {
        sent += port.transmit_burst(&spans[sent..]).taken;
        port.flush();
        sent == frames.len()
    });
}

/// Sends frames of all kinds of lengths up to `most` back and forth, several times round the rings.
fn exchange(a: &mut AfXdpPort, b: &mut AfXdpPort, most: usize) {
    for round in 0..200 {
        let frames: Vec<_> =
            (0..32).map(|number| frame(number, 14 + (round * 97 + number * 61) % (most - 13))).collect();
        send_all(a, &frames);
        assert_eq!(receive(b, frames.len()), frames, "round {round}");
        send_all(b, &frames);
        assert_eq!(receive(a, frames.len()), frames, "round {round}");
    }
    for port in [a, b] {
        let counters = port.counters();
        assert_eq!((counters.rx_frames(), counters.tx_frames(), counters.tx_copies()), (6400, 6400, 6400));
        assert_eq!((counters.rx_offered(), counters.tx_offered()), (6400, 6400));
        assert_eq!(counters.rx_bytes(), counters.tx_bytes());
    }
}

#[test]
fn frames_pass_natively_and_uncopied() {
    if with_cable("frames_pass_natively_and_uncopied") {
        return;
    }
    let (mut a, mut b) = (port("af_xdp:xdp-a"), port("af_xdp:xdp-b,mode=copy"));
    assert_eq!(a.counters().mode(), "native XDP, copied by the kernel");
    assert!(!a.can_wait() && a.wake_fd().is_some() && a.next_due().is_none());
    exchange(&mut a, &mut b, 1514);
    assert_eq!(a.counters().rx_copies(), 0);
    let mut drop = |len, reason| assert_eq!(a.transmit(Span::from_slice(&frame(0, len))), TxOutcome::Dropped(reason));
    drop(2049, DropReason::TooLong);
    drop(crate::MAX_FRAME_LEN + 1, DropReason::TooLong);
    assert_eq!(a.transmit(Span::from_slice(&[0; 13])), TxOutcome::Dropped(DropReason::TooShort));
    assert_eq!(a.counters().tx_offered(), 6403);
}

#[test]
fn large_frames_pass_in_pieces() {
    if with_cable_of("large_frames_pass_in_pieces", "", 9000) {
        return;
    }
    let (mut a, mut b) = (port("af_xdp:xdp-a"), port("af_xdp:xdp-b"));
    assert_eq!(a.counters().mode(), "native XDP, copied by the kernel, frames in several pieces");
    exchange(&mut a, &mut b, 9014);
    assert_eq!(a.counters().rx_copies(), 6400);
}

#[test]
fn frames_of_middle_size_pass_in_one_piece_and_are_asked_for() {
    if with_cable_of("frames_of_middle_size_pass_in_one_piece_and_are_asked_for", "", 3400) {
        return;
    }
    let (mut a, mut b) = (port("af_xdp:xdp-a,busy-poll=on"), port("af_xdp:xdp-b"));
    assert_eq!(a.counters().mode(), "native XDP, copied by the kernel, busy poll");
    exchange(&mut a, &mut b, 3414);
    assert_eq!(a.counters().rx_copies(), 0);
}

#[test]
fn linux_does_what_a_driver_cannot() {
    if with_cable("linux_does_what_a_driver_cannot") {
        return;
    }
    // A bridge has no XDP of its own. What it sends comes out of the other end of the cable.
    assert!(ip("link add xdp-br type bridge") && ip("link set xdp-a master xdp-br") && ip("link set xdp-br up"));
    std::fs::write("/proc/sys/net/ipv6/conf/xdp-br/disable_ipv6", "1").unwrap();
    assert!(refused("af_xdp:xdp-br,mode=zero-copy").contains("mode=copy"));
    let (mut a, mut b) = (port("af_xdp:xdp-br"), port("af_xdp:xdp-b"));
    assert!(a.counters().mode().starts_with("generic XDP (the driver refuses native: "), "{}", a.counters().mode());
    let frames: Vec<_> = (0..64).map(|number| frame(number, 60 + number)).collect();
    send_all(&mut a, &frames);
    assert_eq!(receive(&mut b, 64), frames);
    send_all(&mut b, &frames);
    assert_eq!(receive(&mut a, 64), frames);
}

#[test]
fn every_queue_is_a_port() {
    if with_cable_of("every_queue_is_a_port", " numrxqueues 3 numtxqueues 3", 1500) {
        return;
    }
    assert!(refused("af_xdp:xdp-a,queues=4").contains("fewer than 4 queues"));
    let (mut a, mut b) = (ports("af_xdp:xdp-a,queues=3").unwrap(), ports("af_xdp:xdp-b,queues=3").unwrap());
    for round in 0..100 {
        for (a, b) in a.iter_mut().zip(&mut b) {
            let frames: Vec<_> = (0..50).map(|number| frame(number + round, 64)).collect();
            send_all(a, &frames);
            assert_eq!(receive(b, 50), frames);
        }
    }
    drop(a.remove(0));
    assert!(refused("af_xdp:xdp-a").contains("in use by another card"), "the others still run");
    drop(a);
    port("af_xdp:xdp-a");
}

#[test]
fn nothing_is_lost_without_a_count() {
    if with_cable("nothing_is_lost_without_a_count") {
        return;
    }
    let (mut a, mut b) = (port("af_xdp:xdp-a"), port("af_xdp:xdp-b"));
    // The card has no room.
    let frames: Vec<_> = (0..32).map(|number| frame(number, 64)).collect();
    send_all(&mut a, &frames);
    until("drops", || {
        let mut room = 5;
        b.receive(32, &mut |_: Span<'_>| {
            room -= 1;
            if room >= 0 { Accept::Taken } else { Accept::Full }
        });
        b.counters().rx_offered() == 32
    });
    assert!(b.counters().rx_dropped(DropReason::NoRoom) >= 20, "{:?}", b.counters());
    // The port has no room, because nobody receives.
    let many = 4 * ring::RING as usize;
    for _ in 0..many / 32 {
        send_all(&mut a, &frames);
    }
    until("everything to be counted", || {
        b.receive(32, &mut |_: Span<'_>| Accept::Taken);
        b.prepare_sleep();
        b.awake();
        b.counters().rx_offered() == 32 + many as u64
    });
    assert!(b.counters().rx_dropped(DropReason::KernelFull) > many as u64 / 4, "{:?}", b.counters());
    assert_eq!(a.counters().tx_frames(), 32 + many as u64);
    // And all is well again.
    send_all(&mut a, &frames);
    assert_eq!(receive(&mut b, 32), frames);
}

#[test]
fn checksums_of_linux_are_complete() {
    if with_cable("checksums_of_linux_are_complete") {
        return;
    }
    let mut b = port("af_xdp:xdp-b");
    for (address, neighbour) in [("10.9.9.1/24", "10.9.9.2"), ("fd09::1/64", "fd09::2")] {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        assert!(ip(&format!("address add {address} dev xdp-a{nodad}")));
        assert!(ip(&format!("neighbor add {neighbour} lladdr 02:00:00:00:00:09 dev xdp-a")));
        let socket = std::net::UdpSocket::bind((address.split_once('/').unwrap().0, 0)).unwrap();
        socket.send_to(b"a datagram of odd length", (neighbour, 9)).unwrap();
    }
    let ends_with = |frame: &&Vec<u8>| frame.ends_with(b"a datagram of odd length");
    let mut frames = Vec::new();
    until("both datagrams", || {
        frames.extend(receive(&mut b, 1));
        frames.iter().filter(ends_with).count() == 2
    });
    for frame in frames.iter().filter(ends_with) {
        let (addresses, udp) = if frame[12] == 8 { (26..34, 34) } else { (22..54, 54) };
        let sum = millrace_packet::checksum::Sum::of(&frame[addresses]).with(17).with((frame.len() - udp) as u32);
        let sum = sum.plus(millrace_packet::checksum::Sum::of(&frame[udp..]));
        assert_eq!(sum.folded(), 0xffff, "{frame:02x?}");
    }
}

#[test]
fn an_interface_goes_down_and_up_and_away() {
    if with_cable("an_interface_goes_down_and_up_and_away") {
        return;
    }
    // One that is down is set up.
    assert!(ip("link set xdp-a down"));
    let (mut a, mut b) = (port("af_xdp:xdp-a"), port("af_xdp:xdp-b"));
    let frames = [frame(1, 64), frame(2, 64)];
    let span = Span::from_slice(&frames[0]);
    let counters = a.counters().clone();
    until("the link", || counters.link() && b.counters().link());
    send_all(&mut a, &frames);
    assert_eq!(receive(&mut b, 2), frames);
    for side in ["xdp-a", "xdp-b"] {
        assert!(ip(&format!("link set {side} down")));
        until("no link", || !counters.link());
        let before = counters.tx_dropped(DropReason::LinkDown);
        assert_eq!(a.transmit(span), TxOutcome::Dropped(DropReason::LinkDown));
        let burst = a.transmit_burst(&[span; 3]);
        assert_eq!((burst.taken, burst.dropped, burst.dropped_bytes), (3, 3, 192));
        assert_eq!(counters.tx_dropped(DropReason::LinkDown), before + 4);
        assert!(a.next_due().is_none() && a.receive(32, &mut |_: Span<'_>| Accept::Taken) == 0);
        assert!(ip(&format!("link set {side} up")));
        until("the link", || counters.link() && b.counters().link());
        send_all(&mut a, &frames);
        assert_eq!(receive(&mut b, 2), frames);
    }
    assert!(ip("link delete xdp-a"));
    until("the end", || {
        assert_eq!(a.receive(32, &mut |_: Span<'_>| Accept::Taken), 0);
        a.wake_fd().is_none()
    });
    assert!(!counters.link() && a.next_due().is_none());
    assert_eq!(a.transmit(span), TxOutcome::Dropped(DropReason::LinkDown));
    a.flush();
    a.prepare_sleep();
    assert!(refused("af_xdp:xdp-a").contains("`ip link` lists"));
}

#[test]
fn an_interface_has_one_owner() {
    if with_cable("an_interface_has_one_owner") {
        return;
    }
    let first = port("af_xdp:xdp-a");
    let error = refused("af_xdp:xdp-a");
    assert!(error.contains("in use by another card"), "{error}");
    drop(first);
    let index = name_to_index(Reports::subscribe().unwrap(), "xdp-a").unwrap();
    assert_eq!(Interface::find(index).unwrap().program, None, "a program is left behind");

    // r0 = XDP_PASS; exit
    let program = sys::load_program(&[0x2_0000_00b7, 0x95], 0, *b"somebody\0\0\0\0\0\0\0\0").unwrap();
    let link = sys::attach(&program, index, 0).unwrap();
    let error = refused("af_xdp:xdp-a");
    assert!(error.contains("ip link set dev xdp-a xdp off"), "{error}");
    assert!(Interface::find(index).unwrap().program.is_some(), "somebody's program is gone");
    drop(link);
    assert!(refused("af_xdp:xdp-a,mode=zero-copy").contains("has no zero copy"));
    assert_eq!(Interface::find(index).unwrap().program, None, "a program is left behind");
    port("af_xdp:xdp-a");
}

#[test]
fn errors_say_what_to_do() {
    let name: crate::spec::InterfaceName = "eth1".parse().unwrap();
    for (errno, hint) in [
        (Errno::PERM, "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF"),
        (Errno::NODEV, "`ip link` lists"),
        (Errno::AFNOSUPPORT, "CONFIG_XDP_SOCKETS"),
        (Errno::NOMEM, "cannot open af_xdp:eth1"),
    ] {
        let error = AfXdpError::from_errno(errno, "open", &name).to_string();
        assert!(error.contains(hint) && error.contains("eth1"), "{error}");
    }
    let interface = Interface::find(1).unwrap();
    assert!(socket::too_long(&name, &interface).to_string().contains("mtu 3818"));
    let layout = |mtu, frame_size, pieces| {
        assert_eq!(Layout::for_mtu(mtu), Layout { frame_size, longest: mtu + 22, pieces });
    };
    layout(1500, 2048, false);
    layout(socket::MTU_OF_ONE_PIECE, 4096, false);
    layout(socket::MTU_OF_ONE_PIECE + 1, 4096, true);
}

/// Takes frames in memory of an application, and keeps every one.
struct Keep<'k>(&'k mut Vec<(usize, Vec<u8>)>);

impl Sink for Keep<'_> {
    fn take(&mut self, _: Span<'_>) -> Accept {
        panic!("a frame that is not in the memory of the application")
    }

    fn take_lent(&mut self, at: usize, frame: Span<'_>) -> Lent {
        let mut bytes = vec![0; frame.len()];
        frame.read_into(&mut bytes);
        self.0.push((at, bytes));
        Lent::Kept
    }
}

fn pool(count: u32, size: u32, stride: u32) -> Pool {
    let region = Region::allocate((count * stride) as usize, Pages::Ordinary).unwrap();
    Pool { region, size, stride, count }
}

#[test]
fn frames_lie_in_memory_of_the_application() {
    if with_cable("frames_lie_in_memory_of_the_application") {
        return;
    }
    let (mut a, mut b) = (port("af_xdp:xdp-a"), port("af_xdp:xdp-b"));
    // 2112: buffers that cross pages.
    let (pool, other) = (pool(64, 2048, 2112), pool(64, 2048, 2112));
    let of_b = b.lendable().unwrap();
    of_b.lend(&pool).unwrap();
    let mut buffers = (0..64).map(|number| number * 2112);
    of_b.post(&mut || buffers.next());
    assert!(b.counters().mode().ends_with("in memory of the application"), "{}", b.counters().mode());

    // From the memory of one application to that of the other, and back from where they came to.
    let of_a = a.lendable().unwrap();
    of_a.lend(&other).unwrap();
    for number in 0..32 {
        let at = number * 2112 + 100 + number;
        other.region.window().span_mut(at, 60 + number).unwrap().write_from(&frame(number, 60 + number));
        let bytes = other.region.window().span(at, 60 + number).unwrap();
        assert_eq!(of_a.sender().unwrap().send_from(at, bytes), TxOutcome::Sent);
    }
    a.flush();
    let mut done = 0;
    until("all have left", || {
        done += a.lendable().unwrap().sender().unwrap().sent();
        done == 32
    });
    let mut kept = Vec::new();
    until("all have come", || {
        b.receive(64, &mut Keep(&mut kept));
        kept.len() == 32
    });
    for (number, (at, bytes)) in kept.iter().enumerate() {
        assert_eq!(*bytes, frame(number, 60 + number));
        assert_eq!(pool.region.window().slice(*at, bytes.len()).unwrap(), bytes, "it lies where the port says");
        assert_eq!(b.lendable().unwrap().sender().unwrap().send_from(*at, Span::from_slice(bytes)), TxOutcome::Sent);
    }
    // Behind them one that is copied: it has its own memory on the same queue.
    assert_eq!(b.transmit(Span::from_slice(&frame(99, 99))), TxOutcome::Sent);
    b.flush();
    // Nothing was supplied to the other side, so the kernel drops what comes, and says so.
    until("the kernel has dropped them", || {
        a.prepare_sleep();
        a.counters().rx_dropped(DropReason::KernelFull) == 33
    });
    let mut more = (0..64).map(|number| number * 2112);
    a.lendable().unwrap().post(&mut || more.next());
    assert_eq!(b.transmit(Span::from_slice(&frame(99, 99))), TxOutcome::Sent);
    b.flush();
    assert_eq!(receive(&mut a, 1), [frame(99, 99)], "a sink that copies gives the buffer back");
    assert_eq!((b.counters().tx_frames(), b.counters().tx_copies(), b.counters().rx_copies()), (34, 2, 0));
    // Memory of its own again.
    a.lendable().unwrap().return_pool().unwrap();
    b.lendable().unwrap().return_pool().unwrap();
    until("both have a link", || a.counters().link() && b.counters().link());
    assert_eq!(b.transmit(Span::from_slice(&frame(7, 70))), TxOutcome::Sent);
    b.flush();
    assert_eq!(receive(&mut a, 1), [frame(7, 70)]);
}

#[test]
fn memory_that_does_not_fit_is_refused_and_the_port_goes_on() {
    if with_cable("memory_that_does_not_fit_is_refused_and_the_port_goes_on") {
        return;
    }
    let (mut a, mut b) = (port("af_xdp:xdp-a"), port("af_xdp:xdp-b"));
    let error = a.lendable().unwrap().lend(&pool(64, 1024, 1088)).unwrap_err();
    assert!(error.to_string().contains("buffers of 1024 bytes, where frames of this wire need 2048"), "{error}");
    let closed = Pool { region: pool(64, 2048, 2112).region.without_fd(), size: 2048, stride: 2112, count: 64 };
    assert!(matches!(a.lendable().unwrap().lend(&closed), Err(LendError::Refused(_))));
    assert_eq!(b.transmit(Span::from_slice(&frame(1, 60))), TxOutcome::Sent);
    b.flush();
    assert_eq!(receive(&mut a, 1), [frame(1, 60)]);
}
