//! The end that tells the other one what to do, and measures.

use std::process::{Child, Command, Stdio};

use millrace_message::bell::Owner;
use millrace_message::endpoint::Endpoint;
use millrace_message::{Request, Scheme};
use millrace_tool::clock::Moment;
use millrace_tool::cores;
use millrace_tool::output::note;
use rustix::process::{Pid, Signal, kill_process};

use super::end::{Both, BufferArgs, DATA, DONE, FASTEST, ORDER, PATIENCE, READY, WORDS, Work, depth, number_of, used};
use super::overlap::{Computing, middle, overlap};
use crate::median::median;
use crate::rig::Cores;

/// Round trips between two looks at the clock, at most.
const BATCH: u64 = 64;

/// When the first messages take so many times as long as all may, others are not measured.
const SLOW: f64 = 10.0;

/// What both ends have measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    /// ns one way, or GB/s.
    pub value: f64,
    /// Cores used by who sends, and by the other.
    pub cpu: [f64; 2],
    /// How often each byte was copied.
    pub copies: Option<f64>,
}

/// The end that orders, and the process of the other one.
pub struct Ends {
    both: Both,
    other: Child,
}

impl Ends {
    /// Starts the other end. Errors are sentences.
    pub fn start(cores: Cores, buffers: BufferArgs) -> Result<Self, String> {
        if let Some(app) = cores.app {
            let _ = cores::pin(app);
        }
        let program = std::env::current_exe().map_err(|why| format!("cannot find this program: {why}"))?;
        let name = format!("bench-{}", std::process::id());
        let mut command = Command::new(program);
        command.args(["message-end", &name]).args(buffers.words()).stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(core) = cores.card {
            command.args(["--core", &core.to_string()]);
        }
        let other = command.spawn().map_err(|why| format!("cannot start the other end: {why}"))?;
        let endpoint = Endpoint::with(buffers.config()).map_err(|error| error.to_string())?;
        endpoint.claim(0..=u16::MAX, Owner(0)).map_err(|error| error.to_string())?;
        let peer = endpoint.connect(&name, PATIENCE).map_err(|error| error.to_string())?;
        Ok(Self { both: Both { endpoint, peer }, other })
    }

    fn order(&self, work: Work, size: usize, count: u64, way: u64) -> Result<(), String> {
        let ready = self.both.receive(READY, vec![0; WORDS])?;
        self.both.say(ORDER, [work as u64, size as u64, count, way])?;
        self.both.wait(ready).map(drop)
    }

    /// Batches of trips, `seconds` long after some that do not count: the median of their means, in ns one way.
    fn trips(
        &self,
        work: Work,
        (size, way): (usize, u64),
        seconds: f64,
        mut trip: impl FnMut() -> Result<(), String>,
    ) -> Result<Line, String> {
        // How many there are has to be said before.
        let mut time = |count: u64, batch: u64| -> Result<(Vec<f64>, f64), String> {
            self.order(work, size, count * batch, way)?;
            let start = Moment::now();
            let mut means = Vec::new();
            for _ in 0..count {
                let begin = Moment::now();
                for _ in 0..batch {
                    trip()?;
                }
                means.push(Moment::now().nanos_since(begin) as f64 / batch as f64 / 2.0);
            }
            Ok((means, start.seconds()))
        };
        let warm_up = if size > 1 << 20 { 3 } else { 200 };
        let (means, _) = time(warm_up, 1)?;
        self.both.hear(DONE)?;
        let each = median(&means).unwrap_or(1000.0) * 2.0;
        let batch = (100_000.0 / each).clamp(1.0, BATCH as f64) as u64;
        let count = (seconds * 1e9 / each / batch as f64).clamp(5.0, 1e6) as u64;
        let (begin, before) = (used(), self.both.endpoint.moved());
        let (means, took) = time(count, batch)?;
        let own = (used() - begin) as f64 / took / 1e9;
        let [others, moved, ..] = self.both.hear(DONE)?;
        let moved = moved + self.both.endpoint.moved() - before;
        let cpu = [own, others as f64 / took / 1e9];
        Ok(Line {
            value: median(&means).unwrap_or(f64::NAN),
            cpu,
            copies: copies(moved, 2 * count * batch * size as u64),
        })
    }

    /// Messages of that size one way, by that way, or by the one that is chosen.
    pub fn latency(&self, size: usize, scheme: Option<Scheme>, seconds: f64) -> Result<Line, String> {
        let way = number_of(scheme);
        let mut buffer = Some(vec![7; size]);
        self.trips(Work::Echo, (size, way), seconds, || {
            let full = buffer.take().unwrap_or_else(|| vec![7; size]);
            buffer = Some(self.both.trip(full, way, true)?);
            Ok(())
        })
    }

    /// Doorbells one way.
    pub fn bells(&self, seconds: f64) -> Result<Line, String> {
        let (mut number, mut bells) = (0_u16, self.both.doorbells()?);
        self.trips(Work::Bells, (0, FASTEST), seconds, || {
            number = number.wrapping_add(1);
            bells.ring(number)?;
            bells.hear()
        })
    }

    /// Messages of that size in GB/s.
    pub fn bandwidth(&self, size: usize, scheme: Option<Scheme>, seconds: f64) -> Result<Line, String> {
        let way = number_of(scheme);
        let depth = depth(size);
        let mut buffers: Vec<Vec<u8>> = (0..depth).map(|at| vec![at as u8 + 1; size]).collect();
        self.rate(Work::Take, (size, way), seconds, |count| {
            let mut flying: Vec<Request> = Vec::with_capacity(count);
            for at in 0..count {
                let buffer = match at.checked_sub(depth) {
                    Some(before) => self.both.wait(flying[before])?.buffer,
                    None => buffers.pop().unwrap_or_default(),
                };
                flying.push(self.both.send(DATA, buffer, way)?);
            }
            for request in &flying[count.saturating_sub(depth)..] {
                buffers.push(self.both.wait(*request)?.buffer);
            }
            Ok(())
        })
    }

    /// Says why memory that was sent again is copied twice, if it is.
    pub fn tell_what_was_not_adopted(&self) {
        if let Some(why) = self.both.endpoint.adopted().and_then(|adopted| adopted.why) {
            note(format!("memory of messages did not become shared memory, so that it is copied twice: {why}"));
        }
    }

    /// Messages of that size in GB/s in the message mode.
    pub fn mail(&self, size: usize, seconds: f64) -> Result<Line, String> {
        let bytes = vec![3; size];
        self.rate(Work::Mail, (size, FASTEST), seconds, |count| (0..count).try_for_each(|_| self.both.mail(&bytes)))
    }

    /// How fast messages go, after some that do not count.
    fn rate(
        &self,
        work: Work,
        (size, way): (usize, u64),
        seconds: f64,
        mut send: impl FnMut(usize) -> Result<(), String>,
    ) -> Result<Line, String> {
        let mut take = |count: usize| -> Result<(f64, [f64; 2], u64), String> {
            self.order(work, size, count as u64, way)?;
            let (start, begin) = (Moment::now(), used());
            send(count)?;
            let [others, moved, ..] = self.both.hear(DONE)?;
            let took = start.seconds();
            Ok((took, [(used() - begin) as f64 / took / 1e9, others as f64 / took / 1e9], moved))
        };
        let few = 4 * depth(size);
        let line = |count: usize, (took, cpu, moved): (f64, [f64; 2], u64)| {
            let bytes = count as u64 * size as u64;
            Line { value: bytes as f64 / took / 1e9, cpu, copies: copies(moved, bytes) }
        };
        // Memory becomes shared when it is sent again: that is not what is measured. What is very slow is so from the beginning.
        let first = take(few)?;
        if first.0 > SLOW * seconds {
            return Ok(line(few, first));
        }
        let (took, ..) = take(few)?;
        let count = ((seconds / took * few as f64) as usize).max(few);
        Ok(line(count, take(count)?))
    }

    /// How much of the transfer of a message of that size passes while this end computes, in percent: it goes from memory to memory, and the
    /// receiver, which waits for it, reads it. This end makes no call meanwhile. `None`: the cores were another's.
    pub fn overlap(&self, size: usize, seconds: f64) -> Result<Option<Line>, String> {
        let way = number_of(Some(Scheme::ZeroCopy));
        let mut buffer = vec![5; size];
        let mut send = |computing: Option<Computing>| -> Result<f64, String> {
            let begin = Moment::now();
            let sent = self.both.send(DATA, std::mem::take(&mut buffer), way)?;
            computing.iter().for_each(Computing::run);
            buffer = self.both.wait(sent)?.buffer;
            Ok(Moment::now().nanos_since(begin) as f64)
        };
        let few = 20;
        self.order(Work::Take, size, few, way)?;
        let alone = (0..few).map(|_| send(None)).collect::<Result<Vec<f64>, String>>()?;
        self.both.hear(DONE)?;
        let alone = median(&alone).unwrap_or(f64::NAN);
        let computing = Computing::of(alone);
        let count = (seconds * 1e9 / alone / 3.0).clamp(5.0, 1e5) as u64;
        self.order(Work::Take, size, 2 * count, way)?;
        let (begin, start, mut shares) = (used(), Moment::now(), Vec::new());
        for _ in 0..count {
            let transfer = send(None)?;
            let alone = computing.timed();
            shares.push(overlap(transfer, alone, send(Some(computing))?));
        }
        let (own, took) = ((used() - begin) as f64, start.seconds());
        let [others, moved, ..] = self.both.hear(DONE)?;
        let cpu = [own / took / 1e9, others as f64 / took / 1e9];
        let copies = copies(moved, 2 * count * size as u64);
        Ok(middle(&shares).map(|value| Line { value, cpu, copies }))
    }
}

/// How often a byte was copied, if so many of all were read where they were: twice, or once. `None`: there were none.
fn copies(moved: u64, bytes: u64) -> Option<f64> {
    (bytes > 0).then(|| 2.0 - moved as f64 / bytes as f64)
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.other), Signal::KILL);
        let _ = self.other.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_where_it_is_is_copied_once() {
        assert_eq!(
            (copies(0, 10), copies(10, 10), copies(5, 10), copies(0, 0)),
            (Some(2.0), Some(1.0), Some(1.5), None)
        );
    }
}
