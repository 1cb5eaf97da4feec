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
