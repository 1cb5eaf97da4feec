//! Real packets through the engine in the kernel, between hosts in network namespaces.

mod net;

use millrace_router::Reason;
use millrace_router::engine::layout::device_flag as flag;
use millrace_router::engine::shadow::Shadow;
use millrace_router::engine::{Change, Device, Engine, Fdb, How, Mode, State};
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

#[test]
fn what_rules_make_of_packets_is_what_linux_makes_of_them() {
    let Some(net) = Net::new() else { return };
    run(
        "nft add table ip nat; nft 'add chain ip nat post { type nat hook postrouting priority 100; }'; nft add rule ip nat post oifname right masquerade",
    );
    for how in [How::Xdp, How::Tc] {
        let engine = net.engine(how, Mode::Conntrack);
        engine.set_modes(Mode::Conntrack, Mode::Route);
        engine.set_shadow(1);
        let shadow = Shadow::new(&engine);
        for v6 in [false, true] {
            talk(&net, v6, 20, 5002);
            shadow.poll(Duration::ZERO, |mismatch| panic!("{how:?}: {mismatch:?}")).unwrap();
        }
        show(&engine);
        eprintln!("{how:?}: {:?}", shadow.tally());
        assert!(shadow.tally().same >= 60, "{how:?}: {:?}", shadow.tally());
        assert_eq!((shadow.tally().different, shadow.lost()), (0, 0));
        assert_eq!(packets(&engine, Reason::Fast), 0, "{how:?}: all of them were compared, and sent by Linux");
    }
}

#[test]
fn a_rule_that_linux_does_not_follow_any_more_is_found_by_comparing() {
    let Some(net) = Net::new() else { return };
    let engine = net.engine(How::Xdp, Mode::Route);
    talk(&net, false, 5, 5003);
    // Nobody tells the engine of this.
    run(
        "nft add table ip m; nft 'add chain ip m post { type filter hook postrouting priority 0; }'; nft add rule ip m post oifname right ip dscp set 10",
    );
    engine.set_shadow(1);
    let shadow = Shadow::new(&engine);
    talk(&net, false, 5, 5003);
    let mut found = Vec::new();
    shadow.poll(Duration::ZERO, |mismatch| found.push(mismatch)).unwrap();
    assert!(!found.is_empty());
    let (ours, linux) = (&found[0].ours.frame, &found[0].linux.frame);
    assert_eq!((ours[15] >> 2, linux[15] >> 2), (0, 10), "the DSCP is what is different");
    assert_eq!(ours.len(), linux.len());
    engine.set_shadow(0);
    let before = packets(&engine, Reason::MismatchShadow);
    talk(&net, false, 5, 5003);
    assert_eq!(packets(&engine, Reason::MismatchShadow) - before, 5, "the flow stays with Linux");
    // Until the engine hears that something has changed: then the DSCP is learned.
    engine.bump(Change::Ruleset);
    let fast = packets(&engine, Reason::Fast);
    talk(&net, false, 10, 5003);
    show(&engine);
    assert!(packets(&engine, Reason::Fast) - fast >= 16);
    assert!(engine.rules().any(|rule| rule.state == State::Active && rule.new_dscp == 10 && rule.key.dscp == 0));
}

#[test]
fn a_rule_whose_packets_linux_drops_is_on_trial_again() {
    let Some(net) = Net::new() else { return };
    let engine = net.engine(How::Xdp, Mode::Route);
    talk(&net, false, 5, 5004);
    let active = || engine.rules().filter(|rule| rule.state == State::Active).count();
    assert!(active() >= 2);
    // Nobody tells the engine of this.
    run(
        "nft add table ip m; nft 'add chain ip m f { type filter hook forward priority 0; }'; nft add rule ip m f udp dport 5004 drop",
    );
    let left = net.left.act(|| UdpSocket::bind("10.1.0.2:4000").unwrap());
    let send = |count: u32| {
        let before = packets(&engine, Reason::Fast);
        (0..count).for_each(|_| assert_eq!(left.send_to(&[1; 8], "10.2.0.2:5004").unwrap(), 8));
        packets(&engine, Reason::Fast) - before
    };
    assert_eq!(send(2), 2, "they go around it");
    engine.set_shadow(1);
    let shadow = Shadow::new(&engine);
    send(1);
    engine.set_shadow(0);
    let look = || shadow.poll(Duration::ZERO, |mismatch| panic!("{mismatch:?}")).unwrap();
    look();
    assert_eq!(send(1), 1, "it may still come");
    std::thread::sleep(Duration::from_millis(1050));
    look();
    assert_eq!(shadow.tally().unpaired, 1);
    assert_eq!(send(20), 0);
    assert_eq!(active(), 1, "the other direction");
}

#[test]
fn an_interface_that_takes_no_frames_is_left_alone() {
    let Some(net) = Net::new() else { return };
    net.right.run("ethtool -K eth0 gro off");
    let engine = net.engine(How::Xdp, Mode::Route);
    let right = net.right.act(|| UdpSocket::bind("10.2.0.2:5004").unwrap());
    let left = net.left.act(|| UdpSocket::bind("10.1.0.2:4000").unwrap());
    right.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut lost = 0;
    for number in 0..20_u32 {
        left.send_to(&number.to_be_bytes(), "10.2.0.2:5004").unwrap();
        lost += u32::from(right.recv(&mut [0; 16]).is_err());
    }
    show(&engine);
    assert!((1..=2).contains(&lost), "{lost} packets are lost until that is seen");
    assert!(packets(&engine, Reason::RedirectFailed) >= 15);
}

#[test]
fn the_mtu_of_a_route_is_linuxs_to_tell() {
    let Some(net) = Net::new() else { return };
    // The routing tables do not tell it to the program: bpf_fib_lookup gives the interface's.
    run("ip route add 10.2.0.2/32 dev right mtu 1200");
    let engine = net.engine(How::Xdp, Mode::Route);
    engine.set_route_mtus();
    let right = net.right.act(|| UdpSocket::bind("10.2.0.2:5005").unwrap());
    let left = net.left.act(|| UdpSocket::bind("10.1.0.2:4000").unwrap());
    right.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let send = |len: usize| {
        let sent = left.send_to(&vec![7; len], "10.2.0.2:5005");
        sent.is_ok() && right.recv(&mut [0; 2048]).is_ok_and(|got| got == len)
    };
    for _ in 0..10 {
        assert!(send(500));
    }
    let fast = packets(&engine, Reason::Fast);
    assert!(fast >= 8);
    assert!(send(1172), "as long as the route takes it");
    assert_eq!(packets(&engine, Reason::Fast), fast, "the first of that length is Linux's");
    assert!(send(1172));
    assert_eq!(packets(&engine, Reason::Fast), fast + 1);
    assert!(!send(1173), "longer, and not to be fragmented: Linux tells the sender");
    assert!(send(1173), "who has been told sends fragments");
    assert_eq!(packets(&engine, Reason::Fragment), 2);
    show(&engine);
}

#[test]
fn a_bridge_sends_on_without_linux() {
    let Some(net) = Net::new() else { return };
    run(
        "ip addr flush dev left; ip addr flush dev right; ip link add span type bridge; ip link set span up; ip link set left master span; ip link set right master span",
    );
    net.right.run("ip addr flush dev eth0; ip addr add 10.1.0.3/16 dev eth0");
    net.left.run("ip neigh flush dev eth0; ping -qc1 -W2 10.1.0.3 >/dev/null");
    let engine = net.engine(How::Xdp, Mode::Route);
    let bridge = net::index("span");
    engine
        .set_device(
            bridge,
            &Device { flags: flag::UP | flag::BRIDGE, mac: net::mac("span"), mtu: 1500, ..Device::default() },
        )
        .unwrap();
    for (name, ifindex, host) in [("left", net.left_index, &net.left), ("right", net.right_index, &net.right)] {
        let port = Device { flags: flag::UP | flag::PORT, master: bridge, ..net::device(name) };
        engine.set_device(ifindex, &port).unwrap();
        let mac = host.act(|| net::mac("eth0"));
        engine.set_fdb(&Fdb { bridge, vlan: 0, mac }, ifindex, false, false, None).unwrap();
    }
    let right = net.right.act(|| UdpSocket::bind("10.1.0.3:5006").unwrap());
    let left = net.left.act(|| UdpSocket::bind("10.1.0.2:4000").unwrap());
    right.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let send = |count: u32| {
        for number in 0..count {
            left.send_to(&number.to_be_bytes(), "10.1.0.3:5006").unwrap();
            let mut buffer = [0; 16];
            assert_eq!(right.recv(&mut buffer).unwrap(), 4);
            assert_eq!(buffer[..4], number.to_be_bytes());
        }
    };
    send(50);
    show(&engine);
    assert!(packets(&engine, Reason::Fast) >= 46);
    // The right host is not there any more: the frame is the bridge's to flood.
    let gone = net.right.act(|| net::mac("eth0"));
    engine.remove_fdb(&Fdb { bridge, vlan: 0, mac: gone }, net.right_index).unwrap();
    let fast = packets(&engine, Reason::Fast);
    send(5);
    assert_eq!(packets(&engine, Reason::Fast), fast);
    assert_eq!(packets(&engine, Reason::FdbUnknown), 5);
}

#[test]
fn echoes_are_translated_as_linux_shows() {
    let Some(net) = Net::new() else { return };
    for family in ["ip", "ip6"] {
        run(&format!(
            "nft add table {family} nat; nft 'add chain {family} nat post {{ type nat hook postrouting priority 100; }}'"
        ));
        run(&format!("nft add rule {family} nat post oifname right masquerade"));
    }
    for how in [How::Xdp, How::Tc] {
        for address in ["10.2.0.2", "fd02::2"] {
            let engine = net.engine(how, Mode::Conntrack);
            net.left.run(&format!("ping -qc40 -i0.02 -W2 {address} | grep -q ' 0% packet loss'"));
            show(&engine);
            assert!(packets(&engine, Reason::Fast) >= 70, "{how:?} {address}");
            let translated =
                engine.rules().any(|rule| rule.state == State::Active && rule.key.source != rule.new_source);
            assert!(translated, "{how:?} {address}");
            engine.set_shadow(1);
            let shadow = Shadow::new(&engine);
            net.left.run(&format!("ping -qc20 -i0.02 -W2 {address} | grep -q ' 0% packet loss'"));
            shadow.poll(Duration::ZERO, |mismatch| panic!("{how:?}: {mismatch:?}")).unwrap();
            assert!(shadow.tally().same >= 30, "{how:?} {address}: {:?}", shadow.tally());
        }
    }
}
