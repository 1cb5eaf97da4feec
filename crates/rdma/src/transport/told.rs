//! What a queue pair is told, and says about itself.

use super::{Attributes, Environment, Options, Query, QueuePair, State};
use crate::memory::Memory;
use crate::wire::Service;

/// The two bits of TOS and traffic class that say that marks of routers are understood: ECT(0) (RFC 3168).
const MARKABLE: u8 = 2;

impl QueuePair {
    /// Takes what it is told; all of it was checked.
    pub fn set(&mut self, told: &Attributes, options: &Options) {
        let config = &mut self.config;
        macro_rules! take {
            ($($name:ident),*) => {
                $(if let Some(value) = told.$name { config.$name = value; })*
            };
        }
        take!(access, qkey, path, remote, receive_psn, send_psn, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer);
        take!(timeout, retry_count, rnr_retry, notify_drained);
        if let Some(mtu) = told.path_mtu {
            config.mtu_shift = u32::from(mtu).ilog2();
        }
        if told.path.is_some() && options.rate_control {
            config.path.traffic_class = config.path.traffic_class & !3 | MARKABLE;
        }
    }

    /// Comes from one state to another.
    pub fn enter<M: Memory>(&mut self, env: &mut Environment<'_, M>, from: State, to: State) {
        match (from, to) {
            (_, State::Reset) => self.reset(env),
            (_, State::Error) => {
                self.config.state = to;
                self.responder.fall_silent();
                self.flush_all(env);
            }
            (State::Init, State::ReadyToReceive) => {
                self.config.is_alone = false;
                self.responder.begin(self.config.receive_psn, &self.config);
            }
            (State::ReadyToReceive, State::ReadyToSend) => self.requester.begin(self.config.send_psn, &self.config),
            (_, State::Drained) => {
                self.config.state = to;
                return self.look_drained(env);
            }
            _ => self.requester.refill(&self.config),
        }
        self.config.state = to;
    }

    /// What it is.
    pub fn query(&self) -> Query {
        let config = &self.config;
        let is_datagram = config.init.service == Service::UnreliableDatagram;
        let attributes = Attributes {
            state: Some(config.state),
            current_state: Some(config.state),
            access: Some(config.access),
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(config.qkey),
            path: (!is_datagram).then_some(config.path),
            path_mtu: Some(config.mtu() as u16),
            remote: Some(config.remote),
            receive_psn: Some(self.responder.expected()),
            send_psn: Some(self.requester.end()),
            max_rd_atomic: Some(config.max_rd_atomic),
            max_dest_rd_atomic: Some(config.max_dest_rd_atomic),
            min_rnr_timer: Some(config.min_rnr_timer),
            timeout: Some(config.timeout),
            retry_count: Some(config.retry_count),
            rnr_retry: Some(config.rnr_retry),
            notify_drained: Some(config.notify_drained),
        };
        let draining = config.state == State::Drained && self.requester.has_begun();
        Query { attributes, init: config.init, draining }
    }
}
