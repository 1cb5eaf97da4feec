//! `millrace pktgen`: frames of real flows out and back at the same time, and what became of them.

mod report;

use std::thread;

use clap::Args;
use millrace_packet::probe::{self, Addresses, Endpoint, MacAddress, Probes, Version};
use millrace_tool::clock::Clock;
use millrace_tool::cores;
use millrace_tool::failure::Failure;
use millrace_tool::lanes;
use millrace_tool::list::Queues;
use millrace_tool::options::{self, Shared};
use millrace_tool::output::is_watched;
use millrace_tool::progress::{PERIOD, Progress};
use millrace_tool::session::Session;
use millrace_tool::stop;
use millrace_tool::traffic::{Board, Lengths, Mix, Pair, Plan, Rate, Results, Worker};

/// Longest time to send, in seconds: a hundred years.
const LONGEST: f64 = 3e9;

/// Options of `pktgen`.
#[derive(Debug, Args)]
#[command(after_help = "\
Sends UDP in IPv4 or IPv6, with correct checksums, on every queue of --queues
or --queue, and receives on the same queues what the other side sends back: a
card that loops back, or a network with a reflector. Every frame carries its
flow and its number, so what is lost, damaged, late or repeated is counted.

--count, --rate and --flows are those of each queue. Without --count and
--seconds it sends until Ctrl-C. Frames are of --size bytes (64), at random if
that is a list or a range, or of a --mix, whose cycle has every size as often
as its weight says: imix is 64=7,594=4,1518=1. A probe needs 60 bytes with
IPv4 and 80 with IPv6. Flows differ in ports, and in addresses where a network
is given; all that looks random follows from --seed.

Times are from writing a frame into its slot until the burst it comes back in
is found, so at full rate they are those of full queues; with --rate or
--window they are those of the way. With --latency no thread sleeps.

Lost frames, or damaged, late and repeated ones, make the command fail.

Examples:
  millrace pktgen --seconds 2
  millrace pktgen --queues 4 --mix imix --rate 1Gbit --seconds 10 --latency
  millrace pktgen --flows 1000 --src-ip 10.0.0.0/8 --count 1M --json
  millrace pktgen --device embedded:port=tap:mill0 --no-receive --rate 10k")]
pub struct PktgenArgs {
    /// How many queues, from 0 on; or name them with --queue
    #[arg(long, value_name = "N", conflicts_with = "queue", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    queues: Option<u32>,
    /// Frames per second and queue, such as 10k or 1.5M, or bits: 100Mbit, 10Gbit [default: as many as go]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// How long to send
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// Sizes with weights instead of --size: imix, or such as 64=7,594=4,1518=1
    #[arg(long, value_name = "MIX", conflicts_with = "size")]
    mix: Option<Mix>,
    /// Flows of each queue, which take turns
    #[arg(long, value_name = "N", default_value = "1", value_parser = options::count)]
    flows: u64,
    /// IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    /// Source MAC address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:01")]
    src_mac: MacAddress,
    /// Destination MAC address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:02")]
    dst_mac: MacAddress,
    /// Source address, or network that flows take theirs from [default: 198.18.0.0/16 or 2001:2::/64]
    #[arg(long, value_name = "IP")]
    src_ip: Option<Endpoint>,
    /// Destination address or network [default: 198.19.0.0/16 or 2001:2:0:1::/64]
    #[arg(long, value_name = "IP")]
    dst_ip: Option<Endpoint>,
    /// What addresses, ports and sizes follow from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Receive and check what comes back (the default)
    #[arg(long, overrides_with = "no_receive")]
    receive: bool,
    /// Send only
    #[arg(long)]
    no_receive: bool,
    /// Measure how long each frame takes, with a time stamp in it
    #[arg(long, short = 'l', conflicts_with = "no_receive")]
    latency: bool,
    /// Most frames of each queue on their way at once [default: as many as queues hold]
    #[arg(long, value_name = "N", conflicts_with = "no_receive", value_parser = options::count)]
    window: Option<u64>,
    /// How long to wait for missing frames after the last that came
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    linger: f64,
    /// Threads, which share the queues out [default: half as many as there are cores; the card needs the others]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..LONGEST).contains(seconds));
    seconds.ok_or_else(|| "expected a number of seconds, such as 0.5 or 10".to_owned())
}

/// Runs the command.
pub fn run(shared: &Shared, args: &PktgenArgs) -> Result<(), Failure> {
    let mut shared = shared.clone();
    if let Some(count) = args.queues {
        shared.queue = Some(Queues::first(count));
    }
    let queues = shared.queues();
    let plan = plan(&shared, args, queues.indices().len())?;
    let session = Session::open(&shared)?;
    let pairs = open(&session, &plan, queues.indices(), !args.no_receive)?;
    let (results, outcome) = drive(&plan, pairs, args.threads());
    let total = report::print(shared.json, args.flows, !args.no_receive, &results)?;
    outcome?;
    lanes::outcome(total.sent.frames, shared.count.map(|count| count.saturating_mul(queues.indices().len() as u64)))?;
    total.judge()
}

impl PktgenArgs {
    fn threads(&self) -> usize {
        self.threads.map_or_else(|| (cores::allowed().len() / 2).max(1), usize::from)
    }

    fn addresses(&self) -> Addresses {
        let is_v6 = self.ipv6 || [self.src_ip, self.dst_ip].iter().flatten().any(|end| end.ip.is_ipv6());
        let otherwise = Addresses::default_of(if is_v6 { Version::V6 } else { Version::V4 });
        Addresses {
            source_mac: self.src_mac,
            destination_mac: self.dst_mac,
            source: self.src_ip.unwrap_or(otherwise.source),
            destination: self.dst_ip.unwrap_or(otherwise.destination),
        }
    }
}

fn plan(shared: &Shared, args: &PktgenArgs, queues: usize) -> Result<Plan, Failure> {
    let addresses = args.addresses();
    let sizes = shared.sizes_or(if addresses.version() == Version::V6 { 80 } else { 64 });
    let (smallest, largest, lengths) = match &args.mix {
        Some(mix) => (mix.smallest().into(), mix.largest().into(), Lengths::of(mix)),
        None => (sizes.smallest(), sizes.largest(), Lengths::random(sizes, args.seed)),
    };
    let shortest = addresses.version().shortest();
    if (smallest as usize) < shortest {
        let why = format!(
            "frames of {smallest} bytes: a probe needs {shortest} bytes; give other sizes with --size or --mix"
        );
        return Err(Failure::Usage(why));
    }
    let too_many = || {
        Failure::Usage(format!("--flows {} on {queues} queues: at most {} flows in all", args.flows, probe::MAX_FLOWS))
    };
    let flows = u32::try_from(args.flows).map_err(|_| too_many())?;
    let all = u32::try_from(queues).ok().and_then(|queues| flows.checked_mul(queues)).ok_or_else(too_many)?;
    if all > probe::MAX_FLOWS {
        return Err(too_many());
    }
    let probes = Probes::new(&probe::Plan { flows: all, addresses, longest: largest, seed: args.seed })
        .map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(Plan {
        probes,
        flows,
        goal: shared.count,
        seconds: args.seconds,
        rate: args.rate,
        lengths,
        burst: shared.burst_or(64),
        window: args.window,
        latency: args.latency,
        poll: shared.poll,
        linger: args.linger,
    })
}

/// All queues are open before the first frame leaves: it may come back at any of them.
fn open(session: &Session<'_>, plan: &Plan, queues: &[u32], receive: bool) -> Result<Vec<Pair>, Failure> {
    let pair = |(at, queue): (usize, &u32)| {
        let rx = if receive { Some(session.rx(*queue)?) } else { None };
        Ok(Pair::new(*queue, at, rx, session.tx(*queue)?, plan))
    };
    queues.iter().enumerate().map(pair).collect()
}

/// Lets `threads` workers drive the pairs, and shows how far they are.
fn drive(plan: &Plan, mut pairs: Vec<Pair>, threads: usize) -> (Results, Result<(), Failure>) {
    let threads = threads.min(pairs.len());
    let board = Board::new(pairs.len(), threads);
    let clock = Clock::start();
    thread::scope(|scope| {
        let mut workers = Vec::with_capacity(threads);
        for left in (1..=threads).rev() {
            let rest = pairs.split_off(pairs.len().div_ceil(left));
            let mine = std::mem::replace(&mut pairs, rest);
            let first = board.gauges().len() - pairs.len() - mine.len();
            let mut worker = Worker::new(plan, &board, first, mine, clock);
            let main = thread::current();
            workers.push(scope.spawn(move || {
                let ran = worker.run();
                if ran.is_err() {
                    stop::ask();
                }
                let (results, finished) = worker.finish();
                main.unpark();
                (results, ran.and(finished))
            }));
        }
        if is_watched() {
            let goal = plan.goal.map(|goal| goal.saturating_mul(board.gauges().len() as u64));
            let progress = Progress::new("pktgen", goal);
            while !workers.iter().all(|worker| worker.is_finished()) {
                thread::park_timeout(PERIOD);
                progress.show_exchange(board.gauges());
            }
            progress.finish();
        }
        let ended = workers.into_iter().map(|worker| worker.join().expect("a worker reports failures"));
        ended.fold((Results::default(), Ok(())), |(all, outcome), (results, ended)| {
            (all.with(results), outcome.and(ended))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        args: PktgenArgs,
        #[command(flatten)]
        shared: Shared,
    }

    fn parse(line: &str) -> Result<Plan, String> {
        let only = Only::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        plan(&only.shared, &only.args, 4).map_err(|error| error.to_string())
    }

    #[test]
    fn options_make_a_plan() {
        let plan = parse("pktgen --queues 4 --flows 1k --rate 1Gbit --mix 80=1,1500=2 --seconds 0.5 -n 7 -l --ipv6");
        let plan = plan.unwrap();
        assert_eq!((plan.flows, plan.probes.flows(), plan.probes.shortest()), (1000, 4000, 80));
        assert_eq!((plan.goal, plan.seconds, plan.rate), (Some(7), Some(0.5), Some(Rate::Bits(1e9))));
        assert!(plan.latency);
        assert_eq!(parse("pktgen --src-ip 2001:db8::/32").unwrap().probes.shortest(), 80);
        assert_eq!(parse("pktgen").unwrap().probes.shortest(), 60);
    }

    #[test]
    fn contradictions_are_refused() {
        for line in [
            "pktgen --queues 2 --queue 0-1",
            "pktgen --queues 0",
            "pktgen --mix imix --size 64",
            "pktgen --no-receive --latency",
            "pktgen --no-receive --window 5",
            "pktgen --size 59",
            "pktgen --size 60-100 --ipv6",
            "pktgen --mix imix --ipv6",
            "pktgen --flows 2M",
            "pktgen --flows 0",
            "pktgen --rate 0",
            "pktgen --seconds -1",
            "pktgen --src-ip ::1 --dst-ip 10.0.0.1",
            "pktgen --src-mac 1",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
