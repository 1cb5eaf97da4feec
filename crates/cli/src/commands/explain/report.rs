//! What `explain` prints: a block of lines or an object for each packet, then what rules, queues and fates have had.

use std::collections::BTreeMap;
use std::io;

use millrace_flow::RuleSpec;
use millrace_flow::action::Class;
use millrace_flow::rule::Hits;
use millrace_tool::output::{Output, Row};
use serde::Serialize;

use super::explainer::Explained;

/// A packet as it is in JSON.
#[derive(Serialize)]
struct PacketObject<'a> {
    command: &'static str,
    kind: &'static str,
    packet: u64,
    time_ns: u64,
    len: usize,
    link: u32,
    skipped: Option<&'a str>,
    #[serde(flatten)]
    explained: Option<&'a Explained>,
}

/// What is known of a packet besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// Its number in the file, from 1.
    pub number: u64,
    /// When it was captured, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes captured.
    pub len: usize,
    /// Link type.
    pub link: u32,
}

/// Prints packets as they come, and counts what became of them.
pub struct Report {
    output: Output,
    /// Whether packets are printed and not only counted.
    each: bool,
    totals: Totals,
    queues: BTreeMap<u16, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    packets: u64,
    skipped: u64,
    malformed: u64,
    drop: u64,
    forward: u64,
    process: u64,
    stopped: u64,
    unmatched: u64,
}

impl Report {
    /// A report in that form; `each` says whether packets are printed.
    pub fn new(output: Output, each: bool) -> Self {
        Self { output, each, totals: Totals::default(), queues: BTreeMap::new() }
    }

    /// Packets so far.
    pub fn packets(&self) -> u64 {
        self.totals.packets
    }

    /// Those of them that are no frames.
    pub fn skipped(&self) -> u64 {
        self.totals.skipped
    }

    /// A packet that is no frame.
    pub fn skip(&mut self, head: Head, why: &str) -> io::Result<()> {
        self.totals.packets += 1;
        self.totals.skipped += 1;
        self.print(head, Some(why), None, || format!("packet {}, {} bytes: {why}\n\n", head.number, head.len))
    }

    /// A packet and what became of it.
    pub fn packet(&mut self, head: Head, explained: &Explained) -> io::Result<()> {
        self.count(explained);
        self.print(head, None, Some(explained), || {
            let mut text = String::new();
            for (at, pass) in explained.passes.iter().enumerate() {
                text += &match at {
                    0 => format!("packet {}, {} bytes, {pass}", head.number, head.len),
                    _ => format!("then packet {}, {pass}", head.number),
                };
            }
            if let Some(malformed) = &explained.malformed {
                text += &format!(
                    "  {} header malformed, nothing from there on counts: {}\n",
                    malformed.header, malformed.why
                );
            }
            for sent in &explained.sent {
                text += &format!("  to {}, {} bytes\n", sent.to, sent.len);
            }
            if let Some(why) = &explained.stopped {
                text += &format!("  and no further: {why}\n");
            }
            if let Some(card) = &explained.card {
                let who: Vec<String> = card.iter().map(ToString::to_string).collect();
                text += &match &who[..] {
                    [] => "  in the card: nobody got it\n".to_owned(),
                    who => format!("  in the card: to {}\n", who.join(", ")),
                };
            }
            text + "\n"
        })
    }

    fn print(
        &self,
        head: Head,
        skipped: Option<&str>,
        explained: Option<&Explained>,
        text: impl FnOnce() -> String,
    ) -> io::Result<()> {
        if !self.each {
            return Ok(());
        }
        if !self.output.is_json() {
            return self.output.text(&text());
        }
        let Head { number, time_ns, len, link } = head;
        self.output.object(&PacketObject {
            command: "explain",
            kind: "packet",
            packet: number,
            time_ns,
            len,
            link,
            skipped,
            explained,
        })
    }

    fn count(&mut self, explained: &Explained) {
        let totals = &mut self.totals;
        totals.packets += 1;
        totals.malformed += u64::from(explained.malformed.is_some());
        totals.stopped += u64::from(explained.stopped.is_some());
        let missed = |step: &millrace_flow::explain::Step| step.rule.is_none();
        totals.unmatched += u64::from(explained.passes.iter().flat_map(|pass| &pass.steps).any(missed));
        match explained.class {
            Class::Drop => totals.drop += 1,
            Class::Forward => totals.forward += 1,
            Class::Process => totals.process += 1,
        }
        for queue in explained.passes.iter().flat_map(|pass| &pass.queues) {
            *self.queues.entry(*queue).or_default() += 1;
        }
    }

    /// What all of it was.
    pub fn summary(&self, rules: &[(RuleSpec, Hits)]) -> io::Result<()> {
        let head = |kind: &'static str| Row::new().tag("command", "explain").tag("kind", kind);
        let rule = |(rule, hits): &(RuleSpec, Hits)| {
            head("rule").count("packets", hits.packets).count("bytes", hits.bytes).text("rule", rule)
        };
        let rules: Vec<Row> = rules.iter().map(rule).collect();
        self.output.rows("rules", &rules)?;
        let queue =
            |(queue, packets): (&u16, &u64)| head("queue").count("queue", (*queue).into()).count("packets", *packets);
        let queues: Vec<Row> = self.queues.iter().map(queue).collect();
        if !queues.is_empty() {
            self.output.rows("queues", &queues)?;
        }
        let totals = self.totals;
        let row = head("summary")
            .count("packets", totals.packets)
            .count("drop", totals.drop)
            .count("forward", totals.forward)
            .count("process", totals.process)
            .count("skipped", totals.skipped)
            .count("unmatched", totals.unmatched)
            .count("malformed", totals.malformed)
            .count("stopped", totals.stopped);
        self.output.rows("packets", &[row])
    }
}
