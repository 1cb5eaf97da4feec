use super::*;
use millrace_abi::name::CardOptions;

const ONE: Owner = Owner::Program { connection: 1, pid: 11, uid: 1000 };
const OTHER: Owner = Owner::Program { connection: 2, pid: 12, uid: 1001 };
const ONES_NEXT: Owner = Owner::Program { connection: 3, pid: 13, uid: 1000 };

fn card() -> Card {
    Card::new(&CardOptions::default()).unwrap()
}

fn own(owner: Owner) -> Authority {
    Authority { owner, everyone: false }
}

fn changes(lines: &[&str]) -> Vec<Change> {
    lines.iter().map(|line| Item::parse(line).unwrap().change(now_ns()).unwrap()).collect()
}

fn commit(card: &Card, authority: Authority, transaction: Transaction) -> Result<Committed, String> {
    let done = card.change_flows_for(&authority, transaction, &|_| Ok(()));
    done.map(|done| done.committed).map_err(|error| error.refusal.to_string())
}

fn add(card: &Card, owner: Owner, lines: &[&str]) -> Result<Committed, String> {
    commit(card, own(owner), Transaction { changes: changes(lines), ..Transaction::default() })
}

fn replace(card: &Card, owner: Owner, lines: &[&str]) -> Result<Committed, String> {
    commit(card, own(owner), Transaction { changes: changes(lines), replace: true, dry_run: false })
}

fn delete_all(card: &Card, authority: Authority) -> usize {
    let changes = vec![Change::Delete(Filter::default())];
    commit(card, authority, Transaction { changes, ..Transaction::default() }).unwrap().removed
}

fn rules(card: &Card) -> Vec<String> {
    card.flows(|writer| writer.rules(&Filter::default()).iter().map(|rule| rule.spec.to_string()).collect())
}

#[test]
fn what_one_has_no_other_changes() {
    let card = card();
    add(&card, ONE, &["group=1,rss,queues=0", "meter=1,rate=1kpps,burst=1k", "miss=drop", "in_port=1,actions=rss:1"])
        .unwrap();
    add(&card, OTHER, &["in_port=2,actions=drop"]).unwrap();
    for lines in
        [["in_port=1,actions=drop"], ["group=1,rss,queues=1"], ["meter=1,rate=2kpps,burst=1k"], ["miss=normal"]]
    {
        let refused = add(&card, OTHER, &lines).unwrap_err();
        assert!(refused.contains("somebody else's"), "{refused}");
        assert!(replace(&card, OTHER, &lines).is_err());
    }
    // What a filter means is one's own.
    assert_eq!(delete_all(&card, own(OTHER)), 1);
    assert_eq!(rules(&card), ["table=0,priority=32768,in_port=1,actions=rss:1"]);
    assert_eq!(delete_all(&card, Authority { owner: Owner::Card, everyone: false }), 0);
    assert_eq!(delete_all(&card, Authority { owner: Owner::Card, everyone: true }), 1);
}

#[test]
fn who_goes_takes_what_is_his_and_nothing_else() {
    let card = card();
    add(&card, ONE, &["group=1,rss,queues=0", "group=2,rss,queues=0", "miss=drop", "in_port=1,actions=rss:1"]).unwrap();
    add(&card, OTHER, &["in_port=2,actions=rss:1", "in_port=3,actions=drop"]).unwrap();
    add(&card, Owner::Card, &["in_port=4,actions=drop"]).unwrap();
    let before = card.flows(|writer| writer.current().version());
    card.end_flows_of(ONE);
    assert_eq!(card.flows(|writer| writer.current().version()), before + 1);
    assert_eq!(rules(&card).len(), 3);
    let has = |id| card.flows(|writer| writer.group(id).is_some());
    assert!(has(1) && !has(2), "group 1 is used by somebody else's rule, group 2 is not");
    assert_eq!(card.flows(|writer| writer.miss()), millrace_flow::table::Miss::Normal);
    // Nobody but a program of the same user gets it; and then it is his.
    assert!(add(&card, OTHER, &["group=1,rss,queues=1"]).is_err());
    add(&card, ONES_NEXT, &["group=1,rss,queues=1"]).unwrap();
    card.end_flows_of(ONES_NEXT);
    assert!(has(1));
    // It goes with the last rule that uses it.
    let changes = vec![Change::Delete(millrace_flow::language::parse_filter("in_port=2").unwrap())];
    commit(&card, own(OTHER), Transaction { changes, ..Transaction::default() }).unwrap();
    assert!(!has(1));
    card.end_flows_of(ONE);
    card.end_flows_of(OTHER);
    assert_eq!(rules(&card), ["table=0,priority=32768,in_port=4,actions=drop"]);
}

#[test]
fn replacing_leaves_what_is_the_same_and_what_is_others() {
    let card = card();
    add(&card, OTHER, &["in_port=9,actions=drop"]).unwrap();
    let first =
        ["group=1,rss,queues=0", "meter=7,rate=1kpps,burst=1k", "in_port=1,actions=rss:1", "in_port=2,actions=drop"];
    add(&card, ONE, &first).unwrap();
    let meter = card.flows(|writer| Arc::clone(writer.meter(7).unwrap()));
    let numbers = |port: &str| {
        card.flows(|writer| {
            writer
                .rules(&millrace_flow::language::parse_filter(port).unwrap())
                .iter()
                .map(|rule| rule.number())
                .collect::<Vec<_>>()
        })
    };
    let kept = numbers("in_port=2");
    let after = card.last_flow_event(false);
    let second = [
        "meter=7,rate=1kpps,burst=1k",
        "in_port=1,actions=queue:1",
        "in_port=2,actions=drop",
        "in_port=3,actions=drop",
    ];
    let done = replace(&card, ONE, &second).unwrap();
    assert_eq!((done.added, done.removed), (2, 1));
    assert_eq!(rules(&card).len(), 4);
    assert_eq!(numbers("in_port=2"), kept);
    card.flows(|writer| assert!(writer.group(1).is_none() && Arc::ptr_eq(writer.meter(7).unwrap(), &meter)));
    let since = card.flow_events(after, 100, false);
    let kinds: Vec<&str> = since
        .events
        .iter()
        .map(|event| match &event.happened {
            Happened::Added(_) => "added",
            Happened::Modified(_) => "modified",
            Happened::Removed(..) => "removed",
            Happened::Set(_) => "set",
            Happened::Unset(_) => "unset",
        })
        .collect();
    assert_eq!(kinds, ["modified", "added", "unset"]);
}

#[test]
fn a_try_changes_nothing() {
    let card = card();
    add(&card, ONE, &["in_port=1,actions=drop"]).unwrap();
    let (version, after) = (card.flows(|writer| writer.current().version()), card.last_flow_event(false));
    let transaction = Transaction {
        changes: changes(&["group=1,rss,queues=0", "in_port=2,actions=rss:1"]),
        replace: true,
        dry_run: true,
    };
    let done = card.change_flows_for(&own(ONE), transaction, &|_| Err("no".to_owned())).unwrap();
    assert_eq!((done.committed.added, done.committed.removed), (1, 1));
    assert_eq!((card.flows(|writer| writer.current().version()), card.last_flow_event(false)), (version, after));
    assert_eq!(rules(&card).len(), 1);
}

#[test]
fn whoever_agrees_is_told_how_much_it_is_and_may_refuse() {
    let card = card();
    let told = std::cell::RefCell::new(Vec::new());
    let agree = |more: &[(Owner, i64)]| {
        told.borrow_mut().extend_from_slice(more);
        if more.iter().any(|(_, more)| *more > 2) { Err("too many".to_owned()) } else { Ok(()) }
    };
    let ask = |lines: &[&str]| {
        let transaction = Transaction { changes: changes(lines), ..Transaction::default() };
        card.change_flows_for(&own(ONE), transaction, &agree).map(drop).map_err(|error| error.refusal.to_string())
    };
    ask(&["in_port=1,actions=drop", "in_port=2,actions=drop"]).unwrap();
    ask(&["in_port=1,actions=queue:1", "in_port=3,actions=drop"]).unwrap();
    assert_eq!(
        ask(&["in_port=4,actions=drop", "in_port=5,actions=drop", "in_port=6,actions=drop"]),
        Err("too many".to_owned())
    );
    assert_eq!(*told.borrow(), [(ONE, 2), (ONE, 1), (ONE, 3)]);
    assert_eq!((rules(&card).len(), card.rules_of(ONE)), (3, 3));
}

#[test]
fn rules_end_with_their_time_and_say_which() {
    let card = card();
    add(
        &card,
        ONE,
        &["hard_timeout=1,in_port=1,actions=drop", "idle_timeout=1,in_port=2,actions=drop", "in_port=3,actions=drop"],
    )
    .unwrap();
    let after = card.last_flow_event(false);
    assert_eq!(card.expire_flows(), (Vec::new(), Later::Some));
    let begin = std::time::Instant::now();
    while card.expire_flows().1 != Later::Nothing && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut whys: Vec<String> = card
        .flow_events(after, 10, true)
        .events
        .iter()
        .map(|event| match &event.happened {
            Happened::Removed(rule, why) => format!("{} {why:?}", rule.spec.matching),
            other => panic!("{other:?}"),
        })
        .collect();
    whys.sort();
    assert_eq!(whys, ["in_port=1 Hard", "in_port=2 Idle"]);
    assert_eq!((rules(&card).len(), card.rules_of(ONE)), (1, 1));
}

#[test]
fn who_asks_too_late_is_told_what_is_lost() {
    let mut events = Events::default();
    let rule = |card: &Card| card.flows(|writer| writer.each().next().cloned().unwrap());
    let card = card();
    add(&card, ONE, &["in_port=1,actions=drop"]).unwrap();
    let steps = vec![Op::Insert(rule(&card)); 1000];
    let happened = 1 + (1 << 17) / 1000;
    (0..happened).for_each(|version| events.note(version, 0, &steps, |_| Why::Deleted, |_| ONE));
    let all = happened * 1000;
    let since = events.since(0, 10, false);
    assert_eq!((since.lost, since.last, since.events.len()), (all - (1 << 17), all, 10));
    assert_eq!(since.events[0].number, all - (1 << 17) + 1);
    let since = events.since(all - 3, 10, false);
    assert_eq!((since.lost, since.events.len()), (0, 3));
    // Who wants rules that have gone only has looked at the others as well.
    let gone = [Op::Remove(rule(&card))];
    events.note(happened, 0, &[&steps[..3], &gone].concat(), |_| Why::Deleted, |_| ONE);
    let since = events.since(all, 10, true);
    assert_eq!((since.events.len(), since.events[0].number, since.next), (1, all + 4, all + 4));
    events.note(happened, 0, &steps[..3], |_| Why::Deleted, |_| ONE);
    let since = events.since(all, 10, true);
    assert_eq!((since.events.len(), since.next, events.last(true), events.last(false)), (1, all + 7, all + 4, all + 7));
    assert_eq!(events.since(all, 1, true).next, all + 4);
    // Nonsense of whoever asks.
    assert_eq!(events.since(u64::MAX, 10, false).events.len(), 0);
}

#[test]
fn what_a_program_leaves_behind_goes_in_parts_and_whoever_wins_goes_last() {
    let card = card();
    let count = 2 * PART + 10;
    let lines: Vec<String> =
        (0..count).map(|at| format!("priority={},in_port={},actions=drop", at % 5, at / 5)).collect();
    let lines: Vec<&str> =
        lines.iter().map(String::as_str).chain(["group=1,rss,queues=0", "table=1,actions=rss:1"]).collect();
    add(&card, ONE, &lines).unwrap();
    add(&card, OTHER, &["priority=9,in_port=1,actions=queue:0"]).unwrap();
    assert_eq!(card.rules_of(ONE), count + 1);
    assert!(card.end_flows_of(ONE));
    // Of table 0, all that are left win against all that have gone.
    let left = card.flows(|writer| {
        let own = writer.each().filter(|rule| rule.spec.table == 0 && rule.author != 0 && rule.spec.priority < 9);
        own.map(|rule| rule.spec.priority).min()
    });
    assert_eq!(left, Some((PART / (count / 5)) as u16));
    assert_eq!(card.rules_of(ONE), count + 1 - PART);
    assert!(card.end_flows_of(ONE));
    assert!(card.flows(|writer| writer.group(1).is_some()), "rules that are left use it");
    assert!(!card.end_flows_of(ONE));
    assert!(!card.end_flows_of(ONE));
    assert_eq!((rules(&card).len(), card.rules_of(ONE), card.rule_units_of(ONE)), (1, 0, 0));
    assert!(card.flows(|writer| writer.group(1).is_none()));
}

#[test]
fn many_actions_are_more_units() {
    let card = card();
    let told = std::cell::RefCell::new(Vec::new());
    let agree = |more: &[(Owner, i64)]| {
        told.borrow_mut().extend_from_slice(more);
        Ok(())
    };
    let many = format!("ip,in_port=1,actions={}queue:1", "dec_ttl,".repeat(40));
    for line in [&many[..], "ip,in_port=1,actions=drop"] {
        let transaction = Transaction { changes: changes(&[line]), ..Transaction::default() };
        card.change_flows_for(&own(ONE), transaction, &agree).unwrap();
    }
    assert_eq!(*told.borrow(), [(ONE, 6), (ONE, -5)]);
    assert_eq!((card.rules_of(ONE), card.rule_units_of(ONE)), (1, 1));
}

#[test]
fn events_are_bounded_in_bytes_too() {
    let card = card();
    let notes = vec![format!("note:{}", "00".repeat(200)); 38].join(",");
    add(&card, ONE, &[&format!("in_port=1,actions={notes}")]).unwrap();
    let rule = card.flows(|writer| writer.each().next().cloned().unwrap());
    let steps = vec![Op::Insert(Arc::clone(&rule)); 1000];
    let mut events = Events::default();
    (0..40).for_each(|version| events.note(version, 0, &steps, |_| Why::Deleted, |_| ONE));
    let since = events.since(0, 1, false);
    let kept = (since.last - since.lost) as usize;
    assert!(since.lost > 0 && kept * rule.bytes() <= 192 << 20 && kept > 1000, "{kept} of {} bytes", rule.bytes());
}
