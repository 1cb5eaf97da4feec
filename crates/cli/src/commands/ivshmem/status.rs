//! `millrace ivshmem status`: how a server is. It is asked at a socket beside its own.

use clap::Args;
use millrace_ivshmem::Status;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a server has to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Who may be answered in one turn.
const MOST_AT_ONCE: usize = 8;
/// More than an answer has bytes.
const MOST_BYTES: u64 = 1 << 20;

/// Options of `ivshmem status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace ivshmem status /tmp/iv.sock
  millrace ivshmem status /tmp/iv.sock --json")]
pub struct StatusArgs {
    /// Socket of the server
    path: PathBuf,
}

/// Where a server is asked; removed when this is dropped.
pub(super) struct Asked {
    path: PathBuf,
    listener: UnixListener,
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".status");
    name.into()
}

/// Where the server at `path`, whose socket it is by now, is asked. One that was killed has left its socket behind.
pub(super) fn listen(path: &Path) -> Option<Asked> {
    let path = beside(path);
    // Only what is a socket, and nobody's.
    let is_socket = std::fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(&path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
        let _ = std::fs::remove_file(&path);
    }
    match UnixListener::bind(&path).and_then(|listener| listener.set_nonblocking(true).map(|()| listener)) {
        Ok(listener) => Some(Asked { path, listener }),
        Err(error) => {
            note(format!("`millrace ivshmem status` will find nobody: {}: {error}", path.display()));
            None
        }
    }
}

/// Answers who asks. An answer has room in a socket that was just made.
pub(super) fn answer(asked: &Asked, status: &Status) {
    for _ in 0..MOST_AT_ONCE {
        let Ok((mut stream, _)) = asked.listener.accept() else { return };
        let _ = stream.set_nonblocking(true);
        if let Ok(text) = serde_json::to_vec(status) {
            let _ = stream.write_all(&text);
        }
    }
}

/// Runs the command.
pub fn run(shared: &Shared, args: &StatusArgs) -> Result<(), Failure> {
    let path = beside(&args.path);
    let file = |source| Failure::File { doing: "no server of ivshmem answers at", path: path.clone(), source };
    let stream = UnixStream::connect(&path).map_err(file)?;
    stream.set_read_timeout(Some(ANSWER)).map_err(file)?;
    let mut text = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut text).map_err(file)?;
    let strange = |error| Failure::Found(format!("{} answers nonsense: {error}", path.display()));
    show(Output::new(shared.json), &serde_json::from_str(&text).map_err(strange)?)
}

/// Prints it.
pub(super) fn show(output: Output, status: &Status) -> Result<(), Failure> {
    output.object(status)?;
    if output.is_json() {
        return Ok(());
    }
    let counters = &status.counters;
    let counts = Row::new()
        .count("bytes", status.bytes as u64)
        .count("peers max", status.peers_max.into())
        .count("vectors", status.vectors.into())
        .count("joined", counters.joined)
        .count("left", counters.left)
        .count("spoke", counters.spoke)
        .count("slow", counters.slow)
        .count("failed", counters.failed)
        .count("refused", counters.refused)
        .count("full", counters.full)
        .count("exhausted", counters.exhausted);
    output.rows("server", &[counts])?;
    let rows: Vec<_> = status
        .peers
        .iter()
        .map(|peer| {
            Row::new()
                .count("id", peer.id.into())
                .count("pid", peer.pid.into())
                .count("uid", peer.uid.into())
                .count("seconds", peer.seconds)
                .count("waiting", peer.waiting as u64)
        })
        .collect();
    Ok(output.rows("peers", &rows)?)
}
