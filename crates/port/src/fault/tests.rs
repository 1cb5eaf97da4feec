use super::*;
use crate::{PortSpec, counters::Event};
use std::{collections::VecDeque, sync::Mutex, time::Duration};

/// A wire that remembers what was sent; what comes are numbered frames.
struct Wire {
    coming: VecDeque<u32>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    room: usize,
    can_wait: bool,
    counters: Arc<PortCounters>,
}

fn frame(number: u32) -> Vec<u8> {
    let mut frame = vec![0x5a; 60 + (number % 1000) as usize];
    frame[..4].copy_from_slice(&number.to_le_bytes());
    frame
}

impl PortQueue for Wire {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        if self.room == 0 {
            return TxOutcome::Full;
        }
        self.room -= 1;
        let mut bytes = vec![0; frame.len()];
        frame.read_into(&mut bytes);
        self.counters.count_tx(1, bytes.len() as u64);
        self.sent.lock().unwrap().push(bytes);
        TxOutcome::Sent
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let mut taken = 0;
        for _ in 0..budget {
            let Some(&number) = self.coming.front() else { break };
            match sink.take(Span::from_slice(&frame(number))) {
                Accept::Taken => {
                    self.counters.count_rx(1, frame(number).len() as u64);
                    taken += 1;
                }
                Accept::Full if self.can_wait => break,
                Accept::Full => self.counters.count_rx_drops(DropReason::NoRoom, 1),
            }
            self.coming.pop_front();
        }
        taken
    }

    fn can_wait(&self) -> bool {
        self.can_wait
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

type Sent = Arc<Mutex<Vec<Vec<u8>>>>;

fn faulty(options: &str, coming: u32) -> (FaultPort, Sent) {
    let PortSpec::Fault(spec) = format!("fault:{options},port=(null)").parse().unwrap() else { panic!() };
    let sent = Sent::default();
    let coming = (0..coming).collect();
    let wire = Wire { coming, sent: sent.clone(), room: usize::MAX, can_wait: true, counters: Arc::default() };
    (FaultPort::wrap(&spec, vec![Box::new(wire)]).remove(0), sent)
}

/// Receives until everything has come, also what was held back.
fn receive_all(port: &mut FaultPort) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let taken = port.receive(32, &mut |frame: Span<'_>| {
            let mut bytes = vec![0; frame.len()];
            frame.read_into(&mut bytes);
            got.push(bytes);
            Accept::Taken
        });
        if taken == 0 && port.next_due().is_none() {
            return got;
        }
        assert!(Instant::now() < end, "frames are held back for ever");
    }
}

fn event(events: impl Iterator<Item = (Event, u64)>, wanted: Event) -> u64 {
    events.filter(|(event, _)| *event == wanted).map(|(_, count)| count).sum()
}

fn numbers(frames: &[Vec<u8>]) -> Vec<u32> {
    frames.iter().map(|frame| u32::from_le_bytes(frame[..4].try_into().unwrap())).collect()
}

const ALL: &str = "loss=10%,duplicate=5%,reorder=5%,corrupt=3%";

#[test]
fn every_frame_is_accounted_for_in_both_directions() {
    for options in [ALL.to_owned(), format!("{ALL},delay=2ms"), "delay=1ms".into(), "seed=3".into()] {
        let (mut port, sent) = faulty(&options, 4000);
        let got = receive_all(&mut port);
        let counters = port.counters().clone();
        assert_eq!(counters.rx_frames(), got.len() as u64, "{options}");
        assert_eq!(counters.rx_bytes(), got.iter().map(Vec::len).sum::<usize>() as u64);
        assert_eq!(counters.rx_offered(), 4000);

        let mut lost = 0;
        for number in 0..4000 {
            match port.transmit(Span::from_slice(&frame(number))) {
                TxOutcome::Sent => {}
                TxOutcome::Dropped(DropReason::FaultLoss) => lost += 1,
                other => panic!("{other:?}"),
            }
        }
        while port.next_due().is_some() {
            port.flush();
        }
        assert_eq!(counters.tx_frames(), sent.lock().unwrap().len() as u64);
        assert_eq!((counters.tx_offered(), counters.tx_dropped(DropReason::FaultLoss)), (4000, lost));
        let strange = numbers(&sent.lock().unwrap());
        let twice = event(counters.tx_events(), Event::FaultDuplicate);
        assert_eq!(strange.len() as u64, 4000 - lost + twice);
        if options.starts_with("loss") {
            for (count, least, most) in [
                (lost, 300, 500),
                (twice, 100, 300),
                (event(counters.tx_events(), Event::FaultReorder), 100, 300),
                (event(counters.rx_events(), Event::FaultCorrupt), 50, 200),
                (counters.rx_dropped(DropReason::FaultLoss), 300, 500),
            ] {
                assert!((least..=most).contains(&count), "{count} is not {least} to {most} ({options})");
            }
        }
    }
}

#[test]
fn the_same_seed_does_the_same() {
    let run = |seed| receive_all(&mut faulty(&format!("{ALL},seed={seed}"), 2000).0);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn each_fault_does_what_it_says() {
    assert!(receive_all(&mut faulty("loss=100%", 50).0).is_empty());
    let twice: Vec<u32> = (0..50).flat_map(|number| [number, number]).collect();
    assert_eq!(numbers(&receive_all(&mut faulty("duplicate=100%", 50).0)), twice);
    // Each second frame overtakes the one before it.
    let swapped: Vec<u32> = (0..25).flat_map(|pair| [pair * 2 + 1, pair * 2]).collect();
    assert_eq!(numbers(&receive_all(&mut faulty("reorder=100%", 50).0)), swapped);
    for (number, bytes) in receive_all(&mut faulty("corrupt=100%", 50).0).iter().enumerate() {
        let wrong: u32 = bytes.iter().zip(frame(number as u32)).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!((wrong, bytes.len()), (1, frame(number as u32).len()));
    }
    let began = Instant::now();
    assert_eq!(receive_all(&mut faulty("delay=20ms", 50).0).len(), 50);
    assert!(began.elapsed() >= Duration::from_millis(20));
    let (mut port, sent) = faulty("loss=100%,direction=rx", 5);
    assert_eq!(port.transmit(Span::from_slice(&frame(1))), TxOutcome::Sent);
    assert_eq!((sent.lock().unwrap().len(), receive_all(&mut port).len()), (1, 0));
}

#[test]
fn the_last_frame_is_not_kept_for_ever_and_none_stays_behind() {
    let (mut port, sent) = faulty("reorder=100%,delay=1ms", 1);
    assert_eq!(receive_all(&mut port).len(), 1);
    assert_eq!(event(port.counters().rx_events(), Event::FaultReorder), 0, "nothing overtook it");
    assert_eq!(port.transmit(Span::from_slice(&frame(1))), TxOutcome::Sent);
    assert_eq!(port.transmit(Span::from_slice(&frame(2))), TxOutcome::Sent);
    assert_eq!(port.transmit(Span::from_slice(&frame(3))), TxOutcome::Sent);
    drop(port);
    let mut sent = numbers(&sent.lock().unwrap());
    sent.sort_unstable();
    assert_eq!(sent, [1, 2, 3]);
}

#[test]
fn a_frame_that_finds_no_room_keeps_its_fate() {
    let PortSpec::Fault(spec) = format!("fault:{ALL},port=(null)").parse().unwrap() else { panic!() };
    let run = |patient: bool| {
        let wire = Wire {
            coming: (0..2000).collect(),
            sent: Sent::default(),
            room: 0,
            can_wait: true,
            counters: Arc::default(),
        };
        let mut port = FaultPort::wrap(&spec, vec![Box::new(wire)]).remove(0);
        let (mut got, mut turn) = (Vec::new(), 0);
        while port.counters().rx_offered() < 1990 {
            port.receive(8, &mut |frame: Span<'_>| {
                turn += 1;
                if !patient && turn % 3 == 0 {
                    return Accept::Full;
                }
                let mut bytes = vec![0; frame.len()];
                frame.read_into(&mut bytes);
                got.push(bytes);
                Accept::Taken
            });
        }
        assert_eq!(port.transmit(Span::from_slice(&[0; 1])), TxOutcome::Full);
        port.counters().rx_dropped(DropReason::FaultLoss)
    };
    // The last few depend on where a round ended.
    assert!(run(true).abs_diff(run(false)) < 5);
}

#[test]
fn a_live_wire_drops_what_the_card_has_no_room_for() {
    let PortSpec::Fault(spec) = "fault:delay=1ms,port=(null)".parse().unwrap() else { panic!() };
    let wire =
        Wire { coming: (0..100).collect(), sent: Sent::default(), room: 0, can_wait: false, counters: Arc::default() };
    let mut port = FaultPort::wrap(&spec, vec![Box::new(wire)]).remove(0);
    while port.counters().rx_dropped(DropReason::NoRoom) < 100 {
        port.receive(32, &mut |_: Span<'_>| Accept::Full);
    }
    assert_eq!((port.counters().rx_frames(), port.counters().rx_offered()), (0, 100));
}
