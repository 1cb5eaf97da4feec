//! A program that takes part, in a process of its own that ends with this one.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use millrace_tool::failure::Failure;

/// Lines that a program may say before somebody listens.
const LINES: usize = 64;

/// This command again, with other arguments.
pub struct Process {
    child: Child,
    // It ends when this is closed.
    stdin: Option<ChildStdin>,
    said: Receiver<String>,
}

impl Process {
    /// Starts one against the card `device`.
    pub fn start(device: &str, arguments: &[&str]) -> Result<Self, Failure> {
        let failed = |source| Failure::File { doing: "cannot start", path: "millrace".into(), source };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(arguments).args(["--json", "--device", device]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let stdin = child.stdin.take();
        let (sender, said) = mpsc::sync_channel(LINES);
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                // Whoever is not listened to any more is killed or has ended.
                lines.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
            });
        }
        Ok(Self { child, stdin, said })
    }

    /// Waits for a line with a word in it.
    pub fn hear(&self, word: &str, patience: Duration) -> Result<(), Failure> {
        match self.said.recv_timeout(patience) {
            Ok(line) if line.contains(word) => Ok(()),
            Ok(line) => Err(Failure::Found(format!("a program said {line} instead of {word}"))),
            Err(_) => Err(Failure::Found(format!("a program never said {word}; see above"))),
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it, and says whether it was still there.
    pub fn kill(mut self) -> bool {
        !self.has_ended() && self.child.kill().is_ok()
    }

    /// Asks it to end, waits, and says whether it ended well.
    pub fn finish(&mut self, patience: Duration) -> Result<bool, Failure> {
        drop(self.stdin.take());
        let start = Instant::now();
        while !self.has_ended() {
            if start.elapsed() > patience {
                return Err(Failure::Found("a program did not end when asked".to_owned()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.child.wait().map(|status| status.success()).map_err(Failure::Output)
    }

    /// A number in the last line that a program that has ended has said.
    pub fn last_count(&mut self, name: &str) -> Option<u64> {
        let line = self.said.iter().last()?;
        serde_json::from_str::<serde_json::Value>(&line).ok()?[name].as_u64()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
