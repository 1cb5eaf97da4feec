//! The way of frames, one burst at a time: from a TX ring or a port queue to where it goes.
//!
//! ```text
//!                          no rules                                  rules: `classify`
//! loopback    tx ring  -> MAC -> rx ring of the same index      |    tx ring    -> MAC -> stage -> classify -> targets
//! plugged     tx ring  -> MAC -> port queue                     |    the same; with rules for in_port=local: staged
//! plugged     port queue -> MAC -> its first rx ring            |    port queue -> MAC -> stage -> classify -> targets
//! connected   port queue -> MAC -> MAC -> other port queue      |    port queue -> MAC -> stage -> classify -> targets
//! ```
//!
//! * `send`: from TX rings. `loop_back`: those of a port that loops back. `receive`: from port queues. `patch`: from one port to another. `lent`: port queues that
//!   work on the pool of an application. `launches`: rings whose next frame has a time. `with_rules`: the same sources when there are rules. `scheduled`: from TX
//!   rings of a port with a schedule.

mod held;
mod launches;
mod lent;
mod loop_back;
mod patch;
mod receive;
mod scheduled;
mod send;
mod with_rules;

pub(super) use held::Held;
pub(crate) use launches::Launch;
pub(crate) use lent::lend;

use super::slots::TxSlot;
use super::state::Shard;
use crate::counters::Counts;
use crate::mac::MacLane;
use crate::turns::{Item, Look};
use millrace_ring::Served;

/// Frames taken from one source before the next has its turn.
pub(super) const BUDGET: usize = super::classify::BURST;

impl Shard {
    /// One burst from an item, if it has something. Returns what that is charged with, too.
    #[inline(always)]
    pub fn look(&mut self, item: Item) -> (Look, u32) {
        match item {
            Item::Ring(at) => self.look_at_ring(at as usize),
            Item::PortQueue(at) => self.look_at_port_queue(at as usize),
            Item::Crossing(from) => self.look_at_crossing(from as usize),
        }
    }

    /// A ring in which nothing was: what it will bring is asked for before it is there.
    #[inline(always)]
    pub fn anticipate(&self, item: Item) {
        if let Item::Ring(at) = item {
            self.tx[at as usize].anticipate();
        }
    }
}

/// Publishes what the MAC counted, then what the queue did: who sees that a frame has left the ring finds it counted.
/// Returns whether anything moved, and whether the TX queue stays active.
#[inline(always)]
fn end_of_burst(tx: &mut TxSlot, counts: &mut Counts, served: Served, mac: &mut MacLane) -> (bool, bool) {
    mac.publish();
    let moved = served.has_moved();
    (moved, tx.finish(counts, served, moved))
}
