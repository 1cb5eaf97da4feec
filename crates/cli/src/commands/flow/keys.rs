//! `millrace flow keys`: hands over keys of QUIC connections from a key log, as it grows.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use millrace::flow::FlowKeys;
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, note};
use millrace_tool::stop;

use super::change::open;

/// How often the file is looked at: a stream that comes before its keys goes to the queue of its connection.
const INTERVAL: Duration = Duration::from_millis(10);
/// How often the card is asked without a line: so it is noticed that it has gone, or the group.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes that are read at once.
const PIECE: usize = 32 * 1024;
/// Longest line that is kept until its end has been written; those that are read have 200 bytes or less.
const LONGEST: usize = 4096;

/// Options of `flow keys`.
#[derive(Debug, Args)]
#[command(after_help = "\
The file is one that a server writes where SSLKEYLOGFILE is set. It may not be there
yet, grow, be emptied or be replaced: what is in it is handed over as it comes, until
Ctrl-C. The card forgets keys with their connection, with the group, and when this
command ends; then streams go to the queue of their connection again. Nobody can list
them.

The group needs `keys`, and `streams=` with the queues: stream number N of a client
goes to queue number N / 4, counted round. Keys that come later than the first packets
behind the handshake may come too late. The group is to be of the same user, unless
root or the card's user hands over; each connection with keys counts as a rule in the
quota. Printed is, whenever there were secrets: taken, unknown (of no connection that
the group knows), full (as many connections have keys as may), foreign (somebody else
has handed over keys of the connection), malformed, and of how many connections keys
are known now. With --count N it ends when N secrets were taken.

Examples:
  millrace flow add 'group=2,quic,queues=0-3,keys,streams=4-7' 'udp,udp_dst=443,actions=quic:2'
  SSLKEYLOGFILE=/run/server/keys server & millrace flow keys --group 2 /run/server/keys")]
pub struct KeysArgs {
    /// The QUIC group whose connections they are of
    #[arg(long, value_name = "N")]
    group: u32,
    /// Key log in the format of SSLKEYLOGFILE
    file: PathBuf,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &KeysArgs) -> Result<(), Failure> {
    let session = open(shared)?;
    let flows = session.device.flows();
    let doing = || format!("cannot hand over keys to group {}", args.group);
    // A group that takes none is refused before there is any.
    flows.hand_over_keys(args.group, "").doing(doing)?;
    let output = Output::new(shared.json);
    if !shared.json {
        note(format!("following {}; Ctrl-C ends it, and the card forgets the keys", args.file.display()));
    }
    let mut log = KeyLog::new(&args.file);
    let mut asked = Instant::now();
    let mut left = shared.count.unwrap_or(u64::MAX);
    while !stop::asked() {
        let cannot = |source| Failure::File { doing: "cannot read", path: args.file.clone(), source };
        // A pipe may keep one waiting; of a file there is always an answer, and Ctrl-C then ends it as it should.
        let may_block = args.file.exists() && !args.file.is_file();
        let lines = if may_block { stop::at_once(|| log.more()) } else { log.more() }.map_err(cannot)?;
        if lines.is_empty() && asked.elapsed() < LOOK {
            thread::sleep(INTERVAL);
            continue;
        }
        asked = Instant::now();
        let keys = flows.hand_over_keys(args.group, &lines).doing(doing)?;
        if keys.taken + keys.unknown + keys.full + keys.foreign + keys.malformed > 0 {
            output.object(&keys)?;
            output.text(&line(&keys))?;
        }
        left = left.saturating_sub(keys.taken);
        if left == 0 {
            return Ok(());
        }
    }
    // Without an end of its own, Ctrl-C is how it ends.
    if shared.count.is_some() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// What became of secrets, for people.
fn line(keys: &FlowKeys) -> String {
    let FlowKeys { taken, unknown, full, foreign, malformed, connections } = keys;
    let mut text = format!("taken {taken}");
    for (what, count) in [("unknown", unknown), ("full", full), ("foreign", foreign), ("malformed", malformed)] {
        if *count > 0 {
            text += &format!(", {what} {count}");
        }
    }
    text + &format!("; keys of {connections} connections\n")
}

/// A file to which others write lines.
struct KeyLog<'p> {
    path: &'p Path,
    file: Option<File>,
    /// Bytes that were read of this file.
    at: u64,
    /// The beginning of a line that is not whole.
    rest: Vec<u8>,
    /// That line is too long; what comes of it is passed over.
    too_long: bool,
}

impl<'p> KeyLog<'p> {
    fn new(path: &'p Path) -> Self {
        Self { path, file: None, at: 0, rest: Vec::new(), too_long: false }
    }

    /// Whole lines that have come; empty if there are none now.
    fn more(&mut self) -> io::Result<String> {
        if self.has_changed()? {
            (self.file, self.at, self.too_long) = (None, 0, false);
            self.rest.clear();
        }
        if self.file.is_none() {
            self.file = match File::open(self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
                opened => Some(opened?),
            };
        }
        let Some(file) = &mut self.file else { return Ok(String::new()) };
        let mut piece = vec![0; PIECE];
        let len = file.read(&mut piece)?;
        self.at += len as u64;
        let Some(end) = piece[..len].iter().rposition(|byte| *byte == b'\n') else {
            self.keep(&piece[..len]);
            return Ok(String::new());
        };
        let mut lines = std::mem::take(&mut self.rest);
        let begin = if std::mem::take(&mut self.too_long) {
            piece.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1)
        } else {
            0
        };
        lines.extend_from_slice(piece.get(begin..=end).unwrap_or_default());
        self.keep(&piece[end + 1..len]);
        Ok(String::from_utf8_lossy(&lines).into_owned())
    }

    /// Keeps the beginning of a line until its end comes.
    fn keep(&mut self, part: &[u8]) {
        if self.too_long || self.rest.len() + part.len() > LONGEST {
            self.too_long = true;
            self.rest.clear();
        } else {
            self.rest.extend_from_slice(part);
        }
    }

    /// Whether the file begins anew: it was emptied, or there is another one in its place.
    fn has_changed(&self) -> io::Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        let ours = file.metadata()?;
        if ours.len() < self.at {
            return Ok(true);
        }
        match std::fs::metadata(self.path) {
            // What was written to it before it was replaced comes first.
            Ok(theirs) => Ok((theirs.dev(), theirs.ino()) != (ours.dev(), ours.ino()) && ours.len() == self.at),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_come_whole_and_a_new_file_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let mut log = KeyLog::new(&path);
        assert_eq!(log.more().unwrap(), "", "it is not there");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntwo\nthr").unwrap();
        assert_eq!(log.more().unwrap(), "one\ntwo\n");
        assert_eq!(log.more().unwrap(), "");
        file.write_all(b"ee\n").unwrap();
        assert_eq!(log.more().unwrap(), "three\n");
        // Somebody empties it.
        file.set_len(0).unwrap();
        let mut file = File::create(&path).unwrap();
        file.write_all(b"four\n").unwrap();
        assert_eq!(log.more().unwrap(), "four\n");
        // Another one in its place; what the old one had last is not lost.
        file.write_all(b"five\n").unwrap();
        let other = folder.path().join("other");
        std::fs::write(&other, "six\n").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!((log.more().unwrap(), log.more().unwrap()), ("five\n".to_owned(), "six\n".to_owned()));
    }

    #[test]
    fn a_line_without_end_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, [&vec![b'x'; 3 * PIECE][..], b"\nnext\n"].concat()).unwrap();
        let mut log = KeyLog::new(&path);
        let mut lines = String::new();
        for _ in 0..5 {
            lines += &log.more().unwrap();
            assert!(log.rest.len() <= LONGEST);
        }
        assert_eq!(lines, "next\n");
    }

    #[test]
    fn what_is_said_of_secrets() {
        let keys = FlowKeys { taken: 2, unknown: 1, connections: 7, ..FlowKeys::default() };
        assert_eq!(line(&keys), "taken 2, unknown 1; keys of 7 connections\n");
    }
}
