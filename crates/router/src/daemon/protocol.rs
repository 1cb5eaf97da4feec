//! What a client may ask the daemon, and what it answers: postcard over `SOCK_SEQPACKET`, one answer to each request.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::advice::Advice;
use super::choice::Place;
use super::delays::Summary;
use super::ipsec;
use super::parts::Parts;
use super::pattern::Pattern;
use crate::Step;

/// Both sides must have the same; each request says its own first.
pub const VERSION: u32 = 5;

/// The longest message.
pub const LONGEST: usize = 64 << 10;

/// Rules in one answer at most.
pub const PAGE: usize = 128;

/// A request, and which version of the protocol it is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// [`VERSION`] of who asks.
    pub version: u32,
    /// What it is.
    pub request: Request,
}

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// How it is.
    Status,
    /// Counters of all steps and reasons.
    Counters,
    /// Some rules, from this place of the table on.
    Rules {
        /// Where the page before ended; 0 at first.
        from: u64,
        /// Which ones.
        filter: Filter,
    },
    /// The last mismatches of the shadow.
    Shadow,
    /// Switch the fast path on or off, at the interfaces that fit or everywhere.
    Switch {
        /// On, or off.
        on: bool,
        /// Where; everywhere if it is missing.
        interface: Option<Pattern>,
    },
    /// Do this work and no other.
    Only(Parts),
    /// Take more interfaces.
    Add(Vec<Pattern>),
    /// Leave interfaces alone that were asked for.
    Remove(Vec<Pattern>),
    /// Compare one packet in so many; 0 for none.
    Compare(u32),
    /// Forget all rules.
    Flush,
    /// End.
    Stop,
    /// Associations and policies of IPsec.
    Ipsec(ipsec::Request),
    /// A program has this session of PPPoE; to be said again within [`LEASE`](super::sessions::LEASE).
    Session(Session),
    /// The session of the interface of this name is over.
    NoSession(String),
}

impl Request {
    /// Whether it changes something: then only root and whoever runs the daemon may ask.
    pub fn changes(&self) -> bool {
        match self {
            Self::Status | Self::Counters | Self::Rules { .. } | Self::Shadow => false,
            Self::Ipsec(request) => request.changes(),
            _ => true,
        }
    }
}

/// A session of PPPoE, of a program in user space or of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The interface that packets are routed to.
    pub name: String,
    /// The Ethernet interface that frames of the session leave by.
    pub interface: String,
    /// The number of the session.
    pub session: u16,
    /// Ethernet address of the access concentrator.
    pub ac: [u8; 6],
    /// Our own.
    pub own: [u8; 6],
}

/// Which rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Those that have this address, and port if it is not 0, at one of their ends, translated or not.
    pub one: Option<(IpAddr, u16)>,
    /// And this at the other.
    pub other: Option<(IpAddr, u16)>,
    /// Of this protocol.
    pub protocol: Option<u8>,
}

impl Filter {
    /// Whether a flow between these ends is meant. `translated` are the ends after NAT.
    pub fn fits(&self, protocol: u8, ends: [(IpAddr, u16); 2], translated: [(IpAddr, u16); 2]) -> bool {
        let is = |wanted: &Option<(IpAddr, u16)>, end: (IpAddr, u16)| {
            wanted.is_none_or(|(address, port)| address == end.0 && (port == 0 || port == end.1))
        };
        let either = |at: usize, wanted| is(wanted, ends[at]) || is(wanted, translated[at]);
        let both = |one, other| either(0, one) && either(1, other);
        self.protocol.is_none_or(|wanted| wanted == protocol)
            && (both(&self.one, &self.other) || both(&self.other, &self.one))
    }
}

/// What the daemon says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// It is not, and why.
    Refused(String),
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Counters`].
    Counters(Vec<Counter>),
    /// To [`Request::Rules`].
    Rules {
        /// Those that were found.
        rules: Vec<RuleInfo>,
        /// Where to go on; `None` at the end.
        next: Option<u64>,
    },
    /// To [`Request::Shadow`].
    Shadow(Shadow),
    /// To [`Request::Ipsec`].
    Ipsec(ipsec::Answer),
}

/// How the daemon is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_s: f64,
    /// Whether the fast path is on.
    pub is_on: bool,
    /// `route` or `conntrack`, and why.
    pub mode: String,
    /// What looks at forwarded packets, by name.
    pub hooks: Vec<String>,
    /// What is done.
    pub parts: Option<Parts>,
    /// Interfaces that were asked for.
    pub interfaces: Vec<Interface>,
    /// Names that fit nothing yet.
    pub awaited: Vec<String>,
    /// How many rules are in force, on trial, refused.
    pub rules: RuleCounts,
    /// The epoch.
    pub epoch: u32,
    /// Epochs by what moved them.
    pub changes: Vec<(String, u64)>,
    /// Events of the kernel that were lost, by socket, each followed by a reading of everything.
    pub overruns: Vec<(String, u64)>,
    /// Events of the engine that were lost.
    pub lost_events: u64,
    /// From the kernel's event to the new epoch.
    pub delay: Summary,
    /// One packet in so many is compared; 0: none.
    pub compare: u32,
    /// What happens to rules when the daemon dies: `keep` or `flush`.
    pub on_death: String,
    /// What Linux would better be told.
    pub advice: Vec<Advice>,
    /// What this kernel or process cannot do, in words.
    pub missing: Vec<String>,
    /// Rules that ended because nobody used them.
    pub aged: u64,
    /// Rules that ended with their connection.
    pub ended: u64,
    /// Connections whose windows conntrack still checks, for it could not be told.
    pub not_liberal: u64,
    /// Sessions of PPPoE: those that programs have told of, and the kernel's.
    pub sessions: Vec<Session>,
    /// Neighbours, entries of bridges and multicast routes for which there was no room: what concerns them goes through Linux.
    pub left_out: u64,
    /// Clients that were refused, let go or cut off.
    pub turned_away: u64,
    /// Copies of packets to compare for which there was no room.
    pub uncopied: u64,
    /// How often all next hops were given back because their table was nearly full: every rule is made again then.
    pub renewals: u64,
}

/// An interface that was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Where the program is; `None`: nowhere.
    pub place: Option<Place>,
    /// Name of the reason why it is not on ([`Off::name`](super::off::Off::name)).
    pub off: Option<String>,
    /// That in a sentence.
    pub why: Option<String>,
    /// Packets that came by it and went without Linux.
    pub fast: Option<u64>,
}

/// How many rules there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCounts {
    /// In force.
    pub active: u64,
    /// On trial.
    pub trial: u64,
    /// Linux does something else.
    pub refused: u64,
    /// Places in the table.
    pub room: u64,
}

/// How often packets went to Linux for one reason, or did not have to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Number of the step, from 1.
    pub step: u8,
    /// The reason.
    pub reason: String,
    /// In a sentence.
    pub meaning: String,
    /// Packets.
    pub packets: u64,
}

impl Counter {
    /// The step by its name.
    pub fn step_name(&self) -> &'static str {
        Step::ALL.iter().find(|step| **step as u8 == self.step).map_or("?", |step| step.name())
    }
}

/// A rule, as people see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleInfo {
    /// Its number in the table.
    pub id: u64,
    /// `active`, `trial`, `refused`; `off`: something is switched off; `doubt`: something has changed since its last packet.
    pub state: String,
    /// The interface that its packets come by.
    pub input: String,
    /// Protocol in IP.
    pub protocol: u8,
    /// From where.
    pub source: (IpAddr, u16),
    /// To where.
    pub destination: (IpAddr, u16),
    /// It is about answers to echoes; of an echo both ports are its identifier.
    pub is_echo_reply: bool,
    /// From where, as it leaves.
    pub new_source: (IpAddr, u16),
    /// To where, as it leaves.
    pub new_destination: (IpAddr, u16),
    /// The DSCP that comes.
    pub dscp: u8,
    /// And that leaves.
    pub new_dscp: u8,
    /// The interface that its packets leave by; empty while that is not known.
    pub output: String,
    /// Bridged, not routed.
    pub is_bridged: bool,
    /// Packets that it has carried.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Seconds since the last.
    pub idle_s: f64,
    /// Seconds since it was made, if the daemon has seen that.
    pub age_s: Option<f64>,
    /// Seconds that it has been in its state, if the daemon has seen that.
    pub state_s: Option<f64>,
    /// Number of the step that hands its packets to Linux; 0: none does.
    pub step: u8,
    /// The reason; empty: none.
    pub reason: String,
    /// In a sentence.
    pub meaning: String,
    /// The engine in user space has a part in it: IPsec.
    pub is_user: bool,
}

/// What the shadow has found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shadow {
    /// One packet in so many.
    pub compare: u32,
    /// Pairs that were compared.
    pub compared: u64,
    /// Pairs that differed.
    pub different: u64,
    /// Halves whose other half never came.
    pub unpaired: u64,
    /// Different, because something has changed in Linux meanwhile.
    pub overtaken: u64,
    /// Files with both sides of the last that differed.
    pub captures: Vec<String>,
    /// The last that differed, in words.
    pub last: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_found_by_either_end_before_and_behind_nat() {
        let end = |text: &str| {
            let end: std::net::SocketAddr = text.parse().unwrap();
            (end.ip(), end.port())
        };
        let (ends, translated) =
            ([end("10.0.0.1:1000"), end("10.9.0.1:80")], [end("192.0.2.1:5000"), end("10.9.0.1:80")]);
        let fits = |one: Option<&str>, other: Option<&str>| {
            Filter { one: one.map(end), other: other.map(end), protocol: Some(6) }.fits(6, ends, translated)
        };
        assert!(fits(None, None) && fits(Some("10.0.0.1:1000"), None) && fits(Some("192.0.2.1:5000"), None));
        assert!(fits(Some("10.9.0.1:80"), Some("10.0.0.1:0")) && fits(Some("10.0.0.1:1000"), Some("10.9.0.1:80")));
        assert!(!fits(Some("10.0.0.1:1001"), None) && !fits(Some("10.0.0.1:1000"), Some("10.9.0.1:81")));
        assert!(!Filter { protocol: Some(17), ..Filter::default() }.fits(6, ends, translated));
    }

    #[test]
    fn what_is_sent_is_what_arrives() {
        let interface = Interface {
            name: "eth0".to_owned(),
            index: 2,
            place: Some(Place::Tc),
            off: Some("shaped".to_owned()),
            why: Some("tbf".to_owned()),
            fast: Some(7),
        };
        let advice = Advice { what: "a".to_owned(), command: "b".to_owned() };
        let status =
            Status { interfaces: vec![interface], parts: Some(Parts::ALL), advice: vec![advice], ..Status::default() };
        let rule = RuleInfo {
            id: 1,
            state: "active".to_owned(),
            input: "left".to_owned(),
            protocol: 6,
            source: ("10.0.0.1".parse().unwrap(), 1),
            destination: ("fd00::1".parse().unwrap(), 2),
            is_echo_reply: false,
            new_source: ("10.0.0.1".parse().unwrap(), 1),
            new_destination: ("fd00::1".parse().unwrap(), 2),
            dscp: 0,
            new_dscp: 46,
            output: "right".to_owned(),
            is_bridged: false,
            packets: u64::MAX,
            bytes: u64::MAX,
            idle_s: 0.5,
            age_s: Some(1.0),
            state_s: Some(0.5),
            step: 8,
            reason: "linux-silent".to_owned(),
            meaning: "it is filtered, held back, or for the router itself, and so on".to_owned(),
            is_user: true,
        };
        let page = Answer::Rules { rules: vec![rule; PAGE], next: Some(u64::MAX) };
        for answer in [Answer::Status(Box::new(status)), page, Answer::Shadow(Shadow::default())] {
            let bytes = postcard::to_stdvec(&answer).unwrap();
            assert!(bytes.len() <= LONGEST, "{}", bytes.len());
            assert_eq!(postcard::from_bytes(&bytes), Ok(answer));
        }
    }

    #[test]
    fn only_what_changes_nothing_is_for_all() {
        assert!(!Request::Status.changes() && !Request::Rules { from: 0, filter: Filter::default() }.changes());
        assert!(Request::Stop.changes() && Request::Compare(1).changes() && Request::Flush.changes());
    }
}
