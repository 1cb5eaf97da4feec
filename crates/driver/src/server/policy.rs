//! What the administrator of a card says about others: who may do what, and how much.

use millrace_abi::access::{Access, Names, Quota};

/// Who may use a card for what, and how much of it. By default nobody but the user who runs the card, and root.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Rights of users other than the owner and root, who have all.
    pub access: Access,
    /// What each of those users may have at most.
    pub quota: Quota,
    /// Names of users and groups, for what is said to people.
    pub names: Names,
}

impl Policy {
    /// Nobody but the owner and root, with the names of users and groups that this machine knows.
    pub fn closed() -> Self {
        Self { names: super::rights::names(), ..Self::default() }
    }
}
