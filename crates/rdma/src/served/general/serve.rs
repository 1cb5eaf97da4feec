//! Queue pair 1 as the service and its programs use it.

use crate::cm::address::ServiceId;
use crate::number::{Moment, Qpn};
use crate::served::books::Amounts;
use crate::served::service::{Number, ServeError, Service};
use crate::transport::Origin;
use crate::wire::{Headers, Packet};
use crate::work::{Data, Request, Target};

/// A service more.
fn one_more() -> Amounts {
    Amounts { services: 1, ..Amounts::default() }
}

/// Ports before this one are for the owner of the card.
const FIRST_FREE_PORT: u16 = 1024;

impl Service {
    /// The lowest number that connections of a program may have, once it has a queue pair of the general service interface;
    /// [`ID_BITS`](super::ID_BITS) of it are its choice.
    pub fn first_id(&self, program: Number) -> Option<u32> {
        self.general.first_id(program)
    }

    /// Calls of that service are for this program. Those that have waited for it come at once.
    ///
    /// # Errors
    /// [`ServeError::Offered`]: they are another program's. [`ServeError::Reserved`]: a port below 1024, as for Linux's sockets. [`ServeError::Quota`], [`ServeError::Crowded`]; [`ServeError::Gone`] without a queue pair of
    /// the general service interface.
    pub fn offer(&mut self, now: Moment, program: Number, service: ServiceId) -> Result<(), ServeError> {
        if !self.general.offers(program, service)? {
            let is_reserved = service.is_of_port() && (1..FIRST_FREE_PORT).contains(&service.port());
            if is_reserved && !self.processes.get(program.0).ok_or(ServeError::Gone)?.owned.account.is_owner {
                return Err(ServeError::Reserved);
            }
            self.check_room(program, &one_more())?;
            self.general.offer(program, service);
            self.pay(program, &one_more());
        }
        while let Some((qpn, early)) = self.general.take_early(program, service) {
            let headers = Headers { destination: qpn, ..early.headers };
            self.engine.receive(now, &Packet { headers, payload: &early.payload }, &early.origin);
        }
        Ok(())
    }

    /// They are so no longer.
    pub fn withdraw(&mut self, program: Number, service: ServiceId) {
        if self.general.withdraw(program, service) {
            self.give_back(program, &one_more());
        }
    }

    /// A packet has come to queue pair 1.
    pub(in crate::served) fn receive_general(&mut self, now: Moment, packet: &Packet<'_>, from: &Origin) {
        if let Some(qpn) = self.general.receive(now, packet, from) {
            let headers = Headers { destination: qpn, ..packet.headers };
            self.engine.receive(now, &Packet { headers, payload: packet.payload }, from);
        }
    }

    /// What a program posts to its queue pair of the general service interface, in its own ring, so that what was looked at is what
    /// goes. What it may not say is lost on the way, as any datagram may be: then the target has number 0.
    pub(in crate::served) fn post_general(
        &mut self,
        now: Moment,
        program: Number,
        qpn: Qpn,
        request: &Request<'_>,
    ) -> Result<(), crate::engine::Error> {
        let Self { general, pairs, .. } = self;
        let has_pair = |qpn: Qpn| pairs.get(&qpn).is_some_and(|of| of.owner == program);
        let bytes = match request.data {
            Data::Inline([bytes]) if request.target.is_some_and(|target| target.qpn == Qpn::GENERAL) => *bytes,
            _ => &[],
        };
        if general.may_send(now, program, bytes, has_pair) {
            return self.engine.post_send(qpn, request);
        }
        let target = request.target.map(|target| Target { qpn: Qpn::new(0), ..*target });
        self.engine.post_send(qpn, &Request { target: target.as_ref(), data: Data::Inline(&[]), ..*request })
    }
}
