//! Programs of others, started for a measurement and ended with it.

use std::env;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millrace_tool::stop;
use rustix::process::{Pid, Signal, kill_process};

/// How long a program may take to start, and to end. On an idle machine it is a second or two.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How many lines of its output a program that fails is quoted with.
const LAST_LINES: usize = 4;

/// A running program. It ends with this, and with us.
pub struct Process {
    child: Child,
    name: &'static str,
    log: PathBuf,
    /// Some read commands from there, and end where it does.
    _stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts a program whose output goes to a file in `folder`. Errors are sentences.
    pub fn start(
        name: &'static str,
        program: &Path,
        folder: &Path,
        arrange: impl FnOnce(&mut Command),
    ) -> Result<Self, String> {
        let log = folder.join(format!("{name}.out"));
        let cannot = |why: &dyn std::fmt::Display| format!("cannot start {}: {why}", program.display());
        let file = File::create(&log).map_err(|why| cannot(&why))?;
        let copy = file.try_clone().map_err(|why| cannot(&why))?;
        // Should we be killed, so is it. A group of its own keeps Ctrl-C away from it: we end it when we are done.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program).process_group(0);
        command.stdin(Stdio::piped()).stdout(file).stderr(copy);
        arrange(&mut command);
        let mut child = command.spawn().map_err(|why| cannot(&why))?;
        let stdin = child.stdin.take();
        Ok(Self { child, name, log, _stdin: stdin })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until something is so. It is an error when the program ends before, or when it takes too long.
    pub fn wait_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
        let start = Instant::now();
        while !is_so() {
            self.check()?;
            if stop::asked() {
                return Err("interrupted".to_owned());
            }
            if start.elapsed() > LONGEST_WAIT {
                return Err(format!(
                    "{}: {what} did not come in {} s{}",
                    self.name,
                    LONGEST_WAIT.as_secs(),
                    self.quoted()
                ));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// An error when the program has ended.
    pub fn check(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("{} ended with {status}{}", self.name, self.quoted())),
            Err(why) => Err(format!("{}: {why}", self.name)),
        }
    }

    /// The end of what it said.
    fn quoted(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|line| format!("\n  {line}")).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // Nothing can be done about a signal that cannot be sent: the next one is KILL.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < LONGEST_WAIT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program to its end. The error is a sentence with what it said.
pub fn run(program: &Path, arrange: impl FnOnce(&mut Command)) -> Result<(), String> {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    arrange(&mut command);
    let output = command.output().map_err(|why| format!("cannot start {}: {why}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{} ended with {}: {}", program.display(), output.status, said.trim()))
}

/// Where a program is. The error says which Debian package has it.
pub fn find(program: &str, package: &str) -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    // The last two are not on everybody's path.
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/lib/openvswitch-switch-dpdk"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| {
            format!(
                "there is no {program}; apt-get install {package} (or scripts/setup.sh --bench), then run this again"
            )
        })
}

/// The folder that DPDK makes for a `--file-prefix` and leaves behind even with `--in-memory`.
pub struct RuntimeFolder {
    prefix: String,
}

impl RuntimeFolder {
    /// For a prefix that nobody else has.
    pub fn new(name: &str) -> Self {
        Self { prefix: format!("millrace-{}-{name}", std::process::id()) }
    }

    /// What follows `--file-prefix`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl Drop for RuntimeFolder {
    fn drop(&mut self) {
        let base = match rustix::process::getuid().is_root() {
            true => PathBuf::from("/var/run"),
            false => env::var_os("XDG_RUNTIME_DIR").map_or_else(|| "/tmp".into(), PathBuf::from),
        };
        // It may not be there.
        let _ = fs::remove_dir_all(base.join("dpdk").join(&self.prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_is_quoted_and_one_that_runs_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let shell = find("sh", "dash").unwrap();
        let mut short = Process::start("short", &shell, folder.path(), |command| {
            command.args(["-c", "echo one; echo two >&2; exit 3"]);
        })
        .unwrap();
        let error = short.wait_until("the impossible", || false).unwrap_err();
        assert!(error.starts_with("short ended with exit status: 3") && error.ends_with("one\n  two"), "{error}");

        let mut long = Process::start("long", &shell, folder.path(), |command| {
            command.args(["-c", "echo here; exec sleep 1000"]);
        })
        .unwrap();
        let log = folder.path().join("long.out");
        long.wait_until("its word", || fs::read(&log).is_ok_and(|text| text == b"here\n")).unwrap();
        let pid = Pid::from_child(&long.child);
        drop(long);
        assert!(rustix::process::test_kill_process(pid).is_err(), "still there");
    }

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let error = find("no-such-program", "no-such-package").unwrap_err();
        assert!(error.contains("apt-get install no-such-package"), "{error}");
    }
}
