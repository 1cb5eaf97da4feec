//! The engine in the kernel: loads the program of `bpf/`, attaches it, fills its maps, reads what it has made.
//!
//! * [`Engine`] is the loaded program; dropped, it takes its rules and its attachments with it.
//! * [`attach`](Engine::attach): on which interfaces, as XDP or at tc.
//! * [`Device`], [`Upper`], [`Fdb`]: what Linux has, as the daemon mirrors it.
//! * [`Rule`], [`Key`], [`Hop`]: what the program has made of it.
//! * [`Event`]: what it has to tell;
//! * [`Carrier`], [`user`]: its rules and its frames for the engine in user space.
//!
//! The rules are made by the program itself (`bpf/flow.h`); nothing here is on a packet's way.

mod attach;
mod carry;
mod events;
mod groups;
pub mod layout;
mod link;
mod load;
mod mirror;
pub mod pins;
mod run;
pub mod shadow;
mod table;
pub mod user;

pub use attach::{Attached, How};
pub use carry::{Carrier, Front};
pub use events::{Event, EventKind};
pub use groups::{Group, Ways};
pub use layout::{Hop, Key, Rule, State};
pub use load::Config;
pub use mirror::{Change, Device, ErrorLimits, Fdb, Mode, Upper, UpperKind, error_limit};
pub use run::Outcome;
pub use table::{Counter, Rules};

use layout::global;
use libbpf_rs::{Link, MapHandle, Object};
use millrace_dma::{Region, Word32, Word64};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Why the engine cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The program was not compiled.
    #[error("this build of Millrace has no engine for the kernel: {0}")]
    NotBuilt(&'static str),
    /// The kernel does not take it.
    #[error(
        "the kernel does not take the router's program: {0}; it needs root (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON) and Linux 6.1 or newer with BTF"
    )]
    Load(#[source] libbpf_rs::Error),
    /// The kernel has read the program and does not take it.
    #[error(
        "the kernel does not take the router's program: {source}; it needs root (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON) and Linux 6.1 or newer with BTF. The last that was said of it:\n{lines}"
    )]
    Refused {
        /// What it said.
        source: libbpf_rs::Error,
        /// The last lines of libbpf and of the verifier.
        lines: String,
    },
    /// A number in the configuration cannot be.
    #[error("the table of rules cannot have {0} entries: it has a power of two, 1024 to 16777216 of them")]
    Size(u32),
    /// A map cannot be mapped.
    #[error("a table of the router's program cannot be mapped: {0}")]
    Map(#[from] millrace_dma::RegionError),
    /// The program and this code do not fit.
    #[error("the router's program has no {0}; it was built from other sources")]
    Missing(&'static str),
    /// A map does not take an entry.
    #[error("{what}: {source}")]
    Update {
        /// What was to be written.
        what: &'static str,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// The program cannot be attached.
    #[error("the router cannot be attached to interface {ifindex}: {source}")]
    Attach {
        /// To which interface.
        ifindex: u32,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// What is to outlive the process has no place.
    #[error(
        "attachments cannot be kept in {path}: {source}; mount a file system of BPF there (mount -t bpf bpf /sys/fs/bpf)"
    )]
    Pin {
        /// Where.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// More interfaces than there is room for.
    #[error("the router is attached to {} interfaces already, which is all that it can be", layout::TARGETS)]
    Slots,
}

/// The program in the kernel.
pub struct Engine {
    object: Object,
    maps: Maps,
    globals: Globals,
    rules4: Region,
    rules6: Region,
    hops: Region,
    ports: Region,
    /// What is attached to which interface.
    attached: Mutex<HashMap<u32, attach::Attachment>>,
    /// All interfaces that the engine was told of.
    devices: Mutex<HashMap<u32, Device>>,
    /// Multicast routes that the program was told of.
    groups: Mutex<groups::Told>,
    /// Interfaces of which a qdisc tells packets apart.
    shaped: Mutex<HashSet<u32>>,
    /// Watches for frames that were lost after a redirect.
    _watch: [Link; 2],
    /// What a process that was killed has left on interfaces, until its place is taken.
    adopted: Mutex<HashMap<u32, link::XdpLink>>,
    /// Where attachments are kept for the next process.
    pins: Option<PathBuf>,
    /// The network namespace in whose engines' folders is looked for what they have left.
    namespace: Option<u64>,
    /// Of the programs.
    numbers: attach::Numbers,
    /// Packets sent on that came by interfaces where the program is no more.
    fast_before: AtomicU64,
    /// How often all next hops were given back.
    renewals: AtomicU64,
    /// When they were given back last because there were too many.
    renewed: Mutex<Option<Instant>>,
    /// What makes flows lie where nobody else knows.
    seed: u64,
}

/// The maps that are filled by calls.
struct Maps {
    devices: MapHandle,
    uppers: MapHandle,
    fdb: MapHandle,
    targets: MapHandle,
    failed: MapHandle,
    counters: MapHandle,
    fast: MapHandle,
    events: MapHandle,
    shadows: MapHandle,
    sas: MapHandle,
    groups: MapHandle,
    sets: MapHandle,
    outers: MapHandle,
    hop_index: MapHandle,
    sockets: MapHandle,
}

/// What is set for all packets, word by word.
struct Globals {
    region: Region,
    epochs: Word64,
}

impl Globals {
    fn new(region: Region) -> Result<Self, EngineError> {
        let epochs = region.window().word64(global::EPOCHS).map_err(|_| EngineError::Missing("globals"))?;
        Ok(Self { region, epochs })
    }

    fn word(&self, offset: usize) -> Word32 {
        self.region.window().word32(offset).expect("an offset of layout::global is inside the map")
    }
}
