//! `millrace agent status`: how the agent is.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use millrace_driver::place;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use serde::{Deserialize, Serialize};

use super::own::{Beside, stranger};

/// How long an agent has to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Options of `agent status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Controllers that are connected, with role, seconds, messages from and to each, and those that
were left out since it does not read; how many entries, groups and meters there are; how many
entries could not follow the ports and are as they were (behind); and what was lost: packets
for controllers beyond the rate (unheard), whose rule had gone (unknown), or that made room
(kept); packets of controllers that a port did not get (unsent); entries of which it is not
known what they had (untold); connections without TLS (untrusted).

Examples:
  millrace agent status
  millrace agent status --device unix:/tmp/card.sock
  millrace agent status --json")]
pub struct StatusArgs {
    /// The socket of the agent [default: beside the card's socket]
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

/// How it is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// Entries.
    pub flows: u64,
    /// Groups.
    pub groups: u64,
    /// Meters.
    pub meters: u64,
    /// Entries that are as they were, since they cannot be what the ports as they are ask for.
    pub behind: u64,
    /// Connections for which there was no room.
    pub turned_away: u64,
    /// Connections that could not begin TLS.
    pub untrusted: u64,
    /// What was lost, but for what a controller has not read.
    pub losses: Losses,
    /// Controllers.
    pub controllers: Vec<Controller>,
}

/// What was lost.
#[derive(Debug, Serialize, Deserialize)]
pub struct Losses {
    /// Packets for controllers beyond the rate, or for which there was no room on the way from the card.
    pub unheard: u64,
    /// Packets for controllers whose rule had gone before they were heard.
    pub unknown: u64,
    /// Packets that were kept for controllers and made room for others.
    pub kept: u64,
    /// Packets of controllers that a port did not get, or that went to more ports than one packet may.
    pub unsent: u64,
    /// Entries that have gone and of which it is not known what they had.
    pub untold: u64,
}

/// A controller that is connected.
#[derive(Debug, Serialize, Deserialize)]
pub struct Controller {
    /// Address and port.
    pub peer: String,
    /// Whether the agent has connected to it.
    pub dialled: bool,
    /// `equal`, `master`, `slave`; `-`: it has not said hello.
    pub role: String,
    /// Since when.
    pub seconds: u64,
    /// Messages from it.
    pub received: u64,
    /// Messages to it.
    pub sent: u64,
    /// Messages that were left out.
    pub lost: u64,
}

/// Where the agent is asked. One that was killed has left its socket behind.
pub(super) fn listen(device: &str, asked: Option<&Path>) -> Option<UnixListener> {
    let path = asked.map_or_else(|| Beside::of(device).control(), Path::to_owned);
    // Only what is a socket, and nobody's: a file that was named by mistake stays.
    let is_socket = fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket());
    let may_be_own = asked.is_some() || stranger(&path).is_none();
    if is_socket
        && may_be_own
        && UnixStream::connect(&path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    {
        let _ = fs::remove_file(&path);
    }
    match UnixListener::bind(&path).and_then(|listener| listener.set_nonblocking(true).map(|()| listener)) {
        Ok(listener) => Some(listener),
        Err(error) => {
            note(format!("`millrace agent status` will find nobody: {}: {error}", path.display()));
            None
        }
    }
}

/// Where the agent may be: that of the card that is named, or of those that are found without a name.
fn places(shared: &Shared) -> Vec<PathBuf> {
    match &shared.device {
        Some(device) => vec![Beside::of(device).control()],
        None => {
            place::places().iter().map(|socket| Beside::of(&format!("unix:{}", socket.display())).control()).collect()
        }
    }
}

/// The agent at one of these places; those behind the first are asked if nobody is there.
fn connect(places: &[PathBuf], is_asked: bool) -> Result<(UnixStream, &PathBuf), Failure> {
    let mut first = None;
    for path in places {
        let stream = match stranger(path).filter(|_| !is_asked) {
            Some(owner) => Err(Failure::Found(format!(
                "{} is not asked, as user {owner} has put it there: name the agent's with --control",
                path.display()
            ))),
            None => UnixStream::connect(path).map_err(|source| Failure::File {
                doing: "no agent answers at",
                path: path.clone(),
                source,
            }),
        };
        match stream {
            Ok(stream) => return Ok((stream, path)),
            Err(failure) => drop(first.get_or_insert(failure)),
        }
    }
    Err(first.unwrap_or_else(|| Failure::Found("there is no place for an agent".to_owned())))
}

/// Answers; whoever does not read has asked in vain.
pub(super) fn answer(mut stream: UnixStream, status: &Status) {
    let _ = stream.set_nonblocking(true);
    if let Ok(text) = serde_json::to_vec(status) {
        let _ = stream.write_all(&text);
    }
}

/// Runs `agent status`.
pub(super) fn run(shared: &Shared, args: &StatusArgs) -> Result<(), Failure> {
    let places = args.control.as_ref().map_or_else(|| places(shared), |control| vec![control.clone()]);
    let (mut stream, path) = connect(&places, args.control.is_some())?;
    let file = |source| Failure::File { doing: "no agent answers at", path: path.clone(), source };
    stream.set_read_timeout(Some(ANSWER)).map_err(file)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(file)?;
    let strange = |error| Failure::Found(format!("{} answers nonsense: {error}", path.display()));
    let status: Status = serde_json::from_str(&text).map_err(strange)?;
    let output = Output::new(shared.json);
    output.object(&status)?;
    if output.is_json() {
        return Ok(());
    }
    let counts = Row::new()
        .count("entries", status.flows)
        .count("groups", status.groups)
        .count("meters", status.meters)
        .count("behind", status.behind)
        .count("turned away", status.turned_away);
    output.rows("agent", &[counts])?;
    let losses = &status.losses;
    let lost = Row::new()
        .count("unheard", losses.unheard)
        .count("unknown", losses.unknown)
        .count("kept", losses.kept)
        .count("unsent", losses.unsent)
        .count("untold", losses.untold)
        .count("untrusted", status.untrusted);
    output.rows("lost", &[lost])?;
    let rows: Vec<_> = status
        .controllers
        .iter()
        .map(|one| {
            Row::new()
                .text("controller", &one.peer)
                .text("role", &one.role)
                .count("seconds", one.seconds)
                .count("received", one.received)
                .count("sent", one.sent)
                .count("lost", one.lost)
        })
        .collect();
    output.rows("controllers", &rows)?;
    Ok(())
}
