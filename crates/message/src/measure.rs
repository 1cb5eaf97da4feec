//! The table of costs of this machine (`cost`): measured at first use, kept in a file, and measured again when it does not fit any more.

use crate::bell::{Filter, Owner, Receiver, Sender};
use crate::channel::{CHANNEL_LEN, Channel, Side, doorbells};
use crate::control::{MOST_EAGER, Tag};
use crate::cost::{Row, SIZES, Table};
use crate::engine::{Engine, Limits, Way};
use millrace_dma::{OtherProcess, Pages, Region};
use millrace_rdma::memory::{Limits as RegionLimits, Regions, Source};
use millrace_rdma::work::Access;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::getpid;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Runs of which the fastest counts: whatever else runs makes it slower, never faster.
const RUNS: usize = 9;
/// Bytes that are copied in a run, at least: a clock takes some 30 ns.
const RUN: u64 = 64 << 10;
/// A table fits as long as a copy and a move of this row take no more than four times as long, and a quarter at least.
const LOOKED_AT: usize = 4;
const FACTOR: f64 = 4.0;
/// The first line of the file.
const MAGIC: &str = "millrace message table 2";

/// Where a table comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// It was measured now: there was none.
    Measured,
    /// It was measured now: that of the file does not fit this machine any more.
    Refreshed,
    /// From the file.
    Kept,
}

/// A table and where it comes from.
#[derive(Debug)]
pub struct Kept {
    /// What things cost.
    pub table: Table,
    /// How it came here.
    pub from: From,
    /// The file. `None`: there is no home to keep it in.
    pub path: Option<PathBuf>,
    /// Why what was measured is not in the file.
    pub unkept: Option<std::io::Error>,
}

/// It cannot be measured.
#[derive(Debug, thiserror::Error)]
#[error("the costs of messages cannot be measured: {0}")]
pub struct Unmeasured(String);

impl Unmeasured {
    fn because(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// The table of this host, for endpoints of such limits; the same for all of a process. Where nothing can be measured, there is none.
pub fn of_this_host(limits: &Limits) -> Option<Table> {
    static TABLE: OnceLock<Option<Table>> = OnceLock::new();
    TABLE.get_or_init(|| keep(limits, Wanted::Enough).ok().map(|kept| kept.table)).map(|table| table.of(limits))
}

/// What of a table is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// What the choice of a way on one host needs. Registering is 0: to measure it, memory of the program would be watched from then
    /// on, for which it has not asked.
    Enough,
    /// All.
    All,
    /// All, and measured now.
    Anew,
}

/// The table of the file, if it fits, or a new one, which is kept there.
///
/// # Errors
/// [`Unmeasured`].
pub fn keep(limits: &Limits, wanted: Wanted) -> Result<Kept, Unmeasured> {
    let path = path();
    let found = path.as_deref().and_then(|path| fs::read_to_string(path).ok());
    let found = found.map(|text| read(&text, &host()).filter(|table| wanted != Wanted::Anew && fits(table)));
    let table = match found {
        Some(Some(table)) if wanted == Wanted::Enough || table.rows[0].register > 0.0 => {
            return Ok(Kept { table: table.of(limits), from: From::Kept, path, unkept: None });
        }
        Some(Some(mut table)) => {
            register(&mut table)?;
            table
        }
        _ => measure(wanted != Wanted::Enough)?,
    };
    // Without it, it is measured again.
    let unkept = path.as_deref().and_then(|path| write(path, &table).err());
    let from = if found == Some(None) { From::Refreshed } else { From::Measured };
    Ok(Kept { table: table.of(limits), from, path, unkept })
}

/// `$XDG_STATE_HOME/millrace/message-table`.
fn path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("millrace/message-table"))
}

/// Of what machine a table is: others have other costs.
fn host() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|found| found.1);
    let kernel = rustix::system::uname();
    let kernel = kernel.release().to_string_lossy().into_owned();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    // What is built to be debugged copies slowly.
    let build = if cfg!(debug_assertions) { ", debugged" } else { "" };
    format!("{cores} of {} on {kernel}{build}", model.unwrap_or("an unknown processor"))
}

fn written(table: &Table, host: &str) -> String {
    let mut text = format!("{MAGIC}\n{host}\n{:.1} {:.1} {:.3}\n", table.doorbell, table.record, table.eager_word);
    for row in &table.rows {
        text += &format!("{:.1} {:.1} {:.1}\n", row.register, row.copy, row.transfer);
    }
    text
}

fn read(text: &str, host: &str) -> Option<Table> {
    let mut lines = text.lines();
    if lines.next() != Some(MAGIC) || lines.next() != Some(host) {
        return None;
    }
    let mut numbers = || -> Option<Vec<f64>> { lines.next()?.split(' ').map(|word| word.parse().ok()).collect() };
    let [doorbell, record, eager_word] = numbers()?[..] else { return None };
    let mut rows = [Row::default(); SIZES.len()];
    for row in &mut rows {
        let [register, copy, transfer] = numbers()?[..] else { return None };
        *row = Row { register, copy, transfer };
    }
    let table = Table { rows, doorbell, record, eager_word, ..bare() };
    table.check().is_ok().then_some(table)
}

/// In one step, so that nobody reads half of it.
fn write(path: &Path, table: &Table) -> std::io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let part = path.with_extension(std::process::id().to_string());
    let written = fs::write(&part, written(table, &host())).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(part);
    }
    written
}

/// One with nothing in it.
fn bare() -> Table {
    let Limits { mtu, slots, .. } = Limits::default();
    Table {
        rows: [Row::default(); SIZES.len()],
        doorbell: 0.0,
        record: 0.0,
        eager_word: 0.0,
        most_eager: MOST_EAGER as u64,
        mtu: mtu.into(),
        depth: slots.into(),
        is_mapped: true,
    }
}

impl Table {
    /// For endpoints of such limits.
    #[must_use]
    pub fn of(self, limits: &Limits) -> Self {
        Self { most_eager: limits.eager.into(), mtu: limits.mtu.into(), depth: limits.slots.into(), ..self }
    }
}

/// The fastest of some runs, in nanoseconds for one of as many as take a while.
fn fastest(len: u64, mut act: impl FnMut() -> bool) -> Option<f64> {
    let count = (RUN / len.max(1)).clamp(1, 1000);
    let mut least = f64::INFINITY;
    for _ in 0..RUNS {
        let begin = Instant::now();
        for _ in 0..count {
            if !act() {
                return None;
            }
        }
        least = least.min(begin.elapsed().as_nanos() as f64 / count as f64);
    }
    Some(least)
}

/// Memory of a program, memory that is shared, and this process as if it were another one.
struct Bench {
    from: Vec<u8>,
    to: Vec<u8>,
    shared: Region,
    process: Option<OtherProcess>,
    _link: Arc<dyn std::any::Any>,
}

impl Bench {
    fn new() -> Result<Self, Unmeasured> {
        let most = SIZES[SIZES.len() - 1] as usize;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(Unmeasured::because)?;
        let shared = Region::allocate(most, Pages::Ordinary).map_err(Unmeasured::because)?;
        let process = OtherProcess::new(getpid(), Arc::new(ours));
        Ok(Self { from: vec![1; most], to: vec![2; most], shared, process, _link: Arc::new(theirs) })
    }

    fn copy(&mut self, len: u64) -> f64 {
        let bytes = &self.from[..len as usize];
        let span = self.shared.window().span_mut(0, len as usize);
        let copied = |span: &millrace_dma::SpanMut<'_>| span.write_from(black_box(bytes)) == bytes.len();
        span.and_then(|span| fastest(len, || copied(&span))).unwrap_or(f64::INFINITY)
    }

    /// Where it is not allowed, it takes for ever.
    fn transfer(&mut self, len: u64) -> f64 {
        let Some(process) = &self.process else { return NEVER };
        let from = self.from.as_ptr().expose_provenance() as u64;
        let to = &mut self.to[..len as usize];
        fastest(len, || process.read_bytes(black_box(from), to).is_ok() && process.is_there()).unwrap_or(NEVER)
    }
}

/// A second, for what is not possible.
const NEVER: f64 = 1e9;

/// Whether a table is that of this machine, by a look at one row.
fn fits(table: &Table) -> bool {
    let Ok(mut bench) = Bench::new() else { return true };
    let (len, row) = (SIZES[LOOKED_AT], &table.rows[LOOKED_AT]);
    let found = [(bench.copy(len), row.copy), (bench.transfer(len), row.transfer)];
    found.iter().all(|(now, then)| now / then < FACTOR && then / now < FACTOR)
}

/// Measures it, in some 20 ms.
///
/// # Errors
/// [`Unmeasured`].
pub fn measure(registers: bool) -> Result<Table, Unmeasured> {
    let (record, eager_word) = eager()?;
    let mut table = Table { doorbell: doorbell()?, record, eager_word, ..bare() };
    let mut bench = Bench::new()?;
    for (row, len) in table.rows.iter_mut().zip(SIZES) {
        *row = Row { register: 0.0, copy: bench.copy(len), transfer: bench.transfer(len) };
    }
    if registers {
        register(&mut table)?;
    }
    table.check().map_err(Unmeasured::because)?;
    Ok(table)
}

/// Registering with the RDMA engine, and taking back.
fn register(table: &mut Table) -> Result<(), Unmeasured> {
    let mut memory = vec![1_u8; SIZES[SIZES.len() - 1] as usize];
    let mut regions = Regions::new(RegionLimits::default()).map_err(Unmeasured::because)?;
    let domain = regions.allocate_domain().map_err(Unmeasured::because)?;
    let access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ);
    for (row, len) in table.rows.iter_mut().zip(SIZES) {
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let time = fastest(len, || {
            let region = regions.register(domain, Source::Own { address, len }, None, access);
            region.is_ok_and(|region| regions.deregister(region.lkey).is_ok())
        });
        row.register = time.unwrap_or(NEVER);
    }
    Ok(())
}

/// A doorbell one way, between two threads.
fn doorbell() -> Result<f64, Unmeasured> {
    const TRIPS: usize = 2000;
    /// On one core each of them takes a turn of the scheduler.
    const LONGEST: Duration = Duration::from_millis(20);
    /// Nanoseconds between cores that are far from each other.
    const MOST: f64 = 1000.0;
    let region = Region::allocate(CHANNEL_LEN, Pages::Ordinary).map_err(Unmeasured::because)?;
    let end = |side| -> Result<_, Unmeasured> {
        let (out, into) = doorbells(region.window(), side).map_err(Unmeasured::because)?;
        let mut filter = Filter::default();
        filter.claim(0..=1, Owner(0)).map_err(Unmeasured::because)?;
        into.publish(&filter);
        Ok((out, into, filter))
    };
    let (mut one, mut other) = (end(Side::Maker)?, end(Side::Taker)?);
    let wait = |(_, into, filter): &mut (Sender, Receiver, Filter)| {
        let mut looks = 0_u32;
        loop {
            match into.take(filter) {
                Ok(Some(bell)) => return bell.number,
                Ok(None) => {}
                Err(_) => return 1,
            }
            looks += 1;
            if looks.is_multiple_of(256) { thread::yield_now() } else { core::hint::spin_loop() }
        }
    };
    let ring = |(out, ..): &mut (Sender, Receiver, Filter), number| while out.ring(number).is_err() {};
    thread::scope(|scope| {
        scope.spawn(|| {
            while wait(&mut other) == 0 {
                ring(&mut other, 0);
            }
        });
        let (mut times, begin) = (Vec::new(), Instant::now());
        while times.len() < TRIPS && begin.elapsed() < LONGEST {
            let trip = Instant::now();
            ring(&mut one, 0);
            wait(&mut one);
            times.push(trip.elapsed().as_nanos() as f64);
        }
        ring(&mut one, 1);
        times.sort_by(f64::total_cmp);
        // A tenth is not disturbed, where others want the cores. If nothing is, that is not what a doorbell takes.
        Ok(times.get(times.len() / 10).map_or(MOST, |trip| (trip / 2.0).min(MOST)))
    })
}

/// What both ends do for an eager message of eight bytes, and for each eight bytes more.
fn eager() -> Result<(f64, f64), Unmeasured> {
    let region = Region::allocate(CHANNEL_LEN, Pages::Ordinary).map_err(Unmeasured::because)?;
    let end = |side| -> Result<_, Unmeasured> {
        let mut engine = Engine::new(Limits::default()).map_err(Unmeasured::because)?;
        let pair = engine.connect(Way::Mapped, engine.terms()).ok_or_else(|| Unmeasured("no pair".to_owned()))?;
        Ok((engine, pair, Channel::new(region.window(), side).map_err(Unmeasured::because)?))
    };
    let (mut one, mut other) = (end(Side::Maker)?, end(Side::Taker)?);
    let (bytes, mut to) = ([7; MOST_EAGER], [0; MOST_EAGER]);
    let mut time = |len: usize| {
        fastest(1 << 10, || {
            let is_sent = one.2.send(&mut one.0, one.1, Tag(0), &bytes[..len]);
            let is_there = matches!(other.2.receive(&mut other.0, other.1, Tag(0), 0, &mut to), Ok(Some(_)));
            // Credits.
            other.2.say(&mut other.0, other.1, 1, |_| &[]);
            is_sent && is_there && one.2.hear(&mut one.0, one.1, 1, |_, _, _| {}).is_ok()
        })
    };
    let (short, long) = time(8).zip(time(MOST_EAGER)).ok_or_else(|| Unmeasured("no message comes".to_owned()))?;
    Ok((short, ((long - short) / (MOST_EAGER / 8 - 1) as f64).max(0.01)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let table = measure(true).unwrap();
        assert!(table.rows.iter().all(|row| row.copy > 0.0 && row.transfer > 0.0 && row.register > 0.0), "{table:?}");
        assert!(table.rows[8].copy > table.rows[0].copy && table.doorbell > 0.0, "{table:?}");
        let text = written(&table, "here");
        let again = read(&text, "here").unwrap();
        assert_eq!(written(&again, "here"), text);
        assert_eq!(read(&text, "there"), None);
        assert_eq!(measure(false).unwrap().rows[8].register, 0.0);
        for cut in 0..text.len() - 1 {
            assert!(read(&text[..cut], "here").is_none_or(|cut| cut.rows[..8] == again.rows[..8]), "{cut}");
        }
        assert_eq!(read(&text.replace("\n", "\nNaN "), "here"), None);
    }

    #[test]
    fn a_table_of_another_machine_does_not_fit() {
        let table = measure(false).unwrap();
        let mut slow = table;
        slow.rows.iter_mut().for_each(|row| row.copy *= 100.0);
        assert!(!fits(&slow));
        let (mut fast, dir) = (table, std::env::temp_dir().join(format!("message-table-{}", std::process::id())));
        fast.rows.iter_mut().for_each(|row| row.transfer /= 100.0);
        assert!(!fits(&fast));
        let path = dir.join("deep/table");
        write(&path, &table).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(read(&text, &host()).is_some());
        // What cannot be written leaves nothing behind.
        let folder = dir.join("folder");
        fs::create_dir_all(folder.join("full")).unwrap();
        assert!(write(&folder, &table).is_err());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        fs::remove_dir_all(dir).unwrap();
    }
}
