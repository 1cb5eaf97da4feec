use super::{Item, RuleFile, parse_filter, parse_modification, parse_rule};
use crate::action::Action;
use crate::field::{Field, Wide};
use crate::generate;
use crate::matching::Match;
use crate::rule::RuleSpec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn what_is_printed_parses_to_the_same(rule in generate::rule(false, 64)) {
        let text = rule.to_string();
        prop_assert_eq!(parse_rule(&text), Ok(rule.clone()), "{}", text);
        let json = serde_json::to_string(&rule).unwrap();
        prop_assert_eq!(&serde_json::from_str::<RuleSpec>(&json).unwrap(), &rule, "{}", json);
    }

    #[test]
    fn matches_too(matching in generate::matching(false)) {
        let text = matching.to_string();
        prop_assert_eq!(text.parse::<Match>(), Ok(matching), "{}", text);
    }

    #[test]
    fn nothing_panics(text in "\\PC{0,60}") {
        let _ = RuleFile::parse(&text);
        let _ = parse_filter(&text);
        if let Err(error) = parse_rule(&text) {
            prop_assert!(error.at <= text.len());
            prop_assert!(!error.to_string().is_empty());
        }
    }

    /// Words of the language in any order come further than any letters.
    #[test]
    fn nothing_panics_on_words(words in proptest::collection::vec(proptest::sample::select(vec![
        "tcp", "ip", ",", "=", "/", "nw_src", "10.0.0.0", "8", "actions=", "set_field:", "->", "(", ")", "vni=1", "encap_vxlan", "drop",
        "dl_vlan=5", "0x", "ffff", "cookie=", "quic_cid=0xab", "note:", "é", " ", "tcp_flags=+syn", "-", "+", ":", "sample", "goto_table:3",
    ]), 0..12)) {
        let text = words.concat();
        if let Ok(rule) = parse_rule(&text) {
            prop_assert_eq!(parse_rule(&rule.to_string()), Ok(rule));
        }
        let _ = parse_filter(&text);
    }
}

#[test]
fn rules_as_they_are_written() {
    for (given, printed) in [
        (
            "table=0,priority=100,ip,nw_src=10.0.0.0/8,tcp_dst=80,actions=set_field:10.0.0.1->nw_dst,queue:3",
            "table=0,priority=100,tcp,nw_src=10.0.0.0/8,tcp_dst=80,actions=set_field:10.0.0.1->nw_dst,queue:3",
        ),
        ("actions=", "table=0,priority=32768,actions=drop"),
        ("in_port=1 actions=output:2", "table=0,priority=32768,in_port=1,actions=output:2"),
        ("table=1, dl_vlan=5, dl_vlan_pcp=3, actions=strip_vlan,mod_nw_tos:184,goto_table:2", ""),
        (
            "udp6,ipv6_dst=2001:db8::/32,quic_cid=0x8394,actions=rss:1",
            "table=0,priority=32768,udp6,ipv6_dst=2001:db8::/32,quic_cid=0x8394,actions=rss:1",
        ),
        (
            "icmp6,icmp_type=135,nd_target=fe80::1,actions=punt",
            "table=0,priority=32768,icmp6,icmp_type=135,nd_target=fe80::1,actions=punt(reason=action)",
        ),
        (
            "arp,arp_op=1,arp_tpa=10.0.0.1,actions=in_port",
            "table=0,priority=32768,arp,arp_op=1,arp_tpa=10.0.0.1,actions=in_port",
        ),
        ("nw_src=1.2.3.4,action=output:in_port", "table=0,priority=32768,ip,nw_src=1.2.3.4,actions=in_port"),
        (
            "udp,udp_dst=4789,tun_id=5,actions=decap_vxlan,goto_table:1",
            "table=0,priority=32768,udp,udp_dst=4789,tun_id=0x5,actions=decap_vxlan,goto_table:1",
        ),
    ] {
        match parse_rule(given) {
            Ok(rule) => assert_eq!(rule.to_string(), printed, "{given}"),
            Err(error) => assert!(printed.is_empty(), "{error}"),
        }
    }
}

#[test]
fn errors_point_at_the_place() {
    for (given, place, says) in [
        ("tcp,tcp_dst=http,actions=drop", "http", "a number"),
        ("tcp,tcp_dts=80,actions=drop", "tcp_dts", "did you mean 'tcp_dst'"),
        ("tcp,udp_dst=80,actions=drop", "udp_dst", "'udp'"),
        ("tp_dst=80,actions=drop", "tp_dst", "'tcp'"),
        ("tcp,nw_src=1.1.1.1,arp_op=1,actions=drop", "arp_op", "contradicts"),
        ("tcp,arp_tpa=1.1.1.1,actions=drop", "arp_tpa", "'arp'"),
        ("ip,ipv6,actions=drop", "ipv6", "contradicts"),
        ("tcp,nw_src,actions=drop", "nw_src", "takes a value"),
        ("priority=70000,actions=drop", "70000", "0 to 65535"),
        ("actions=qeue:3", "qeue", "did you mean 'queue'"),
        ("actions=queue", "", "write queue:N"),
        ("actions=drop,queue:3", "drop", "drop cannot"),
        ("actions=set_field:5", "5", "->FIELD"),
        ("actions=set_field:5->nw_scr", "nw_scr", "did you mean 'nw_src'"),
        ("tcp,actions=set_field:x->tcp_dst", "x->", "a number"),
        ("actions=encap_vxlan(vni=1,src=10.0.0.1)", "encap_vxlan", "dst=IP"),
        ("actions=sample(probability=1", "", "a ')' is missing"),
        ("tcp,tcp_dst=80", "", "actions="),
        ("actions=frobnicate", "frobnicate", "goto_table:N"),
    ] {
        let error = parse_rule(given).unwrap_err();
        assert!(given[error.at..].starts_with(place), "{given}: {error}");
        assert!(error.message.contains(says), "{given}: {error}");
    }
}

#[test]
fn an_error_shows_its_line() {
    let error = RuleFile::parse("# ports\n\ntcp,actions=drop # all\ntcp,tcp_dst=x,actions=drop\n").unwrap_err();
    assert_eq!(error.line, Some(4));
    let shown = error.to_string();
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[0].starts_with("line 4, column 13: tcp_dst takes a number"));
    assert_eq!(lines[1], "    tcp,tcp_dst=x,actions=drop");
    assert_eq!(lines[2], "                ^");
}

#[test]
fn files_have_comments() {
    let file = RuleFile::parse("# first\n\n  tcp,actions=drop\nudp,actions=queue:1 # second\n").unwrap();
    assert_eq!(file.items().len(), 2);
    assert_eq!(file.items().nth(1), Some(&Item::Rule(parse_rule("udp,actions=queue:1").unwrap())));
}

#[test]
fn old_words_set_fields() {
    let rule =
        parse_rule("tcp,actions=mod_nw_tos:184,mod_vlan_vid:5,mod_dl_dst:02:00:00:00:00:01,mod_tp_dst:80").unwrap();
    let set = |field: Field, value: u64| Action::SetField { field, value: Wide::new(value), mask: field.full() };
    let wanted =
        [set(Field::NwTos, 46), set(Field::DlVlan, 5), set(Field::DlDst, 0x0200_0000_0001), set(Field::TpDst, 80)];
    assert_eq!(rule.actions, wanted);
}

#[test]
fn filters() {
    let filter = parse_filter("table=3,cookie=0x10/0xf0,out_port=2,strict,priority=7,tcp").unwrap();
    assert_eq!((filter.table, filter.cookie, filter.out_port), (Some(3), Some((0x10, 0xf0)), Some(2)));
    assert_eq!((filter.strict, filter.priority), (true, Some(7)));
    assert_eq!(filter.matching, "tcp".parse().unwrap());
    assert_eq!(parse_filter("").unwrap(), crate::version::Filter::default());
    assert!(parse_filter("cookie=0x10/x").unwrap_err().message.contains("mask of cookie"));
}

#[test]
fn json_is_checked() {
    let rule: RuleSpec =
        serde_json::from_str(r#"{"match":{"dl_type":2048,"nw_src":"10.0.0.0/8"},"actions":["queue:3"]}"#).unwrap();
    assert_eq!(rule, parse_rule("ip,nw_src=10.0.0.0/8,actions=queue:3").unwrap());
    for wrong in [
        r#"{"match":{"nw_scr":"10.0.0.0/8"},"actions":["queue:3"]}"#,
        r#"{"actions":["drop","queue:3"]}"#,
        r#"{"actions":["queue:3,queue:4"]}"#,
        r#"{"table":64,"actions":["drop"]}"#,
        r#"{"prio":64,"actions":["drop"]}"#,
        r#"{"actions":[]}"#,
    ] {
        assert!(serde_json::from_str::<RuleSpec>(wrong).is_err(), "{wrong}");
    }
}

/// Every field can be written, and is what was written.
#[test]
fn every_field_has_its_words() {
    for &field in Field::ALL {
        let before = match field.row().needs.hint() {
            "" => String::new(),
            hint => format!("{},", hint.split('\'').nth(1).unwrap()),
        };
        for name in field.row().names {
            let value = match field.row().format {
                crate::field::Format::Mac => "02:00:00:00:00:01",
                crate::field::Format::Ipv4 => "10.0.0.4",
                crate::field::Format::Ipv6 => "2001:db8::4",
                crate::field::Format::Fragment => "later",
                crate::field::Format::Cid => "0xabcd",
                _ if *name == "icmp_type" || field == Field::NwTos => "8",
                _ if field == Field::DlType => "0x800",
                _ => "1",
            };
            let text = format!("{before}{name}={value}");
            let matching: Match = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_ne!(matching.mask().get(field), Wide::ZERO, "{text}");
            assert_eq!(matching.to_string().parse::<Match>(), Ok(matching), "{text}");
        }
    }
}

#[test]
fn a_modification_is_a_filter_and_actions() {
    let (filter, actions) = parse_modification("table=1,tcp,strict,cookie=5 actions=queue:1,queue:2").unwrap();
    assert_eq!((filter, actions.len()), (parse_filter("table=1,tcp,strict,cookie=5").unwrap(), 2));
    assert!(parse_modification("tcp").unwrap_err().message.contains("actions="));
    let wrong = parse_modification("tcp,actions=quue:1").unwrap_err();
    assert_eq!(wrong.column(), 13);
}
