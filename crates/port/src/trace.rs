//! `trace:FILE[,direction=both|rx|tx][,limit=N],port=(SPEC)`: a port around another, which writes to a capture what passes.
//!
//! A frame is written when the card, or the inner port, has taken it, with the time of day in nanoseconds. It is
//! written as it passes: one on which something is left to do ([`offload`](millrace_packet::offload)) has a checksum
//! that is not filled in yet, or is up to 64 KiB long. To tell the directions apart, trace each into a file of its own:
//! `trace:in.pcap,direction=rx,port=(trace:out.pcap,direction=tx,port=(tap:mill0))`.
//!
//! Of a wire with several queues each has its own file: `a.pcap` for the first, then `a-1.pcap`, `a-2.pcap`.
//!
//! The counters are those of the inner port. Nothing is lost when the file can take no more: frames pass on, and are
//! counted as [`Event::TraceLost`].

use crate::{
    Accept, Event, PortCounters, PortQueue, Sink, TxOutcome,
    pcap::{Recorder, WriteError, Writer},
    spec::{Directions, TraceSpec},
};
use millrace_dma::Span;
use millrace_packet::offload::{Offload, Offloads};
use std::{
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// A port whose frames are written to a file.
pub struct TracePort {
    inner: Box<dyn PortQueue>,
    directions: Directions,
    file: File,
}

/// The file and what may still be written to it.
struct File {
    recorder: Recorder,
    left: u64,
    /// Frames that are missing in it, until they are counted.
    lost: u64,
    warned: bool,
}

impl TracePort {
    /// Wraps each queue of a wire.
    ///
    /// # Errors
    /// [`WriteError::Create`].
    pub fn wrap(spec: &TraceSpec, queues: Vec<Box<dyn PortQueue>>) -> Result<Vec<Self>, WriteError> {
        let wrap = |(queue, inner)| {
            let recorder = Recorder::new(Writer::create_for_port(file_of(&spec.file, queue))?);
            let file = File { recorder, left: spec.limit.unwrap_or(u64::MAX), lost: 0, warned: false };
            Ok(Self { inner, directions: spec.directions, file })
        };
        queues.into_iter().enumerate().map(wrap).collect()
    }

    fn settle_tx(&mut self) {
        self.file.settle(|lost| self.inner.counters().count_tx_events(Event::TraceLost, lost));
    }

    fn sent(&mut self, frame: Span<'_>, outcome: TxOutcome) -> TxOutcome {
        if outcome == TxOutcome::Sent && self.directions.tx() {
            self.file.record(frame);
            self.settle_tx();
        }
        outcome
    }
}

/// The file of one queue.
fn file_of(file: &str, queue: usize) -> PathBuf {
    if queue == 0 {
        return file.into();
    }
    let path = Path::new(file);
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{queue}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

impl File {
    fn record(&mut self, frame: Span<'_>) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        if let Err(error) = self.recorder.record(frame) {
            self.failed(&error);
            // This one as well, besides what had been collected.
            self.lost += 1;
        }
    }

    #[cold]
    fn failed(&mut self, error: &WriteError) {
        if let WriteError::Write { lost, .. } = error {
            self.lost += lost.frames;
        }
        if !self.warned {
            self.warned = true;
            crate::notice::warn(format!("{error}; frames pass on without being traced"));
        }
    }

    fn settle(&mut self, count: impl FnOnce(u64)) {
        if self.lost > 0 {
            count(std::mem::take(&mut self.lost));
        }
    }

    fn bring_up_to_date(&mut self) {
        if let Err(error) = self.recorder.bring_up_to_date() {
            self.failed(&error);
        }
    }
}

/// Writes what the card takes.
struct TracedSink<'a> {
    sink: &'a mut dyn Sink,
    file: &'a mut File,
}

impl Sink for TracedSink<'_> {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        let accept = self.sink.take(frame);
        if accept == Accept::Taken {
            self.file.record(frame);
        }
        accept
    }

    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        let taken = self.sink.take_burst(frames);
        frames[..taken].iter().for_each(|&frame| self.file.record(frame));
        taken
    }

    fn wants_arrivals(&mut self) -> bool {
        self.sink.wants_arrivals()
    }

    fn arrived(&mut self, monotonic_ns: u64) {
        self.sink.arrived(monotonic_ns);
    }

    fn offloads(&self) -> Offloads {
        self.sink.offloads()
    }

    fn take_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> Accept {
        let accept = self.sink.take_offloaded(frame, offload);
        if accept == Accept::Taken {
            self.file.record(frame);
        }
        accept
    }
}

impl PortQueue for TracePort {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        let taken = self.inner.transmit(frame);
        self.sent(frame, taken)
    }

    fn flush(&mut self) {
        self.inner.flush();
        self.file.bring_up_to_date();
        self.settle_tx();
    }

    fn watch_departures(&mut self) {
        self.inner.watch_departures();
    }

    fn departed(&mut self) -> Option<u64> {
        self.inner.departed()
    }

    fn offloads(&self) -> Offloads {
        self.inner.offloads()
    }

    fn transmit_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> TxOutcome {
        let taken = self.inner.transmit_offloaded(frame, offload);
        self.sent(frame, taken)
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        self.file.bring_up_to_date();
        if !self.directions.rx() {
            return self.inner.receive(budget, sink);
        }
        let taken = self.inner.receive(budget, &mut TracedSink { sink, file: &mut self.file });
        self.file.settle(|lost| self.inner.counters().count_rx_events(Event::TraceLost, lost));
        taken
    }

    fn can_wait(&self) -> bool {
        self.inner.can_wait()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_fd()
    }

    fn prepare_sleep(&mut self) {
        self.inner.prepare_sleep();
    }

    fn awake(&mut self) {
        self.inner.awake();
    }

    fn next_due(&self) -> Option<Instant> {
        self.inner.next_due().into_iter().chain(self.file.recorder.next_due()).min()
    }

    fn counters(&self) -> &Arc<PortCounters> {
        self.inner.counters()
    }
}

impl Drop for TracePort {
    fn drop(&mut self) {
        // Here and not in the writer's own drop, so that what is lost is counted.
        if let Err(error) = self.file.recorder.flush() {
            self.file.failed(&error);
            self.settle_tx();
        }
    }
}

#[cfg(test)]
mod tests;
