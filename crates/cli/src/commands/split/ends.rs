//! `millrace split serve` and `drive`: two endpoints of a backend.

use super::refused;
use clap::Args;
use millrace_split::{Access, Address, Config, Counts, Endpoint, Region, Transfer};
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::stop;
use std::time::{Duration, Instant};

/// How long the other end, or the backend, may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How soon it is looked whether somebody has come or gone.
const LOOK: Duration = Duration::from_millis(50);
/// The longest transfer.
const LONGEST: u64 = 1 << 26;

/// Options of `split serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Opens an endpoint at a backend, with a region that others may read and write, and
prints its address. Whoever connects is told the key. Until Ctrl-C, or --count
connections have ended; then the CRC-32 of the region is printed.

Examples:
  millrace split serve xen
  millrace split serve /run/millrace/split.sock --bytes 65536 --count 1 --json")]
pub struct ServeArgs {
    /// The backend: xen for the one in domain 0, ivshmem:pci in a virtual machine, ivshmem:PATH for its host, or the path of a socket
    place: String,
    /// Bytes of the region
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1..=LONGEST))]
    bytes: u64,
}

/// Options of `split drive`.
#[derive(Debug, Args)]
#[command(after_help = "\
Connects with the endpoint ADDRESS of `millrace split serve`, writes and reads its memory
--count times for each size, checks what it reads, and prints what one operation took:
copies, and at both sides system calls, calls of Xen, and events. Sizes beyond the
region are left out. At last it fills the region, and prints the CRC-32 of that. For an
endpoint that is not there yet it waits 20 seconds.

Examples:
  millrace split drive 02:58:00:01:00:2a --at xen
  millrace split drive 02:4d:00:00:00:01 --at /run/millrace/split.sock --sizes 64,65536 --json")]
pub struct DriveArgs {
    /// Address of the other endpoint
    address: Address,
    /// The backend: xen for the one in domain 0, ivshmem:pci in a virtual machine, ivshmem:PATH for its host, or the path of a socket
    #[arg(long, value_name = "PLACE")]
    at: String,
    /// Bytes of an operation
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "1,64,1024,4096,65536,1048576",
        value_parser = clap::value_parser!(u64).range(1..=LONGEST))]
    sizes: Vec<u64>,
}

fn open(place: &str) -> Result<Endpoint, Failure> {
    Endpoint::open(&Config { place: place.to_owned(), ..Config::default() }).map_err(refused)
}

/// What whoever connects is told: the key and the length of the region.
fn offer(region: &Region) -> [u8; 12] {
    let mut said = [0; 12];
    said[..4].copy_from_slice(&region.key().to_le_bytes());
    said[4..].copy_from_slice(&region.len().to_le_bytes());
    said
}

fn offered(said: &[u8]) -> Option<(u32, u64)> {
    let (key, len) = said.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*key), u64::from_le_bytes(len.try_into().ok()?)))
}

/// What the other end says which memory it has; it may end before.
fn hear_offer(endpoint: &Endpoint, other: Address) -> Result<(u32, u64), Failure> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && endpoint.peers().map_err(refused)?.contains(&other) {
        let told = endpoint.told(LOOK).map_err(refused)?.filter(|told| told.from == other);
        if let Some(offer) = told.and_then(|told| offered(&told.bytes)) {
            return Ok(offer);
        }
    }
    Err(Failure::Found(format!("{other} does not say which memory it has")))
}

fn sum_of(region: &Region) -> Result<u32, Failure> {
    let mut bytes = vec![0; region.len() as usize];
    region.load(0, &mut bytes).map_err(refused)?;
    Ok(crc32fast::hash(&bytes))
}

/// Runs `split serve`.
pub fn serve(shared: &Shared, args: &ServeArgs) -> Result<(), Failure> {
    let endpoint = open(&args.place)?;
    let region = endpoint.allocate(args.bytes as usize, Access::ALL).map_err(refused)?;
    let output = Output::new(shared.json);
    let row =
        || Row::new().tag("command", "split serve").text("address", endpoint.address()).count("bytes", args.bytes);
    output.rows("split serve", &[row()])?;
    let (mut known, mut ended) = (Vec::new(), 0);
    while !stop::asked() && shared.count.is_none_or(|count| ended < count) {
        // Asleep until somebody comes or goes, which is told by the same page.
        endpoint.told(LOOK).map_err(refused)?;
        let peers = endpoint.peers().map_err(refused)?;
        let before = known.len();
        known.retain(|peer| peers.contains(peer));
        ended += (before - known.len()) as u64;
        for peer in peers {
            if !known.contains(&peer) && endpoint.tell(peer, &offer(&region)).is_ok() {
                known.push(peer);
            }
        }
    }
    let sum = format!("{:08x}", sum_of(&region)?);
    output.rows("split serve, at last", &[row().count("connections", ended).text("crc32", sum)])?;
    Ok(())
}

/// What both sides had spent.
struct Spent {
    frontend: Counts,
    backend: Counts,
    copied: u64,
    packets: u64,
    frames: u64,
}

/// Runs `split drive`.
pub fn drive(shared: &Shared, args: &DriveArgs) -> Result<(), Failure> {
    let endpoint = open(&args.at)?;
    let (key, len) = stop::at_once(|| {
        endpoint.connect(args.address, PATIENCE).map_err(refused)?;
        hear_offer(&endpoint, args.address)
    })?;
    let len = len.min(LONGEST);
    // Half of it for what is written, and half for what is read.
    let local = endpoint.allocate(2 * len as usize, Access::LOCAL).map_err(refused)?;
    let count = shared.count.unwrap_or(100);
    let driver = Driver { endpoint: &endpoint, to: args.address, key, local: &local, half: len };
    let mut rows = Vec::new();
    for &size in args.sizes.iter().filter(|size| **size <= len) {
        for operation in ["write", "read"] {
            if stop::asked() {
                return Err(Failure::Interrupted);
            }
            rows.push(driver.measure(operation, size, count)?);
        }
        driver.check(size)?;
    }
    let output = Output::new(shared.json);
    output.rows("split drive, for each operation", &rows)?;
    let bytes: Vec<u8> = (0..len).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ args.address.0[5]).collect();
    local.store(0, &bytes).map_err(refused)?;
    driver.one(Transfer::write(local.part(0, len as u32).map_err(refused)?, key, 0))?;
    let last = Row::new().tag("command", "split drive").text("from", endpoint.address()).count("bytes", len);
    output.rows("split drive, at last", &[last.text("crc32", format!("{:08x}", crc32fast::hash(&bytes)))])?;
    Ok(())
}

struct Driver<'a> {
    endpoint: &'a Endpoint,
    to: Address,
    key: u32,
    local: &'a Region,
    half: u64,
}

impl Driver<'_> {
    fn one(&self, transfer: Transfer) -> Result<(), Failure> {
        self.endpoint.post(self.to, &[transfer], 1).map_err(refused)?;
        let ended = self.endpoint.wait(PATIENCE).map_err(refused)?;
        match ended.map(|ended| ended.failed) {
            Some(None) => Ok(()),
            Some(Some(failed)) => Err(Failure::Found(format!("{failed}"))),
            None => Err(Failure::Found("an operation does not end".to_owned())),
        }
    }

    fn spent(&self) -> Result<Spent, Failure> {
        let status = self.endpoint.status().map_err(refused)?;
        let (backend, frontend) = (status.backend, status.frontend);
        let copied = backend.copied + backend.port_copied;
        let (packets, frames) = (backend.packets, backend.frames);
        Ok(Spent { frontend, backend: backend.transport, copied, packets, frames })
    }

    fn measure(&self, operation: &'static str, size: u64, count: u64) -> Result<Row, Failure> {
        let bytes: Vec<u8> = (0..size).map(|at| (at.wrapping_mul(7) ^ size) as u8).collect();
        self.local.store(0, &bytes).map_err(refused)?;
        let writes = operation == "write";
        let part = self.local.part(if writes { 0 } else { self.half }, size as u32).map_err(refused)?;
        let transfer = if writes { Transfer::write(part, self.key, 0) } else { Transfer::read(part, self.key, 0) };
        let (before, begin) = (self.spent()?, Moment::now());
        for _ in 0..count {
            self.one(transfer)?;
        }
        let nanoseconds = Moment::now().nanos_since(begin);
        let after = self.spent()?;
        let each = |total: u64| total as f64 / count.max(1) as f64;
        let (frontend, backend) = (after.frontend.since(&before.frontend), after.backend.since(&before.backend));
        Ok(Row::new()
            .tag("command", "split drive")
            .text("operation", operation)
            .count("bytes_each", size)
            .count("count", count)
            .number("copies", each(after.copied - before.copied) / size as f64, 2)
            .count("packets", after.packets - before.packets)
            .number("frames", each(after.frames - before.frames), 2)
            .number("guest_calls", each(frontend.system_calls), 2)
            .number("guest_hypercalls", each(frontend.hypercalls), 2)
            .number("guest_rings", each(frontend.rung), 2)
            .number("guest_wakes", each(frontend.heard), 2)
            .number("backend_calls", each(backend.system_calls), 2)
            .number("backend_hypercalls", each(backend.hypercalls), 2)
            .number("backend_rings", each(backend.rung), 2)
            .number("pages", each(frontend.pages + backend.pages), 2)
            .number("us", each(nanoseconds) / 1e3, 1))
    }

    /// What was read is what was written.
    fn check(&self, size: u64) -> Result<(), Failure> {
        let (mut ours, mut theirs) = (vec![0; size as usize], vec![1; size as usize]);
        self.local.load(0, &mut ours).map_err(refused)?;
        self.local.load(self.half, &mut theirs).map_err(refused)?;
        if ours == theirs {
            Ok(())
        } else {
            Err(Failure::Found(format!("{size} bytes came back that are not those that went")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_read_as_it_was_said() {
        let mut said = [0; 12];
        said[..4].copy_from_slice(&7_u32.to_le_bytes());
        said[4..].copy_from_slice(&4096_u64.to_le_bytes());
        assert_eq!(offered(&said), Some((7, 4096)));
        assert_eq!((offered(&said[..11]), offered(&[])), (None, None));
    }
}
