//! Requests, each of which has its reply.

use super::Server;
use super::replies::{Answer, Enclosed, Refusal, no_handle};
use crate::locks::Owner;
use crate::session::Wish;
use crate::wire::{self, WireError};
use millrace_abi::message::{Change, ErrorCode, MAX_COMMIT, MAX_REGISTER_BYTES, Reply, Request, VERSION, encode};
use millrace_abi::queue::Direction;
use millrace_dma::{Pages, Region};
use rustix::fd::{BorrowedFd, OwnedFd};

/// Messages taken from one client before others have their turn.
const TURN: usize = 16;

impl Server {
    pub(super) fn serve(&mut self, number: u64) {
        for _ in 0..TURN {
            let Some(client) = self.clients.get(&number) else { return };
            let received = wire::receive::<Request>(&client.socket, &mut self.buffer);
            match received {
                Ok((request, fds)) => {
                    if !self.answer(number, request, fds) {
                        return self.disconnect(number);
                    }
                }
                Err(WireError::NotReady) => return,
                Err(WireError::Closed) => return self.disconnect(number),
                Err(error) => {
                    let text = error.to_string();
                    let _ = wire::send(&client.socket, &Reply::Error { code: ErrorCode::Protocol, text }, &[]);
                    return self.disconnect(number);
                }
            }
        }
    }

    /// Carries a request out and replies. `false`: the connection is to be ended.
    pub(super) fn answer(&mut self, number: u64, request: Request, fds: Vec<OwnedFd>) -> bool {
        let introduced = self.clients.get(&number).is_some_and(|client| client.introduced);
        let hello = matches!(request, Request::Hello { version: VERSION });
        if !introduced && !hello {
            let text = format!("the driver speaks version {VERSION} of its messages, and the first must be Hello");
            self.reply(number, &Reply::Error { code: ErrorCode::Protocol, text }, &[]);
            return false;
        }
        if let Request::Open { queue, mode, sharing, buffers } = request {
            return self.open(number, Wish { id: queue, mode, sharing, buffers });
        }
        let (reply, enclosed) = match self.carry_out(number, request, fds) {
            Ok(answer) => answer,
            Err(Refusal(code, text)) => (Reply::Error { code, text }, Enclosed::Nothing),
        };
        self.reply(number, &reply, enclosed.fd().as_slice())
    }

    pub(super) fn reply(&self, number: u64, reply: &Reply, fds: &[BorrowedFd<'_>]) -> bool {
        // A program that does not read its replies is disconnected rather than waited for.
        self.clients.get(&number).is_some_and(|client| wire::send(&client.socket, reply, fds).is_ok())
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
            Request::DeviceTree => {
                let (len, file) = as_file(self.card.device_tree())?;
                Ok((Reply::DeviceTree { len }, Enclosed::Memory(file)))
            }
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
            Request::Change(change) => self.change(number, &change),
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
                let session = self.sessions.get_mut(&id).ok_or_else(|| no_handle(handle))?;
                Ok((Reply::Call, Enclosed::Descriptor(session.new_call(&self.card, key)?)))
            }
            Request::Open { .. } => Err(Refusal::new(ErrorCode::Protocol, "open is answered elsewhere")),
        }
    }

    /// Ports open interfaces and files with the rights of the card, so only its own user and root may change them.
    pub(super) fn change(&self, number: u64, change: &Change) -> Result<Answer, Refusal> {
        let uid = self.clients.get(&number).and_then(|client| client.uid);
        if uid.is_none_or(|uid| !uid.is_root() && uid != rustix::process::geteuid()) {
            let text = "only the user who runs the card, and root, may change its ports and workers";
            return Err(Refusal::new(ErrorCode::Invalid, text));
        }
        let changed = match *change {
            Change::Plug { port, ref spec } => self.card.plug(port, spec),
            Change::Connect { one, other } => self.card.connect(one, other),
            Change::Disconnect { port } => self.card.disconnect(port),
            Change::Move { queue, worker } => self.card.move_queue(queue, worker),
        };
        changed.map_err(|error| Refusal::new(ErrorCode::Invalid, error.to_string()))?;
        Ok((Reply::Done, Enclosed::Nothing))
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
        let (len, file) = as_file(&bytes)?;
        Ok((Reply::StatsFile { len }, Enclosed::Memory(file)))
    }
}

/// Bytes as memory that can be handed over, and their length.
fn as_file(bytes: &[u8]) -> Result<(u64, Region), Refusal> {
    let region = Region::allocate(bytes.len().max(1), Pages::Ordinary)?;
    if let Some(span) = region.window().span_mut(0, bytes.len()) {
        span.write_from(bytes);
    }
    region.seal_future_writes()?;
    Ok((bytes.len() as u64, region))
}
