use super::{BETTER, Explanation, explain};
use crate::action::Class;
use crate::generate;
use crate::key::Key;
use crate::language::parse_rule;
use crate::rss::{Group, GroupSpec, MICROSOFT_KEY};
use crate::table::VerdictId;
use crate::version::{Change, Limits, Writer};
use proptest::prelude::*;
use std::sync::Arc;

fn key(text: &str) -> Key {
    *text.parse::<crate::Match>().unwrap().key()
}

fn writer() -> Writer {
    let mut writer = Writer::new(1, Limits::default());
    let spec = GroupSpec { inner: true, ..GroupSpec::spread(&MICROSOFT_KEY, 8, 8) };
    let mut changes = vec![Change::Group(1, Some(Arc::new(Group::new(&spec).unwrap())))];
    let rules = [
        "priority=20,tcp,tcp_dst=80,actions=drop",
        "priority=30,dl_vlan=5,actions=drop",
        "priority=10,ip,actions=set_field:7->reg0,goto_table:1",
        "table=1,priority=9,reg0=8,actions=drop",
        "table=1,priority=5,reg0=7,ip,nw_src=10.0.0.0/8,actions=rss:1",
    ];
    changes.extend(rules.map(|rule| Change::Add(parse_rule(rule).unwrap())));
    writer.commit(changes, 0).unwrap();
    writer
}

fn of(text: &str) -> Explanation {
    explain(writer().current(), 0, &key(text), None, BETTER)
}

#[test]
fn why_not_a_better_rule() {
    let explained = of("tcp,tcp_dst=443,nw_src=10.0.0.1");
    let why: Vec<_> = explained.steps.iter().flat_map(|step| &step.better).collect();
    let short: Vec<_> = why.iter().map(|passed| (passed.field, &*passed.wants, &*passed.has)).collect();
    assert_eq!(short, [("dl_vlan", "5", "no tag"), ("tcp_dst", "80", "443"), ("reg0", "0x8", "0x7")]);
    assert_eq!((explained.steps.len(), explained.class, explained.version), (2, Class::Process, 1));
    let hashed = &explained.hashes[0];
    assert_eq!(explained.queues, [hashed.queue]);
    assert_eq!(u32::from(hashed.queue), hashed.hash.unwrap() % 8);
}

#[test]
fn nothing_matches() {
    let explained = of("arp");
    assert_eq!(explained.steps[0].rule, None);
    assert_eq!(explained.steps[0].better.len(), 3);
    assert!(explained.normal && explained.actions.is_empty());
    let few = explain(writer().current(), 0, &key("arp"), None, 1);
    assert_eq!((few.steps[0].better.len(), few.steps[0].omitted), (1, 2));
}

#[test]
fn inner_headers_are_hashed_if_the_group_wants_them() {
    let (outer, inner) = (key("udp,nw_src=10.0.0.1"), key("tcp,nw_src=1.2.3.4,tcp_src=5"));
    let explained = explain(writer().current(), 0, &outer, Some(&inner), BETTER);
    assert!(explained.hashes[0].inner);
    assert_eq!(explained.hashes[0].hash, writer().group(1).unwrap().hash(&inner));
}

#[test]
fn the_queue_of_a_quic_group_and_why() {
    use crate::quic;
    use millrace_packet::parse::Layers;
    let mut writer = Writer::new(1, Limits::default());
    let spec = quic::GroupSpec { connections: 10, handshakes: 10, per_source: 10, ..quic::GroupSpec::over(vec![6]) };
    let group = Arc::new(quic::Group::new(&spec).unwrap());
    let rule = parse_rule("udp,udp_dst=443,actions=queue:1,quic:2").unwrap();
    writer.commit(vec![Change::Quic(2, Some(group)), Change::Add(rule)], 0).unwrap();
    // UDP from port 9 to 443 with a first packet of a client.
    let mut frame = crate::execute::tests::build::ethernet(
        &[],
        0x0800,
        &crate::execute::tests::build::ipv4(17, &[], 0, &crate::execute::tests::build::udp(443, false, &first())),
    );
    let explained = |frame: &[u8]| {
        let layers = Layers::parse(frame);
        let key = Key::extract(frame, &layers, &crate::Ingress::default());
        explain(writer.current(), 0, &key, None, BETTER).with_quic(writer.current(), &layers, frame)
    };
    let of = explained(&frame);
    assert_eq!((&of.queues[..], of.steered[0].queue), (&[1, 6][..], Some(6)));
    let why = "new connection, hash of the connection id that the client chose";
    assert!(of.to_string().contains(&format!("  quic:2 queue 6: {why}\n")), "{of}");
    // A packet within a connection that nobody knows.
    frame[42] = 0x40;
    let of = explained(&frame);
    assert_eq!((&of.queues[..], of.steered[0].queue), (&[1][..], None));
    assert!(of.to_string().contains("  quic:2 nobody: connection id that nobody is known to have\n"), "{of}");
}

/// A first datagram of a client, of 1,200 bytes.
fn first() -> Vec<u8> {
    let mut bytes = [&[0xc0, 0, 0, 0, 1, 8][..], &[5; 8], &[2, 1, 2, 0, 0x44, 0x9d]].concat();
    bytes.resize(1200, 0);
    bytes
}

#[test]
fn as_text_and_as_json() {
    let explained = of("tcp,tcp_dst=80,nw_src=10.0.0.1");
    let text = explained.to_string();
    assert!(text.starts_with("version 1: dl_type=0x800 nw_proto=6 nw_src=10.0.0.1 tcp_dst=80\n"), "{text}");
    assert!(text.contains("  table 0: table=0,priority=20,tcp,tcp_dst=80,actions=drop\n"), "{text}");
    assert!(text.contains("actions=drop: dl_vlan is no tag, not 5\n"), "{text}");
    assert!(text.ends_with("  drop\n"), "{text}");
    let json: serde_json::Value = serde_json::to_value(&explained).unwrap();
    assert_eq!((&json["class"], &json["frame"]["tcp_dst"]), (&"drop".into(), &"80".into()));
    assert_eq!(json["steps"][0]["better"][0]["field"], "dl_vlan");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// An explanation says what a lookup says, and has a reason for every better rule.
    #[test]
    fn same_as_a_lookup(rules in proptest::collection::vec(generate::rule(true, 4), 1..30), key in generate::key()) {
        let mut writer = Writer::new(1, Limits::default());
        writer.commit(vec![Change::Replace(rules)], 0).unwrap();
        let explained = explain(writer.current(), 0, &key, None, usize::MAX);
        let (mut classifier, mut id) = (writer.classifier(0, 8), [VerdictId::default()]);
        classifier.lookup(0, &[key], &mut id);
        let verdict = classifier.verdict(id[0]);
        let found: Vec<_> = verdict.rules.iter().map(|rule| rule.spec.to_string()).collect();
        let said: Vec<_> = explained.steps.iter().filter_map(|step| step.rule.clone()).collect();
        prop_assert_eq!(said, found);
        prop_assert_eq!(&explained.actions, &verdict.actions);
        for step in &explained.steps {
            let rank = |rule: &str| writer.rules(&Default::default()).iter().position(|other| other.spec.to_string() == rule);
            let better = step.rule.as_ref().map_or(usize::MAX, |rule| rank(rule).unwrap());
            let all = writer.current().rules(step.table).into_iter();
            prop_assert_eq!(step.better.len(), all.filter(|rule| rank(&rule.spec.to_string()).unwrap() < better).count());
        }
    }
}
