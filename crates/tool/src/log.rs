//! What the card has to say beside its counters, on standard error: warnings of ports and queues, who comes and goes.

use std::io;

pub use tracing_subscriber::filter::LevelFilter;

use crate::output::note;

/// How much is shown: off, error, warn, info, debug or trace.
pub const VARIABLE: &str = "MILLRACE_LOG";

/// Shows events from now on: as many as [`VARIABLE`] says, or up to `otherwise`.
pub fn show(otherwise: LevelFilter) {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let level = level(&wanted).unwrap_or_else(|| {
        note(format!("{VARIABLE}={wanted}: there are off, error, warn, info, debug and trace; it is {otherwise} now"));
        Some(otherwise)
    });
    let shown = tracing_subscriber::fmt().with_writer(io::stderr).with_target(false).with_ansi(false);
    // Fails only if somebody in this process listens already.
    let _ = shown.compact().with_max_level(level.unwrap_or(otherwise)).try_init();
}

/// The level of that name; `Some(None)` for nothing, which the library would take for `error`; `None` for nonsense.
fn level(wanted: &str) -> Option<Option<LevelFilter>> {
    if wanted.is_empty() { Some(None) } else { wanted.parse().ok().map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_not_a_level() {
        assert_eq!(level(""), Some(None));
        assert_eq!(level("debug"), Some(Some(LevelFilter::DEBUG)));
        assert_eq!(level("off"), Some(Some(LevelFilter::OFF)));
        assert_eq!(level("loud"), None);
    }
}
