//! Who a connection belongs to, what it may do, and what it has of what is limited.

use super::policy::Policy;
use super::quotas::{Account, Charge, Ledger};
use super::replies::Refusal;
use millrace_abi::access::{Amounts, Peer, Resource, Rights};
use millrace_abi::message::{ErrorCode, Handle};
use std::collections::HashMap;

/// Fds of a connection: its socket, and the process's own. Its kicks are paid for when they are made.
const FDS: u64 = 2;

/// Who a connection belongs to, and what it has.
pub(super) struct Standing {
    pub(super) peer: Peer,
    pub(super) rights: Rights,
    pub(super) requests: u64,
    pub(super) account: Account,
    connection: Charge,
    kicks: Vec<Charge>,
    pub(super) queues: HashMap<Handle, Vec<Charge>>,
    mapped: HashMap<u64, Charge>,
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

/// Has an account pay for something.
pub(super) fn charge(policy: &Policy, ledger: &Ledger, account: Account, wanted: Amounts) -> Result<Charge, Refusal> {
    ledger.charge(account, wanted).map_err(|exceeded| {
        let user = policy.names.of_user(account.uid);
        Refusal::new(ErrorCode::Quota, exceeded.text(&user, account))
    })
}
