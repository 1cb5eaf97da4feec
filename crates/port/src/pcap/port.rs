//! `pcap:FILE`: a wire whose frames come from a capture, go to one, or both.
//!
//! At full speed the source waits for the card. At recorded times or at a rate it imitates a wire, which waits for
//! nobody: a frame for which the card has no room is dropped and counted as [`DropReason::NoRoom`]. The clock of both
//! starts with the first call to [`PortQueue::receive`]; in a loop the first frame of a pass is due with the last frame
//! of the pass before, because a capture does not say how long to wait in between.

use super::{CaptureTime, ReadError, Reader, Recorder, WriteError, Writer};
use crate::{
    Accept, DropReason, PortCounters, PortQueue, Sink, TxOutcome,
    null::{Void, check_len},
    pacing::Stopwatch,
    spec::{Passes, PcapSpec, Speed},
};
use millrace_dma::Span;
use std::{
    fs::{self, File},
    io::{Read, Seek, Write},
    os::unix::fs::MetadataExt,
    sync::Arc,
    time::Instant,
};

/// Why a port on capture files cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The file to read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file to write.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A pipe, a device or a directory, which would stall the card or cannot be rewound.
    #[error("{0} is no regular file; copy the capture to a file first, or use a tap port for live traffic")]
    NotAFile(String),
    /// Writing would destroy what is to be read.
    #[error("{0} cannot be read and written at once; give `write=` another file")]
    SameFile(String),
}

/// A port on capture files.
pub struct PcapPort<R = File, W: Write = File> {
    source: Option<Source<R>>,
    sink: Option<Recorder<W>>,
    wire: Void,
    counters: Arc<PortCounters>,
}

/// Where frames come from.
struct Source<R> {
    reader: Reader<R>,
    speed: Speed,
    /// Passes to come after this one; `None` is without end.
    passes_left: Option<u64>,
    watch: Stopwatch,
    /// Frames of all passes so far.
    frames: u64,
    /// `frames` when this pass began.
    pass_began: u64,
    /// When the last frame was due, in nanoseconds after the first.
    due_ns: u64,
    /// Time of the first frame of this pass, and when that was due.
    first: Option<(CaptureTime, u64)>,
    /// When to look again.
    next_due_ns: u64,
    ended: bool,
    /// Records that are left out are logged once.
    warned: bool,
}

impl PcapPort {
    /// Opens the files of `spec` and looks at the first record, so that a file that can yield nothing is refused now.
    ///
    /// # Errors
    /// [`PortError`].
    pub fn open(spec: &PcapSpec) -> Result<Self, PortError> {
        let reader = match &spec.read {
            Some(path) => {
                // Before opening, because opening a pipe would wait for a writer.
                if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
                    return Err(PortError::NotAFile(path.clone()));
                }
                Some(Reader::open_for_port(path)?)
            }
            None => None,
        };
        if let (Some(reader), Some(path)) = (&reader, &spec.write) {
            let identity = |meta: fs::Metadata| (meta.dev(), meta.ino());
            let written = fs::metadata(path).map(identity).ok();
            if written.is_some() && reader.source().metadata().map(identity).ok() == written {
                return Err(PortError::SameFile(path.clone()));
            }
        }
        let mut port = Self::assemble(reader, None, spec);
        port.check_first_record()?;
        if let Some(path) = &spec.write {
            // Last, so that no file is overwritten in vain.
            port.sink = Some(Recorder::new(Writer::create_for_port(path)?));
        }
        Ok(port)
    }
}

impl<R: Read + Seek, W: Write> PcapPort<R, W> {
    fn assemble(reader: Option<Reader<R>>, writer: Option<Writer<W>>, spec: &PcapSpec) -> Self {
        let passes_left = match spec.passes {
            Passes::Times(times) => Some(times.get() - 1),
            Passes::Forever => None,
        };
        let source = reader.map(|reader| Source {
            reader,
            speed: spec.speed,
            passes_left,
            watch: Stopwatch::new(),
            frames: 0,
            pass_began: 0,
            due_ns: 0,
            first: None,
            next_due_ns: 0,
            ended: false,
            warned: false,
        });
        Self { source, sink: writer.map(Recorder::new), wire: Void::new(), counters: Arc::default() }
    }

    fn check_first_record(&mut self) -> Result<(), ReadError> {
        let Some(source) = &mut self.source else { return Ok(()) };
        match source.reader.peek_info() {
            Ok(_) => Ok(()),
            Err(error) if error.ends_stream() => Err(error),
            Err(error) => {
                source.left_out(&error, &self.counters);
                Ok(())
            }
        }
    }
}

impl<R: Read + Seek> Source<R> {
    fn can_wait(&self) -> bool {
        self.speed == Speed::Full
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink, counters: &PortCounters) -> (u64, u64) {
        let can_wait = self.can_wait();
        let now = if can_wait { 0 } else { self.watch.elapsed_ns() };
        self.next_due_ns = 0;
        let (mut frames, mut bytes) = (0, 0);
        // Records that are no frames count as well, or a file full of them would keep us here.
        for _ in 0..budget {
            if self.ended {
                break;
            }
            let frame = match self.reader.peek() {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    self.next_pass(counters);
                    continue;
                }
                Err(error) => {
                    self.left_out(&error, counters);
                    continue;
                }
            };
            let due = match self.speed {
                Speed::Full => 0,
                Speed::Fixed(rate) => rate.due_ns(self.frames),
                Speed::Recorded => {
                    let (time, due) = *self.first.get_or_insert((frame.time, self.due_ns));
                    // Captures run backwards at times; a wire cannot.
                    due.saturating_add(frame.time.nanos_since(time)).max(self.due_ns)
                }
            };
            if due > now {
                self.next_due_ns = due;
                break;
            }
            if let Err(reason) = check_len(frame.data.len()) {
                counters.count_rx_drops(reason, 1);
            } else {
                let len = frame.data.len() as u64;
                match sink.take(Span::from_slice(frame.data)) {
                    Accept::Taken => (frames, bytes) = (frames + 1, bytes + len),
                    Accept::Full if can_wait => break,
                    Accept::Full => counters.count_rx_drops(DropReason::NoRoom, 1),
                }
            }
            self.due_ns = due;
            self.frames += 1;
            self.reader.take();
        }
        (frames, bytes)
    }

    /// Begins the next pass, if there is one and this one had a frame: without, there would be no end.
    fn next_pass(&mut self, counters: &PortCounters) {
        if self.passes_left == Some(0) || self.frames == self.pass_began {
            self.ended = true;
            return;
        }
        self.passes_left = self.passes_left.map(|passes| passes - 1);
        (self.pass_began, self.first) = (self.frames, None);
        if let Err(error) = self.reader.rewind() {
            self.left_out(&error, counters);
        }
    }

    /// Counts and logs a record that is no frame, or the end that comes before the end.
    #[cold]
    fn left_out(&mut self, error: &ReadError, counters: &PortCounters) {
        counters.count_rx_drops(error.drop_reason(), 1);
        if error.ends_stream() {
            self.ended = true;
            crate::notice::warn(error.to_string());
        } else if !self.warned {
            self.warned = true;
            crate::notice::warn(format!("{error}; further ones in this file are only counted"));
        }
    }

    fn next_due(&self) -> Option<Instant> {
        // At full speed nothing starts the watch, so it says "now".
        (!self.ended).then(|| self.watch.at(self.next_due_ns))
    }
}

/// Takes one frame into the file.
fn record<W: Write>(sink: &mut Recorder<W>, frame: Span<'_>, counters: &PortCounters) -> TxOutcome {
    let outcome = match check_len(frame.len()) {
        Ok(()) => sink.record(frame).map_err(|error| {
            lost(&error, counters);
            DropReason::WriteFailed
        }),
        Err(reason) => Err(reason),
    };
    match outcome {
        Ok(()) => {
            counters.count_tx(1, frame.len() as u64);
            TxOutcome::Sent
        }
        Err(reason) => {
            counters.count_tx_drops(reason, 1);
            TxOutcome::Dropped(reason)
        }
    }
}

/// Takes back from the counters what was collected and did not get into the file.
#[cold]
fn lost(error: &WriteError, counters: &PortCounters) {
    if let WriteError::Write { lost, .. } = error {
        counters.take_back_tx(DropReason::WriteFailed, lost.frames, lost.bytes);
        crate::notice::warn(error.to_string());
    }
}

impl<R: Read + Seek + Send, W: Write + Send> PortQueue for PcapPort<R, W> {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        match &mut self.sink {
            Some(sink) => record(sink, frame, &self.counters),
            None => self.wire.transmit(frame, &self.counters),
        }
    }

    fn flush(&mut self) {
        if let Some(Err(error)) = self.sink.as_mut().map(Recorder::bring_up_to_date) {
            lost(&error, &self.counters);
        }
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        self.flush();
        let Some(source) = &mut self.source else { return 0 };
        let (frames, bytes) = source.receive(budget, sink, &self.counters);
        if frames > 0 {
            self.counters.count_rx(frames, bytes);
        }
        frames as usize
    }

    fn can_wait(&self) -> bool {
        self.source.as_ref().is_none_or(Source::can_wait)
    }

    fn next_due(&self) -> Option<Instant> {
        let read = self.source.as_ref().and_then(Source::next_due);
        let write = self.sink.as_ref().and_then(Recorder::next_due);
        read.into_iter().chain(write).min()
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

impl<R, W: Write> Drop for PcapPort<R, W> {
    fn drop(&mut self) {
        // Here and not in the writer's own drop, so that what is lost is counted.
        if let Some(Err(error)) = self.sink.as_mut().map(Recorder::flush) {
            lost(&error, &self.counters);
        }
    }
}

#[cfg(test)]
mod tests;
