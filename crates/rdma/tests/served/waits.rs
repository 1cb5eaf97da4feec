//! For whose memory the engine has waited.

use super::*;
use millrace_rdma::served::{Wait, Watcher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const EVE: Account = Account { uid: 1000, is_owner: false };
/// Longer than a step that is not looked at.
const LONG: Duration = Duration::from_millis(500);

/// What is said next: of a step, and of uses of memory, the first of which is the first.
#[derive(Default)]
struct Said {
    step: Option<Wait>,
    uses: Vec<Option<Wait>>,
    asked: usize,
}

#[derive(Clone, Default)]
struct Script(Arc<Mutex<Said>>);

impl Watcher for Script {
    fn restart(&mut self) {}

    fn waited(&mut self) -> Option<Wait> {
        self.0.lock().unwrap().step.take()
    }

    fn begin(&mut self) {}

    fn end(&mut self) -> Option<Wait> {
        let mut said = self.0.lock().unwrap();
        said.asked += 1;
        let at = said.asked - 1;
        said.uses.get(at).copied().flatten()
    }
}

fn wait(milliseconds: u64) -> Wait {
    Wait { slept: Duration::from_millis(milliseconds), is_doubtful: false }
}

/// Bytes that it writes from one to the other, and that the step took so long for so much waiting.
fn write(service: &mut Service, now: &mut u64, [from, to]: [&mut End; 2], script: &Script, waited: Option<Wait>) {
    let (key, own) = (to.key, from.piece(0, 1 << 16));
    from.post(7, write_to(key, 0), &[own]).unwrap();
    run(service, now);
    script.0.lock().unwrap().step = waited;
    service.look_for_waits(Moment::new(*now), LONG);
}

/// A service, two programs of `one` that are connected, and whom it asks for waits.
fn watched(one: Account, other: Account) -> (Service, [End; 2], Script) {
    let (mut service, script) = (service(), Script::default());
    service.watch(Box::new(script.clone()));
    let ends = [end_of(&mut service, one), end_of(&mut service, other)];
    join(&mut service, &ends[0], &ends[1]);
    (service, ends, script)
}

fn minutes(now: &mut u64, count: u64) {
    *now += count * 60_000_000_000;
}

#[test]
fn who_has_the_engine_wait_is_put_out_and_may_come_back() {
    let (mut service, [mut a, mut b], script) = watched(EVE, EVE);
    let mut others = [end(&mut service), end(&mut service)];
    let [c, d] = &mut others;
    join(&mut service, c, d);
    let mut now = 0;
    for _ in 0..2 {
        write(&mut service, &mut now, [&mut a, &mut b], &script, Some(wait(100)));
        assert!(service.take_put_out().is_none(), "that may happen");
    }
    write(&mut service, &mut now, [&mut a, &mut b], &script, Some(wait(100)));
    let out = service.take_put_out().unwrap();
    assert!(out.has_stalled && [a.number, b.number].contains(&out.number) && service.take_put_out().is_none());
    let counted = service.counters();
    assert_eq!((counted.stalled, counted.waits, counted.waited_us), (1, 3, 300_000));
    write(&mut service, &mut now, [c, d], &script, None);
    assert_eq!(c.poll()[0].status, Status::Success);
    // Of 300 ms there are 150 after five minutes, and 125 after six and a quarter.
    for (count, is_out) in [(0, true), (6, true), (1, false)] {
        minutes(&mut now, count);
        assert_eq!(service.is_out(Moment::new(now), EVE), is_out, "{count}");
    }
    assert!(!service.is_out(Moment::new(now), OWNER));
    // It is known of him.
    let mut again = [end_of(&mut service, EVE), end_of(&mut service, EVE)];
    let [a, b] = &mut again;
    join(&mut service, a, b);
    write(&mut service, &mut now, [a, b], &script, Some(wait(135)));
    assert!(service.take_put_out().is_some_and(|out| out.has_stalled) && service.is_out(Moment::new(now), EVE));
}

#[test]
fn what_happens_now_and_then_or_for_another_reason_puts_nobody_out() {
    let (mut service, [mut a, mut b], script) = watched(EVE, EVE);
    let mut now = 0;
    for _ in 0..20 {
        write(&mut service, &mut now, [&mut a, &mut b], &script, Some(wait(100)));
        assert!(service.take_put_out().is_none());
        a.poll();
        minutes(&mut now, 5);
    }
    // There is a tenth left of that, and of this a tenth counts.
    minutes(&mut now, 15);
    let swapped = Wait { is_doubtful: true, ..wait(500) };
    for turn in 1..=5 {
        write(&mut service, &mut now, [&mut a, &mut b], &script, Some(swapped));
        assert_eq!(service.take_put_out().is_some(), turn == 5);
        a.poll();
    }
}

#[test]
fn who_only_may_have_been_it_pays_nothing_until_it_is_known() {
    let (mut service, [mut a, mut b], script) = watched(OWNER, EVE);
    let mut others = [end(&mut service), end(&mut service)];
    let [c, d] = &mut others;
    join(&mut service, c, d);
    let mut now = 0;
    a.fill(0, &pattern(1 << 16, 1));
    write(&mut service, &mut now, [&mut a, &mut b], &script, Some(wait(10_000)));
    assert!(service.take_put_out().is_none(), "of a or of b");
    // Each use of their memory is looked at now, and of nobody else's: the second is that of bytes of b, written.
    script.0.lock().unwrap().uses = vec![None, Some(wait(200)), None, Some(wait(100))];
    a.fill(0, &pattern(1 << 16, 2));
    write(&mut service, &mut now, [c, d], &script, None);
    assert_eq!(script.0.lock().unwrap().asked, 0);
    write(&mut service, &mut now, [&mut a, &mut b], &script, None);
    assert_eq!(script.0.lock().unwrap().asked, 32, "parts of 4 KiB of both");
    assert_eq!(b.bytes(0, 1 << 16), pattern(1 << 16, 2));
    let counted = service.counters();
    assert_eq!((counted.copied, counted.packets), (3 << 16, 0));
    run(&mut service, &mut now);
    let out = service.take_put_out().unwrap();
    assert!(out.number == b.number && out.has_stalled && service.take_put_out().is_none());
    assert!(service.is_out(Moment::new(now), EVE));
    // After a while nobody is looked at.
    minutes(&mut now, 6);
    service.look_for_waits(Moment::new(now), LONG);
    service.modify_pair(a.number, a.qpn, &Attributes::state(State::Reset)).unwrap();
    a.program.add_pair(a.qpn, &Capabilities { send_requests: 4, ..Capabilities::default() }, true);
    let mut e = end(&mut service);
    join(&mut service, &a, &e);
    write(&mut service, &mut now, [&mut a, &mut e], &script, None);
    assert_eq!(script.0.lock().unwrap().asked, 32);
}

#[test]
fn many_short_times_are_found_out() {
    let (mut service, [mut a, mut b], script) = watched(OWNER, EVE);
    let mut now = 0;
    let short = Wait { slept: Duration::from_micros(900), is_doubtful: false };
    // 50 ms in a second: from then on each use is looked at.
    for _ in 0..60 {
        write(&mut service, &mut now, [&mut a, &mut b], &script, Some(short));
        a.poll();
    }
    assert!(service.take_put_out().is_none());
    let looked = script.0.lock().unwrap().asked;
    assert!((1..=5 * 32).contains(&looked), "{looked}");
    script.0.lock().unwrap().uses = (0..looked + 1000).map(|at| (at % 2 == 1).then_some(short)).collect();
    for _ in 0..20 {
        write(&mut service, &mut now, [&mut a, &mut b], &script, None);
    }
    let out = service.take_put_out().unwrap();
    assert!(out.has_stalled && out.number == b.number);
}

#[test]
fn who_has_it_wait_in_every_page_is_not_served_before_he_is_put_out() {
    let (mut service, [mut a, mut b], script) = watched(OWNER, EVE);
    let mut now = 0;
    write(&mut service, &mut now, [&mut a, &mut b], &script, Some(wait(1000)));
    script.0.lock().unwrap().uses = vec![None, Some(wait(300))];
    a.fill(0, &pattern(1 << 16, 1));
    write(&mut service, &mut now, [&mut a, &mut b], &script, None);
    let written = [pattern(1 << 16, 1)[..4096].to_vec(), vec![0; (1 << 16) - 4096]].concat();
    assert!(b.bytes(0, 1 << 16) == written, "what would be its second page is not touched");
    assert_eq!(service.take_put_out().unwrap().number, b.number);
}
