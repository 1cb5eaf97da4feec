//! `millrace bench agent`: flow modifications of a controller, while frames pass by the rules of the card.
//!
//! - here: what is measured; - `controller`: what `ovs-ofctl` says, by itself and without waiting; - `frames`: the stream through the card.

mod controller;
mod frames;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::Args;
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::options::{self, Shared};
use millrace_tool::output::{Output, Row};
use millrace_tool::progress::Steps;
use millrace_tool::{cores, stop};

use crate::rig::{Cores, Rig};
use controller::{Controller, Way};
use frames::Seen;

/// What the issue asks for.
const GOAL: f64 = 20_000.0;

/// Options of `bench agent`.
#[derive(Debug, Args)]
#[command(after_help = "\
A card whose port sends everything back, an agent, and ovs-ofctl as its controller
(openvswitch-switch-dpdk, or openvswitch-common). Flows are added, modified and deleted
again, each by a message of its own, over and over for --seconds.

bundle: `ovs-ofctl --bundle add-flows`, all of a pass in one bundle. stream: the same
messages without a bundle and without waiting, as controllers send them: those that
ovs-ofctl has made, sent by this program, a barrier behind every thousand, and the next
pass when all are done. each: `ovs-ofctl add-flows`, which waits for a barrier after
every message.

Meanwhile --frames frames of 64 bytes a second go out of the card and come back by an
entry of the controller, at most 256 of them on their way. dropped counts those that did
not come back; longest_us is the longest time without any. flow_mods_per_s counts the time
in which ovs-ofctl starts and reads its file. With a frame dropped, or an error of the
agent, the benchmark fails.

Examples:
  millrace bench agent
  millrace bench agent --way stream --flows 50k --seconds 20 --json")]
pub struct AgentArgs {
    /// How the controller goes about it
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "bundle,stream,each")]
    way: Vec<Way>,
    /// Flows of a pass; three messages for each
    #[arg(long, value_name = "N", default_value = "5k", value_parser = options::count)]
    flows: u64,
    /// Frames a second
    #[arg(long, value_name = "RATE", default_value = "50k", value_parser = options::count)]
    frames: u64,
    /// How long each takes
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    seconds: f64,
}

/// What one measurement has found.
struct Found {
    way: Way,
    modifications: u64,
    refused: u64,
    seconds: f64,
    seen: Seen,
}

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &AgentArgs) -> Result<(), Failure> {
    let flows = u32::try_from(args.flows).ok().filter(|flows| (1..=200_000).contains(flows));
    let flows = flows.ok_or_else(|| Failure::Usage("--flows: from 1 to 200k".to_owned()))?;
    let rig = Rig::start(shared, cores, None, "loopback")?;
    let session = rig.session()?;
    let (mut rx, mut tx) = rig.pair(&session)?;
    let mut controller = Controller::start(cores, rig.device(), flows)?;
    let steps = Steps::new("agent", args.way.len() as u64);
    let mut found = Vec::new();
    for way in &args.way {
        steps.next(way.name().to_owned());
        let is_over = AtomicBool::new(false);
        let one = thread::scope(|scope| {
            let controller = &mut controller;
            let is_over = &is_over;
            let work = scope.spawn(move || {
                // What it starts may run wherever there is room.
                cores::unpin();
                let begin = Moment::now();
                let mut done = Ok((0, 0));
                while begin.seconds() < args.seconds
                    && !stop::asked()
                    && let Ok(sum) = &mut done
                {
                    match controller.pass(*way) {
                        Ok((modifications, refused)) => *sum = (sum.0 + modifications, sum.1 + refused),
                        Err(why) => done = Err(why),
                    }
                }
                let seconds = begin.seconds();
                // Nothing is handed over but the word itself.
                is_over.store(true, Ordering::Relaxed);
                (done, seconds)
            });
            let seen = frames::pass(&mut rx, &mut tx, args.frames, is_over);
            let (done, seconds) = work.join().map_err(|_| Failure::Found("the controller panicked".to_owned()))?;
            let (modifications, refused) = done.map_err(Failure::Found)?;
            Ok::<_, Failure>(Found { way: *way, modifications, refused, seconds, seen: seen? })
        })?;
        found.push(one);
        if stop::asked() {
            return Err(Failure::Interrupted);
        }
    }
    drop(steps);
    drop((rx, tx, controller, session));
    rig.end()?;
    let rows: Vec<Row> = found.iter().map(|one| one.row(flows)).collect();
    Output::new(shared.json).rows("flow modifications of a controller while frames pass", &rows)?;
    judge(&found)
}

impl Found {
    fn row(&self, flows: u32) -> Row {
        Row::new()
            .tag("bench", "agent")
            .tag("controller", "ovs-ofctl")
            .text("way", self.way.name())
            .count("flows", flows.into())
            .count("flow_mods", self.modifications)
            .number("flow_mods_per_s", self.modifications as f64 / self.seconds, 0)
            .text("goal", if self.way == Way::Each { "-".to_owned() } else { format!(">= {GOAL}") })
            .count("refused", self.refused)
            .number("frames_per_s", self.seen.sent as f64 / self.seconds, 0)
            .count("frames", self.seen.sent)
            .count("dropped", self.seen.dropped())
            .number("longest_us", self.seen.longest_ns as f64 / 1e3, 0)
    }
}

fn judge(found: &[Found]) -> Result<(), Failure> {
    let dropped: u64 = found.iter().map(|one| one.seen.dropped()).sum();
    let refused: u64 = found.iter().map(|one| one.refused).sum();
    if dropped + refused > 0 {
        return Err(Failure::Found(format!("{dropped} frames dropped, {refused} messages refused")));
    }
    Ok(())
}
