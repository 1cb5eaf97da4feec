//! From an event of Linux to the engine: first the epoch, which makes every rule that may be stale ask again, and then what takes longer.

use std::collections::BTreeMap;

use super::sessions::Sessions;
use super::sight::Sight;
use super::tell::Told;
use crate::engine::{self, Engine};
use crate::kernel::mirror::{Change, Move};

/// What has to be done after an event, when the epoch has moved: once for however many events.
#[derive(Debug, Default)]
pub struct After {
    /// Interfaces may have to be taken or left.
    pub settle: bool,
    /// Multicast routes may lead elsewhere.
    pub groups: bool,
    /// Settings are to be read again.
    pub settings: bool,
    /// The ruleset is.
    pub ruleset: bool,
    /// Policies are.
    pub policies: bool,
    /// Sessions of PPPoE are.
    pub sessions: bool,
    /// Everything is.
    pub everything: bool,
}

/// Epochs by what has moved them.
pub type Counts = BTreeMap<&'static str, u64>;

/// Does at once what an event of rtnetlink makes necessary.
///
/// `has_choice`: Linux chooses between next hops ([`Mirror::has_choice`](crate::kernel::mirror::Mirror)).
pub fn at_once(change: Change, has_choice: bool, engine: &Engine, counts: &mut Counts) {
    // With an interface, routes come and go of which no event tells: next hops of several that are dead or alive again.
    if matches!(change, Change::Link(_)) {
        engine.bump(if has_choice { engine::Change::Ruleset } else { engine::Change::Routes });
    }
    let (name, moved) = match change {
        Change::Routes => ("routes", Some(engine::Change::Routes)),
        Change::MarkedRoutes => ("routes", Some(engine::Change::Ruleset)),
        Change::Link(index) => ("link", Some(engine::Change::Device(index))),
        Change::RuledLink(_) | Change::PortVlans(_) => ("link", Some(engine::Change::Ruleset)),
        Change::Addresses(_) => ("addresses", Some(engine::Change::Ruleset)),
        Change::Neighbour(interface, mac) => ("neighbour", Some(engine::Change::Neighbour(interface, mac))),
        Change::Neighbours(interface) => ("neighbour", Some(engine::Change::Neighbours(interface))),
        Change::Shaping(_) => ("traffic-control", Some(engine::Change::Ruleset)),
        Change::Settings => ("settings", Some(engine::Change::Ruleset)),
        // Telling of them moves what leads there.
        Change::Station(..) => ("fdb", None),
        Change::Multicast => ("multicast", None),
    };
    if let Some(moved) = moved {
        engine.bump(moved);
    }
    *counts.entry(name).or_default() += 1;
}

/// Tells the engine what it did not know, and notes what is to be done later.
pub fn then(change: Change, sight: &Sight, sessions: &Sessions, told: &mut Told, engine: &Engine, after: &mut After) {
    let is_link = matches!(change, Change::Link(_) | Change::RuledLink(_));
    after.groups |= is_link || matches!(change, Change::Multicast | Change::Addresses(_) | Change::Settings);
    match change {
        Change::Link(index) | Change::RuledLink(index) | Change::PortVlans(index) => {
            (after.settle, after.sessions) = (true, true);
            report(told.device(index, sight, sessions, engine));
            // It may have a carrier again.
            report(engine.trust_again(index));
            // Its ports, if it is a bridge that begins to filter, or ends to.
            let ports = sight.mirror.links.values().filter(|link| link.master == Some(index)).map(|link| link.index);
            ports.for_each(|port| report(told.device(port, sight, sessions, engine)));
            if matches!(change, Change::PortVlans(_)) {
                // With or without a tag.
                let there = sight.mirror.stations.values().filter(|station| station.port == index);
                there.for_each(|station| told.station(station, Move::Here, sight, engine));
            }
        }
        Change::Station(station, moved) => told.station(&station, moved, sight, engine),
        Change::Shaping(_) => after.settle = true,
        Change::Settings => after.settings = true,
        Change::Routes
        | Change::MarkedRoutes
        | Change::Addresses(_)
        | Change::Neighbour(..)
        | Change::Neighbours(_)
        | Change::Multicast => {}
    }
}

/// What the engine does not take stays with Linux, for it does not know of it.
pub fn report(result: Result<(), engine::EngineError>) {
    if let Err(error) = result {
        tracing::warn!("{error}");
    }
}
