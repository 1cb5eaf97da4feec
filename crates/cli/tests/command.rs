//! The binary as scripts see it: names of JSON fields, exit codes, what goes to which stream.

use std::process::{Command, Output};

use serde_json::Value;

fn millrace(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(line.split_whitespace()).env_remove("MILLRACE_DEVICE");
    // Not the card that somebody happens to run on this machine.
    command.env("MILLRACE_SOCKET", "/nonexistent/usual.sock");
    command.output().expect("the binary runs")
}

/// The objects that a command prints; it must succeed.
fn objects(line: &str) -> Vec<Value> {
    let output = millrace(line);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "millrace {line}: {}\n{out}\n{err}", output.status);
    out.lines().map(|line| serde_json::from_str(line).expect("one JSON object per line")).collect()
}

fn assert_fields(object: &Value, fields: &[&str]) {
    for field in fields {
        assert!(object.get(field).is_some_and(|value| !value.is_null()), "{field} is missing in {object}");
    }
}

#[test]
fn several_queues_of_all_engines_lose_nothing() {
    let lines = objects(
        "loopback-hw --queue 0-2 --engine medusa --engine sze@1 --engine calypte@2 --size 60-1500 --count 20k --json",
    );
    let queues: Vec<&str> = lines.iter().filter_map(|line| line["queue"].as_str()).collect();
    assert_eq!(queues, ["0", "1", "2", "all"]);
    assert_eq!((&lines[3]["frames"], &lines[3]["lost"]), (&60_000.into(), &0.into()));
}

#[test]
fn a_capture_goes_through_an_embedded_card_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    objects(&format!("receive {} --device embedded:port=generator --count 500 --json", path("in.pcap")));
    let device = format!("embedded:port=(pcap:{},write={})", path("in.pcap"), path("out.pcap"));
    objects(&format!("loopback --device {device} --count 500 --json"));
    let frames = |name: &str| {
        // Behind the header, records of 16 bytes of times and lengths and 64 bytes of frame.
        let file = std::fs::read(path(name)).unwrap();
        file[24..].chunks(80).map(|record| record[16..].to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(frames("in.pcap").len(), 500);
    assert_eq!(frames("in.pcap"), frames("out.pcap"));
}

#[test]
fn the_card_describes_itself() {
    let card = &objects("info --json")[0];
    assert_fields(card, &["device", "card", "version", "rx_queues", "tx_queues"]);
    let registers = objects("regs rx0 --engine sze --json");
    let named = |name: &str| registers.iter().any(|line| line["register"] == name && line["value"].is_string());
    assert!(named("CONTROL") && named("SW_POINTER"), "{registers:?}");
    let stats = &objects("stats --device embedded --json")[0];
    assert_fields(stats, &["queues", "ports", "workers"]);
    let tree = millrace("tree");
    assert!(tree.status.success() && tree.stdout.starts_with(b"/dts-v1/;"));
}

#[test]
fn what_did_not_happen_is_not_exit_code_0() {
    for (line, code, text) in [
        ("frobnicate", 2, "unrecognized subcommand"),
        ("info --device foo", 2, "not a device"),
        ("info --device unix:/nonexistent/card.sock", 1, "no card listens"),
        ("transmit /nonexistent.pcap", 1, "cannot open"),
        ("regs rx9", 2, "this card has no rx9"),
        ("loopback-hw --size 8", 2, "12 bytes"),
        ("loopback-hw --count 100 --device embedded:port=null --json", 1, "100 lost"),
        ("explain /nonexistent.pcap --rules /nonexistent", 1, "cannot read /nonexistent"),
        ("explain x.pcap", 2, "--rules"),
        ("explain x.pcap --rules x --packet 0", 2, "such as 3,7-9"),
        ("explain x.pcap --rules x --table 2", 2, "versions 0 to 1"),
        ("flow", 2, "check"),
    ] {
        let output = millrace(line);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "millrace {line}: {err}");
        assert!(err.contains(text), "millrace {line}: {err}");
    }
}

#[test]
fn what_failed_before_it_began_prints_no_line_of_zeros() {
    let output =
        millrace("generate --count 10 --engine dd@9 --mode mediated --queue 0,9 --device embedded:port=null --json");
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(out.lines().all(|line| !line.contains(r#""queue":"9""#)), "{out}");
    let output =
        millrace("generate --count 10 --engine dd@9 --mode mediated --queue 9 --device embedded:port=null --json");
    assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()), "nothing but the error");
}

#[test]
fn frames_that_nobody_gets_are_told_by_whoever_sends_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.pcap").display().to_string();
    objects(&format!("receive {file} --device embedded:port=generator --count 5 --json"));
    for line in ["generate --count 5", &format!("transmit {file}")] {
        let said = |device: &str| {
            let output = millrace(&format!("{line}{device}"));
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let (code, error) = said(" --device embedded");
        assert!(code == Some(1) && error.contains("dropped all of them"), "{line}: {error}");
        let (code, error) = said("");
        assert!(code == Some(1) && error.contains("nobody receives what is sent"), "{line}: {error}");
        assert_eq!(said(" --device embedded:port=null"), (Some(0), String::new()), "{line}");
    }
}

/// A capture with one frame for each of these UDP ports, from addresses that differ; the last one is cut off.
fn capture_of(folder: &std::path::Path, ports: &[u8]) -> String {
    let mut file = [&0xa1b2_3c4d_u32.to_le_bytes()[..], &[2, 0, 4, 0], &[0; 8], &[0, 0, 4, 0], &[1, 0, 0, 0]].concat();
    for (at, port) in ports.iter().enumerate() {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, at as u8, 10, 0, 1, 1]);
        frame.extend([0, 9, 0, *port, 0, 8, 0, 0]);
        frame.truncate(if at + 1 == ports.len() { 30 } else { 42 });
        let len = (frame.len() as u32).to_le_bytes();
        file.extend([&[at as u8, 0, 0, 0, 0, 0, 0, 0], &len[..], &len, &frame].concat());
    }
    let path = folder.join("in.pcap");
    std::fs::write(&path, file).unwrap();
    path.display().to_string()
}

const RULES: &str = "\
# The better rule first.
group=1,rss,queues=0-3
priority=20,udp,udp_dst=53,actions=drop
priority=10,udp,actions=set_field:7->reg0,goto_table:1
table=1,priority=9,reg0=8,actions=drop
table=1,priority=5,ip,actions=rss:1
";

#[test]
fn packets_are_explained_by_rules() {
    let folder = tempfile::tempdir().unwrap();
    let (capture, rules) = (capture_of(folder.path(), &[53, 80, 80, 80]), folder.path().join("rules"));
    std::fs::write(&rules, RULES).unwrap();
    let line = format!("explain {capture} --rules {} --json --port 3", rules.display());
    let lines = objects(&line);
    let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    let packets = of("packet");
    let classes: Vec<_> = packets.iter().map(|packet| packet["class"].as_str()).collect();
    assert_eq!(classes, [Some("drop"), Some("process"), Some("process"), Some("process")]);
    let second = &packets[1]["passes"][0];
    assert_eq!((&second["frame"]["udp_dst"], &second["frame"]["in_port"]), (&"80".into(), &"3".into()));
    let why = &second["steps"][0]["better"][0];
    assert_eq!((&why["field"], &why["wants"], &why["has"]), (&"udp_dst".into(), &"53".into(), &"80".into()));
    assert_eq!(second["steps"][1]["better"][0]["field"], "reg0");
    assert_eq!(second["queues"][0], second["hashes"][0]["queue"]);
    // Of the last one there is too little for UDP: nothing matches.
    assert_eq!(packets[3]["malformed"]["header"], "ipv4");
    let hits: Vec<_> = of("rule").iter().map(|rule| rule["packets"].as_u64().unwrap()).collect();
    assert_eq!(hits, [1, 2, 0, 2]);
    let summary = of("summary")[0];
    assert_eq!((&summary["packets"], &summary["unmatched"], &summary["malformed"]), (&4.into(), &1.into(), &1.into()));
    let queues: u64 = of("queue").iter().map(|queue| queue["packets"].as_u64().unwrap()).sum();
    assert_eq!(queues, 2);
    let some = objects(&format!("{line} --packet 2,4 --better 0"));
    let picked: Vec<_> = some.iter().filter_map(|line| line["packet"].as_u64()).collect();
    assert_eq!(picked, [2, 4]);
    assert_eq!(some[0]["passes"][0]["steps"][0]["omitted"], 1);
    let short = objects(&format!("{line} --summary"));
    assert!(short.iter().all(|line| line["kind"] != "packet") && short.len() < lines.len());
    let text = millrace(&format!("explain {capture} --rules {}", rules.display()));
    let text = String::from_utf8(text.stdout).unwrap();
    for wanted in ["packet 2, 42 bytes, version 1:", "udp_dst is 80, not 53", "rss:1 hash 0x", "ipv4 header malformed"]
    {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }
}

#[test]
fn packets_are_followed_through_new_headers_and_older_versions() {
    let folder = tempfile::tempdir().unwrap();
    let capture = capture_of(folder.path(), &[80, 80]);
    let files = [
        "udp,actions=output:5,push_pppoe:7,goto_table:1\ntable=1,pppoe,actions=pop_pppoe,goto_table:2\ntable=2,actions=queue:3",
        "priority=40000,udp,actions=encap_vxlan(vni=9,src=192.0.2.1,dst=192.0.2.2),goto_table:1",
        "table=1,udp,udp_dst=4789,actions=decap_vxlan,dec_ttl,output:6",
    ];
    let mut line = format!("explain {capture} --packet 1 --json");
    for (number, text) in files.iter().enumerate() {
        let path = folder.path().join(number.to_string());
        std::fs::write(&path, text).unwrap();
        line += &format!(" --rules {}", path.display());
    }
    let sent = |options: &str| {
        let packet = objects(&format!("{line} {options}")).remove(0);
        let list: Vec<_> = packet["sent"].as_array().unwrap().iter().map(|one| one["to"].clone()).collect();
        (packet["passes"].as_array().unwrap().len(), packet["class"].clone(), list)
    };
    assert_eq!(sent(""), (2, "forward".into(), vec!["port 6".into()]));
    assert_eq!(sent("--table 3"), sent(""));
    assert_eq!(sent("--table 2"), (2, "process".into(), vec![]));
    assert_eq!(sent("--table 1"), (3, "process".into(), vec!["port 5".into(), "queue 3".into()]));
    assert_eq!(sent("--table 0"), (1, "process".into(), vec![]));
}

#[test]
fn files_of_rules_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules");
    let check = |rules: &str, options: &str| {
        std::fs::write(&path, rules).unwrap();
        let output = millrace(&format!("flow check {} {options}", path.display()));
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, normal, _) = check(RULES, "");
    assert_eq!((code, normal.lines().count()), (Some(0), 5));
    assert_eq!(check(&normal, "").1, normal);
    let (_, json, _) = check(RULES, "--json");
    assert_eq!(check(&json, ""), (Some(0), normal, String::new()));
    for (rules, options, place) in [
        ("\n  tcp,tcp_dst=http,actions=drop", "", "line 2, column 15: tcp_dst takes a number"),
        ("actions=drop\nactions=rss:3", "", "line 2, column 9: there is no RSS group 3"),
        (RULES, "--queues 3", "line 2, column 13: there is no queue 3"),
    ] {
        let (code, out, err) = check(rules, options);
        assert_eq!((code, &*out), (Some(1), ""), "{err}");
        assert!(err.contains(place) && err.trim_end().ends_with('^'), "{err}");
    }
}
