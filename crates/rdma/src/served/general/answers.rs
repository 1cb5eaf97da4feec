//! Answers to messages that are for nobody, until they go.

use crate::cm::message::{self, Bytes, GENERAL_QKEY, LEN, Message};
use crate::number::{Gid, Psn, Qpn};
use crate::transport::{Out, Sent};
use crate::wire::{Deth, Headers, Opcode, Path, Place, Service};
use std::collections::VecDeque;

/// Most that wait, and that go in one turn.
const MOST: usize = 256;
const IN_TURN: usize = 64;

/// Answers, and the number of the next datagram.
#[derive(Default)]
pub(in crate::served) struct Answers {
    waiting: VecDeque<(Path, Box<Bytes>)>,
    psn: Psn,
}

impl Answers {
    /// One more. Whether there was room.
    pub fn add(&mut self, path: Path, transaction: u64, message: &Message) -> bool {
        let has_room = self.waiting.len() < MOST;
        if has_room {
            self.waiting.push_back((path, Box::new(message::build(transaction, message))));
        }
        has_room
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends some of them. How many went, and how many had no room on the wire: nobody waits for that, and whoever has asked asks again.
    pub fn send<O: Out>(&mut self, own: &[Gid], out: &mut O) -> (usize, u64) {
        let (mut sent, mut lost) = (0, 0);
        while sent < IN_TURN
            && let Some((path, bytes)) = self.waiting.front()
        {
            let opcode = Opcode::Send { place: Place::Only, immediate: false, invalidate: false };
            let mut headers = Headers::new(Service::UnreliableDatagram, opcode, Qpn::GENERAL, self.psn);
            headers.deth = Some(Deth { qkey: GENERAL_QKEY, source: Qpn::GENERAL });
            let given = out.packet(path, Qpn::GENERAL, &headers, LEN, |to: &mut [u8]| {
                to.copy_from_slice(&bytes[..]);
                Ok(())
            });
            match given {
                Sent::Full | Sent::Busy if own.contains(&path.destination) => break,
                Sent::Full | Sent::Busy => lost += 1,
                Sent::Taken | Sent::Refused(_) => sent += 1,
            }
            self.waiting.pop_front();
            self.psn = self.psn.next();
        }
        (sent, lost)
    }
}
