//! What becomes of one frame, and why. Each frame is really edited, so that later lookups see what they would see in the card.

use std::net::IpAddr;
use std::sync::Arc;

use millrace::flow::FlowSent;
use millrace_flow::action::{Action, Class};
use millrace_flow::execute::{Emission, Emissions, Environment, Frame, HEADROOM, Stop, Target, execute};
use millrace_flow::explain::{Explanation, Steered, explain};
use millrace_flow::field::{Field, LOCAL, Wide};
use millrace_flow::quic;
use millrace_flow::rss::Group;
use millrace_flow::rule::Hits;
use millrace_flow::table::{Again, Classifier, Tables, VerdictId};
use millrace_flow::version::{Filter, Writer};
use millrace_flow::{Ingress, Key, RuleSpec};
use millrace_packet::parse::{Layers, MacAddress};
use serde::Serialize;

/// A frame has at most so many lookups: each begins in a later table.
const MOST_PASSES: usize = millrace_flow::rule::TABLES as usize;
/// Who may get a frame, and how many bytes may be kept of what it was between changes.
const MOST_EMISSIONS: usize = 1024;
const COPIES: usize = 4 << 20;

/// What becomes of a frame, and why.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// The header that is malformed; it and what is behind it do not count.
    pub malformed: Option<MalformedHeader>,
    /// What becomes of it.
    pub class: Class,
    /// One explanation for each lookup; there is another one after new headers.
    pub passes: Vec<Explanation>,
    /// Who gets it, in order, and how long it is then.
    pub sent: Vec<Sent>,
    /// Why the actions behind one of them were not done.
    pub stopped: Option<String>,
    /// Who got it in the card where it was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<Vec<FlowSent>>,
}

/// Somebody gets a frame.
#[derive(Debug, Serialize)]
pub struct Sent {
    /// Who, such as `port 3`.
    pub to: String,
    /// How many bytes.
    pub len: usize,
    /// These.
    #[serde(skip)]
    pub bytes: Vec<u8>,
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
    buffer: Vec<u8>,
    out: Emissions,
    /// RX queues and ports of the card whose rules they are.
    card: Option<(u32, u32)>,
    /// When the first packet was captured. Meters begin to fill then.
    begin_ns: Option<u64>,
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
        Self {
            writer,
            classifier,
            ingress: Ingress { port, quic, ..Ingress::default() },
            better,
            buffer: Vec::new(),
            out: Emissions::new(MOST_EMISSIONS, COPIES),
            card: None,
            begin_ns: None,
        }
    }

    /// By the rules of a card with so many RX queues and ports: what it has not got is named.
    #[must_use]
    pub fn on_card(self, has: Option<(u32, u32)>) -> Self {
        Self { card: has, ..self }
    }

    /// Where frames come in from now on.
    pub fn came_in(&mut self, ingress: Ingress) {
        self.ingress = Ingress { quic: self.ingress.quic, ..ingress };
    }

    /// What becomes of a frame.
    pub fn explain(&mut self, frame: &[u8], time_ns: u64) -> Explained {
        let malformed = Layers::parse(frame).malformed().map(|(header, why)| MalformedHeader {
            header: format!("{header:?}").to_lowercase(),
            why: why.to_string(),
        });
        let begin_ns = *self.begin_ns.get_or_insert(time_ns);
        let tables = Arc::clone(self.writer.current());
        let mut world = World { tables: &tables, now_ns: time_ns.saturating_sub(begin_ns), steered: Vec::new() };
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(buffer.len().max(frame.len() + HEADROOM), 0);
        self.out.clear();
        let mut passes = Vec::new();
        let mut edited = Frame::new(frame, &mut buffer, self.ingress);
        let stopped = self.passes(&mut edited, &mut world, time_ns, &mut passes).err();
        let sent = |one: &Emission| {
            let bytes = self.out.bytes(one, &edited).to_vec();
            Sent { to: name(one.target) + missing(one.target, self.card), len: bytes.len(), bytes }
        };
        let sent: Vec<_> = self.out.list().iter().map(sent).collect();
        let class = match passes.last() {
            Some(last) if last.normal && stopped.is_none() => Class::Process,
            _ => class(self.out.list()),
        };
        self.buffer = buffer;
        Explained { malformed, class, passes, sent, stopped: stopped.map(|stop| stop.to_string()), card: None }
    }

    /// Lookup after lookup, until the frame is somewhere.
    fn passes(
        &mut self,
        frame: &mut Frame<'_>,
        world: &mut World<'_>,
        time_ns: u64,
        passes: &mut Vec<Explanation>,
    ) -> Result<(), millrace_flow::execute::Stop> {
        let mut resumed = None;
        for _ in 0..MOST_PASSES {
            let (mut key, layers, ingress) = (frame.key(), frame.layers(), *frame.ingress());
            let inner = layers.parse_inner(frame.bytes()).map(|inner| Key::extract(frame.bytes(), &inner, &ingress));
            let table = resumed.map_or(0, |again: Again| {
                again.resume(&mut key);
                again.table
            });
            let mut pass = explain(world.tables, table, &key, inner.as_ref(), self.better);
            let mut ids = [VerdictId::default()];
            self.classifier.lookup(table, &[key], &mut ids);
            self.classifier.count(ids[0], 1, frame.len() as u64, time_ns);
            let verdict = self.classifier.verdict(ids[0]);
            let before = self.out.list().len();
            let done = execute(&verdict.actions, frame, world, &mut self.out);
            let mapped = done == Err(Stop::Mapped);
            correct(&mut pass, &self.out.list()[before..], std::mem::take(&mut world.steered), mapped);
            passes.push(pass);
            if mapped {
                return Ok(());
            }
            done?;
            let Some(again) = verdict.again else { return Ok(()) };
            resumed = Some(again);
        }
        Ok(())
    }

    /// The rules in the order in which they win, and what each had.
    pub fn rules(&mut self) -> Vec<(RuleSpec, Hits)> {
        self.classifier.flush();
        self.writer.rules(&Filter::default()).iter().map(|rule| (rule.spec.clone(), rule.counters.read())).collect()
    }
}

/// What rules need from outside. Nobody knows neighbours here: their addresses are zeros, which changes no verdict.
struct World<'t> {
    tables: &'t Tables,
    /// Since the first packet.
    now_ns: u64,
    /// What QUIC groups have said.
    steered: Vec<Steered>,
}

impl Environment for World<'_> {
    fn group(&self, group: u32) -> Option<&Group> {
        self.tables.group(group).map(|group| &**group)
    }

    fn quic(&self, group: u32) -> Option<&quic::Group> {
        self.tables.quic(group).map(|group| &**group)
    }

    fn steered(&mut self, group: u32, queue: Option<u16>, why: quic::Why) {
        self.steered.push(Steered::new(group, queue, why));
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn admit(&mut self, meter: u32, bytes: usize) -> bool {
        self.tables.meter(meter).is_none_or(|meter| meter.admit(self.now_ns, 1, bytes as u64))
    }

    fn remark(&self, meter: u32) -> Option<u8> {
        self.tables.meter(meter)?.spec().remark
    }

    /// Every frame is sampled, so that it can be seen what a sample would be.
    fn random(&mut self) -> u32 {
        0
    }

    fn neighbour(&mut self, _: IpAddr) -> Option<MacAddress> {
        Some(MacAddress([0; 6]))
    }

    fn own_mac(&mut self, _: IpAddr) -> Option<MacAddress> {
        Some(MacAddress([0; 6]))
    }
}

/// Hashes and queues as they came to be: actions before them may have changed the frame, or ended its way. `mapped`: the last is whom a
/// map has said.
fn correct(pass: &mut Explanation, emitted: &[Emission], steered: Vec<Steered>, mapped: bool) {
    let queues = emitted.iter().filter_map(|one| match one.target {
        Target::Queue { queue, hash } => Some((queue, hash)),
        _ => None,
    });
    let asked =
        pass.actions.iter().filter(|action| matches!(action, Action::Queue(_) | Action::Rss(_) | Action::Quic(_)));
    let explained = std::mem::take(&mut pass.hashes).into_iter();
    let (mut hashes, explained): (Vec<_>, Vec<_>) = explained.partition(|hashed| hashed.is_port);
    let mut explained = explained.into_iter();
    // Of what a QUIC group gives to nobody, nothing is emitted.
    let mut said = steered.iter();
    let asked =
        asked.filter(|action| !matches!(action, Action::Quic(_)) || said.next().is_some_and(|one| one.queue.is_some()));
    let of_map = usize::from(mapped && matches!(emitted.last(), Some(Emission { target: Target::Queue { .. }, .. })));
    let of_others = queues.clone().count() - of_map;
    for (action, (queue, hash)) in asked.zip(queues.clone().take(of_others)) {
        if let Action::Rss(_) = action
            && let Some(hashed) = explained.next()
        {
            hashes.push(millrace_flow::explain::Hashed { queue, hash, ..hashed });
        }
    }
    (pass.hashes, pass.queues) = (hashes, queues.map(|(queue, _)| queue).collect());
    pass.steered = steered;
}

/// What becomes of a frame that these get. Copies do not count.
fn class(emitted: &[Emission]) -> Class {
    let is = |of: fn(&Target) -> bool| emitted.iter().any(|one| of(&one.target));
    if is(|target| matches!(target, Target::Queue { .. } | Target::Punt(_))) {
        Class::Process
    } else if is(|target| matches!(target, Target::Port(_))) {
        Class::Forward
    } else {
        Class::Drop
    }
}

/// That a card has not got who is to get a frame.
fn missing(target: Target, card: Option<(u32, u32)>) -> &'static str {
    let Some((queues, ports)) = card else { return "" };
    match target {
        Target::Queue { queue, .. } if u32::from(queue) >= queues => " (the card has no such queue: dropped)",
        Target::Port(port) | Target::Mirror(port) | Target::Sample(port) if port != LOCAL && port >= ports => {
            " (the card has no such port: dropped)"
        }
        _ => "",
    }
}

/// Who gets a frame, for people.
fn name(target: Target) -> String {
    match target {
        Target::Queue { queue, .. } => format!("queue {queue}"),
        Target::Port(port) => format!("port {port}"),
        Target::Mirror(port) => format!("port {port} as a copy"),
        Target::Sample(port) => format!("port {port} as a sample"),
        Target::Punt(reason) => format!("slow path because of {reason}"),
    }
}
