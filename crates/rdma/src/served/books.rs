//! What programs and users have of what all of them share, and how much more they may have.
//!
//! A program has limits of its own. Beside them nobody takes all, however many programs he has: a program leaves at least as much as it has
//! to others of its user; and users other than the one who runs the card have a half of everything together, of which
//! one leaves at least as much as he has to the others. So whoever comes next finds something.
//!
//! What a program gives up is its user's until the card has it no longer, either: another thread unmaps and drops it, as late as descriptors
//! before it take to be closed. That is a [`Debt`], which is dropped with it.

use super::service::ServeError;
use rustc_hash::FxHashMap;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Debts that are looked after at a time.
const SETTLED: usize = 256;

/// Who pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// The user.
    pub uid: u32,
    /// It is the one who runs the card, or root.
    pub is_owner: bool,
}

/// So much of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Protection domains.
    pub domains: u64,
    /// Parts of memory that are mapped: one or more for each region.
    pub regions: u64,
    /// Bytes registered.
    pub bytes: u64,
    /// Completion queues.
    pub queues: u64,
    /// Completions for which queues have room.
    pub completions: u64,
    /// Shared receive queues.
    pub shared: u64,
    /// Queue pairs.
    pub pairs: u64,
    /// Bytes of the queues of queue pairs, and of shared receive queues.
    pub queue_bytes: u64,
    /// Services of librdmacm, which are its ports.
    pub services: u64,
}

impl Amounts {
    /// All of them, and what each is called.
    fn rows(&self) -> [(u64, &'static str); 9] {
        let Self { domains, regions, bytes, queues, completions, shared, pairs, queue_bytes, services } = *self;
        [
            (domains, "protection domains"),
            (regions, "parts of memory"),
            (bytes, "bytes registered"),
            (queues, "completion queues"),
            (completions, "completions"),
            (shared, "shared receive queues"),
            (pairs, "queue pairs"),
            (queue_bytes, "bytes of queues of requests"),
            (services, "services"),
        ]
    }

    fn of_each(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            domains: of(self.domains, other.domains),
            regions: of(self.regions, other.regions),
            bytes: of(self.bytes, other.bytes),
            queues: of(self.queues, other.queues),
            completions: of(self.completions, other.completions),
            shared: of(self.shared, other.shared),
            pairs: of(self.pairs, other.pairs),
            queue_bytes: of(self.queue_bytes, other.queue_bytes),
            services: of(self.services, other.services),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        self.of_each(more, u64::saturating_add)
    }

    /// Without these, and nothing where there is less.
    #[must_use]
    pub fn minus(&self, less: &Self) -> Self {
        self.of_each(less, u64::saturating_sub)
    }
}

/// How much there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Of one program.
    pub program: Amounts,
    /// Of all together.
    pub all: Amounts,
}

impl Default for Quota {
    fn default() -> Self {
        let program = Amounts {
            domains: 256,
            regions: 4096,
            bytes: 1 << 38,
            queues: 1024,
            completions: 1 << 20,
            shared: 256,
            pairs: 1024,
            queue_bytes: 256 << 20,
            services: 1024,
        };
        let all = Amounts {
            // Those of the engine.
            domains: 16_384,
            queues: 16_384,
            shared: 16_384,
            pairs: 16_384,
            // Mappings of the card's process, of which Linux allows 65,530.
            regions: 16_384,
            // Of the 128 TiB that a process has.
            bytes: 1 << 46,
            completions: 1 << 24,
            queue_bytes: 4 << 30,
            // The ports of a port space.
            services: 65_536,
        };
        Self { program, all }
    }
}

/// What a user has.
#[derive(Default)]
struct User {
    has: Amounts,
    /// What of it none of his programs has any more.
    owed: Amounts,
}

/// What everybody has.
pub struct Books {
    quota: Quota,
    users: FxHashMap<u32, User>,
    /// Users other than the owner of the card.
    others: Amounts,
    all: Amounts,
    /// Debts that are over.
    over: (Sender<Paid>, Receiver<Paid>),
}

/// So much is not there any more, and who has paid for it.
type Paid = (Account, Amounts);

/// What is paid for something that no program has any more, and that is to be dropped before this is, by any thread.
pub struct Debt(Sender<Paid>, Paid);

impl Drop for Debt {
    fn drop(&mut self) {
        // Without books nobody needs to know.
        let _ = self.0.send(self.1);
    }
}

impl Books {
    /// Nobody has anything.
    pub fn new(quota: Quota) -> Self {
        let (users, others, all) = Default::default();
        Self { quota, users, others, all, over: channel() }
    }

    /// Whether a program that has `own` may have so much more.
    ///
    /// # Errors
    /// [`ServeError::Quota`], [`ServeError::Crowded`].
    pub fn check(&mut self, account: Account, own: &Amounts, more: &Amounts) -> Result<(), ServeError> {
        self.settle();
        let user = self.users.get(&account.uid).map(|user| user.has).unwrap_or_default();
        let of = |amounts: &Amounts| amounts.rows().map(|(amount, _)| amount);
        let (own, user, others, all) = (of(own), of(&user), of(&self.others), of(&self.all));
        let (limits, most) = (of(&self.quota.program), of(&self.quota.all));
        for (at, (more, what)) in more.rows().into_iter().enumerate().filter(|(_, (more, _))| *more > 0) {
            let limit = limits[at];
            let wanted = own[at].checked_add(more).filter(|wanted| *wanted <= limit);
            let wanted = wanted.ok_or(ServeError::Quota { what, limit })?;
            let left = most[at].saturating_sub(all[at]);
            // Of what other users than the owner have, a half of what the others of these have left.
            let share = (most[at] / 2).saturating_sub(others[at] - if account.is_owner { 0 } else { user[at] }) / 2;
            let own_left = if account.is_owner { left } else { share.saturating_sub(user[at]) };
            if more > left || wanted > own_left {
                return Err(ServeError::Crowded { what });
            }
        }
        Ok(())
    }

    /// A user has so much more.
    pub fn add(&mut self, account: Account, more: &Amounts) {
        let user = self.users.entry(account.uid).or_default();
        user.has = user.has.plus(more);
        self.all = self.all.plus(more);
        if !account.is_owner {
            self.others = self.others.plus(more);
        }
    }

    /// He has so much less, at once.
    pub fn sub(&mut self, account: Account, less: &Amounts) {
        if let Some(user) = self.users.get_mut(&account.uid) {
            user.has = user.has.minus(less);
            // Who has nothing is forgotten.
            if user.has == Amounts::default() && user.owed == Amounts::default() {
                self.users.remove(&account.uid);
            }
        }
        self.all = self.all.minus(less);
        if !account.is_owner {
            self.others = self.others.minus(less);
        }
    }

    /// No program has that any more; it stays in the books until what is returned is dropped.
    pub fn owe(&mut self, account: Account, less: &Amounts) -> Debt {
        // No more of them are over than there were: their number is bounded by that of things.
        self.settle();
        let user = self.users.entry(account.uid).or_default();
        user.owed = user.owed.plus(less);
        Debt(self.over.0.clone(), (account, *less))
    }

    /// Whether a user has something of that kind that none of his programs has any more.
    pub fn owes(&self, account: Account, what: &str) -> bool {
        let rows = self.users.get(&account.uid).map(|user| user.owed.rows());
        rows.is_some_and(|rows| rows.iter().any(|(amount, name)| *name == what && *amount > 0))
    }

    fn settle(&mut self) {
        for _ in 0..SETTLED {
            let Ok((account, less)) = self.over.1.try_recv() else { return };
            if let Some(user) = self.users.get_mut(&account.uid) {
                user.owed = user.owed.minus(&less);
            }
            self.sub(account, &less);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWNER: Account = Account { uid: 0, is_owner: true };

    fn pairs(pairs: u64) -> Amounts {
        Amounts { pairs, ..Amounts::default() }
    }

    fn books(program: u64, all: u64) -> Books {
        Books::new(Quota { program: pairs(program), all: pairs(all) })
    }

    /// One at a time, until there are no more.
    fn fill(books: &mut Books, account: Account) -> u64 {
        let mut has = 0;
        while books.check(account, &pairs(has), &pairs(1)).is_ok() {
            books.add(account, &pairs(1));
            has += 1;
        }
        has
    }

    #[test]
    fn a_user_leaves_a_half_however_many_programs_he_has() {
        let mut books = books(1 << 20, 1024);
        let [eve, bob, tom] = [1000, 1001, 1002].map(|uid| Account { uid, is_owner: false });
        let of_eve: u64 = (0..24).map(|_| fill(&mut books, eve)).sum();
        assert_eq!(of_eve, 256, "a half of what all others have together");
        let of_bob: u64 = (0..24).map(|_| fill(&mut books, bob)).sum();
        assert_eq!(of_bob, 128);
        assert_eq!(fill(&mut books, tom), 32, "and a program has a half of its user's");
        assert_eq!(fill(&mut books, OWNER), (1024 - 256 - 128 - 32) / 2);
        books.sub(eve, &pairs(256));
        assert_eq!(fill(&mut books, bob), 56, "a half of the 112 that he has left of 240");
        assert!(books.check(OWNER, &pairs(0), &pairs(u64::MAX)).is_err());
    }

    #[test]
    fn a_program_has_a_limit_of_its_own() {
        let mut books = books(8, 1024);
        assert_eq!(fill(&mut books, OWNER), 8);
        let refused = books.check(OWNER, &pairs(8), &pairs(1)).unwrap_err();
        assert!(matches!(refused, ServeError::Quota { what: "queue pairs", limit: 8 }));
    }

    #[test]
    fn what_is_given_up_is_paid_for_until_it_is_dropped() {
        let mut books = books(8, 32);
        let [eve, bob] = [1000, 1001].map(|uid| Account { uid, is_owner: false });
        books.add(eve, &pairs(4));
        let debt = books.owe(eve, &pairs(4));
        let owes = |books: &Books, account| books.owes(account, "queue pairs");
        assert!(owes(&books, eve) && !owes(&books, bob) && !books.owes(eve, "completions"), "nothing else comes back");
        assert_eq!((fill(&mut books, bob), fill(&mut books, eve)), (3, 1), "as if eve had it");
        std::thread::spawn(move || drop(debt)).join().unwrap();
        assert_eq!(fill(&mut books, eve), 3);
        assert!(!owes(&books, eve));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is taken and given back, in any order: others never have more than a half, and the books end empty.
        #[test]
        fn the_books_hold(steps in prop::collection::vec((0usize..6, 1u64..200, any::<bool>()), 1..200)) {
            let mut books = books(1 << 20, 1000);
            let mut programs = [0_u64; 6];
            let account = |at: usize| Account { uid: (at / 2) as u32, is_owner: at < 2 };
            for (at, amount, takes) in steps {
                if takes && books.check(account(at), &pairs(programs[at]), &pairs(amount)).is_ok() {
                    books.add(account(at), &pairs(amount));
                    programs[at] += amount;
                } else if !takes {
                    let amount = amount.min(programs[at]);
                    books.sub(account(at), &pairs(amount));
                    programs[at] -= amount;
                }
                prop_assert!(programs[2..].iter().sum::<u64>() <= 500 && programs.iter().sum::<u64>() <= 1000);
                prop_assert!(programs[2] + programs[3] <= 250 && programs[4] + programs[5] <= 250);
            }
            for (at, has) in programs.into_iter().enumerate() {
                books.sub(account(at), &pairs(has));
            }
            prop_assert_eq!((books.all, books.others, books.users.len()), (pairs(0), pairs(0), 0));
        }
    }
}
