//! The BPF programs of the benchmark, and the maps by which they are told what to do.

use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};

/// `bpf/router.bpf.c`, compiled by `build.rs`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/router.bpf.o"));

/// `BPF_F_TEST_XDP_LIVE_FRAMES` of linux/bpf.h.
const LIVE_FRAMES: u32 = 1 << 1;

/// A copy of the programs and their maps, in the kernel until it is dropped.
pub struct Programs(Object);

impl Programs {
    /// Loads them. The error is a sentence.
    pub fn load() -> Result<Self, String> {
        // Why there are none; empty if there are.
        let problem = env!("ROUTER_BENCH_PROBLEM");
        if !problem.is_empty() {
            return Err(format!("this was built without the BPF programs of the benchmark: {problem}"));
        }
        let mut builder = ObjectBuilder::default();
        let open = builder.name("millrace_bench").and_then(|builder| builder.open_memory(OBJECT));
        open.and_then(|open| open.load()).map(Self).map_err(|why| format!("the BPF programs cannot be loaded: {why}"))
    }

    /// Puts the program as XDP on an interface of this thread's namespace.
    pub fn attach(&self, program: &str, interface: u32) -> Result<Link, String> {
        let found =
            self.0.progs_mut().find(|one| one.name() == program).ok_or_else(|| format!("no program {program}"))?;
        found
            .attach_xdp(interface.cast_signed())
            .map_err(|why| format!("{program} cannot be put on an interface: {why}"))
    }

    /// Runs the program on so many live frames, which are made from `frame`. What it redirects is on its way when this returns.
    pub fn run(&self, program: &str, frame: &[u8], count: u32) -> Result<(), String> {
        let found =
            self.0.progs_mut().find(|one| one.name() == program).ok_or_else(|| format!("no program {program}"))?;
        let input = ProgramInput { data_in: Some(frame), repeat: count, flags: LIVE_FRAMES, ..ProgramInput::default() };
        found.test_run(input).map(drop).map_err(|why| format!("{program} cannot be run: {why}"))
    }

    /// Writes what one core finds in the map.
    pub fn set(&self, map: &str, core: u32, value: &[u8]) -> Result<(), String> {
        let found = self.0.maps().find(|one| one.name() == map).ok_or_else(|| format!("no map {map}"))?;
        found.update(&core.to_ne_bytes(), value, MapFlags::ANY).map_err(|why| format!("map {map}: {why}"))
    }

    /// What is in the map for one core.
    pub fn get(&self, map: &str, core: u32) -> Result<Vec<u8>, String> {
        let found = self.0.maps().find(|one| one.name() == map).ok_or_else(|| format!("no map {map}"))?;
        let value = found.lookup(&core.to_ne_bytes(), MapFlags::ANY).map_err(|why| format!("map {map}: {why}"))?;
        value.ok_or_else(|| format!("map {map} has no core {core}"))
    }
}
