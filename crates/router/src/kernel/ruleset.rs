//! At what rules of nftables look that a rule of the router does not remember: routes, Ethernet addresses, marks of connections, sockets
//! (`linux/netfilter/nf_tables.h`, `nf_tables_compat.h`).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::netfilter::{Family, HEADER, NFTABLES, is_absent};
use super::socket::{Error, Questions};
use super::wire::{self, Message, Request};

const NEW_RULE: u16 = NFTABLES | 6;
const GET_RULE: u16 = NFTABLES | 7;
/// A table, a chain, a rule is gone.
const GONE: [u16; 3] = [NFTABLES | 2, NFTABLES | 5, NFTABLES | 8];

/// Families whose rules packets pass that are forwarded: of both versions of IP, of each, and of bridges, whose chains packets for the router pass, too.
const INET: u8 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
const BRIDGE: u8 = 7;

/// At what rules look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looks {
    /// One asks for routes (`fib`, `rt`, `rpfilter`, realms): a packet that goes the same way may be dropped when another route has changed.
    pub routes: bool,
    /// Chains that look at what may be another for the next packet, or changes without an event: `ether table chain`, `ct-mark table chain`.
    pub unannounced: BTreeSet<String>,
    /// Chains that give packets to a program (`queue`), by family and `table chain`.
    pub queues: BTreeSet<(u8, String)>,
    /// The rules have been read, and what was found then is still there.
    pub is_read: bool,
}

impl Looks {
    /// Reads all rules.
    ///
    /// # Errors
    /// When the kernel does not answer; one without nftables has none.
    pub fn read(questions: &mut Questions) -> Result<Self, Error> {
        let looks = std::cell::RefCell::new(Self::default());
        let request = Request::new(GET_RULE, wire::DUMP, &[0; HEADER]);
        let keep = |message: Message<'_>| looks.borrow_mut().hear(&message);
        match questions.ask(request, || *looks.borrow_mut() = Self::default(), keep) {
            Err(Error::Refused(error)) if !is_absent(error) => return Err(Error::Refused(error)),
            Ok(()) | Err(Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(Self { is_read: true, ..looks.into_inner() })
    }

    /// Takes in a rule, or that something is gone. A ruleset may be long: it is read again only when what was found in it may be gone.
    pub fn hear(&mut self, message: &Message<'_>) {
        match message.kind {
            NEW_RULE => self.add(message.body),
            kind if GONE.contains(&kind) => {
                self.is_read &= !self.routes && self.unannounced.is_empty() && self.queues.is_empty()
            }
            _ => {}
        }
    }

    fn add(&mut self, body: &[u8]) {
        const EXPRESSIONS: u16 = 4;
        let Some(family) = body.first().copied().filter(|family| [INET, IPV4, IPV6, BRIDGE].contains(family)) else {
            return;
        };
        if family == BRIDGE {
            // By which port of the bridge a packet for the router has come, and from whom, no rule remembers.
            self.note("bridge", body);
            return;
        }
        let expressions = wire::nested(wire::attributes(body, HEADER).find(EXPRESSIONS).unwrap_or_default());
        for (_, expression) in expressions {
            match look(expression, family) {
                Some(Look::Routes) => self.routes = true,
                Some(Look::Unannounced(what)) => self.note(what, body),
                Some(Look::Queue) => {
                    self.queues.insert((family, chain_of(body)));
                }
                None => {}
            }
        }
    }

    fn note(&mut self, what: &str, body: &[u8]) {
        /// Chains that are named; one is enough to know that there are some.
        const MOST: usize = 16;
        if self.unannounced.len() < MOST {
            self.unannounced.insert(format!("{what} {}", chain_of(body)));
        }
    }

    /// Chains that give packets of this version of IP to a program.
    pub fn queues_of(&self, family: Family) -> impl Iterator<Item = &str> {
        let number = if family == Family::Ipv6 { IPV6 } else { IPV4 };
        let is_of = move |of: &u8| matches!(family, Family::Ipv4 | Family::Ipv6) && (*of == INET || *of == number);
        self.queues.iter().filter(move |(of, _)| is_of(of)).map(|(_, chain)| chain.as_str())
    }
}

/// The chain of a rule: `table chain`.
fn chain_of(body: &[u8]) -> String {
    const TABLE: u16 = 1;
    const CHAIN: u16 = 2;
    let text = |kind| wire::attributes(body, HEADER).find(kind).and_then(wire::text_of).unwrap_or_default();
    format!("{} {}", text(TABLE), text(CHAIN))
}

enum Look {
    Routes,
    /// At whatever a program looks at that gets the packet.
    Queue,
    /// At what changes without an event, by the word that names it.
    Unannounced(&'static str),
}

/// At what an expression looks.
fn look(expression: &[u8], family: u8) -> Option<Look> {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    let all = wire::nested(expression);
    let data = wire::nested(all.clone().find(DATA).unwrap_or_default());
    let number = |kind| data.clone().find(kind).and_then(wire::be32_of);
    match wire::text_of(all.clone().find(NAME)?)?.as_str() {
        // The kind of an address of IPv4 follows from routes of this host's own addresses, which are a change of the ruleset anyway.
        "fib" => {
            const RESULT: u16 = 2;
            const KIND_OF_ADDRESS: u32 = 3;
            (family != IPV4 || number(RESULT) != Some(KIND_OF_ADDRESS)).then_some(Look::Routes)
        }
        // Realm and next hop; the MSS is for SYNs, and policies of IPsec have events.
        "rt" => {
            const KEY: u16 = 2;
            const NEXT_HOP_IPV6: u32 = 2;
            number(KEY).is_none_or(|key| key <= NEXT_HOP_IPV6).then_some(Look::Routes)
        }
        "meta" => {
            const KEY: u16 = 2;
            const REALM: u32 = 13;
            (number(KEY) == Some(REALM)).then_some(Look::Routes)
        }
        "payload" => {
            const INTO: u16 = 1;
            const BASE: u16 = 2;
            const LINK_LAYER: u32 = 0;
            (number(BASE) == Some(LINK_LAYER) && number(INTO).is_some()).then_some(Look::Unannounced("ether"))
        }
        // Its mark and labels are changed by whoever may (`conntrack -U --mark`); writing them looks at nothing.
        "ct" => {
            const INTO: u16 = 1;
            const KEY: u16 = 2;
            const MARK: u32 = 3;
            const SECURITY_MARK: u32 = 4;
            const LABELS: u32 = 13;
            const PACKETS: u32 = 14;
            const BYTES_OF_A_PACKET: u32 = 16;
            match number(KEY) {
                _ if number(INTO).is_none() => None,
                Some(MARK | SECURITY_MARK | LABELS) => Some(Look::Unannounced("ct-mark")),
                Some(PACKETS..=BYTES_OF_A_PACKET) => Some(Look::Unannounced("ct-count")),
                _ => None,
            }
        }
        "connlimit" => Some(Look::Unannounced("ct-count")),
        "queue" => Some(Look::Queue),
        "socket" | "tproxy" => Some(Look::Unannounced("socket")),
        // Of iptables.
        "match" => match wire::text_of(data.clone().find(NAME)?)?.as_str() {
            "rpfilter" | "realm" => Some(Look::Routes),
            "addrtype" => (family != IPV4).then_some(Look::Routes),
            "mac" | "eui64" => Some(Look::Unannounced("ether")),
            "connmark" | "connlabel" => Some(Look::Unannounced("ct-mark")),
            "connbytes" | "connlimit" => Some(Look::Unannounced("ct-count")),
            "socket" => Some(Look::Unannounced("socket")),
            "recent" => Some(Look::Unannounced("recent")),
            "bpf" => Some(Look::Unannounced("bpf")),
            _ => None,
        },
        "target" => match wire::text_of(data.clone().find(NAME)?)?.as_str() {
            // It may take the packet's mark from the connection's, by which routes are chosen.
            "CONNMARK" | "CONNSECMARK" => Some(Look::Unannounced("ct-mark")),
            "TPROXY" => Some(Look::Unannounced("socket")),
            "NFQUEUE" => Some(Look::Queue),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(looks: &mut Looks, kind: u16, family: u8, name: &[u8], data: impl FnOnce(Request) -> Request) {
        let mut request = Request::new(kind, 0, &[family, 0, 0, 0]).with(1, b"t\0").with(2, b"c\0").within(4, |all| {
            all.within(1, |one| one.with(1, b"counter\0")).within(1, |one| one.with(1, name).within(2, data))
        });
        looks.hear(&wire::messages(request.numbered(0)).next().unwrap());
    }

    /// Whether it asks for routes, and looks at what changes without an event.
    fn of(family: u8, name: &[u8], key: u16, number: u32) -> (bool, bool) {
        let mut looks = Looks::default();
        heard(&mut looks, NEW_RULE, family, name, |data| {
            data.with(1, &1_u32.to_be_bytes()).with(key, &number.to_be_bytes())
        });
        (looks.routes, !looks.unannounced.is_empty())
    }

    #[test]
    fn what_rules_look_at_is_found() {
        let (routes, ethernet, nothing) = ((true, false), (false, true), (false, false));
        assert_eq!(
            (of(INET, b"fib\0", 2, 1), of(IPV4, b"fib\0", 2, 3), of(IPV6, b"fib\0", 2, 3)),
            (routes, nothing, routes)
        );
        assert_eq!((of(INET, b"rt\0", 2, 0), of(INET, b"rt\0", 2, 3)), (routes, nothing));
        assert_eq!((of(INET, b"meta\0", 2, 13), of(INET, b"meta\0", 2, 6)), (routes, nothing));
        assert_eq!((of(IPV4, b"payload\0", 2, 0), of(IPV4, b"payload\0", 2, 1)), (ethernet, nothing));
        // Packets for the router pass them, too.
        assert_eq!(of(BRIDGE, b"payload\0", 2, 0), ethernet);
        assert_eq!(
            (of(INET, b"ct\0", 2, 3), of(INET, b"ct\0", 2, 13), of(INET, b"ct\0", 2, 0)),
            (ethernet, ethernet, nothing)
        );
        assert_eq!((of(INET, b"ct\0", 2, 14), of(INET, b"connlimit\0", 2, 0)), (ethernet, ethernet));
        let mut writes = Looks::default();
        heard(&mut writes, NEW_RULE, INET, b"ct\0", |data| {
            data.with(2, &3_u32.to_be_bytes()).with(4, &1_u32.to_be_bytes())
        });
        assert!(writes.unannounced.is_empty());
        let of_iptables = |family, name: &[u8]| {
            let mut looks = Looks::default();
            heard(&mut looks, NEW_RULE, family, b"match\0", |data| data.with(1, name));
            (looks.routes, !looks.unannounced.is_empty())
        };
        assert_eq!((of_iptables(IPV4, b"connmark\0"), of_iptables(IPV4, b"recent\0")), (ethernet, ethernet));
        assert_eq!((of_iptables(IPV4, b"mac\0"), of_iptables(IPV6, b"rpfilter\0")), (ethernet, routes));
        assert_eq!((of_iptables(IPV4, b"addrtype\0"), of_iptables(IPV6, b"addrtype\0")), (nothing, routes));
    }

    #[test]
    fn who_gives_packets_to_a_program_is_found() {
        let of = |family, name: &[u8], data: &dyn Fn(Request) -> Request| {
            let mut looks = Looks::default();
            heard(&mut looks, NEW_RULE, family, name, data);
            [Family::Ipv4, Family::Ipv6, Family::Bridge].map(|family| looks.queues_of(family).next().map(str::to_owned))
        };
        let chain = || Some("t c".to_owned());
        assert_eq!(of(INET, b"queue\0", &|data| data), [chain(), chain(), None]);
        assert_eq!(of(IPV4, b"queue\0", &|data| data), [chain(), None, None]);
        assert_eq!(of(IPV6, b"target\0", &|data| data.with(1, b"NFQUEUE\0")), [None, chain(), None]);
        assert_eq!(of(IPV6, b"target\0", &|data| data.with(1, b"DNAT\0")), [None, None, None]);
        let mut looks = Looks { is_read: true, ..Looks::default() };
        heard(&mut looks, NEW_RULE, INET, b"queue\0", |data| data);
        heard(&mut looks, GONE[2], INET, b"queue\0", |data| data);
        assert!(!looks.is_read, "it may be gone");
    }

    #[test]
    fn rules_are_read_again_only_when_what_was_found_may_be_gone() {
        let mut looks = Looks { is_read: true, ..Looks::default() };
        heard(&mut looks, GONE[2], INET, b"fib\0", |data| data);
        assert!(looks.is_read && !looks.routes);
        heard(&mut looks, NEW_RULE, INET, b"fib\0", |data| data);
        assert!(looks.is_read && looks.routes);
        heard(&mut looks, GONE[2], INET, b"counter\0", |data| data);
        assert!(!looks.is_read);
    }
}
