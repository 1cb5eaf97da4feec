//! Sending datagrams: one packet is one message, to anybody (volume 1, 9.8.3).

use super::Requester;
use crate::memory::{Memory, Refused};
use crate::transport::{Config, Environment, Out, Sent, Step, pieces};
use crate::wire::{Deth, Headers, Opcode, Place, Service};
use crate::work::{Operation, Status};

impl Requester {
    /// Sends one datagram.
    pub fn datagram<M: Memory, O: Out>(&mut self, config: &Config, env: &mut Environment<'_, M>, out: &mut O) -> Step {
        let position = self.queue.first;
        let Some(slot) = self.queue.slot(position) else { return Step::Idle };
        let Some(target) = self.queue.target(position) else { return Step::Idle };
        let immediate = match slot.operation {
            Operation::SendImmediate(data) => Some(data),
            _ => None,
        };
        let opcode = Opcode::Send { place: Place::Only, immediate: immediate.is_some(), invalidate: false };
        let mut headers = Headers::new(Service::UnreliableDatagram, opcode, target.qpn, self.end);
        // With the highest bit set the sender's own key is meant (volume 1, 10.2.5).
        let qkey = if target.qkey >> 31 == 1 { config.qkey } else { target.qkey };
        headers.deth = Some(Deth { qkey, source: config.number() });
        (headers.immediate, headers.solicited) = (immediate, slot.solicited);
        let (len, queue, memory) = (slot.len as usize, &self.queue, &mut *env.memory);
        let sent = out.packet(&target.path, config.number(), &headers, len, |to: &mut [u8]| {
            if slot.inline {
                to.copy_from_slice(queue.inline(position).get(..to.len()).ok_or(Refused::Bounds)?);
                return Ok(());
            }
            pieces::gather(memory, config.asker, queue.pieces(position), 0, to)
        });
        match sent {
            Sent::Full => Step::Full,
            Sent::Busy => Step::Blocked,
            Sent::Taken => {
                env.counters.sent += 1;
                env.counters.sent_bytes += len as u64;
                self.end = self.end.next();
                self.una = self.end;
                self.end_first(config, env, Status::Success);
                Step::Sent
            }
            Sent::Refused(_) => {
                self.end_first(config, env, Status::LocalProtection);
                Step::Broken
            }
        }
    }
}
