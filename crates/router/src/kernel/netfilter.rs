//! Whether Linux's firewall looks at forwarded packets: base chains of nftables, tables of the old iptables, and the generation that changes
//! with every change (`linux/netfilter/nf_tables.h`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::ruleset::Looks;
use super::socket::{Error, Questions};
use super::wire::{self, Message, Request};

/// Numbers of nftables within netfilter's protocol.
pub(super) const NFTABLES: u16 = 10 << 8;
const GET_CHAIN: u16 = NFTABLES | 4;
const NEW_CHAIN: u16 = NFTABLES | 3;
const NEW_GENERATION: u16 = NFTABLES | 15;
const GET_GENERATION: u16 = NFTABLES | 16;

/// Numbers of families.
const IPV4: u8 = 2;
const IPV6: u8 = 10;

/// Length of netfilter's own header: family, version, resource.
pub const HEADER: usize = 4;

/// More base chains than that are not remembered by name.
const MOST_CHAINS: usize = 256;

/// Where packets pass that are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Frames that a bridge forwards.
    Bridge,
    /// Frames at an interface, before everything else.
    Netdev,
}

/// A base chain: a place where nftables looks at packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BaseChain {
    /// Of which packets.
    pub families: Vec<Family>,
    /// Number of the hook: 0 prerouting, 1 input, 2 forward, 3 output, 4 postrouting; of an interface 0 ingress, 1 egress.
    pub hook: u32,
    /// `table chain`.
    pub name: String,
    /// At which interfaces, if at some only.
    pub interfaces: Vec<String>,
}

impl BaseChain {
    /// Whether packets of this family that are forwarded pass it.
    fn is_passed_by_forwarded(&self, family: Family) -> bool {
        self.families.contains(&family) && (family == Family::Netdev || matches!(self.hook, 0 | 2 | 4))
    }
}

/// What looks at packets on their way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// Those of nftables (`iptables-nft` makes them too).
    pub chains: BTreeSet<BaseChain>,
    /// Tables of the old iptables, by family.
    pub legacy: Vec<(Family, String)>,
    /// Versions of IP of which somebody else looks at packets first: conntrack, or what puts fragments together. What Linux before 5.14 does not tell
    /// is not known here.
    pub first: BTreeSet<Family>,
    /// Programs of BPF, by family and number. What they do may change with each entry of their maps, of which nobody is told.
    pub programs: BTreeSet<(Family, u32)>,
    /// There were more chains than are remembered; all families count as looked at.
    pub are_too_many: bool,
    /// Sets of nftables whose elements packets add, or that forget them after a time: nobody is told.
    pub quiet_sets: Vec<String>,
    /// What else changes without a word: `ebtables filter`, `ipset`.
    pub others: Vec<String>,
    /// At what rules look that a rule of the router does not know.
    pub looks: Looks,
}

impl Hooks {
    /// Reads what there is.
    ///
    /// # Errors
    /// When the kernel does not answer; one without nftables has none.
    pub fn read(questions: &mut Questions) -> Result<Self, Error> {
        let mut hooks = Self::default();
        let chains = std::cell::RefCell::new((BTreeSet::new(), false));
        let request = Request::new(GET_CHAIN, wire::DUMP, &[0; HEADER]);
        let keep = |message: Message<'_>| {
            if let Some(chain) = chain(message) {
                let (known, are_too_many) = &mut *chains.borrow_mut();
                match known.len() < MOST_CHAINS {
                    true => drop(known.insert(chain)),
                    false => *are_too_many = true,
                }
            }
        };
        match questions.ask(request, || *chains.borrow_mut() = (BTreeSet::new(), false), keep) {
            Ok(()) => (hooks.chains, hooks.are_too_many) = chains.into_inner(),
            Err(Error::Refused(error)) if is_absent(error) => {}
            Err(error) => return Err(error),
        }
        for (family, number) in [(Family::Ipv4, IPV4), (Family::Ipv6, IPV6)] {
            if called(questions, number, 0)?.is_some_and(|(functions, _)| functions > 0) {
                hooks.first.insert(family);
            }
        }
        hooks.quiet_sets = quiet_sets(questions)?;
        hooks.look_again(questions);
        Ok(hooks)
    }

    /// Looks for what comes and goes without an event; whether something has.
    pub fn look_again(&mut self, questions: &mut Questions) -> bool {
        let now = (legacy(), others(questions), programs(questions));
        let is_news = (&self.legacy, &self.others, &self.programs) != (&now.0, &now.1, &now.2);
        (self.legacy, self.others, self.programs) = now;
        is_news
    }

    /// What looks at packets and changes without an event: `iptables filter`, `nft set t bad`.
    pub fn unannounced(&self) -> impl Iterator<Item = String> + '_ {
        let legacy = self.legacy.iter().map(|(family, table)| match family {
            Family::Ipv6 => format!("ip6tables {table}"),
            _ => format!("iptables {table}"),
        });
        let sets = self.quiet_sets.iter().map(|set| format!("nft set {set}"));
        let looks = self.looks.unannounced.iter().map(|look| format!("nft {look}"));
        let programs = self.programs.iter().map(|(_, number)| format!("bpf {number}"));
        legacy.chain(sets).chain(looks).chain(self.others.iter().cloned()).chain(programs)
    }

    /// A chain that forwarded packets of this family may pass, and that gives some to a program (`table chain`). Where a chain is that only others jump to is
    /// not known.
    pub fn queue(&self, family: Family) -> Option<&str> {
        // There may be a table of that name for one version of IP, and one for both.
        let is_passed = |name: &&str| {
            let is_it = |chain: &&BaseChain| chain.name == *name && chain.families.contains(&family);
            let mut bases = self.chains.iter().filter(is_it).peekable();
            bases.peek().is_none() || bases.any(|chain| chain.is_passed_by_forwarded(family))
        };
        self.looks.queues_of(family).find(is_passed)
    }

    /// Both versions' of these, as `unannounced` has them.
    pub fn queues(&self) -> impl Iterator<Item = String> {
        let all: BTreeSet<&str> = [Family::Ipv4, Family::Ipv6].into_iter().filter_map(|of| self.queue(of)).collect();
        all.into_iter().map(|chain| format!("nft queue {chain}"))
    }

    /// Whether something looks at forwarded packets of this family: it may change or drop them.
    pub fn look_at(&self, family: Family) -> bool {
        self.are_too_many
            || self.chains.iter().any(|chain| chain.is_passed_by_forwarded(family))
            || self.legacy.iter().any(|(of, _)| *of == family)
            || self.programs.iter().any(|(of, _)| *of == family)
    }

    /// Whether nothing looks at packets of this family anywhere, those of this host included: nobody puts fragments together.
    pub fn are_none(&self, family: Family) -> bool {
        !self.are_too_many
            && !self.first.contains(&family)
            && !self.chains.iter().any(|chain| chain.families.contains(&family))
            && !self.legacy.iter().any(|(of, _)| *of == family)
            && !self.programs.iter().any(|(of, _)| *of == family)
    }

    /// The chain that looks at frames at this interface.
    pub fn at_interface(&self, name: &str) -> Option<&BaseChain> {
        let here =
            |chain: &&BaseChain| chain.interfaces.is_empty() || chain.interfaces.iter().any(|other| other == name);
        self.chains.iter().filter(|chain| chain.families.contains(&Family::Netdev)).find(here)
    }
}

const GET_HOOK: u16 = 12 << 8;

/// What is called at a hook (`linux/netfilter/nfnetlink_hook.h`): how many functions, and the numbers of those that are programs of BPF. `None`: this
/// kernel does not tell.
fn called(questions: &mut Questions, family: u8, hook: u32) -> Result<Option<(usize, Vec<u32>)>, Error> {
    const NUMBER: u16 = 1;
    let request = Request::new(GET_HOOK, wire::DUMP, &[family, 0, 0, 0]).with(NUMBER, &hook.to_be_bytes());
    let found = std::cell::RefCell::new((0, Vec::new()));
    let keep = |message: Message<'_>| {
        let (functions, programs) = &mut *found.borrow_mut();
        *functions += usize::from(message.kind == GET_HOOK);
        programs.extend(program(&message));
    };
    match questions.ask(request, || *found.borrow_mut() = (0, Vec::new()), keep) {
        Ok(()) => Ok(Some(found.into_inner())),
        Err(Error::Refused(error)) if is_absent(error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of a program of BPF that is called; `None` for another function, of which Linux before 6.4 has no others.
fn program(message: &Message<'_>) -> Option<u32> {
    const CHAIN: u16 = 6;
    const DESCRIPTION: u16 = 1;
    const KIND: u16 = 2;
    const PROGRAM: u32 = 2;
    const NUMBER: u16 = 1;
    let chain = wire::attributes(message.body, HEADER).find(CHAIN).filter(|_| message.kind == GET_HOOK)?;
    let kind = wire::nested(chain).find(KIND).and_then(wire::be32_of)?;
    let description = wire::nested(chain).find(DESCRIPTION).filter(|_| kind == PROGRAM)?;
    wire::nested(description).find(NUMBER).and_then(wire::be32_of)
}

/// Programs of BPF that forwarded packets pass. Where the kernel does not tell what is called, those of all network namespaces count, if this process
/// may see them (CAP_SYS_ADMIN).
fn programs(questions: &mut Questions) -> BTreeSet<(Family, u32)> {
    const FORWARDED: [u32; 3] = [0, 2, 4];
    let (mut all, mut links) = (BTreeSet::new(), None);
    for (family, number) in [(Family::Ipv4, IPV4), (Family::Ipv6, IPV6)] {
        for hook in FORWARDED {
            let programs = match called(questions, number, hook) {
                Ok(Some((_, programs))) => programs,
                Ok(None) => links.get_or_insert_with(linked).get(&(number.into(), hook)).cloned().unwrap_or_default(),
                Err(_) => Vec::new(),
            };
            all.extend(programs.into_iter().map(|program| (family, program)));
        }
    }
    all
}

/// Programs by family and hook, as their links say.
#[cfg(feature = "bpf")]
fn linked() -> BTreeMap<(u32, u32), Vec<u32>> {
    use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};
    const MOST: usize = 1 << 16;
    let mut all = BTreeMap::<_, Vec<u32>>::new();
    for link in LinkInfoIter::default().take(MOST) {
        if let LinkTypeInfo::Netfilter(one) = link.info {
            all.entry((one.protocol_family, one.hooknum)).or_default().push(link.prog_id);
        }
    }
    all
}

/// Nobody asks without an engine.
#[cfg(not(feature = "bpf"))]
fn linked() -> BTreeMap<(u32, u32), Vec<u32>> {
    BTreeMap::new()
}

/// This kernel has it not.
pub fn is_absent(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(error, Errno::INVAL | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::NOENT | Errno::PERM)
}

/// The generation of the ruleset; it changes with each change.
///
/// # Errors
/// When the kernel does not answer.
pub fn generation(questions: &mut Questions) -> Result<Option<u32>, Error> {
    match questions.one(Request::new(GET_GENERATION, wire::ACK, &[0; HEADER]), read_generation) {
        Err(Error::Refused(error)) if is_absent(error) => Ok(None),
        other => other,
    }
}

/// The generation that an event announces; `None`: it is another event.
pub fn new_generation(message: &Message<'_>) -> Option<u32> {
    (message.kind == NEW_GENERATION).then(|| read_generation(message.body))?
}

fn read_generation(body: &[u8]) -> Option<u32> {
    const ID: u16 = 1;
    wire::attributes(body, HEADER).find(ID).and_then(wire::be32_of)
}

/// Reads a chain; `None` for those that only others jump to.
fn chain(message: Message<'_>) -> Option<BaseChain> {
    const TABLE: u16 = 1;
    const NAME: u16 = 3;
    const HOOK: u16 = 4;
    (message.kind == NEW_CHAIN).then_some(())?;
    let all = wire::attributes(message.body, HEADER);
    let hook = all.clone().find(HOOK)?;
    let text = |kind| all.clone().find(kind).and_then(wire::text_of).unwrap_or_default();
    let families = families(*message.body.first()?, hook_number(hook)?);
    let name = format!("{} {}", text(TABLE), text(NAME));
    Some(BaseChain { families, hook: hook_number(hook)?, name, interfaces: devices(hook) })
}

/// Whether it is a chain at a hook, a program, or a set that changes without an event.
pub(super) fn read_any(message: &Message<'_>) -> bool {
    chain(*message).is_some() || program(message).is_some() || quiet_set(message).is_some()
}

fn hook_number(hook: &[u8]) -> Option<u32> {
    const NUMBER: u16 = 1;
    wire::nested(hook).find(NUMBER).and_then(wire::be32_of)
}

/// Interfaces of a chain that is at interfaces.
fn devices(hook: &[u8]) -> Vec<String> {
    const DEVICE: u16 = 3;
    const DEVICES: u16 = 4;
    const MOST: usize = 256;
    let one = wire::nested(hook).find(DEVICE).and_then(wire::text_of);
    let several = wire::nested(wire::nested(hook).find(DEVICES).unwrap_or_default());
    one.into_iter().chain(several.filter_map(|(_, name)| wire::text_of(name))).take(MOST).collect()
}

/// Of which packets a family of nftables is.
fn families(number: u8, hook: u32) -> Vec<Family> {
    const INET: u8 = 1;
    const NETDEV: u8 = 5;
    const BRIDGE: u8 = 7;
    const INGRESS_OF_INET: u32 = 5;
    match number {
        INET if hook == INGRESS_OF_INET => vec![Family::Netdev],
        INET => vec![Family::Ipv4, Family::Ipv6],
        IPV4 => vec![Family::Ipv4],
        IPV6 => vec![Family::Ipv6],
        BRIDGE => vec![Family::Bridge],
        NETDEV => vec![Family::Netdev],
        _ => Vec::new(),
    }
}

/// Sets whose elements packets add (`dynamic`) or that forget them (`timeout`), as `table set`.
fn quiet_sets(questions: &mut Questions) -> Result<Vec<String>, Error> {
    const GET_SET: u16 = NFTABLES | 10;
    const MOST: usize = 64;
    let found = std::cell::RefCell::new(Vec::new());
    let keep = |message: Message<'_>| {
        let mut found = found.borrow_mut();
        if let Some(name) = quiet_set(&message).filter(|_| found.len() < MOST) {
            found.push(name);
        }
    };
    match questions.ask(Request::new(GET_SET, wire::DUMP, &[0; HEADER]), || found.borrow_mut().clear(), keep) {
        Err(Error::Refused(error)) if !is_absent(error) => Err(Error::Refused(error)),
        Ok(()) | Err(Error::Refused(_)) => Ok(found.into_inner()),
        Err(error) => Err(error),
    }
}

fn quiet_set(message: &Message<'_>) -> Option<String> {
    const NEW_SET: u16 = NFTABLES | 9;
    const TABLE: u16 = 1;
    const NAME: u16 = 2;
    const FLAGS: u16 = 3;
    const TIMEOUT_OR_DYNAMIC: u32 = 0x10 | 0x20;
    (message.kind == NEW_SET).then_some(())?;
    let all = wire::attributes(message.body, HEADER);
    let flags = all.clone().find(FLAGS).and_then(wire::be32_of)?;
    let text = |kind| all.clone().find(kind).and_then(wire::text_of).unwrap_or_default();
    (flags & TIMEOUT_OR_DYNAMIC != 0).then(|| format!("{} {}", text(TABLE), text(NAME)))
}

/// Tables of the old ebtables, and sets of `ipset`.
fn others(questions: &mut Questions) -> Vec<String> {
    // Which tables a namespace has is said nowhere; those that are loaded may be its.
    let tables = ["broute", "filter", "nat"].into_iter();
    let mut all: Vec<String> = tables
        .filter(|table| Path::new(&format!("/sys/module/ebtable_{table}")).exists())
        .map(|table| format!("ebtables {table}"))
        .collect();
    // Asking would load the module.
    if Path::new("/sys/module/ip_set").exists() && has_ip_sets(questions) {
        all.push("ipset".to_owned());
    }
    all
}

fn has_ip_sets(questions: &mut Questions) -> bool {
    const LIST: u16 = 6 << 8 | 7;
    const PROTOCOL: u16 = 1;
    const FLAGS: u16 = 8;
    const NAMES_ONLY: u32 = 1 << 1;
    let mut found = false;
    let header = [2, 0, 0, 0];
    let request = Request::new(LIST, wire::DUMP, &header).with(PROTOCOL, &[6]).with(FLAGS, &NAMES_ONLY.to_be_bytes());
    // A kernel that refuses has them in another form, or not at all.
    questions.ask(request, || (), |message| found |= message.kind == LIST).is_ok() && found
}

/// Tables of the old iptables, which each namespace has once somebody has looked at them there.
fn legacy() -> Vec<(Family, String)> {
    const MOST: usize = 16;
    let mut all = Vec::new();
    for (family, path) in [(Family::Ipv4, "ip_tables_names"), (Family::Ipv6, "ip6_tables_names")] {
        // Absent: this kernel has it not. Of the thread's own namespace, not of the process's first thread.
        let names = fs::read_to_string(format!("/proc/thread-self/net/{path}")).unwrap_or_default();
        all.extend(names.lines().take(MOST).map(|name| (family, name.to_owned())));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, family: u8, fill: impl FnOnce(Request) -> Request) -> Vec<u8> {
        fill(Request::new(kind, 0, &[family, 0, 0, 0])).numbered(0).to_owned()
    }

    fn base(family: u8, number: u32, device: Option<&[u8]>) -> Option<BaseChain> {
        let bytes = message(NEW_CHAIN, family, |request| {
            request.with(1, b"t\0").with(3, b"c\0").within(4, |hook| {
                let hook = hook.with(1, &number.to_be_bytes()).with(2, &[0; 4]);
                device.map_or(hook.clone(), |device| hook.within(4, |list| list.with(1, device)))
            })
        });
        chain(wire::messages(&bytes).next().unwrap())
    }

    #[test]
    fn only_what_forwarded_packets_pass_counts() {
        let of =
            |family, number| Hooks { chains: base(family, number, None).into_iter().collect(), ..Hooks::default() };
        let input = of(2, 1);
        assert!(!input.look_at(Family::Ipv4) && !input.are_none(Family::Ipv4) && input.are_none(Family::Ipv6));
        let forward = of(2, 2);
        assert!(forward.look_at(Family::Ipv4) && !forward.look_at(Family::Ipv6) && !forward.look_at(Family::Bridge));
        let inet = of(1, 4);
        assert!(inet.look_at(Family::Ipv4) && inet.look_at(Family::Ipv6));
        let ingress = Hooks { chains: base(5, 0, Some(b"eth0\0")).into_iter().collect(), ..Hooks::default() };
        assert!(ingress.at_interface("eth0").is_some() && ingress.at_interface("eth1").is_none());
        assert!(!ingress.look_at(Family::Ipv4));
        let legacy = Hooks { legacy: vec![(Family::Ipv6, "nat".to_owned())], ..Hooks::default() };
        assert!(legacy.look_at(Family::Ipv6) && !legacy.look_at(Family::Ipv4));
    }

    #[test]
    fn a_queue_in_a_chain_counts_if_one_of_that_name_is_passed() {
        let of = |chains: &[(u8, u32)]| {
            let chains = chains.iter().filter_map(|(family, hook)| base(*family, *hook, None)).collect();
            let looks = Looks { queues: [(2, "t c".to_owned())].into(), ..Looks::default() };
            Hooks { chains, looks, ..Hooks::default() }.queue(Family::Ipv4).is_some()
        };
        assert!(of(&[]), "others jump to it");
        assert!(of(&[(2, 2)]) && !of(&[(2, 1)]));
        // `table ip t` and `table inet t`: whose rule it is is told by the family of the rule, and not looked at.
        assert!(of(&[(1, 1), (2, 2)]) && of(&[(1, 2), (2, 1)]));
    }

    #[test]
    fn programs_are_told_from_chains_and_other_functions() {
        let of = |kind: u32| {
            let bytes = message(GET_HOOK, IPV4, |request| {
                request.with(4, b"f\0").within(6, |chain| {
                    chain.with(2, &kind.to_be_bytes()).within(1, |inner| inner.with(1, &77_u32.to_be_bytes()))
                })
            });
            program(&wire::messages(&bytes).next().unwrap())
        };
        assert_eq!((of(1), of(2)), (None, Some(77)));
        let plain = message(GET_HOOK, IPV4, |request| request.with(4, b"ipv4_conntrack_in\0"));
        assert_eq!(program(&wire::messages(&plain).next().unwrap()), None);
        let hooks = Hooks { programs: [(Family::Ipv6, 77)].into(), ..Hooks::default() };
        assert!(hooks.look_at(Family::Ipv6) && !hooks.are_none(Family::Ipv6) && !hooks.look_at(Family::Ipv4));
        assert_eq!(hooks.unannounced().collect::<Vec<_>>(), ["bpf 77"]);
    }

    #[test]
    fn sets_that_change_by_themselves_are_told_from_others() {
        let of = |flags: u32| {
            let fill = |request: Request| request.with(1, b"t\0").with(2, b"bad\0").with(3, &flags.to_be_bytes());
            let bytes = fill(Request::new(NFTABLES | 9, 0, &[1, 0, 0, 0])).numbered(0).to_owned();
            quiet_set(&wire::messages(&bytes).next().unwrap())
        };
        assert_eq!((of(0x4), of(0x20).as_deref(), of(0x14).as_deref()), (None, Some("t bad"), Some("t bad")));
        let quiet = Hooks {
            quiet_sets: vec!["t bad".to_owned()],
            legacy: vec![(Family::Ipv6, "nat".to_owned())],
            ..Hooks::default()
        };
        assert_eq!(quiet.unannounced().collect::<Vec<_>>(), ["ip6tables nat", "nft set t bad"]);
    }

    #[test]
    fn a_chain_that_is_jumped_to_is_not_one() {
        let bytes = message(NEW_CHAIN, 2, |request| request.with(1, b"t\0").with(3, b"c\0"));
        assert_eq!(chain(wire::messages(&bytes).next().unwrap()), None);
    }

    #[test]
    fn a_generation_is_announced() {
        let bytes = message(NEW_GENERATION, 0, |request| request.with(1, &77_u32.to_be_bytes()));
        assert_eq!(new_generation(&wire::messages(&bytes).next().unwrap()), Some(77));
        let bytes = message(NEW_CHAIN, 0, |request| request.with(1, &77_u32.to_be_bytes()));
        assert_eq!(new_generation(&wire::messages(&bytes).next().unwrap()), None);
    }
}
