//! Groups that select among ports: which flows have which, and that those of a port that goes down go to the others.

use super::fields::port_of;
use super::groups::{Spread, table};
use crate::wire::action::Action;
use crate::wire::group::Bucket;
use millrace_flow::rss::{GroupSpec, MICROSOFT_KEY};

/// Ports of the datapath; tunnels are not among them.
pub(super) struct Ports<'a> {
    pub all: &'a [u32],
    /// Those with somebody at the other end.
    pub live: &'a [u32],
    /// Those where nothing goes out.
    pub closed: &'a [u32],
}

/// What a group that selects among ports is at the datapath: a table of ports, by weight. Buckets do nothing else than to send out of a port; of one
/// alone there is nothing to select.
pub(super) fn balance(buckets: &[Bucket], ports: &Ports<'_>) -> Option<Spread> {
    let port = |bucket: &Bucket| match bucket.actions[..] {
        [Action::Output { port, .. }] => port_of(port).filter(|port| ports.all.contains(port)),
        _ => None,
    };
    let weighty = buckets.iter().filter(|bucket| bucket.weight > 0);
    let shares: Option<Vec<Share>> = weighty
        .map(|bucket| {
            let port = port(bucket)?;
            let is_alive = |port| ports.live.contains(&port) && !ports.closed.contains(&port);
            let watched = port_of(bucket.watch_port).is_none_or(is_alive);
            Some(Share { port: port.try_into().ok()?, weight: bucket.weight, is_alive: watched && is_alive(port) })
        })
        .collect();
    let shares = shares.filter(|shares| shares.len() > 1)?;
    let numbers: Vec<u16> = shares.iter().map(|share| share.port).collect();
    let weights: Vec<_> = shares.iter().map(|share| share.weight).collect();
    let places: Vec<u16> = (0..shares.len() as u16).collect();
    let table = table(&places, &weights).into_iter().enumerate();
    let table = table.map(|(at, place)| numbers[stands_in(at, usize::from(place), &shares)]).collect();
    let spec = GroupSpec { table, ..GroupSpec::spread(&MICROSOFT_KEY, 1, 1) };
    Some(Spread::Ports { spec, is_alive: shares.iter().any(|share| share.is_alive) })
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
    let score = |other: usize| -f64::from(shares[other].weight) / even(at, other).ln();
    let alive = (0..shares.len()).filter(|other| shares[*other].is_alive);
    alive.max_by(|one, other| score(*one).total_cmp(&score(*other))).unwrap_or(place)
}

/// A number between 0 and 1 that is always the same for two others, and as if it were random (the finalizer of SplitMix64).
fn even(one: usize, other: usize) -> f64 {
    let mut mixed = ((one as u64) << 32 | other as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64 + f64::MIN_POSITIVE
}
