//! `millrace split`: the split driver, by which programs in guests use an RDMA engine outside.
//!
//! - here: what can be asked for, and the backend; `teller`: what it says; `ends`: an endpoint that serves memory, and one that reads and writes it.

mod ends;
mod teller;

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};
use millrace_rdma::number::Gid;
use millrace_slurpoe::Config as Rail;
use millrace_split::ivshmem::IvshmemDoor;
use millrace_split::memory::MemoryDoor;
use millrace_split::xen::XenDoor;
use millrace_split::{
    Backend, Door, Error, Hosts, HostsConfig, Limits, MOST_NUMBER, Port, PortConfig, Right, Rights, Wanted,
};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::stop;
use std::net::IpAddr;
use std::path::PathBuf;
use teller::Teller;

/// Doors of a kind: each has a byte of its guests' addresses.
const MOST_DOORS: usize = 256;

/// Options of `split`.
#[derive(Debug, Args)]
pub struct SplitArgs {
    #[command(subcommand)]
    command: SplitCommand,
}

#[derive(Debug, Subcommand)]
enum SplitCommand {
    /// Be the side outside: serve programs of guests
    Backend(BackendArgs),
    /// Open memory to other endpoints of a backend
    Serve(ends::ServeArgs),
    /// Write to and read from the memory of an endpoint, and count what that takes
    Drive(ends::DriveArgs),
}

/// Options of `split backend`.
#[derive(Debug, Args)]
#[command(after_help = "\
Serves programs of guests until Ctrl-C: those that call at a socket of this host; with
--ivshmem those of virtual machines that share memory by `millrace ivshmem`; and with
--xen, in domain 0 of Xen, those of all other domains. Prints who comes, and of
who leaves what was counted. Guests do not see each other's memory, but for what they
have registered and given the key of (docs/split.md).

With --port they also reach endpoints of SLURPoE on a wire, and guests of other
backends there, and are reached by them: each by an address of its own. Programs
written for verbs (split=PATH in MILLRACE_VERBS) have the address --rdma-ip together,
and reach other hosts by --rdma-wire.

Examples:
  millrace split backend --socket /run/millrace/split.sock
  millrace split backend --ivshmem /tmp/iv.sock
  millrace split backend --xen --socket /run/millrace/split.sock --json
  millrace split backend --xen --port af_packet:eth1 --number 3
  millrace split backend --socket /tmp/split.sock --rdma-wire af_packet:eth1 --rdma-ip 192.0.2.1
  millrace split backend --xen --pages 4096 --allow memory,connect")]
pub struct BackendArgs {
    /// Serve programs of this host that call at this socket, and run as the same user; may be repeated
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// Serve programs of other domains of Xen; this is to be domain 0
    #[arg(long)]
    xen: bool,
    /// Serve programs of virtual machines that share memory, by this socket of `millrace ivshmem`; may be repeated
    #[arg(long, value_name = "PATH")]
    ivshmem: Vec<PathBuf>,
    /// Programs at a time
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().guests, value_parser = clap::value_parser!(u16).range(1..=1024).map(usize::from))]
    guests: usize,
    /// Pages of 4 KiB that one program may have mapped
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().pages, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pages: u64,
    /// Pages that all may have mapped together; other users than yours, as which domains and machines count, have a half of it
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().all_pages, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    all_pages: u64,
    /// What guests may do: memory, connect, tell, engine [default: all of it]
    #[arg(long, value_name = "RIGHT,...", value_delimiter = ',', value_parser = right)]
    allow: Vec<Right>,
    /// Reach other hosts, and be reached by them, by this card or port, such as unix:PATH or af_packet:eth1
    #[arg(long, value_name = "CARD|PORT")]
    port: Option<String>,
    /// Which backend of that wire this is: the first byte of its guests' addresses is 2 + 4 times this
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "port", value_parser = clap::value_parser!(u8).range(0..=i64::from(MOST_NUMBER)))]
    number: u8,
    /// Bytes in a packet: 256 to 4096, or 8192 [default: what fits into frames of the card, 1024 by a port]
    #[arg(long, value_name = "BYTES", requires = "port")]
    port_mtu: Option<u16>,
    /// The IP address of programs written for verbs, all together [default: 198.19.255.253]
    #[arg(long, value_name = "ADDRESS", value_parser = host)]
    rdma_ip: Option<IpAddr>,
    /// By which card or port these reach other hosts, by RoCE, such as unix:PATH or af_packet:eth1
    #[arg(long, value_name = "CARD|PORT")]
    rdma_wire: Option<String>,
    /// Bytes of payload in their packets: 256 to 4096 [default: what fits into frames of the card, 1024 by a port]
    #[arg(long, value_name = "BYTES", requires = "rdma_wire", value_parser = rdma_mtu)]
    rdma_mtu: Option<u16>,
}

fn host(text: &str) -> Result<IpAddr, &'static str> {
    let ip = text.parse().ok().filter(|ip| Gid::from_ip(*ip).is_end());
    ip.ok_or("the IP address of one host is meant, such as 192.0.2.1")
}

fn rdma_mtu(text: &str) -> Result<u16, &'static str> {
    let mtu = text.parse().ok().filter(|mtu| matches!(mtu, 256 | 512 | 1024 | 2048 | 4096));
    mtu.ok_or("256, 512, 1024, 2048 or 4096 is meant")
}

fn right(name: &str) -> Result<Right, String> {
    let found = Right::ALL.iter().find(|(_, own)| *own == name).map(|(right, _)| *right);
    found.ok_or_else(|| "expected memory, connect, tell or engine".to_owned())
}

/// Runs the command.
pub fn run(shared: &Shared, args: &SplitArgs) -> Result<(), Failure> {
    match &args.command {
        SplitCommand::Backend(args) => backend(shared, args),
        SplitCommand::Serve(args) => ends::serve(shared, args),
        SplitCommand::Drive(args) => ends::drive(shared, args),
    }
}

/// What the library refuses.
fn refused(error: Error) -> Failure {
    Failure::Found(error.to_string())
}

fn backend(shared: &Shared, args: &BackendArgs) -> Result<(), Failure> {
    if args.socket.len().max(args.ivshmem.len()) > MOST_DOORS {
        return Err(Failure::Usage(format!("of --socket and of --ivshmem there may be {MOST_DOORS} each")));
    }
    let mut doors: Vec<Box<dyn Door>> = Vec::new();
    for (number, path) in (0..=u8::MAX).zip(&args.socket) {
        doors.push(Box::new(MemoryDoor::at(path.clone(), number).map_err(refused)?));
    }
    for (number, path) in (0..=u8::MAX).zip(&args.ivshmem) {
        doors.push(Box::new(IvshmemDoor::open(path, number).map_err(refused)?));
    }
    if args.xen {
        doors.push(Box::new(XenDoor::open().map_err(refused)?));
    }
    if doors.is_empty() {
        return Err(Failure::Usage(
            "nobody could come: say --socket PATH, --ivshmem PATH, --xen, or several".to_owned(),
        ));
    }
    let rights = if args.allow.is_empty() { Rights::default() } else { Rights::of(&args.allow) };
    let (pages, all_pages) = (args.pages, args.all_pages);
    let limits = Limits { guests: args.guests, pages, all_pages, rights, ..Limits::default() };
    let port = args.port.as_deref().map(|port| open_port(port, args)).transpose()?;
    let output = Output::new(shared.json);
    let mut teller = Teller::start(output)?;
    let mut backend = Backend::with(limits, doors, port, open_hosts(args)?);
    let places = places(args);
    match shared.json {
        true => output.rows("serving", &[Row::new().tag("event", "serving").text("at", places)])?,
        false => note(format!("serving programs at {places}")),
    }
    backend.run(&stop::asked, |report| teller.tell(report));
    let untold = teller.end()?;
    let row = Row::new().tag("event", "turned away");
    let row = backend.turned_away().pairs().into_iter().fold(row, |row, (why, count)| row.count(why, count));
    let row = row.count("unsaid_lines", backend.unsaid()).count("untold_reports", untold);
    output.rows("turned away, and what was not said", &[row])?;
    let hosts = backend.host_counts();
    if !hosts.is_empty() {
        let row = Row::new().tag("event", "rdma wire");
        let row = hosts.into_iter().fold(row, |row, (name, count)| row.count(name, count));
        output.rows("what went to other hosts and came from them by RoCE, and was not taken", &[row])?;
    }
    let Some(counts) = backend.port_counts() else { return Ok(()) };
    let row = Row::new().tag("event", "port");
    Ok(output.rows("the port", &[counts.pairs().into_iter().fold(row, |row, (name, count)| row.count(name, count))])?)
}

/// Where programs come from: `/tmp/split.sock, ivshmem:/tmp/iv.sock, xen`.
fn places(args: &BackendArgs) -> String {
    let sockets = args.socket.iter().map(|path| path.display().to_string());
    let machines = args.ivshmem.iter().map(|path| format!("ivshmem:{}", path.display()));
    let domains = args.xen.then(|| "xen".to_owned());
    sockets.chain(machines).chain(domains).collect::<Vec<_>>().join(", ")
}

fn wanted(spec: &str) -> Wanted {
    let Rail { card, port, .. } = millrace_message::endpoint::rail(spec);
    Wanted { card, port, ..Wanted::default() }
}

fn open_hosts(args: &BackendArgs) -> Result<Hosts, Failure> {
    let (ip, link) = (args.rdma_ip, args.rdma_wire.as_deref().map(wanted));
    if let Some(ip) = ip.filter(|ip| link.is_some() && millrace_link::is_of_linux(*ip)) {
        note(format!(
            "--rdma-ip: an interface of this host has the address {ip}, too. If it is on that wire, both answer for it: choose a free address of that network"
        ));
    }
    Hosts::open(&HostsConfig { ip, link, mtu: args.rdma_mtu }).map_err(refused)
}

fn open_port(spec: &str, args: &BackendArgs) -> Result<Port, Failure> {
    let link = wanted(spec);
    Port::open(&PortConfig { link, mtu: args.port_mtu, number: args.number }).map_err(refused)
}
