//! What a switch asks of whoever moves the packets: a card, or a test.

use millrace_flow::meter::MeterSpec;
use millrace_flow::rss::GroupSpec;
use millrace_flow::{Match, RuleSpec};

/// Where an entry stands: no two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Its table.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// What it matches.
    pub matching: Match,
}

impl FlowKey {
    /// That of a rule.
    pub fn of(rule: &RuleSpec) -> Self {
        Self { table: rule.table, priority: rule.priority, matching: rule.matching }
    }

    /// Whether it is a table-miss entry: matches everything, with the lowest priority.
    pub fn is_miss(&self) -> bool {
        self.priority == 0 && self.matching == Match::ANY
    }
}

/// One change of what packets meet.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A rule; one with the same key goes, with its counters.
    Add(RuleSpec),
    /// A rule; one with the same key gives it its counters, and its timeouts begin anew.
    Renew(RuleSpec),
    /// Other actions, and another cookie, for the rule with this key, which keeps counters and timeouts. It may have gone by itself: then
    /// nothing is done.
    Modify(RuleSpec),
    /// Removes a rule.
    Delete(FlowKey),
    /// Sets up a group that spreads over queues.
    Group(u32, GroupSpec),
    /// Removes it.
    DeleteGroup(u32),
    /// Sets up a meter.
    Meter(u32, MeterSpec),
    /// Removes it.
    DeleteMeter(u32),
}

/// Why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// There is no room.
    Full(String),
    /// It is somebody else's, or the agent may not.
    Denied(String),
    /// It cannot be.
    Invalid(String),
    /// The datapath does not answer, and nobody knows.
    Gone(String),
}

/// What a rule has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long it is there, in nanoseconds.
    pub age_ns: u64,
    /// The datapath's number of it.
    pub number: u64,
}

/// What everything has had.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Rules.
    pub rules: Vec<(FlowKey, Counts)>,
    /// Packets that meters did not admit.
    pub metered: Vec<(u32, u64)>,
    /// Packets that met no rule.
    pub unmatched: u64,
    /// What has come out of the tunnel that is this port.
    pub tunnels: Vec<(u32, Counts)>,
}

/// What is known of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number at the datapath, from 0. The controller sees one more.
    pub port: u32,
    /// Its name.
    pub name: String,
    /// Whether something is plugged in.
    pub plugged: bool,
    /// Whether there is somebody at the other end.
    pub link: bool,
    /// Packets in and out, bytes in and out, drops in and out.
    pub counters: [u64; 6],
}

/// What is known of a queue of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueInfo {
    /// Its number.
    pub queue: u32,
    /// Packets that it got.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were for it and lost.
    pub errors: u64,
}

/// Why a rule has gone that nobody has deleted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No packet came for its idle timeout.
    Idle,
    /// Its time was over.
    Hard,
    /// Somebody has deleted it, perhaps this switch.
    Delete,
}

/// A rule has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Which one.
    pub key: FlowKey,
    /// With which version.
    pub version: u64,
    /// Why.
    pub why: Why,
    /// What it has had.
    pub counts: Counts,
}

/// Whoever moves the packets.
pub trait Datapath {
    /// Does all changes or none; the version that has them.
    ///
    /// # Errors
    /// [`Rejected`].
    fn commit(&mut self, changes: &[Change]) -> Result<u64, Rejected>;

    /// What everything has had.
    ///
    /// # Errors
    /// [`Rejected`].
    fn snapshot(&mut self) -> Result<Snapshot, Rejected>;

    /// Ports, in order, and queues.
    ///
    /// # Errors
    /// [`Rejected`].
    fn ports(&mut self) -> Result<(Vec<PortInfo>, Vec<QueueInfo>), Rejected>;

    /// Does actions to a frame that has come in at a port of the datapath, or from the host.
    ///
    /// # Errors
    /// [`Rejected`].
    fn send(&mut self, frame: &[u8], in_port: u32, actions: &[millrace_flow::Action]) -> Result<(), Rejected>;
}
