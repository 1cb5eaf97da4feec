//! Packets between two programs of one card: they leave the engine and come back to it.

use super::general::General;
use crate::memory::Refused;
use crate::number::{Gid, Qpn};
use crate::transport::{Origin, Out, Sent};
use crate::wire::{Deth, Headers, Path, Prepared, Service};
use std::collections::VecDeque;

/// Packets that wait at most.
const MOST: usize = 256;

/// A packet on its way.
pub(super) struct Letter {
    pub headers: Headers,
    /// The queue pair that has sent it: the engine itself says so.
    pub source: Qpn,
    pub origin: Origin,
    pub payload: Vec<u8>,
}

/// Packets that wait, and buffers of those that were taken.
#[derive(Default)]
pub(super) struct Mailbox {
    waiting: VecDeque<Letter>,
    spare: Vec<Vec<u8>>,
}

impl Mailbox {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn take(&mut self) -> Option<Letter> {
        self.waiting.pop_front()
    }

    /// The buffer is used again.
    pub fn give_back(&mut self, letter: Letter) {
        self.spare.push(letter.payload);
    }
}

/// What would stand before a datagram if it had come in a frame. Zeros for one that no frame could be made of.
fn route(path: &Path, headers: &Headers, len: usize) -> [u8; 40] {
    Prepared::new(path).ok().and_then(|prepared| prepared.route(headers, len)).unwrap_or([0; 40])
}

/// Takes what is for this address itself; all else goes on.
pub(super) struct Switch<'a, O> {
    pub own: &'a [Gid],
    pub general: &'a General,
    pub mailbox: &'a mut Mailbox,
    pub wire: &'a mut O,
    /// There was no room on the wire.
    pub is_blocked: bool,
}

impl<O: Out> Out for Switch<'_, O> {
    fn packet<F>(&mut self, path: &Path, source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        let is_datagram = headers.service == Service::UnreliableDatagram;
        let mut headers = *headers;
        // Others see queue pair 1, whose number is none of the engine's.
        if is_datagram && self.general.is_one(source) {
            if headers.destination != Qpn::GENERAL {
                return Sent::Taken;
            }
            headers.deth = headers.deth.map(|deth| Deth { source: Qpn::GENERAL, ..deth });
        }
        let headers = &headers;
        if !self.own.contains(&path.destination) {
            let sent = self.wire.packet(path, source, headers, len, fill);
            self.is_blocked |= sent == Sent::Busy;
            return sent;
        }
        if self.mailbox.waiting.len() >= MOST {
            return Sent::Busy;
        }
        let mut payload = self.mailbox.spare.pop().unwrap_or_default();
        payload.resize(len, 0);
        if let Err(refused) = fill(&mut payload) {
            self.mailbox.spare.push(payload);
            return Sent::Refused(refused);
        }
        let grh = if is_datagram { route(path, headers, len) } else { [0; 40] };
        let origin = Origin { path: path.reversed(), grh, congested: false, service_level: path.service_level() };
        self.mailbox.waiting.push_back(Letter { headers: *headers, source, origin, payload });
        Sent::Taken
    }
}
