//! `millrace ivshmem PATH`: the server.

use super::status;
use super::telling::Telling;
use clap::Args;
use millrace_callers::{Carries, Listener};
use millrace_ivshmem::{Change, Ending, Limits, PeerStatus, Server, ServerError};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::stop;
use nix::unistd::User;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long one turn lasts at most: after it Ctrl-C is looked at, and whoever asks is answered.
const TURN: Duration = Duration::from_millis(50);

/// Options of the server.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Socket to serve at
    path: Option<PathBuf>,
    /// Most peers, machines and programs of the host, 2 to 64
    #[arg(long, value_name = "N", default_value_t = 16)]
    peers: u16,
    /// Interrupt vectors of each peer, 1 to 32: as many as the devices have
    #[arg(long, value_name = "N", default_value_t = 4)]
    vectors: u16,
    /// MiB of memory, a power of two [default: as many as the rings need]
    #[arg(long, value_name = "MIB")]
    memory: Option<usize>,
    /// Take huge pages for the memory
    #[arg(long)]
    huge: bool,
    /// Let this user connect, by name or number; may be repeated
    #[arg(long, value_name = "USER", value_parser = user)]
    user: Vec<u32>,
    /// Seconds after which a client that does not read what waits for it is cut off
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    patience: u64,
}

impl ServeArgs {
    /// Whether a path was named.
    pub fn has_path(&self) -> bool {
        self.path.is_some()
    }
}

fn user(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!("there is no user {text:?} on this machine")),
        Err(error) => Err(format!("cannot look up {text:?}: {error}")),
    }
}

/// Runs the server.
pub fn run(shared: &Shared, args: &ServeArgs) -> Result<(), Failure> {
    let path = args.path.as_ref().ok_or_else(|| Failure::Usage("a path for the socket is missing".into()))?;
    let limits = Limits {
        peers: args.peers,
        vectors: args.vectors,
        bytes: args.memory.map(|memory| memory.saturating_mul(1 << 20)),
        huge: args.huge,
        patience: Duration::from_secs(args.patience),
        users: args.user.clone(),
    };
    let listener = listen(path, !args.user.is_empty())?;
    let mut server = Server::new(listener, limits).map_err(|error| refused(path, error))?;
    let mut asked = status::listen(path);
    let output = Output::new(shared.json);
    let status = server.status();
    note(format!("serving {} bytes to {} peers at {}", status.bytes, status.peers_max, path.display()));
    let mut telling = Telling::begin(output);
    while !stop::asked() {
        let turned = server.turn(TURN, |change| telling.add(change));
        turned.map_err(|error| Failure::Found(format!("cannot wait for clients: {error}")))?;
        if let Some(asked) = &mut asked {
            status::answer(asked, &server.status());
        }
    }
    telling.end()?;
    status::show(output, &server.status())
}

fn listen(path: &Path, for_others: bool) -> Result<Listener, Failure> {
    // Whoever may not connect is refused by the server.
    let make = if for_others { Listener::public } else { Listener::private };
    let failed =
        |error: Errno| Failure::File { doing: "cannot listen at", path: path.to_owned(), source: error.into() };
    make(path.to_owned(), Carries::Streams).map_err(failed)
}

fn refused(path: &Path, error: ServerError) -> Failure {
    match error {
        ServerError::Peers(_) | ServerError::Vectors(_) | ServerError::Bytes { .. } => {
            Failure::Usage(error.to_string())
        }
        error => Failure::Found(format!("cannot serve {}: {error}", path.display())),
    }
}

pub(super) fn tell(output: Output, change: &Change) -> Result<(), Failure> {
    let row = |event: &str, peer: &PeerStatus| {
        Row::new()
            .text("event", event)
            .count("id", peer.id.into())
            .count("pid", peer.pid.into())
            .count("uid", peer.uid.into())
    };
    let (words, row) = match change {
        Change::Joined(peer) => (format!("peer {}: process {} has come", peer.id, peer.pid), row("joined", peer)),
        Change::Left(peer, ending) => {
            let (event, why) = match ending {
                Ending::Left => ("left", "has gone"),
                Ending::Spoke => ("spoke", "was cut off: it has said something, and clients say nothing"),
                Ending::Slow => ("slow", "was cut off: it does not read"),
                Ending::Failed => ("failed", "was cut off: the system cannot send to it"),
            };
            (format!("peer {}: process {} {why}", peer.id, peer.pid), row(event, peer))
        }
        Change::Refused(pid, uid) => {
            let words = format!("process {pid} was refused: user {uid} may not connect; --user lets him");
            (words, Row::new().text("event", "refused").count("pid", (*pid).into()).count("uid", (*uid).into()))
        }
        Change::Full => (
            "a client was turned away: all peers are taken, or numbers are held back (`status` says which); --peers allows more".into(),
            Row::new().text("event", "full"),
        ),
        Change::Shut => (
            "nobody is let in until what those have left who have gone is closed".into(),
            Row::new().text("event", "shut"),
        ),
    };
    if output.is_json() {
        return Ok(output.rows("", &[row])?);
    }
    Ok(output.text(&format!("{words}\n"))?)
}
