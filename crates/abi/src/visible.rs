//! Who uses a card, as `millrace clients`, `millrace locks` and `millrace info` show it.

use crate::access::Amounts;
use crate::queue::QueueId;
use serde::{Deserialize, Serialize};

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Its number, by which it can be ended.
    pub id: u64,
    /// Process id of its program; 0: not known.
    pub pid: u32,
    /// User of its program.
    pub uid: u32,
    /// That user's name, or its number.
    pub user: String,
    /// How many queues it has open.
    pub open_queues: u32,
    /// The first of them.
    pub queues: Vec<QueueId>,
    /// What it has of what is limited.
    pub used: Amounts,
    /// Requests so far.
    pub requests: u64,
    /// What it may do, as in a grant; cut off after 200 letters.
    pub rights: String,
}

/// One lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockInfo {
    /// Path of the component.
    pub component: String,
    /// Features, a bit each.
    pub bits: u64,
    /// Process id of the holder; 0: not known.
    pub pid: u32,
    /// The connection that holds it.
    pub client: Option<u64>,
    /// Or the queue for which the driver holds it, as long as it runs.
    pub queue: Option<QueueId>,
}

/// What one user has of what is limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserUse {
    /// The user.
    pub uid: u32,
    /// Its name, or its number.
    pub user: String,
    /// What it has.
    pub used: Amounts,
    /// What it may have; one program of it less.
    pub limits: Amounts,
}
