//! `millrace demo`: everything once, in half a minute, on a fresh machine.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use millrace_abi::queue::{Engine, Mode};
use millrace_port::pcap::{CaptureTime, Writer};
use millrace_tool::clock::Moment;
use millrace_tool::distribution::Distribution;
use millrace_tool::echo::{SILENCE, cannot_receive};
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{RxQueue, TxQueue};
use millrace_tool::lanes::latency_cells;
use millrace_tool::options::{Engines, Shared};
use millrace_tool::output::{Output, Row, grouped, note};
use millrace_tool::session::Session;
use millrace_tool::trips::{Extent, RoundTrips, round_trips};
use millrace_tool::{send, stop};

use crate::capture::Capture;

/// Frames on their way at once. Far below what any queue holds, so that nothing can be lost for want of room.
const WINDOW: usize = 64;

/// Frames that a card carries without padding or cutting them, in bytes.
const LEGAL: (u32, usize) = (60, 1518);

/// Captures larger than this take longer than a demo may.
const LARGEST_FILE: u64 = 8 << 20;

/// Round trips per engine and mode, at most so many and for at most so long.
const TRIPS: Extent = Extent { count: 200_000, seconds: Some(2.0) };

const NEXT: &str = "\
What to try next:
  millrace card --listen /tmp/card.sock --poll --cpu 1     a card in a process of its own
  millrace loopback-hw --device unix:/tmp/card.sock --size 64-1500 --count 10M
  millrace stats --device unix:/tmp/card.sock              what the card counted
  millrace bench latency --plot latency.svg                each side in a process and on a core of its own
  millrace --help
";

/// Runs the demo.
pub fn run(shared: &Shared) -> Result<(), Failure> {
    let output = Output::new(shared.json);
    let (name, capture) = find_capture()?;
    output.text(&format!(
        "A software card inside this program sends back what it is sent. The capture is {name}: {} frames, {} bytes.\n\n",
        grouped(capture.len() as u64),
        grouped(capture.bytes() as u64)
    ))?;
    let engines = Engine::ALL;
    let rows = engines.map(|engine| carry_capture(shared, engine, &name, &capture));
    let rows = rows.into_iter().collect::<Result<Vec<Row>, Failure>>()?;
    output.rows("Every frame of the capture through the card and back, every byte compared", &rows)?;
    let cases = measure_latencies(shared, &engines)?;
    output.rows("Round trips of 64 bytes", &cases.iter().map(Case::row).collect::<Vec<_>>())?;
    if let Some(case) = cases.iter().find(|case| (case.engine, case.mode) == (Engine::Medusa, Mode::Direct)) {
        output.text(&format!("Medusa, direct mode:\n{}\n", draw(&case.trips.times)))?;
    }
    output.text(NEXT)?;
    let wrong: u64 = cases.iter().map(|case| case.trips.lost + case.trips.corrupt).sum();
    match (wrong, stop::asked()) {
        (1.., _) => Err(Failure::Found(format!("{wrong} packets of the latency table were lost or corrupt"))),
        (0, true) => Err(Failure::Interrupted),
        (0, false) => Ok(()),
    }
}

/// Options of a card of one's own with one engine, opened in one mode.
fn own_card(shared: &Shared, engine: Engine, mode: Mode) -> Shared {
    Shared {
        device: Some("embedded".to_owned()),
        queue: None,
        engine: vec![Engines::all(engine)],
        mode: Some(mode),
        ..shared.clone()
    }
}

fn carry_capture(shared: &Shared, engine: Engine, name: &str, capture: &Capture) -> Result<Row, Failure> {
    let options = own_card(shared, engine, Mode::Direct);
    let session = Session::open(&options)?;
    let (mut rx, mut tx) = (session.rx(0)?, session.tx(0)?);
    let start = Moment::now();
    let same = carry(&mut rx, &mut tx, capture)?;
    let seconds = start.seconds();
    send::finish(tx)?;
    if same < capture.len() {
        let why = if stop::asked() { "interrupted" } else { "the rest was lost or came back changed" };
        return Err(Failure::Found(format!("{engine}: {same} of {} frames came back unchanged; {why}", capture.len())));
    }
    Ok(Row::new()
        .tag("demo", "capture")
        .tag("capture", name)
        .text("engine", engine)
        .count("frames", capture.len() as u64)
        .count("bytes", capture.bytes() as u64)
        .count("unchanged", same as u64)
        .number("milliseconds", seconds * 1e3, 2))
}

/// Sends the frames in order, and compares what comes back with what was sent. How many came back unchanged; ends at
/// the first that did not.
fn carry(rx: &mut RxQueue, tx: &mut TxQueue, capture: &Capture) -> Result<usize, Failure> {
    let mut on_the_way: VecDeque<&[u8]> = VecDeque::with_capacity(WINDOW);
    let mut unsent = capture.frames();
    let (mut next, mut same, mut heard) = (unsent.next(), 0, Moment::now());
    while (next.is_some() || !on_the_way.is_empty()) && heard.seconds() < SILENCE && !stop::asked() {
        while on_the_way.len() < WINDOW
            && let Some(frame) = next
            && send::burst(tx, &[frame.len() as u16], |_, slot| slot.copy_from_slice(frame))? > 0
        {
            on_the_way.push_back(frame);
            next = unsent.next();
        }
        send::flush(tx)?;
        let burst = rx.get(WINDOW).doing(cannot_receive)?;
        for packet in burst.iter() {
            if on_the_way.pop_front() != Some(packet.data) {
                return Ok(same);
            }
            same += 1;
            heard = Moment::now();
        }
    }
    Ok(same)
}

struct Case {
    engine: Engine,
    mode: Mode,
    trips: RoundTrips,
}

impl Case {
    fn row(&self) -> Row {
        let row = Row::new()
            .tag("demo", "latency")
            .text("engine", self.engine)
            .text("mode", self.mode)
            .count("count", self.trips.times.count());
        latency_cells(row, &self.trips.times).count("lost", self.trips.lost).count("corrupt", self.trips.corrupt)
    }
}

fn measure_latencies(shared: &Shared, engines: &[Engine]) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for &engine in engines {
        for mode in [Mode::Mediated, Mode::Direct].into_iter().filter(|&mode| engine.has(mode)) {
            let options = own_card(shared, engine, mode);
            let session = Session::open(&options)?;
            let (mut rx, mut tx) = (session.rx(0)?, session.tx(0)?);
            let trips = round_trips(&mut rx, &mut tx, 64, TRIPS)?;
            send::finish(tx)?;
            cases.push(Case { engine, mode, trips });
        }
    }
    Ok(cases)
}

/// A histogram in text: a line per bin, from the fastest to the slowest but one in a hundred.
fn draw(times: &Distribution) -> String {
    const LINES: usize = 16;
    const WIDTH: u64 = 50;
    let (Some(from), Some(to)) = (times.min(), times.quantile(0.99)) else { return String::new() };
    let bins = times.logarithmic_bins(from as f64, (to + 1).max(from + 2) as f64, LINES);
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    let mut text = String::new();
    for bin in bins {
        // Whatever happened at all is to be seen.
        let bar = "#".repeat((bin.count * WIDTH).div_ceil(most) as usize);
        let share = 100.0 * bin.count as f64 / times.count() as f64;
        let _ = writeln!(text, "  {:>9.0} ns {share:>5.1} % {bar}", bin.from);
    }
    let beyond = times.count() as f64 / 100.0;
    let _ = writeln!(text, "  the slowest {beyond:.0} took up to {} ns", grouped(times.max().unwrap_or(0)));
    text
}

/// The capture with the most frames that a card carries among those at hand, or one made here.
fn find_capture() -> Result<(String, Capture), Failure> {
    let found = folders().iter().filter_map(|folder| best_in(folder)).max_by_key(|(_, capture)| capture.len());
    match found {
        Some((file, capture)) => Ok((fs::canonicalize(&file).unwrap_or(file).display().to_string(), capture)),
        None => made_here(),
    }
}

/// Where captures may lie: what the environment says, beside the working folder, and beside the sources.
fn folders() -> Vec<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/captures");
    let variable = env::var_os("MILLRACE_CAPTURES").map(PathBuf::from);
    variable.into_iter().chain(["../shared/data/captures".into(), sources]).filter(|folder| folder.is_dir()).collect()
}

fn best_in(folder: &Path) -> Option<(PathBuf, Capture)> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let small = |file: &PathBuf| fs::metadata(file).is_ok_and(|data| data.is_file() && data.len() <= LARGEST_FILE);
    let loaded = files.filter(small).filter_map(|file| {
        // Much of what lies there is damaged on purpose, or holds no Ethernet.
        let capture = Capture::load(&file, LEGAL.0).ok()?;
        let sound = capture.damage.is_none() && capture.frames().all(|frame| frame.len() <= LEGAL.1);
        (sound && !capture.is_empty()).then_some((file, capture))
    });
    loaded.max_by_key(|(file, capture)| (capture.len(), file.clone()))
}

/// A capture of a ping of every size, written as a file and read again like any other.
fn made_here() -> Result<(String, Capture), Failure> {
    note("../shared/data/captures is not here, so the demo makes a capture of its own");
    let cannot = |source| Failure::File { doing: "cannot make", path: env::temp_dir(), source };
    let folder = tempfile::Builder::new().prefix("millrace-demo-").tempdir().map_err(cannot)?;
    let file = folder.path().join("made-here.pcap");
    let mut writer = Writer::create(&file)?;
    for (number, len) in (LEGAL.0 as usize..=LEGAL.1).enumerate() {
        writer.write(CaptureTime::now(), &ping(number as u16, len))?;
    }
    writer.flush()?;
    drop(writer);
    Ok(("a series of pings made here".to_owned(), Capture::load(&file, LEGAL.0)?))
}

/// An ICMP echo request of `len` bytes in all, from and to addresses that are for documentation.
fn ping(number: u16, len: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(len);
    frame.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00]);
    let mut header = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 1, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    header[2..4].copy_from_slice(&(len as u16 - 14).to_be_bytes());
    header[4..6].copy_from_slice(&number.to_be_bytes());
    let sum = internet_checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    let mut message = vec![8, 0, 0, 0, 0x4d, 0x52];
    message.extend(number.to_be_bytes());
    message.extend((0..len - 42).map(|at| at as u8));
    let sum = internet_checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame.extend(message);
    frame
}

/// RFC 1071.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capture_made_here_holds_sound_pings_of_every_size() {
        let (_, capture) = made_here().unwrap();
        assert_eq!(capture.len(), 1518 - 60 + 1);
        for frame in capture.frames() {
            assert_eq!(internet_checksum(&frame[14..34]), 0);
            assert_eq!(internet_checksum(&frame[34..]), 0);
            assert_eq!(usize::from(u16::from_be_bytes([frame[16], frame[17]])), frame.len() - 14);
        }
    }

    #[test]
    fn the_histogram_shows_the_peak_and_the_tail() {
        let mut times = Distribution::new();
        (0..10_000).for_each(|number| times.record(500 + number % 100));
        times.record(3_000_000);
        let text = draw(&times);
        assert_eq!(text.lines().count(), 17);
        assert!(text.contains(&"#".repeat(50)) && text.ends_with("took up to 3,000,000 ns\n"), "{text}");
        assert_eq!(draw(&Distribution::new()), "");
    }
}
