use super::{CacheStats, Classifier, Miss, Tables, VerdictId};
use crate::action::{Action, Class};
use crate::field::{Field, TAG_PRESENT, Wide};
use crate::generate;
use crate::key::Key;
use crate::language::{parse_filter, parse_rule};
use crate::rule::{Next, RuleSpec};
use crate::version::{Change, Limits, Writer};
use proptest::prelude::*;

/// The judge: rules in a list, looked at one after the other.
#[derive(Default)]
struct Naive(Vec<RuleSpec>);

impl Naive {
    fn add(&mut self, rule: RuleSpec) {
        let same = |other: &RuleSpec| {
            (other.table, other.priority, other.matching) == (rule.table, rule.priority, rule.matching)
        };
        self.0.retain(|other| !same(other));
        self.0.push(rule);
    }

    /// The rules on the way of a key, and whether it ended without one.
    fn way(&self, mut table: u8, mut key: Key) -> (Vec<&RuleSpec>, bool) {
        let mut way = Vec::new();
        loop {
            let matching = self.0.iter().filter(|rule| rule.table == table && covers(rule, &key));
            // Of several with one priority `max_by_key` takes the last; the first one is meant.
            let Some(rule) = matching.rev().max_by_key(|rule| rule.priority) else { return (way, true) };
            way.push(rule);
            match crate::rule::Plan::new(&rule.actions).next {
                Next::Table(next) => table = next,
                Next::End | Next::Again(_) => return (way, false),
            }
            for action in &rule.actions {
                change(&mut key, action);
            }
        }
    }
}

/// Field by field, with nothing of the masks of whole keys.
fn covers(rule: &RuleSpec, key: &Key) -> bool {
    let (asked, bits) = (rule.matching.key(), rule.matching.mask());
    // Without a port, a rule of the first table is not for what the host sends.
    if rule.table == 0 && bits.get(Field::InPort) == Wide::ZERO && key.get(Field::InPort).0[0] >> 31 != 0 {
        return false;
    }
    Field::ALL.iter().all(|&field| key.get(field).and(bits.get(field)) == asked.get(field).and(bits.get(field)))
}

fn change(key: &mut Key, action: &Action) {
    let ports = [Field::TpSrc, Field::TpDst, Field::TcpSrc, Field::TcpDst, Field::UdpSrc, Field::UdpDst];
    let later = key.get(Field::IpFrag).0[0] >= 2;
    match action {
        Action::SetField { field, .. } if later && ports.contains(field) => {}
        Action::SetField { field: Field::IcmpType | Field::IcmpCode | Field::NdTarget, .. } if later => {}
        Action::SetField { field, value, mask } => {
            let inner = [Field::InnerVlan, Field::InnerVlanPcp, Field::InnerVlanTci].contains(field);
            let outer = [Field::DlVlan, Field::DlVlanPcp, Field::VlanTci].contains(field);
            // Without an outer tag there is no place for an inner one.
            if inner && key.get(Field::VlanTci).0[0] & TAG_PRESENT == 0 {
                return;
            }
            key.write(*field, *value, *mask);
            if !inner && !outer {
                return;
            }
            let [mut first, mut second] = [Field::VlanTci, Field::InnerVlanTci].map(|tag| key.get(tag).0[0]);
            if ![Field::VlanTci, Field::InnerVlanTci].contains(field) {
                (first, second) = if inner { (first, second | TAG_PRESENT) } else { (first | TAG_PRESENT, second) };
            }
            // A tag that is said not to be there is taken away: the one behind it moves up.
            let mut tags = [first, second].into_iter().filter(|tag| tag & TAG_PRESENT != 0);
            key.set(Field::VlanTci, tags.next().unwrap_or(0));
            key.set(Field::InnerVlanTci, tags.next().unwrap_or(0));
        }
        Action::PushVlan(_) => {
            key.set(Field::InnerVlanTci, key.get(Field::VlanTci));
            key.set(Field::VlanTci, TAG_PRESENT);
        }
        Action::PopVlan => {
            key.set(Field::VlanTci, key.get(Field::InnerVlanTci));
            key.set(Field::InnerVlanTci, 0);
        }
        Action::DecTtl => key.set(Field::NwTtl, key.get(Field::NwTtl).0[0].saturating_sub(1)),
        _ => {}
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(Box<RuleSpec>),
    /// Deletes the rule that is there at that place, strictly.
    Delete(usize),
    /// Deletes loosely what is within the match of the rule at that place.
    DeleteLoose(usize),
    /// Gives the rule at that place other actions.
    Modify(usize, u16),
    Lookup(Vec<usize>),
}

fn step(rule: impl Strategy<Value = RuleSpec>) -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => rule.prop_map(|rule| Step::Add(Box::new(rule))),
        2 => any::<usize>().prop_map(Step::Delete),
        1 => any::<usize>().prop_map(Step::DeleteLoose),
        1 => (any::<usize>(), any::<u16>()).prop_map(|(at, queue)| Step::Modify(at, queue)),
        6 => proptest::collection::vec(any::<usize>(), 1..20).prop_map(Step::Lookup),
    ]
}

fn strict(rule: &RuleSpec) -> crate::version::Filter {
    crate::version::Filter {
        table: Some(rule.table),
        priority: Some(rule.priority),
        matching: rule.matching,
        strict: true,
        ..Default::default()
    }
}

fn compare(classifier: &mut Classifier, naive: &Naive, keys: &[Key]) {
    let mut verdicts = vec![VerdictId::default(); keys.len()];
    assert_eq!(classifier.lookup(0, keys, &mut verdicts), keys.len());
    for (key, id) in keys.iter().zip(verdicts) {
        let verdict = classifier.verdict(id);
        let (way, missed) = naive.way(0, *key);
        let found: Vec<_> = verdict.rules.iter().map(|rule| &rule.spec).collect();
        assert_eq!(found, way, "{key:?}");
        assert_eq!(verdict.missed.is_some(), missed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn same_as_a_list(
        keys in proptest::collection::vec(generate::key(), 1..16),
        steps in proptest::collection::vec(step(generate::rule(true, 4)), 1..60),
    ) {
        run(&keys, steps);
    }

    /// Two fields of four values, so that most rules meet most keys and tables see what others have set.
    #[test]
    fn same_as_a_list_in_a_small_world(steps in proptest::collection::vec(step(small_rule()), 1..60)) {
        let keys: Vec<Key> = (0..16).map(|number| small_key(number / 4, number % 4)).collect();
        run(&keys, steps);
    }
}

fn small_key(port: u64, register: u64) -> Key {
    let mut key = Key::ZERO;
    key.set(Field::InPort, port);
    key.set(Field::Reg0, register);
    key
}

fn small_rule() -> impl Strategy<Value = RuleSpec> {
    let asked = (proptest::option::of(0u64..4), proptest::option::of((0u64..4, 1u64..4)));
    let done = (proptest::option::of((0u64..4, 1u64..4)), proptest::option::of(1u8..4), 0u16..3);
    (0u8..4, 0u16..3, asked, done).prop_map(|(table, priority, (port, register), (set, goto, queue))| {
        let mut rule = RuleSpec { table, priority, ..RuleSpec::default() };
        if let Some(port) = port {
            rule.matching.add(Field::InPort, Wide::new(port), Field::InPort.full()).unwrap();
        }
        if let Some((value, mask)) = register {
            rule.matching.add(Field::Reg0, Wide::new(value & mask), Wide::new(mask)).unwrap();
        }
        let set = set.map(|(value, mask)| Action::SetField {
            field: Field::Reg0,
            value: Wide::new(value & mask),
            mask: Wide::new(mask),
        });
        let goto = goto.filter(|goto| *goto > table).map(Action::GotoTable);
        rule.actions = set.into_iter().chain([goto.unwrap_or(Action::Queue(queue))]).collect();
        rule
    })
}

fn run(keys: &[Key], steps: Vec<Step>) {
    let mut writer = Writer::new(2, Limits::default());
    let (mut often, mut seldom) = (writer.classifier(0, 256), writer.classifier(1, 8));
    let mut naive = Naive::default();
    for step in steps {
        let at = |at: usize, naive: &Naive| naive.0.get(at % naive.0.len().max(1)).cloned();
        match step {
            Step::Add(rule) => {
                writer.commit(vec![Change::Add((*rule).clone())], 0).unwrap();
                naive.add(*rule);
            }
            Step::Delete(place) => {
                let Some(rule) = at(place, &naive) else { continue };
                assert_eq!(writer.commit(vec![Change::Delete(strict(&rule))], 0).unwrap().removed, 1);
                naive.0.retain(|other| *other != rule);
            }
            Step::DeleteLoose(place) => {
                let Some(rule) = at(place, &naive) else { continue };
                let filter = crate::version::Filter { matching: rule.matching, ..Default::default() };
                writer.commit(vec![Change::Delete(filter)], 0).unwrap();
                naive.0.retain(|other| !other.matching.within(&rule.matching));
            }
            Step::Modify(place, queue) => {
                let Some(rule) = at(place, &naive) else { continue };
                let actions = vec![Action::Queue(queue)];
                let change = Change::Modify { filter: strict(&rule), actions: actions.clone(), cookie: None };
                assert_eq!(writer.commit(vec![change], 0).unwrap().modified, 1);
                let same = naive.0.iter_mut().find(|other| **other == rule).unwrap();
                same.actions = actions;
            }
            Step::Lookup(places) => {
                let burst: Vec<_> = places.iter().map(|place| keys[place % keys.len()]).collect();
                compare(&mut often, &naive, &burst);
            }
        }
    }
    compare(&mut often, &naive, keys);
    compare(&mut seldom, &naive, keys);
    assert_eq!(writer.len(), naive.0.len());
}

fn writer(rules: &[&str]) -> Writer {
    let mut writer = Writer::new(1, Limits::default());
    let changes = rules.iter().map(|rule| Change::Add(parse_rule(rule).unwrap())).collect();
    writer.commit(changes, 0).unwrap();
    writer
}

fn one(classifier: &mut Classifier, table: u8, key: Key) -> VerdictId {
    let mut id = [VerdictId::default()];
    assert_eq!(classifier.lookup(table, &[key], &mut id), 1);
    id[0]
}

fn key(text: &str) -> Key {
    *text.parse::<crate::Match>().unwrap().key()
}

#[test]
fn actions_of_all_rules_on_the_way() {
    let writer = writer(&[
        "tcp,actions=mirror:9,set_field:5->reg0,dec_ttl,note:01,goto_table:2",
        "table=2,priority=7,reg0=5,tcp,tcp_dst=80,actions=output:3,queue:1",
        "table=2,priority=9,reg0=6,actions=drop",
    ]);
    let mut classifier = writer.classifier(0, 64);
    let id = one(&mut classifier, 0, key("tcp,tcp_dst=80"));
    let verdict = classifier.verdict(id);
    let texts: Vec<_> = verdict.actions.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["mirror:9", "set_field:0x5->reg0", "dec_ttl", "output:3", "queue:1"]);
    assert_eq!((verdict.class, verdict.rules.len()), (Class::Process, 2));
}

#[test]
fn classes() {
    let mut writer = writer(
        &[
            "in_port=1,actions=output:2",
            "in_port=2,actions=rss:0",
            "in_port=3,actions=drop",
            "in_port=4,actions=mirror:1",
            "in_port=5,actions=in_port,queue:0",
        ]
        .map(|rule| if rule.contains("rss") { "in_port=2,actions=punt" } else { rule }),
    );
    let mut classifier = writer.classifier(0, 64);
    let mut class = |port: u64| {
        let mut key = Key::ZERO;
        key.set(Field::InPort, port);
        let id = one(&mut classifier, 0, key);
        classifier.verdict(id).class
    };
    use Class::{Drop, Forward, Process};
    assert_eq!([1, 2, 3, 4, 5, 6].map(&mut class), [Forward, Process, Drop, Drop, Process, Process]);
    writer.commit(vec![Change::Miss(Miss::Drop)], 0).unwrap();
    assert_eq!(class(6), Drop);
    writer.commit(vec![Change::Miss(Miss::Punt)], 0).unwrap();
    assert_eq!(class(6), Process);
}

#[test]
fn new_headers_are_looked_at_again() {
    let writer = writer(&[
        "udp,udp_dst=4789,actions=set_field:7->metadata,decap_vxlan,goto_table:1",
        "table=1,metadata=7,tcp,actions=queue:4",
    ]);
    let mut classifier = writer.classifier(0, 64);
    let id = one(&mut classifier, 0, key("udp,udp_dst=4789"));
    let again = classifier.verdict(id).again.unwrap();
    assert_eq!(again.table, 1);
    let mut inner = key("tcp");
    again.resume(&mut inner);
    let id = one(&mut classifier, again.table, inner);
    assert_eq!(classifier.verdict(id).actions, [Action::Queue(4)]);
    // The same key in table 0 is another matter, though it has been cached.
    let id = one(&mut classifier, 0, inner);
    assert_eq!(classifier.verdict(id).missed, Some(0));
}

/// No rule asks for the inner tag, and still it decides what a later table sees.
#[test]
fn a_tag_that_takes_the_place_of_another_counts() {
    let writer = writer(&[
        "priority=9,vlan_tci=0x1000/0x1000,actions=pop_vlan,goto_table:1",
        "priority=8,actions=push_vlan:0x8100,goto_table:2",
        "table=1,priority=9,dl_vlan=0xffff,actions=queue:1",
        "table=1,priority=8,dl_vlan=7,actions=queue:2",
        "table=2,inner_vlan_tci=0,actions=queue:3",
    ]);
    let mut classifier = writer.classifier(0, 64);
    let mut queue = |text: &str| {
        let id = one(&mut classifier, 0, key(text));
        classifier.verdict(id).actions.last().cloned()
    };
    assert_eq!(queue("dl_vlan=5"), Some(Action::Queue(1)));
    assert_eq!(queue("dl_vlan=5,inner_vlan=7"), Some(Action::Queue(2)));
    assert_eq!(queue("dl_vlan=5,inner_vlan=6"), Some(Action::PopVlan));
    assert_eq!(queue(""), Some(Action::Queue(3)));
}

#[test]
fn later_fragments_have_no_ports_that_could_be_set() {
    let writer = writer(&["tcp,actions=set_field:80->tcp_dst,goto_table:1", "table=1,tcp,tcp_dst=80,actions=queue:1"]);
    let mut classifier = writer.classifier(0, 64);
    let mut missed = |text: &str| {
        let id = one(&mut classifier, 0, key(text));
        classifier.verdict(id).missed
    };
    assert_eq!((missed("tcp"), missed("tcp,ip_frag=first"), missed("tcp,ip_frag=later")), (None, None, Some(1)));
}

#[test]
fn flows_that_get_new_headers_share_a_verdict() {
    let writer = writer(&["udp,udp_dst=4789,actions=set_field:7->metadata,decap_vxlan,goto_table:1"]);
    let mut classifier = writer.classifier(0, 64);
    let first = one(&mut classifier, 0, key("udp,udp_dst=4789,nw_src=10.0.0.1"));
    assert_eq!(one(&mut classifier, 0, key("udp,udp_dst=4789,nw_src=10.0.0.2")), first);
}

#[test]
fn frames_are_counted_by_rule() {
    let writer =
        writer(&["tcp,actions=goto_table:1", "table=1,tcp,tcp_dst=80,actions=queue:0", "table=1,actions=drop"]);
    let mut classifier = writer.classifier(0, 64);
    let id = one(&mut classifier, 0, key("tcp,tcp_dst=80"));
    classifier.count(id, 2, 120, 5);
    let id = one(&mut classifier, 0, key("tcp,tcp_dst=81"));
    classifier.count(id, 1, 60, 6);
    let read = |writer: &Writer| -> Vec<_> {
        let rules = writer.rules(&parse_filter("").unwrap());
        rules.iter().map(|rule| (rule.counters.read().packets, rule.counters.read().last_ns)).collect()
    };
    assert_eq!(read(&writer), [(0, 0); 3]);
    classifier.flush();
    assert_eq!(read(&writer), [(3, 6), (2, 5), (1, 6)]);
}

#[test]
fn what_a_change_does_not_concern_stays_cached() {
    let mut writer = writer(&["tcp,tcp_dst=80,actions=queue:0", "tcp,tcp_dst=81,actions=queue:1"]);
    let mut classifier = writer.classifier(0, 64);
    one(&mut classifier, 0, key("tcp,tcp_dst=80"));
    let before = classifier.stats();
    writer.commit(vec![Change::Add(parse_rule("tcp,tcp_dst=82,actions=queue:2").unwrap())], 0).unwrap();
    one(&mut classifier, 0, key("tcp,tcp_dst=80"));
    assert_eq!(classifier.stats(), CacheStats { confirmed: before.confirmed + 1, ..before });
    one(&mut classifier, 0, key("tcp,tcp_dst=80"));
    assert_eq!(classifier.stats().hits, before.hits + 1);
    writer.commit(vec![Change::Add(parse_rule("priority=40000,tcp,tcp_dst=80,actions=queue:9").unwrap())], 0).unwrap();
    let id = one(&mut classifier, 0, key("tcp,tcp_dst=80"));
    assert_eq!(classifier.verdict(id).actions, [Action::Queue(9)]);
}

#[test]
fn a_change_behind_a_rewrite_concerns_the_key() {
    let mut writer = writer(&["actions=set_field:5->reg0,goto_table:1", "table=1,priority=1,reg0=0/8,actions=queue:1"]);
    let mut classifier = writer.classifier(0, 64);
    let id = one(&mut classifier, 0, Key::ZERO);
    assert_eq!(classifier.verdict(id).rules.len(), 2);
    // The mask over all rules stays as it is, and the rule does not match the key as it came in.
    writer.commit(vec![Change::Add(parse_rule("table=1,priority=9,reg0=8/8,actions=queue:2").unwrap())], 0).unwrap();
    writer.commit(vec![Change::Add(parse_rule("table=2,reg0=5/7,actions=drop").unwrap())], 0).unwrap();
    one(&mut classifier, 0, Key::ZERO);
    writer.commit(vec![Change::Add(parse_rule("table=1,priority=9,reg0=5/7,actions=queue:3").unwrap())], 0).unwrap();
    let id = one(&mut classifier, 0, Key::ZERO);
    assert_eq!(classifier.verdict(id).actions.last(), Some(&Action::Queue(3)));
}

#[test]
fn changes_that_were_forgotten_are_no_confirmation() {
    let mut writer = writer(&["tcp,tcp_dst=80,actions=queue:0"]);
    let mut classifier = writer.classifier(0, 64);
    one(&mut classifier, 0, key("tcp,tcp_dst=80"));
    writer.commit(vec![Change::Add(parse_rule("priority=40000,tcp,tcp_dst=80,actions=queue:9").unwrap())], 0).unwrap();
    for port in 1000..1100 {
        writer.commit(vec![Change::Add(parse_rule(&format!("tcp,tcp_dst={port},actions=drop")).unwrap())], 0).unwrap();
    }
    let id = one(&mut classifier, 0, key("tcp,tcp_dst=80"));
    assert_eq!(classifier.verdict(id).actions, [Action::Queue(9)]);
}

#[test]
fn empty_tables_match_nothing() {
    let tables = Tables::new(1);
    assert!(tables.is_empty());
    assert!(tables.find(0, &Key::ZERO).is_none());
    assert!(tables.find(63, &Key::ZERO).is_none());
}

#[test]
fn what_no_lookup_has_said_is_lost_by_no_rule() {
    let writer = Writer::new(1, Limits::default());
    let mut classifier = writer.classifier(0, 16);
    // A worker that drops a frame before it has looked one up.
    classifier.lose(VerdictId::default(), 1);
    classifier.flush();
    assert_eq!(classifier.stats(), CacheStats::default());
}
