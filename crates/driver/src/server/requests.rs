//! Requests, each of which has its reply.

use super::Server;
use super::flows::Applicant;
use super::reaper::Garbage;
use super::replies::{Answer, Enclosed, Refusal, SharedFile, no_handle};
use super::schedule::Asker;
use super::sending::Sent;
use super::shared::Changed;
use crate::codec::{self, Packet, WireError};
use crate::locks::Owner;
use crate::session::Wish;
use millrace_abi::access::Right;
use millrace_abi::flow::FlowRequest;
use millrace_abi::message::{
    Change, ErrorCode, MAX_COMMIT, MAX_REGISTER_BYTES, MAX_TOO_LONG, Reply, Request, VERSION, encode,
};
use millrace_abi::queue::Direction;
use millrace_dma::RegionError;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::RecvFlags;
use std::sync::PoisonError;
use std::time::Duration;

impl Server {
    /// Answers one request of a connection whose turn it is.
    pub(super) fn serve(&mut self, asker: Asker) {
        let number = asker.connection;
        let short = || self.reaper.has_some_of(asker) && !self.fds.has_some_left();
        if self.reaper.is_full(asker) || short() {
            self.schedule.rest(asker);
            return self.pause.connection(number);
        }
        let Some(client) = self.clients.get(&number) else { return self.schedule.leave(asker) };
        match codec::receive_packet(&client.socket, &mut self.buffer, RecvFlags::DONTWAIT) {
            Ok(packet) => {
                if !self.take_packet(asker, packet) {
                    self.end(number);
                }
            }
            Err(WireError::NotReady) => self.schedule.rest(asker),
            Err(_) => self.end(number),
        }
    }

    /// Whatever came, its fds are closed elsewhere. `false`: the connection is to be ended.
    fn take_packet(&mut self, asker: Asker, packet: Packet) -> bool {
        let (number, lost) = (asker.connection, packet.fds_were_lost());
        let request = packet.message::<Request>(&self.buffer);
        let mut fds = packet.fds;
        let refusal = match request {
            Ok(_) if lost => Refusal::no_fds(),
            Ok(request @ Request::Map { .. }) => {
                self.reaper.take_fds(asker, fds.drain(fds.len().min(1)..));
                return self.answer_map(asker, request, fds);
            }
            Ok(request) => {
                self.reaper.take_fds(asker, fds);
                return self.answer(number, request, Vec::new());
            }
            Err(error) => Refusal::new(ErrorCode::Protocol, error),
        };
        self.reaper.take_fds(asker, fds);
        self.reply(number, &refusal.into_reply()) && lost
    }

    /// Answers a request to map memory. It is looked at closer only if it is memory: other kinds of files may make us
    /// wait whenever they are closed. The last to close it is the reaper.
    fn answer_map(&mut self, asker: Asker, request: Request, fds: Vec<OwnedFd>) -> bool {
        let last = fds.first().map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
        let refusal = match last {
            Some(Err(_)) => Refusal::no_fds(),
            Some(Ok(last)) if rustix::fs::fcntl_get_seals(&last).is_err() => {
                self.reaper.take(asker, Garbage::Fd(last));
                Refusal::from(RegionError::NotSealed)
            }
            last => {
                let alive = self.answer(asker.connection, request, fds);
                self.reaper.take_fds(asker, last.and_then(Result::ok));
                return alive;
            }
        };
        self.reaper.take_fds(asker, fds);
        self.reply(asker.connection, &refusal.into_reply())
    }

    /// Carries a request out and replies. `false`: the connection is to be ended.
    pub(super) fn answer(&mut self, number: u64, request: Request, fds: Vec<OwnedFd>) -> bool {
        let introduced = self.clients.get(&number).is_some_and(|client| client.introduced);
        let hello = matches!(request, Request::Hello { version: VERSION });
        if !introduced && !hello {
            let text = format!("the driver speaks version {VERSION} of its messages, and the first must be Hello");
            self.reply(number, &Reply::Error { code: ErrorCode::Protocol, text });
            return false;
        }
        if let Some(client) = self.clients.get_mut(&number) {
            client.standing.requests += 1;
        }
        if let Err(refusal) = self.permit(number, &request) {
            return self.reply(number, &refusal.into_reply()) && introduced;
        }
        // Whoever had it may just have gone: who asks after that is to find it free.
        if matches!(request, Request::Open { .. } | Request::Start { .. } | Request::Lock { .. }) {
            self.look(Some(Duration::ZERO));
            // The one who asks may be among them: nothing is given any more that nobody would give back.
            if self.clients.get(&number).is_none_or(|client| client.ending) {
                return true;
            }
        }
        if !self.has_fds_for(number, &request) {
            return self.reply(number, &Refusal::no_fds().into_reply());
        }
        if let Request::Open { queue, mode, sharing, buffers, joiners } = request {
            return self.open(number, Wish { id: queue, mode, sharing, buffers, joiners });
        }
        let (reply, enclosed) = match self.carry_out(number, request, fds) {
            Ok((_, Enclosed::Later)) => return true,
            Ok(answer) => answer,
            Err(refusal) => (refusal.into_reply(), Enclosed::Nothing),
        };
        match self.send_reply(number, &reply, enclosed.fd().as_slice()) {
            Sent::Whole => true,
            Sent::NoFds => self.reply(number, &Refusal::no_fds().into_reply()),
            Sent::Lost => false,
        }
    }

    /// Whether there are fds for what lasts longer than the request.
    fn has_fds_for(&self, number: u64, request: &Request) -> bool {
        let watches = matches!(request, Request::Flow(FlowRequest::Watch { .. }));
        let lasts = watches || matches!(request, Request::Open { .. } | Request::Call { .. } | Request::Map { .. });
        let own = self.clients.get(&number).is_some_and(|client| client.own.is_some());
        !lasts || own || self.fds.has_some_left()
    }

    pub(super) fn carry_out(&mut self, number: u64, request: Request, fds: Vec<OwnedFd>) -> Result<Answer, Refusal> {
        let done = Ok((Reply::Done, Enclosed::Nothing));
        match request {
            Request::Hello { .. } => {
                if let Some(client) = self.clients.get_mut(&number) {
                    client.introduced = true;
                }
                let options = self.card.options();
                let hello = Reply::Hello {
                    version: VERSION,
                    pid: std::process::id(),
                    rx_queues: options.rx_queues,
                    tx_queues: options.tx_queues,
                    frame_min: options.frame_min as u16,
                    frame_max: options.frame_max as u16,
                };
                Ok((hello, Enclosed::Nothing))
            }
            Request::DeviceTree => Ok((Reply::DeviceTree { len: self.tree.len }, Enclosed::File(self.tree.clone()))),
            Request::Read { address, len } => {
                if len as usize > MAX_REGISTER_BYTES {
                    return Err(Refusal::new(ErrorCode::Invalid, format!("at most {MAX_REGISTER_BYTES} at once")));
                }
                let mut bytes = vec![0; len as usize];
                self.card.read(address, &mut bytes);
                Ok((Reply::Bytes(bytes), Enclosed::Nothing))
            }
            Request::Write { address, bytes } => {
                if bytes.len() > MAX_REGISTER_BYTES {
                    return Err(Refusal::new(ErrorCode::Invalid, format!("at most {MAX_REGISTER_BYTES} at once")));
                }
                self.write(number, address, &bytes);
                done
            }
            Request::Change(change) => self.change(number, change),
            Request::Lock { component, bits } => self.lock(number, &component, bits),
            Request::Unlock { component, bits } => {
                if !self.locks.unlock(&component, bits, Owner::Client(number)) {
                    let text = format!("{component} is not locked by this program");
                    return Err(Refusal::new(ErrorCode::NotFound, text));
                }
                done
            }
            Request::Map { len, writable, at } => self.map(number, len, writable, at, fds),
            Request::Unmap { iova } => self.unmap_for(number, iova),
            Request::Start { handle } => {
                let (id, key) = self.queue_of(number, handle)?;
                let position = self.positions.get(&id).copied().unwrap_or(0);
                self.lock_queue(id)?;
                let session = self.sessions.get_mut(&id).ok_or_else(|| no_handle(handle))?;
                let started = session.start(&self.card, key, position);
                self.unlock_queue(id);
                Ok((started?, Enclosed::Nothing))
            }
            Request::Stop { handle, force, position } => {
                let (id, key) = self.queue_of(number, handle)?;
                let session = self.sessions.get_mut(&id).ok_or_else(|| no_handle(handle))?;
                if let Some(position) = session.stop(&self.card, key, force, Some(position))? {
                    self.positions.insert(id, position);
                }
                self.unlock_queue(id);
                done
            }
            Request::Close { handle } => {
                let (id, key) = self.queue_of(number, handle)?;
                if let Some(client) = self.clients.get_mut(&number) {
                    client.queues.remove(&handle);
                }
                self.close_queue(id, key);
                self.settle_with(number, |standing| standing.closed(handle));
                done
            }
            Request::RxSync { handle, release, want } => {
                let (id, key) = self.queue_of(number, handle)?;
                let session = self.sessions.get_mut(&id).ok_or_else(|| no_handle(handle))?;
                Ok((session.rx_sync(&self.card, key, release, want)?, Enclosed::Nothing))
            }
            Request::TxSync { handle, commit, want } => {
                let (id, key) = self.queue_of(number, handle)?;
                if commit.len() > MAX_COMMIT {
                    return Err(Refusal::new(ErrorCode::Invalid, format!("at most {MAX_COMMIT} packets at once")));
                }
                let session = self.sessions.get_mut(&id).ok_or_else(|| no_handle(handle))?;
                Ok((session.tx_sync(&self.card, key, &commit, want)?, Enclosed::Nothing))
            }
            Request::Stats => {
                self.settle();
                self.stats()
            }
            Request::Call { handle } => {
                let (id, key) = self.queue_of(number, handle)?;
                self.charge_call(number, handle)?;
                let session = self.sessions.get_mut(&id).ok_or_else(|| no_handle(handle))?;
                Ok((Reply::Call, Enclosed::Fd(session.new_call(&self.card, key)?)))
            }
            Request::Clients { after } => Ok(self.clients_after(after)),
            Request::EndClient { id } => self.end_client(number, id),
            Request::Locks { skip } => Ok(self.locks_after(skip)),
            Request::EndLocks { whose } => self.end_locks(&whose),
            Request::Use { after } => Ok(self.use_after(after)),
            Request::CountTooLong { handle, frames } => {
                let (id, _) = self.queue_of(number, handle)?;
                if frames > MAX_TOO_LONG {
                    return Err(Refusal::new(ErrorCode::Invalid, format!("at most {MAX_TOO_LONG} frames at once")));
                }
                if !self.card.count_too_long(id, frames) {
                    return Err(Refusal::new(ErrorCode::Invalid, format!("{id} sends nothing")));
                }
                done
            }
            Request::Flow(request) => self.order_flow(number, request),
            Request::Clock(request) => self.order_clock(number, request),
            Request::Open { .. } => Err(Refusal::new(ErrorCode::Protocol, "open is answered elsewhere")),
        }
    }

    /// Has something done about the flow table; the reply comes later.
    fn order_flow(&mut self, number: u64, request: FlowRequest) -> Result<Answer, Refusal> {
        if let Some(client) = self.clients.get_mut(&number) {
            let admin = client.standing.rights.has(&Right::Admin);
            let applicant = Applicant { asker: client.asker, account: client.standing.account, admin };
            self.flows.ask(applicant, request).map_err(|error| Refusal::new(ErrorCode::System, error))?;
            client.changing = true;
            client.flows = true;
            self.schedule.rest(client.asker);
        }
        Ok((Reply::Done, Enclosed::Later))
    }

    /// Has a change made; the reply comes later.
    pub(super) fn change(&mut self, number: u64, change: Change) -> Result<Answer, Refusal> {
        if let Some(client) = self.clients.get_mut(&number) {
            self.changes.order(number, change).map_err(|error| Refusal::new(ErrorCode::System, error))?;
            client.changing = true;
            self.schedule.rest(client.asker);
        }
        Ok((Reply::Done, Enclosed::Later))
    }

    /// Replies to those whose changes have been made; their further requests are answered from now on.
    pub(super) fn take_changed(&mut self) {
        let changed = core::mem::take(&mut *self.shared.changed.lock().unwrap_or_else(PoisonError::into_inner));
        for Changed { connection, reply, fd } in changed {
            let Some(client) = self.clients.get_mut(&connection).filter(|client| !client.ending) else { continue };
            client.changing = false;
            let fds = fd.as_ref().map(AsFd::as_fd);
            let sent = match self.send_reply(connection, &reply, fds.as_slice()) {
                Sent::Whole => true,
                Sent::NoFds => self.reply(connection, &Refusal::no_fds().into_reply()),
                Sent::Lost => false,
            };
            if sent {
                self.listen_to(connection);
            } else {
                self.end(connection);
            }
        }
    }

    pub(super) fn stats(&self) -> Result<Answer, Refusal> {
        let mut stats = self.card.stats();
        for queue in &mut stats.queues {
            if let Some(session) = self.sessions.get(&queue.queue) {
                queue.holders = session.holders();
            }
            let native = self.natives.get(&queue.queue).map(|native| self.pid_of(Owner::Client(native.client)));
            queue.holders.extend(native);
        }
        // The order of queues is RX, then TX: what the types promise.
        debug_assert!(stats.queues.is_sorted_by_key(|queue| queue.queue.direction == Direction::Tx));
        let reply = Reply::Stats(Box::new(stats));
        if encode(&reply).is_ok() {
            return Ok((reply, Enclosed::Nothing));
        }
        let Reply::Stats(stats) = reply else { return Err(Refusal::new(ErrorCode::Invalid, "no counters")) };
        let bytes = postcard::to_stdvec(&stats).map_err(|error| Refusal::new(ErrorCode::System, error))?;
        let file = SharedFile::new(&bytes).map_err(|error| Refusal::new(ErrorCode::System, error))?;
        Ok((Reply::StatsFile { len: file.len }, Enclosed::File(file)))
    }
}
