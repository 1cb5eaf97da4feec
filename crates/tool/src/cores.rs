//! Which cores this process may use, and pinning to one of them.

use std::sync::LazyLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that the process was given when it started, before anything was pinned.
static GIVEN: LazyLock<Option<CpuSet>> = LazyLock::new(|| sched_getaffinity(None).ok());

/// The cores that the process may use, in ascending order; empty if the system does not say. What it says the first time
/// counts, so call this before [`pin`].
pub fn allowed() -> Vec<usize> {
    GIVEN.map_or_else(Vec::new, |set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Pins the calling thread to `core`; threads and processes that it starts inherit that. The error is a sentence.
pub fn pin(core: usize) -> Result<(), String> {
    if core >= CpuSet::MAX_CPU {
        return Err(format!("there is no core {core}"));
    }
    LazyLock::force(&GIVEN);
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|error| format!("cannot pin to core {core}: {error}"))
}

/// Whether a thread of this process can be pinned to `core`. The process may be pinned to another one: a benchmark starts
/// its card so.
pub fn can_be_had(core: usize) -> bool {
    std::thread::spawn(move || pin(core).is_ok()).join().unwrap_or(false)
}

/// Lets the calling thread use all cores again. Best effort: where that is denied, so was pinning.
pub fn unpin() {
    if let Some(set) = *GIVEN {
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowed_core_can_be_had_and_an_absent_one_cannot() {
        let given = allowed();
        let core = *given.last().unwrap();
        let now = || (0..CpuSet::MAX_CPU).filter(|core| sched_getaffinity(None).unwrap().is_set(*core)).count();
        std::thread::spawn(move || {
            pin(core).unwrap();
            assert_eq!(now(), 1);
            assert_eq!(allowed(), given);
            unpin();
            assert_eq!(now(), given.len());
            assert!(pin(100_000).is_err());
            // Also for one that is pinned to another.
            pin(given[0]).unwrap();
            assert!(given.iter().all(|core| can_be_had(*core)) && !can_be_had(1023));
        })
        .join()
        .unwrap();
    }
}
