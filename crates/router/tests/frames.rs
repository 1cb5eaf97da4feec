//! Frames through the program one by one (`BPF_PROG_TEST_RUN`): what it makes of them byte for byte, and that nothing that may come breaks it.

mod net;

use millrace_router::Reason;
use millrace_router::engine::layout::device_flag as flag;
use millrace_router::engine::{Change, Device, Engine, Fdb, How, Key, Mode, Rule, State, Upper, UpperKind};
use net::{Net, run};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PASS: u32 = 2;
const REDIRECT: u32 = 4;

fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A datagram from the left host to the right one, with a front of its own before IP. The checksum of UDP is right.
fn datagram(front: &[u8], port: u16, ttl: u8) -> Vec<u8> {
    let payload = b"payload of a datagram";
    let len = 8 + payload.len() as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, ttl, 17, 0, 0, 10, 1, 0, 2, 10, 2, 0, 2];
    ip[2..4].copy_from_slice(&(20 + len).to_be_bytes());
    let header = !sum(&ip);
    ip[10..12].copy_from_slice(&header.to_be_bytes());
    let mut udp = port.to_be_bytes().to_vec();
    udp.extend_from_slice(&7_u16.to_be_bytes());
    udp.extend_from_slice(&len.to_be_bytes());
    udp.extend_from_slice(&[0, 0]);
    udp.extend_from_slice(payload);
    let pseudo: Vec<u8> =
        ip[12..20].iter().copied().chain([0, 17]).chain(len.to_be_bytes()).chain(udp.iter().copied()).collect();
    let check = !sum(&pseudo);
    udp[6..8].copy_from_slice(&check.to_be_bytes());
    [front, &ip, &udp].concat()
}

fn ethernet(to: [u8; 6]) -> Vec<u8> {
    [&to[..], &[2, 0, 0, 0, 0, 9], &[8, 0]].concat()
}

/// The rule that a frame has made, put in force.
fn trusted(engine: &Engine, ifindex: u32, frame: &[u8]) -> Rule {
    assert_eq!(engine.try_frame(ifindex, frame).unwrap().verdict, PASS, "the first one is Linux's");
    let rule = engine.rules().find(|rule| rule.state == State::Trial);
    let rule = rule.unwrap_or_else(|| panic!("no rule was made: {:?}", counted(engine)));
    assert!(engine.trust(&rule));
    rule
}

fn counted(engine: &Engine) -> Vec<(&'static str, u64)> {
    engine
        .counters()
        .unwrap()
        .iter()
        .filter(|counter| counter.packets > 0)
        .map(|counter| (counter.reason.name(), counter.packets))
        .collect()
}

fn packets(engine: &Engine, reason: Reason) -> u64 {
    engine.counters().unwrap().iter().find(|counter| counter.reason == reason).unwrap().packets
}

/// A router between the two hosts that knows the right one's Ethernet address.
fn router() -> Option<(Net, Engine, [u8; 6], [u8; 6])> {
    let net = Net::new()?;
    let engine = net.engine(How::Xdp, Mode::Route);
    let (left, host) = (net::mac("left"), net.right.act(|| net::mac("eth0")));
    Some((net, engine, left, host))
}

#[test]
fn a_frame_leaves_as_linux_would_send_it() {
    let Some((net, engine, left, host)) = router() else { return };
    let frame = datagram(&ethernet(left), 4000, 64);
    trusted(&engine, net.left_index, &frame);
    // With padding behind the packet, which Linux takes off.
    let outcome = engine.try_frame(net.left_index, &[&frame[..], &[0; 5]].concat()).unwrap();
    assert_eq!(outcome.verdict, REDIRECT, "{:?}", counted(&engine));
    let mut expected = datagram(&[&host[..], &net::mac("right"), &[8, 0]].concat(), 4000, 63);
    assert_eq!(outcome.frame, expected);
    // A wrong checksum of UDP stays wrong, and none stays none.
    for check in [[0x12, 0x34], [0, 0]] {
        let mut wrong = frame.clone();
        wrong[40..42].copy_from_slice(&check);
        expected[40..42].copy_from_slice(&check);
        assert_eq!(engine.try_frame(net.left_index, &wrong).unwrap().frame, expected);
    }
}

#[test]
fn tags_and_sessions_come_off_and_on() {
    let Some((net, engine, left, host)) = router() else { return };
    // Interfaces of VLANs and PPP do not exist here: others have their addresses and routes, and the engine is told what they lie on.
    run(
        "ip link add wan type veth peer name wan2; ip link add lan type veth peer name lan2; for i in wan wan2 lan lan2; do ip link set $i up; done; ip addr flush dev left; ip addr flush dev right",
    );
    run(
        "ip addr add 10.1.0.1/16 dev lan; ip addr add 10.2.0.1/16 dev wan; ip neigh replace 10.2.0.2 lladdr 02:00:00:00:00:77 dev wan nud permanent",
    );
    run("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.lan.rp_filter=0");
    let (lan, wan) = (net::index("lan"), net::index("wan"));
    let device = |lower, mac| Device { flags: flag::UP | flag::FORWARD4, lower, mtu: 1500, mac, ..Device::default() };
    let right = net::mac("right");
    let tagged = [&ethernet(left)[..12], &[0x81, 0x00, 0x60, 10, 8, 0]].concat();
    let frame = datagram(&tagged, 4000, 64);
    let session =
        [&ethernet(left)[..12], &[0x81, 0x00, 0x00, 7, 0x88, 0x64, 0x11, 0, 0x12, 0x34, 0, 51, 0, 0x21]].concat();
    let in_session = datagram(&session, 4000, 64);

    // Without any of them, a tag is nobody's.
    assert_eq!(engine.try_frame(net.left_index, &frame).unwrap().verdict, PASS);
    assert_eq!(packets(&engine, Reason::VlanUnknown), 1);
    // In by a VLAN, out by another one on top of which a session lies.
    engine.set_upper(&Upper { lower: net.left_index, kind: UpperKind::Vlan(0x8100, 10) }, lan).unwrap();
    engine
        .set_device(
            lan,
            &Device {
                flags: flag::UP | flag::FORWARD4 | flag::VLAN,
                vlan: (0x8100, 10),
                ..device(net.left_index, left)
            },
        )
        .unwrap();
    let vlan = 9000;
    let on_vlan = Device { flags: flag::UP | flag::VLAN, vlan: (0x8100, 20), ..device(net.right_index, right) };
    engine.set_device(vlan, &on_vlan).unwrap();
    let ppp =
        Device { flags: flag::UP | flag::FORWARD4 | flag::PPPOE, session: 0x4321, peer: host, ..device(vlan, right) };
    engine.set_device(wan, &ppp).unwrap();
    trusted(&engine, net.left_index, &frame);
    let outcome = engine.try_frame(net.left_index, &frame).unwrap();
    let front = [&host[..], &right, &[0x81, 0, 0, 20, 0x88, 0x64, 0x11, 0, 0x43, 0x21, 0, 51, 0, 0x21]].concat();
    assert_eq!((outcome.verdict, outcome.frame), (REDIRECT, datagram(&front, 4000, 63)));

    // In by a session on a VLAN, out by a VLAN of two tags.
    engine.set_upper(&Upper { lower: net.left_index, kind: UpperKind::Vlan(0x8100, 7) }, vlan + 1).unwrap();
    engine.set_upper(&Upper { lower: vlan + 1, kind: UpperKind::Pppoe(0x1234) }, lan).unwrap();
    engine.remove_upper(&Upper { lower: net.left_index, kind: UpperKind::Vlan(0x8100, 10) }).unwrap();
    engine
        .set_device(
            lan,
            &Device { flags: flag::UP | flag::FORWARD4 | flag::PPPOE, session: 0x1234, ..device(vlan + 1, left) },
        )
        .unwrap();
    engine.set_device(vlan, &Device { vlan: (0x88a8, 30), ..on_vlan }).unwrap();
    engine
        .set_device(wan, &Device { flags: flag::UP | flag::VLAN, vlan: (0x8100, 40), ..device(vlan, right) })
        .unwrap();
    trusted(&engine, net.left_index, &in_session);
    let outcome = engine.try_frame(net.left_index, &in_session).unwrap();
    let front = [&[2, 0, 0, 0, 0, 0x77][..], &net::mac("wan"), &[0x88, 0xa8, 0, 30, 0x81, 0, 0, 40, 8, 0]].concat();
    assert_eq!((outcome.verdict, outcome.frame), (REDIRECT, datagram(&front, 4000, 63)));
    // Control packets of PPP are Linux's, and so is everything when the part is off.
    let mut control = in_session.clone();
    control[24..26].copy_from_slice(&[0xc0, 0x21]);
    assert_eq!(engine.try_frame(net.left_index, &control).unwrap().verdict, PASS);
    assert_eq!(packets(&engine, Reason::PppoeControl), 1);
    engine.set_parts(0x7f & !4);
    assert_eq!(engine.try_frame(net.left_index, &in_session).unwrap().verdict, PASS);
    assert_eq!(packets(&engine, Reason::PppoeOff), 1);
}

#[test]
fn what_is_not_as_it_should_be_goes_to_linux_unchanged() {
    let Some((net, engine, left, _)) = router() else { return };
    let frame = datagram(&ethernet(left), 4000, 64);
    trusted(&engine, net.left_index, &frame);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = frame.clone();
        change(&mut frame);
        frame[24..26].copy_from_slice(&[0, 0]);
        let check = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&check.to_be_bytes());
        frame
    };
    let mut wrong_sum = frame.clone();
    wrong_sum[24] ^= 1;
    let cases: Vec<(Reason, Vec<u8>)> = vec![
        (Reason::IpChecksum, wrong_sum),
        (Reason::ErrorShown, with(&|frame| frame[22] = 1)),
        (Reason::ErrorShown, with(&|frame| frame[22] = 0)),
        (Reason::IpOptions, with(&|frame| frame[14] = 0x46)),
        (Reason::IpHeader, with(&|frame| frame[14] = 0x44)),
        (Reason::IpHeader, with(&|frame| frame[14] = 0x65)),
        (Reason::IpHeader, with(&|frame| frame[16..18].copy_from_slice(&[0, 19]))),
        (Reason::IpHeader, with(&|frame| frame[16..18].copy_from_slice(&[4, 0]))),
        (Reason::Fragment, with(&|frame| frame[20] = 0x20)),
        (Reason::Fragment, with(&|frame| frame[21] = 8)),
        (Reason::Protocol, with(&|frame| frame[23] = 132)),
        (Reason::L4Header, with(&|frame| frame[39] = 200)),
        (Reason::L4Header, with(&|frame| (frame[23], frame[46]) = (6, 0x10))),
        (Reason::Martian, with(&|frame| frame[26] = 127)),
        (Reason::Martian, with(&|frame| frame[26] = 0)),
        (Reason::Martian, with(&|frame| frame[26] = 240)),
        (Reason::Martian, with(&|frame| frame.copy_within(26..30, 30))),
        (Reason::RouteLocal, with(&|frame| frame[33] = 1)),
        (Reason::Multicast, with(&|frame| frame[0] |= 1)),
        (Reason::NotOurs, with(&|frame| frame[5] ^= 1)),
        (Reason::NotIp, with(&|frame| frame[13] = 6)),
    ];
    for (reason, frame) in cases {
        let before = packets(&engine, reason);
        let outcome = engine.try_frame(net.left_index, &frame).unwrap();
        assert_eq!((outcome.verdict, &outcome.frame), (PASS, &frame), "{reason}");
        assert_eq!(packets(&engine, reason), before + 1, "{reason}: {:?}", counted(&engine));
    }
}

/// Where the collection of captures is: said, or beside the repository. Without one the other frames have to do.
fn captures() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/captures");
    std::env::var_os("MILLRACE_CAPTURES").map_or_else(beside, PathBuf::from)
}

/// Frames of captures of Ethernet in `folder`; pcapng and other links are left out.
fn captured(folder: &Path) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        let little = match bytes.get(..4) {
            Some([0xd4, 0xc3, 0xb2, 0xa1]) => true,
            Some([0xa1, 0xb2, 0xc3, 0xd4]) => false,
            _ => continue,
        };
        let word = |at: usize| {
            let bytes: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) } as usize)
        };
        if word(20) != Some(1) {
            continue;
        }
        let mut at = 24;
        while let Some(len) = word(at + 8) {
            let Some(frame) = bytes.get(at + 16..at + 16 + len) else { break };
            frames.push(frame.to_vec());
            at += 16 + len;
        }
    }
    frames
}

#[test]
fn whatever_comes_is_sent_on_by_a_rule_or_left_as_it_is() {
    let Some((net, engine, left, _)) = router() else { return };
    let frame = datagram(&ethernet(left), 4000, 64);
    trusted(&engine, net.left_index, &frame);
    let mut random = fastrand::Rng::with_seed(15);
    let mut frames = captured(&captures());
    let real = frames.len();
    // The same for us, which the router looks at more closely.
    for number in 0..real {
        let mut copy = frames[number].clone();
        if let Some(to) = copy.get_mut(..6) {
            to.copy_from_slice(&left);
        }
        frames.push(copy);
    }
    for _ in 0..20_000 {
        let mut changed = frame.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(0..changed.len());
            changed[at] = random.u8(..);
        }
        if random.u8(0..4) == 0 {
            changed.truncate(random.usize(14..=changed.len()));
        }
        frames.push(changed);
    }
    for _ in 0..5_000 {
        let mut noise: Vec<u8> = (0..random.usize(14..200)).map(|_| random.u8(..)).collect();
        noise[..6].copy_from_slice(&left);
        noise[12..14].copy_from_slice(&random.choice([[8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0x64]]).unwrap());
        frames.push(noise);
    }
    let (mut tried, mut sent) = (0, 0);
    for frame in &frames {
        // Shorter ones than an Ethernet header never get to a program.
        if !(14..=3000).contains(&frame.len()) {
            continue;
        }
        tried += 1;
        let outcome = engine.try_frame(net.left_index, frame).unwrap();
        match outcome.verdict {
            PASS => assert!(&outcome.frame == frame, "a frame that is Linux's has changed: {frame:02x?}"),
            REDIRECT => {
                sent += 1;
                assert_eq!(&frame[..6], &left, "only what is for the router is routed");
                assert_eq!((&frame[14..15], &frame[26..34]), (&[0x45][..], &[10, 1, 0, 2, 10, 2, 0, 2][..]));
            }
            other => panic!("verdict {other} for {frame:02x?}"),
        }
    }
    eprintln!("{tried} frames, {real} of them from captures, {sent} sent on; {:?}", counted(&engine));
    assert!(sent > 100, "some changes do no harm");
}

#[test]
fn many_rules_are_compiled_ahead() {
    let Some((net, engine, left, _)) = router() else { return };
    let key = |number: u32| Key {
        input: net.left_index,
        source: [10, 1, 0, 2].into(),
        destination: [10, 2, 0, 2].into(),
        source_port: number as u16,
        destination_port: 1000 + (number >> 16) as u16,
        protocol: 17,
        dscp: 0,
    };
    let keys: Vec<Key> = (0..100_000).map(key).collect();
    let begin = Instant::now();
    assert_eq!(engine.compile(net.left_index, left, &keys).unwrap(), keys.len());
    let time = begin.elapsed();
    let made = engine.rules().filter(|rule| rule.state == State::Trial).count();
    eprintln!("{made} rules in {time:?}");
    // Two seconds later the places of the first may be others', on a machine that is so busy.
    if time < Duration::from_secs(2) {
        assert!(made > 99_000, "{made} of {} have found a place: {:?}", keys.len(), counted(&engine));
    }
    let rule = engine.find(&keys[99_999]).unwrap();
    assert_eq!((rule.key, rule.state), (keys[99_999], State::Trial));
}

#[test]
fn processors_that_meet_in_the_table_leave_it_whole() {
    let Some((net, engine, left, _)) = router() else { return };
    let flows = 200;
    // To several hosts, so that a mixture of two rules would go to the wrong one.
    let host = |flow: u16| (flow % 8 + 10) as u8;
    for number in 10..18 {
        run(&format!("ip neigh replace 10.2.0.{number} lladdr 02:00:00:00:01:{number:02x} dev right nud permanent"));
    }
    let frames: Vec<_> = (0..flows)
        .map(|flow| {
            let mut frame = datagram(&ethernet(left), 5000 + flow, 64);
            frame[33] = host(flow);
            frame[24..26].fill(0);
            let header = !sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&header.to_be_bytes());
            frame
        })
        .collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (engine, frames, stop) = (&engine, &frames, &stop);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let flow = random.usize(..frames.len());
                    let frame = &frames[flow];
                    let outcome = engine.try_frame(net.left_index, frame).unwrap();
                    assert!(outcome.verdict == REDIRECT || &outcome.frame == frame);
                    // What is sent on is sent on right, whatever the others do.
                    if outcome.verdict == REDIRECT {
                        assert_eq!(outcome.frame[..6], [2, 0, 0, 0, 1, host(flow as u16)]);
                        assert_eq!((&outcome.frame[26..38], outcome.frame[22]), (&frame[26..38], 63));
                    }
                }
            });
        }
        let mut random = fastrand::Rng::with_seed(99);
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            for rule in engine.rules().filter(|rule| rule.state != State::Dead) {
                match random.u8(0..10) {
                    0 => drop(engine.kill(&rule).unwrap()),
                    1..=6 => drop(engine.trust(&rule)),
                    _ => {}
                }
            }
            engine.bump([Change::Routes, Change::Ruleset, Change::Device(net.right_index)][random.usize(..3)]);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let live: Vec<Key> = engine.rules().filter(|rule| rule.state != State::Dead).map(|rule| rule.key).collect();
    let distinct: std::collections::HashSet<_> = live.iter().collect();
    eprintln!("{} live rules; {:?}", live.len(), counted(&engine));
    assert_eq!(live.len(), distinct.len(), "no flow has two rules");
    assert!(packets(&engine, Reason::Fast) > 0);
}

#[test]
fn next_hops_are_given_back_before_there_are_none() {
    let Some((net, engine, left, _)) = router() else { return };
    let frame = datagram(&ethernet(left), 4000, 64);
    trusted(&engine, net.left_index, &frame);
    let first = engine.hops().count();
    // Each change of the neighbour's address is another next hop.
    for number in 0..32 {
        run(&format!("ip neigh replace 10.2.0.2 lladdr 02:00:00:00:01:{number:02x} dev right nud permanent"));
        engine.bump(Change::Routes);
        engine.try_frame(net.left_index, &datagram(&ethernet(left), 5000 + number, 64)).unwrap();
    }
    assert!(engine.hops().count() >= first + 30);
    engine.renew_hops().unwrap();
    assert_eq!(engine.hops().count(), 0);
    // Whoever had a rule makes it again.
    engine.rules().filter(|rule| rule.state == State::Trial).for_each(|rule| drop(engine.kill(&rule)));
    trusted(&engine, net.left_index, &frame);
    assert_eq!(engine.try_frame(net.left_index, &frame).unwrap().verdict, REDIRECT);
    assert_eq!(engine.hops().count(), 1);
}

/// A router with a table of 1,024 rules.
fn small_router() -> Option<(Net, Engine, [u8; 6])> {
    let net = Net::new()?;
    let engine = Engine::load(&millrace_router::engine::Config { rules4: 1024, ..Default::default() }).unwrap();
    for (name, ifindex) in [("left", net.left_index), ("right", net.right_index)] {
        engine.set_device(ifindex, &net::device(name)).unwrap();
        engine.attach(ifindex, How::Xdp).unwrap();
    }
    engine.set_mode(Mode::Route);
    Some((net, engine, net::mac("left")))
}

#[test]
fn flows_of_one_packet_make_room_for_others() {
    // As long as rules in force have to be idle before they make room, and as long as their slots rest then.
    const REST: Duration = Duration::from_secs(2);
    const NEWCOMERS: std::ops::Range<u16> = 10_000..10_030;
    let Some((net, engine, left)) = small_router() else { return };
    let verdict = |port| engine.try_frame(net.left_index, &datagram(&ethernet(left), port, 64)).unwrap().verdict;
    let send = |port| assert_ne!(verdict(port), 0, "no verdict");
    let trust_all =
        || engine.rules().filter(|rule| rule.state == State::Trial).for_each(|rule| assert!(engine.trust(&rule)));
    let in_force = |ports: std::ops::Range<u16>| {
        engine.rules().filter(|rule| rule.state == State::Active && ports.contains(&rule.key.source_port)).count()
    };
    let kept = 65_000;
    let begin = Instant::now();
    send(kept);
    (0..4000).for_each(send);
    trust_all();
    let full = in_force(0..4000);
    assert!(full > 1000, "{full}");
    let before = packets(&engine, Reason::NewRule);
    NEWCOMERS.for_each(send);
    let at_once = packets(&engine, Reason::NewRule) - before;
    // On a machine that has stood still in between, they may have been idle for long enough.
    assert!(at_once < 15 || begin.elapsed() >= REST, "there was no room: {at_once} of {}", NEWCOMERS.len());

    // Newcomers go on as well, and Linux sends them on.
    let (mut sent, end) = (begin, Instant::now() + Duration::from_secs(120));
    while in_force(NEWCOMERS) < NEWCOMERS.len() {
        assert!(Instant::now() < end, "{} have found room: {:?}", in_force(NEWCOMERS), counted(&engine));
        std::thread::sleep(Duration::from_millis(50));
        let before = std::mem::replace(&mut sent, Instant::now());
        let is_fast = verdict(kept) == REDIRECT;
        // Half a second is for how coarse the kernel's clock is, and for what comes between the packet and ours.
        assert!(is_fast || before.elapsed() > REST - Duration::from_millis(500), "who goes on is not in the way");
        NEWCOMERS.for_each(send);
        trust_all();
    }
    // Each has ended one, and perhaps another one that it did not need then.
    let left = in_force(0..4000);
    assert!(left + 2 * NEWCOMERS.len() >= full, "{left} of {full} are left: {:?}", counted(&engine));
}

#[test]
fn flows_that_come_to_nothing_do_not_fill_the_table() {
    let Some((net, engine, left)) = small_router() else { return };
    for port in 0..4000 {
        engine.try_frame(net.left_index, &datagram(&ethernet(left), port, 64)).unwrap();
    }
    assert!(packets(&engine, Reason::TableFull) > 1000, "{:?}", counted(&engine));
    std::thread::sleep(Duration::from_millis(2500));
    let before = packets(&engine, Reason::NewRule);
    for port in 10_000..10_100 {
        engine.try_frame(net.left_index, &datagram(&ethernet(left), port, 64)).unwrap();
    }
    assert_eq!(packets(&engine, Reason::NewRule), before + 100, "{:?}", counted(&engine));
}

#[test]
fn hosts_of_a_bridge_take_no_more_next_hops_than_it_has_ports() {
    let Some(net) = Net::new() else { return };
    run("ip addr flush dev left; ip addr flush dev right; ip link add span type bridge; ip link set span up");
    run("ip link set left master span; ip link set right master span");
    let (engine, bridge) = (net.engine(How::Xdp, Mode::Route), net::index("span"));
    let span = Device { flags: flag::UP | flag::BRIDGE, mac: net::mac("span"), mtu: 1500, ..Device::default() };
    engine.set_device(bridge, &span).unwrap();
    for (name, ifindex) in [("left", net.left_index), ("right", net.right_index)] {
        let port = Device { flags: flag::UP | flag::PORT, master: bridge, ..net::device(name) };
        engine.set_device(ifindex, &port).unwrap();
    }
    let host = |side: u8, number: u8| [2, 0, 0, 0, side, number];
    for number in 0..60 {
        for (side, port) in [(1, net.left_index), (2, net.right_index)] {
            engine.set_fdb(&Fdb { bridge, vlan: 0, mac: host(side, number) }, port, false, false, None).unwrap();
        }
    }
    // Everybody talks to everybody, and one host puts every tag on its frames that there is.
    let front = |to, from, tag: Option<u16>| {
        let tag = tag.map_or(Vec::new(), |tag| [&[0x81, 0][..], &tag.to_be_bytes()].concat());
        [&host(2, to)[..], &host(1, from), &tag, &[8, 0]].concat()
    };
    for pair in 0..3600_u16 {
        let front = front((pair % 60) as u8, (pair / 60) as u8, None);
        engine.try_frame(net.left_index, &datagram(&front, 1000 + pair, 64)).unwrap();
    }
    for tag in 0..4095 {
        engine.try_frame(net.left_index, &datagram(&front(1, 1, Some(tag << 13 | tag)), 1, 64)).unwrap();
    }
    assert!(packets(&engine, Reason::NewRule) > 7000, "{:?}", counted(&engine));
    assert_eq!(engine.hops().count(), 1, "the other port");
    // A rule is of two hosts, whatever the next hop is; a frame keeps its tag, and its priority.
    let frame = datagram(&front(3, 4, Some(7)), 9, 64);
    engine.try_frame(net.left_index, &frame).unwrap();
    let rule = engine.rules().find(|rule| rule.key.source_port == 9).unwrap();
    assert!(engine.trust(&rule));
    assert_eq!((rule.new_source, rule.new_source_port), (rule.key.source, 9), "nothing is translated");
    let with_priority = datagram(&front(3, 4, Some(5 << 13 | 7)), 9, 64);
    for frame in [frame, with_priority] {
        let outcome = engine.try_frame(net.left_index, &frame).unwrap();
        assert_eq!((outcome.verdict, &outcome.frame), (REDIRECT, &frame));
    }
    let another = datagram(&front(5, 4, Some(7)), 9, 64);
    assert_eq!(engine.try_frame(net.left_index, &another).unwrap().verdict, PASS);
    assert_eq!(packets(&engine, Reason::FdbMoved), 1);
    // The receiver has moved: what leads to its port asks again, and another receiver's rule says the same.
    engine
        .set_fdb(&Fdb { bridge, vlan: 0, mac: host(2, 3) }, net.left_index, false, false, Some(net.right_index))
        .unwrap();
    assert_eq!(engine.try_frame(net.left_index, &datagram(&front(3, 4, Some(7)), 9, 64)).unwrap().verdict, PASS);
}
