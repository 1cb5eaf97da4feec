//! Who is connected, who holds which lock, who has how much; and ending the first two.

use super::Server;
use super::replies::{Answer, Enclosed, Refusal};
use crate::locks::Owner;
use millrace_abi::message::{ErrorCode, Locked, MAX_COMPONENT, MAX_LISTED, Reply};
use millrace_abi::visible::{ClientInfo, LockInfo, UserUse};

/// Most queues of a connection that are listed by name.
const QUEUES_SHOWN: usize = 16;
/// Most letters of a text that others choose.
const LETTERS_SHOWN: usize = 200;

impl Server {
    pub(super) fn clients_after(&self, after: u64) -> Answer {
        let connected = self.clients.iter().filter(|&(&number, client)| number > after && !client.ending);
        let mut numbers: Vec<u64> = connected.map(|(&number, _)| number).collect();
        numbers.sort_unstable();
        let listed = numbers.into_iter().take(MAX_LISTED).filter_map(|number| self.client_info(number));
        (Reply::Clients(listed.collect()), Enclosed::Nothing)
    }

    fn client_info(&self, number: u64) -> Option<ClientInfo> {
        let client = self.clients.get(&number).filter(|client| !client.ending)?;
        let mut queues: Vec<_> = client.queues.values().copied().collect();
        queues.sort_unstable();
        let open_queues = queues.len() as u32;
        queues.truncate(QUEUES_SHOWN);
        let standing = &client.standing;
        Some(ClientInfo {
            id: number,
            pid: client.shown_pid(),
            uid: standing.peer.uid,
            user: shortened(self.policy.names.of_user(standing.peer.uid)),
            open_queues,
            queues,
            used: standing.used(),
            requests: standing.requests,
            rights: shortened(standing.rights.to_string()),
        })
    }

    /// Ends a connection and tells its program why. Not the one that asks: that would have no reply.
    pub(super) fn end_client(&mut self, number: u64, id: u64) -> Result<Answer, Refusal> {
        if id == number {
            return Err(Refusal::new(ErrorCode::Invalid, format!("connection {id} is this one")));
        }
        if self.clients.get(&id).is_none_or(|client| client.ending) {
            return Err(Refusal::new(
                ErrorCode::NotFound,
                format!("there is no connection {id}; `millrace clients` lists them"),
            ));
        }
        // One that does not read learns it from the end of the connection.
        self.dismiss(id, "an administrator of the card has ended this connection");
        Ok((Reply::Done, Enclosed::Nothing))
    }

    pub(super) fn locks_after(&mut self, skip: u32) -> Answer {
        self.settle();
        let all = self.locks.all().into_iter().skip(skip as usize).take(MAX_LISTED);
        let listed = all.map(|(component, bits, owner)| LockInfo {
            component,
            bits,
            pid: self.pid_of(owner),
            client: match owner {
                Owner::Client(number) => Some(number),
                Owner::Queue(_) => None,
            },
            queue: match owner {
                Owner::Client(_) => None,
                Owner::Queue(queue) => Some(queue),
            },
        });
        (Reply::Locks(listed.collect()), Enclosed::Nothing)
    }

    /// Ends locks that programs hold. That of a queue which the driver runs is not theirs, and stays with the queue.
    pub(super) fn end_locks(&mut self, whose: &Locked) -> Result<Answer, Refusal> {
        let ended = match whose {
            Locked::Component(path) if path.len() > MAX_COMPONENT => 0,
            Locked::Component(path) => self.locks.end(|component, _| component == path),
            Locked::Client(id) => self.locks.end(|_, client| client == *id),
        };
        if ended == 0 {
            let text = "no program holds a lock there; `millrace locks` lists them";
            return Err(Refusal::new(ErrorCode::NotFound, text));
        }
        Ok((Reply::Done, Enclosed::Nothing))
    }

    pub(super) fn use_after(&self, after: Option<u32>) -> Answer {
        let users = self.ledger.users().into_iter().filter(|&(uid, _)| after.is_none_or(|after| uid > after));
        let listed = users.take(MAX_LISTED).map(|(uid, used)| UserUse {
            uid,
            user: shortened(self.policy.names.of_user(uid)),
            used,
            limits: self.ledger.limits_of(self.account_of(uid)),
        });
        (Reply::Use(listed.collect()), Enclosed::Nothing)
    }
}

fn shortened(text: String) -> String {
    text.chars().take(LETTERS_SHOWN).collect()
}
