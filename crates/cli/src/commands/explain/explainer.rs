//! What becomes of one frame, and why.

use millrace_flow::action::{Action, Class};
use millrace_flow::explain::{Explanation, explain};
use millrace_flow::field::{Field, Wide};
use millrace_flow::rule::Hits;
use millrace_flow::table::{Again, Classifier, VerdictId};
use millrace_flow::version::{Filter, Writer};
use millrace_flow::{Ingress, Key, RuleSpec};
use millrace_packet::parse::{Layers, Tunnel};
use serde::Serialize;

/// A frame has at most so many lookups: each begins in a later table.
const MOST_PASSES: usize = millrace_flow::rule::TABLES as usize;

/// What becomes of a frame, and why.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// The header that is malformed; it and what is behind it do not count.
    pub malformed: Option<MalformedHeader>,
    /// What becomes of it; none if that is not known.
    pub class: Option<Class>,
    /// One explanation for each lookup; there is another one after new headers.
    pub passes: Vec<Explanation>,
    /// Why what comes next is not explained.
    pub unfinished: Option<&'static str>,
}

/// Which header is malformed, and why.
#[derive(Debug, Serialize)]
pub struct MalformedHeader {
    /// Which one.
    pub header: String,
    /// What is wrong.
    pub why: String,
}

/// Explains frames by rules, and counts what each rule had, as a worker of the card would.
pub struct Explainer {
    writer: Writer,
    classifier: Classifier,
    ingress: Ingress,
    better: usize,
}

impl Explainer {
    /// For frames that come in at `port`. Of each table, `better` rules are named that did not match.
    pub fn new(writer: Writer, port: u32, better: usize) -> Self {
        // The lengths of connection ids are not known here. Looking for QUIC costs time, so it is done if somebody asks.
        let asks = |rule: &RuleSpec| {
            [Field::QuicCid, Field::QuicCidLen].iter().any(|field| rule.matching.mask().get(*field) != Wide::ZERO)
        };
        let quic = writer.rules(&Filter::default()).iter().any(|rule| asks(&rule.spec)).then_some(0);
        let classifier = writer.classifier(0, 4096);
        Self { writer, classifier, ingress: Ingress { port, quic, ..Ingress::default() }, better }
    }

    /// What becomes of a frame.
    pub fn explain(&mut self, frame: &[u8], time_ns: u64) -> Explained {
        let malformed = Layers::parse(frame).malformed().map(|(header, why)| MalformedHeader {
            header: format!("{header:?}").to_lowercase(),
            why: why.to_string(),
        });
        let mut passes = Vec::new();
        let unfinished = self.passes(frame, time_ns, &mut passes);
        let class = match passes.last() {
            _ if unfinished.is_some() => None,
            Some(last) if last.normal => Some(Class::Process),
            _ => Some(Class::of(passes.iter().flat_map(|pass| &pass.actions))),
        };
        Explained { malformed, class, passes, unfinished }
    }

    /// Lookup after lookup, until the frame is somewhere or what comes next is not known; then why.
    fn passes(&mut self, frame: &[u8], time_ns: u64, passes: &mut Vec<Explanation>) -> Option<&'static str> {
        let (mut bytes, mut ingress, mut resumed) = (frame, self.ingress, None);
        for _ in 0..MOST_PASSES {
            let layers = Layers::parse(bytes);
            let mut key = Key::extract(bytes, &layers, &ingress);
            let inner = layers.parse_inner(bytes).map(|inner| Key::extract(bytes, &inner, &ingress));
            let table = resumed.map_or(0, |again: Again| {
                again.resume(&mut key);
                again.table
            });
            passes.push(explain(self.writer.current(), table, &key, inner.as_ref(), self.better));
            let mut ids = [VerdictId::default()];
            self.classifier.lookup(table, &[key], &mut ids);
            self.classifier.count(ids[0], 1, bytes.len() as u64, time_ns);
            let verdict = self.classifier.verdict(ids[0]);
            let again = verdict.again?;
            if !only_taken_out(&verdict.actions) {
                return Some("the card goes on with new headers, which are not made here");
            }
            let Some((frame, tunnel)) = taken_out(bytes, &layers) else {
                return Some("decap_vxlan has no VXLAN packet to open");
            };
            (bytes, ingress.tunnel_id, resumed) = (frame, tunnel, Some(again));
        }
        None
    }

    /// The rules in the order in which they win, and what each had.
    pub fn rules(&mut self) -> Vec<(RuleSpec, Hits)> {
        self.classifier.flush();
        self.writer.rules(&Filter::default()).iter().map(|rule| (rule.spec.clone(), rule.counters.read())).collect()
    }
}

/// Whether the headers that come next are those within the tunnel, as they are.
fn only_taken_out(actions: &[Action]) -> bool {
    let mut layers = actions.iter().filter(|action| action.changes_layers());
    let is_alone = layers.next() == Some(&Action::DecapVxlan) && layers.next().is_none();
    let behind = actions.iter().skip_while(|action| **action != Action::DecapVxlan);
    is_alone && !behind.into_iter().any(changes_frame)
}

/// Whether an action changes a frame. Registers and metadata are no part of it.
fn changes_frame(action: &Action) -> bool {
    const BESIDE: [Field; 6] = [Field::Reg0, Field::Reg1, Field::Reg2, Field::Reg3, Field::Metadata, Field::TunId];
    match action {
        Action::SetField { field, .. } => !BESIDE.contains(field),
        Action::PushVlan(_) | Action::PopVlan | Action::DecTtl => true,
        _ => false,
    }
}

/// The frame within a VXLAN packet, and its VNI.
fn taken_out<'f>(frame: &'f [u8], layers: &Layers) -> Option<(&'f [u8], u64)> {
    if !matches!(layers.tunnel(), Some((Tunnel::Vxlan, _))) {
        return None;
    }
    let inner = layers.parse_inner(frame)?;
    Some((frame.get(inner.start()..layers.end())?, layers.tunnel_id(frame)?.into()))
}
