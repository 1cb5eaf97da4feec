//! `dpdk-testpmd` between `net_vhost` ports: `io` forwarding, which looks at nothing, on one core. Bursts of 32 are its
//! fastest here; 64 and 128 cost 10 and 20 %.

use super::forwarder::{Forwarder, TwoCores, Wiring};
use super::process::{Process, RuntimeFolder, find};

/// Megabytes of huge pages, and the buffers in them.
const MEMORY: usize = 128;
const BUFFERS: usize = 16384;

/// Starts it. Errors are sentences.
pub fn start(wiring: Wiring, cores: TwoCores) -> Result<Forwarder, String> {
    if !matches!(wiring, Wiring::Through | Wiring::Back) {
        return Err("dpdk-testpmd has no rules".to_owned());
    }
    let program = find("dpdk-testpmd", "dpdk-dev")?;
    let runtime = RuntimeFolder::new("testpmd");
    let prefix = runtime.prefix().to_owned();
    let mut forwarder = Forwarder::new(wiring, Some(runtime))?;
    let (folder, sockets) = (forwarder.folder().to_owned(), forwarder.sockets.clone());
    let process = Process::start("testpmd", &program, &folder, |command| {
        // The first of its cores reads commands, of which there are none.
        command.args(["-l", &format!("{},{}", cores.app, cores.card), "--main-lcore", &cores.app.to_string()]);
        command.args(["--file-prefix", &prefix, "-m", &MEMORY.to_string(), "--no-pci", "--in-memory"]);
        command.args(["--single-file-segments", "--no-telemetry"]);
        for (index, socket) in sockets.iter().enumerate() {
            command.arg("--vdev").arg(format!("net_vhost{index},iface={},queues=1", socket.display()));
        }
        command.args(["--", "--forward-mode=io", "--nb-cores=1", "--burst=32", "--disable-link-check"]);
        command.arg(format!("--total-num-mbufs={BUFFERS}"));
        if wiring == Wiring::Back {
            command.arg("--port-topology=loop");
        }
    })?;
    forwarder.add(process);
    forwarder.await_sockets()
}
