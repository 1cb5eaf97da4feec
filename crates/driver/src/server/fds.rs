//! Fds are what all programs share here. Some are kept back: for clean-up, for the changes that the card's owner
//! asks for, and for what arrives with a request before it is known whether it is wanted.

use crate::codec::MOST_FDS;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Fds that programs cannot use up: as many as one message may bring, and some for ourselves.
const RESERVE: usize = MOST_FDS + 67;

/// How many fds there may be, and how many programs leave alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fds {
    limit: usize,
    reserve: usize,
}

impl Fds {
    /// Takes as many fds as the system allows: an open queue costs one as soon as its program has slept on it, and
    /// a shared one its memory's (`docs/decisions/0024-descriptors.md`).
    pub fn raise_limit() -> Self {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // Refused only if the limit is there already.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::of(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    fn of(limit: usize) -> Self {
        Self { limit, reserve: RESERVE.min(limit / 4) }
    }

    /// Most fds and mappings that the connections of one process may cost.
    pub fn of_one_process(&self) -> usize {
        (self.limit / 4).clamp(64, 4096)
    }

    /// Whether programs may have more, such as a connection, a queue or a mapping.
    pub fn has_some_left(&self) -> bool {
        self.leaves(self.reserve)
    }

    /// Whether there is something in the reserve for the card's owner and root: half of it stays for the card itself.
    pub fn has_reserve_left(&self) -> bool {
        self.leaves(self.reserve / 2)
    }

    fn leaves(&self, kept: usize) -> bool {
        self.limit == usize::MAX || open_now().saturating_add(kept) < self.limit
    }
}

/// Open fds of this process. Linux says so in one call since 6.2; before, they have to be counted.
fn open_now() -> usize {
    const FOLDER: &str = "/proc/self/fd";
    match rustix::fs::stat(FOLDER) {
        Ok(folder) if folder.st_size > 0 => folder.st_size as usize,
        _ => std::fs::read_dir(FOLDER).map_or(0, Iterator::count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_counted() {
        let before = open_now();
        let more: Vec<_> = (0..500).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests open and close meanwhile.
        assert!(open_now().abs_diff(before + 500) < 250, "{before}, then {}", open_now());
        drop(more);
    }

    #[test]
    fn the_owner_gets_in_when_the_others_have_all_of_theirs() {
        let open = open_now();
        // Other tests open and close meanwhile, hundreds at most.
        let full = Fds { limit: open + 10_000, reserve: 15_000 };
        assert!(!full.has_some_left() && full.has_reserve_left());
        let worse = Fds { limit: open + 10_000, reserve: 30_000 };
        assert!(!worse.has_reserve_left());
    }

    #[test]
    fn a_reserve_is_kept_of_any_limit() {
        assert_eq!(Fds::of(400).reserve, 100);
        assert_eq!(Fds::of(1 << 20).reserve, RESERVE);
        assert!(!Fds::of(4).has_some_left());
        assert!(Fds::of(usize::MAX).has_some_left());
    }
}
