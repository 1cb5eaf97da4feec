//! From the network to the tunnel interface: what is taken off, and whether the policy lets in what comes out.

use millrace_ipsec::database::Database;
use millrace_ipsec::policy::Direction;
use millrace_ipsec::refusal::Way;
use millrace_port::tun::Tun;

use super::batch::{Batch, MOST};
use super::drops::{Drop, Drops};
use super::own::Own;
use super::sockets::Receiver;

/// What a turn works with.
pub(super) struct With<'a> {
    pub(super) tun: &'a Tun,
    pub(super) database: &'a mut Database,
    pub(super) own: &'a Own,
    pub(super) drops: &'a mut Drops,
    /// Seconds since 1970.
    pub(super) now: u64,
}

/// Takes what has come to a socket, at most one batch, and gives it to Linux; whether there may be more.
pub(super) fn turn(receiver: &mut Receiver, batch: &mut Batch, with: &mut With<'_>) -> bool {
    let came = receiver.receive(batch, with.drops);
    let is_full = came.len() == MOST;
    for (at, packet) in came.into_iter().enumerate() {
        let Some(packet) = packet else { continue };
        let place = batch.place(at);
        // The database has counted what it refuses.
        let Ok(Some((opened, handle))) = with.database.open(place, packet, 0, with.now) else { continue };
        let is_ours = with.own.has(opened.flow.destination);
        let direction = if is_ours { Direction::In } else { Direction::Forward };
        if with.database.check(direction, &opened.flow, Some(handle)).is_err() {
            continue;
        }
        if with.tun.send(&place[opened.packet]).is_err() {
            with.drops.count(Drop::InterfaceDown);
        }
    }
    is_full
}

/// Counters of the way in.
pub(super) fn packets(database: &Database) -> (u64, u64) {
    (database.counters().packets(Way::In), database.counters().bytes(Way::In))
}
