use super::{Change, CommitError, Filter, HISTORY, Limits, Refusal, Writer};
use crate::action::Action;
use crate::field::Field;
use crate::key::Key;
use crate::language::{parse_filter, parse_rule};
use crate::meter::{Meter, MeterSpec, Unit};
use crate::rss::{Group, GroupSpec, MICROSOFT_KEY};
use crate::table::{Tables, VerdictId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn add(text: &str) -> Change {
    Change::Add(parse_rule(text).unwrap())
}

fn delete(text: &str) -> Change {
    Change::Delete(parse_filter(text).unwrap())
}

fn list(writer: &Writer) -> Vec<String> {
    writer.rules(&Filter::default()).iter().map(|rule| rule.spec.to_string()).collect()
}

fn group() -> Option<Arc<Group>> {
    Some(Arc::new(Group::new(&GroupSpec::spread(&MICROSOFT_KEY, 4, 4)).unwrap()))
}

/// The queue of a frame that came in at `port`.
fn queue(tables: &Tables, port: u64) -> Option<Action> {
    let mut key = Key::ZERO;
    key.set(Field::InPort, port);
    tables.find(0, &key).map(|rule| rule.spec.actions[0].clone())
}

#[test]
fn all_or_nothing() {
    let mut writer = Writer::new(1, Limits { rules: 3, ..Limits::default() });
    writer.commit(vec![add("in_port=1,actions=queue:1"), add("in_port=2,actions=queue:2")], 0).unwrap();
    let before = list(&writer);
    for (changes, change) in [
        (vec![delete(""), add("table=3,actions=queue:1"), add("actions=rss:9")], 2),
        (vec![add("in_port=3,actions=queue:3"), add("in_port=4,actions=queue:3")], 1),
        (vec![add("in_port=3,actions=meter:1,queue:3"), delete("in_port=1")], 0),
        (vec![delete("in_port=1"), Change::Group(1, group()), Change::Group(4096, None)], 2),
    ] {
        let error = writer.commit(changes, 0).unwrap_err();
        assert_eq!(error.change, change, "{error}");
        assert_eq!((list(&writer), writer.current().version()), (before.clone(), 1));
        assert_eq!(writer.current().len(), 2);
        assert!(writer.group(1).is_none());
    }
}

#[test]
fn work_is_bounded() {
    let mut writer = Writer::new(1, Limits { looks: 9, ..Limits::default() });
    writer.commit((1..=4).map(|port| add(&format!("in_port={port},actions=drop"))).collect(), 0).unwrap();
    let loose = || delete("in_port=9");
    writer.commit(vec![loose(), loose()], 0).unwrap();
    let error = writer.commit(vec![delete("in_port=1"), loose(), loose()], 0).unwrap_err();
    assert_eq!(error, CommitError { change: 2, refusal: Refusal::TooMuchWork(9) });
    assert_eq!(writer.len(), 4);
    let strict = || delete("table=0,strict,in_port=9");
    writer.commit((0..100).map(|_| strict()).collect(), 0).unwrap();
}

#[test]
fn groups_and_meters_that_are_used_stay() {
    let mut writer = Writer::new(1, Limits::default());
    let meter = Meter::new(MeterSpec { unit: Unit::Packets, rate: 1, burst: 1, remark: None }, 0).unwrap();
    let setup = vec![add("actions=meter:2,rss:1"), Change::Group(1, group()), Change::Meter(2, Some(Arc::new(meter)))];
    writer.commit(setup, 0).unwrap();
    let refused = |writer: &mut Writer, change| writer.commit(vec![change], 0).unwrap_err();
    let error = refused(&mut writer, Change::Group(1, None));
    assert_eq!(error, CommitError { change: 0, refusal: Refusal::GroupInUse(1) });
    assert_eq!(refused(&mut writer, Change::Meter(2, None)).refusal, Refusal::MeterInUse(2));
    // Exchanged, or removed together with the rule, is another matter.
    writer.commit(vec![Change::Group(1, group())], 0).unwrap();
    writer.commit(vec![Change::Group(1, None), Change::Meter(2, None), delete("")], 0).unwrap();
    assert!(writer.current().group(1).is_none() && writer.current().meter(2).is_none());
}

#[test]
fn quic_groups_are_groups_of_another_kind() {
    let steering = |queues: &[u16]| {
        let few = crate::quic::GroupSpec::over(queues.to_vec());
        let few = crate::quic::GroupSpec { connections: 100, handshakes: 100, per_source: 100, ..few };
        Some(Arc::new(crate::quic::Group::new(&few).unwrap()))
    };
    let mut writer = Writer::new(1, Limits::default());
    let refused = |writer: &mut Writer, changes| writer.commit(changes, 0).unwrap_err().refusal;
    let rule = || add("udp,udp_dst=443,actions=quic:1");
    assert_eq!(refused(&mut writer, vec![rule()]), Refusal::NoQuic(1));
    assert_eq!(refused(&mut writer, vec![rule(), Change::Group(1, group())]), Refusal::NotQuic(1));
    assert!(!writer.current().wants_sent());
    writer.commit(vec![rule(), Change::Quic(1, steering(&[0, 1]))], 0).unwrap();
    assert!(writer.current().wants_sent() && writer.current().quic(1).is_some());
    assert_eq!(refused(&mut writer, vec![Change::Group(1, group())]), Refusal::OtherKind(1));
    assert_eq!(refused(&mut writer, vec![Change::Quic(1, None)]), Refusal::QuicInUse(1));
    // Exchanged, it is asked under either version.
    writer.commit(vec![Change::Quic(1, steering(&[2, 3]))], 0).unwrap();
    assert_eq!(writer.at(1).unwrap().quic(1).unwrap().spec().queues, [0, 1]);
    assert_eq!(writer.current().quic(1).unwrap().spec().queues, [2, 3]);
    writer.commit(vec![Change::Group(1, group()), delete(""), Change::Quic(1, None)], 0).unwrap();
    assert!(!writer.current().wants_sent() && writer.current().quic(1).is_none());
    // Room for connections is memory, of which all groups together have so much.
    let large = |id| {
        let spec = crate::quic::GroupSpec { connections: 262_144, ..crate::quic::GroupSpec::over(vec![0]) };
        Change::Quic(id, Some(Arc::new(crate::quic::Group::new(&spec).unwrap())))
    };
    writer.commit((10..14).map(large).collect(), 0).unwrap();
    assert_eq!(refused(&mut writer, vec![large(14)]), Refusal::TooManyConnections(1 << 20));
    writer.commit(vec![large(13)], 0).unwrap();
}

#[test]
fn loose_changes_reach_what_is_within() {
    let mut writer = Writer::new(1, Limits::default());
    let rules = ["ip,nw_src=10.1.0.0/16,actions=queue:1", "ip,nw_src=10.0.0.0/8,actions=queue:2", "ip,actions=queue:3"];
    writer.commit(rules.map(add).to_vec(), 0).unwrap();
    let filter = parse_filter("ip,nw_src=10.0.0.0/8").unwrap();
    let modify = Change::Modify { filter: filter.clone(), actions: vec![Action::Queue(7)], cookie: Some(5) };
    assert_eq!(writer.commit(vec![modify], 0).unwrap().modified, 2);
    assert_eq!(writer.rules(&parse_filter("cookie=5").unwrap()).len(), 2);
    let strict = Filter { strict: true, ..filter };
    assert_eq!(writer.commit(vec![Change::Delete(strict)], 0).unwrap().removed, 1);
    let rest = [
        "table=0,priority=32768,cookie=0x5,ip,nw_src=10.1.0.0/16,actions=queue:7",
        "table=0,priority=32768,ip,actions=queue:3",
    ];
    assert_eq!(list(&writer), rest);
    assert_eq!(writer.commit(vec![delete("out_port=3")], 0).unwrap().removed, 0);
    // Actions are checked against each rule that they would be for.
    let wrong = Change::Modify { filter: Filter::default(), actions: vec![Action::GotoTable(0)], cookie: None };
    assert!(writer.commit(vec![wrong], 0).is_err());
    assert_eq!(list(&writer), rest);
}

#[test]
fn replacing_keeps_what_is_the_same() {
    let mut writer = Writer::new(1, Limits::default());
    writer.commit(vec![add("in_port=1,actions=queue:1"), add("in_port=2,actions=queue:2")], 0).unwrap();
    let kept = Arc::clone(writer.rules(&parse_filter("in_port=1").unwrap())[0]);
    let wanted = [
        "in_port=1,actions=queue:1",
        "in_port=2,actions=queue:3",
        "in_port=3,actions=drop",
        "in_port=3,actions=queue:4",
    ];
    let change = Change::Replace(wanted.iter().map(|rule| parse_rule(rule).unwrap()).collect());
    let done = writer.commit(vec![change], 0).unwrap();
    assert_eq!((done.added, done.removed), (2, 1));
    assert!(Arc::ptr_eq(&kept, writer.rules(&parse_filter("in_port=1").unwrap())[0]));
    assert_eq!(queue(writer.current(), 2), Some(Action::Queue(3)));
    assert_eq!(queue(writer.current(), 3), Some(Action::Queue(4)));
}

#[test]
fn older_versions_can_be_had() {
    let mut writer = Writer::new(1, Limits::default());
    for version in 1..=20u64 {
        let rule = format!("in_port={},actions=queue:{version}", version % 5);
        let group = Change::Group(1, if version % 2 == 0 { group() } else { None });
        writer.commit(vec![add(&rule), group], 0).unwrap();
    }
    writer.commit(vec![delete("")], 0).unwrap();
    let pinned = Arc::clone(writer.current());
    assert_eq!(queue(&pinned, 3), None);
    for version in 1..=20u64 {
        let tables = writer.at(version).unwrap();
        assert_eq!((tables.version(), tables.len() as u64), (version, version.min(5)));
        assert_eq!(queue(&tables, version % 5), Some(Action::Queue(version as u16)));
        assert_eq!(tables.group(1).is_some(), version % 2 == 0);
    }
    assert!(writer.at(0).unwrap().is_empty());
    assert!(writer.at(22).is_err());
    for _ in 0..HISTORY {
        writer.commit(vec![add("actions=drop")], 0).unwrap();
    }
    let error = writer.at(20).unwrap_err();
    assert_eq!(error.newest - error.oldest, HISTORY as u64 - 1);
    assert!(writer.at(error.oldest).is_ok());
    // Who holds a version keeps it.
    assert_eq!((pinned.version(), pinned.is_empty()), (21, true));
}

#[test]
fn rules_end_in_time() {
    const SECOND: u64 = 1_000_000_000;
    let mut writer = Writer::new(1, Limits::default());
    let rules = [
        "in_port=1,idle_timeout=2,actions=queue:1",
        "in_port=2,hard_timeout=3,actions=queue:2",
        "in_port=3,actions=drop",
    ];
    writer.commit(rules.map(add).to_vec(), SECOND).unwrap();
    assert!(writer.expire(2 * SECOND).is_empty());
    assert_eq!(writer.current().version(), 1);
    let mut classifier = writer.classifier(0, 64);
    let (mut key, mut id) = (Key::ZERO, [VerdictId::default()]);
    key.set(Field::InPort, 1);
    classifier.lookup(0, &[key], &mut id);
    classifier.count(id[0], 1, 60, 3 * SECOND);
    classifier.release();
    assert_eq!(writer.expire(4 * SECOND).len(), 1);
    assert_eq!((queue(writer.current(), 1), queue(writer.current(), 2)), (Some(Action::Queue(1)), None));
    assert_eq!(writer.expire(5 * SECOND).len(), 1);
    assert_eq!((writer.len(), writer.current().version()), (1, 3));
}

#[test]
fn a_rule_that_is_renewed_keeps_its_counters_and_begins_its_time_anew() {
    const SECOND: u64 = 1_000_000_000;
    let mut writer = Writer::new(1, Limits::default());
    writer.commit(vec![add("in_port=1,hard_timeout=3,actions=queue:1"), add("priority=1,actions=queue:9")], 0).unwrap();
    let mut classifier = writer.classifier(0, 64);
    let (mut key, mut id) = (Key::ZERO, [VerdictId::default()]);
    key.set(Field::InPort, 1);
    classifier.lookup(0, &[key], &mut id);
    classifier.count(id[0], 4, 240, SECOND);
    classifier.release();
    let one = |writer: &Writer| Arc::clone(writer.rules(&parse_filter("in_port=1").unwrap())[0]);
    let before = one(&writer);
    let renew = |rule: &str| Change::Renew(parse_rule(rule).unwrap());
    let done = writer.commit(vec![renew("in_port=1,cookie=7,hard_timeout=4,actions=queue:2")], 2 * SECOND).unwrap();
    assert_eq!((done.added, done.modified, done.removed), (0, 1, 0));
    let after = one(&writer);
    assert_eq!((after.number(), after.created_ns, after.counters.read().packets), (before.number(), 2 * SECOND, 4));
    assert_eq!((after.spec.cookie, queue(writer.current(), 1)), (7, Some(Action::Queue(2))));
    assert!(writer.expire(5 * SECOND).is_empty());
    assert_eq!(writer.expire(6 * SECOND).len(), 1);
    // Its place is empty: then it is added.
    assert_eq!(writer.commit(vec![renew("in_port=1,actions=queue:3")], 7 * SECOND).unwrap().added, 1);
    assert_eq!((one(&writer).counters.read().packets, queue(writer.current(), 1)), (0, Some(Action::Queue(3))));
    let wrong = writer.commit(vec![renew("in_port=1,actions=meter:5,queue:3")], 7 * SECOND).unwrap_err();
    assert_eq!(wrong.refusal, Refusal::NoMeter(5));
}

/// Two rules always change together, so a burst that sees one of the new and one of the old has seen half.
#[test]
fn nobody_sees_half_of_a_transaction() {
    let mut writer = Writer::new(2, Limits::default());
    let both = |number: u64| {
        let number = number % 60_000;
        vec![add(&format!("in_port=1,actions=queue:{number}")), add(&format!("in_port=2,actions=queue:{number}"))]
    };
    writer.commit(both(0), 0).unwrap();
    let stop = AtomicBool::new(false);
    let classifiers = [writer.classifier(0, 64), writer.classifier(1, 8)];
    std::thread::scope(|scope| {
        let readers = classifiers.map(|mut classifier| {
            let stop = &stop;
            scope.spawn(move || {
                let keys: [Key; 2] = std::array::from_fn(|at| {
                    let mut key = Key::ZERO;
                    key.set(Field::InPort, at as u64 + 1);
                    key
                });
                let (mut ids, mut bursts, mut last) = ([VerdictId::default(); 2], 0u64, 0);
                while !stop.load(Ordering::Relaxed) || bursts == 0 {
                    classifier.lookup(0, &keys, &mut ids);
                    let [one, other] = ids.map(|id| classifier.verdict(id).actions.clone());
                    assert_eq!(one, other);
                    let version = classifier.tables().unwrap().version();
                    assert!(version >= last);
                    (last, bursts) = (version, bursts + 1);
                    if bursts % 100 == 0 {
                        classifier.release();
                    }
                }
            })
        });
        for number in 1..5000 {
            writer.commit(both(number), 0).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// However long somebody holds a version, the writer goes on, and gives back what it needed meanwhile.
#[test]
fn a_reader_that_sleeps_stops_nobody() {
    let mut writer = Writer::new(1, Limits::default());
    let mut classifier = writer.classifier(0, 64);
    writer.commit(vec![add("in_port=1,actions=queue:0")], 0).unwrap();
    let (mut key, mut id) = (Key::ZERO, [VerdictId::default()]);
    key.set(Field::InPort, 1);
    classifier.lookup(0, &[key], &mut id);
    for number in 1..1000 {
        writer.commit(vec![add(&format!("in_port=1,actions=queue:{number}"))], 0).unwrap();
        assert!(writer.copies() <= 4);
    }
    assert_eq!(classifier.verdict(id[0]).actions, [Action::Queue(0)]);
    classifier.lookup(0, &[key], &mut id);
    assert_eq!(classifier.verdict(id[0]).actions, [Action::Queue(999)]);
}
