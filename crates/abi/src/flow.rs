//! What programs and the driver say to each other about the flow table: rules of the classifier, RSS groups and meters.
//!
//! Rules, filters, groups and meters are text in the language of the crate `flow` (docs/classifier.md), one line each.
//!
//! A transaction that fits one message is one [`FlowRequest::Once`]. A longer one is [`FlowRequest::Begin`], any number of
//! [`FlowRequest::Add`], and [`FlowRequest::Commit`]: nothing is done before that, and then all of it or nothing. A connection has
//! one transaction at a time; it is forgotten when the connection ends.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Most bytes of text in the changes of one message.
pub const MAX_FLOW_TEXT: usize = 48 * 1024;
/// Longest frame that can be explained, in bytes.
pub const MAX_EXPLAINED: usize = 16 * 1024;
/// Most better rules of a table that an explanation names.
pub const MAX_BETTER: u32 = 100;
/// Highest rate at which frames are heard, per second.
pub const MAX_TAP_RATE: u32 = 100_000;
/// About so many bytes of text a reply has at most: with everything else it fits one message.
pub const MAX_FLOW_REPLY: usize = 40 * 1024;

/// From the program to the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FlowRequest {
    /// A whole transaction.
    Once {
        /// What it is about.
        options: FlowOptions,
        /// What is to be done, in this order.
        changes: Vec<FlowChange>,
        /// Whether it is only tried.
        dry_run: bool,
    },
    /// Begins a transaction; one that was begun before is forgotten.
    Begin(FlowOptions),
    /// More changes for the transaction. One that cannot be read is refused, and with it the transaction.
    Add(Vec<FlowChange>),
    /// Does the transaction, or tries it.
    Commit {
        /// Whether it is only tried.
        dry_run: bool,
    },
    /// Forgets the transaction.
    Abort,
    /// Asks for rules, groups and meters, as they are now: the first of them.
    List {
        /// Which rules. Groups, meters and miss are listed where everything is: if it is empty.
        filter: String,
        /// As of which version; `None`: the newest.
        version: Option<u64>,
    },
    /// Asks for more of the list.
    More,
    /// Asks how much there is.
    Info,
    /// Asks for an eventfd that can be read when something has happened to the flow table. A later one takes its place.
    Watch {
        /// Whether only rules that have gone count, and are told of.
        removed: bool,
    },
    /// Asks what has happened.
    Events {
        /// After which event.
        after: u64,
    },
    /// Asks what becomes of a frame, and why.
    Explain {
        /// Under which version; `None`: the newest.
        version: Option<u64>,
        /// The port at which it comes in.
        port: u32,
        /// The frame, without FCS; at most [`MAX_EXPLAINED`] bytes.
        frame: Vec<u8>,
        /// How many better rules are named for each table; at most [`MAX_BETTER`].
        better: u32,
    },
    /// Listens to frames on which rules decide, from now on. Takes the right `capture`. A later one takes its place.
    Tap(FlowTap),
    /// Asks for what was heard.
    Heard,
    /// Listens no more.
    Untap,
    /// Hands over keys of connections of a QUIC group, which are forgotten when this connection ends.
    Keys {
        /// Which group.
        group: u32,
        /// Lines of `SSLKEYLOGFILE`.
        log: FlowKeyLog,
    },
    /// Asks for neighbours of tunnels, in order.
    Neighbours {
        /// Behind this one; `None`: from the first.
        after: Option<IpAddr>,
    },
    /// Says where a neighbour of tunnels is, for ever; or forgets it.
    SetNeighbour {
        /// The next hop.
        address: IpAddr,
        /// Its MAC address and the number of the port where it is; `None` forgets it.
        at: Option<([u8; 6], u32)>,
    },
    /// Sends a frame within a tunnel out of a port, once its neighbour is known.
    SendInTunnel {
        /// The number of the port.
        port: u32,
        /// The frame with its outer headers, in which zeros are in place of the MAC addresses; at most [`MAX_EXPLAINED`] bytes.
        frame: Vec<u8>,
    },
}

/// Lines of `SSLKEYLOGFILE` (RFC 9850), at most [`MAX_FLOW_TEXT`] bytes. They are secrets, and not printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowKeyLog(pub String);

impl core::fmt::Debug for FlowKeyLog {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "FlowKeyLog({} bytes)", self.0.len())
    }
}

/// What became of keys that were handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowKeys {
    /// Secrets that are kept until their connection or whoever has handed them over goes.
    pub taken: u64,
    /// Secrets of no connection that the group knows.
    pub unknown: u64,
    /// Secrets for which there is no room: as many connections of the group have keys as may.
    pub full: u64,
    /// Secrets of connections of which somebody else has handed over keys.
    pub foreign: u64,
    /// Lines with a secret that cannot be read.
    pub malformed: u64,
    /// Connections of which this program's keys are known now, in all groups.
    pub connections: u64,
}

/// Which frames somebody wants to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FlowTapWants {
    /// All.
    All,
    /// Those that come in at this port.
    Port(u32),
    /// Those that this RX queue gets.
    Queue(u32),
    /// Those that meet the rule with this number ([`FlowCounts::number`]).
    Rule(u64),
    /// Those that meet a rule with this cookie.
    Cookie {
        /// The cookie.
        cookie: u64,
        /// The bits of it that count.
        mask: u64,
    },
    /// Those of which a rule has found the time to live at its end (`dec_ttl`): the host gets them.
    Expired,
}

/// What somebody wants to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTap {
    /// Which frames.
    pub wants: FlowTapWants,
    /// At most so many bytes of each, up to [`MAX_EXPLAINED`].
    pub snap: u32,
    /// As they are after all actions, not as they came in.
    pub after: bool,
    /// At most so many frames per second, up to [`MAX_TAP_RATE`].
    pub rate: u32,
}

/// What a transaction is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowOptions {
    /// Whether the card keeps what it sets up when the program ends. Filters, and `replace`, are about what the card keeps for this
    /// user then; otherwise about what belongs to this connection.
    pub keep: bool,
    /// Whether what belongs to others is meant as well; takes the right `admin`.
    pub everyone: bool,
    /// Whether what it adds is to be all that there is: what else is meant goes, and what is there already stays as it is.
    pub replace: bool,
    /// Whether numbers are enough for an answer: what was changed is not listed.
    pub brief: bool,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FlowChange {
    /// A rule, a group, a meter or miss, as a line of text or JSON.
    Add(String),
    /// Other actions for the rules that are meant: `FILTER,actions=...`.
    Modify(String),
    /// Removes the rules of a filter.
    Delete(String),
    /// Removes a group.
    DeleteGroup(u32),
    /// Removes a meter.
    DeleteMeter(u32),
    /// A rule, as a line of text or JSON, that takes the place of one with the same table, priority and match: it has its counters, and its
    /// timeouts begin anew. Without such a one it is added.
    Renew(String),
}

impl FlowChange {
    /// Bytes of its text.
    pub fn len(&self) -> usize {
        match self {
            Self::Add(text) | Self::Modify(text) | Self::Delete(text) | Self::Renew(text) => text.len(),
            Self::DeleteGroup(_) | Self::DeleteMeter(_) => 0,
        }
    }

    /// Whether it has no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A change from a line: `add RULE`, `modify FILTER,actions=...`, `delete FILTER`, `delete group=N`, `delete meter=N`; what
    /// begins with none of these words is added. `None` for an empty line and for a comment.
    pub fn of_line(line: &str) -> Option<Self> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let rest = rest.trim_start();
        let number = |word: &str| rest.strip_prefix(word).and_then(|number| number.trim().parse().ok());
        Some(match word {
            "add" => Self::Add(rest.to_owned()),
            "modify" => Self::Modify(rest.to_owned()),
            "delete" => match (number("group="), number("meter=")) {
                (Some(group), _) => Self::DeleteGroup(group),
                (_, Some(meter)) => Self::DeleteMeter(meter),
                _ => Self::Delete(rest.to_owned()),
            },
            _ => Self::Add(line.to_owned()),
        })
    }
}

/// From the driver to the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FlowReply {
    /// To [`FlowRequest::Once`] and [`FlowRequest::Commit`].
    Committed(FlowCommitted),
    /// To [`FlowRequest::List`] and [`FlowRequest::More`].
    Listed {
        /// The version that is listed.
        version: u64,
        /// Some of it, in order: miss, groups, meters, then rules, table after table, the one that wins first.
        entries: Vec<FlowEntry>,
        /// Whether there is more.
        more: bool,
    },
    /// To [`FlowRequest::Info`].
    Info(FlowInfo),
    /// To [`FlowRequest::Watch`]. Fds: an eventfd.
    Watching {
        /// The number of the last event so far.
        last: u64,
    },
    /// To [`FlowRequest::Events`].
    Events(FlowEvents),
    /// To [`FlowRequest::Explain`].
    Explained(FlowExplained),
    /// To [`FlowRequest::Heard`].
    Heard(FlowHeard),
    /// To [`FlowRequest::Keys`].
    Keys(FlowKeys),
    /// To [`FlowRequest::Neighbours`].
    Neighbours {
        /// Some of them.
        neighbours: Vec<FlowNeighbour>,
        /// Whether there are more behind these.
        more: bool,
    },
}

/// A neighbour of tunnels: where frames for an outer address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowNeighbour {
    /// The outer address.
    pub address: IpAddr,
    /// Its MAC address, if it is known.
    pub mac: Option<[u8; 6]>,
    /// The number of the port where it is, if that is known.
    pub port: Option<u32>,
    /// How far it is.
    pub state: FlowNeighbourState,
    /// How long it is so, in nanoseconds.
    pub age_ns: u64,
    /// Frames that wait for it.
    pub waiting: u32,
}

/// How far it is with a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowNeighbourState {
    /// Somebody has said so, for ever.
    Static,
    /// It has answered.
    Reachable,
    /// It is asked whether it is still there.
    Probing,
    /// It is asked for the first time.
    Asking,
    /// It has not answered.
    Unreachable,
}

impl FlowNeighbourState {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Reachable => "reachable",
            Self::Probing => "probing",
            Self::Asking => "asking",
            Self::Unreachable => "unreachable",
        }
    }
}

/// What was heard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowHeard {
    /// Frames, in order of time; perhaps not all.
    pub frames: Vec<FlowFrame>,
    /// Frames so far for which there was no room.
    pub lost: u64,
    /// Frames so far beyond the rate.
    pub limited: u64,
    /// Whether there are more already.
    pub more: bool,
}

/// A frame that was heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowFrame {
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The version of the rules that decided.
    pub version: u64,
    /// The port where it came in; 0xfffffffe: from a program.
    pub port: u32,
    /// The tunnel that it was taken out of, or is to go into.
    #[serde(default)]
    pub tunnel: Option<FlowTunnel>,
    /// The port queue where it came in, or the TX queue that has sent it.
    pub queue: u32,
    /// Its length, of which [`bytes`](Self::bytes) may be the beginning.
    pub len: u32,
    /// Numbers of the rules that it met, the first sixteen.
    pub rules: Vec<u64>,
    /// Who gets it, the first eight; none: it was dropped.
    pub sent: Vec<FlowSent>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What is known of the tunnel of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTunnel {
    /// Its identifier.
    pub id: u32,
    /// The IPv4 address of the other end, as a number, if the frame came from there.
    pub src: u32,
    /// The port that the tunnel is, if a rule has said so.
    pub port: Option<u32>,
}

/// Who gets a frame. There may be no room for it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowSent {
    /// An RX queue.
    Queue(u32),
    /// A port.
    Port(u32),
    /// The host's slow path.
    Host,
}

impl core::fmt::Display for FlowSent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Queue(queue) => write!(f, "queue {queue}"),
            Self::Port(port) => write!(f, "port {port}"),
            Self::Host => f.write_str("slow path"),
        }
    }
}

/// What a transaction has done, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCommitted {
    /// The version that it has made.
    pub version: u64,
    /// Rules that were added where none was with the same table, priority and match.
    pub added: u64,
    /// Rules that have other actions, or took the place of one with the same table, priority and match.
    pub modified: u64,
    /// Rules that went, and nothing took their place.
    pub removed: u64,
    /// Rules, groups and meters that the transaction has changed, as lines: the first of them; none if the answer was to be brief.
    pub changed: Vec<FlowChanged>,
    /// How many more there are.
    pub omitted: u64,
}

/// A rule, group or meter that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowChanged {
    /// What has become of it.
    pub kind: FlowKind,
    /// It, as a line.
    pub line: String,
}

/// What becomes of rules, groups and meters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowKind {
    /// There is one more. For a group, meter or miss: it was set up, or is another.
    Added,
    /// It has other actions.
    Modified,
    /// It has gone.
    Removed,
}

/// Whose something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FlowOwner {
    /// The card keeps it, for its user.
    Card,
    /// The card keeps it for another user.
    User(u32),
    /// It goes with a program.
    Program {
        /// The number of its connection.
        client: u64,
        /// Its process; 0: not known.
        pid: u32,
        /// Its user.
        uid: u32,
    },
}

impl core::fmt::Display for FlowOwner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Card => f.write_str("card"),
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Program { pid, .. } => write!(f, "process {pid}"),
        }
    }
}

/// A rule, or a group, a meter or miss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowEntry {
    /// It, as a line.
    pub line: String,
    /// Whose it is.
    pub owner: FlowOwner,
    /// What a rule has had; none for what is no rule.
    pub rule: Option<FlowCounts>,
    /// Frames that a meter did not admit; none for what is no meter.
    pub metered: Option<u64>,
}

/// What a rule has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCounts {
    /// Its number: unique as long as the card runs, and the same when its actions change.
    pub number: u64,
    /// Frames that it has matched.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Frames of these that did not get, or not to all, where the rules said. Those that were lost behind the worker where they came in
    /// count at their queue only.
    pub lost: u64,
    /// How long it is there, in nanoseconds.
    pub age_ns: u64,
    /// How long no frame has met it, in nanoseconds; as its age if none has.
    pub idle_ns: u64,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowInfo {
    /// The newest version.
    pub version: u64,
    /// The oldest that can still be asked for.
    pub oldest: u64,
    /// Rules.
    pub rules: u64,
    /// RSS groups.
    pub groups: u64,
    /// Meters.
    pub meters: u64,
    /// Rules of this connection.
    pub own: u64,
    /// Rules that the card keeps for this user.
    pub kept: u64,
    /// Frames so far that met no rule, in the first table or in one to which a rule had sent them.
    pub unmatched: u64,
}

/// What has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowEvents {
    /// In this order; perhaps not all.
    pub events: Vec<FlowEvent>,
    /// How many events before these nobody can have any more.
    pub lost: u64,
    /// The number of the last event that is handed out or lost: what is asked for next comes after it.
    pub next: u64,
    /// Whether there are more already.
    pub more: bool,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowEvent {
    /// Its number, one more than that of the event before.
    pub number: u64,
    /// The version that came with it.
    pub version: u64,
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// What.
    pub kind: FlowKind,
    /// Why something was removed.
    pub reason: Option<FlowReason>,
    /// The rule, group, meter or miss, as a line.
    pub line: String,
    /// Whose rule it is; none for what is no rule.
    pub owner: Option<FlowOwner>,
    /// Of a rule that was removed: what it has had.
    pub rule: Option<FlowCounts>,
}

/// Why a rule was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowReason {
    /// No frame met it for its idle timeout.
    Idle,
    /// Its hard timeout is over.
    Hard,
    /// A transaction has removed it.
    Delete,
    /// The program that it belonged to has gone.
    OwnerGone,
}

impl FlowReason {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Hard => "hard",
            Self::Delete => "delete",
            Self::OwnerGone => "owner-gone",
        }
    }
}

/// What becomes of a frame, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowExplained {
    /// For people.
    pub text: String,
    /// The same as JSON; empty if it is too long.
    pub json: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_printed() {
        let request = FlowRequest::Keys { group: 2, log: FlowKeyLog("CLIENT_TRAFFIC_SECRET_0 00 11".to_owned()) };
        assert_eq!(format!("{request:?}"), "Keys { group: 2, log: FlowKeyLog(29 bytes) }");
    }

    #[test]
    fn changes_of_lines() {
        let of = |line| FlowChange::of_line(line);
        assert_eq!(of("  # nothing"), None);
        assert_eq!(of(" "), None);
        assert_eq!(of("add tcp,actions=drop"), Some(FlowChange::Add("tcp,actions=drop".to_owned())));
        assert_eq!(of("tcp, actions=drop"), Some(FlowChange::Add("tcp, actions=drop".to_owned())));
        assert_eq!(of("delete"), Some(FlowChange::Delete(String::new())));
        assert_eq!(of("delete tcp strict"), Some(FlowChange::Delete("tcp strict".to_owned())));
        assert_eq!(of("delete group=7"), Some(FlowChange::DeleteGroup(7)));
        assert_eq!(of("delete\tmeter=7"), Some(FlowChange::DeleteMeter(7)));
        assert_eq!(of("modify tcp,actions=drop"), Some(FlowChange::Modify("tcp,actions=drop".to_owned())));
    }
}
