//! `millrace rdma capture`: packets of verbs programs, as they say themselves (`crates/verbs/src/place/tap.rs`), in a capture.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_port::pcap::{CaptureTime, Writer};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::program::{Program, Question, in_cards, names};

const MAGIC: &[u8; 8] = b"mrtap001";
const HEAD: usize = 40;
const RECORD: usize = 16;
/// The longest message.
const LONGEST: usize = 256 << 10;
/// Messages that are taken from one program before others get their turn.
const TURN: usize = 256;
/// How often it is looked whether more programs run.
const LOOK: Duration = Duration::from_millis(20);
/// Packets are put in order over so long, in nanoseconds: programs pass them on in batches.
const ORDER: u64 = 100_000_000;

/// For so long after the beginning of a capture, what comes may have been sent before, in nanoseconds.
const EARLY: u64 = 20_000_000;

/// What is to be captured.
pub struct Wanted<'a> {
    pub file: &'a Path,
    pub pid: Option<u64>,
    pub seconds: Option<f64>,
}

/// A program whose packets come, or have come.
struct Source {
    name: String,
    /// None: it has ended.
    program: Option<Program>,
    pid: u64,
    /// Which end it is, and since when it keeps packets. None: it has not answered yet.
    end: Option<([u8; 6], u64)>,
    /// What it has sent at the beginning: then others may have taken what was sent before.
    early: HashSet<Vec<u8>>,
    packets: u64,
    bytes: u64,
    dropped: u64,
    direct: u64,
}

/// A frame of a message.
struct Record<'a> {
    time_ns: u64,
    has_come: bool,
    frame: &'a [u8],
}

/// A frame that is to be written, and whose it is.
struct Kept {
    source: usize,
    has_come: bool,
    frame: Vec<u8>,
}

struct Capture {
    sources: Vec<Source>,
    /// Sockets that have refused.
    refused: HashSet<String>,
    /// Programs with the engine of a card, of which it was said that they are not captured.
    in_cards: HashSet<u64>,
    is_standard_output: bool,
    /// By time, and by the order in which they came.
    waiting: BTreeMap<(u64, u64), Kept>,
    heard: u64,
    writer: Writer<File>,
    count: u64,
    most: u64,
}

/// Runs the command.
pub fn run(shared: &Shared, wanted: &Wanted<'_>) -> Result<(), Failure> {
    let until = wanted.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let is_standard_output = wanted.file == Path::new("-");
    let writer = match is_standard_output {
        true => Writer::named(File::from(std::io::stdout().as_fd().try_clone_to_owned()?), "standard output")?,
        false => stop::at_once(|| Writer::create(wanted.file))?,
    };
    let mut capture = Capture {
        sources: Vec::new(),
        refused: HashSet::new(),
        in_cards: HashSet::new(),
        is_standard_output,
        waiting: BTreeMap::new(),
        heard: 0,
        writer,
        count: 0,
        most: shared.count.unwrap_or(u64::MAX),
    };
    capture.look(wanted.pid)?;
    capture.look_at_cards(wanted.pid)?;
    if capture.sources.is_empty() {
        match wanted.pid {
            Some(pid) if capture.in_cards.contains(&pid) => {
                return Err(Failure::Found(format!("process {pid} cannot be captured")));
            }
            Some(pid) => {
                return Err(Failure::Found(format!(
                    "process {pid} is no verbs program of this user that can be captured; `millrace rdma qps` shows those that can, but for those with place=card"
                )));
            }
            None => note("no verbs program runs yet: waiting for one"),
        }
    }
    let mut looked = Instant::now();
    while capture.count < capture.most && !stop::asked() && until.is_none_or(|until| Instant::now() < until) {
        if looked.elapsed() > LOOK {
            capture.look(wanted.pid)?;
            looked = Instant::now();
        }
        if wanted.pid.is_some() && capture.sources.iter().all(|source| source.program.is_none()) {
            break;
        }
        capture.take()?;
    }
    capture.look_at_cards(wanted.pid)?;
    capture.write(u64::MAX)?;
    capture.writer.flush()?;
    let is_short = shared.count.is_some() && capture.count < capture.most;
    capture.tell(shared, wanted.file)?;
    if is_short && stop::asked() { Err(Failure::Interrupted) } else { Ok(()) }
}

impl Capture {
    /// Asks programs that were not asked yet.
    fn look(&mut self, pid: Option<u64>) -> Result<(), Failure> {
        let names = names()?;
        self.refused.retain(|name| names.contains(name));
        for name in names {
            let is_known = self.sources.iter().any(|source| source.program.is_some() && source.name == name);
            if is_known || self.refused.contains(&name) {
                continue;
            }
            // It may have ended meanwhile.
            let Ok(Some(program)) = Program::call(&name) else { continue };
            if pid.is_none_or(|pid| pid == program.pid) && program.ask(Question::Capture).is_ok() {
                self.sources.push(Source {
                    name,
                    pid: program.pid,
                    program: Some(program),
                    end: None,
                    early: HashSet::new(),
                    packets: 0,
                    bytes: 0,
                    dropped: 0,
                    direct: 0,
                });
            }
        }
        Ok(())
    }

    /// Says which programs are not seen here, because their packets are those of a card.
    fn look_at_cards(&mut self, wanted: Option<u64>) -> Result<(), Failure> {
        for (pid, socket) in in_cards()? {
            if wanted.is_none_or(|wanted| wanted == pid) && self.in_cards.insert(pid) {
                note(format!(
                    "process {pid} has its engine in the card at {socket} (place=card), which has its packets: they are not captured here. Those that \
                     leave the card: plug trace:FILE,port=(...) in below --rdma-wire; or start the program with place=library"
                ));
            }
        }
        Ok(())
    }

    /// Waits for packets, and takes what there is.
    fn take(&mut self) -> Result<(), Failure> {
        let running = || self.sources.iter().filter_map(|source| source.program.as_ref());
        let mut fds: Vec<PollFd<'_>> = running().map(|program| PollFd::new(&program.socket, PollFlags::IN)).collect();
        let soon = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        match poll(&mut fds, Some(&soon)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::Found(format!("cannot wait for packets: {error}"))),
        }
        let mut message = vec![0; LONGEST];
        for at in 0..self.sources.len() {
            for _ in 0..TURN {
                let Some(program) = &self.sources[at].program else { break };
                match recv(&program.socket, &mut message[..], RecvFlags::DONTWAIT) {
                    Ok((len, _)) if len > 0 && self.hear(at, &message[..len]) => {}
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    // It has ended, or says what is no message.
                    _ => self.lose(at),
                }
            }
        }
        let now = CaptureTime::now().nanos();
        self.write(now.saturating_sub(ORDER))?;
        if self.is_standard_output {
            // Somebody looks at it meanwhile.
            self.writer.flush()?;
        }
        Ok(())
    }

    /// Keeps the packets of a message. False: it is none.
    fn hear(&mut self, at: usize, message: &[u8]) -> bool {
        let Some((head, records)) = message.split_at_checked(HEAD).filter(|(head, _)| head.starts_with(MAGIC)) else {
            return false;
        };
        let number = |from: usize| u64::from_le_bytes(core::array::from_fn(|byte| head[from + byte]));
        let mac: [u8; 6] = core::array::from_fn(|byte| head[24 + byte]);
        let source = &mut self.sources[at];
        (source.dropped, source.direct, source.end) = (number(8), number(16), Some((mac, number(32))));
        for record in Records(records) {
            let Some(record) = record else { return false };
            self.heard += 1;
            let kept = Kept { source: at, has_come: record.has_come, frame: record.frame.to_vec() };
            self.waiting.insert((record.time_ns, self.heard), kept);
        }
        true
    }

    fn lose(&mut self, at: usize) {
        let source = &mut self.sources[at];
        source.program = None;
        if source.end.is_none() {
            note(format!("process {} is captured already, or of another version", source.pid));
            self.refused.insert(source.name.clone());
        }
    }

    /// Writes what was seen before that time.
    fn write(&mut self, before: u64) -> Result<(), Failure> {
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 < before) {
            let ((time_ns, _), Kept { source: at, has_come, frame }) = first.remove_entry();
            let source = &mut self.sources[at];
            if !has_come && source.end.is_some_and(|(_, since)| time_ns < since + EARLY) {
                source.early.insert(frame.clone());
            }
            // What another program was seen to send is there already.
            let is_known = has_come && self.sources.iter().any(|other| has_sent(other, time_ns, &frame));
            if is_known || self.count >= self.most {
                continue;
            }
            self.writer.write(CaptureTime::from_nanos(time_ns), &frame)?;
            self.count += 1;
            let source = &mut self.sources[at];
            (source.packets, source.bytes) = (source.packets + 1, source.bytes + frame.len() as u64);
        }
        Ok(())
    }

    /// What came of each program.
    fn tell(self, shared: &Shared, file: &Path) -> Result<(), Failure> {
        let heard: Vec<&Source> = self.sources.iter().filter(|source| source.end.is_some()).collect();
        let rows: Vec<Row> = heard.iter().map(|source| row(source)).collect();
        for source in heard.iter().filter(|source| source.direct > 0) {
            note(format!(
                "{} requests of process {} needed no packet, because the other end is on this host (docs/rdma.md)",
                source.direct, source.pid
            ));
        }
        if self.is_standard_output {
            let heard = heard.iter().map(|source| {
                format!("process {}: {} packets, {} dropped", source.pid, source.packets, source.dropped)
            });
            heard.for_each(note);
            return Ok(());
        }
        Ok(Output::new(shared.json).rows(&format!("packets in {}", file.display()), &rows)?)
    }
}

/// Whether that program has sent the frame, and has kept it.
fn has_sent(source: &Source, time_ns: u64, frame: &[u8]) -> bool {
    let Some((_, since)) = source.end.filter(|(mac, _)| frame.get(6..12) == Some(&mac[..])) else { return false };
    time_ns >= since + EARLY || source.early.contains(frame)
}

fn row(source: &Source) -> Row {
    Row::new()
        .count("pid", source.pid)
        .count("packets", source.packets)
        .count("bytes", source.bytes)
        .count("dropped", source.dropped)
        .count("without_packets", source.direct)
}

/// The records of a message. A `None` among them: the rest is none.
struct Records<'a>(&'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = Option<Record<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let all = core::mem::take(&mut self.0);
        if all.is_empty() {
            return None;
        }
        Some(all.split_at_checked(RECORD).and_then(|(head, rest)| {
            let time_ns = u64::from_le_bytes(head[..8].try_into().ok()?);
            let len = u32::from_le_bytes(head[8..12].try_into().ok()?) as usize;
            let (frame, rest) = rest.split_at_checked(len)?;
            self.0 = rest;
            Some(Record { time_ns, has_come: head[12] & 1 != 0, frame })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time_ns: u64, flags: u32, frame: &[u8]) -> Vec<u8> {
        let len = (frame.len() as u32).to_le_bytes();
        [&time_ns.to_le_bytes()[..], &len, &flags.to_le_bytes(), frame].concat()
    }

    #[test]
    fn a_message_is_taken_apart() {
        let message = [record(5, 0, &[7; 60]), record(6, 1, &[]), record(7, 1, &[8; 3])].concat();
        let found: Vec<_> =
            Records(&message).map(|record| record.map(|r| (r.time_ns, r.has_come, r.frame.to_vec()))).collect();
        assert_eq!(found, [Some((5, false, vec![7; 60])), Some((6, true, vec![])), Some((7, true, vec![8; 3]))]);
    }

    #[test]
    fn what_is_no_record_ends_a_message() {
        let long = [record(5, 0, &[7; 60]), record(1, 0, &[1; 4])[..19].to_vec()].concat();
        assert_eq!(Records(&long).map(|record| record.is_some()).collect::<Vec<_>>(), [true, false]);
        let mut lies = record(5, 0, &[7; 60]);
        lies[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Records(&lies).map(|record| record.is_some()).collect::<Vec<_>>(), [false]);
        assert_eq!(Records(&[1; 15]).map(|record| record.is_some()).collect::<Vec<_>>(), [false]);
    }
}
