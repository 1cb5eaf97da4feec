//! A capture that takes frames as they pass, and is brought up to date now and then.

use super::{CaptureTime, WriteError, Writer};
use millrace_dma::Span;
use std::{
    fs::File,
    io::Write,
    time::{Duration, Instant},
};

/// How long a frame may wait in the writer's buffer while nothing follows it.
const FILE_LAG: Duration = Duration::from_millis(100);

/// A writer with its clock.
pub(crate) struct Recorder<W: Write = File> {
    writer: Writer<W>,
    /// When to bring the file up to date, if it is not.
    flush_at: Option<Instant>,
}

impl<W: Write> Recorder<W> {
    pub fn new(writer: Writer<W>) -> Self {
        Self { writer, flush_at: None }
    }

    /// Adds a frame, stamped with the time of day.
    pub fn record(&mut self, frame: Span<'_>) -> Result<(), WriteError> {
        self.writer.write_span(CaptureTime::now(), frame)
    }

    /// Writes when the oldest frame has waited long enough: not per burst, or a burst of one would be a system call.
    pub fn bring_up_to_date(&mut self) -> Result<(), WriteError> {
        if self.writer.pending().frames == 0 {
            self.flush_at = None;
            return Ok(());
        }
        let now = Instant::now();
        if now < *self.flush_at.get_or_insert(now + FILE_LAG) {
            return Ok(());
        }
        self.flush_at = None;
        self.flush()
    }

    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.writer.flush()
    }

    /// What is not in the file yet.
    #[cfg(test)]
    pub fn pending(&self) -> super::Tally {
        self.writer.pending()
    }

    /// When to call [`Self::bring_up_to_date`] next.
    pub fn next_due(&self) -> Option<Instant> {
        self.flush_at
    }
}
