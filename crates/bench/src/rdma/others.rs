//! What else moves bytes: UCX, libfabric, and the system between two processes.

use std::process::Command;

use super::Bench;
use super::ours::{self, Work};
use crate::ends::{Pair, field, iterations};
use crate::peers::namespace::Namespace;
use crate::peers::process::find;

/// Where UCX's programs find each other.
const PORT: u16 = 23_337;

/// Who else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// process_vm_writev and process_vm_readv.
    Cma,
    /// UCX through shared memory.
    UcxMemory,
    /// UCX over TCP, loopback interface.
    UcxTcp,
    /// UCX over TCP, between two hosts with a veth.
    UcxTcpVeth,
    /// libfabric through shared memory.
    Libfabric,
}

impl Other {
    pub fn word(self) -> &'static str {
        match self {
            Other::Cma => "process_vm",
            Other::UcxMemory => "ucx posix",
            Other::UcxTcp => "ucx tcp",
            Other::UcxTcpVeth => "ucx tcp, veth",
            Other::Libfabric => "libfabric shm",
        }
    }
}

/// The same work by somebody else, in the same unit. Errors are sentences.
pub fn measure(bench: &Bench, other: Other, work: Work) -> Result<f64, String> {
    match other {
        Other::Cma => cma(bench, work),
        Other::Libfabric => libfabric(bench, work),
        _ => ucx(bench, other, work),
    }
}

fn cma(bench: &Bench, work: Work) -> Result<f64, String> {
    let mut command = Command::new(bench.programs.path("cma"));
    command.args(["--op", work.op, "--size", &work.size.to_string(), "--seconds", &bench.seconds.to_string()]);
    ours::pin(&mut command, bench);
    ours::line(command)?["value"].as_f64().ok_or_else(|| "it printed no value".to_owned())
}

fn ucx(bench: &Bench, other: Other, work: Work) -> Result<f64, String> {
    let is_memory = other == Other::UcxMemory;
    let is_latency = work.measure == "latency";
    let name = match (is_memory, is_latency) {
        (true, true) => "put_lat",
        (true, false) => "put_bw",
        (false, true) => "ucp_put_lat",
        (false, false) => "ucp_put_bw",
    };
    let each = match (is_memory, work.size) {
        (true, 8) => 100.0,
        (true, _) => 40_000.0,
        (false, 8) => 15_000.0,
        (false, _) => 3_000_000.0,
    };
    let mut words = vec!["-p".to_owned(), PORT.to_string(), "-t".to_owned(), name.to_owned()];
    words.extend([
        "-s".to_owned(),
        work.size.to_string(),
        "-n".to_owned(),
        iterations(bench.seconds, each),
        "-f".to_owned(),
    ]);
    if is_memory {
        words.extend(["-d", "memory", "-x", "posix"].map(str::to_owned));
    }
    let namespaces = (other == Other::UcxTcpVeth).then(joined).transpose()?;
    // Every interface that UCX may use has to lead to the other end.
    let over = |interface: &str| vec![("UCX_TLS", "tcp,self".to_owned()), ("UCX_NET_DEVICES", interface.to_owned())];
    let environment = match other {
        Other::UcxTcp => [over("lo"), over("lo")],
        Other::UcxTcpVeth => [over("left"), over("right")],
        _ => Default::default(),
    };
    let server = if namespaces.is_some() { "192.0.2.1" } else { "127.0.0.1" }.to_owned();
    let pair = Pair { program: find("ucx_perftest", "ucx-utils")?, arguments: words, environment, namespaces, server };
    let line = pair.run(bench.cores)?;
    // iterations, us: median, average, overall; MB/s: average, overall; messages per second: average, overall.
    match work.measure {
        "latency" => Ok(field(&line, 1)? * 1e3),
        "rate" => Ok(field(&line, 7)? / 1e6),
        _ => Ok(field(&line, 5)? * f64::from(1 << 20) / 1e9),
    }
}

/// Two hosts with a veth between them.
fn joined() -> Result<[Namespace; 2], String> {
    let hosts = [Namespace::named("a")?, Namespace::named("b")?];
    hosts[0].add_pair_to("left", &hosts[1], "right")?;
    for (host, interface, address) in [(&hosts[0], "left", "192.0.2.1/24"), (&hosts[1], "right", "192.0.2.2/24")] {
        host.ip(&["address", "add", address, "dev", interface])?;
        host.ip(&["link", "set", interface, "up"])?;
        host.ip(&["link", "set", "lo", "up"])?;
    }
    // UCX takes only interfaces that the system calls up, which it does up to a second later.
    for (host, interface) in [(&hosts[0], "left"), (&hosts[1], "right")] {
        let wait = "for _ in $(seq 50); do grep -q up /sys/class/net/$0/operstate && exit 0; sleep 0.1; done; exit 1";
        host.run(&["sh", "-c", wait, interface]).map_err(|why| format!("{interface} does not come up: {why}"))?;
    }
    Ok(hosts)
}

fn libfabric(bench: &Bench, work: Work) -> Result<f64, String> {
    let program = find("fi_pingpong", "libfabric-bin")?;
    let count = iterations(bench.seconds, 2_000.0);
    let words = ["-p", "shm", "-e", "rdm", "-S", &work.size.to_string(), "-I", &count];
    let arguments = words.map(str::to_owned).to_vec();
    let pair =
        Pair { program, arguments, environment: Default::default(), namespaces: None, server: "127.0.0.1".to_owned() };
    // bytes, sent, acknowledged, total, time, MB/s, us one way, M/s.
    Ok(field(&pair.run(bench.cores)?, 6)? * 1e3)
}
