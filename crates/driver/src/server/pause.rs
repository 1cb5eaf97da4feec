//! What is not looked at for a moment: what could not be served and would be reported again at once.

use std::time::{Duration, Instant};

/// How long.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(super) struct Pause {
    until: Option<Instant>,
    listener: bool,
    connections: Vec<u64>,
}

impl Pause {
    pub fn listener(&mut self) {
        self.listener = true;
        self.begin();
    }

    pub fn connection(&mut self, number: u64) {
        self.connections.push(number);
        self.begin();
    }

    fn begin(&mut self) {
        self.until.get_or_insert_with(|| Instant::now() + PAUSE);
    }

    /// How long it lasts yet; `None`: there is none.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Once it is over: whether the listener, and which connections, are to be looked at again.
    pub fn over(&mut self) -> Option<(bool, Vec<u64>)> {
        if !self.left()?.is_zero() {
            return None;
        }
        let Self { listener, connections, .. } = core::mem::take(self);
        Some((listener, connections))
    }
}
