//! Receiving datagrams, from anybody who has the queue key (volume 1, 9.8.3.3).

use super::Responder;
use crate::memory::Memory;
use crate::transport::{Config, Environment, Origin, pieces};
use crate::wire::{Opcode, Packet, Place};
use crate::work::{Completion, Ended, Extra, Status};

/// Bytes before a datagram in the receiver's buffer.
const GRH: usize = 40;

impl Responder {
    /// A datagram has come.
    pub fn datagram<M: Memory>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        packet: &Packet<'_>,
        origin: &Origin,
    ) {
        let Opcode::Send { place: Place::Only, invalidate: false, .. } = packet.headers.opcode else {
            env.counters.wrong_opcode += 1;
            return;
        };
        let Some(deth) = packet.headers.deth.filter(|deth| deth.qkey == config.qkey) else {
            env.counters.wrong_qkey += 1;
            return;
        };
        if packet.payload.len() > usize::from(env.options.datagram_mtu) {
            env.counters.too_long += 1;
            return;
        }
        if !self.take(config, env) {
            env.counters.no_buffer += 1;
            return;
        }
        let len = GRH + packet.payload.len();
        // What does not go in leaves the buffer to the next one: strangers must not be able to use buffers up.
        if len as u64 > self.taken.room {
            env.counters.too_long += 1;
            return;
        }
        let pieces = self.taken.pieces();
        let is_stored = pieces::scatter(env.memory, config.asker, pieces, 0, &origin.grh).is_ok()
            && pieces::scatter(env.memory, config.asker, pieces, GRH as u64, packet.payload).is_ok();
        if !is_stored {
            env.counters.not_stored += 1;
            return;
        }
        self.taken.in_use = false;
        let line = Completion {
            id: self.taken.id,
            status: Status::Success,
            ended: Ended::Receive,
            len: len as u32,
            extra: packet.headers.immediate.map_or(Extra::None, Extra::Immediate),
            qpn: config.number(),
            source: deth.source,
            has_grh: true,
            service_level: origin.service_level,
            solicited: packet.headers.solicited,
        };
        env.complete(config.init.receive_queue, line);
    }
}
