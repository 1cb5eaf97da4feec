//! A program that disturbs, in a process of its own that ends with this one.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_tool::failure::Failure;
use millrace_tool::stop;

/// How long it may take to begin: it may have to wait for a core, and to open a thousand queues.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks for Ctrl-C.
const NAP: Duration = Duration::from_millis(50);

/// `millrace hostile`.
pub struct Disturber {
    child: Child,
    // It ends when this is closed, also when we are killed.
    _stdin: Option<ChildStdin>,
}

impl Disturber {
    /// Starts one on `core` against a card, and waits until it has begun.
    pub fn start(device: &str, core: Option<usize>, arguments: &[&str]) -> Result<Self, Failure> {
        let mut disturber = Self::spawn(device, core, arguments)?;
        disturber.await_beginning()?;
        Ok(disturber)
    }

    fn spawn(device: &str, core: Option<usize>, arguments: &[&str]) -> Result<Self, Failure> {
        let failed = |source| Failure::File { doing: "cannot start", path: "millrace hostile".into(), source };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("hostile").args(arguments).args(["--device", device]);
        if let Some(core) = core {
            command.args(["--on-cpu", &core.to_string()]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let stdin = child.stdin.take();
        Ok(Self { child, _stdin: stdin })
    }

    fn await_beginning(&mut self) -> Result<(), Failure> {
        let Some(stdout) = self.child.stdout.take() else { return Ok(()) };
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut out = BufReader::new(stdout);
            let mut line = String::new();
            let _ = out.read_line(&mut line);
            let _ = sender.send(line);
            // Held until its end: nobody reads its last line, but it shall not fail in writing it.
            let _ = std::io::copy(&mut out, &mut std::io::sink());
        });
        let start = Instant::now();
        while start.elapsed() < START_TIMEOUT && !stop::asked() {
            match receiver.recv_timeout(NAP) {
                Ok(line) if line.contains("attacking") => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
                _ => return Err(Failure::Found("the disturbing program has ended; see above".to_owned())),
            }
        }
        Err(Failure::Found("the disturbing program has not begun within a minute".to_owned()))
    }
}

impl Drop for Disturber {
    fn drop(&mut self) {
        // As a crash would: a hostile program is not asked.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
