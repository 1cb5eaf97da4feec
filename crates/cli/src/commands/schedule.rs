//! `millrace schedule`: when the queues of a port may send.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use millrace_abi::schedule::{CLASSES, Gate, MOST_QUEUES, QueueClass, Schedule};
use millrace_packet::number::number;
use millrace_tool::duration::nanoseconds;
use millrace_tool::failure::{Failure, While};
use millrace_tool::list::Queues;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::session::Session;
use serde::Deserialize;

use crate::policy::read_file;

/// Options of `schedule`.
#[derive(Debug, Args)]
#[command(after_help = "\
A schedule has gates that open and close in a cycle, as in IEEE 802.1Qbv, a class
for each queue, and rates (docs/time.md). It takes the right configure:ports.
One whose base is yet to come is pending: what was there before counts until then.
Without a command: as `show`.

Examples:
  millrace schedule set line.toml
  millrace schedule show --json
  millrace schedule clear 0")]
pub struct ScheduleArgs {
    #[command(subcommand)]
    command: Option<ScheduleCommand>,
}

#[derive(Debug, Subcommand)]
enum ScheduleCommand {
    /// Show the schedules of all ports
    Show,
    /// Give a port the schedule in a file
    Set {
        /// TOML: port, base, speed, always, [[gate]], [[queue]] (docs/time.md)
        file: PathBuf,
    },
    /// Let the queues of a port send whenever they like
    Clear {
        /// Index of the port
        port: u32,
    },
}

/// Runs the command.
pub fn run(shared: &Shared, args: &ScheduleArgs) -> Result<(), Failure> {
    let file = match &args.command {
        Some(ScheduleCommand::Set { file }) => Some(read(file)?),
        _ => None,
    };
    let session = Session::open_running(shared, "nothing is left of a schedule")?;
    match (&args.command, file) {
        (_, Some((port, schedule))) => {
            session.device.schedule(port, Some(schedule)).doing(|| format!("cannot give port {port} a schedule"))?;
        }
        (Some(ScheduleCommand::Clear { port }), _) => {
            session.device.schedule(*port, None).doing(|| format!("cannot clear the schedule of port {port}"))?;
        }
        _ => {}
    }
    show(shared, &session)
}

fn show(shared: &Shared, session: &Session<'_>) -> Result<(), Failure> {
    let output = Output::new(shared.json);
    let ports = session.stats()?.ports;
    // Without the clock nobody knows; only a card that has ended has none.
    let now = session.device.clock().ok().and_then(|clock| clock.nanoseconds().ok()).unwrap_or(u64::MAX);
    let scheduled = ports.iter().filter_map(|port| Some((port.port, port.schedule.as_ref()?)));
    let rows: Vec<Row> = scheduled.map(|(port, schedule)| row(port, schedule, now)).collect();
    Ok(output.rows("schedules", &rows)?)
}

/// `now`: what the card's clock shows.
fn row(port: u32, schedule: &Schedule, now: u64) -> Row {
    let gates = schedule.gates.iter().map(|gate| format!("{:?} {} ns", classes(gate.open), gate.lasts));
    let queue = |queue: &QueueClass| match queue.rate {
        0 => format!("tx{} class {}", queue.queue, queue.class),
        rate => format!("tx{} class {} {rate} bit/s", queue.queue, queue.class),
    };
    Row::new()
        .count("port", port.into())
        .both("pending", if schedule.base > now { "yes" } else { "no" }.to_owned(), schedule.base > now)
        .count("base_ns", schedule.base)
        .count("cycle_ns", schedule.cycle())
        .count("speed", schedule.speed)
        .both("always", format!("{:?}", classes(schedule.always)), classes(schedule.always))
        .both("gates", gates.collect::<Vec<_>>().join(", "), &schedule.gates)
        .both("queues", schedule.queues.iter().map(queue).collect::<Vec<_>>().join(", "), &schedule.queues)
}

fn classes(bits: u8) -> Vec<u8> {
    (0..CLASSES).filter(|class| bits >> class & 1 != 0).collect()
}

/// A file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    port: u32,
    #[serde(default)]
    base: u64,
    speed: String,
    #[serde(default)]
    always: Vec<u8>,
    #[serde(default, rename = "gate")]
    gates: Vec<FileGate>,
    #[serde(default, rename = "queue")]
    queues: Vec<FileQueue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileGate {
    open: Vec<u8>,
    lasts: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileQueue {
    queues: String,
    #[serde(default)]
    class: u8,
    rate: Option<String>,
}

fn read(path: &Path) -> Result<(u32, Schedule), Failure> {
    let text = read_file("schedule set", path)?;
    parse(&text).map_err(|error| Failure::Usage(format!("{}: {}", path.display(), error.trim_end())))
}

fn parse(text: &str) -> Result<(u32, Schedule), String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    let gate = |gate: &FileGate| Ok(Gate { open: bits(&gate.open)?, lasts: nanoseconds(&gate.lasts)? });
    let mut queues = Vec::new();
    for said in &file.queues {
        let list: Queues = said.queues.parse().map_err(|error| format!("queues = {:?}: {error}", said.queues))?;
        let rate = said.rate.as_deref().map_or(Ok(0), bits_per_second)?;
        queues.extend(list.indices().iter().map(|&queue| QueueClass { queue, class: said.class, rate }));
        if queues.len() > MOST_QUEUES {
            return Err(format!("more than {MOST_QUEUES} queues"));
        }
    }
    let schedule = Schedule {
        base: file.base,
        speed: bits_per_second(&file.speed)?,
        always: bits(&file.always)?,
        gates: file.gates.iter().map(gate).collect::<Result<_, String>>()?,
        queues,
    };
    schedule.check().map_err(|error| error.to_string())?;
    Ok((file.port, schedule))
}

fn bits(classes: &[u8]) -> Result<u8, String> {
    classes.iter().try_fold(0, |bits, &class| {
        let bit = 1_u8.checked_shl(class.into()).ok_or_else(|| format!("{class} is no class from 0 to 7"))?;
        Ok(bits | bit)
    })
}

fn bits_per_second(text: &str) -> Result<u64, String> {
    number(text)
        .filter(|&rate| rate > 0)
        .ok_or_else(|| format!("{text:?} is no number of bits per second such as 100M or 1G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        port = 1
        speed = "1G"
        always = [7]
        [[gate]]
        open = [6, 7]
        lasts = "250us"
        [[gate]]
        open = [0]
        lasts = "750us"
        [[queue]]
        queues = "0-2"
        class = 6
        [[queue]]
        queues = "3"
        rate = "100M"
    "#;

    #[test]
    fn a_file_is_a_schedule() {
        let (port, schedule) = parse(GOOD).unwrap();
        assert_eq!((port, schedule.cycle(), schedule.speed, schedule.always), (1, 1_000_000, 1_000_000_000, 0x80));
        assert_eq!(schedule.gates[0], Gate { open: 0xc0, lasts: 250_000 });
        assert_eq!(schedule.queues.len(), 4);
        assert_eq!(schedule.queues[3], QueueClass { queue: 3, class: 0, rate: 100_000_000 });
        assert!(row(port, &schedule, 0).to_json().contains(r#""cycle_ns":1000000"#));
        let later = Schedule { base: 2, ..schedule };
        assert!(row(port, &later, 1).to_json().contains(r#""pending":true"#));
        assert!(row(port, &later, 2).to_json().contains(r#""pending":false"#));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (from, to, said) in [
            ("speed = \"1G\"", "", "speed"),
            ("lasts = \"250us\"", "lasts = \"250\"", "no time"),
            ("class = 6", "class = 9", "class from 0 to 7"),
            ("open = [0]", "open = [8]", "no class"),
            ("queues = \"3\"", "queues = \"2\"", "named once"),
            ("port = 1", "port = 1\nprot = 2", "prot"),
            ("rate = \"100M\"", "rate = \"fast\"", "bits per second"),
        ] {
            let error = parse(&GOOD.replace(from, to)).unwrap_err();
            assert!(error.contains(said), "{to}: {error}");
        }
    }
}
