//! Open vSwitch as the judge: the same rules in its userspace datapath and in ours, the same frames into both, and the same
//! bytes out of every port.
//!
//! - `rules`: files of rules, which both read; `derive`: rules made of what frames have; - `frames`: all captures and generated frames; - `switch`: the switch;
//! - `differences`: what it does otherwise, and why; - `tunnels`: VXLAN to it and from it.

mod derive;
mod differences;
mod frames;
mod switch;
mod tunnels;

use super::World;
use crate::execute::{Emissions, Frame, HEADROOM, Target, execute};
use crate::extract::Ingress;
use crate::language::parse_rule;
use crate::table::{Classifier, Miss, VerdictId};
use crate::version::{Change, Filter, Limits, Writer};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use switch::{PORTS, Switch, hex};

/// Besides the captures.
const GENERATED: usize = 10_000;

/// Rules made of what frames have.
const DERIVED: usize = 150;

/// For each port that frames go out of, those that went, in order.
type Sent = [Vec<Vec<u8>>; PORTS as usize - 1];

/// All frames, and how many of them were captured.
static FRAMES: LazyLock<(usize, Vec<Vec<u8>>)> = LazyLock::new(|| {
    let mut frames = frames::captured();
    let captured = frames.len();
    frames.extend(frames::generated(GENERATED));
    (captured, frames)
});

/// What our ports send of a frame that comes in at port 1.
fn ours(classifier: &mut Classifier, frame: &[u8]) -> Sent {
    let mut buffer = vec![0; frame.len() + HEADROOM];
    let len = frame.len() as u64;
    let mut frame = Frame::new(frame, &mut buffer, Ingress { port: 1, ..Ingress::default() });
    let mut out = Emissions::new(64, 1 << 18);
    let mut ids = [VerdictId::default()];
    classifier.lookup(0, &[frame.key()], &mut ids);
    classifier.count(ids[0], 1, len, 0);
    let verdict = classifier.verdict(ids[0]);
    assert!(verdict.again.is_none(), "no rule here changes layers");
    let _ = execute(&verdict.actions, &mut frame, &mut World::new(), &mut out);
    assert_eq!(out.lost(), 0);
    let mut sent = Sent::default();
    for one in out.list() {
        if let Target::Port(port) = one.target {
            sent[port as usize - 1].push(out.bytes(one, &frame).to_vec());
        }
    }
    sent
}

fn tables(rules: &str) -> Writer {
    let mut writer = Writer::new(1, Limits::default());
    let lines = rules.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rules = lines.map(|line| Change::Add(parse_rule(line).unwrap()));
    writer.commit(rules.chain([Change::Miss(Miss::Drop)]).collect(), 0).unwrap();
    writer
}

/// A frame of which the two say something else.
struct Disagreement<'f> {
    frame: &'f [u8],
    ours: Sent,
    theirs: Sent,
}

impl std::fmt::Display for Disagreement<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "in: {}", hex(self.frame))?;
        let ports = (1..).zip(self.ours.iter().zip(&self.theirs)).filter(|(_, (ours, theirs))| ours != theirs);
        for (port, (ours, theirs)) in ports {
            for (whose, list) in [("ours", ours), ("theirs", theirs)] {
                let frames: Vec<_> = list.iter().map(|frame| hex(frame)).collect();
                writeln!(f, "  out of port {port}, {whose}: {}", frames.join(" "))?;
            }
        }
        Ok(())
    }
}

/// Compares both with all frames; the tables with their counters.
fn compare(switch: &Switch, rules: &str) -> Writer {
    let (captured, frames) = &*FRAMES;
    let writer = tables(rules);
    let mut classifier = writer.classifier(0, 4096);
    let (mut known, mut open, mut sent) = (BTreeMap::new(), Vec::new(), 0);
    for (frame, theirs) in frames.iter().zip(switch.feed(frames)) {
        let ours = ours(&mut classifier, frame);
        sent += usize::from(ours.iter().any(|port| !port.is_empty()));
        if ours == theirs {
            continue;
        }
        match differences::named(frame, &ours, &theirs) {
            Some(why) => *known.entry(why).or_insert(0) += 1,
            None => open.push(Disagreement { frame, ours, theirs }),
        }
    }
    classifier.flush();
    println!("{captured} captured, {} in all, {sent} sent; {known:#?}", frames.len());
    open.iter().take(10).for_each(|one| println!("{one}"));
    assert!(open.is_empty(), "{} frames", open.len());
    assert!(sent * 3 > frames.len(), "{sent} of {} frames were sent", frames.len());
    // Without captures there are more odd frames than usual ones.
    assert!(*captured == 0 || known.values().sum::<usize>() * 5 < frames.len(), "{known:#?}");
    writer
}

/// Compares both with rules of which each has to be met by some frame, if there are captures: what is made up meets most of them only.
fn compare_file(rules: &str) {
    let Some(switch) = Switch::start(rules) else { return println!("skipped: Open vSwitch is not installed") };
    let writer = compare(&switch, rules);
    let unmet = writer.rules(&Filter::default()).into_iter().filter(|rule| rule.counters.read().packets == 0);
    let unmet: Vec<_> = unmet.map(|rule| rule.spec.to_string()).collect();
    assert!(FRAMES.0 == 0 || unmet.is_empty(), "no frame met {unmet:#?}");
}

macro_rules! same_bytes {
    ($($name:ident: $file:literal;)*) => { $(
        #[test]
        fn $name() {
            compare_file(include_str!(concat!("rules/", $file)));
        }
    )* };
}

same_bytes! {
    actions_in_chains: "actions.txt";
    ethernet: "ethernet.txt";
    prefixes: "prefixes.txt";
    ports_and_types: "ports.txt";
    tags: "vlan.txt";
    every_field_that_can_be_set: "set_field.txt";
    tables_and_registers: "tables.txt";
}

/// The switch refuses some of them, by rules of its own about what can be asked of what.
#[test]
fn rules_made_of_what_frames_have() {
    let Some(switch) = Switch::start("") else { return println!("skipped: Open vSwitch is not installed") };
    let taken = switch.offer(&derive::rules(&frames::generated(GENERATED), DERIVED));
    assert!(taken.lines().count() * 5 > DERIVED * 4, "{} of {DERIVED} rules were taken", taken.lines().count());
    compare(&switch, &taken);
}
