//! Answers that come when nobody waits for them any more: what their requests have made is taken over, or undone.

use crate::Address;
use crate::message::{Message, Request, read_pair};
use crate::transport::{Granted, Grants};
use millrace_dma::Iova;
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::number::Key;
use millrace_served::wire;
use std::collections::{HashMap, VecDeque};

/// What a request makes or ends at the backend whose answer was given up.
pub(crate) enum Late {
    Connect(Address),
    Disconnect(Address),
    Release(Iova),
    Grant(Granted),
    /// In that memory; which is given back, too, if nobody is to have it.
    Register(Iova, bool),
    CreateDomain,
    CreateQueue,
}

/// What an endpoint has to know.
pub(crate) enum Heard {
    /// The backend has told it unasked, or it is the late answer to a request for a connection.
    Told(Message),
    /// This side has ended the connection with that one, and the answer came late.
    Disconnected(Address),
}

impl Late {
    /// Of a request; of memory, whoever has it says so.
    pub fn of(request: &Request) -> Option<Self> {
        Some(match request {
            Request::Connect(other) => Self::Connect(*other),
            Request::Disconnect(other) => Self::Disconnect(*other),
            Request::Release(at) => Self::Release(*at),
            Request::Register { at, .. } => Self::Register(*at, false),
            Request::CreateQueue(..) => Self::CreateQueue,
            Request::Engine(wire::Request::CreateDomain) => Self::CreateDomain,
            _ => return None,
        })
    }

    /// It was answered. What is to be heard of that; what is to be undone goes to `undo`.
    pub fn settle(
        self,
        answer: &Result<Vec<u64>, i32>,
        (shares, grants): (&mut HashMap<u64, Granted>, &mut (dyn Grants + 'static)),
        undo: &mut VecDeque<Request>,
    ) -> Option<Heard> {
        let first = answer.as_ref().ok().and_then(|words| u32::try_from(*words.first()?).ok());
        match (self, answer) {
            (Self::Connect(other), Ok(words)) => {
                let (qpn, granted) = read_pair(words)?;
                return Some(Heard::Told(Message::Connected(other, qpn, granted)));
            }
            (Self::Disconnect(other), Ok(_)) => return Some(Heard::Disconnected(other)),
            (Self::Release(at), Ok(_)) => shares.remove(&at.get()).into_iter().for_each(|granted| grants.end(granted)),
            (Self::Grant(granted), Ok(words)) => {
                let at = words.get(1).copied().unwrap_or(0);
                shares.insert(at, granted);
                undo.push_back(Request::Release(Iova::new(at)));
            }
            // It was not mapped.
            (Self::Grant(granted), Err(_)) => grants.end(granted),
            (Self::Register(at, is_abandoned), _) => {
                undo.extend(first.map(|key| Request::Engine(wire::Request::Deregister(Key::new(key)))));
                undo.extend(is_abandoned.then_some(Request::Release(at)));
            }
            (Self::CreateDomain, _) => {
                let destroy = |domain| wire::Request::DestroyDomain(ProtectionDomain(domain));
                undo.extend(first.map(|domain| Request::Engine(destroy(domain))));
            }
            (Self::CreateQueue, _) => {
                undo.extend(first.map(|queue| Request::Engine(wire::Request::DestroyQueue(queue))));
            }
            (Self::Connect(_) | Self::Disconnect(_) | Self::Release(_), Err(_)) => {}
        }
        None
    }
}
