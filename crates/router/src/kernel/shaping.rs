//! Traffic control: qdiscs that delay or drop, and filters that look at what comes in (`man 8 tc`, `linux/rtnetlink.h`).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::socket::{Error, Questions};
use super::wire::{self, Message, Request};

const GET_QDISC: u16 = 38;
const NEW_QDISC: u16 = 36;
const GET_FILTER: u16 = 46;
const NEW_FILTER: u16 = 44;
const HEADER: usize = 20;

/// The place of `ingress` and `clsact`.
const INGRESS: u32 = 0xffff_fff1;

/// Where filters of `clsact` are.
const AT_INGRESS: u32 = 0xffff_fff2;
const AT_EGRESS: u32 = 0xffff_fff3;

/// Qdiscs that send what they have as soon as they can: who goes around them changes nothing but the order.
const PLAIN: [&str; 8] = ["noqueue", "pfifo_fast", "pfifo", "bfifo", "mq", "fq", "fq_codel", "noop"];

/// The priority of the router's own filters, behind those of others: they come and go all the time.
pub const OUR_PRIORITY: u32 = 49_151;

/// Whether a message about a filter is about one of the router's own.
pub fn is_ours(body: &[u8]) -> bool {
    const INFO: usize = 16;
    wire::u32_at(body, INFO).is_some_and(|info| info >> 16 == OUR_PRIORITY)
}

/// What traffic control does at an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shaping {
    /// A qdisc, the root or one below, that delays, drops or marks on purpose.
    pub qdisc: Option<String>,
    /// Filters for what comes in, by the kernel's names of them; ours are left out.
    pub ingress: Vec<String>,
    /// Filters for what goes out.
    pub egress: Vec<String>,
    /// Numbers of the programs of ours that are there: for what comes in, and for what goes out; 0: none.
    pub ours: [u32; 2],
    /// Programs beside the filters.
    pub programs: Programs,
}

/// Programs of BPF at an interface that are no filters (tcx), by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// For what comes in.
    pub ingress: Vec<u32>,
    /// For what goes out.
    pub egress: Vec<u32>,
}

impl Shaping {
    /// Somebody who looks at what comes in: a filter, `flower`, or a program, `tcx 12`.
    pub fn looks_in(&self) -> Option<String> {
        first_of(&self.ingress, &self.programs.ingress)
    }

    /// Somebody who looks at what goes out.
    pub fn looks_out(&self) -> Option<String> {
        first_of(&self.egress, &self.programs.egress)
    }

    /// Reads what there is at these interfaces. Filters of classifier `bpf` whose name begins with `ours` are ours.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn read(
        questions: &mut Questions,
        interfaces: &BTreeSet<u32>,
        ours: &str,
    ) -> Result<BTreeMap<u32, Self>, Error> {
        let mut all: BTreeMap<u32, Self> = interfaces.iter().map(|index| (*index, Self::default())).collect();
        let mut with_filters = BTreeSet::new();
        let keep = |message: Message<'_>| {
            let Some((interface, parent, name)) = qdisc(&message) else { return };
            let Some(shaping) = all.get_mut(&interface) else { return };
            if parent == INGRESS {
                with_filters.insert(interface);
            } else if !PLAIN.contains(&name.as_str()) || has_limit(&message, &name) {
                shaping.qdisc.get_or_insert(name);
            }
        };
        // The kernel lists those of all interfaces, whichever is asked for.
        questions.ask(Request::new(GET_QDISC, wire::DUMP, &header(0, 0)), || (), keep)?;
        for interface in with_filters {
            let (ingress, ours_in) = filters(questions, interface, AT_INGRESS, ours)?;
            let (egress, ours_out) = filters(questions, interface, AT_EGRESS, ours)?;
            let shaping = all.entry(interface).or_default();
            (shaping.ingress, shaping.egress, shaping.ours) = (ingress, egress, [ours_in, ours_out]);
        }
        Ok(all)
    }
}

fn first_of(filters: &[String], programs: &[u32]) -> Option<String> {
    filters.first().cloned().or_else(|| programs.first().map(|number| format!("tcx {number}")))
}

fn header(interface: u32, parent: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[4..8].copy_from_slice(&interface.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    header
}

/// Interface, parent and name of a qdisc.
fn qdisc(message: &Message<'_>) -> Option<(u32, u32, String)> {
    const KIND: u16 = 1;
    (message.kind == NEW_QDISC).then_some(())?;
    let name = wire::attributes(message.body, HEADER).find(KIND).and_then(wire::text_of)?;
    Some((wire::u32_at(message.body, 4)?, wire::u32_at(message.body, 12)?, name))
}

/// Whether `fq` has a limit for each flow (`maxrate`).
fn has_limit(message: &Message<'_>, name: &str) -> bool {
    const OPTIONS: u16 = 2;
    const FLOW_MAX_RATE: u16 = 7;
    let options = wire::attributes(message.body, HEADER).find(OPTIONS).filter(|_| name == "fq");
    let rate = options.and_then(|options| wire::nested(options).find(FLOW_MAX_RATE)).and_then(wire::u32_of);
    rate.is_some_and(|rate| rate != u32::MAX)
}

/// Whether it is a qdisc, or a filter of its interface.
pub(super) fn read_any(message: &Message<'_>) -> bool {
    let interface = wire::u32_at(message.body, 4).unwrap_or_default();
    let qdisc = qdisc(message).map(|(_, _, name)| has_limit(message, &name));
    qdisc.is_some() || filter(message, interface).is_some()
}

/// Names of the filters of others in one place, and the number of the program of ours that is there.
fn filters(questions: &mut Questions, interface: u32, parent: u32, ours: &str) -> Result<(Vec<String>, u32), Error> {
    /// One is enough to know that the place is taken.
    const MOST: usize = 64;
    let found = std::cell::RefCell::new((Vec::new(), 0));
    let keep = |message: Message<'_>| {
        let Some((name, program)) = filter(&message, interface) else { return };
        let (names, of_ours) = &mut *found.borrow_mut();
        if name.strip_prefix("bpf ").is_some_and(|name| name.starts_with(ours)) {
            *of_ours = program;
        } else if names.len() < MOST && !names.contains(&name) {
            names.push(name);
        }
    };
    let request = Request::new(GET_FILTER, wire::DUMP, &header(interface, parent));
    questions.ask(request, || *found.borrow_mut() = (Vec::new(), 0), keep)?;
    Ok(found.into_inner())
}

/// The kind of a filter, and the name and the number of its program if it is one of BPF; `None` for the head of a list, which says nothing.
fn filter(message: &Message<'_>, interface: u32) -> Option<(String, u32)> {
    const KIND: u16 = 1;
    const OPTIONS: u16 = 2;
    const BPF_NAME: u16 = 7;
    const BPF_NUMBER: u16 = 11;
    (message.kind == NEW_FILTER && wire::u32_at(message.body, 4)? == interface).then_some(())?;
    let all = wire::attributes(message.body, HEADER);
    let (kind, options) = (all.clone().find(KIND).and_then(wire::text_of)?, all.clone().find(OPTIONS)?);
    let options = wire::nested(options);
    let name = options.clone().find(BPF_NAME).and_then(wire::text_of);
    let number = options.clone().find(BPF_NUMBER).and_then(wire::u32_of).unwrap_or_default();
    match (kind.as_str(), name) {
        ("bpf", Some(name)) => Some((format!("bpf {name}"), number)),
        _ => Some((kind, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_of_each_flow_is_shaping() {
        let of = |kind: &[u8], rate: u32| {
            let request = Request::new(NEW_QDISC, 0, &header(7, 0));
            let request = request.with(1, kind).within(2, |options| options.with(7, &rate.to_ne_bytes()));
            let bytes = request.clone().numbered(0).to_owned();
            let name = wire::text_of(kind).unwrap();
            has_limit(&wire::messages(&bytes).next().unwrap(), &name)
        };
        assert_eq!((of(b"fq\0", 1000), of(b"fq\0", u32::MAX), of(b"pfifo\0", 1000)), (true, false, false));
    }

    #[test]
    fn filters_are_named_and_lists_without_one_are_none() {
        let message = |fill: &dyn Fn(Request) -> Request| {
            fill(Request::new(NEW_FILTER, 0, &header(7, AT_INGRESS))).numbered(0).to_owned()
        };
        let found = |bytes: &[u8], interface| filter(&wire::messages(bytes).next().unwrap(), interface);
        let name = |bytes: &[u8], interface| found(bytes, interface).map(|(name, _)| name);
        let program = message(&|request| {
            request.with(1, b"bpf\0").within(2, |options| options.with(7, b"theirs\0").with(11, &12_u32.to_ne_bytes()))
        });
        assert_eq!(found(&program, 7), Some(("bpf theirs".to_owned(), 12)));
        assert_eq!(name(&program, 8), None);
        assert_eq!(
            name(&message(&|request| request.with(1, b"flower\0").within(2, |options| options)), 7).as_deref(),
            Some("flower")
        );
        assert_eq!(name(&message(&|request| request.with(1, b"flower\0")), 7), None);
    }
}
