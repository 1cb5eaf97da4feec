//! Real packets through the engine in the kernel, between hosts in network namespaces.

mod net;

use millrace_router::Reason;
use millrace_router::engine::{Engine, How, Mode, State};
use net::{Net, run};
use std::net::UdpSocket;
use std::time::Duration;

/// Sends `count` datagrams from the left to the right and back, one after the other; the addresses that the right saw.
fn talk(net: &Net, v6: bool, count: u32, port: u16) -> Vec<std::net::SocketAddr> {
    let right_address = if v6 { "fd02::2" } else { "10.2.0.2" };
    let right = net.right.act(move || UdpSocket::bind((right_address, port)).unwrap());
    let left = net.left.act(move || UdpSocket::bind((if v6 { "fd01::2" } else { "10.1.0.2" }, 4000)).unwrap());
    for socket in [&left, &right] {
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    }
    let mut seen = Vec::new();
    let mut buffer = [0; 2048];
    for number in 0..count {
        let message = format!("packet {number} of {count}");
        left.send_to(message.as_bytes(), (right_address, port)).unwrap();
        let (len, from) =
            right.recv_from(&mut buffer).unwrap_or_else(|error| panic!("{message} is lost on its way: {error}"));
        assert_eq!(&buffer[..len], message.as_bytes());
        seen.push(from);
        right.send_to(message.as_bytes(), from).unwrap();
        let (len, _) =
            left.recv_from(&mut buffer).unwrap_or_else(|error| panic!("{message} is lost on its way back: {error}"));
        assert_eq!(&buffer[..len], message.as_bytes());
    }
    seen
}

fn packets(engine: &Engine, reason: Reason) -> u64 {
    engine.counters().unwrap().iter().find(|counter| counter.reason == reason).unwrap().packets
}

fn show(engine: &Engine) {
    for counter in engine.counters().unwrap().iter().filter(|counter| counter.packets > 0) {
        eprintln!("{:>8} {:10} {}", counter.packets, counter.reason.step(), counter.reason);
    }
    engine.rules().for_each(|rule| eprintln!("{rule:?}"));
}

#[test]
fn packets_are_routed_without_linux() {
    let Some(net) = Net::new() else { return };
    for how in [How::Xdp, How::Tc] {
        for v6 in [false, true] {
            let engine = net.engine(how, Mode::Route);
            talk(&net, v6, 50, 5000);
            show(&engine);
            assert!(packets(&engine, Reason::Fast) >= 90, "{how:?} {v6}: only the first of each direction go by Linux");
            let active = engine.rules().filter(|rule| rule.state == State::Active && rule.packets >= 45).count();
            assert_eq!(active, 2, "{how:?} {v6}: one rule for each direction");
        }
    }
}

#[test]
fn addresses_are_translated_as_conntrack_says() {
    let Some(net) = Net::new() else { return };
    run(
        "nft add table ip nat; nft 'add chain ip nat post { type nat hook postrouting priority 100; }'; nft add rule ip nat post oifname right masquerade",
    );
    for how in [How::Xdp, How::Tc] {
        let engine = net.engine(how, Mode::Conntrack);
        let seen = talk(&net, false, 50, 5001);
        show(&engine);
        assert!(seen.iter().all(|from| from.ip().to_string() == "10.2.0.1"), "{how:?}: {seen:?}");
        assert!(seen.iter().all(|from| from == &seen[0]), "{how:?}: the port stays");
        assert!(packets(&engine, Reason::Fast) >= 90, "{how:?}: only the first of each direction go by Linux");
    }
}
