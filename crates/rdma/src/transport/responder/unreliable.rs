//! Requests of unreliable connections: what does not fit is dropped, with the rest of its message (volume 1, 9.8.3).

use super::execute::Verdict;
use super::{Message, Responder};
use crate::memory::Memory;
use crate::transport::{Config, Environment};
use crate::wire::{Opcode, Packet, Syndrome};
use crate::work::Status;

impl Responder {
    /// A request has come. Nothing is answered.
    pub fn unreliable<M: Memory>(&mut self, config: &Config, env: &mut Environment<'_, M>, packet: &Packet<'_>) {
        let headers = &packet.headers;
        let place = match headers.opcode {
            Opcode::Send { place, invalidate: false, .. } | Opcode::Write { place, .. } => place,
            _ => {
                env.counters.wrong_opcode += 1;
                return;
            }
        };
        let is_next = headers.psn == self.expected;
        self.expected = headers.psn.next();
        if !is_next || place.begins() {
            // What was lost was the rest of the message that was coming; its buffer is for the next one.
            self.message = Message::None;
        }
        if !place.begins() && self.message == Message::None {
            env.counters.incomplete_message += 1;
            return;
        }
        let verdict = match headers.opcode {
            Opcode::Send { .. } => self.store_send(config, env, place, packet),
            _ => self.store_write(config, env, place, packet),
        };
        match verdict {
            Verdict::Done(_) => return,
            Verdict::NoBuffer => env.counters.no_buffer += 1,
            Verdict::Refused(_, Status::LocalLength) => env.counters.too_long += 1,
            Verdict::Refused(Syndrome::InvalidRequest, _) => env.counters.incomplete_message += 1,
            Verdict::Refused(..) => env.counters.not_stored += 1,
        }
        self.message = Message::None;
    }
}
