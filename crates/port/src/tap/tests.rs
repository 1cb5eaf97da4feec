use super::*;
use crate::{
    Accept, MAX_FRAME_LEN,
    namespace::{self, Rights, ip},
};
use std::{
    num::NonZeroU16,
    time::{Duration, Instant},
};

/// Runs the test of this name again in a fresh network namespace, or skips it; `false` where it is to go on.
fn run_again_in_namespace(test: &str) -> bool {
    if !std::path::Path::new(TUN).exists() {
        println!("skipped: there is no {TUN}; load it with `modprobe tun`");
        return true;
    }
    namespace::enter(test, Rights::OfAnyUser)
}

/// The only queue of interface `name`.
fn open(name: &str) -> Result<TapPort, TapError> {
    TapPort::open(&InterfaceSpec { name: name.parse().unwrap(), queues: NonZeroU16::MIN })
        .map(|mut queues| queues.remove(0))
}

/// Gives every frame that comes to `see` until that says that it has seen enough, or for ten seconds.
fn receive_until(port: &mut TapPort, mut see: impl FnMut(&[u8]) -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    let mut enough = false;
    let mut frame = [0; MAX_FRAME_LEN];
    while !enough && Instant::now() < end {
        port.receive(1, &mut |span: Span<'_>| {
            let len = span.read_into(&mut frame);
            enough |= see(&frame[..len]);
            Accept::Taken
        });
    }
    enough
}

/// Who has 10.9.9.1? Tell 10.9.9.2.
#[rustfmt::skip]
const ARP_REQUEST: [u8; 42] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 6,
    0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 9, 9, 2, 0, 0, 0, 0, 0, 0, 10, 9, 9, 1,
];

#[test]
fn linux_answers_through_a_tap() {
    if run_again_in_namespace("tap::tests::linux_answers_through_a_tap") {
        return;
    }
    let mut port = open("mill-test0").unwrap();
    assert!(!port.can_wait() && port.wake_fd().is_some());

    let error = open("mill-test0").err().expect("an error").to_string();
    assert!(error.contains("in use by another program"), "{error}");
    let error = open("lo").err().expect("an error").to_string();
    assert!(error.contains("no tap interface"), "{error}");

    if !ip("address add 10.9.9.1/24 dev mill-test0") {
        println!("skipped the traffic: `ip` of iproute2 is missing");
        return;
    }
    assert_eq!(port.transmit(Span::from_slice(&ARP_REQUEST)), TxOutcome::Sent);
    let answered = receive_until(&mut port, |frame| {
        frame.len() >= 42 && frame[..6] == ARP_REQUEST[6..12] && frame[12..14] == [8, 6] && frame[20..22] == [0, 2]
    });
    assert!(answered, "no ARP reply");
    let counters = port.counters().clone();
    assert_eq!((counters.tx_frames(), counters.tx_bytes()), (1, 42));
    assert!(counters.rx_frames() >= 1 && counters.rx_bytes() >= 42);

    // No room: the frame is gone, and counted.
    assert_eq!(port.transmit(Span::from_slice(&ARP_REQUEST)), TxOutcome::Sent);
    let end = Instant::now() + Duration::from_secs(10);
    while counters.rx_dropped(DropReason::NoRoom) == 0 && Instant::now() < end {
        assert_eq!(port.receive(32, &mut |_: Span<'_>| Accept::Full), 0);
    }
    assert!(counters.rx_dropped(DropReason::NoRoom) > 0);

    assert_eq!(port.transmit(Span::from_slice(&[0; 13])), TxOutcome::Dropped(DropReason::TooShort));
    assert!(ip("link set mill-test0 down"));
    assert_eq!(port.transmit(Span::from_slice(&ARP_REQUEST)), TxOutcome::Dropped(DropReason::LinkDown));
    assert_eq!(port.transmit(Span::from_slice(&ARP_REQUEST)), TxOutcome::Dropped(DropReason::LinkDown));
    assert!(!counters.link() && port.next_due().is_some());

    // Up again: the port finds out by itself, at the time it asked for.
    assert!(ip("link set mill-test0 up"));
    let end = Instant::now() + Duration::from_secs(10);
    while !counters.link() && Instant::now() < end {
        port.receive(1, &mut |_: Span<'_>| Accept::Taken);
    }
    assert!(counters.link() && port.next_due().is_none());
    assert_eq!(port.transmit(Span::from_slice(&ARP_REQUEST)), TxOutcome::Sent);

    // Somebody takes the interface away.
    assert!(ip("link delete mill-test0"));
    assert_eq!(port.transmit(Span::from_slice(&ARP_REQUEST)), TxOutcome::Dropped(DropReason::WriteFailed));
    while port.wake_fd().is_some() {
        port.receive(32, &mut |_: Span<'_>| Accept::Taken);
    }
    assert_eq!(port.receive(32, &mut |_: Span<'_>| Accept::Taken), 0);
    assert_eq!(counters.rx_dropped(DropReason::ReadFailed), 1);
    assert_eq!(counters.tx_offered(), 7);
}

#[test]
fn frames_longer_than_the_card_takes_are_counted() {
    if run_again_in_namespace("tap::tests::frames_longer_than_the_card_takes_are_counted") {
        return;
    }
    let mut port = open("mill-test1").unwrap();
    if !ip("link set mill-test1 mtu 30000") || !ip("address add 10.9.9.1/24 dev mill-test1") {
        println!("skipped the traffic: `ip` of iproute2 is missing");
        return;
    }
    assert!(ip("neighbor add 10.9.9.2 lladdr 02:00:00:00:00:09 dev mill-test1"));
    let socket = std::net::UdpSocket::bind("10.9.9.1:0").unwrap();
    socket.send_to(&[0; 20_000], "10.9.9.2:9").unwrap();
    socket.send_to(&[0x5a; 9_000], "10.9.9.2:9").unwrap();
    assert!(receive_until(&mut port, |frame| frame.len() == 9_000 + 42), "no jumbo frame");
    assert_eq!(port.counters().rx_dropped(DropReason::TooLong), 1);
}

#[test]
fn an_interface_that_is_there_and_up_is_taken_over_and_left_behind() {
    if run_again_in_namespace("tap::tests::an_interface_that_is_there_and_up_is_taken_over_and_left_behind") {
        return;
    }
    if !ip("tuntap add mill-test2 mode tap") || !ip("link set mill-test2 up") {
        println!("skipped: `ip` of iproute2 is missing");
        return;
    }
    for _ in 0..2 {
        let mut port = open("mill-test2").unwrap();
        assert_eq!(port.transmit(Span::from_slice(&ARP_REQUEST)), TxOutcome::Sent);
    }
    assert!(ip("link show mill-test2"));
}

#[test]
fn errors_say_what_to_do() {
    let name: InterfaceName = "mill0".parse().unwrap();
    for (errno, step, hint) in [
        (Errno::NOENT, "open", "modprobe tun"),
        (Errno::ACCESS, "open", "CAP_NET_ADMIN"),
        (Errno::PERM, "create", "CAP_NET_ADMIN"),
        (Errno::BUSY, "create", "another name"),
        (Errno::INVAL, "create", "no tap interface"),
        (Errno::NOMEM, "bring up", "cannot bring up tap:mill0"),
    ] {
        let error = TapError::from_errno(errno, step, &name).to_string();
        assert!(error.contains(hint) && error.contains("mill0"), "{error}");
    }
}
