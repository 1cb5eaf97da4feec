//! Programs that come and go without end.

use crate::{ALL, Card, PATIENCE};
use millrace_message::Tag;
use millrace_message::hosted::{Config, Endpoint};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A user who joins and leaves without end has a ninth of the card's thread for that, and what programs have to say to each other goes on.
#[test]
fn who_joins_and_leaves_without_end_holds_up_nobody() {
    const LENGTH: Duration = Duration::from_millis(700);
    let card = Card::new();
    let (mut one, mut other) = card.pair();
    let to = other.connect("one", PATIENCE).unwrap();
    let from = one.accept(PATIENCE).unwrap().unwrap();
    let mut trips = || {
        let (begin, mut longest, mut count) = (Instant::now(), Duration::ZERO, 0);
        while begin.elapsed() < LENGTH {
            let start = Instant::now();
            let wanted = one.receive(Some(from), Tag(1), ALL, vec![0; 8]).unwrap();
            other.send(to, Tag(1), vec![1; 8]).unwrap();
            one.wait(wanted, PATIENCE).unwrap().unwrap();
            while other.next(Duration::ZERO).unwrap().is_some() {}
            longest = longest.max(start.elapsed());
            count += 1;
        }
        (count, longest)
    };
    let quiet = trips();
    let (begin, spent) = (Instant::now(), card.spent_on_joins());
    let (stop, joins) = (AtomicBool::new(false), AtomicUsize::new(0));
    let storm = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                // Relaxed: they order nothing.
                while !stop.load(Ordering::Relaxed) {
                    drop(Endpoint::open(&card.path, Config { pool: 4096, ..Config::default() }));
                    joins.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let storm = trips();
        stop.store(true, Ordering::Relaxed);
        storm
    });
    // Time of a processor, of which there is less than of any other on a busy machine: a ninth, and a little for those who were let in last.
    // Without any limit it has been a seventh here.
    let (passed, spent) = (begin.elapsed(), card.spent_on_joins() - spent);
    let joins = joins.into_inner();
    println!(
        "trips, longest: quiet {quiet:?}, in the storm {storm:?}, joins {joins}, which took {spent:?} of {passed:?}"
    );
    assert!(joins > 8 && spent > Duration::ZERO && spent < passed / 8, "{spent:?} of {passed:?}");
    assert!(storm.0 > 0, "nobody was served meanwhile");
}
