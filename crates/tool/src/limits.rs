//! Limits of the process that a card with many queues would meet.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files that a card with 4,096 queue pairs in this process needs, with some to spare.
const FILES: u64 = 1 << 17;

/// Raises the number of files that may be open (each queue has several: its memory, and what wakes its sides) as far as
/// the system lets us. Best effort: who needs more than there are is told so when a queue is opened.
pub fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let (Some(soft), Some(hard)) = (current, maximum) else { return };
    if soft >= FILES {
        return;
    }
    // Only root may raise the upper limit.
    let wanted = [FILES.max(hard), hard];
    let raise = |most: &u64| {
        let limit = Rlimit { current: Some(FILES.min(*most)), maximum: Some(*most) };
        setrlimit(Resource::Nofile, limit).is_ok()
    };
    let _ = wanted.iter().any(raise);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_the_system_allows() {
        raise();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert!(current >= maximum || current >= Some(FILES), "{current:?} of {maximum:?}");
    }
}
