//! Groups that select among ports: which flows have which, and that those of a port that goes down go to the others.

use super::fields::port_of;
use super::groups::{MOST_BUCKETS, Spread, table};
use crate::wire::action::Action;
use crate::wire::group::Bucket;
use crate::wire::port::number;
use millrace_flow::rss::{GroupSpec, MAX_TABLE, MICROSOFT_KEY};
use std::sync::LazyLock;

/// Ports of the datapath; tunnels are not among them.
pub(super) struct Ports<'a> {
    pub all: &'a [u32],
    /// Those with somebody at the other end.
    pub live: &'a [u32],
    /// Those where nothing goes out.
    pub closed: &'a [u32],
}

/// What a group that selects among ports is at the datapath: a table of ports, by weight. Buckets do nothing else than to send out of a port, but for
/// those without weight, which nobody gets; of one alone there is nothing to select.
pub(super) fn balance(buckets: &[Bucket], ports: &Ports<'_>) -> Option<Spread> {
    let shares = shares(buckets, ports).filter(|shares| !shares.is_empty() && buckets.len() > 1)?;
    let weights: Vec<_> = shares.iter().map(|share| share.weight).collect();
    let numbers: Vec<u16> = (0..shares.len() as u16).collect();
    let due = table(&numbers, &weights);
    let spec = GroupSpec { table: Vec::new(), ..GroupSpec::spread(&MICROSOFT_KEY, 1, 1) };
    Some(over(&shares, due, spec))
}

/// The same over ports that are as they are now, if other shares are alive than were: then their table is another. If one of its ports has gone, it
/// stays as it is. Ports change often, and many groups may have to follow: what was made of the weights is used again.
pub(super) fn again(buckets: &[Bucket], ports: &Ports<'_>, before: &Spread) -> Option<Spread> {
    let Spread::Ports { spec, due, alive } = before else { return None };
    let shares = shares(buckets, ports)?;
    let is_same = shares.iter().map(|share| share.is_alive).eq(alive.iter().copied());
    (!is_same).then(|| over(&shares, due.clone(), spec.clone()))
}

/// A table in which those that are alive stand in for the others. `due`: whose each entry is, by its place in `shares`.
fn over(shares: &[Share], due: Vec<u16>, spec: GroupSpec) -> Spread {
    let port = |(at, place): (usize, &u16)| shares[stands_in(at, usize::from(*place), shares)].port;
    let table = due.iter().enumerate().map(port).collect();
    Spread::Ports { spec: GroupSpec { table, ..spec }, due, alive: shares.iter().map(|share| share.is_alive).collect() }
}

/// The buckets with weight; `None`, if one of them does something else than to send out of a port that is there.
fn shares(buckets: &[Bucket], ports: &Ports<'_>) -> Option<Vec<Share>> {
    let port = |bucket: &Bucket| match bucket.actions[..] {
        [Action::Output { port, .. }] => port_of(port).filter(|port| ports.all.contains(port)),
        _ => None,
    };
    let is_alive = |port| ports.live.contains(&port) && !ports.closed.contains(&port);
    let share = |bucket: &Bucket| {
        let port = port(bucket)?;
        // The host is always there.
        let watched = bucket.watch_port == number::LOCAL || port_of(bucket.watch_port).is_none_or(is_alive);
        Some(Share { port: port.try_into().ok()?, weight: bucket.weight, is_alive: watched && is_alive(port) })
    };
    buckets.iter().filter(|bucket| bucket.weight > 0).map(share).collect()
}

/// A port among which a group selects.
struct Share {
    port: u16,
    weight: u16,
    is_alive: bool,
}

/// Who has an entry of the table that is `place`'s, while that is not alive: of those that are, the one with the highest score there (weighted
/// rendezvous hashing; Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005). So only the flows of a port that goes are moved, and they
/// are spread over all others. If none is alive, it makes no difference.
fn stands_in(at: usize, place: usize, shares: &[Share]) -> usize {
    if shares[place].is_alive {
        return place;
    }
    let score = |other: usize| -f64::from(shares[other].weight) / log_of_even(at, other);
    let alive = (0..shares.len()).filter(|other| shares[*other].is_alive).map(|other| (score(other), other));
    alive.max_by(|(one, _), (other, _)| one.total_cmp(other)).map_or(place, |(_, other)| other)
}

/// The logarithm of [`even`]. It is the same for all groups, and takes long: they are made once, a megabyte of them.
fn log_of_even(one: usize, other: usize) -> f64 {
    static ALL: LazyLock<Vec<f64>> = LazyLock::new(|| {
        let all = (0..MAX_TABLE).flat_map(|one| (0..MOST_BUCKETS).map(move |other| even(one, other).ln()));
        all.collect()
    });
    ALL[one * MOST_BUCKETS + other]
}

/// A number between 0 and 1 that is always the same for two others, and as if it were random (the finalizer of SplitMix64).
fn even(one: usize, other: usize) -> f64 {
    let mut mixed = ((one as u64) << 32 | other as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64 + f64::MIN_POSITIVE
}
