//! Who a connection belongs to, what it may do, and what it has of what is limited.

use super::quotas::{Account, Charge, Ledger};
use super::replies::Refusal;
use super::{Policy, Server};
use millrace_abi::access::{Amounts, Peer, Resource, Rights};
use millrace_abi::message::{ErrorCode, Handle};
use std::collections::HashMap;

/// Fds of a connection: its socket, and the process's own. Its kicks are paid for when they are made.
const FDS: u64 = 2;

/// Most mappings of the card's process that a queue, or a ring of its own, makes.
const AREAS_OF_RING: u64 = 5;

/// Who a connection belongs to, and what it has.
pub(super) struct Standing {
    pub(super) peer: Peer,
    pub(super) rights: Rights,
    pub(super) requests: u64,
    account: Account,
    connection: Charge,
    kicks: Vec<Charge>,
    queues: HashMap<Handle, Vec<Charge>>,
    mapped: HashMap<u64, Charge>,
}

/// What an open queue costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueCost {
    /// Bytes of its memory.
    pub(super) memory: u64,
    /// Whether its memory's fds are kept for those who join.
    pub(super) shared: bool,
}

impl Standing {
    /// The standing of a peer who connects.
    pub(super) fn new(policy: &Policy, ledger: &Ledger, peer: Peer) -> Result<Self, Refusal> {
        let owner = peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw();
        let account = Account { uid: peer.uid, pid: peer.pid, owner };
        let wanted = Amounts::default().with(Resource::Connections, 1).with(Resource::Fds, FDS);
        let connection = charge(policy, ledger, account, wanted)?;
        let (kicks, queues, mapped) = Default::default();
        Ok(Self { rights: policy.rights_of(&peer), peer, requests: 0, account, connection, kicks, queues, mapped })
    }

    /// What this connection has.
    pub(super) fn used(&self) -> Amounts {
        let mut used = *self.connection.amounts();
        let more = self.kicks.iter().chain(self.queues.values().flatten()).chain(self.mapped.values());
        more.for_each(|charge| used.add(charge.amounts()));
        used
    }

    /// A queue was closed.
    pub(super) fn closed(&mut self, handle: Handle) {
        self.queues.remove(&handle);
    }

    /// Memory was mapped at `iova`, for which this was paid.
    pub(super) fn mapped(&mut self, iova: u64, charge: Charge) {
        self.mapped.insert(iova, charge);
    }

    /// That memory is not mapped any more.
    /// What was paid for it is to be kept as long as it is being unmapped.
    pub(super) fn unmapped(&mut self, iova: u64) -> Option<Charge> {
        self.mapped.remove(&iova)
    }

    /// Whether it is the user who runs the card, or root.
    pub(super) fn is_owner(&self) -> bool {
        self.account.owner
    }

    /// A kick was made, for which this was paid. It is kept until the connection ends.
    pub(super) fn kick_made(&mut self, charge: Charge) {
        self.kicks.push(charge);
    }

    /// What is still paid for when everything else is given back.
    pub(super) fn left(self) -> Vec<Charge> {
        self.kicks.into_iter().chain([self.connection]).collect()
    }
}

fn charge(policy: &Policy, ledger: &Ledger, account: Account, wanted: Amounts) -> Result<Charge, Refusal> {
    ledger.charge(account, wanted).map_err(|exceeded| {
        let user = policy.names.of_user(account.uid);
        Refusal::new(ErrorCode::Quota, exceeded.text(&user, account))
    })
}

impl Server {
    /// Has a connection pay for something, if it may have that.
    pub(super) fn charge(&mut self, number: u64, wanted: Amounts) -> Result<Charge, Refusal> {
        let account = self.clients.get(&number).map(|client| client.standing.account);
        let account = account.ok_or_else(|| Refusal::new(ErrorCode::Invalid, "not connected"))?;
        charge(&self.policy, &self.ledger, account, wanted).or_else(|_| {
            // Those who have gone may still be charged for.
            self.clear_up_once();
            charge(&self.policy, &self.ledger, account, wanted)
        })
    }

    /// Changes what a connection has.
    pub(super) fn settle_with(&mut self, number: u64, what: impl FnOnce(&mut Standing)) {
        if let Some(client) = self.clients.get_mut(&number) {
            what(&mut client.standing);
        }
    }

    /// Has a connection pay for memory that it maps for the card.
    pub(super) fn charge_mapping(&mut self, number: u64, len: u64, writable: bool) -> Result<Charge, Refusal> {
        let wanted = Amounts::default()
            .with(Resource::Mappings, 1)
            .with(Resource::Mapped, len)
            .with(Resource::Fds, writable.into())
            .with(Resource::Areas, 1);
        self.charge(number, wanted)
    }

    /// What a queue costs that somebody is about to open, as far as that is known before there is memory for it.
    pub(super) fn charge_queue(&mut self, number: u64, own_ring: bool) -> Result<Charge, Refusal> {
        let rings = 1 + u64::from(own_ring);
        let wanted = Amounts::default()
            .with(Resource::Queues, 1)
            .with(Resource::Rings, own_ring.into())
            .with(Resource::Areas, rings * AREAS_OF_RING);
        self.charge(number, wanted)
    }

    /// What it costs beyond that. Everyone who shares a queue pays for all of its memory, which stays as long as one does.
    pub(super) fn charge_memory(&mut self, number: u64, cost: QueueCost) -> Result<Charge, Refusal> {
        let kept = if cost.shared { 4 } else { 0 };
        self.charge(number, Amounts::default().with(Resource::Memory, cost.memory).with(Resource::Fds, kept))
    }

    /// Remembers what was paid for a queue, until it is closed.
    pub(super) fn paid(&mut self, number: u64, handle: Handle, charges: impl IntoIterator<Item = Charge>) {
        self.settle_with(number, |standing| standing.queues.entry(handle).or_default().extend(charges));
    }

    /// Has a connection pay for the call of a queue, which it has once however often it asks.
    pub(super) fn charge_call(&mut self, number: u64, handle: Handle) -> Result<(), Refusal> {
        const OPENED: usize = 2;
        let paid = self.clients.get(&number).and_then(|client| client.standing.queues.get(&handle));
        if paid.is_some_and(|charges| charges.len() > OPENED) {
            return Ok(());
        }
        let charge = self.charge(number, Amounts::default().with(Resource::Fds, 1))?;
        self.paid(number, handle, [charge]);
        Ok(())
    }

    /// The account of a user, for what may be had.
    pub(super) fn account_of(&self, uid: u32) -> Account {
        Account { uid, pid: 0, owner: uid == 0 || uid == rustix::process::geteuid().as_raw() }
    }
}
