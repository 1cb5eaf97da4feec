//! Groups: which there are, what they may be, and which buckets count.

use super::balance::{Ports, again, balance};
use super::compile::MOST_ASKED;
use crate::wire::action::Action;
use crate::wire::error::{Refusal, group_mod as refused};
use crate::wire::group::{Bucket, GroupDesc, kind};
use crate::wire::port::number;
use millrace_flow::Key;
use millrace_flow::rss::{self, GroupSpec, MAX_TABLE, MICROSOFT_KEY};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

/// Most groups.
pub const MOST_GROUPS: usize = 4096;
/// Most buckets of a group.
pub const MOST_BUCKETS: usize = 256;

/// Most actions of all its buckets together: what is told of it fits one message.
const MOST_ACTIONS: usize = 1024;

/// Most buckets and actions of all groups together: some 60 MiB.
const MOST_PARTS: usize = 1 << 20;

/// The hash by which all groups choose: made once, as each packet of a controller asks for it.
static HASH: LazyLock<Option<rss::Group>> =
    LazyLock::new(|| rss::Group::new(&GroupSpec::spread(&MICROSOFT_KEY, 1, 1)).ok());

/// A group.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// As it was asked for.
    pub desc: GroupDesc,
    /// When it was set up.
    pub since: Duration,
    /// What it is at the datapath, if it is something there.
    pub(super) spread: Option<Spread>,
}

/// What a group that selects does at the datapath.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Spread {
    /// It chooses a queue of the host.
    Queues(GroupSpec),
    /// It chooses a port, if any of them is alive. Of its shares, in the order of buckets: whose each entry is while all are alive, and which are.
    Ports { spec: GroupSpec, due: Vec<u16>, alive: Vec<bool> },
}

impl Spread {
    pub fn spec(&self) -> &GroupSpec {
        let (Self::Queues(spec) | Self::Ports { spec, .. }) = self;
        spec
    }
}

/// All groups.
#[derive(Debug, Default)]
pub struct Groups {
    all: BTreeMap<u32, Group>,
    /// Buckets and their actions.
    parts: usize,
}

impl Groups {
    /// The group of that number.
    pub fn get(&self, number: u32) -> Option<&Group> {
        self.all.get(&number)
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.all.values()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Sets one up, exchanges it or takes it away; what was there.
    pub(super) fn put(&mut self, number: u32, group: Option<Group>) -> Option<Group> {
        self.parts += group.as_ref().map_or(0, |group| parts(&group.desc.buckets));
        let old = match group {
            Some(group) => self.all.insert(number, group),
            None => self.all.remove(&number),
        };
        self.parts -= old.as_ref().map_or(0, |old| parts(&old.desc.buckets));
        old
    }

    /// Whether there is no room for a group with these buckets.
    pub(super) fn is_full(&self, buckets: &[Bucket]) -> bool {
        self.parts + parts(buckets) > MOST_PARTS
    }
}

fn parts(buckets: &[Bucket]) -> usize {
    buckets.iter().map(|bucket| 1 + bucket.actions.len()).sum()
}

impl Group {
    /// A group as it was asked for, if it can be.
    pub(super) fn new(desc: GroupDesc, since: Duration, queues: u32, ports: &Ports<'_>) -> Result<Self, Refusal> {
        if desc.group > crate::wire::group::number::MAX {
            return Err(refused::INVALID_GROUP);
        }
        if desc.buckets.len() > MOST_BUCKETS {
            return Err(refused::OUT_OF_BUCKETS);
        }
        let actions = desc.buckets.iter().map(|bucket| bucket.actions.len());
        if actions.clone().sum::<usize>() > MOST_ACTIONS || actions.max().is_some_and(|most| most > MOST_ASKED) {
            return Err(crate::wire::error::action::TOO_MANY);
        }
        let chained = |bucket: &Bucket| bucket.actions.iter().any(|action| matches!(action, Action::Group(_)));
        if desc.buckets.iter().any(chained) {
            return Err(refused::CHAINING_UNSUPPORTED);
        }
        let mut spread = None;
        match desc.kind {
            kind::ALL => {}
            kind::INDIRECT if desc.buckets.len() == 1 => {}
            kind::INDIRECT => return Err(refused::INVALID_GROUP),
            // The datapath chooses by itself, and looks at ports only.
            kind::SELECT if desc.buckets.iter().any(watches_group) => return Err(refused::WATCH_UNSUPPORTED),
            kind::SELECT => {
                spread = match balance(&desc.buckets, ports) {
                    None => select(&desc.buckets, queues)?.map(Spread::Queues),
                    ports => ports,
                }
            }
            kind::FAST_FAILOVER => watched(&desc.buckets)?,
            _ => return Err(refused::BAD_TYPE),
        }
        let by_liveness = matches!(spread, Some(Spread::Ports { .. }));
        if desc.kind == kind::SELECT && !by_liveness && desc.buckets.iter().any(watches_other) {
            return Err(refused::WATCH_UNSUPPORTED);
        }
        if desc.kind != kind::SELECT && desc.buckets.iter().any(|bucket| bucket.weight > 1) {
            return Err(refused::WEIGHT_UNSUPPORTED);
        }
        Ok(Self { desc, since, spread })
    }

    /// The port that it chooses for a packet, if it chooses among ports.
    pub(super) fn port_of(&self, key: &Key) -> Option<u32> {
        let Some(Spread::Ports { spec, .. }) = &self.spread else { return None };
        let hash = HASH.as_ref()?.hash(key).unwrap_or(0) as usize;
        spec.table.get(hash & spec.table.len().checked_sub(1)?).map(|port| (*port).into())
    }

    /// Whether it is a group of the datapath.
    pub(super) fn spreads(&self) -> bool {
        self.spread.is_some()
    }

    /// The same over ports that are as they are now, if that makes a difference. One of which a port has gone stays as it is.
    pub(super) fn over(&self, ports: &Ports<'_>) -> Option<Self> {
        let spread = again(&self.desc.buckets, ports, self.spread.as_ref()?)?;
        Some(Self { spread: Some(spread), ..self.clone() })
    }

    /// The buckets that count, while these ports have somebody at the other end.
    pub(super) fn active(&self, live: &[u32]) -> &[Bucket] {
        let buckets = &self.desc.buckets;
        let alive = |bucket: &Bucket| {
            bucket.watch_port == number::LOCAL
                || super::fields::port_of(bucket.watch_port).is_some_and(|port| live.contains(&port))
        };
        match self.desc.kind {
            kind::FAST_FAILOVER => match buckets.iter().position(alive) {
                Some(first) => &buckets[first..=first],
                None => &[],
            },
            _ => buckets,
        }
    }
}

/// Whether a bucket is as alive as another group.
fn watches_group(bucket: &Bucket) -> bool {
    bucket.watch_group != crate::wire::group::number::ANY
}

/// Whether a bucket is as alive as a port to which it does not send: where it sends to that alone, nothing leaves while the port is down.
fn watches_other(bucket: &Bucket) -> bool {
    let sends_there = matches!(bucket.actions[..], [Action::Output { port, .. }] if port == bucket.watch_port);
    // The host is always there.
    let may_go = bucket.watch_port != number::LOCAL && super::fields::port_of(bucket.watch_port).is_some();
    may_go && !sends_there
}

/// Every bucket of a group that goes by liveness watches a port.
fn watched(buckets: &[Bucket]) -> Result<(), Refusal> {
    for bucket in buckets {
        if watches_group(bucket) {
            return Err(refused::WATCH_UNSUPPORTED);
        }
        if super::fields::port_of(bucket.watch_port).is_none() {
            return Err(refused::BAD_WATCH);
        }
    }
    Ok(())
}

/// What a group that selects is at the datapath: a table of queues, by weight. With one bucket, or none, there is nothing to select.
fn select(buckets: &[Bucket], queues: u32) -> Result<Option<GroupSpec>, Refusal> {
    let weighty: Vec<_> = buckets.iter().filter(|bucket| bucket.weight > 0).collect();
    let queue = |bucket: &&Bucket| match bucket.actions[..] {
        [Action::SetQueue(queue), Action::Output { port: number::LOCAL, .. }] if queue < queues => {
            u16::try_from(queue).ok()
        }
        _ => None,
    };
    let chosen: Option<Vec<u16>> = weighty.iter().map(queue).collect();
    match chosen {
        Some(chosen) if !chosen.is_empty() => {
            let weights: Vec<_> = weighty.iter().map(|bucket| bucket.weight).collect();
            Ok(Some(GroupSpec { table: table(&chosen, &weights), ..GroupSpec::spread(&MICROSOFT_KEY, 1, 1) }))
        }
        // The datapath selects among queues of the host, or among ports, and nothing else.
        _ if buckets.len() > 1 => Err(refused::BAD_BUCKET),
        _ => Ok(None),
    }
}

/// An indirection table in which each queue has its share, as nearly as its entries allow; at least one entry.
pub(super) fn table(queues: &[u16], weights: &[u16]) -> Vec<u16> {
    let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    let even = weights.windows(2).all(|pair| pair[0] == pair[1]);
    let len = if even { queues.len().next_power_of_two().clamp(128, MAX_TABLE) } else { MAX_TABLE };
    let mut had = vec![0u64; queues.len()];
    // Each entry goes to whoever has least of what is due so far.
    let due = |at: usize, had: &[u64]| had[at] * sum * 1000 / u64::from(weights[at]);
    (0..len)
        .map(|_| {
            let next = (0..queues.len()).min_by_key(|&at| due(at, &had)).unwrap_or(0);
            had[next] += 1;
            queues[next]
        })
        .collect()
}
