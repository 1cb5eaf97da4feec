//! Doorbells of endpoints: who is woken by them, and who has them without the lock.

use super::*;

#[test]
fn doorbells_wake_who_sleeps() {
    let (one, other, to, from) = pair("bells");
    assert_eq!(one.ring(to, 7), Some(Err(Full::Unwanted)));
    other.claim(0..=99, Owner(1)).unwrap();
    for number in 0..50 {
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| other.any_bell(LONG).unwrap());
            assert_eq!(one.ring(to, number), Some(Ok(())));
            let (whose, bell) = heard.join().unwrap();
            assert_eq!((whose, bell.number, bell.owner), (from, number, Owner(1)));
        });
    }
    // Bells that nobody takes are no reason not to sleep.
    one.ring(to, 1).unwrap().unwrap();
    assert!(other.next(Duration::from_millis(50)).is_none());
    assert_eq!(other.bell(from).unwrap().unwrap().number, 1);
    // A descriptor is readable as long as one waits, however it is taken.
    let descriptor = other.descriptor().unwrap();
    let is_readable = |most: i64| {
        let most = Timespec { tv_sec: most, tv_nsec: 0 };
        poll(&mut [PollFd::new(&*descriptor, PollFlags::IN)], Some(&most)).unwrap() == 1
    };
    one.ring(to, 2).unwrap().unwrap();
    assert!(is_readable(20));
    assert_eq!(other.bell(from).unwrap().unwrap().number, 2);
    assert!(!is_readable(0));
}

/// Halves that are lent: order, refusals, ranges, sleepers and the end are what they are by the endpoint.
#[test]
fn doorbells_without_the_lock_are_the_same() {
    let (one, other, to, from) = pair("lent");
    let (mut ringer, mut hearer) = (one.doorbells_to(to).unwrap(), other.doorbells_from(from).unwrap());
    assert!(one.doorbells_to(to).is_none() && other.doorbells_from(from).is_none());
    assert_eq!(ringer.ring(7), Some(Err(Full::Unwanted)));
    // What is claimed and released counts at once.
    other.claim(0..=999, Owner(1)).unwrap();
    assert_eq!(one.ring(to, 7), Some(Err(Full::Lent)));
    for number in 0..256 {
        assert_eq!(ringer.ring(number), Some(Ok(())));
    }
    assert_eq!(ringer.ring(7), Some(Err(Full::Queue)));
    assert_eq!(other.bell(from), Ok(None));
    assert!(other.any_bell(NOT_AT_ALL).is_none());
    for number in 0..256 {
        assert_eq!(hearer.take(), Ok(Some(Bell { number, owner: Owner(1) })));
    }
    assert_eq!(hearer.take(), Ok(None));
    assert_eq!([ringer.ring_once(3), ringer.ring_once(3)], [Some(Ok(Sent::Rung)), Some(Ok(Sent::Coalesced))]);
    other.release(Owner(1));
    assert_eq!(hearer.take(), Ok(None));
    other.claim(0..=999, Owner(2)).unwrap();
    ringer.ring(4).unwrap().unwrap();
    assert_eq!(hearer.take(), Ok(Some(Bell { number: 4, owner: Owner(2) })));
    // What waits is the endpoint's when it has come back, and who sleeps meanwhile is woken.
    ringer.ring(5).unwrap().unwrap();
    drop(hearer);
    assert_eq!(other.any_bell(LONG).unwrap().1.number, 5);
    for number in 0..50 {
        let hearer = other.doorbells_from(from).unwrap();
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| other.any_bell(LONG).unwrap().1.number);
            ringer.ring(number).unwrap().unwrap();
            drop(hearer);
            assert_eq!(heard.join().unwrap(), number);
        });
    }
    for number in 0..50 {
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| other.any_bell(LONG).unwrap().1.number);
            assert_eq!(ringer.ring(number), Some(Ok(())));
            assert_eq!(heard.join().unwrap(), number);
        });
    }
    // The end is told to both, each time.
    let mut hearer = one.doorbells_from(to).unwrap();
    drop(other);
    assert!(matches!(one.event(LONG), Some(Event::Lost(..))));
    for _ in 0..2 {
        assert_eq!((ringer.ring(1), hearer.take()), (None, Err(Breach::Gone)));
    }
    assert!(one.doorbells_to(to).is_none());
    drop((ringer, hearer));
}
