//! What a benchmark stands on: a card, usually in a process of its own, and a core for each side.

use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use millrace_abi::queue::{Engine, Mode};
use millrace_tool::failure::Failure;
use millrace_tool::host::{RxQueue, TxQueue};
use millrace_tool::options::{Engines, Shared};
use millrace_tool::output::note;
use millrace_tool::session::Session;
use millrace_tool::{cores, programs};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::choice::first_queue;

/// How long a card process may take to start, and to end.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Where card and application run.
#[derive(Clone, Copy, Debug, Args)]
pub struct CoreArgs {
    /// Core for the application [default: the first this program may use]
    #[arg(long, global = true, value_name = "CORE")]
    app_cpu: Option<usize>,
    /// Core for the card [default: the second]
    #[arg(long, global = true, value_name = "CORE")]
    card_cpu: Option<usize>,
}

impl CoreArgs {
    fn or_first_two(self) -> (Option<usize>, Option<usize>) {
        let allowed = cores::allowed();
        (self.app_cpu.or(allowed.first().copied()), self.card_cpu.or(allowed.get(1).copied()))
    }
}

/// The cores of the two sides.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    /// Core of the application.
    pub app: Option<usize>,
    /// Core of the card, if there is a second one.
    pub card: Option<usize>,
}

impl Cores {
    /// Takes the cores asked for, or the first two that this process may use.
    pub fn choose(args: CoreArgs) -> Self {
        let (app, card) = args.or_first_two();
        if card.is_none() {
            note("only one core may be used: card and application take turns, so times say little");
        }
        Self { app, card }
    }

    /// Pins this thread, or says why not.
    pub fn pin_application(self) {
        if let Some(core) = self.app
            && let Err(why) = cores::pin(core)
        {
            note(format!("{why}; going on without"));
        }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = |core: Option<usize>| core.map_or("any core".to_owned(), |core| format!("core {core}"));
        write!(f, "application on {}, card on {}", core(self.app), core(self.card))
    }
}

/// A card to measure, and the options with which its queues are opened.
pub struct Rig {
    shared: Shared,
    card: Option<CardProcess>,
    cores: Cores,
}

impl Rig {
    /// The card of `--device`, or a new card process whose queues have that engine and whose port is `port`.
    pub fn start(shared: &Shared, cores: Cores, engine: Option<Engine>, port: &str) -> Result<Self, Failure> {
        Self::start_with(shared, cores, engine, &["--port", port])
    }

    /// The card of `--device`, or a new card process whose queues have that engine, with these options as well.
    pub fn start_with(
        shared: &Shared,
        cores: Cores,
        engine: Option<Engine>,
        options: &[&str],
    ) -> Result<Self, Failure> {
        let mut shared = shared.clone();
        let card = match shared.device {
            Some(_) => None,
            None => Some(CardProcess::start(cores, engine, options, shared.queues().needed())?),
        };
        if let Some(card) = &card {
            shared.device = Some(card.device.clone());
        }
        // From here on `--engine` is a demand on the card, and not a choice.
        shared.engine = engine.map(Engines::all).into_iter().collect();
        Ok(Self { shared, card, cores })
    }

    /// Opens the card.
    pub fn session(&self) -> Result<Session<'_>, Failure> {
        Session::open(&self.shared)
    }

    /// Opens the card for one mode.
    pub fn in_mode(&self, mode: Mode) -> Self {
        let shared = Shared { mode: Some(mode), ..self.shared.clone() };
        Self { shared, card: None, cores: self.cores }
    }

    /// Both queues of the pair that is measured, started.
    pub fn pair(&self, session: &Session<'_>) -> Result<(RxQueue, TxQueue), Failure> {
        let queue = first_queue(&self.shared);
        Ok((session.rx(queue)?, session.tx(queue)?))
    }

    /// The name of the card.
    pub fn device(&self) -> &str {
        self.shared.device.as_deref().unwrap_or_default()
    }

    /// The card's process, if it is ours.
    pub fn process(&self) -> Option<Pid> {
        self.card.as_ref().map(|card| Pid::from_child(&card.child))
    }

    /// Ends the card process and says whether it ended well.
    pub fn end(self) -> Result<(), Failure> {
        self.card.map_or(Ok(()), CardProcess::end)
    }
}

/// `millrace card` in a process of its own.
struct CardProcess {
    child: Child,
    device: String,
    /// Holds the socket; removed when the card has ended.
    _folder: TempDir,
}

impl CardProcess {
    fn start(cores: Cores, engine: Option<Engine>, options: &[&str], queues: u32) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir().map_err(cannot_start)?;
        let socket = folder.path().join("card.sock");
        let mut command = Command::new(programs::beside(programs::MILLRACE).map_err(cannot_start)?);
        command
            .args(["card", "--json", "--until-eof", "--queues", &queues.to_string(), "--listen"])
            .arg(socket)
            .args(options)
            .env_remove("MILLRACE_DEVICE")
            // Who connects is no news to whoever measures.
            .env("MILLRACE_LOG", std::env::var_os("MILLRACE_LOG").unwrap_or_else(|| "warn".into()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(engine) = engine {
            command.args(["--engine", &engine.to_string()]);
        }
        if let Some(core) = cores.card {
            // A card that polls beside the application on one core would keep it from running.
            command.args(["--poll", "--cpu", &core.to_string()]);
        }
        // The child inherits the core of this thread, the application's, and its worker moves to the card's (`--cpu`).
        // What stays here is the driver's thread. In mediated mode it works while the application waits for it, as a
        // kernel would on the application's core; beside a polling worker it would wait for its turn at every request,
        // and mediated mode would look ten times slower than it is.
        let mut child = command.spawn().map_err(cannot_start)?;
        match await_announcement(&mut child) {
            Ok(device) => Ok(Self { child, device, _folder: folder }),
            Err(why) => {
                // Nothing more can be done about a card that cannot even be killed.
                let _ = child.kill();
                let _ = child.wait();
                Err(Failure::Found(format!("the card process did not start: {why}")))
            }
        }
    }

    fn end(mut self) -> Result<(), Failure> {
        match self.terminate() {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Failure::Found(format!("the card process ended with {status}"))),
            None => Err(Failure::Found("the card process did not end and was killed".to_owned())),
        }
    }

    /// Asks the card to end, waits, and kills it if it does not.
    fn terminate(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(status);
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < START_TIMEOUT {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }
}

impl Drop for CardProcess {
    fn drop(&mut self) {
        self.terminate();
    }
}

/// The name of the card, from the line that it prints when it can be used.
fn await_announcement(child: &mut Child) -> Result<String, String> {
    let stdout = child.stdout.take().ok_or("its output cannot be read")?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(read_line(stdout)));
    let line = receiver.recv_timeout(START_TIMEOUT).map_err(|_| "it said nothing for 10 s".to_owned())?;
    let event: serde_json::Value = serde_json::from_str(&line).map_err(|_| "it ended; see above".to_owned())?;
    let device = event["device"].as_str().ok_or_else(|| format!("it said {line:?}"))?;
    Ok(device.to_owned())
}

fn read_line(stdout: ChildStdout) -> String {
    let mut line = String::new();
    // An unreadable line is an empty one to the caller.
    let _ = BufReader::new(stdout).read_line(&mut line);
    line
}

fn cannot_start(source: io::Error) -> Failure {
    Failure::File { doing: "cannot start", path: "millrace card".into(), source }
}

/// Runs a program that may use all cores that this process was given, though this thread is pinned to one: a child
/// inherits the cores of the thread that starts it.
pub fn run_on_all_cores(mut command: Command) -> io::Result<Output> {
    let run = move || {
        cores::unpin();
        command.output()
    };
    thread::spawn(run).join().unwrap_or_else(|_| Err(io::Error::other("the starting thread panicked")))
}
