//! `millrace ivshmem status`: how a server is. It is asked at a socket beside its own.

use clap::Args;
use millrace_callers::{Call, Carries, Entrance, Listener, owner_only};
use millrace_ivshmem::Status;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use rustix::net::{SendFlags, send};
use std::io::Read;
use std::os::unix::net::UnixStream;
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

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".status");
    name.into()
}

/// Where the server at `path`, whose socket it is by now, is asked: by those who could end it, and root.
pub(super) fn listen(path: &Path) -> Option<Entrance> {
    let path = beside(path);
    let listening = Listener::private(path.clone(), Carries::Streams);
    let entrance = listening.and_then(|listener| Entrance::new(listener, owner_only()));
    match entrance {
        Ok(entrance) => Some(entrance.without_descriptors()),
        Err(error) => {
            note(format!("`millrace ivshmem status` will find nobody: {}: {error}", path.display()));
            None
        }
    }
}

/// Answers who asks. An answer has room in a socket that was just made.
pub(super) fn answer(asked: &mut Entrance, status: &Status) {
    for _ in 0..MOST_AT_ONCE {
        match asked.accept() {
            Some(Call::In(socket, _)) => {
                if let Ok(text) = serde_json::to_vec(status) {
                    let _ = send(&socket, &text, SendFlags::NOSIGNAL);
                }
                asked.turn_away(socket);
            }
            Some(Call::Refused(_)) => {}
            Some(Call::Exhausted) | None => return,
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
        .count("held", status.held as u64)
        .count("behind", status.behind as u64)
        .count("joined", counters.joined)
        .count("left", counters.left)
        .count("spoke", counters.spoke)
        .count("slow", counters.slow)
        .count("failed", counters.failed)
        .count("refused", counters.refused)
        .count("full", counters.full)
        .count("exhausted", counters.exhausted)
        .count("shut", counters.shut);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &Path) -> Status {
        let stream = UnixStream::connect(beside(path)).unwrap();
        serde_json::from_reader(stream).unwrap()
    }

    #[test]
    fn the_end_of_one_server_takes_nothing_from_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("iv.sock");
        let first = listen(&path).unwrap();
        std::fs::rename(beside(&path), folder.path().join("moved")).unwrap();
        let mut second = listen(&path).unwrap();
        drop(first);
        let status = Status { peers_max: 7, ..Status::default() };
        let answered = std::thread::scope(|scope| {
            let asks = scope.spawn(|| asked(&path));
            while !asks.is_finished() {
                answer(&mut second, &status);
                std::thread::yield_now();
            }
            asks.join().unwrap()
        });
        assert_eq!(answered, status);
        drop(second);
        assert!(!beside(&path).exists());
    }
}
