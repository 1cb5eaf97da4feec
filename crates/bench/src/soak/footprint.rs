//! What a card takes of the system: fds, mappings, memory, threads, and the queues that are open on it.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use millrace_tool::failure::{Failure, While};
use millrace_tool::host::Device;
use millrace_tool::output::Row;

use crate::rig::Rig;

/// Mappings that an allocator may have more, of no shared memory.
const SPARE_MAPS: u64 = 16;
/// Memory that it may have more, in KiB, and of what there was the part.
const SPARE_KIB: u64 = 32 << 10;
const SPARE_PART: u64 = 10;
/// Between two looks.
const NAP: Duration = Duration::from_millis(200);
/// Looks in a row that have to be alike before the card counts as settled: for longer than a thread stays that has closed what the
/// killed have left and is not needed any more.
const ALIKE: u32 = 8;

/// What a card takes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Open fds.
    fds: u64,
    /// Mappings of memory that is shared with programs.
    shared_maps: u64,
    /// All mappings.
    maps: u64,
    threads: u64,
    /// Resident memory, shared memory included, in KiB.
    resident_kib: u64,
    /// Openers of queues, all queues together.
    openers: u64,
}

/// The thread that rings for a user whose wakes were slow. There is one of each user, from the moment on that the machine is so busy
/// that this seems so, and as long as he has bells: it is no leak.
const BELLS: &str = "millrace-bells";

/// How many threads there are, without one that rings for the user of all programs here.
fn count_threads(names: &[String]) -> u64 {
    let bells = names.iter().filter(|name| *name == BELLS).count();
    (names.len() - bells.min(1)) as u64
}

/// The names of its threads, which say whose one too many is.
fn thread_names(card: &Rig) -> Vec<String> {
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    let pid = card.process().map_or(0, |pid| pid.as_raw_nonzero().get());
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
}

impl Footprint {
    fn of(card: &Rig) -> Result<Self, Failure> {
        let pid = card.process().ok_or_else(|| Failure::Found("the card is none of ours".to_owned()))?;
        let folder = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|source| Failure::File { doing: "cannot read", path, source })
        };
        let (maps, status) = (read("maps")?, read("status")?);
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
            line.and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        let path = folder.join("fd");
        let fds = fs::read_dir(&path).map_err(|source| Failure::File { doing: "cannot read", path, source })?;
        let device = Device::open(card.device()).doing(|| "cannot open the card".to_owned())?;
        let stats = device.stats().doing(|| "cannot read its statistics".to_owned())?;
        Ok(Self {
            fds: fds.count() as u64,
            shared_maps: maps.lines().filter(|line| line.contains("memfd:")).count() as u64,
            maps: maps.lines().count() as u64,
            threads: count_threads(&thread_names(card)),
            resident_kib: number("VmRSS:"),
            openers: stats.queues.iter().map(|queue| queue.holders.len() as u64).sum(),
        })
    }

    /// The footprint when fds, mappings, threads and queues no longer change.
    pub fn settled(card: &Rig, patience: Duration) -> Result<Self, Failure> {
        let (start, mut last, mut alike) = (Instant::now(), Self::of(card)?, 0);
        while alike < ALIKE && start.elapsed() < patience {
            thread::sleep(NAP);
            let now = Self::of(card)?;
            let lasting = |it: &Self| (it.fds, it.shared_maps, it.threads, it.openers);
            let same = lasting(&now) == lasting(&last);
            alike = if same { alike + 1 } else { 0 };
            last = now;
        }
        Ok(last)
    }

    /// The footprint once it is that of `before`, or after `patience`, and what it is above it.
    pub fn compared(card: &Rig, before: &Self, patience: Duration) -> Result<(Self, Vec<String>), Failure> {
        let start = Instant::now();
        loop {
            let after = Self::of(card)?;
            let mut leaks = before.leaks(&after);
            if leaks.is_empty() || start.elapsed() > patience {
                if after.threads > before.threads {
                    leaks.push(format!("its threads are {}", thread_names(card).join(", ")));
                }
                return Ok((after, leaks));
            }
            thread::sleep(NAP);
        }
    }

    fn leaks(&self, after: &Self) -> Vec<String> {
        let memory = self.resident_kib + self.resident_kib / SPARE_PART + SPARE_KIB;
        let limits = [
            ("fds", after.fds, self.fds),
            ("mappings of shared memory", after.shared_maps, self.shared_maps),
            ("mappings", after.maps, self.maps + SPARE_MAPS),
            ("threads", after.threads, self.threads),
            ("KiB of memory", after.resident_kib, memory),
            ("openers of queues", after.openers, self.openers),
        ];
        let leak = |&(name, now, limit): &(&str, u64, u64)| {
            (now > limit).then(|| format!("a leak: the card has {now} {name}, and at most {limit} were expected"))
        };
        limits.iter().filter_map(leak).collect()
    }

    /// Both in one row.
    pub fn beside(&self, after: &Self, row: Row) -> Row {
        row.count("fds_before", self.fds)
            .count("fds_after", after.fds)
            .count("shared_maps_before", self.shared_maps)
            .count("shared_maps_after", after.shared_maps)
            .count("maps_before", self.maps)
            .count("maps_after", after.maps)
            .count("threads_before", self.threads)
            .count("threads_after", after.threads)
            .count("resident_kib_before", self.resident_kib)
            .count("resident_kib_after", after.resident_kib)
            .count("openers_before", self.openers)
            .count("openers_after", after.openers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_the_footprint_is_a_leak_with_a_name() {
        let before = Footprint { fds: 40, shared_maps: 20, maps: 90, threads: 4, resident_kib: 100_000, openers: 8 };
        assert_eq!(before.leaks(&before), [""; 0]);
        let allowed = Footprint { maps: 106, resident_kib: 130_000, fds: 39, ..before };
        assert_eq!(before.leaks(&allowed), [""; 0]);
        for (after, name) in [
            (Footprint { fds: 41, ..before }, "fds"),
            (Footprint { shared_maps: 21, ..before }, "mappings of shared memory"),
            (Footprint { maps: 107, ..before }, "mappings"),
            (Footprint { threads: 5, ..before }, "threads"),
            (Footprint { resident_kib: 150_000, ..before }, "memory"),
            (Footprint { openers: 9, ..before }, "openers"),
        ] {
            let leaks = before.leaks(&after);
            assert!(leaks.len() == 1 && leaks[0].contains(name), "{leaks:?}");
        }
    }

    #[test]
    fn one_thread_that_rings_is_not_counted() {
        let count = |names: &[&str]| count_threads(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        assert_eq!(count(&["millrace", "millrace-card0"]), 2);
        assert_eq!(count(&["millrace", BELLS, "millrace-card0"]), 2);
        assert_eq!(count(&["millrace", BELLS, BELLS]), 2, "of one user there is one");
    }
}
