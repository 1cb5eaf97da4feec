//! The other side does what it likes, to memory and to time.

use crate::ac::{Ac, OWN, packet};
use crate::client::{client, config, talk, wait};
use millrace_pppoe::{Client, Config, Event, Failure, Received, Unheard};
use proptest::prelude::*;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Whatever has come: it is quiet in the end, or begins again; each tick is later than the one before, or there are few.
fn comes_to_an_end(client: &mut Client, mut now: Duration) -> Vec<Event> {
    let (end, mut events, mut ticks) = (now + SECOND * 200, Vec::new(), 0);
    while let Some(next) = client.next_tick().filter(|next| *next <= end) {
        now = now.max(next);
        client.tick(now);
        while client.take_frame().is_some() {}
        events.extend(std::iter::from_fn(|| client.take_event()));
        ticks += 1;
        assert!(ticks < 400, "it goes round in circles");
    }
    events
}

/// An answer to each Configure-Request of LCP by `code`, with what `options` make of it.
fn contrary(code: u8, options: impl Fn(&[u8]) -> Vec<u8>) -> (Vec<Event>, usize) {
    let (mut client, ac) = (client(config()), Ac::default());
    let (mut sent, mut now) = (0, Duration::ZERO);
    let mut discovered = Ac::default();
    let mut events = Vec::new();
    while now < SECOND * 59 {
        while let Some(frame) = client.take_frame() {
            if frame[12..14] == [0x88, 0x63] {
                for answer in discovered.answer(&frame) {
                    client.receive(now, &answer);
                }
            } else if frame[22] == 1 {
                sent += 1;
                assert!(sent < 1000, "it asks for ever");
                let answer = ac.frame(0xc021, &packet(code, frame[23], &options(&frame[26..])));
                client.receive(now, &answer);
            }
        }
        events.extend(std::iter::from_fn(|| client.take_event()));
        if events.iter().any(|event| matches!(event, Event::Failed(_))) {
            break;
        }
        now += SECOND / 10;
        client.tick(now);
    }
    (events, sent)
}

#[test]
fn who_says_nak_for_ever_is_left() {
    // Another size each time, and rejects of what was not asked for.
    let (events, sent) = contrary(3, |_| vec![1, 4, 3, 0]);
    assert!(events.contains(&Event::Failed(Failure::NoAgreement("LCP"))), "{events:?}");
    assert!(sent <= 62, "{sent} requests");
    let (events, sent) = contrary(4, |_| vec![200, 2]);
    assert!(events.contains(&Event::Failed(Failure::NoAgreement("LCP"))), "{events:?}");
    assert!(sent <= 62, "{sent} requests");
}

#[test]
fn who_says_nothing_is_left() {
    let (mut client, mut ac) = (client(config()), Ac::default());
    while let Some(frame) = client.take_frame() {
        if frame[12..14] == [0x88, 0x63] {
            for answer in ac.answer(&frame) {
                client.receive(Duration::ZERO, &answer);
            }
        }
    }
    let events = comes_to_an_end(&mut client, Duration::ZERO);
    assert!(events.contains(&Event::Failed(Failure::Silent("LCP"))), "{events:?}");
}

#[test]
fn our_own_frames_that_come_back_are_noticed() {
    let (events, _) = contrary(1, <[u8]>::to_vec);
    assert!(events.contains(&Event::Failed(Failure::Looped)), "{events:?}");
}

#[test]
fn control_frames_are_looked_at_only_so_often() {
    let (mut client, mut ac) = (client(config()), Ac::default());
    talk(&mut client, &mut [&mut ac], Duration::ZERO);
    let echo = ac.frame(0xc021, &packet(9, 1, &[0, 0, 0, 9]));
    let now = SECOND * 5;
    let answered = (0..1000).filter(|_| client.receive(now, &echo) == Received::Control).count();
    assert_eq!(answered, 100);
    let unheard: Vec<_> = client.unheard().filter(|(_, count)| *count > 0).collect();
    // Nobody has taken more out than there is room for.
    assert_eq!(unheard, [(Unheard::TooMany, 900), (Unheard::NotSent, 36)]);
    while client.take_frame().is_some() {}
    assert_eq!((0..1000).filter(|_| client.receive(now + SECOND, &echo) == Received::Control).count(), 50);
}

#[test]
fn who_negotiates_again_and_again_is_left() {
    let (mut client, mut ac) = (client(config()), Ac::default());
    talk(&mut client, &mut [&mut ac], Duration::ZERO);
    assert!(client.session().is_some());
    let (mut now, mut times) = (SECOND, 0);
    while client.session().is_some() {
        // The answer to our own request brings it up again.
        let again = ac.frame(0xc021, &packet(1, 9, &[5, 6, 0, 0, 0, 9]));
        client.receive(now, &again);
        let events = talk(&mut client, &mut [&mut ac], now);
        if events.iter().any(|event| matches!(event, Event::Failed(_) | Event::Waiting(_))) {
            break;
        }
        now += SECOND;
        times += 1;
        assert!(times < 60, "{events:?}");
    }
}

/// What may come at some time.
#[derive(Clone, Debug)]
enum Act {
    /// Answers of the real one to what was said, in this order of three.
    Answer(usize),
    /// One of them again.
    Again(usize),
    /// A control packet.
    Packet(u16, u8, u8, Vec<u8>),
    /// Bytes behind addresses that are right.
    Bytes(u16, Vec<u8>),
    /// It gets later.
    Later(u16),
}

fn act() -> impl Strategy<Value = Act> {
    let protocol = prop::sample::select(vec![0xc021u16, 0xc021, 0xc023, 0xc223, 0x8021, 0x8057, 0x80fd, 0x21]);
    let options = prop::collection::vec(any::<u8>(), 0..24);
    prop_oneof![
        6 => (0..3usize).prop_map(Act::Answer),
        2 => any::<usize>().prop_map(Act::Again),
        3 => (protocol, 0..14u8, any::<u8>(), options.clone()).prop_map(|(a, b, c, d)| Act::Packet(a, b, c, d)),
        1 => (prop::sample::select(vec![0x8863u16, 0x8864]), options).prop_map(|(kind, bytes)| Act::Bytes(kind, bytes)),
        1 => any::<u16>().prop_map(Act::Later),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Never stuck, and never a panic: with answers in another order, again, in between others, late, and nonsense among them. In the end
    /// there is a session with an access concentrator that behaves.
    #[test]
    fn anything_in_any_order(acts in prop::collection::vec(act(), 0..120), mru in 1400..1600u16) {
        let mut client = client(Config { mru, ..config() });
        let mut ac = Ac { max_payload: Some(1500), ..Ac::default() };
        let (mut now, mut pending, mut old) = (Duration::ZERO, Vec::<Vec<u8>>::new(), Vec::<Vec<u8>>::new());
        for act in acts {
            while let Some(frame) = client.take_frame() {
                pending.extend(ac.answer(&frame));
            }
            pending.truncate(50);
            while client.take_event().is_some() {}
            let frame = match act {
                Act::Answer(at) if !pending.is_empty() => {
                    let frame = pending.remove(at.min(pending.len() - 1));
                    old.push(frame.clone());
                    frame
                }
                Act::Again(at) if !old.is_empty() => old[at % old.len()].clone(),
                Act::Packet(protocol, code, id, data) => ac.frame(protocol, &packet(code, id, &data)),
                Act::Bytes(kind, bytes) => [&OWN.0[..], &ac.mac.0, &kind.to_be_bytes(), &bytes].concat(),
                Act::Later(milliseconds) => {
                    now += Duration::from_millis(milliseconds.into());
                    client.tick(now);
                    continue;
                }
                _ => continue,
            };
            client.receive(now, &frame);
            prop_assert!(client.next_tick().is_some());
        }
        comes_to_an_end(&mut client, now);
        let end = now + SECOND * 600;
        wait(&mut client, &mut [&mut ac], now + SECOND * 200, end);
        prop_assert!(client.session().is_some(), "{client:?}");
    }
}
