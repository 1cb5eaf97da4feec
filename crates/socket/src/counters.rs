//! What became of connections, and why: counted for each process, and said where `MILLRACE_STREAMS` wants it.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a connection stays with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Reason {
    /// The other end has not this library, is of another user, or sees other processes or other memory.
    Alone,
    /// The other end is on another host, or seems to be.
    Remote,
    /// No TCP.
    Protocol,
    /// The program has asked for something that only the kernel does, such as urgent data.
    Wanted,
    /// The connection was over before the ends had met.
    Short,
    /// No more files can be open.
    Files,
    /// No memory.
    Memory,
    /// `/dev/shm` cannot be used, or the folder there belongs to somebody else.
    Folder,
    /// What was offered is no memory of ours.
    Foreign,
    /// This kernel does not say what is needed (it is older than 5.14).
    Kernel,
    /// It was handed to another process.
    Passed,
}

const REASONS: [(&str, Reason); 11] = [
    ("alone", Reason::Alone),
    ("remote", Reason::Remote),
    ("protocol", Reason::Protocol),
    ("wanted", Reason::Wanted),
    ("short", Reason::Short),
    ("files", Reason::Files),
    ("memory", Reason::Memory),
    ("folder", Reason::Folder),
    ("foreign", Reason::Foreign),
    ("kernel", Reason::Kernel),
    ("passed", Reason::Passed),
];

/// What is counted beside the reasons.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Count {
    /// Connections that were looked at.
    Connections,
    /// Those that met.
    Met,
    /// Those that this process has from the one that it was before.
    Kept,
    /// Bytes written to rings.
    Sent,
    /// Bytes read from rings.
    Received,
    /// Doorbells rung.
    Bells,
    /// Times that a thread slept in the kernel for connections that met.
    Sleeps,
    /// Handing over refused.
    Refused,
    /// The other end has written nonsense.
    Malformed,
    /// Bytes that came by TCP where only doorbells may come, and were none: the other end has written past the library.
    Stray,
}

const COUNTS: [(&str, Count); 10] = [
    ("connections", Count::Connections),
    ("met", Count::Met),
    ("kept", Count::Kept),
    ("sent", Count::Sent),
    ("received", Count::Received),
    ("doorbells", Count::Bells),
    ("sleeps", Count::Sleeps),
    ("refused", Count::Refused),
    ("malformed", Count::Malformed),
    ("stray", Count::Stray),
];

static COUNTED: [AtomicU64; COUNTS.len()] = [const { AtomicU64::new(0) }; COUNTS.len()];
static KERNEL: [AtomicU64; REASONS.len()] = [const { AtomicU64::new(0) }; REASONS.len()];

impl Reason {
    fn name(self) -> &'static str {
        REASONS[self as usize].0
    }
}

/// Counts something.
#[inline]
pub(crate) fn count(what: Count, many: u64) {
    COUNTED[what as usize].fetch_add(many, Ordering::Relaxed);
}

/// A connection met.
pub(crate) fn met(ends: &str) {
    count(Count::Met, 1);
    log(ends, "met", None);
}

/// A connection stays with the kernel.
pub(crate) fn left(ends: &str, reason: Reason) {
    KERNEL[reason as usize].fetch_add(1, Ordering::Relaxed);
    log(ends, "kernel", Some(reason));
}

/// The child of a `fork` begins with nothing.
pub(crate) fn forget() {
    COUNTED.iter().chain(&KERNEL).for_each(|count| count.store(0, Ordering::Relaxed));
}

#[derive(Serialize)]
struct Line<'a> {
    process: u32,
    connection: &'a str,
    way: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

fn log(connection: &str, way: &str, reason: Option<Reason>) {
    let Some(file) = crate::library().config.log.as_deref() else { return };
    let line = Line { process: crate::sys::process(), connection, way, reason: reason.map(Reason::name) };
    crate::files::add_line(file, &serde_json::to_string(&line).unwrap_or_default());
}

/// Adds a line about this process to the file for that, if it has had connections.
pub(crate) fn tell() {
    let Some(file) = crate::library().config.stats.as_deref() else { return };
    let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
    if COUNTED.iter().all(|count| value(count) == 0) {
        return;
    }
    let mut line = serde_json::Map::new();
    line.insert("process".to_owned(), crate::sys::process().into());
    line.insert("program".to_owned(), crate::files::text("/proc/self/comm").unwrap_or_default().trim().into());
    for (name, at) in COUNTS {
        line.insert(name.to_owned(), value(&COUNTED[at as usize]).into());
    }
    let reasons = REASONS.map(|(name, at)| (name.to_owned(), value(&KERNEL[at as usize]).into()));
    line.insert("kernel".to_owned(), serde_json::Value::Object(reasons.into_iter().collect()));
    crate::files::add_line(file, &serde_json::Value::Object(line).to_string());
    forget();
}
