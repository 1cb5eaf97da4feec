//! What connections pay for what they get, until they give it back.

use super::Server;
use super::quotas::{Account, Charge};
use super::replies::Refusal;
use super::standing::{Standing, charge};
use millrace_abi::access::{Amounts, Resource};
use millrace_abi::message::{ErrorCode, Handle};

/// Most mappings of the card's process that a queue, or a ring of its own, makes.
const AREAS_OF_RING: u64 = 5;

/// What an open queue costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueCost {
    /// Bytes of its memory.
    pub(super) memory: u64,
    /// Whether its memory's fds are kept for those who join.
    pub(super) shared: bool,
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
