//! States of a queue pair, and what it takes to come from one to another (volume 1, 10.3.1 and table 91).

use super::Attributes;
use crate::wire::Service;

/// States, in the numbers of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// It is made. Nothing can be posted.
    #[default]
    Reset = 0,
    /// Buffers can be posted. What comes is dropped.
    Init = 1,
    /// Ready to receive: what comes is answered.
    ReadyToReceive = 2,
    /// Ready to send: everything works.
    ReadyToSend = 3,
    /// Send queue drained: what has begun ends, and nothing new begins.
    Drained = 4,
    /// Send queue error: an unreliable one could not do a request. What comes is taken.
    SendError = 5,
    /// Everything has ended, or is ended at once.
    Error = 6,
}

/// Why attributes do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// There is no such way.
    #[error("no way leads from the state {from:?} to {to:?}")]
    Transition {
        /// The state it is in.
        from: State,
        /// The state it was to be in.
        to: State,
    },
    /// It is in another state than the caller thinks.
    #[error("the queue pair is in the state {0:?}: ask for its state, and begin from there")]
    OtherState(State),
    /// This must be said with it.
    #[error("{0} must be given for this transition")]
    Missing(&'static str),
    /// This cannot be said with it.
    #[error("{0} cannot be changed in this transition")]
    Extra(&'static str),
    /// It is out of its range.
    #[error("{0} is out of its range")]
    Range(&'static str),
}

const ACCESS: u32 = 1;
const PKEY: u32 = 1 << 1;
const PORT: u32 = 1 << 2;
const QKEY: u32 = 1 << 3;
const PATH: u32 = 1 << 4;
const MTU: u32 = 1 << 5;
const REMOTE: u32 = 1 << 6;
const RECEIVE_PSN: u32 = 1 << 7;
const SEND_PSN: u32 = 1 << 8;
const READS: u32 = 1 << 9;
const REMOTE_READS: u32 = 1 << 10;
const RNR_TIMER: u32 = 1 << 11;
const TIMEOUT: u32 = 1 << 12;
const RETRY: u32 = 1 << 13;
const RNR_RETRY: u32 = 1 << 14;
const NOTIFY: u32 = 1 << 15;
const CURRENT: u32 = 1 << 16;

const NAMES: [&str; 17] = [
    "access",
    "pkey_index",
    "port",
    "qkey",
    "path",
    "path_mtu",
    "remote",
    "receive_psn",
    "send_psn",
    "max_rd_atomic",
    "max_dest_rd_atomic",
    "min_rnr_timer",
    "timeout",
    "retry_count",
    "rnr_retry",
    "notify_drained",
    "current_state",
];

fn given(attributes: &Attributes) -> u32 {
    let a = attributes;
    [
        a.access.is_some(),
        a.pkey_index.is_some(),
        a.port.is_some(),
        a.qkey.is_some(),
        a.path.is_some(),
        a.path_mtu.is_some(),
        a.remote.is_some(),
        a.receive_psn.is_some(),
        a.send_psn.is_some(),
        a.max_rd_atomic.is_some(),
        a.max_dest_rd_atomic.is_some(),
        a.min_rnr_timer.is_some(),
        a.timeout.is_some(),
        a.retry_count.is_some(),
        a.rnr_retry.is_some(),
        a.notify_drained.is_some(),
        a.current_state.is_some(),
    ]
    .iter()
    .enumerate()
    .fold(0, |mask, (bit, is)| mask | u32::from(*is) << bit)
}

/// What must and what may be given.
fn rules(service: Service, from: State, to: State) -> Option<(u32, u32)> {
    use Service::{ReliableConnection as Rc, UnreliableConnection as Uc, UnreliableDatagram as Ud};
    use State::{Drained, Error, Init, ReadyToReceive, ReadyToSend, Reset, SendError};
    let key = if service == Ud { QKEY } else { ACCESS };
    Some(match (from, to, service) {
        (_, Reset | Error, _) => (0, CURRENT),
        (Reset, Init, _) => (PKEY | PORT | key, 0),
        (Init, Init, _) => (0, PKEY | PORT | key),
        (Init, ReadyToReceive, Ud) => (0, PKEY | QKEY),
        (Init, ReadyToReceive, Uc) => (PATH | MTU | REMOTE | RECEIVE_PSN, ACCESS | PKEY),
        (Init, ReadyToReceive, Rc) => (PATH | MTU | REMOTE | RECEIVE_PSN | REMOTE_READS | RNR_TIMER, ACCESS | PKEY),
        (ReadyToReceive, ReadyToSend, Ud) => (SEND_PSN, CURRENT | QKEY),
        (ReadyToReceive, ReadyToSend, Uc) => (SEND_PSN, CURRENT | ACCESS),
        (ReadyToReceive, ReadyToSend, Rc) => {
            (SEND_PSN | TIMEOUT | RETRY | RNR_RETRY | READS, CURRENT | ACCESS | RNR_TIMER)
        }
        (ReadyToSend, ReadyToSend, Rc) | (Drained, ReadyToSend, Rc) => (0, CURRENT | ACCESS | RNR_TIMER),
        (ReadyToSend, ReadyToSend, _) | (Drained, ReadyToSend, _) => (0, CURRENT | key),
        (ReadyToSend, Drained, _) => (0, CURRENT | NOTIFY),
        (Drained, Drained, Ud) => (0, PKEY | QKEY),
        (Drained, Drained, Uc) => (0, PATH | ACCESS | PKEY),
        (Drained, Drained, Rc) => {
            (0, PORT | PATH | TIMEOUT | RETRY | RNR_RETRY | READS | REMOTE_READS | ACCESS | PKEY | RNR_TIMER)
        }
        (SendError, ReadyToSend, Uc | Ud) => (0, CURRENT | key),
        _ => return None,
    })
}

/// Whether a queue pair in the state `from` may be told this.
pub(crate) fn check(service: Service, from: State, attributes: &Attributes) -> Result<State, Unfit> {
    if let Some(thought) = attributes.current_state
        && thought != from
    {
        return Err(Unfit::OtherState(from));
    }
    let to = attributes.state.unwrap_or(from);
    let (required, optional) = rules(service, from, to).ok_or(Unfit::Transition { from, to })?;
    let given = given(attributes);
    let named = |mask: u32| NAMES[mask.trailing_zeros() as usize];
    if required & !given != 0 {
        return Err(Unfit::Missing(named(required & !given)));
    }
    // The current state may always be told: all that it does was done above.
    let extra = given & !(required | optional | CURRENT);
    if extra != 0 {
        return Err(Unfit::Extra(named(extra)));
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [State; 7] = [
        State::Reset,
        State::Init,
        State::ReadyToReceive,
        State::ReadyToSend,
        State::Drained,
        State::SendError,
        State::Error,
    ];

    #[test]
    fn ways_between_states_are_those_of_the_specification() {
        let ways = |service| {
            let mut count = 0;
            for from in ALL {
                for to in ALL {
                    count += usize::from(rules(service, from, to).is_some());
                }
            }
            count
        };
        // Seven to RESET, seven to ERR, and those between the others.
        assert_eq!(ways(Service::ReliableConnection), 14 + 8);
        assert_eq!(ways(Service::UnreliableConnection), 14 + 9);
        assert_eq!(ways(Service::UnreliableDatagram), 14 + 9);
    }

    #[test]
    fn what_is_missing_or_too_much_is_named() {
        let service = Service::ReliableConnection;
        let mut told = Attributes::state(State::Init);
        assert_eq!(check(service, State::Reset, &told), Err(Unfit::Missing("access")));
        told.access = Some(crate::work::Access::default());
        (told.pkey_index, told.port) = (Some(0), Some(1));
        assert_eq!(check(service, State::Reset, &told), Ok(State::Init));
        told.qkey = Some(1);
        assert_eq!(check(service, State::Reset, &told), Err(Unfit::Extra("qkey")));
        told.current_state = Some(State::Error);
        assert_eq!(check(service, State::Reset, &told), Err(Unfit::OtherState(State::Reset)));
        let told = Attributes::state(State::ReadyToSend);
        let from = State::Init;
        assert_eq!(check(service, from, &told), Err(Unfit::Transition { from, to: State::ReadyToSend }));
    }
}
