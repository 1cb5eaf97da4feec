//! How controllers share one thread.

use millrace_agent::crowd::patience::{MOST, Patience};
use millrace_agent::crowd::places::{Caller, Network, PLACES, Place, WAITING, gives_way, place};
use millrace_agent::crowd::share::{Party, Shares};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

fn network(text: &str) -> Network {
    Network::of(text.parse().unwrap())
}

fn caller(number: u64, network: Network) -> Caller {
    Caller { number, network, is_certified: false }
}

#[test]
fn patience_stands_while_nobody_listens() {
    let begin = Instant::now();
    let mut patience = Patience::new(begin);
    assert_eq!(patience.look(begin + MOST / 2), begin + MOST / 2);
    assert_eq!(patience.look(begin + Duration::from_secs(60)), begin + MOST / 2 + MOST);
    assert_eq!(patience.look(begin), begin + MOST / 2 + MOST);
}

#[test]
fn networks_are_what_one_has() {
    assert_eq!(network("192.0.2.1"), network("::ffff:192.0.2.200"));
    assert_ne!(network("192.0.2.1"), network("192.0.3.1"));
    assert_eq!(network("2001:db8::1"), network("2001:db8::2:3:4:5"));
    assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
}

/// As many as get a place.
fn seat(seated: &mut Vec<Caller>, network: Network, is_certified: bool, count: usize) -> usize {
    let before = seated.len();
    for _ in 0..count {
        let number = seated.iter().map(|caller| caller.number + 1).max().unwrap_or(0);
        let of = Caller { number, network, is_certified };
        match place(&of, seated) {
            Place::Free => seated.push(of),
            Place::Of(other) => {
                seated.retain(|caller| caller.number != other);
                seated.push(of);
            }
            Place::None => {}
        }
        assert!(seated.len() <= PLACES);
    }
    seated.len() - before
}

#[test]
fn a_network_has_half_of_what_is_free() {
    let mut seated = Vec::new();
    assert_eq!(seat(&mut seated, network("192.0.2.1"), false, 1000), PLACES / 2);
    assert_eq!(seat(&mut seated, network("198.51.100.1"), false, 1000), PLACES / 4);
    for other in 0..64 {
        seat(&mut seated, network(&format!("10.0.{other}.1")), false, 1000);
    }
    assert_eq!(seated.len(), PLACES);
    // Who has none gets one of those who have most.
    let late = network("203.0.113.1");
    assert!(matches!(place(&caller(9999, late), &seated), Place::Of(_)));
    // If nobody has more than one, nobody goes.
    let single = |at: usize| caller(at as u64, network(&format!("10.{}.{}.1", at / 256, at % 256)));
    let singles: Vec<_> = (0..PLACES).map(single).collect();
    assert_eq!(place(&caller(9999, late), &singles), Place::None);
}

#[test]
fn certificates_come_first() {
    let single = |at: usize| caller(at as u64, network(&format!("10.{}.{}.1", at / 256, at % 256)));
    let mut seated: Vec<_> = (0..PLACES).map(single).collect();
    let trusted = network("203.0.113.1");
    seat(&mut seated, trusted, true, 1000);
    let certified = |seated: &[Caller]| seated.iter().filter(|caller| caller.is_certified).count();
    assert_eq!((certified(&seated), seated.len()), (PLACES / 2, PLACES));
    // Those without do not come back for it.
    seat(&mut seated, network("198.51.100.1"), false, 1000);
    assert_eq!(certified(&seated), PLACES / 2);
}

#[test]
fn of_those_without_hello_the_crowd_gives_way() {
    let mut waiting = vec![caller(0, network("203.0.113.1"))];
    waiting.extend((1..WAITING as u64).map(|number| caller(number, network("192.0.2.1"))));
    assert_eq!(gives_way(&waiting), None);
    waiting.push(caller(999, network("192.0.2.1")));
    assert_eq!(gives_way(&waiting), Some(1));
}

/// Turns, until so much time has gone; what each had, and the longest that the last one waited who wants a little every 500 ms.
fn turns(costs: &[(Party, u64, u64)], honest: (Party, u64)) -> (BTreeMap<u64, u64>, u64) {
    let mut shares = Shares::default();
    let (mut now, mut wants, mut longest) = (0, 0, 0);
    let mut had = BTreeMap::new();
    while now < 60_000 {
        let hungry = costs.iter().map(|(party, number, _)| (*party, *number));
        let next = shares.next(hungry.chain((now >= wants).then_some(honest))).unwrap();
        let took = costs.iter().find(|(_, number, _)| *number == next.1).map_or(1, |(_, _, cost)| *cost);
        if next == honest {
            // Of those who begin together each has one turn, whatever it costs.
            let due = if now < 20_000 { now } else { wants };
            longest = longest.max(now - due);
            wants = now + 500;
        }
        now += took;
        shares.had(next, Duration::from_millis(took));
        *had.entry(next.1).or_default() += took;
    }
    (had, longest)
}

#[test]
fn who_wants_little_waits_for_one_at_most() {
    let attacker = Party::Network(network("192.0.2.1"));
    let crowd: Vec<_> = (1..=100).map(|number| (attacker, number, 100)).collect();
    let (_, longest) = turns(&crowd, (Party::Called(0), 0));
    assert!(longest <= 100, "{longest}");
    // Even from among them.
    let (_, longest) = turns(&crowd, (attacker, 0));
    assert!(longest <= 200, "{longest}");
}

#[test]
fn time_is_shared_by_network() {
    let mut all: Vec<_> = (1..=10).map(|number| (Party::Network(network("192.0.2.1")), number, 100)).collect();
    all.push((Party::Network(network("203.0.113.1")), 11, 3));
    let (had, _) = turns(&all, (Party::Called(0), 0));
    assert!((28_000..32_000).contains(&had[&11]), "{had:?}");
    assert!((2_800..3_200).contains(&had[&1]), "{had:?}");
}
