//! What the integration tests share: a card in a process of its own, programs that can be killed, frames that show loss,
//! order and corruption, and somebody who uses the card properly while others do not.
//!
//! A process is this very test binary, started again with a role in its environment, which the test `role` of `main.rs`
//! plays.
#![allow(dead_code)]

pub mod peer;

use millrace::stats::{CardStats, QueueStats};
use millrace::{Device, Error, Mode, RxQueue, Sharing, TxQueue};
use millrace_abi::name::{CardOptions, DeviceName};
use millrace_card::Card;
use millrace_driver::Driver;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than anything takes that works, beside other tests and on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Deterministic pseudo-random numbers (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 32) % bound
    }
}

/// Fills a frame of at least 16 bytes so that any change of it shows: its number, then a stream seeded by it.
pub fn fill(frame: &mut [u8], number: u64) {
    frame[..8].copy_from_slice(&number.to_le_bytes());
    let mut random = Random((number << 16 | frame.len() as u64) ^ 0x9e37_79b9_7f4a_7c15);
    for chunk in frame[8..].chunks_mut(8) {
        let bytes = random.next().to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
}

/// The number of a frame, every byte of which is as `fill` wrote it.
pub fn check(frame: &[u8]) -> u64 {
    assert!(frame.len() >= 16, "a frame of {} bytes", frame.len());
    let number = u64::from_le_bytes(frame[..8].try_into().unwrap());
    let mut right = vec![0; frame.len()];
    fill(&mut right, number);
    assert_eq!(frame, right, "frame {number} of {} bytes is corrupt", frame.len());
    number
}

/// Whether queues of an engine can be opened that way: those of DD only by one program that drives them itself.
pub fn has(engine: &str, mode: Mode, sharing: Sharing) -> bool {
    engine != "dd" || (mode, sharing) == (Mode::Direct, Sharing::Exclusive)
}

/// The statistics once `hold` says so: a worker publishes what it counted a moment after the frames themselves.
pub fn settled(device: &Device, hold: impl Fn(&CardStats) -> bool) -> CardStats {
    let of_now = || device.stats().unwrap();
    within(PATIENCE, || Some(of_now()).filter(&hold).ok_or_else(|| Box::new(of_now()))).0
}

pub fn dropped(queue: &QueueStats) -> u64 {
    queue.drops.iter().map(|drop| drop.count).sum()
}

/// Offered = passed + drops, for every queue; and for loopback pairs, what left TX has arrived at RX.
pub fn check_equations(device: &Device) {
    let stats = settled(device, |stats| {
        let (rx, tx): (Vec<_>, Vec<_>) =
            stats.queues.iter().partition(|queue| queue.queue.direction == millrace::Direction::Rx);
        let looped = stats.ports.iter().all(|port| port.spec == "loopback");
        let mut pairs = rx.iter().zip(&tx).filter(|(rx, tx)| looped && rx.queue.index == tx.queue.index);
        // What left TX arrives at RX.
        stats.queues.iter().all(|queue| queue.offered == queue.passed + dropped(queue))
            && pairs.all(|(rx, tx)| tx.passed == rx.offered)
    });
    for port in &stats.ports {
        assert!(port.rx_drops.is_empty() || port.spec != "loopback", "{port:?}");
    }
}

/// Sends as many frames of `len` bytes, numbered from `first`, as there is room for; at most `most`.
pub fn send_some(tx: &mut TxQueue, first: u64, most: usize, len: u16) -> Result<usize, Error> {
    let lengths = vec![len; most];
    for count in [most, most.div_ceil(4), 1] {
        if let Some(mut burst) = tx.get(&lengths[..count])? {
            for i in 0..count {
                fill(&mut burst[i], first + i as u64);
            }
            burst.send()?;
            return Ok(count);
        }
    }
    Ok(0)
}

/// Sends all frames from `first` up to `end`.
pub fn send_all(tx: &mut TxQueue, first: u64, end: u64, len: u16) {
    let (mut next, begin) = (first, Instant::now());
    while next < end {
        let sent = send_some(tx, next, (end - next).min(16) as usize, len).unwrap();
        next += sent as u64;
        if sent == 0 {
            assert!(begin.elapsed() < PATIENCE, "no room for frame {next} of {end}");
            tx.wait(Duration::from_millis(20)).unwrap();
        }
    }
}

/// Receives the frames from `first` up to `end`, in order and nothing else.
pub fn receive_all(rx: &mut RxQueue, first: u64, end: u64) {
    let mut next = first;
    while next < end {
        assert!(rx.wait(PATIENCE).unwrap(), "frame {next} of {end} did not come");
        let burst = rx.get((end - next).min(64) as usize).unwrap();
        for packet in burst.iter() {
            assert_eq!(check(packet.data), next);
            next += 1;
        }
    }
}

pub fn rx(device: &Device, index: u32, mode: Mode, sharing: Sharing) -> RxQueue {
    device.rx(index).mode(mode).sharing(sharing).open().unwrap().start().unwrap()
}

pub fn tx(device: &Device, index: u32, mode: Mode, sharing: Sharing) -> TxQueue {
    device.tx(index).mode(mode).sharing(sharing).open().unwrap().start().unwrap()
}

/// Tries until it works, at most `limit`; what the last try said otherwise.
pub fn within<T, E: std::fmt::Debug>(limit: Duration, mut attempt: impl FnMut() -> Result<T, E>) -> (T, Duration) {
    let begin = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return (value, begin.elapsed()),
            Err(error) => assert!(begin.elapsed() < limit, "not within {limit:?}: {error:?}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

const ROLE: &str = "MILLRACE_TEST_ROLE";

/// The role that this process was started for, if it is not the test itself.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// An argument of the role.
pub fn argument(name: &str) -> String {
    std::env::var(format!("MILLRACE_TEST_{name}")).unwrap_or_else(|_| panic!("the role needs {name}"))
}

/// Says something to the process that started this one.
pub fn say(text: &str) {
    // In one piece and past the harness, which may hold back or decorate what is printed.
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n@{text}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}

/// Waits for a line from the process that started this one; ends this process when that one is gone.
pub fn listen() -> String {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(0);
    }
    line.trim().to_owned()
}

/// Kills this process as `kill -9` does.
pub fn die() -> ! {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    unreachable!("killed")
}

/// A process that plays a role.
pub struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(role: &str, arguments: &[(&str, &str)]) -> Self {
        Self::run(Command::new(std::env::current_exe().unwrap()), role, arguments)
    }

    /// As another user, from a copy of this binary in `folder` that such a user can read. Takes root.
    pub fn start_as(uid: u32, folder: &Path, role: &str, arguments: &[(&str, &str)]) -> Self {
        use std::os::unix::{fs::PermissionsExt, process::CommandExt};
        let copy = folder.join("program");
        if !copy.exists() {
            // By another process: one that is started meanwhile would have it open for writing.
            let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status();
            assert!(copied.unwrap().success());
        }
        for path in [folder, &copy] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new(copy);
        command.uid(uid).gid(uid).current_dir("/");
        Self::run(command, role, arguments)
    }

    fn run(mut command: Command, role: &str, arguments: &[(&str, &str)]) -> Self {
        command.args(["--exact", "role", "--nocapture", "--test-threads=1"]).env(ROLE, role);
        for (name, value) in arguments {
            command.env(format!("MILLRACE_TEST_{name}"), value);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next thing that it says; `None` when it has ended.
    pub fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.out.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            if let Some(text) = line.trim_end().strip_prefix('@') {
                return Some(text.to_owned());
            }
        }
    }

    pub fn expect(&mut self, text: &str) {
        assert_eq!(self.hear().as_deref(), Some(text));
    }

    pub fn tell(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(format!("{text}\n").as_bytes()).unwrap();
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Waits for its end; everything that it has still to say.
    pub fn finish(&mut self) -> Vec<String> {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap();
        rest.lines().filter_map(|line| line.strip_prefix('@')).map(str::to_owned).collect()
    }

    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A card in a process of its own.
pub struct Daemon {
    pub process: Process,
    pub path: PathBuf,
    folder: tempfile::TempDir,
}

impl Daemon {
    pub fn start(options: &str) -> Self {
        Self::start_with("daemon", &[("OPTIONS", options)])
    }

    /// One whose role is another than `daemon`.
    pub fn start_with(role: &str, arguments: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let socket = [("SOCKET", path.to_str().unwrap())];
        let mut process = Process::start(role, &[arguments, &socket].concat());
        process.expect("ready");
        Self { process, path, folder }
    }

    /// The folder of its socket.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn device(&self) -> Device {
        Device::open(&format!("unix:{}", self.path.display())).unwrap()
    }

    pub fn socket(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Stops it, as a debugger does; all its threads have stopped when this returns.
    pub fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            stat.rfind(") ").is_some_and(|name| stat[name + 2..].starts_with('T'))
        };
        let all = || std::fs::read_dir(self.proc("task")).unwrap().all(stopped);
        within(PATIENCE, || if all() { Ok(()) } else { Err("it has not stopped") });
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.process.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn proc(&self, what: &str) -> PathBuf {
        Path::new("/proc").join(self.process.pid().to_string()).join(what)
    }

    /// Open fds.
    pub fn fds(&self) -> usize {
        std::fs::read_dir(self.proc("fd")).unwrap().count()
    }

    /// Mappings of shared memory.
    pub fn mappings(&self) -> usize {
        let maps = std::fs::read_to_string(self.proc("maps")).unwrap();
        maps.lines().filter(|line| line.contains("memfd:")).count()
    }

    /// Resident memory in KiB.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(self.proc("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Processor time used, in clock ticks of 10 ms.
    pub fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(self.proc("stat")).unwrap();
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

pub fn options(text: &str) -> CardOptions {
    match format!("embedded:{text}").parse() {
        Ok(DeviceName::Embedded(options)) => options,
        other => panic!("{other:?}"),
    }
}

/// The role `daemon`.
pub fn run_daemon() {
    let card = Card::new(&options(&argument("OPTIONS"))).unwrap();
    match Driver::listen(card, Path::new(&argument("SOCKET"))) {
        Ok(driver) => {
            say("ready");
            while !listen().is_empty() {}
            drop(driver);
        }
        Err(error) => say(&format!("refused: {error}")),
    }
}

/// A program that uses a queue pair properly, on a thread of its own, until it is asked how that went. Every frame has
/// to come back, in order, whole, and in time.
pub struct Bystander {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Bystander {
    pub fn start(device: Device, index: u32) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (also_stop, also_done) = (stop.clone(), done.clone());
        let thread = std::thread::spawn(move || {
            let mut receiver = rx(&device, index, Mode::Direct, Sharing::Exclusive);
            let mut sender = tx(&device, index, Mode::Direct, Sharing::Exclusive);
            // The first sleep costs a descriptor, of which there shall be as many from now on.
            assert!(!receiver.wait(Duration::from_millis(1)).unwrap(), "a frame from somebody else");
            let mut next = 0;
            while !also_stop.load(Ordering::Relaxed) {
                send_all(&mut sender, next, next + 8, 60 + (next % 1400) as u16);
                receive_all(&mut receiver, next, next + 8);
                next += 8;
                also_done.store(next, Ordering::Relaxed);
                // One core is shared by everybody here.
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let mut bystander = Self { stop, done, thread: Some(thread) };
        bystander.goes_on();
        bystander
    }

    /// Panics unless it makes progress.
    pub fn goes_on(&mut self) {
        let (before, begin) = (self.done.load(Ordering::Relaxed), Instant::now());
        while self.done.load(Ordering::Relaxed) == before {
            assert!(begin.elapsed() < PATIENCE, "the bystander is stuck");
            if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
                self.finish();
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub fn finish(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the bystander lost something");
        }
        self.done.load(Ordering::Relaxed)
    }
}
