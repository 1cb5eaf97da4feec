//! Our two ends: a process that does what it is told by messages, and who tells it.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Args;
use millrace_message::bell::Owner;
use millrace_message::channel::Taken;
use millrace_message::control::MOST_EAGER;
use millrace_message::endpoint::{Config, Ended, Endpoint, Peer, Scope};
use millrace_message::engine::{Limits, Outcome};
use millrace_message::{Request, Scheme, Tag};
use millrace_tool::clock::Moment;
use millrace_tool::cores;
use millrace_tool::failure::Failure;
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::median::median;
use crate::rig::Cores;

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Messages at once, as many as `bench/message/mpi.c` has. Of long ones it is one, in the same memory again and again, as the peers have it
/// (UCX's tag_bw, WRITEs of `millrace bench rdma`): with several it would be compared what fits into the caches.
const fn depth(size: usize) -> usize {
    if size >= 8 << 20 { 1 } else { 4 }
}
/// Round trips between two looks at the clock, at most.
const BATCH: u64 = 64;

const ORDER: Tag = Tag(1);
const READY: Tag = Tag(2);
const DATA: Tag = Tag(3);
const DONE: Tag = Tag(4);
const EXACT: u64 = u64::MAX;
const WORDS: usize = 32;

/// What the other end is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Send messages back, by the way that they are sent.
    Echo = 0,
    /// Take messages.
    Take = 1,
    /// Ring back.
    Bells = 2,
}

/// What both ends have measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    /// ns one way, or GB/s.
    pub value: f64,
    /// Cores used by who sends, and by the other.
    pub cpu: [f64; 2],
}

/// Options of the hidden command.
#[derive(Debug, Args)]
pub struct EndArgs {
    /// Name of its endpoint
    name: String,
    /// Core that it runs on
    #[arg(long)]
    core: Option<usize>,
    #[command(flatten)]
    buffers: BufferArgs,
}

/// Buffers of both ends.
#[derive(Clone, Copy, Debug, Args)]
pub struct BufferArgs {
    /// Bytes of a buffer, 1024 to 1048576
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().mtu)]
    mtu: u32,
    /// Receive buffers of a pair, 1 to 64
    #[arg(long, value_name = "N", default_value_t = Limits::default().slots)]
    slots: u8,
    /// Memory that is sent again becomes shared memory in place; large messages are always measured so
    #[arg(long)]
    adopt: bool,
}

impl BufferArgs {
    fn config(self) -> Config {
        let usual = Limits::default();
        let rmbs = usual.rmbs.max(self.slots.into());
        let limits = Limits { mtu: self.mtu, slots: self.slots, rmbs, ..usual };
        Config { limits, adopt: self.adopt.then_some(Scope::Heap), ..Config::default() }
    }

    /// The same, with memory that becomes shared.
    pub fn adopting(self) -> Self {
        Self { adopt: true, ..self }
    }
}

/// A way as a number: all three, and the fastest.
const FASTEST: u64 = 3;

fn number_of(scheme: Option<Scheme>) -> u64 {
    scheme.map_or(FASTEST, |scheme| Scheme::ALL.iter().position(|one| *one == scheme).unwrap_or_default() as u64)
}

fn said(words: [u64; 4]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn heard(bytes: &[u8]) -> Result<[u64; 4], String> {
    let (words, _) = bytes.as_chunks::<8>();
    let words: [[u8; 8]; 4] = words.try_into().map_err(|_| "the other end says nonsense".to_owned())?;
    Ok(words.map(u64::from_le_bytes))
}

/// Time that this process has used of processors, in ns.
fn used() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// One end, and the other one.
struct Both {
    endpoint: Endpoint,
    peer: Peer,
}

impl Both {
    fn receive(&self, tag: Tag, buffer: Vec<u8>) -> Result<Request, String> {
        self.endpoint.receive(Some(self.peer), tag, EXACT, buffer).map_err(|error| error.to_string())
    }

    fn send(&self, tag: Tag, buffer: Vec<u8>, way: u64) -> Result<Request, String> {
        let sent = match Scheme::ALL.get(way as usize) {
            Some(scheme) => self.endpoint.send_by(self.peer, tag, buffer, *scheme),
            None => self.endpoint.send(self.peer, tag, buffer),
        };
        sent.map_err(|error| error.to_string())
    }

    fn wait(&self, request: Request) -> Result<Ended, String> {
        let ended = self.endpoint.wait(request, PATIENCE).ok_or("a message does not end")?;
        match ended.outcome {
            Outcome::Sent | Outcome::Received { .. } => Ok(ended),
            other => Err(format!("a message ended as {other:?}")),
        }
    }

    fn say(&self, tag: Tag, words: [u64; 4]) -> Result<(), String> {
        self.wait(self.send(tag, said(words), FASTEST)?).map(drop)
    }

    fn hear(&self, tag: Tag) -> Result<[u64; 4], String> {
        heard(&self.wait(self.receive(tag, vec![0; WORDS])?)?.buffer)
    }

    /// There and back, or back and there. Gives the buffer back.
    fn trip(&self, mut buffer: Vec<u8>, way: u64, is_first: bool) -> Result<Vec<u8>, String> {
        let is_short = buffer.len() <= MOST_EAGER && (way == 0 || way == FASTEST);
        let turns = if is_first { [true, false] } else { [false, true] };
        for sends in turns {
            match (sends, is_short) {
                (true, true) => {
                    while !self.endpoint.send_short(self.peer, DATA, &buffer) {
                        self.endpoint.progress();
                    }
                }
                (false, true) => loop {
                    match self.endpoint.receive_short(self.peer, DATA, EXACT, &mut buffer) {
                        Ok(Some(Taken::Message { .. })) => break,
                        Ok(Some(other)) => return Err(format!("{other:?}")),
                        Ok(None) => core::hint::spin_loop(),
                        Err(error) => return Err(error.to_string()),
                    }
                },
                (true, false) => buffer = self.wait(self.send(DATA, buffer, way)?)?.buffer,
                (false, false) => buffer = self.wait(self.receive(DATA, buffer)?)?.buffer,
            }
        }
        Ok(buffer)
    }

    fn bell(&self, number: u16) -> Result<(), String> {
        while self.endpoint.ring(self.peer, number).ok_or("the other end is gone")?.is_err() {
            core::hint::spin_loop();
        }
        Ok(())
    }

    fn await_bell(&self) -> Result<(), String> {
        loop {
            match self.endpoint.bell(self.peer) {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => core::hint::spin_loop(),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Does what the other end orders, once.
    fn obey(&self) -> Result<(), String> {
        let [work, size, count, way] = self.hear(ORDER)?;
        let depth = depth(size as usize);
        let mut buffers: Vec<Vec<u8>> = (0..depth).map(|_| vec![1; size as usize]).collect();
        let begin = used();
        match work {
            0 => {
                self.say(READY, [0; 4])?;
                let mut buffer = buffers.remove(0);
                for _ in 0..count {
                    buffer = self.trip(buffer, way, false)?;
                }
            }
            1 => {
                let mut posted: Vec<Request> =
                    buffers.into_iter().map(|buffer| self.receive(DATA, buffer)).collect::<Result<_, _>>()?;
                self.say(READY, [0; 4])?;
                for at in 0..count as usize {
                    let buffer = self.wait(posted[at % depth])?.buffer;
                    if at + depth < count as usize {
                        posted[at % depth] = self.receive(DATA, buffer)?;
                    }
                }
            }
            _ => {
                self.say(READY, [0; 4])?;
                for at in 0..count {
                    self.await_bell()?;
                    self.bell(at as u16)?;
                }
            }
        }
        self.say(DONE, [used() - begin, 0, 0, 0])
    }
}

/// Runs the other end, until it is killed.
pub fn run(args: &EndArgs) -> Result<(), Failure> {
    if let Some(core) = args.core {
        // Who cannot be pinned was told so before.
        let _ = cores::pin(core);
    }
    let found = |error: String| Failure::Found(error);
    let config = Config { name: Some(args.name.clone()), ..args.buffers.config() };
    let endpoint = Endpoint::with(config).map_err(|error| found(error.to_string()))?;
    endpoint.claim(0..=u16::MAX, Owner(0)).map_err(|error| found(error.to_string()))?;
    let peer = endpoint.accept(PATIENCE).ok_or_else(|| found("nobody has called".to_owned()))?;
    let both = Both { endpoint, peer };
    loop {
        both.obey().map_err(found)?;
    }
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
        let (mtu, slots) = (buffers.mtu.to_string(), buffers.slots.to_string());
        command
            .args(["message-end", &name, "--mtu", &mtu, "--slots", &slots])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if buffers.adopt {
            command.arg("--adopt");
        }
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
        let begin = used();
        let (means, took) = time(count, batch)?;
        let own = (used() - begin) as f64 / took / 1e9;
        let [others, ..] = self.both.hear(DONE)?;
        Ok(Line { value: median(&means).unwrap_or(f64::NAN), cpu: [own, others as f64 / took / 1e9] })
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
        let mut number = 0_u16;
        self.trips(Work::Bells, (0, FASTEST), seconds, || {
            number = number.wrapping_add(1);
            self.both.bell(number)?;
            self.both.await_bell()
        })
    }

    /// Messages of that size in GB/s.
    pub fn bandwidth(&self, size: usize, scheme: Option<Scheme>, seconds: f64) -> Result<Line, String> {
        let way = number_of(scheme);
        let depth = depth(size);
        let mut buffers: Vec<Vec<u8>> = (0..depth).map(|at| vec![at as u8 + 1; size]).collect();
        let mut take = |count: usize| -> Result<(f64, [f64; 2]), String> {
            self.order(Work::Take, size, count as u64, way)?;
            let (start, begin) = (Moment::now(), used());
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
            let [others, ..] = self.both.hear(DONE)?;
            let took = start.seconds();
            Ok((took, [(used() - begin) as f64 / took / 1e9, others as f64 / took / 1e9]))
        };
        // Memory becomes shared when it is sent again: that is not what is measured.
        let few = 4 * depth;
        take(few)?;
        let (took, _) = take(few)?;
        let count = ((seconds / took * few as f64) as usize).max(few);
        let (took, cpu) = take(count)?;
        Ok(Line { value: count as f64 * size as f64 / took / 1e9, cpu })
    }
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
    fn ways_are_numbers_of_the_same_list() {
        assert_eq!(Scheme::ALL.map(|scheme| number_of(Some(scheme))), [0, 1, 2]);
        assert_eq!(number_of(None), FASTEST);
        assert_eq!(heard(&said([1, 2, 3, 4])), Ok([1, 2, 3, 4]));
        assert!(heard(&[0; 31]).is_err());
    }
}
