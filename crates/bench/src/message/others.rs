//! Messages of others: UCX and Open MPI, on one host.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::ends::{Pair, field, iterations};
use crate::peers::process::{find, run};
use crate::rig::Cores;

/// Where UCX's programs find each other.
const PORT: u16 = 23_341;

/// UCX's tagged messages through shared memory: ns one way, or GB/s. Errors are sentences.
pub fn ucx(cores: Cores, size: u64, is_latency: bool, seconds: f64) -> Result<f64, String> {
    let (name, each) = if is_latency { ("tag_lat", 200.0) } else { ("tag_bw", size as f64 / 8.0) };
    let words = ["-p", &PORT.to_string(), "-t", name, "-s", &size.to_string(), "-n", &iterations(seconds, each), "-f"];
    let over = || vec![("UCX_TLS", "sm,self".to_owned())];
    let pair = Pair {
        program: find("ucx_perftest", "ucx-utils")?,
        arguments: words.map(str::to_owned).to_vec(),
        environment: [over(), over()],
        namespaces: None,
        server: "127.0.0.1".to_owned(),
    };
    let line = pair.run(cores)?;
    // iterations, us: median, average, overall; MB/s: average, overall.
    Ok(if is_latency { field(&line, 1)? * 1e3 } else { field(&line, 5)? * f64::from(1 << 20) / 1e9 })
}

/// Open MPI in GB/s. Errors are sentences.
pub fn mpi(cores: Cores, size: u64, seconds: f64) -> Result<f64, String> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/message");
    let places = [Path::new("bench/message").to_owned(), built];
    let source = places.into_iter().map(|place| place.join("mpi.c")).find(|source| source.is_file());
    let source = source.ok_or("bench/message is not here: run it where the sources are")?;
    let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
    let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
    let program = folder.path().join("mpi");
    run(&find("mpicc", "libopenmpi-dev")?, |command| {
        command.arg("-O3").arg("-o").arg(&program).arg(&source);
    })?;
    let mut command = Command::new(find("mpiexec", "openmpi-bin")?);
    // As root, and on as many cores as there are.
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "2"]);
    match cores.app.zip(cores.card) {
        Some((app, card)) => command.args(["--cpu-set", &format!("{app},{card}"), "--bind-to", "core"]),
        None => command.args(["--bind-to", "none"]),
    };
    command.arg(&program).args([size.to_string(), seconds.to_string()]);
    let output = command.stdin(Stdio::null()).output().map_err(|why| format!("cannot start it: {why}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("it ended with {}: {}", output.status, said.trim().lines().last().unwrap_or_default()));
    }
    field(String::from_utf8_lossy(&output.stdout).trim(), 0)
}
