//! What the card has to say beside its counters: warnings of ports and queues, on standard error.

use std::io;

use tracing_subscriber::filter::LevelFilter;

/// How much is shown: off, error, warn (the default), info, debug or trace.
const VARIABLE: &str = "MILLRACE_LOG";

/// Shows events from now on.
pub fn show() {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let level = wanted.parse().unwrap_or(LevelFilter::WARN);
    let shown = tracing_subscriber::fmt().with_writer(io::stderr).with_target(false).with_ansi(false);
    // Fails only if somebody in this process listens already.
    let _ = shown.compact().with_max_level(level).try_init();
}
