//! Generator and sink: frames injected into a wire and counted where they come out, all of it in one softirq on one core.

use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::Link;
use millrace_tool::cores;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use super::lab::{Lab, SHORT, WIRE};
use super::place::{enter, inside};
use super::program::Programs;
use super::work::{LEFT_MAC, SINK_MAC, Template, Traffic, stride};
use crate::peers::namespace::Namespace;
use crate::peers::process::find;

/// Where frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// To the router.
    Routed,
    /// Straight to the sink.
    Short,
}

/// Generator and sink in a lab.
pub struct Inline {
    programs: Programs,
    /// The sink on its two interfaces.
    _sinks: [Link; 2],
    /// After them: interfaces end with it.
    pub lab: Lab,
    devices: [u32; 2],
    /// The sink's to the router.
    back: u32,
    /// The cores that send.
    cores: Vec<usize>,
    /// Each run goes through the flows in another order.
    turn: u32,
}

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passed {
    pub sent: u64,
    pub came: u64,
    /// With a type or addresses other than the work makes.
    pub wrong: u64,
    pub seconds: f64,
}

impl Passed {
    /// Nanoseconds for a frame.
    pub fn ns(self) -> f64 {
        1e9 * self.seconds / self.came.max(1) as f64
    }
}

/// Frames that may still be on their way when the generator has ended: they are there within this time, or lost.
const LATE: Duration = Duration::from_millis(200);
/// A `struct count` of the sink: three numbers, and what is expected.
const COUNT: usize = 48;

/// Lets nobody else have this thread's core while it works, as far as the system allows: the packet's whole way is in this thread, and would
/// be interrupted by whatever else runs.
pub fn take_core() -> Result<(), String> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let chrt = find("chrt", "util-linux")?;
    let status = Command::new(chrt).args(["--fifo", "--pid", "1", &thread]).stderr(Stdio::null()).status();
    status.map(drop).map_err(|why| format!("cannot start chrt: {why}"))
}

/// The number of an interface in this thread's namespace.
pub fn index(name: &str) -> Result<u32, String> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(|why| format!("no socket: {why}"))?;
    netdevice::name_to_index(any, name).map_err(|why| format!("interface {name}: {why}"))
}

impl Inline {
    /// In this lab, with these cores that send.
    pub fn new(lab: Lab, cores: &[usize]) -> Result<Self, String> {
        let programs = Programs::load()?;
        let sinks = inside(&lab.sink, || {
            Ok([programs.attach("sink", index(WIRE)?)?, programs.attach("sink", index(SHORT)?)?])
        })?;
        let devices = inside(&lab.source, || Ok([index(WIRE)?, index(SHORT)?]))?;
        let back = inside(&lab.sink, || index(WIRE))?;
        Ok(Self { programs, _sinks: sinks, lab, devices, back, cores: cores.to_vec(), turn: 0 })
    }

    /// Sends so many frames by each core, as fast as they go.
    pub fn run(&mut self, traffic: Traffic, wire: Wire, frames: u32) -> Result<Passed, String> {
        let (device, to) = match wire {
            Wire::Routed => (self.devices[0], LEFT_MAC),
            Wire::Short => (self.devices[1], SINK_MAC),
        };
        let template = Template::new(traffic, to);
        self.turn += 1;
        for (at, core) in self.cores.iter().enumerate() {
            // Cores do not begin with the same flow.
            let first = (u64::from(traffic.flows) * at as u64 / self.cores.len() as u64) as u32;
            let job = template.job(device, traffic.flows, stride(traffic.flows, self.turn), first);
            self.programs.set("jobs", *core as u32, &job)?;
        }
        self.expect(traffic, wire)?;
        let ready = Barrier::new(self.cores.len());
        let starts: Result<Vec<Instant>, String> = thread::scope(|scope| {
            let send = |core: usize| self.send(&self.lab.source, core, &template, frames, &ready);
            let senders: Vec<_> = self.cores.iter().map(|core| scope.spawn(move || send(*core))).collect();
            let started = senders.into_iter().map(|sender| sender.join());
            started.map(|start| start.map_err(|_| "a sender has panicked".to_owned())?).collect()
        });
        let start = starts?.into_iter().min().unwrap_or_else(Instant::now);
        let sent = u64::from(frames) * self.cores.len() as u64;
        // All of it was done inline, unless Linux has left some to a thread of its own.
        let (mut seconds, ended) = (start.elapsed().as_secs_f64(), Instant::now());
        let mut counted = self.counted()?;
        while counted.0 < sent && ended.elapsed() < LATE {
            thread::sleep(Duration::from_micros(200));
            let now = self.counted()?;
            if now.0 > counted.0 {
                seconds = start.elapsed().as_secs_f64();
            }
            counted = now;
        }
        Ok(Passed { sent, came: counted.0, wrong: counted.1, seconds })
    }

    /// Sends an answer of the sink to each flow, so that conntrack calls it established. Nobody counts them.
    pub fn answer(&self, traffic: Traffic) -> Result<(), String> {
        let (template, core) = (Template::answer(traffic), self.cores.first().copied().unwrap_or(0));
        self.programs.set("jobs", core as u32, &template.job(self.back, traffic.flows, stride(traffic.flows, 0), 0))?;
        thread::scope(|scope| {
            let alone = Barrier::new(1);
            let sender = scope.spawn(move || self.send(&self.lab.sink, core, &template, traffic.flows, &alone));
            sender.join().map_err(|_| "a sender has panicked".to_owned())?.map(drop)
        })
    }

    /// Sends by this core, and says when it began, with all others.
    fn send(
        &self,
        place: &Namespace,
        core: usize,
        template: &Template,
        frames: u32,
        ready: &Barrier,
    ) -> Result<Instant, String> {
        let prepared = cores::pin(core).and_then(|()| enter(place)).and_then(|()| take_core());
        ready.wait();
        let start = Instant::now();
        prepared?;
        self.programs.run("generate", &template.frame, frames)?;
        Ok(start)
    }

    /// Tells the sink what to count from now on.
    fn expect(&self, traffic: Traffic, wire: Wire) -> Result<(), String> {
        let mut value = vec![0; 24];
        let (source, destination) = match wire {
            Wire::Routed => traffic.work.seen(),
            Wire::Short => (None, None),
        };
        for address in [source, destination] {
            value.extend(address.map_or([0; 4], |address| address.octets()));
            value.extend(if address.is_some() { [0xff; 4] } else { [0; 4] });
        }
        let kind = if wire == Wire::Routed { traffic.work.seen_type() } else { traffic.work.sent_type() };
        value.extend(u32::from(kind.to_be()).to_ne_bytes());
        value.extend([0; 4]);
        // Linux may take a packet to another core.
        cores::allowed().iter().try_for_each(|core| self.programs.set("counts", *core as u32, &value))
    }

    /// Frames that came, and those with wrong addresses.
    fn counted(&self) -> Result<(u64, u64), String> {
        let mut sums = (0, 0);
        for core in cores::allowed() {
            let value = self.programs.get("counts", core as u32)?;
            if value.len() != COUNT {
                return Err(format!("the sink counts in {} bytes", value.len()));
            }
            let number = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| value[at + byte]));
            sums = (sums.0 + number(0), sums.1 + number(16));
        }
        Ok(sums)
    }
}
