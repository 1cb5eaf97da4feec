use super::{Counters, Hits, Next, Rank, Rule, RuleError, RuleSpec};
use crate::action::Action;
use crate::field::{Field, TAG_PRESENT, Wide};
use crate::key::Key;
use crate::language::parse_rule;

fn why(text: &str) -> RuleError {
    // The parser checks as well, and passes the error on as text; here the error itself counts.
    crate::language::parse_unchecked(text).unwrap().check().unwrap_err()
}

#[test]
fn what_is_refused() {
    assert_eq!(why("table=64,actions=drop"), RuleError::NoTable(64));
    assert_eq!(why("table=3,actions=goto_table:3"), RuleError::Backward { from: 3, to: 3 });
    assert_eq!(why("actions=goto_table:64"), RuleError::Backward { from: 0, to: 64 });
    assert_eq!(why("actions=goto_table:2,queue:1"), RuleError::AfterGoto);
    assert_eq!(why("actions=drop,queue:1"), RuleError::DropNotAlone);
    assert!(matches!(why("ip,actions=set_field:1->tcp_dst"), RuleError::Needs { .. }));
    assert!(matches!(why("actions=dec_ttl"), RuleError::Needs { .. }));
    assert!(matches!(why("actions=push_vlan:0x1234"), RuleError::Range { .. }));
    let set = Action::SetField { field: Field::InPort, value: Wide::new(1), mask: Field::InPort.full() };
    let rule = RuleSpec { actions: vec![set], ..RuleSpec::default() };
    assert_eq!(rule.check(), Err(RuleError::NotSettable(Field::InPort)));
    assert!(matches!(why("actions=encap_vxlan(vni=1,src=10.0.0.1,dst=::1)"), RuleError::Range { .. }));
}

#[test]
fn what_is_no_map_of_networks() {
    let wrong = |text: &str| crate::language::parse_rule(text).unwrap_err().to_string();
    assert!(wrong("actions=vni_map()").contains("each VNI stands once"));
    assert!(wrong("actions=vni_map(1-5=queue:1,5=queue:2)").contains("each VNI stands once"));
    assert!(wrong("actions=vni_map(1=rss:1)").contains("queue may be port"));
    assert!(wrong("actions=vni_map(16777216=queue:1)").contains("a VNI takes"));
    assert!(wrong("actions=vni_map(1=queue:65536)").contains("queue takes"));
    let all = "table=1,priority=5,actions=vni_map(1-9999=queue:0-7,10000=port:2),goto_table:2";
    assert_eq!(crate::language::parse_rule(all).unwrap().to_string(), all);
}

#[test]
fn a_match_has_to_mean_something() {
    let mut rule = RuleSpec::default();
    rule.matching.put(Field::TcpDst, Wide::new(80), Field::TcpDst.full());
    assert_eq!(rule.check(), Err(RuleError::Meaningless));
}

#[test]
fn older_rules_win_among_equals() {
    assert!(Rank::new(5, 1) > Rank::new(5, 2));
    assert!(Rank::new(6, 1000) > Rank::new(5, 0));
    assert!(Rank::new(0, 0) < Rank::new(1, u64::MAX));
}

#[test]
fn a_plan_changes_the_key_in_order() {
    let rule =
        parse_rule("tcp,actions=set_field:7->tcp_dst,dec_ttl,push_vlan:0x8100,mod_vlan_vid:9,goto_table:4").unwrap();
    let rule = Rule::new(rule, 0, 0, 1, 0);
    assert_eq!(rule.plan.next, Next::Table(4));
    let mut key = Key::ZERO;
    key.set(Field::NwTtl, 64);
    key.set(Field::VlanTci, 3 | TAG_PRESENT);
    rule.plan.rewrite(&mut key);
    assert_eq!(key.get(Field::TcpDst), Wide::new(7));
    assert_eq!(key.get(Field::NwTtl), Wide::new(63));
    assert_eq!(key.get(Field::VlanTci), Wide::new(9 | TAG_PRESENT));
    assert_eq!(key.get(Field::InnerVlanTci), Wide::new(3 | TAG_PRESENT));
    let last = parse_rule("actions=pop_vlan,goto_table:4").unwrap();
    Rule::new(last, 0, 0, 1, 0).plan.rewrite(&mut key);
    assert_eq!(key.get(Field::VlanTci), Wide::new(3 | TAG_PRESENT));
    assert_eq!(key.get(Field::InnerVlanTci), Wide::ZERO);
}

#[test]
fn other_headers_need_another_look() {
    let rule = parse_rule("udp,udp_dst=4789,actions=decap_vxlan,goto_table:2").unwrap();
    assert_eq!(Rule::new(rule, 0, 0, 1, 0).plan.next, Next::Again(2));
    let rule = parse_rule("udp,actions=decap_vxlan,output:2").unwrap();
    assert_eq!(Rule::new(rule, 0, 0, 1, 0).plan.next, Next::End);
}

#[test]
fn counters_are_sums_of_cells() {
    let counters = Counters::new(2);
    counters.add(0, Hits { packets: 1, bytes: 60, last_ns: 9 });
    counters.add(1, Hits { packets: 2, bytes: 200, last_ns: 5 });
    counters.add(1, Hits { packets: 1, bytes: 100, last_ns: 7 });
    assert_eq!(counters.read(), Hits { packets: 4, bytes: 360, last_ns: 9 });
}

#[test]
fn timeouts() {
    const SECOND: u64 = 1_000_000_000;
    let spec = RuleSpec { idle_timeout: 2, hard_timeout: 10, actions: vec![Action::Queue(0)], ..RuleSpec::default() };
    let rule = Rule::new(spec, 0, 0, 1, 100);
    assert!(!rule.is_over(100 + 2 * SECOND - 1));
    assert!(rule.is_over(100 + 2 * SECOND));
    rule.counters.add(0, Hits { packets: 1, bytes: 1, last_ns: 9 * SECOND });
    assert!(!rule.is_over(100 + 10 * SECOND - 1));
    assert!(rule.is_over(100 + 10 * SECOND));
    let forever = Rule::new(RuleSpec::default(), 0, 0, 1, 0);
    assert!(!forever.is_over(u64::MAX));
}
