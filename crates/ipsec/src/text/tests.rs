use super::*;
use crate::association::{Association, Encapsulation, Id, Mode, Parameters};
use crate::lifetime::{Limits, Usage};
use crate::policy::{Action, Direction, Policy};
use crate::selector::{Mark, Port, Selector};

const NOW: u64 = 1_700_000_000;

fn states(text: &str) -> Vec<Parameters> {
    let changes = parse(text, |_| None).unwrap_or_else(|error| panic!("{error}"));
    let states = changes.into_iter().map(|change| match change {
        Change::Associate(parameters) => *parameters,
        other => panic!("{other:?}"),
    });
    states.collect()
}

fn policies(text: &str) -> Vec<Policy> {
    let changes = parse(text, |name| (name == "eth0").then_some(7)).unwrap_or_else(|error| panic!("{error}"));
    let policies = changes.into_iter().map(|change| match change {
        Change::Policy(policy) => *policy,
        other => panic!("{other:?}"),
    });
    policies.collect()
}

/// As `ip -s xfrm state` of iproute2 6.1 prints it.
const PRINTED: &str = "\
src 192.0.2.1 dst 192.0.2.2
\tproto esp spi 0xc1234567(3240314215) reqid 16384(0x00004000) mode tunnel
\treplay-window 0 seq 0x00000000 flag nopmtudisc af-unspec esn (0x10a00000)
\taead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 (160 bits) 128
\tencap type espinudp sport 4500 dport 4501 addr 0.0.0.0
\tanti-replay esn context:
\t seq-hi 0x1, seq 0x22, oseq-hi 0x2, oseq 0x33
\t replay_window 64, bitmap-length 2
\t 00000003 00000002 
\tlifetime config:
\t  limit: soft (INF)(bytes), hard 1000000(bytes)
\t  limit: soft 9(packets), hard (INF)(packets)
\t  expire add: soft 2800(sec), hard 3600(sec)
\t  expire use: soft 0(sec), hard 5(sec)
\tlifetime current:
\t  840(bytes), 10(packets)
\t  add 2026-11-25 12:00:00 use 2026-11-25 12:00:01
\tstats:
\t  replay-window 1 replay 2 failed 3
\tmark 0x1/0xff
\tif_id 0x2a
src 2001:db8::1 dst 2001:db8::2
\tproto esp spi 0x00001000 reqid 0 mode transport
\treplay-window 32 
\tauth-trunc hmac(sha256) 0x0000000000000000000000000000000000000000000000000000000000000001 128
\tenc cbc(aes) 0x00000000000000000000000000000002
\tanti-replay context: seq 0x5, oseq 0x7, bitmap 0x0000001d
\tsel src ::/0 dst 2001:db8::2/128 proto udp dport 53
";

#[test]
fn what_ip_prints() {
    let [first, second] = &states(PRINTED)[..] else { panic!("two states") };
    assert_eq!(first.id, Id { destination: "192.0.2.2".parse().unwrap(), spi: 0xc123_4567 });
    assert_eq!((first.reqid, first.mode, first.is_extended, first.window), (16384, Mode::Tunnel, true, 64));
    assert_eq!(first.encapsulation, Some(Encapsulation { source_port: 4500, destination_port: 4501 }));
    assert_eq!((first.progress.sent, first.progress.received), (0x2_0000_0033, 0x1_0000_0022));
    // Bit 33 is the newest, bits 0 and 1 are older by 33 and 32.
    assert_eq!(first.progress.came, [1 | 1 << 32 | 1 << 33]);
    let wanted = Limits {
        hard_bytes: 1_000_000,
        soft_packets: 9,
        soft_added: 2800,
        hard_added: 3600,
        hard_used: 5,
        ..Limits::NONE
    };
    assert_eq!(first.limits, wanted);
    assert_eq!(first.progress.usage, Usage { bytes: 840, packets: 10, ..Usage::default() });
    assert_eq!((first.mark, first.if_id), (Mark { value: 1, mask: 0xff }, 42));
    assert!(!first.headers.df && first.headers.ecn);
    assert_eq!(first.selector, Selector::ALL);

    assert_eq!((second.mode, second.window, second.is_extended), (Mode::Transport, 32, false));
    assert_eq!((second.progress.sent, second.progress.received, &second.progress.came[..]), (7, 5, &[0x1d][..]));
    assert_eq!((second.selector.protocol, second.selector.destination_port), (17, Port::one(53)));
}

#[test]
fn what_is_typed() {
    let states = states(
        "# two lines of a file for ip -batch, and one for a shell
xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 4096 mode tunnel aead 'rfc4106(gcm(aes))' 0x0102030405060708090a0b0c0d0e0f1011121314 128 replay-window 32 flag decap-dscp noecn extra-flag dont-encap-dscp tfcpad 1000 limit byte-hard 5 limit time-soft 6

ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001 \\
   mode transport enc 'ecb(cipher_null)' '' auth 'hmac(sha512)' passwordpassword encap espinudp 1 2 0.0.0.0 mark 7 mask 0xf",
    );
    let [first, second] = &states[..] else { panic!("two states") };
    assert_eq!(
        (first.id.spi, first.window, first.fill_to, first.limits.hard_bytes, first.limits.soft_added),
        (4096, 32, 1000, 5, 6)
    );
    assert!(first.headers.dscp_in && !first.headers.ecn && !first.headers.dscp_out && first.headers.df);
    assert!(first.selector.source.is_some_and(|source| source.address.is_ipv4() && source.len == 0));
    assert!(
        matches!(&second.keys, crate::algorithm::Keys::Separate { check: 32, hash_key, .. } if hash_key.len() == 16)
    );
    assert_eq!(second.mark, Mark { value: 7, mask: 0xf });
    assert_eq!(second.encapsulation, Some(Encapsulation { source_port: 1, destination_port: 2 }));
}

#[test]
fn policies_printed_and_typed() {
    let policies = policies(
        "src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp sport 99 uid 0
\tdir out action allow index 169 priority 375423 ptype main share any flag  (0x00000000)
\tmark 0x1/0x3
\ttmpl src 192.0.2.1 dst 192.0.2.2
\t\tproto esp spi 0xc1234567(3240314215) reqid 1(0x00000001) mode tunnel
\t\tlevel required share any
\t\tenc-mask ffffffff auth-mask ffffffff comp-mask ffffffff
ip xfrm policy add src 10.3.0.0/16 dir fwd dev eth0 action block priority 5
xfrm policy update dir in tmpl proto esp mode transport level use
"
        .replace(" comp-mask ffffffff", "")
        .as_str(),
    );
    let [out, forward, inward] = &policies[..] else { panic!("three policies") };
    assert_eq!(
        (out.direction, out.priority, out.index, out.mark),
        (Direction::Out, 375_423, 169, Mark { value: 1, mask: 3 })
    );
    assert_eq!((out.selector.protocol, out.selector.source_port), (6, Port::one(99)));
    let template = out.templates[0];
    assert_eq!(
        (template.spi, template.reqid, template.mode, template.is_optional),
        (0xc123_4567, 1, Some(Mode::Tunnel), false)
    );
    assert_eq!((forward.action, forward.selector.interface), (Action::Block, 7));
    assert!(forward.selector.destination.is_some_and(|all| all.len == 0 && all.address.is_ipv4()));
    assert!(inward.templates[0].is_optional && inward.templates[0].source.is_none());
    assert_eq!(inward.selector, Selector::ALL);
}

#[test]
fn what_is_printed_here_is_read_again() {
    for parameters in states(PRINTED) {
        let association = Association::new(parameters.clone(), NOW).unwrap();
        let mut again = states(&print_state(&association, true)).remove(0);
        // Neither the past of the window nor times are printed.
        again.progress.came = parameters.progress.came.clone();
        assert_eq!(again, parameters);
        let hidden = print_state(&association, false);
        assert!(!hidden.contains("0x00010203") && hidden.contains("rfc4106") == parameters.is_extended);
        assert_eq!(parse(&hidden, |_| None).unwrap_err().what, Wrong::Hidden);
    }
    let text = "src 10.1.0.0/16 dst 10.2.0.0/16\n\tdir out index 9 priority 3\n\ttmpl src 192.0.2.1 dst 192.0.2.2\n\t\tproto esp reqid 4 mode tunnel
ip xfrm policy add dir in action block if_id 3 mark 1";
    for policy in policies(text) {
        assert_eq!(policies(&print_policy(&policy)), [policy]);
    }
}

#[test]
fn errors_say_where_and_what() {
    let said = |text: &str| parse(text, |_| None).unwrap_err().to_string();
    let state = "src 192.0.2.1 dst 192.0.2.2\n\tproto esp spi 0x1000";
    for (text, wanted) in [
        ("\n\nsrc 192.0.2.1 dst 192.0.2.2 proto esp", "line 3: there is no spi"),
        (state, "line 2: there is no aead or enc"),
        (
            &format!("{state}\n\taead rfc4106(gcm(aes)) 0x00 128"),
            "line 3: rfc4106(gcm(aes)) does not take a key of 8 bits",
        ),
        (&format!("{state}\n\taead rfc4106(gcm(aes)) 0x123 128"), "line 3: \"0x...\" is no key"),
        (&format!("{state} enc cbc(aes) 0x00000000000000000000000000000000"), "line 2: encryption without integrity"),
        (&format!("{state} mode beet"), "line 2: mode 4 is not supported"),
        (&format!("{state} rubbish"), "line 2: \"rubbish\" is not understood here"),
        (&format!("{state} reqid"), "line 2: something has to follow \"reqid\""),
        (&format!("{state} reqid -1"), "line 2: \"-1\" is no number"),
        ("src 192.0.2.1 dst host", "line 1: \"host\" is no address"),
        ("policy add src 10.0.0.0/33 dir out", "line 1: \"10.0.0.0/33\" is no prefix"),
        ("policy add src 10.0.0.0/8", "line 1: there is no dir"),
        ("policy add dir out dev eth9", "line 1: \"eth9\" is no interface"),
        ("src 1.1.1.1 dst 2.2.2.2 proto ah spi 0x1000", "line 1: protocol 51 is not supported"),
    ] {
        let said = said(text);
        assert!(said.starts_with(wanted), "{said} instead of {wanted}");
    }
}
