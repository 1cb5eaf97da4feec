//! The programs in `bench/peers`, run through its `run.sh`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use millrace_tool::failure::Failure;
use millrace_tool::output::note;
use millrace_tool::stop;

use super::metric::Metric;
use super::setting::Bench;
use crate::rig::run_on_all_cores;

/// Exit code of a program that lacks a package.
const UNAVAILABLE: i32 = 77;

/// The folder with the programs, if there is one.
pub struct Programs(Option<PathBuf>);

impl Programs {
    /// Looks for them where they are usually, or where they were said to be; says so if they are not there but needed.
    pub fn find(given: Option<&Path>, needed: bool) -> Result<Self, Failure> {
        let is_there = |place: &Path| place.join("run.sh").is_file();
        if let Some(place) = given.filter(|place| !is_there(place)) {
            return Err(Failure::Usage(format!("--peers {}: no run.sh is there", place.display())));
        }
        let variable = env::var_os("MILLRACE_PEERS").map(PathBuf::from);
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers");
        let places = [given.map(Path::to_owned), variable, Some("bench/peers".into()), Some(built)];
        let found = places.into_iter().flatten().find(|place| is_there(place));
        if found.is_none() && needed {
            note("bench/peers is not here: Millrace is measured alone; give --peers FOLDER");
        }
        // A path that stays valid wherever a program is started.
        Ok(Self(found.and_then(|place| place.canonicalize().ok())))
    }

    /// What one of them says of a metric; `None` if it cannot be measured here, which is said once.
    pub fn measure(
        &self,
        bench: &mut Bench<'_>,
        peer: &'static str,
        metric: Metric,
        more: &[&str],
    ) -> Result<Option<f64>, Failure> {
        let Some(folder) = self.0.as_deref().filter(|_| !bench.is_absent(peer) && !stop::asked()) else {
            return Ok(None);
        };
        let output = run(bench, folder, peer, metric, more)?;
        match output.status.code() {
            Some(0) => return Ok(value_in(&String::from_utf8_lossy(&output.stdout), peer, metric)),
            Some(UNAVAILABLE) => bench.leave_out(peer, "apt-get install dpdk libdpdk-dev, then run this again"),
            _ if stop::asked() => {}
            _ => bench.leave_out(peer, format!("it failed with {}; see above", output.status)),
        }
        Ok(None)
    }
}

fn run(bench: &Bench<'_>, folder: &Path, peer: &str, metric: Metric, more: &[&str]) -> Result<Output, Failure> {
    let script = folder.join("run.sh");
    let mut command = Command::new(&script);
    command.args(["--peer", peer, "--metric", metric.word(), "--seconds", &bench.seconds.to_string()]).args(more);
    if let (Some(app), Some(card)) = (bench.cores.app, bench.cores.card) {
        command.args(["--cpus", &format!("{app},{card}")]);
    }
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    run_on_all_cores(command).map_err(|source| Failure::File { doing: "cannot run", path: script, source })
}

/// The value in the line that a program prints about itself and that metric; a cache line has only a round trip.
fn value_in(text: &str, peer: &str, metric: Metric) -> Option<f64> {
    text.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|line| line["peer"] == peer && line["metric"] == metric.word())?["value"]
        .as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_peer_is_found_among_others() {
        let text = "gcc: note\n\
            {\"bench\":\"peers\",\"peer\":\"bare_ring\",\"metric\":\"tx_mpps_64\",\"size\":64,\"value\":57.1}\n\
            {\"bench\":\"peers\",\"peer\":\"bare_ring\",\"metric\":\"rtt_p50\",\"size\":64,\"value\":463.0,\"unit\":\"ns\"}\n";
        assert_eq!(value_in(text, "bare_ring", Metric::RttP50), Some(463.0));
        assert_eq!(value_in(text, "cacheline", Metric::RttP50), None);
    }
}
