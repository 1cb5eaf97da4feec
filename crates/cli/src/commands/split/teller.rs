//! Reports of a backend on standard output, by a thread of their own: who reads them may have stopped, guests decide how many there are, and
//! the thread that serves all guests waits for nobody.

use millrace_split::{GuestCounts, Report};
use millrace_tool::failure::Failure;
use millrace_tool::output::{Output, Row};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

/// Reports that wait to be written.
const MOST: usize = 256;
/// Reports in each [`PERIOD`]; more are counted.
const LIMIT: u64 = 1000;
const PERIOD: Duration = Duration::from_secs(10);
/// How long the last of them may take.
const PATIENCE: Duration = Duration::from_secs(2);

pub struct Teller {
    to: SyncSender<Report>,
    done: Receiver<Result<(), Failure>>,
    since: Instant,
    told: u64,
    /// Reports that were left out.
    untold: u64,
}

impl Teller {
    /// Starts the thread.
    ///
    /// # Errors
    /// The machine has none left.
    pub fn start(output: Output) -> Result<Self, Failure> {
        Self::with(move |report| tell(output, report))
    }

    fn with(mut tell: impl FnMut(&Report) -> Result<(), Failure> + Send + 'static) -> Result<Self, Failure> {
        let (to, reports) = sync_channel::<Report>(MOST);
        let (ended, done) = channel();
        let run = move || {
            // An error ends what is told, and not the service.
            let told = reports.into_iter().try_for_each(|report| tell(&report));
            let _ = ended.send(told);
        };
        let thread = std::thread::Builder::new().name("millrace-teller".to_owned()).spawn(run);
        thread.map_err(|error| Failure::Found(format!("no thread that says what happens: {error}")))?;
        Ok(Self { to, done, since: Instant::now(), told: 0, untold: 0 })
    }

    /// Tells it, or counts it. Never waits.
    pub fn tell(&mut self, report: &Report) {
        let now = Instant::now();
        if now.duration_since(self.since) >= PERIOD {
            (self.since, self.told) = (now, 0);
        }
        let is_sent = self.told < LIMIT
            && !matches!(self.to.try_send(report.clone()), Err(TrySendError::Full(_) | TrySendError::Disconnected(_)));
        self.told += u64::from(is_sent);
        self.untold += u64::from(!is_sent);
    }

    /// Waits a while until all that was told is written; how many reports were left out.
    ///
    /// # Errors
    /// That of the output.
    pub fn end(self) -> Result<u64, Failure> {
        let Self { to, done, untold, .. } = self;
        drop(to);
        match done.recv_timeout(PATIENCE) {
            Ok(told) => told.map(|()| untold),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(Failure::Found("nobody reads what this command writes".to_owned()))
            }
        }
    }
}

fn tell(output: Output, report: &Report) -> Result<(), Failure> {
    match report {
        Report::Came { name, address } if output.is_json() => {
            let row = Row::new().tag("event", "came").text("guest", name).text("address", address);
            output.rows("", &[row])?;
        }
        Report::Came { name, address } => output.text(&format!("{name} has come: {address}\n"))?,
        Report::Left { name, address, was_put_out, counts } if output.is_json() => {
            let row = Row::new().tag("event", "left").text("guest", name).text("address", address);
            let row = row.text("why", if *was_put_out { "put out" } else { "ended" });
            output.rows("", &[counted(row, counts)])?;
        }
        Report::Left { name, address, was_put_out, counts } => {
            let why = if *was_put_out { "was put out" } else { "has ended" };
            let GuestCounts { requests, transport, pages, .. } = counts;
            let text = format!(
                "{name} {why}: {address}; {requests} requests, {pages} pages mapped, {} times woken, {} system calls\n",
                transport.heard, transport.system_calls
            );
            output.text(&text)?;
        }
    }
    Ok(())
}

fn counted(row: Row, counts: &GuestCounts) -> Row {
    let GuestCounts { transport, requests, refused, faults, pages, taken, copied, packets, frames, port_copied } =
        *counts;
    row.count("requests", requests)
        .count("refused", refused)
        .count("faults", faults)
        .count("pages", pages)
        .count("system_calls", transport.system_calls)
        .count("hypercalls", transport.hypercalls)
        .count("rung", transport.rung)
        .count("heard", transport.heard)
        .count("taken", taken)
        .count("copied_bytes", copied)
        .count("packets", packets)
        .count("frames", frames)
        .count("port_copied_bytes", port_copied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_split::Address;

    fn report() -> Report {
        Report::Came { name: "one".to_owned(), address: Address([2; 6]) }
    }

    #[test]
    fn who_does_not_read_makes_nobody_wait() {
        let (go_on, stopped) = channel::<()>();
        let (written, read) = channel();
        let mut teller = Teller::with(move |_| {
            // As a pipe that is full, until its reader goes on.
            let _ = stopped.recv();
            written.send(()).map_err(|error| Failure::Found(error.to_string()))
        })
        .unwrap();
        (0..MOST + 100).for_each(|_| teller.tell(&report()));
        // One may be with the writer.
        let untold = teller.untold;
        assert!((99..=100).contains(&untold), "{untold}");
        drop(go_on);
        assert_eq!(teller.end().unwrap(), untold);
        assert_eq!(read.try_iter().count() as u64, (MOST + 100) as u64 - untold);
    }

    #[test]
    fn an_error_ends_what_is_told_and_is_told_at_the_end() {
        let mut teller = Teller::with(|_| Err(Failure::Found("no space".to_owned()))).unwrap();
        (0..3).for_each(|_| teller.tell(&report()));
        assert!(teller.end().is_err());
    }
}
