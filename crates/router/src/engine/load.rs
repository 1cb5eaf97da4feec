//! Loading the program and finding its parts.

use super::layout::{self, global};
use super::{Engine, EngineError, Globals, Maps};
use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel};
use millrace_dma::{Protection, Region};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// The program, from the build; empty where that had no clang.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/router.bpf.o"));

/// How large the tables are, and how careful the engine is.
#[derive(Debug, Clone)]
pub struct Config {
    /// Rules of IPv4, a power of two; each takes 64 bytes.
    pub rules4: u32,
    /// Rules of IPv6, a power of two; each takes 128 bytes.
    pub rules6: u32,
    /// Packets of a flow that may be looked for at the egress before the flow is refused.
    pub trial_packets: u32,
    /// How often conntrack is asked about a flow.
    pub keep: Duration,
    /// A folder in a file system of BPF (`/sys/fs/bpf`), where what is attached as XDP is kept if the process is killed: the rules then go on
    /// until the heartbeat's limit, and the next process that attaches to the interface takes its place without a gap. `None`: it ends with
    /// the process.
    pub pins: Option<PathBuf>,
    /// The number of the network namespace: what other engines have kept in folders whose names end with it, behind a hyphen, is taken over as well.
    pub namespace: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rules4: 1 << 18,
            rules6: 1 << 16,
            trial_packets: 16,
            keep: Duration::from_secs(5),
            pins: None,
            namespace: None,
        }
    }
}

impl Engine {
    /// Whether this build has a program to load.
    ///
    /// # Errors
    /// [`EngineError::NotBuilt`] where it had no clang.
    pub fn is_built() -> Result<(), EngineError> {
        if PROGRAM.is_empty() { Err(EngineError::NotBuilt(env!("ROUTER_PROBLEM"))) } else { Ok(()) }
    }

    /// Loads the program. Nothing is attached yet, and the mode is [`Mode::Off`](super::Mode::Off).
    ///
    /// # Errors
    /// [`EngineError::NotBuilt`] where the build had no clang, [`EngineError::Size`], [`EngineError::Load`].
    pub fn load(config: &Config) -> Result<Self, EngineError> {
        Self::is_built()?;
        for size in [config.rules4, config.rules6] {
            if !size.is_power_of_two() || !(1024..=1 << 24).contains(&size) {
                return Err(EngineError::Size(size));
            }
        }
        // What goes wrong comes back as an error; libbpf would write lines of its own to stderr, also about what is no error to us.
        libbpf_rs::set_print(Some((PrintLevel::Warn, keep_lines)));
        // A copy, because nothing aligns the bytes of the program in this file.
        let program = PROGRAM.to_vec();
        let mut open = ObjectBuilder::default().open_memory(&program).map_err(EngineError::Load)?;
        let seed = fastrand::u64(..);
        set_constants(&mut open, config, seed)?;
        LINES.lock().expect("no holder panics").clear();
        let object = open.load().map_err(|source| {
            let lines = LINES.lock().expect("no holder panics");
            EngineError::Refused { source, lines: lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n") }
        })?;
        // Both, or what is lost would be counted half.
        let watch = ["router_redirect_failed", "router_transmitted"].map(|name| {
            let program =
                object.progs_mut().find(|program| program.name() == name).ok_or(EngineError::Missing(name))?;
            program.attach().map_err(EngineError::Load)
        });
        let [failed, transmitted] = watch;
        let engine = Self {
            maps: Maps::find(&object)?,
            globals: Globals::new(map(&object, "globals", global::SIZE)?)?,
            rules4: map(&object, "rules4", config.rules4 as usize * layout::RULE4)?,
            rules6: map(&object, "rules6", config.rules6 as usize * layout::RULE6)?,
            hops: map(&object, "hops", layout::HOPS as usize * layout::HOP)?,
            ports: map(&object, "ports", layout::PORTS as usize * layout::PORT)?,
            attached: Mutex::default(),
            adopted: Mutex::default(),
            devices: Mutex::default(),
            groups: Mutex::default(),
            shaped: Mutex::default(),
            _watch: [failed?, transmitted?],
            pins: config.pins.as_deref().map(super::pins::folder).transpose()?,
            namespace: config.namespace,
            numbers: super::attach::Numbers::of(&object)?,
            fast_before: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            renewed: Mutex::new(None),
            object,
            seed,
        };
        engine.set_up(config)?;
        engine.sweep();
        Ok(engine)
    }

    fn set_up(&self, config: &Config) -> Result<(), EngineError> {
        let hz = self.measure_hz()?;
        self.globals.word(global::HZ).store(hz, std::sync::atomic::Ordering::Relaxed);
        self.set(global::TRIAL_PACKETS, config.trial_packets);
        self.set(global::KEEP, self.jiffies_of(config.keep));
        self.set(global::TCP_MS, 432_000_000);
        self.set(global::UDP_MS, 120_000);
        self.set(global::PARTS, super::mirror::ALL_PARTS);
        self.set(global::TARGETS, self.maps.targets.info().map_err(EngineError::Load)?.info.id);
        // Epoch 1, so that rules of epoch 0, which nobody makes, are old.
        self.globals.epochs.store(1 << 32 | 1, std::sync::atomic::Ordering::Relaxed);
        // Nothing is attached yet, so nothing is judged.
        self.heartbeat().map(drop)
    }

    /// Jiffies of a second, from two looks at the kernel's clock: no interface tells them.
    fn measure_hz(&self) -> Result<u32, EngineError> {
        let (begin, first) = (Instant::now(), self.jiffies()?);
        std::thread::sleep(Duration::from_millis(60));
        let (passed, then) = (begin.elapsed(), self.jiffies()?);
        let measured = f64::from(then.wrapping_sub(first)) / passed.as_secs_f64();
        let nearest =
            |a: &&u32, b: &&u32| (f64::from(**a) - measured).abs().total_cmp(&(f64::from(**b) - measured).abs());
        Ok(*[100, 250, 300, 1000].iter().min_by(nearest).expect("there are four"))
    }
}

/// The last lines that libbpf has said: among them those of the verifier, if it was that which refused the program.
static LINES: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

fn keep_lines(_: PrintLevel, text: String) {
    let mut lines = LINES.lock().expect("no holder panics");
    for line in text.lines() {
        if lines.len() == 30 {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }
}

/// Whether the kernel has all functions by which the program asks conntrack: Linux 6.1 or newer with nf_conntrack, which has to be loaded by now.
fn asks_conntrack() -> bool {
    let mut missing = vec!["bpf_xdp_ct_lookup", "bpf_skb_ct_lookup", "bpf_ct_release", "bpf_ct_change_timeout"];
    let Ok(symbols) = std::fs::File::open("/proc/kallsyms") else { return false };
    for line in BufReader::new(symbols).lines().map_while(Result::ok) {
        // Address, kind, name, and the module in brackets.
        let name = line.split_whitespace().nth(2).unwrap_or_default();
        missing.retain(|wanted| *wanted != name);
        if missing.is_empty() {
            return true;
        }
    }
    false
}

fn set_constants(open: &mut OpenObject, config: &Config, seed: u64) -> Result<(), EngineError> {
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            "rules4" => map.set_max_entries(config.rules4).map_err(EngineError::Load)?,
            "rules6" => map.set_max_entries(config.rules6).map_err(EngineError::Load)?,
            _ if name.ends_with(".rodata") => {
                let bytes = map
                    .initial_value_mut()
                    .filter(|bytes| bytes.len() == 40)
                    .ok_or(EngineError::Missing("constants"))?;
                bytes[..4].copy_from_slice(&(config.rules4 - 1).to_le_bytes());
                bytes[4..8].copy_from_slice(&(config.rules6 - 1).to_le_bytes());
                bytes[8..16].copy_from_slice(&seed.to_le_bytes());
                bytes[16..24].copy_from_slice(&u64::from(asks_conntrack()).to_le_bytes());
            }
            _ => {}
        }
    }
    Ok(())
}

/// A map that can be mapped.
fn map(object: &Object, name: &'static str, len: usize) -> Result<Region, EngineError> {
    let map = object.maps().find(|map| map.name() == name).ok_or(EngineError::Missing(name))?;
    let fd = map.as_fd().try_clone_to_owned().map_err(|_| EngineError::Missing(name))?;
    Ok(Region::map_bpf(fd, len, Protection::ReadWrite)?)
}

impl Maps {
    fn find(object: &Object) -> Result<Self, EngineError> {
        let handle = |name: &'static str| {
            let map = object.maps().find(|map| map.name() == name).ok_or(EngineError::Missing(name))?;
            MapHandle::try_from(&map).map_err(EngineError::Load)
        };
        Ok(Self {
            devices: handle("devices")?,
            uppers: handle("uppers")?,
            fdb: handle("fdb")?,
            targets: handle("targets")?,
            failed: handle("failed")?,
            counters: handle("counters")?,
            fast: handle("fast")?,
            events: handle("events")?,
            shadows: handle("shadows")?,
            sas: handle("sas")?,
            groups: handle("groups")?,
            sets: handle("sets")?,
            outers: handle("outers")?,
            hop_index: handle("hop_index")?,
            sockets: handle("sockets")?,
        })
    }
}
