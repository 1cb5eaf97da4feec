//! Queue pairs: made, told, asked, destroyed.

use super::{Engine, Error, Event, Leftover};
use crate::memory::Memory;
use crate::number::{Moment, Qpn};
use crate::transport::{
    Attributes, Capabilities, Config, Init, Query, QueuePair, Requester, Responder, State, check_attributes,
};
use crate::wire::{Format, Path, Service};
use crate::work::{ReceiveQueue, SendQueue, Taken};

impl<M: Memory> Engine<M> {
    /// A queue pair in the state RESET: its number, and how much room it has.
    ///
    /// # Errors
    /// One of the objects that it is to use does not exist, a capability is above its limit, or there are as many queue pairs as
    /// there may be.
    pub fn create_qp(&mut self, init: &Init) -> Result<(Qpn, Capabilities), Error> {
        self.create_qp_of(0, init)
    }

    /// The same for one of several programs, each of which has a number below the number of programs: they send in turn, however many
    /// queue pairs one of them has.
    ///
    /// # Errors
    /// The same.
    pub fn create_qp_of(&mut self, group: u32, init: &Init) -> Result<(Qpn, Capabilities), Error> {
        let granted = self.grant(init)?;
        self.queue(init.send_queue)?;
        self.queue(init.receive_queue)?;
        self.use_domain(init.domain)?;
        let is_datagram = init.service == Service::UnreliableDatagram;
        if init.general && !is_datagram {
            return Err(Error::Operation);
        }
        let mut taken_pieces = granted.receive_pieces as usize;
        if let Some(srq) = init.shared_receive_queue {
            taken_pieces = self.shared(srq)?.queue.stride();
        }
        if self.pairs.len() >= self.options.max_queue_pairs as usize {
            return Err(Error::Limit("queue pairs"));
        }
        let slot = self.pairs.vacant_key() as u32;
        let number = if init.general { self.numbers.give_general(slot) } else { self.numbers.give(slot) };
        let number = number.ok_or(if init.general {
            Error::Busy("number of the general service interface")
        } else {
            Error::Limit("queue pair numbers")
        })?;
        let send = SendQueue::new(granted.send_requests, granted.send_pieces, granted.inline, is_datagram);
        let receive = ReceiveQueue::new(granted.receive_requests, granted.receive_pieces);
        self.turns.know(group);
        let config = Config::new(number, init, granted);
        let (requester, responder) = (Requester::new(send), Responder::new(receive, Taken::new(taken_pieces)));
        let pair = QueuePair::new(config, group, requester, responder);
        self.pairs.insert(Box::new(pair));
        self.queue(init.send_queue)?.users.push(slot);
        self.queue(init.receive_queue)?.users.push(slot);
        *self.use_domain(init.domain)? += 1;
        if let Some(srq) = init.shared_receive_queue {
            self.shared(srq)?.users += 1;
        }
        Ok((number, granted))
    }

    fn grant(&self, init: &Init) -> Result<Capabilities, Error> {
        let (wanted, options) = (init.capabilities, &self.options);
        if wanted.send_requests > options.max_requests || wanted.receive_requests > options.max_requests {
            return Err(Error::Range("requests"));
        }
        if wanted.send_pieces > options.max_pieces || wanted.receive_pieces > options.max_pieces {
            return Err(Error::Range("pieces"));
        }
        if wanted.inline > options.max_inline {
            return Err(Error::Range("inline"));
        }
        let has_own = init.shared_receive_queue.is_none();
        Ok(Capabilities {
            send_pieces: wanted.send_pieces.max(1),
            receive_requests: if has_own { wanted.receive_requests } else { 0 },
            receive_pieces: if has_own { wanted.receive_pieces.max(1) } else { 0 },
            ..wanted
        })
    }

    /// Tells a queue pair something, and brings it into another state (volume 1, 10.3.1). The state that it is in now.
    ///
    /// # Errors
    /// There is no such queue pair, or the attributes do not fit; then nothing has changed.
    pub fn modify_qp(&mut self, qpn: Qpn, attributes: &Attributes) -> Result<State, Error> {
        let slot = self.slot(qpn)?;
        let pair = self.pairs.get(slot as usize).ok_or(Error::Missing("queue pair"))?;
        let from = pair.config.state;
        let to = check_attributes(pair.config.init.service, from, attributes)?;
        self.check_ranges(attributes, pair.config.path.format)?;
        let (pairs, mut env) = self.split(Moment::new(0));
        let Some(pair) = pairs.get_mut(slot as usize) else { return Err(Error::Missing("queue pair")) };
        let before = pair.config.remote;
        pair.set(attributes, env.options);
        let remote = pair.config.remote;
        pair.kept = None;
        // Nobody comes by the old connection while it changes.
        pair.hide(env.memory);
        pair.enter(&mut env, from, to);
        pair.show(env.memory);
        self.numbers.rename(before, remote);
        self.fail_overrun(Moment::new(0));
        if to == State::Reset {
            self.forget_lines(qpn);
            self.timers.remove(slot);
        }
        self.schedule(slot);
        Ok(self.pairs.get(slot as usize).map_or(to, |pair| pair.config.state))
    }

    fn check_ranges(&self, attributes: &Attributes, format: Format) -> Result<(), Error> {
        let a = attributes;
        let format = a.path.map_or(format, |path| path.format);
        let mtu_fits = match a.path_mtu {
            None | Some(256 | 512 | 1024 | 2048 | 4096) => true,
            Some(8192) => format == Format::Slurpoe,
            Some(_) => false,
        };
        let checks = [
            (mtu_fits, "path_mtu"),
            (a.pkey_index.is_none_or(|index| index == 0), "pkey_index"),
            (a.port.is_none_or(|port| port == 1), "port"),
            (a.max_rd_atomic.is_none_or(|count| count <= self.options.max_rd_atomic), "max_rd_atomic"),
            (a.max_dest_rd_atomic.is_none_or(|count| count <= self.options.max_rd_atomic), "max_dest_rd_atomic"),
            (a.min_rnr_timer.is_none_or(|code| code < 32), "min_rnr_timer"),
            (a.timeout.is_none_or(|code| code < 32), "timeout"),
            (a.retry_count.is_none_or(|count| count < 8), "retry_count"),
            (a.rnr_retry.is_none_or(|count| count < 8), "rnr_retry"),
        ];
        match checks.iter().find(|(fits, _)| !fits) {
            Some((_, name)) => Err(Error::Unfit(crate::transport::Unfit::Range(name))),
            None => Ok(()),
        }
    }

    /// What a queue pair is.
    ///
    /// # Errors
    /// There is no such queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Result<Query, Error> {
        let slot = self.slot(qpn)?;
        self.pairs.get(slot as usize).map(|pair| pair.query()).ok_or(Error::Missing("queue pair"))
    }

    /// The next packet of a connection acknowledges once more what has been taken. Whoever destroys a queue pair says so first: the last
    /// acknowledgement may have been lost, and then the other end asks somebody who is not there any more, until its
    /// retries are over. Returns whether there is anything to be said.
    pub fn acknowledge_again(&mut self, qpn: Qpn) -> bool {
        let Some(slot) = self.numbers.slot(qpn) else { return false };
        let has_taken = self.pairs.get_mut(slot as usize).is_some_and(|pair| pair.acknowledge_again());
        if has_taken {
            self.schedule(slot);
        }
        has_taken
    }

    /// Ends a queue pair. Its requests are not told of any more, and its lines in completion queues are gone, unless
    /// [`Options::lists_filled`](super::Options::lists_filled) says that they stay.
    ///
    /// # Errors
    /// There is no such queue pair.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), Error> {
        self.take_qp(qpn).map(drop)
    }

    /// The same. To drop what is left of it takes as long as there is memory: that need not be here and now.
    ///
    /// # Errors
    /// As [`Engine::destroy_qp`].
    pub fn take_qp(&mut self, qpn: Qpn) -> Result<Leftover, Error> {
        let slot = self.slot(qpn)?;
        let mut pair = self.pairs.try_remove(slot as usize).ok_or(Error::Missing("queue pair"))?;
        pair.hide(&mut self.memory);
        pair.responder.reset(&mut self.pool);
        self.numbers.take_back(qpn);
        self.numbers.rename(pair.config.remote, Qpn::default());
        self.timers.remove(slot);
        self.turns.remove(pair.group, slot);
        let init = pair.config.init;
        for cq in [init.send_queue, init.receive_queue] {
            self.queue(cq)?.users.retain(|user| *user != slot);
        }
        *self.use_domain(init.domain)? -= 1;
        if let Some(srq) = init.shared_receive_queue {
            self.shared(srq)?.users -= 1;
        }
        // To look for them takes as long as there are lines.
        for cq in [init.send_queue, init.receive_queue] {
            if !self.options.lists_filled {
                self.queue(cq)?.forget(|line| line.qpn == qpn);
            }
        }
        self.events.forget(|event| of_pair(event) == Some(qpn));
        Ok(pair)
    }

    /// The process has ended to which these ways lead: requests on their way to it, and all later ones, end with
    /// [`Status::RetryExceeded`](crate::work::Status::RetryExceeded) without its being asked again.
    pub fn lose(&mut self, now: Moment, is_there: impl Fn(&Path) -> bool) {
        let (pairs, mut env) = self.split(now);
        for (_, pair) in pairs.iter_mut().filter(|(_, pair)| is_there(&pair.config.path)) {
            pair.lose(&mut env);
        }
        self.fail_overrun(now);
    }

    /// The same of one queue pair, if it is lost by its way and the queue pair at its other end: several processes have one address.
    pub fn lose_pair(&mut self, now: Moment, qpn: Qpn, is_there: impl Fn(&Path, Qpn) -> bool) {
        let Some(slot) = self.numbers.slot(qpn) else { return };
        let (pairs, mut env) = self.split(now);
        let Some(pair) = pairs.get_mut(slot as usize) else { return };
        if is_there(&pair.config.path, pair.config.remote) {
            pair.lose(&mut env);
            self.fail_overrun(now);
        }
    }

    /// The other end has asked without packets, again and again, for what it has no access to: the queue pair fails as if one of these
    /// had come as a packet.
    pub fn refuse_access(&mut self, now: Moment, qpn: Qpn) {
        let Some(slot) = self.numbers.slot(qpn) else { return };
        let (pairs, mut env) = self.split(now);
        let Some(pair) = pairs.get_mut(slot as usize) else { return };
        // Of unreliable connections what is refused is dropped, however often (volume 1, 9.8.3).
        let is_reliable = pair.config.init.service == Service::ReliableConnection;
        if !is_reliable || matches!(pair.config.state, State::Reset | State::Init | State::Error) {
            return;
        }
        pair.responder.refuse_access(&pair.config, &mut env);
        pair.break_down(&mut env);
        self.fail_overrun(now);
        self.schedule(slot);
    }

    /// The queue pair at the other end of a connection.
    pub fn remote_of(&self, qpn: Qpn) -> Option<Qpn> {
        let slot = self.numbers.slot(qpn)?;
        Some(self.pairs.get(slot as usize)?.config.remote)
    }

    /// Queue pairs whose way to the other end is gone fail, and all that waits ends with
    /// [`Status::Flushed`](crate::work::Status::Flushed). Those that are not connected yet stay as they are.
    pub fn break_pairs(&mut self, now: Moment, is_lost: impl Fn(Service, &Path) -> bool) {
        let (pairs, mut env) = self.split(now);
        for (_, pair) in pairs.iter_mut() {
            let config = &pair.config;
            let has_way = !matches!(config.state, State::Reset | State::Init | State::Error);
            if has_way && is_lost(config.init.service, &config.path) {
                pair.break_down(&mut env);
            }
        }
        self.fail_overrun(now);
    }

    fn forget_lines(&mut self, qpn: Qpn) {
        if self.options.lists_filled {
            return;
        }
        let Some(init) = self.numbers.slot(qpn).and_then(|slot| self.pairs.get(slot as usize)).map(|p| p.config.init)
        else {
            return;
        };
        for cq in [init.send_queue, init.receive_queue] {
            if let Some(queue) = self.queues.get_mut(cq as usize) {
                queue.forget(|line| line.qpn == qpn);
            }
        }
    }

    /// Whether a queue pair is connected with that one as its other end.
    #[inline]
    pub fn is_connected(&self, qpn: Qpn, remote: Qpn) -> bool {
        let pair = self.numbers.slot(qpn).and_then(|slot| self.pairs.get(slot as usize));
        pair.is_some_and(|pair| pair.config.remote == remote && pair.config.init.service != Service::UnreliableDatagram)
    }

    /// All queue pairs, with their states.
    pub fn queue_pairs(&self) -> impl Iterator<Item = (Qpn, State)> + '_ {
        self.pairs.iter().map(|(_, pair)| (pair.config.number(), pair.config.state))
    }
}

fn of_pair(event: &Event) -> Option<Qpn> {
    match event {
        Event::QueuePairFatal(qpn)
        | Event::RequestError(qpn)
        | Event::AccessError(qpn)
        | Event::Established(qpn)
        | Event::SendQueueDrained(qpn)
        | Event::LastBufferReached(qpn) => Some(*qpn),
        _ => None,
    }
}
