//! Any text as rules, RSS groups and meters, in the language and in JSON.

use millrace_flow::language::{RuleFile, parse_filter, parse_rule};
use millrace_flow::table::VerdictId;
use millrace_flow::version::{Limits, Writer};
use millrace_flow::{Ingress, Key};
use millrace_packet::parse::Layers;
use std::hint::black_box;

/// Most characters of a text that is put together.
const LONGEST: usize = 4096;

/// What lines are put together from.
const WORDS: &[&str] = &[
    "\n",
    "\n",
    "actions=",
    ",",
    ",",
    ",",
    "drop",
    "table=1",
    "table=0",
    "priority=9",
    "cookie=0x7",
    "idle_timeout=5",
    "tcp",
    "udp",
    "ip",
    "ipv6",
    "icmp6",
    "arp",
    "mpls",
    "pppoe",
    "sctp",
    "tcp6",
    "udp6",
    "nw_src=10.0.0.0/8",
    "nw_dst=1.2.3.4",
    "ipv6_dst=fe80::/10",
    "tcp_dst=80",
    "udp_src=0x4000/0xc000",
    "tcp_flags=+syn-ack",
    "dl_vlan=5",
    "dl_vlan_pcp=3",
    "vlan_tci=0x1000/0x1000",
    "inner_vlan=6",
    "dl_dst=ff:ff:ff:ff:ff:ff",
    "in_port=1",
    "tun_id=7",
    "metadata=1/1",
    "reg0=5",
    "nw_tos=0xb8",
    "ip_frag=later",
    "icmp_type=135",
    "icmp_code=0",
    "nd_target=::1",
    "quic_cid=0102/ffff",
    "quic_cid_len=8",
    "arp_op=1",
    "mpls_label=3",
    "queue:3",
    "rss:1",
    "output:2",
    "in_port",
    "punt",
    "punt(reason=ttl)",
    "mirror:9",
    "sample(probability=5,port=1)",
    "set_field:5->reg0",
    "set_field:10.0.0.1->nw_src",
    "set_field:80->tcp_dst",
    "set_field:0x1fff->vlan_tci",
    "dec_ttl",
    "push_vlan:0x8100",
    "pop_vlan",
    "push_pppoe:7",
    "pop_pppoe",
    "decap_vxlan",
    "encap_vxlan(vni=1,src=1.1.1.1,dst=2.2.2.2)",
    "encap_vxlan(vni=2,src=::1,dst=::2,csum,tos=3)",
    "encap_vxlan(src=1.1.1.1,dst=2.2.2.2)",
    "decap_vxlan(port=3)",
    "vxlan_port(number=3,output=1,src=1.1.1.1,dst=2.2.2.2,vni=4)",
    "meter:1",
    "balance:1",
    "remark=1",
    "goto_table:1",
    "goto_table:2",
    "note:0102",
    "miss=drop",
    "group=1,rss,queues=0-7",
    "fields=5tuple",
    "symmetric",
    "inner",
    "key=0x00",
    "table=(0,1)",
    "meter=1,rate=10Mbit,burst=64k",
    "{",
    "}",
    "\"rule\":",
    "#",
    " ",
    "=",
    "/",
    "-",
    "0x",
    "99999999999999999999",
    "\u{e4}",
    "(",
    ")",
    ":",
    "->",
];

/// Parses text and words; returns how many items were right.
///
/// # Panics
/// What is printed is not what was read, or a lookup finds something else than an explanation.
pub fn language(input: &[u8]) -> u64 {
    let Some((&kind, rest)) = input.split_first() else { return 0 };
    if kind & 1 == 0 {
        return text(&String::from_utf8_lossy(rest), rest);
    }
    let mut made = String::new();
    for byte in rest {
        let word = WORDS.get(usize::from(*byte) % (WORDS.len() + 8)).copied().unwrap_or("actions=queue:1\n");
        if made.len() + word.len() > LONGEST {
            break;
        }
        made += word;
    }
    text(&made, rest)
}

fn text(text: &str, frame: &[u8]) -> u64 {
    // The lines one by one as well: one wrong line is the end of a file.
    let lines = text.lines().take(64).map(|line| file(line, frame)).sum::<u64>();
    lines + file(text, frame)
}

fn file(text: &str, frame: &[u8]) -> u64 {
    if let Err(error) = parse_filter(text) {
        black_box(error.to_string());
    }
    if let Ok(rule) = parse_rule(text) {
        assert_eq!(parse_rule(&rule.to_string()).ok().as_ref(), Some(&rule), "{rule}");
    }
    let parsed = match RuleFile::parse(text) {
        Ok(parsed) => parsed,
        Err(error) => {
            black_box(error.to_string());
            return 0;
        }
    };
    let normal = parsed.to_string();
    let again = RuleFile::parse(&normal).map(|file| file.to_string());
    assert_eq!(again.ok().as_ref(), Some(&normal), "of {text}");
    let json: String =
        parsed.items().filter_map(|item| serde_json::to_string(item).ok()).map(|line| line + "\n").collect();
    let from_json = RuleFile::parse(&json).map(|file| file.to_string());
    assert_eq!(from_json.ok().as_ref(), Some(&normal), "{json}");
    if parsed.items().len() > 0 {
        look_up(&parsed, frame);
    }
    parsed.items().len() as u64
}

/// The rules decide about a frame as their explanation says.
fn look_up(rules: &RuleFile, frame: &[u8]) {
    let mut writer = Writer::new(1, Limits::default());
    if let Err(error) = rules.load(&mut writer, 0) {
        black_box(error.to_string());
        return;
    }
    let ingress = Ingress { port: 1, quic: Some(4), ..Ingress::default() };
    let key = Key::extract(frame, &Layers::parse(frame), &ingress);
    let mut classifier = writer.classifier(0, 16);
    let mut verdict = [VerdictId::default()];
    classifier.lookup(0, &[key], &mut verdict);
    let verdict = classifier.verdict(verdict[0]);
    let explained = millrace_flow::explain::explain(writer.current(), 0, &key, None, 3);
    assert_eq!(verdict.actions, explained.actions);
    let met = explained.steps.iter().filter_map(|step| step.rule.clone());
    assert!(met.eq(verdict.rules.iter().map(|rule| rule.spec.to_string())));
}

#[cfg(test)]
mod tests {
    use crate::short_run;

    /// Lines that end with an action, so that more of them are rules.
    fn of_words(bytes: &[u8]) -> u64 {
        let mut input = vec![1];
        for part in bytes.chunks(3) {
            // Two words before the actions, if any; 3 is the comma and 2 the word.
            input.extend([part[0], 3, 2, part.get(1).copied().unwrap_or(6), 3, part.get(2).copied().unwrap_or(47), 0]);
        }
        super::language(&input)
    }

    #[test]
    fn short_run_of_language() {
        short_run(super::language, 60);
        let items = short_run(of_words, 60);
        assert!(items > 60, "{items} items");
    }
}
