//! The benchmarks as scripts see them: names of JSON fields, exit codes.

use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// Benchmarks keep two cores busy each; side by side they would wait for each other for seconds.
static CORES: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Their cards are `millrace card`, of the same build.
fn bench(line: &str) -> Output {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_millrace-bench"));
    assert!(
        program.with_file_name("millrace").exists(),
        "`cargo build -p millrace-cli` makes the card that is measured"
    );
    let mut command = Command::new(program);
    command.args(line.split_whitespace()).env_remove("MILLRACE_DEVICE");
    command.output().expect("the binary runs")
}

/// The objects that a command prints; it must succeed.
fn objects(line: &str) -> Vec<Value> {
    let output = bench(line);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "millrace bench {line}: {}\n{out}\n{err}", output.status);
    out.lines().map(|line| serde_json::from_str(line).expect("one JSON object per line")).collect()
}

fn assert_fields(object: &Value, fields: &[&str]) {
    for field in fields {
        assert!(object.get(field).is_some_and(|value| !value.is_null()), "{field} is missing in {object}");
    }
}

#[test]
fn latency_has_the_fields_that_were_promised() {
    let _alone = alone();
    let lines = objects("latency --count 300 --json");
    let cases: Vec<String> = lines.iter().map(|line| format!("{} {}", line["engine"], line["mode"])).collect();
    assert_eq!(cases.len(), 3 * 2 + 1, "both modes, and DD in direct mode only: {cases:?}");
    for line in &lines {
        assert_fields(line, &["bench", "engine", "mode", "size", "count", "mean_ns", "geomean_ns", "p50_ns", "p99_ns"]);
        assert_fields(line, &["p999_ns", "min_ns", "max_ns", "lost", "corrupt"]);
        assert_eq!((&line["bench"], &line["count"], &line["lost"]), (&"latency".into(), &300.into(), &0.into()));
    }
}

#[test]
fn latency_draws_its_histograms() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("latency.svg");
    objects(&format!("latency --count 300 --engine medusa --json --plot {}", file.display()));
    let svg = std::fs::read_to_string(file).unwrap();
    assert!(svg.contains("medusa direct: median") && svg.contains("medusa mediated: median"));
}

#[test]
fn throughput_has_the_fields_that_were_promised() {
    let _alone = alone();
    let lines = objects("throughput --count 2000 --size 64 --mode direct --json");
    let directions: Vec<&str> = lines.iter().filter_map(|line| line["direction"].as_str()).collect();
    assert_eq!(directions, ["tx", "rx", "both"].repeat(4));
    for line in &lines {
        assert_fields(line, &["bench", "engine", "mode", "size", "count", "mpps", "gbps", "lost", "corrupt"]);
    }
}

#[test]
fn sync_has_the_fields_that_were_promised() {
    let _alone = alone();
    let lines = objects("sync --count 50 --json");
    assert_eq!(lines.len(), (3 * 2 + 1) * 4, "DD in direct mode only");
    for (line, step) in lines.iter().zip(["A", "B", "C", "D"].iter().cycle()) {
        assert_fields(line, &["bench", "engine", "mode", "size", "count", "before_ns", "before_ns_sd", "sync_ns"]);
        assert_fields(line, &["sync_ns_sd", "after_ns", "after_ns_sd"]);
        assert_eq!(&line["step"], step);
    }
}

#[test]
fn a_folder_without_peers_is_refused() {
    let output = bench("peers --peers /nonexistent");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("no run.sh"), "{err}");
}

#[test]
fn classify_prints_its_metrics_and_finds_nothing_wrong() {
    let _alone = alone();
    // What goes through a card needs one with ports; the scenario `json` has those.
    let lines =
        objects("classify --metric hit_ns,miss_ns,rule_updates_per_s --rules 100,200 --rounds 1 --seconds 0.02 --json");
    let metrics: Vec<_> = lines.iter().map(|line| (line["metric"].as_str().unwrap(), line["rules"].as_u64())).collect();
    assert_eq!(metrics.len(), 6);
    assert_eq!(&metrics[..2], [("hit_ns", Some(100)), ("miss_ns", Some(100))]);
    for line in lines.iter().filter(|line| line["unit"] == "1/s") {
        assert_eq!((&line["wrong"], &line["halves"]), (&0.into(), &0.into()), "{line}");
        assert!(line["lookups"].as_u64() > Some(0), "{line}");
    }
}
