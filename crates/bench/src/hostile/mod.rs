//! `millrace hostile KIND`, hidden: a program that misbehaves, for `bench fairness`, `soak` and the tests. It is a process
//! of its own so that what it breaks of itself is nobody else's.
//!
//! One file per kind; [`queue`] is an open queue with everything in our hands, [`peer`] a connection past the client.

mod attack;
mod floods;
mod hold;
mod linger;
mod memory;
mod peer;
mod queue;
mod registers;
pub mod rings;
mod rules;

use std::path::PathBuf;
use std::thread;

use clap::{Args, ValueEnum};
use millrace_abi::name::DeviceName;
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::{cores, stop};

use attack::Attack;

/// Options of `hostile`.
#[derive(Debug, Args)]
pub struct HostileArgs {
    /// What to do to the card of --device.
    #[arg(value_enum)]
    kind: Kind,
    /// Which ring, for `rings`.
    #[arg(long)]
    case: Option<String>,
    /// End after so long [default: with standard input, or Ctrl-C].
    #[arg(long)]
    seconds: Option<f64>,
    /// Core to run on.
    #[arg(long)]
    on_cpu: Option<usize>,
    /// Seed of what is random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a hostile program can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Rings that cost the card's worker as much as they can: `--case`, on each of `--queue`.
    Rings,
    /// Writes to the registers of queues that others hold.
    Registers,
    /// Requests without end, replies unread until there are many.
    Requests,
    /// Rules without end: transactions that are done, that are left, that are wrong; lists that nobody reads to their end.
    Rules,
    /// Connections that are closed at once.
    Connects,
    /// As many connections as a process with 400 descriptors can have.
    Fds,
    /// Random words in all memory that is shared with the card, on each of `--queue` in both directions.
    Memory,
    /// Locks that are never given back, and what a program may have of them.
    Locks,
    /// Descriptors whose closing takes long.
    Linger,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &HostileArgs) -> Result<(), Failure> {
    if let Some(core) = args.on_cpu {
        cores::pin(core).map_err(Failure::Usage)?;
    }
    if args.seconds.is_none() {
        thread::spawn(stop::with_standard_input);
    }
    let path = socket(shared)?;
    let queues = shared.queues();
    let mut attack: Box<dyn Attack> = match args.kind {
        Kind::Rings => rings::attack(&path, queues.indices(), args.case.as_deref())?,
        Kind::Registers => Box::new(registers::Registers::new(&path, queues.indices())?),
        Kind::Requests => Box::new(floods::Requests::new(&path)?),
        Kind::Rules => Box::new(rules::Rules::new(&path)?),
        Kind::Connects => Box::new(floods::Connects::new(&path)),
        Kind::Fds => Box::new(floods::Descriptors::new(&path)?),
        Kind::Memory => Box::new(memory::Memory::new(&path, queues.indices(), args.seed)?),
        Kind::Locks => Box::new(hold::Locks::new(&path)?),
        Kind::Linger => Box::new(linger::Linger::new(&path)?),
    };
    let output = Output::new(true);
    let row = |event: &str, count: u64| Row::new().text("event", event).count("operations", count);
    output.rows("", &[row("attacking", 0)])?;
    let start = Moment::now();
    let mut operations = 0;
    while !stop::asked() && args.seconds.is_none_or(|seconds| start.seconds() < seconds) {
        operations += attack.step()?;
    }
    Ok(output.rows("", &[row("attacked", operations)])?)
}

/// The socket of the card: a card in this process would only hurt itself.
fn socket(shared: &Shared) -> Result<PathBuf, Failure> {
    match shared.device.as_deref().map(str::parse) {
        Some(Ok(DeviceName::Unix(path))) => Ok(path),
        _ => Err(Failure::Usage("a hostile program takes --device unix:PATH".to_owned())),
    }
}
