//! A card with rules: who gets which frames, in which order, from which worker; nothing is lost without a counter.

use crate::common::{PATIENCE, dropped, rx, settled, tx, within};
use millrace::stats::CardStats;
use millrace::{Device, Mode, QueueId, RxQueue, Sharing, TxQueue};
use millrace_abi::header::RxMetadata;
use millrace_abi::name::{CardOptions, DeviceName};
use millrace_abi::queue::Direction;
use millrace_card::Card;
use millrace_flow::extract::Ingress;
use millrace_flow::language::RuleFile;
use millrace_flow::{Key, rss::Group};
use millrace_packet::parse::Layers;
use millrace_port::pcap::{CaptureTime, Reader, Writer};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn card(options: &str, rules: &str) -> Card {
    let options: CardOptions = match format!("embedded:{options}").parse() {
        Ok(DeviceName::Embedded(options)) => options,
        other => panic!("{other:?}"),
    };
    let card = Card::new(&options).unwrap();
    let file = RuleFile::parse(rules).unwrap_or_else(|error| panic!("{rules}: {error}"));
    let changes = file.items().map(|item| item.change(0).unwrap()).collect();
    card.change_flows(changes).unwrap();
    card
}

/// A UDP datagram over IPv4 that carries its number, from a port that says which flow it is of.
fn datagram(flow: u16, number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len.max(60)];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&[8, 0]);
    let total = (frame.len() - 14) as u16;
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    let sum = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..36].copy_from_slice(&flow.to_be_bytes());
    frame[36..38].copy_from_slice(&80u16.to_be_bytes());
    frame[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    frame[42..46].copy_from_slice(&number.to_be_bytes());
    frame
}

fn flow_of(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[34], frame[35]])
}

fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes([frame[42], frame[43], frame[44], frame[45]])
}

fn capture(path: &Path, frames: &[Vec<u8>]) {
    let mut writer = Writer::create(path).unwrap();
    for (at, frame) in frames.iter().enumerate() {
        writer.write(CaptureTime::from_nanos(at as u64), frame).unwrap();
    }
    writer.flush().unwrap();
}

fn frames_in(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(path).unwrap();
    let mut frames = Vec::new();
    while let Some(frame) = reader.peek().unwrap() {
        frames.push(frame.data.to_vec());
        reader.take();
    }
    frames
}

/// Frames of `flows` flows by turns, of many lengths.
fn traffic(flows: u16, count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|at| datagram(1000 + (at % u32::from(flows)) as u16, at, 60 + (at as usize * 37) % 900)).collect()
}

/// Everything that queues get from a port, until they have as many together as `total` says.
fn receive(
    device: &Device,
    queues: std::ops::Range<u32>,
    spec: &str,
    total: impl Fn(&Device) -> usize,
) -> Vec<Vec<Vec<u8>>> {
    let mut open: Vec<_> = queues.map(|index| rx(device, index, Mode::Direct, Sharing::Exclusive)).collect();
    let mut got = vec![Vec::new(); open.len()];
    device.plug(0, spec).unwrap();
    let begin = std::time::Instant::now();
    while begin.elapsed() < PATIENCE {
        let before: usize = got.iter().map(Vec::len).sum();
        for (queue, got) in open.iter_mut().zip(&mut got) {
            let burst = queue.get(64).unwrap();
            got.extend(burst.iter().map(|packet| packet.data.to_vec()));
        }
        let now: usize = got.iter().map(Vec::len).sum();
        if now == before && now == total(device) && now > 0 {
            return got;
        }
    }
    panic!("{} of {}: {:#?}", got.iter().map(Vec::len).sum::<usize>(), total(device), device.stats().unwrap());
}

fn send(sender: &mut TxQueue, frame: &[u8]) {
    let mut burst = sender.get(&[frame.len() as u16]).unwrap().expect("no room");
    burst[0].copy_from_slice(frame);
    burst.send().unwrap();
}

fn count(device: &Device, name: &str) -> u64 {
    let stats = device.stats().unwrap();
    stats.flows.iter().find(|count| count.reason == name).map_or(0, |count| count.count)
}

#[test]
fn rss_spreads_flows_over_queues_of_two_workers_and_keeps_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let (path, frames) = (folder.path().join("in.pcap"), traffic(300, 20_000));
    capture(&path, &frames);
    let rules = "group=1,rss,queues=0-3\npriority=1,ip,actions=rss:1";
    let card = card("rx=4,tx=1,workers=2,spin=20,port=none", rules);
    let group: Arc<Group> = card.flows(|writer| writer.group(1).cloned()).unwrap();
    let device = Device::on_card(card).unwrap();
    let mut expected = vec![Vec::new(); 4];
    for frame in &frames {
        let key = Key::extract(frame, &Layers::parse(frame), &Ingress::default());
        expected[usize::from(group.queue(group.hash(&key)))].push(frame.clone());
    }
    assert!(expected.iter().all(|queue| queue.len() > 3000));
    let got = receive(&device, 0..4, &format!("pcap:{},speed=100000pps", path.display()), |device| {
        let stats = device.stats().unwrap();
        let dropped: u64 = stats.queues.iter().map(dropped).sum();
        frames.len() - dropped as usize - count(device, "crossing-full") as usize
    });
    for (queue, (got, expected)) in got.iter().zip(&expected).enumerate() {
        // A machine that is busy elsewhere may have let a ring run full: what came is in order, and the rest was counted.
        let mut rest = expected.iter();
        assert!(got.iter().all(|frame| rest.any(|other| other == frame)), "queue {queue}");
        assert!(got.len() > expected.len() / 2, "queue {queue} got {} of {}", got.len(), expected.len());
    }
    let elsewhere = (expected[1].len() + expected[3].len()) as u64;
    settled(&device, |stats| stats.flows.iter().any(|count| count.reason == "classified" && count.count == 20_000));
    assert_eq!(count(&device, "crossed") + count(&device, "crossing-full"), elsewhere);
}

#[test]
fn a_source_that_can_wait_loses_nothing_to_a_queue_that_is_slow() {
    let folder = tempfile::tempdir().unwrap();
    let (path, frames) = (folder.path().join("in.pcap"), traffic(10, 5_000));
    capture(&path, &frames);
    let device = Device::on_card(card(
        &format!("rx=2,tx=1,workers=1,spin=20,port=pcap:{}", path.display()),
        "udp,actions=queue:1",
    ));
    let device = device.unwrap();
    let mut queue = rx(&device, 1, Mode::Direct, Sharing::Exclusive);
    let mut next = 0;
    while next < frames.len() {
        assert!(queue.wait(PATIENCE).unwrap(), "frame {next} did not come");
        let burst = queue.get(7).unwrap();
        for packet in burst.iter() {
            assert!(packet.data == frames[next], "frame {next}");
            next += 1;
        }
        if next % 500 < 7 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    let stats = device.stats().unwrap();
    let queue = stats.queues.iter().find(|entry| entry.queue == QueueId::rx(1)).unwrap();
    assert!(queue.drops.is_empty(), "{queue:?}");
}

#[test]
fn frames_are_changed_and_go_out_at_other_ports() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let frames = traffic(4, 1000);
    capture(&path("in.pcap"), &frames);
    let rules = "
        table=0,priority=9,udp,udp_src=1000,actions=mirror:2,dec_ttl,push_vlan:0x8100,set_field:7->dl_vlan,output:1
        table=0,priority=8,udp,udp_src=1001,actions=encap_vxlan(vni=5,src=192.0.2.1,dst=192.0.2.2,dl_src=02:00:00:00:00:0a,dl_dst=02:00:00:00:00:0b),goto_table:1
        table=0,priority=7,udp,udp_src=1002,actions=drop
        table=0,priority=6,udp,udp_src=1003,actions=in_port
        table=1,udp,udp_dst=4789,actions=output:1,decap_vxlan,goto_table:2
        table=2,udp,udp_src=1001,tun_id=5,actions=output:2";
    let spec = |read: &str, write: &str| format!("pcap:{},write={}", path(read).display(), path(write).display());
    let (one, two) = (spec("none.pcap", "one.pcap"), spec("none.pcap", "two.pcap"));
    let options = format!("rx=3,tx=3,workers=2,spin=20,port=none,port=({one}),port=({two})");
    capture(&path("none.pcap"), &[]);
    let device = Device::on_card(card(&options, rules)).unwrap();
    device.plug(0, &format!("{},speed=50kpps", spec("in.pcap", "back.pcap"))).unwrap();
    let stats = settled(&device, |stats| {
        let sent: Vec<u64> = stats.ports.iter().map(|port| port.tx_frames).collect();
        sent == [250, 500, 500]
    });
    assert_eq!(stats.ports[0].rx_frames, 1000);
    assert_eq!(count(&device, "dropped-by-rule"), 250);
    drop(device);
    let of = |flow: u16| frames.iter().filter(move |frame| flow_of(frame) == flow).cloned();
    assert!(frames_in(&path("back.pcap")) == of(1003).collect::<Vec<_>>());
    let (tagged, tunnelled): (Vec<_>, Vec<_>) =
        frames_in(&path("one.pcap")).into_iter().partition(|frame| frame[12..14] == [0x81, 0]);
    for (got, sent) in tagged.iter().zip(of(1000)) {
        assert_eq!((got.len(), &got[14..16], got[18 + 8]), (sent.len() + 4, &[0, 7][..], 63));
        assert_eq!(number_of(&got[4..]), number_of(&sent));
    }
    for (got, sent) in tunnelled.iter().zip(of(1001)) {
        assert!(got[50..] == sent[..], "what is in the tunnel");
    }
    assert_eq!((tagged.len(), tunnelled.len()), (250, 250));
    let (mirrored, opened): (Vec<_>, Vec<_>) =
        frames_in(&path("two.pcap")).into_iter().partition(|f| flow_of(f) == 1000);
    assert!(mirrored == of(1000).collect::<Vec<_>>() && opened == of(1001).collect::<Vec<_>>());
}

#[test]
fn what_programs_send_meets_rules_for_local_frames_only() {
    let card = card(
        "rx=2,tx=1,workers=1,spin=20,port=null",
        "priority=9,udp,actions=drop\nin_port=4294967294,udp,udp_src=7,actions=queue:1",
    );
    let device = Device::on_card(card).unwrap();
    let mut queue = rx(&device, 1, Mode::Direct, Sharing::Exclusive);
    let mut sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
    for (flow, number) in [(7, 0), (8, 1), (7, 2)] {
        let frame = datagram(flow, number, 60);
        send(&mut sender, &frame);
    }
    let mut got = Vec::new();
    while got.len() < 2 {
        assert!(queue.wait(PATIENCE).unwrap());
        let burst = queue.get(64).unwrap();
        got.extend(burst.iter().map(|packet| number_of(packet.data)));
    }
    assert_eq!(got, [0, 2]);
    within(PATIENCE, || match device.stats().unwrap().ports[0].tx_frames {
        1 => Ok(()),
        other => Err(other),
    });
}

#[test]
fn a_port_that_loops_back_is_a_wire_with_rules() {
    let card = card("rx=4,tx=1,workers=2,spin=20", "udp,udp_src=7,actions=queue:3\nudp,udp_src=8,actions=drop");
    let device = Device::on_card(card).unwrap();
    let (mut third, mut own) =
        (rx(&device, 3, Mode::Direct, Sharing::Exclusive), rx(&device, 0, Mode::Direct, Sharing::Exclusive));
    let mut sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
    for number in 0..300 {
        let frame = datagram(7 + (number % 3) as u16, number, 100);
        send(&mut sender, &frame);
    }
    for (queue, rest) in [(&mut third, 0), (&mut own, 2)] {
        let mut next = rest;
        while next < 300 {
            assert!(queue.wait(PATIENCE).unwrap(), "frame {next}");
            for packet in queue.get(64).unwrap().iter() {
                assert_eq!(number_of(packet.data), next);
                next += 3;
            }
        }
    }
    settled(&device, |stats| stats.flows.iter().any(|count| count.reason == "dropped-by-rule" && count.count == 100));
}

/// A stamp says when the frame came, also to a queue whose worker never looks at the port: PTP measures by it.
#[test]
fn frames_that_go_to_another_worker_have_the_stamp_of_their_arrival() {
    let rules = "udp,udp_src=7,actions=queue:1\nudp,udp_src=8,actions=queue:0";
    let device = Device::on_card(card("rx=2,tx=1,workers=2,spin=20,tsu", rules)).unwrap();
    let clock = device.clock().unwrap();
    let mut queues = [1, 0].map(|queue| rx(&device, queue, Mode::Direct, Sharing::Exclusive));
    let mut sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
    for number in 0..100 {
        let at = number as usize % 2;
        // Its worker must not go by what the clock was when the card began.
        if number == 50 {
            clock.step(1_000_000_000).unwrap();
        }
        let before = clock.nanoseconds().unwrap();
        send(&mut sender, &datagram(7 + at as u16, number, 100));
        assert!(queues[at].wait(PATIENCE).unwrap(), "frame {number}");
        let after = clock.nanoseconds().unwrap();
        let burst = queues[at].get(8).unwrap();
        assert_eq!((burst.len(), number_of(burst.packet(0).data)), (1, number));
        let stamp = RxMetadata::decode(burst.packet(0).header).unwrap();
        let came = u64::from(stamp.seconds) * 1_000_000_000 + u64::from(stamp.nanoseconds);
        assert!((before..=after).contains(&came), "frame {number}: {came} is not within {before} and {after}");
    }
    settled(&device, |stats| stats.flows.iter().any(|count| count.reason == "crossed" && count.count == 50));
}

/// Everything that came in is somewhere: with a queue, or in a counter. Returns how many frames queues got.
fn check_equation(device: &Device, sent: u64) -> u64 {
    const NOBODY: [&str; 4] = ["dropped-by-rule", "crossing-full", "moved-away", "no-such-queue"];
    let sums = |stats: &CardStats| {
        let offered: u64 =
            stats.queues.iter().filter(|queue| queue.queue.direction == Direction::Rx).map(|queue| queue.offered).sum();
        let nobody = stats.flows.iter().filter(|count| NOBODY.contains(&&*count.reason));
        (offered, nobody.map(|count| count.count).sum::<u64>())
    };
    let stats = settled(device, |stats| {
        let (offered, nobody) = sums(stats);
        offered + nobody == sent && stats.queues.iter().all(|queue| queue.offered == queue.passed + dropped(queue))
    });
    sums(&stats).0
}

/// Sends `count` frames of 64 flows, as fast as they are taken.
fn flood(sender: &mut TxQueue, count: u32) {
    for number in 0..count {
        let frame = datagram(1000 + (number % 64) as u16, number, 60 + number as usize % 200);
        let mut burst = loop {
            if let Some(burst) = sender.get(&[frame.len() as u16]).unwrap() {
                break burst;
            }
            sender.wait(PATIENCE).unwrap();
        };
        burst[0].copy_from_slice(&frame);
        burst.send().unwrap();
    }
}

/// What came to a queue is in order within each flow. Returns how many frames it was, once `is_over`.
fn in_order(mut queue: RxQueue, is_over: &AtomicBool) -> u64 {
    let (mut last, mut count) = (std::collections::HashMap::new(), 0);
    loop {
        let ends = is_over.load(Ordering::Acquire);
        let burst = queue.get(64).unwrap();
        if burst.is_empty() && ends {
            return count;
        }
        for packet in burst.iter() {
            let (flow, number) = (flow_of(packet.data), number_of(packet.data));
            let before = last.insert(flow, number);
            assert!(before.is_none_or(|before| before < number), "flow {flow}: {number} behind {before:?}");
            count += 1;
        }
    }
}

/// A card that loops back, with rules that lead flows to four queues of two workers, while `disturb` does what it likes, again and
/// again. Each flow has one queue, whatever happens.
fn disturbed(name: &str, disturb: impl Fn(&Device, u32) + Sync) {
    const COUNT: u32 = 60_000;
    let rules: String =
        (0..64).map(|flow| format!("priority=10,udp,udp_src={},actions=queue:{}\n", 1000 + flow, flow % 4)).collect();
    let device = Device::on_card(card("rx=4,tx=1,workers=2,spin=20,discard=on", &rules)).unwrap();
    let queues: Vec<RxQueue> = (0..4).map(|index| rx(&device, index, Mode::Direct, Sharing::Exclusive)).collect();
    let mut sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
    let (is_sent, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let readers: Vec<_> = queues.into_iter().map(|queue| scope.spawn(|| in_order(queue, &is_over))).collect();
        let disturber = scope.spawn(|| {
            let mut round = 0;
            while !is_sent.load(Ordering::Acquire) {
                disturb(&device, round);
                round += 1;
            }
            round
        });
        flood(&mut sender, COUNT);
        is_sent.store(true, Ordering::Release);
        let rounds = disturber.join().unwrap();
        assert!(rounds > 3, "{name}: {rounds} rounds only");
        let offered = check_equation(&device, COUNT.into());
        is_over.store(true, Ordering::Release);
        let got: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        let stats = device.stats().unwrap();
        let lost: u64 = stats.queues.iter().filter(|queue| queue.queue.direction == Direction::Rx).map(dropped).sum();
        assert_eq!(got, offered - lost, "{name}");
        println!("{name}: {rounds} rounds, {got} of {COUNT} frames, {:?}", stats.flows);
    });
}

#[test]
fn rules_that_come_and_go_lose_and_reorder_nothing() {
    disturbed("churn", |device, round| {
        let rule = format!("priority=20,udp,udp_src={},actions=queue:1", 2000 + round % 50);
        device.flows().add(&rule).unwrap();
        device.flows().delete(&format!("udp,udp_src={}", 2000 + round % 50)).unwrap();
    });
}

#[test]
fn queues_change_their_worker_while_rules_lead_to_them() {
    disturbed("moves", |device, round| device.move_queue(QueueId::rx(1 + round % 3), round % 2).unwrap());
}

#[test]
fn a_program_that_does_not_read_stops_nobody_who_sends_to_others_too() {
    const EACH: u32 = 5_000;
    let card = card("rx=2,tx=1,workers=1,spin=20", "udp,udp_src=7,actions=queue:0\nudp,udp_src=8,actions=queue:1");
    let device = Device::on_card(card).unwrap();
    let (mut own, _deaf) =
        (rx(&device, 0, Mode::Direct, Sharing::Exclusive), rx(&device, 1, Mode::Direct, Sharing::Exclusive));
    let mut sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
    // One at a time: every burst has one target.
    for number in 0..EACH {
        for flow in [7, 8] {
            let frame = datagram(flow, number, 60);
            let begin = std::time::Instant::now();
            while sender
                .get(&[60])
                .unwrap()
                .map(|mut burst| {
                    burst[0].copy_from_slice(&frame);
                    burst.send().unwrap();
                })
                .is_none()
            {
                assert!(begin.elapsed() < PATIENCE, "the sender is held back at {number}");
            }
        }
        assert!(own.wait(PATIENCE).unwrap(), "frame {number}");
        let burst = own.get(64).unwrap();
        assert_eq!(burst.iter().map(|packet| number_of(packet.data)).collect::<Vec<_>>(), [number]);
    }
    check_equation(&device, 2 * u64::from(EACH));
}
