//! Messages that are for no program of this card: they are answered as an end answers that knows nothing of it (decision 60).

use crate::cm::address::ServiceId;
use crate::cm::message::{DisconnectReply, Message, Rejection, ServiceReply, parse, reason, service_status};
use crate::number::{Gid, Moment};
use crate::transport::Origin;
use crate::wire::Headers;
use core::time::Duration;
use std::collections::VecDeque;

/// Calls of services that nobody offers yet, at most.
const MOST_EARLY: usize = 64;
/// The same, of one other end, or of one program of this card.
const MOST_OF_ONE: usize = 8;
/// How long they wait for somebody who does.
const GRACE: Duration = Duration::from_millis(500);

/// A call of a service that nobody offers yet.
pub(in crate::served) struct Early {
    until: Moment,
    service: ServiceId,
    caller: Caller,
    /// Number of the connection there.
    id: u32,
    pub headers: Headers,
    pub payload: Vec<u8>,
    pub origin: Origin,
}

/// Who calls: an address, and which of the programs that share that of this card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller(pub Gid, pub u32);

/// What becomes of a message that is for nobody.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it does not live long")]
pub(super) enum Fate {
    /// It is answered.
    Answer(u64, Message),
    /// It waits for somebody who offers what it calls.
    Waits,
    /// It was there before.
    Duplicate,
    /// It is about a connection that there is not, and nobody waits for an answer.
    Unknown,
}

/// Calls that wait.
#[derive(Default)]
pub(super) struct Nobody {
    early: VecDeque<Early>,
}

impl Nobody {
    /// What becomes of a message.
    pub fn receive(&mut self, now: Moment, caller: Caller, headers: &Headers, payload: &[u8], origin: &Origin) -> Fate {
        let Ok((transaction, message)) = parse(payload) else { return Fate::Unknown };
        match message {
            Message::Request(request) => {
                let id = request.local_id;
                if self.early.iter().any(|one| one.caller == caller && one.id == id) {
                    return Fate::Duplicate;
                }
                let of_one = self.early.iter().filter(|one| one.caller == caller).count();
                if of_one >= MOST_OF_ONE || self.early.len() >= MOST_EARLY {
                    return Fate::Answer(transaction, refusal(id, 0, reason::INVALID_SERVICE));
                }
                let (until, service, payload) = (now + GRACE, ServiceId(request.service), payload.to_vec());
                let (headers, origin) = (*headers, *origin);
                self.early.push_back(Early { until, service, caller, id, headers, payload, origin });
                Fate::Waits
            }
            Message::Reply(reply) => Fate::Answer(transaction, refusal(reply.local_id, 1, reason::INVALID_ID)),
            Message::DisconnectRequest(request) => {
                let (local_id, remote_id) = (request.remote_id, request.local_id);
                let reply = DisconnectReply { local_id, remote_id, ..DisconnectReply::empty() };
                Fate::Answer(transaction, reply.into())
            }
            Message::ServiceRequest(request) => {
                let (request_id, service) = (request.request_id, request.service);
                let status = service_status::UNSUPPORTED;
                Fate::Answer(transaction, ServiceReply { request_id, status, service, ..ServiceReply::empty() }.into())
            }
            Message::Postponement(_)
            | Message::Rejection(_)
            | Message::Ready(_)
            | Message::DisconnectReply(_)
            | Message::ServiceReply(_) => Fate::Unknown,
        }
    }

    /// Its sender has taken a call back. Whether it waited here.
    pub fn take_back(&mut self, caller: Caller, id: u32) -> bool {
        let before = self.early.len();
        self.early.retain(|one| one.caller != caller || one.id != id);
        self.early.len() < before
    }

    /// A call of a service that is offered from now on.
    pub fn take(&mut self, service: ServiceId) -> Option<Early> {
        let at = self.early.iter().position(|one| one.service == service)?;
        self.early.remove(at)
    }

    /// A call that has waited long enough, and its refusal.
    pub fn expire(&mut self, now: Moment) -> Option<(Origin, u64, Message)> {
        let early = self.early.pop_front_if(|early| early.until <= now)?;
        let (transaction, _) = parse(&early.payload).ok()?;
        Some((early.origin, transaction, refusal(early.id, 0, reason::INVALID_SERVICE)))
    }

    /// When a call has waited long enough.
    pub fn next_due(&self) -> Option<Moment> {
        self.early.front().map(|early| early.until)
    }
}

fn refusal(remote_id: u32, about: u8, reason: u16) -> Message {
    Rejection { remote_id, about, reason, ..Rejection::empty() }.into()
}
