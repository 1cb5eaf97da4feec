//! TCP programs as they are, with the socket library and without it: redis and iperf3, each with both ends on this host.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::peers::process::{Process, find};
use crate::rig::Cores;

/// Where the servers listen: of redis, of iperf3.
const PORTS: [u16; 2] = [23_342, 23_343];

/// Whether the programs have the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// They have it.
    Library,
    /// Loopback TCP.
    Kernel,
}

/// Two programs of one kind.
struct Programs {
    cores: [Option<usize>; 2],
    library: Option<PathBuf>,
}

impl Programs {
    fn new(cores: Cores, way: Way) -> Result<Self, String> {
        let library = (way == Way::Library).then(library).transpose()?;
        Ok(Self { cores: [cores.card, cores.app], library })
    }

    /// Makes a command run on the core of its end, with the library if it is to have it.
    fn arrange(&self, command: &mut Command, program: &Path, end: usize) {
        match self.cores[end] {
            Some(core) => command.args(["-c", &core.to_string()]).arg(program),
            None => command.args(["-c", &format!("0-{}", cores_there() - 1)]).arg(program),
        };
        command.env_remove("LD_PRELOAD").env_remove("MILLRACE_STREAMS");
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
    }

    /// The server, listening.
    fn serve(&self, folder: &Path, port: u16, program: &Path, arguments: &[String]) -> Result<Process, String> {
        let mut server = Process::start("server", &find("taskset", "util-linux")?, folder, |command| {
            self.arrange(command, program, 0);
            command.args(arguments).current_dir(folder);
        })?;
        server.wait_until("an open port", || listens(port))?;
        Ok(server)
    }

    /// What the client says.
    fn ask(&self, program: &Path, arguments: &[String]) -> Result<String, String> {
        let mut command = Command::new(find("taskset", "util-linux")?);
        self.arrange(&mut command, program, 1);
        let output = command.args(arguments).stdin(Stdio::null()).output().map_err(|why| why.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.trim().lines().last().or(said.trim().lines().last()).unwrap_or_default().to_owned();
        Err(format!("{} ended with {}: {last}", program.display(), output.status))
    }
}

/// Requests per second that one redis answers to 50 connections, each of which sends one when it has its answer: SET and GET, half of
/// them each. Errors are sentences.
pub fn redis(cores: Cores, way: Way, seconds: f64) -> Result<f64, String> {
    let programs = Programs::new(cores, way)?;
    let (server, client) = (find("redis-server", "redis-server")?, find("redis-benchmark", "redis-tools")?);
    let folder = folder()?;
    let port = PORTS[0].to_string();
    let words = ["--port", &port, "--bind", "127.0.0.1", "--save", ""].map(str::to_owned);
    let _server = programs.serve(folder.path(), PORTS[0], &server, &words)?;
    let each = if way == Way::Library { 500_000.0 } else { 50_000.0 };
    let count = ((seconds * each) as u64).max(1000).to_string();
    let said = programs.ask(&client, &["-p", &port, "-n", &count, "-t", "set,get", "--csv"].map(str::to_owned))?;
    let rates: Vec<f64> =
        said.lines().filter_map(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok()).collect();
    if rates.len() != 2 {
        return Err(format!("redis-benchmark said {said:?}"));
    }
    Ok(2.0 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>())
}

/// GB/s of one connection of iperf3. Errors are sentences.
pub fn iperf(cores: Cores, way: Way, seconds: f64) -> Result<f64, String> {
    let programs = Programs::new(cores, way)?;
    let program = find("iperf3", "iperf3")?;
    let folder = folder()?;
    let port = PORTS[1].to_string();
    let _server = programs.serve(folder.path(), PORTS[1], &program, &["-s", "-p", &port].map(str::to_owned))?;
    let time = (seconds.ceil().max(1.0) as u64).to_string();
    let words = ["-c", "127.0.0.1", "-p", &port, "-t", &time, "--json"].map(str::to_owned);
    let said: serde_json::Value =
        serde_json::from_str(&programs.ask(&program, &words)?).map_err(|why| why.to_string())?;
    let rate = said["end"]["sum_received"]["bits_per_second"].as_f64();
    rate.map(|bits| bits / 8e9).ok_or_else(|| format!("iperf3 said {}", said["error"]))
}

fn folder() -> Result<tempfile::TempDir, String> {
    let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
    folder.map_err(|why| format!("cannot make a temporary folder: {why}"))
}

/// The library: beside this program, where it was built, or in `lib`, where it was installed.
fn library() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|why| why.to_string())?;
    let installed = program.parent().and_then(Path::parent).map(|prefix| prefix.join("lib/libmillrace-socket.so"));
    let places = [Some(program.with_file_name("libmillrace_socket.so")), installed];
    let found = places.into_iter().flatten().find(|place| place.is_file());
    found.ok_or_else(|| "libmillrace-socket.so is not there; `make build` makes it".to_owned())
}

/// Whether somebody listens there. The kernel is asked: who connects to find that out is a client to iperf3, which refuses the next one
/// until it has noticed that this one has gone.
fn listens(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let place = format!(":{port:04X}");
    let is_there = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|here| here.ends_with(&place)) && words.nth(1) == Some(LISTEN)
    };
    let mut tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().filter_map(|table| std::fs::read_to_string(table).ok());
    tables.any(|table| table.lines().any(is_there))
}

fn cores_there() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn who_listens_is_seen_and_nobody_connects() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        assert!(listens(port));
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(listener);
        assert!(!listens(port));
    }
}
