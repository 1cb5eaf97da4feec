//! What each user and each program has of what all share, and how much it may have.
//!
//! Who takes something gets a [`Charge`], and gives it back by dropping it. Four limits hold at once: of the program, which
//! is a part of its user's so that one program cannot take all that its user has; of the user; of all users together but
//! the owner of the card, who so always has a reserve; and of the machine.

use millrace_abi::access::{Amounts, Quota, RESOURCES, Resource};
use rustix::process::{Resource as SystemLimit, getrlimit};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Mappings of the process that are kept for the card itself, its ports and clean-up.
const AREAS_KEPT: u64 = 4096;
/// Fds that are kept for them.
const FDS_KEPT: u64 = 128;
/// Addresses that programs may have of the card's process, which has 128 TiB of them.
const ADDRESSES: u64 = 96 << 40;

/// Who pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Account {
    pub uid: u32,
    pub pid: u32,
    /// Whether it is the user who runs the card, or root.
    pub owner: bool,
}

/// What there is at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of the user who runs the card, and of root.
    owner: Amounts,
    /// Of any other user.
    user: Amounts,
    /// Of all other users together.
    others: Amounts,
    /// Of all together.
    machine: Amounts,
}

impl Limits {
    /// The limits on this machine, with a quota for users other than the owner.
    pub fn new(quota: &Quota) -> Self {
        let areas =
            std::fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok());
        let areas: u64 = areas.unwrap_or(65_530);
        let fds = getrlimit(SystemLimit::Nofile).current.unwrap_or(1 << 20);
        let memory = rustix::system::sysinfo();
        let memory = (memory.totalram as u64).saturating_mul(memory.mem_unit.into());
        Self::of(quota, areas, fds, memory)
    }

    /// The limits of a machine with so many mappings and fds for a process, and bytes of memory.
    fn of(quota: &Quota, areas: u64, fds: u64, memory: u64) -> Self {
        let areas = areas.saturating_sub(AREAS_KEPT).max(1024);
        let fds = fds.saturating_sub(FDS_KEPT).max(64);
        let machine = Amounts::of_each(u64::MAX)
            .with(Resource::Mapped, ADDRESSES)
            .with(Resource::Fds, fds)
            .with(Resource::Areas, areas);
        let owner = Amounts::of_each(0)
            .with(Resource::Connections, 8192)
            .with(Resource::Queues, 1 << 16)
            .with(Resource::Rings, 1 << 14)
            .with(Resource::Mappings, 1 << 15)
            .with(Resource::Mapped, ADDRESSES / 3 * 2)
            .with(Resource::Memory, 4 << 40)
            .with(Resource::Fds, fds)
            .with(Resource::Areas, areas)
            .with(Resource::Rules, 1 << 23);
        let others = Amounts::of_each(u64::MAX)
            .with(Resource::Connections, 4096)
            .with(Resource::Mapped, ADDRESSES / 3)
            .with(Resource::Memory, memory / 2)
            .with(Resource::Fds, fds / 2)
            .with(Resource::Areas, areas / 2)
            // Of a table of a million, so that the owner always finds room in it.
            .with(Resource::Rules, 1 << 19);
        Self { owner, user: quota.limits, others, machine }
    }

    fn of_user(&self, account: Account) -> &Amounts {
        if account.owner { &self.owner } else { &self.user }
    }

    /// What one program may have of its user's: half, at least one; of the owner's fds and areas three quarters,
    /// which a card with 4,096 pairs of queues takes.
    fn of_program(&self, account: Account, resource: Resource) -> u64 {
        let limit = self.of_user(account).of(resource);
        match resource {
            Resource::Fds | Resource::Areas if account.owner => limit / 4 * 3,
            _ => limit.div_ceil(2),
        }
    }
}

/// Something that is not to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    resource: Resource,
    used: u64,
    limit: u64,
    whose: Whose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Program,
    User,
    Others,
    Machine,
}

impl Exceeded {
    /// For people: which quota of whom, how much is used, and what to do.
    pub fn text(&self, user: &str, account: Account) -> String {
        let Self { resource, .. } = *self;
        let (used, limit) = (shown(resource, self.used), shown(resource, self.limit));
        let of = format!("quota `{resource}`");
        let raise = match account.owner {
            true => "give some back first".to_owned(),
            false => format!("give some back, or ask the card's administrator for --quota {resource}=MORE"),
        };
        match self.whose {
            Whose::Program => format!(
                "{of}: this program (process {}) has {used} of the {limit} that one program of user {user} gets, which \
                 leaves something to that user's others; {raise}",
                account.pid
            ),
            Whose::User => format!("{of}: user {user} has {used} of {limit}; {raise}"),
            Whose::Others => format!(
                "{of}: all users but the owner of the card have {used} of {limit} together; the rest is kept for the \
                 owner; try again when somebody has left"
            ),
            Whose::Machine => format!("{of}: {used} of {limit} that this machine has are used; give some back first"),
        }
    }
}

fn shown(resource: Resource, amount: u64) -> String {
    if resource.is_bytes() && amount >= 1 << 20 { format!("{} MiB", amount >> 20) } else { amount.to_string() }
}

/// What everybody has.
#[derive(Debug)]
struct Books {
    limits: Limits,
    users: HashMap<u32, Amounts>,
    programs: HashMap<(u32, u32), Amounts>,
    others: Amounts,
    all: Amounts,
}

impl Books {
    fn check(&self, account: Account, wanted: &Amounts) -> Result<(), Exceeded> {
        let user = self.users.get(&account.uid).copied().unwrap_or_default();
        let program = self.programs.get(&(account.uid, account.pid)).copied().unwrap_or_default();
        for resource in RESOURCES.into_iter().filter(|&resource| wanted.of(resource) > 0) {
            let limits = [
                (Whose::Program, program, self.limits.of_program(account, resource)),
                (Whose::User, user, self.limits.of_user(account).of(resource)),
                (Whose::Others, self.others, self.limits.others.of(resource)),
                (Whose::Machine, self.all, self.limits.machine.of(resource)),
            ];
            for (whose, used, limit) in limits {
                let used = used.of(resource);
                let counts = whose != Whose::Others || !account.owner;
                if counts && used.checked_add(wanted.of(resource)).is_none_or(|sum| sum > limit) {
                    return Err(Exceeded { resource, used, limit, whose });
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, account: Account, amounts: &Amounts) {
        self.users.entry(account.uid).or_default().add(amounts);
        self.programs.entry((account.uid, account.pid)).or_default().add(amounts);
        self.all.add(amounts);
        if !account.owner {
            self.others.add(amounts);
        }
    }

    fn sub(&mut self, account: Account, amounts: &Amounts) {
        self.all.sub(amounts);
        if !account.owner {
            self.others.sub(amounts);
        }
        let program = (account.uid, account.pid);
        self.users.entry(account.uid).or_default().sub(amounts);
        self.programs.entry(program).or_default().sub(amounts);
        // Who has nothing is forgotten, or programs that come and go would fill the books.
        self.users.retain(|&uid, has| uid != account.uid || *has != Amounts::default());
        self.programs.retain(|&other, has| other != program || *has != Amounts::default());
    }
}

/// The books of a card.
#[derive(Clone, Debug)]
pub(crate) struct Ledger(Arc<Mutex<Books>>);

impl Ledger {
    /// Books in which nobody has anything.
    pub fn new(limits: Limits) -> Self {
        let (others, all) = Default::default();
        let books = Books { limits, users: HashMap::new(), programs: HashMap::new(), others, all };
        Self(Arc::new(Mutex::new(books)))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives somebody what is wanted, all of it or nothing.
    pub fn charge(&self, account: Account, amounts: Amounts) -> Result<Charge, Exceeded> {
        let mut books = self.books();
        books.check(account, &amounts)?;
        books.add(account, &amounts);
        Ok(Charge { ledger: self.clone(), account, amounts })
    }

    /// What users have, by number.
    pub fn users(&self) -> Vec<(u32, Amounts)> {
        let mut users: Vec<(u32, Amounts)> = self.books().users.iter().map(|(&uid, &has)| (uid, has)).collect();
        users.sort_unstable_by_key(|&(uid, _)| uid);
        users
    }

    /// What a user may have.
    pub fn limits_of(&self, account: Account) -> Amounts {
        *self.books().limits.of_user(account)
    }
}

/// Something that somebody has, until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    ledger: Ledger,
    account: Account,
    amounts: Amounts,
}

impl Charge {
    pub fn amounts(&self) -> &Amounts {
        &self.amounts
    }

    /// Adds what the same account has been charged elsewhere.
    pub fn merge(&mut self, mut other: Charge) {
        debug_assert_eq!(self.account, other.account);
        self.amounts.add(&std::mem::take(&mut other.amounts));
    }

    /// Gives some of it back.
    pub fn give_back(&mut self, less: &Amounts) {
        self.ledger.books().sub(self.account, less);
        self.amounts.sub(less);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ledger.books().sub(self.account, &self.amounts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Resource::{Areas, Memory, Queues};

    const OWNER: Account = Account { uid: 7, pid: 1, owner: true };
    const BOB: Account = Account { uid: 1000, pid: 2, owner: false };
    const BOBS_OTHER: Account = Account { uid: 1000, pid: 3, owner: false };

    fn ledger(quota: &str) -> Ledger {
        let mut limits = Quota::default();
        limits.set(quota).unwrap();
        Ledger::new(Limits::of(&limits, 65_530, 20_000, 8 << 30))
    }

    fn queues(count: u64) -> Amounts {
        Amounts::default().with(Queues, count)
    }

    #[test]
    fn a_program_gets_half_of_what_its_user_gets() {
        let ledger = ledger("queues=4");
        let one = ledger.charge(BOB, queues(2)).unwrap();
        let refused = ledger.charge(BOB, queues(1)).unwrap_err().text("bob", BOB);
        assert!(refused.contains("process 2) has 2 of the 2 that one program of user bob gets"), "{refused}");
        let other = ledger.charge(BOBS_OTHER, queues(2)).unwrap();
        let third = Account { pid: 4, ..BOB };
        let refused = ledger.charge(third, queues(1)).unwrap_err().text("bob", third);
        assert!(refused.contains("user bob has 4 of 4") && refused.contains("--quota queues=MORE"), "{refused}");
        drop(one);
        ledger.charge(third, queues(2)).unwrap();
        drop(other);
        assert_eq!(ledger.users(), []);
        let books = ledger.books();
        assert!(books.programs.is_empty() && books.all == Amounts::default() && books.others == Amounts::default());
    }

    #[test]
    fn others_together_leave_a_reserve_to_the_owner() {
        let ledger = ledger("memory=3G,areas=100000");
        let memory = |gib: u64| Amounts::default().with(Memory, gib << 29);
        let users: Vec<Account> = (0..4).map(|at| Account { uid: 2000 + at, pid: at, owner: false }).collect();
        let charges: Vec<_> = users.iter().filter_map(|&user| ledger.charge(user, memory(3)).ok()).collect();
        assert_eq!(charges.len(), 2, "of 8 GiB others get 4");
        let refused = ledger.charge(users[3], memory(3)).unwrap_err().text("eve", users[3]);
        assert!(refused.contains("all users but the owner"), "{refused}");
        let owned = ledger.charge(OWNER, Amounts::default().with(Memory, 100 << 30)).unwrap();
        // What the process itself is limited in stays below the limit of the system, whoever asks.
        let areas = |count| Amounts::default().with(Areas, count);
        let (most, half) = (65_530 - AREAS_KEPT, ledger.charge(users[0], areas(30_000)).unwrap());
        assert!(ledger.charge(users[1], areas(1_000)).is_err());
        let rest = ledger.charge(OWNER, areas(most - 30_000)).unwrap();
        assert!(ledger.charge(Account { pid: 9, ..OWNER }, areas(1)).is_err());
        drop((half, rest, owned, charges));
        assert_eq!(ledger.users(), []);
    }

    #[test]
    fn all_or_nothing() {
        let ledger = ledger("queues=2,memory=1M");
        let both = queues(1).with(Memory, 2 << 20);
        let refused = ledger.charge(BOB, both).unwrap_err().text("bob", BOB);
        assert!(refused.contains("quota `memory`"), "{refused}");
        assert_eq!(ledger.users(), []);
        assert!(ledger.charge(BOB, queues(u64::MAX)).is_err());
    }
}
