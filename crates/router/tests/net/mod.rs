//! A router between two hosts, each in a network namespace of its own, for tests that let real packets through.
#![allow(dead_code)]

use millrace_router::engine::layout::device_flag as flag;
use millrace_router::engine::{Device, Engine, How, Mode};
use nix::sched::{CloneFlags, unshare};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

type Task = Box<dyn FnOnce() + Send>;

/// A host: a thread that lives in a network namespace of its own, and does there what it is told.
pub struct Host {
    tasks: Sender<Task>,
    pub thread: i32,
}

impl Host {
    /// `None` where that takes more rights than there are.
    pub fn new() -> Option<Self> {
        let (tasks, to_do) = channel::<Task>();
        let (say, said) = channel();
        std::thread::spawn(move || {
            let is_alone = unshare(CloneFlags::CLONE_NEWNET).is_ok();
            say.send(is_alone.then(|| nix::unistd::gettid().as_raw())).unwrap();
            to_do.into_iter().for_each(|task| task());
        });
        Some(Self { tasks, thread: said.recv().unwrap()? })
    }

    /// Does something there and waits for it.
    pub fn act<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> T {
        let (say, said) = channel();
        self.tasks.send(Box::new(move || drop(say.send(task())))).unwrap();
        said.recv().expect("the task has panicked")
    }

    pub fn run(&self, line: &str) {
        let line = line.to_owned();
        self.act(move || run(&line));
    }
}

pub fn run(line: &str) {
    let output = Command::new("sh").args(["-c", line]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The router's namespace is that of the thread that makes this. Its interfaces are `left` and `right`; the hosts are 10.1.0.2 and 10.2.0.2, and
/// fd01::2 and fd02::2.
pub struct Net {
    pub left: Host,
    pub right: Host,
    pub left_index: u32,
    pub right_index: u32,
}

impl Net {
    pub fn new() -> Option<Self> {
        if let Err(error) = Engine::is_built() {
            eprintln!("skipped: {error}");
            return None;
        }
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            eprintln!("skipped: a network namespace takes root");
            return None;
        }
        let (left, right) = (Host::new()?, Host::new()?);
        run("ip link set lo up; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        for (name, net, host) in [("left", 1, &left), ("right", 2, &right)] {
            run(&format!("ip link add {name} type veth peer name eth0 netns {}", host.thread));
            run(&format!(
                "ip addr add 10.{net}.0.1/16 dev {name}; ip addr add fd0{net}::1/64 dev {name} nodad; ip link set {name} up"
            ));
            host.run("ip link set lo up; ethtool -K eth0 tx off gro off >/dev/null");
            host.run(&format!(
                "ip addr add 10.{net}.0.2/16 dev eth0; ip addr add fd0{net}::2/64 dev eth0 nodad; ip link set eth0 up"
            ));
            host.run(&format!("ip route add default via 10.{net}.0.1; ip -6 route add default via fd0{net}::1"));
        }
        // At a moment when both ends are up: only then veth learns that frames of XDP may be sent there.
        for host in [&left, &right] {
            host.run("ethtool -K eth0 gro on >/dev/null");
        }
        // So that nobody waits for a neighbour.
        for (net, host) in [(1, &left), (2, &right)] {
            host.run(&format!("ping -qc1 -W2 10.{net}.0.1 >/dev/null; ping -qc1 -W2 fd0{net}::1 >/dev/null"));
        }
        Some(Self { left, right, left_index: index("left"), right_index: index("right") })
    }

    /// The engine on both interfaces.
    pub fn engine(&self, how: How, mode: Mode) -> Engine {
        let engine = Engine::load(&Default::default()).unwrap();
        for (name, ifindex) in [("left", self.left_index), ("right", self.right_index)] {
            engine.set_device(ifindex, &device(name)).unwrap();
            engine.attach(ifindex, how).unwrap();
        }
        engine.set_mode(mode);
        engine
    }
}

/// Waits for a state, however slow the machine is.
pub fn becomes(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "in half a minute it does not come about that {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn index(name: &str) -> u32 {
    let output = Command::new("ip").args(["-o", "link", "show", "dev", name]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).split(':').next().unwrap().parse().unwrap()
}

/// The number of the XDP program on an interface.
pub fn xdp(name: &str) -> u32 {
    xdp_if_any(name).unwrap()
}

/// The same, if there is one.
pub fn xdp_if_any(name: &str) -> Option<u32> {
    said(&["ip", "link", "show", "dev", name], "prog/xdp id ")
}

/// The number of the program of the first filter of BPF for what comes in by an interface.
pub fn filter(name: &str) -> Option<u32> {
    said(&["tc", "filter", "show", "dev", name, "ingress"], " id ")
}

/// The number behind some words that a command prints.
fn said(command: &[&str], words: &str) -> Option<u32> {
    let output = Command::new(command[0]).args(&command[1..]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split(words).nth(1)?.split(' ').next()?.trim().parse().ok()
}

pub fn mac(name: &str) -> [u8; 6] {
    let output = Command::new("ip").args(["-o", "link", "show", "dev", name]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = text.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    std::array::from_fn(|_| bytes.next().unwrap())
}

pub fn device(name: &str) -> Device {
    Device { flags: flag::UP | flag::FORWARD4 | flag::FORWARD6, mtu: 1500, mac: mac(name), ..Device::default() }
}
