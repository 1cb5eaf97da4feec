//! Who has gone, in any way, and what is left.

use super::*;

#[test]
fn who_has_gone_is_noticed_and_what_he_has_left_is_received() {
    let (one, other, to, from) = pair("gone");
    let long = other.receive(Some(from), Tag(1), u64::MAX, vec![0; 9000]).unwrap();
    for number in 10..14 {
        let sent = one.send(to, Tag(number), bytes(number, 50)).unwrap();
        assert_eq!(one.wait(sent, LONG).unwrap().outcome, Outcome::Sent);
    }
    drop(one);
    assert_eq!(other.wait(long, LONG).unwrap().outcome, Outcome::Lost);
    assert_eq!(other.event(LONG), Some(Event::Lost(from, None)));
    assert_eq!(other.in_use(), (0, 0));
    assert_eq!(other.send(from, Tag(0), Vec::new()), Err(RequestError::Lost));
    for (number, whom) in [(10, Some(from)), (11, None), (13, Some(from)), (12, Some(from))] {
        let request = other.receive(whom, Tag(number), u64::MAX, vec![0; 50]).unwrap();
        let received = other.wait(request, NOT_AT_ALL).unwrap();
        assert!(received.from == Some(from) && received.buffer == bytes(number, 50));
    }
    assert_eq!(other.receive(Some(from), Tag(0), 0, Vec::new()), Err(RequestError::Lost));
    // Its place is another one's; it is still nobody.
    let third = Endpoint::with(SLEEPY).unwrap();
    third.connect(&name("gone"), LONG).unwrap();
    let new = other.accept(LONG).unwrap();
    assert_ne!(new, from);
    assert_eq!(other.send(from, Tag(0), Vec::new()), Err(RequestError::Lost));
    other.leave(new);
    assert!(other.who(new).is_none());
    assert!(matches!(third.event(LONG), Some(Event::Lost(_, None))));
}

/// Who has called, left something and gone, before anybody has asked: the program learns of him, and can give his place to others.
#[test]
fn who_went_before_he_was_seen_is_told_of_if_he_has_left_something() {
    let other = open("unseen");
    let probe = Endpoint::with(SLEEPY).unwrap();
    for round in 0..6 {
        let one = Endpoint::with(SLEEPY).unwrap();
        let to = one.connect(&name("unseen"), LONG).unwrap();
        let leaves_some = round % 2 == 0;
        assert!(!leaves_some || one.send_short(to, Tag(7), &[7; 9]));
        drop(one);
        // Who calls now is heard after that.
        probe.connect(&name("unseen"), LONG).unwrap();
        if leaves_some {
            let Some(Event::Joined(peer)) = other.event(LONG) else { panic!("{round}") };
            assert_eq!(other.event(LONG), Some(Event::Lost(peer, None)));
            other.leave(peer);
            assert_eq!(other.receive(Some(peer), Tag(7), 0, vec![0; 9]), Err(RequestError::Lost));
        }
        let Some(Event::Joined(called)) = other.event(LONG) else { panic!("{round}") };
        other.leave(called);
        assert!(matches!(probe.event(LONG), Some(Event::Lost(..))));
    }
    let wanted = other.receive(None, Tag(7), 0, vec![0; 9]).unwrap();
    assert!(other.wait(wanted, Duration::from_millis(20)).is_none(), "what was left is gone with him");
}

/// A program that never asks what has happened: it is not remembered without end.
#[test]
fn events_are_not_kept_for_ever() {
    let other = open("events");
    let one = Endpoint::with(Config { peers: 8, ..SLEEPY }).unwrap();
    let mut last = None;
    for _ in 0..1100 {
        let until = Instant::now() + LONG;
        let to = loop {
            match one.connect(&name("events"), LONG) {
                Ok(to) => break to,
                Err(Error::Refused(..) | Error::Full(_)) if Instant::now() < until => {}
                Err(error) => panic!("{error}"),
            }
        };
        other.leave(other.accept(LONG).unwrap());
        last = Some(to);
    }
    while one.send(last.unwrap(), Tag(0), Vec::new()).is_ok() {
        std::thread::yield_now();
    }
    let told: Vec<Event> = core::iter::from_fn(|| one.event(NOT_AT_ALL)).collect();
    assert_eq!((told.len(), told.last()), (1024, Some(&Event::Lost(last.unwrap(), None))));
}

/// No test, but what runs in processes that are killed: sends and receives messages of two parts and more without end, by the name that
/// it is given.
#[test]
fn victim() {
    let Ok(name) = std::env::var(VICTIM) else { return };
    let end = Endpoint::with(Config { limits: KILLED, adopt: Some(Scope::Mappings), ..SLEEPY }).unwrap();
    let to = end.connect(&name, LONG).unwrap();
    for number in 0.. {
        let len = 900 * (1 + number as usize % 20);
        end.receive(Some(to), Tag(number), u64::MAX, vec![0; 20_000]).unwrap();
        let scheme = if number % 2 == 0 { Scheme::OneCopy } else { Scheme::ZeroCopy };
        end.send_by(to, Tag(number), bytes(number, len), scheme).unwrap();
        while end.next(if number < 4 { NOT_AT_ALL } else { LONG }).is_some_and(|ended| ended.outcome != Outcome::Sent) {
        }
    }
}

/// A hundred processes are killed between any two steps of messages to and from them. Who was connected has all buffers again at once, and
/// what came was what was sent; who is beside it goes on.
#[test]
fn processes_are_killed_and_nothing_is_missing() {
    let hub = Endpoint::with(Config { name: Some(name("killed")), limits: KILLED, ..SLEEPY }).unwrap();
    let beside = Endpoint::with(SLEEPY).unwrap();
    let to = beside.connect(&name("killed"), LONG).unwrap();
    let from = hub.accept(LONG).unwrap();
    let (mut worst, mut held, mut whole) = (Duration::ZERO, 0, 0);
    for round in 0..100_u64 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "endpoint::gone::victim", "--nocapture"])
            .env(VICTIM, name("killed"))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let victim = hub.accept(LONG).unwrap();
        let until = Instant::now() + Duration::from_micros(round * 137 % 5000);
        let mut number = 0;
        let receive = |number| hub.receive(Some(victim), Tag(number), u64::MAX, vec![0; 20_000]);
        let mut waits = receive(0).unwrap();
        hub.send(victim, Tag(0), bytes(0, 15_000)).unwrap();
        let mut check = |ended: millrace_message::endpoint::Ended| match ended.outcome {
            Outcome::Received { tag, .. } if ended.from == Some(victim) => {
                assert!(tag.0 == number && ended.buffer.len() == 900 * (1 + number as usize % 20));
                assert!(ended.buffer == bytes(number, ended.buffer.len()));
                number += 1;
                whole += 1;
                (waits, _) = (receive(number).unwrap_or(waits), hub.send(victim, Tag(number), bytes(number, 7000)));
            }
            Outcome::Received { .. } | Outcome::Sent | Outcome::Lost => {}
            other => panic!("{other:?}"),
        };
        while Instant::now() < until {
            hub.next(NOT_AT_ALL).map(&mut check);
        }
        held += u32::from(hub.in_use().1);
        child.kill().unwrap();
        child.wait().unwrap();
        let killed = Instant::now();
        // The helper thread sees to it.
        while hub.in_use() != (0, 0) {
            assert!(killed.elapsed() < LONG);
            std::thread::yield_now();
        }
        worst = worst.max(killed.elapsed());
        assert_eq!(hub.event(LONG), Some(Event::Lost(victim, None)));
        while let Some(ended) = hub.next(NOT_AT_ALL) {
            check(ended);
        }
        let request = hub.receive(Some(from), Tag(round), u64::MAX, vec![0; 3000]).unwrap();
        beside.send(to, Tag(round), bytes(round, 3000)).unwrap();
        let received = hub.wait(request, LONG).unwrap();
        assert!(received.buffer == bytes(round, 3000));
    }
    println!("{whole} messages came, {held} buffers were in use, and were back after {worst:?} at most");
    assert!(whole > 0 && held > 0);
}
