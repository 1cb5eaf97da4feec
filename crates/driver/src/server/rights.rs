//! Whether a connection may do what it asks for: decided here, once for each request, and nowhere else.
//!
//! Rights come from who is at the other end, as the system says, and from the grants of the card. Whose a queue is stands
//! above them: the registers of a queue that somebody has are his alone, whoever else may do everything.

use super::Server;
use super::connected::Connected;
use super::replies::Refusal;
use crate::locks::Owner;
use crate::native;
use millrace_abi::access::{Configure, Names, Right};
use millrace_abi::clock::ClockRequest;
use millrace_abi::flow::FlowRequest;
use millrace_abi::message::{Change, ErrorCode, Request};
use millrace_abi::queue::QueueId;
use millrace_abi::register::map::Component;
use millrace_abi::register::{Controller, tsu};

/// To whom the registers of a queue belong.
enum Holder {
    /// Nobody: the queue is free.
    Nobody,
    /// The connection that has opened it for itself, or has started or locked it by its registers.
    Client(u64),
    /// The driver, which drives it for those who share it.
    Driver,
}

/// A refusal that names the missing right, and how it is granted.
fn denied(client: &Connected, names: &Names, to_do: &str, right: &Right) -> Refusal {
    let user = names.of_user(client.standing.peer.uid);
    let how = format!("the card's administrator can allow it with --grant user:{user}={right}");
    Refusal::new(ErrorCode::Denied, format!("user {user} may not {to_do}; {how}"))
}

impl Server {
    /// Whether a connection may do what it asks for.
    pub(super) fn permit(&self, number: u64, request: &Request) -> Result<(), Refusal> {
        let Some(client) = self.clients.get(&number) else { return Ok(()) };
        let need = |right: Right, to_do: &str| match client.standing.rights.has(&right) {
            true => Ok(()),
            false => Err(denied(client, &self.policy.names, to_do, &right)),
        };
        match request {
            Request::Hello { .. } if client.standing.rights.is_empty() => {
                let user = self.policy.names.of_user(client.standing.peer.uid);
                let how = format!("the card's administrator can allow it with --grant user:{user}=use:rx0,tx0");
                Err(Refusal::new(ErrorCode::Denied, format!("user {user} has no rights on this card; {how}")))
            }
            Request::Read { .. } => need(Right::ReadRegisters, "read registers"),
            Request::Write { address, bytes } => {
                self.permit_write(number, client, *address, bytes.len())?;
                if commands_clock(*address, bytes) { self.is_ours_to_lead(number) } else { Ok(()) }
            }
            Request::Change(change) => match change {
                Change::Plug { .. } | Change::Connect { .. } | Change::Disconnect { .. } | Change::Schedule { .. } => {
                    need(Right::Configure(Configure::Ports), "configure ports")
                }
                Change::Move { .. } => need(Right::Configure(Configure::Workers), "configure workers"),
            },
            Request::Lock { component, .. } => match self.controller_at(component) {
                Some(queue) => need(Right::Use(queue), &format!("use {queue}")),
                None => need(Right::WriteRegisters, &format!("lock {component:?}")),
            },
            Request::Open { queue, .. } => need(Right::Use(*queue), &format!("use {queue}")),
            Request::Flow(FlowRequest::SetNeighbour { .. }) => {
                need(Right::Configure(Configure::Rules), "say where neighbours are")
            }
            Request::Flow(FlowRequest::SendInTunnel { .. }) => {
                need(Right::Configure(Configure::Rules), "send into tunnels")
            }
            Request::Flow(request) => {
                let options = match request {
                    FlowRequest::Tap(_) => return need(Right::Capture, "see frames of others"),
                    FlowRequest::Once { options, .. } | FlowRequest::Begin(options) => options,
                    FlowRequest::Keys { .. } => return need(Right::Configure(Configure::Rules), "hand over keys"),
                    // Who has begun a transaction has been asked; the rest only tells.
                    _ => return Ok(()),
                };
                need(Right::Configure(Configure::Rules), "program rules")?;
                if options.everyone { need(Right::Admin, "change rules of others") } else { Ok(()) }
            }
            Request::Clock(ClockRequest::Page) => Ok(()),
            Request::Clock(_) => need(Right::Configure(Configure::Clock), "steer the clock"),
            Request::EndClient { .. } => need(Right::Admin, "end connections"),
            Request::EndLocks { .. } => need(Right::Admin, "end locks"),
            // What needs a queue has asked when it was opened; memory is a matter of quotas; the rest only tells.
            _ => Ok(()),
        }
    }

    /// The queue whose DMA controller has this path.
    fn controller_at(&self, path: &str) -> Option<QueueId> {
        self.controllers.iter().find(|(_, controller)| *controller == path).map(|(&queue, _)| queue)
    }

    fn permit_write(&self, number: u64, client: &Connected, address: u32, len: usize) -> Result<(), Refusal> {
        // A program with the card inside it writes registers past the driver as well.
        if client.own.is_some() {
            return Ok(());
        }
        let mut last = None;
        for at in words(address, len) {
            let Some((component, offset)) = Component::at(at) else { continue };
            let counters = matches!(component, Component::Dma(queue) if self.counts(queue, offset));
            if last == Some((component, counters)) {
                continue;
            }
            last = Some((component, counters));
            match component {
                Component::Dma(queue) => self.permit_queue(number, client, queue, counters)?,
                Component::TxData(index) | Component::TxHeaders(index) => {
                    self.permit_queue(number, client, QueueId::tx(index), false)?;
                }
                _ => {
                    let right = Right::WriteComponent(component);
                    if !client.standing.rights.has(&right) {
                        let to_do = format!("write the registers of {component}");
                        return Err(denied(client, &self.policy.names, &to_do, &right));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a word of a DMA controller is the one that commands its counters, which moves nothing.
    fn counts(&self, queue: QueueId, offset: u32) -> bool {
        let command = self.card.engine(queue).map(|engine| Controller::of(engine).counter_command.bytes());
        Some(offset & !3) == command
    }

    fn permit_queue(&self, number: u64, client: &Connected, id: QueueId, counters: bool) -> Result<(), Refusal> {
        let right = Right::Use(id);
        if !client.standing.rights.has(&right) {
            return Err(denied(client, &self.policy.names, &format!("write the registers of {id}"), &right));
        }
        let of = match self.holder_of(id) {
            _ if counters => return Ok(()),
            Holder::Nobody => return Ok(()),
            Holder::Client(holder) if holder == number => return Ok(()),
            Holder::Client(holder) => format!("process {}", self.pid_of(Owner::Client(holder))),
            Holder::Driver => "the driver, for those who share it".to_owned(),
        };
        let text =
            format!("{id} belongs to {of}, and its registers with it; no right overrides that until it is closed");
        Err(Refusal::new(ErrorCode::Denied, text))
    }

    fn holder_of(&self, id: QueueId) -> Holder {
        if let Some(session) = self.sessions.get(&id) {
            return session.owner().map_or(Holder::Driver, Holder::Client);
        }
        if let Some(native) = self.natives.get(&id) {
            return Holder::Client(native.client);
        }
        let path = self.controllers.get(&id).map_or("", String::as_str);
        match self.locks.holder(path, native::RUNNING) {
            Some(Owner::Client(holder)) => Holder::Client(holder),
            _ => Holder::Nobody,
        }
    }
}

/// Whether a write sets the clock or its speed. Of a word that is written in part, what was there is not asked for: it may.
fn commands_clock(address: u32, bytes: &[u8]) -> bool {
    let is_command = |at| matches!(Component::at(at), Some((Component::Tsu, offset)) if offset == tsu::COMMAND.bytes());
    words(address, bytes.len()).filter(|&at| is_command(at)).any(|at| {
        let from = at.checked_sub(address).and_then(|from| bytes.get(from as usize..));
        let word = from.and_then(|rest| rest.first_chunk()).map(|&word| u32::from_le_bytes(word));
        word.is_none_or(|word| matches!(word, tsu::COMMAND_WRITE_TIME | tsu::COMMAND_WRITE_INCREMENT))
    })
}

/// The words that a write touches.
fn words(address: u32, len: usize) -> impl Iterator<Item = u32> {
    let (first, end) = (u64::from(address), u64::from(address) + len as u64);
    // The address space of the bus comes round at its end, as in `native::words`.
    (first / 4 * 4..end).step_by(4).map(|at| at as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_sets_the_clock_is_found_however_it_is_cut() {
        let at = Component::Tsu.base().unwrap() + tsu::COMMAND.bytes();
        let word = |command: u32| command.to_le_bytes();
        assert!(
            commands_clock(at, &word(tsu::COMMAND_WRITE_TIME))
                && commands_clock(at, &word(tsu::COMMAND_WRITE_INCREMENT))
        );
        assert!(!commands_clock(at, &word(tsu::COMMAND_READ_TIME)) && !commands_clock(at - 4, &word(0)));
        assert!(commands_clock(at - 4, &[0; 8]) && commands_clock(at - 4, &[0; 5]) && commands_clock(at + 3, &[4]));
    }

    #[test]
    fn every_word_of_a_write_is_looked_at() {
        assert_eq!(words(0x7e, 10).collect::<Vec<_>>(), [0x7c, 0x80, 0x84]);
        assert_eq!(words(8, 0).count(), 0);
        assert_eq!(words(u32::MAX, 2).collect::<Vec<_>>(), [u32::MAX - 3, 0]);
    }
}
