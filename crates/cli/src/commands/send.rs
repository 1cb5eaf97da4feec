//! `millrace send`: frames that leave when they are told to, and what became of each.

use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use millrace_abi::launch::{FarPolicy, LatePolicy, LaunchPolicy, Reason, SLACK_DEFAULT};
use millrace_abi::queue::{Engine, QueueId};
use millrace_packet::structured::{self, Sequence};
use millrace_tool::distribution::Distribution;
use millrace_tool::duration::nanoseconds;
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{Buffer, Clock, Pool, PoolTx, Verdict};
use millrace_tool::list::Sizes;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::session::Session;
use millrace_tool::stop;
use serde::Serialize;

/// Frames in the ring at most.
const RING: u32 = 1024;
/// Frames are given to the card so many ns before they leave: less than it waits.
const AHEAD: u64 = 400_000_000;
/// Who says a time that was so many ns ago may have meant another one.
const LONG_AGO: u64 = 3_600_000_000_000;
/// How long a program sleeps that waits for room or verdicts.
const PAUSE: Duration = Duration::from_micros(200);

/// Options of `send`.
#[derive(Debug, Args)]
#[command(after_help = "\
Frames have launch times by the card's clock: the first leaves at --at, each
further one a --period later. None leaves early. A frame that the card comes to
more than --slack behind its time is late. Without --too-far a frame is given to
the card shortly before its time; with it at once, and one more than a second
ahead is refused or held. The queue, one, has to be of DD (docs/time.md).

Without --count one frame is sent, or with --period frames until Ctrl-C. Exit
code 1: some were not sent.

Examples:
  millrace send --at +5ms
  millrace send --at +5ms --period 1ms --count 1000 --late drop --slack 50us
  millrace send --at +5ms --period 100us --count 100 --verdicts --json")]
pub struct SendArgs {
    /// When the first frame leaves: ns of the card's clock, or from now on, such as +5ms
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = start)]
    at: Start,
    /// From one frame to the next, such as 100us
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    period: Option<u64>,
    /// What becomes of a frame that is late
    #[arg(long, value_name = "POLICY", default_value = "send")]
    late: Late,
    /// From when on a frame is late [default: 10us]
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    slack: Option<u64>,
    /// What becomes of a frame more than a second ahead
    #[arg(long, value_name = "POLICY")]
    too_far: Option<TooFar>,
    /// Print the verdict on every frame
    #[arg(long)]
    verdicts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    At(u64),
    In(u64),
}

fn start(text: &str) -> Result<Start, String> {
    match text.strip_prefix('+') {
        Some("0") => Ok(Start::In(0)),
        Some(time) => nanoseconds(time).map(Start::In),
        None => text.parse().ok().filter(|&time| time > 0).map(Start::At).ok_or_else(|| {
            "expected a time from now on, such as +5ms, or nanoseconds of the card's clock, above 0".to_owned()
        }),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Late {
    /// It is sent; its verdict is late
    Send,
    /// It is dropped
    Drop,
    /// It is sent, and the card writes into its descriptor that it was late, for programs of DD
    Mark,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TooFar {
    /// It is dropped
    Refuse,
    /// It waits
    Hold,
}

impl SendArgs {
    fn policy(&self) -> Result<LaunchPolicy, Failure> {
        let slack = u32::try_from(self.slack.unwrap_or(SLACK_DEFAULT.into()))
            .map_err(|_| Failure::Usage("--slack: at most 4s".to_owned()))?;
        let late = match self.late {
            Late::Send => LatePolicy::Send,
            Late::Drop => LatePolicy::Drop,
            Late::Mark => LatePolicy::Mark,
        };
        let far = match self.too_far {
            Some(TooFar::Hold) => FarPolicy::Hold,
            Some(TooFar::Refuse) | None => FarPolicy::Refuse,
        };
        Ok(LaunchPolicy { late, slack, far })
    }
}

/// Runs the command.
pub fn run(shared: &Shared, args: &SendArgs) -> Result<(), Failure> {
    let policy = args.policy()?;
    let session = Session::open_running(shared, "nobody receives what is sent")?;
    let &[index] = shared.queues().indices() else {
        return Err(Failure::Usage("--queue: `send` takes one queue".to_owned()));
    };
    let queue = QueueId::tx(index);
    if session.engine(queue)? != Engine::Dd {
        let text = format!("{queue} has no launch times; start the card with --engine dd");
        return Err(Failure::Usage(text));
    }
    let sizes = shared.sizes_or(64);
    let failed = || format!("cannot start queue {queue}");
    let pool = session.device.pool(2 * RING, sizes.largest() as usize).doing(failed)?;
    let mut tx = session.device.tx(index).launch(policy).open_on(&pool, RING).doing(failed)?;
    tx.keep_verdicts(2 * RING as usize);
    let clock = session.device.clock().doing(cannot_read)?;
    let first = match args.at {
        Start::At(at) => {
            let now = now(&clock)?;
            if now.saturating_sub(at) > LONG_AGO {
                note(format!("the clock of the card shows {now} ns: {at} was long ago. `--at +5ms` is from now on"));
            }
            at
        }
        Start::In(ahead) => now(&clock)?.saturating_add(ahead),
    };
    let goal = shared.count.or(args.period.is_none().then_some(1));
    let ahead = if args.too_far.is_some() { u64::MAX } else { AHEAD };
    let plan = Plan { first, period: args.period.unwrap_or(0), goal: goal.unwrap_or(u64::MAX), ahead };
    let mut sending = Sending { pool, sizes, plan, clock, random: fastrand::Rng::new(), posted: 0 };
    let mut report = Report { output: Output::new(shared.json), policy, each: args.verdicts, ..Report::new(queue) };
    sending.run(&mut tx, &mut report)?;
    report.waiting = sending.posted - report.frames();
    let ended = plan_ended(&report, goal);
    // Closed at once: what waits yet is not sent any more.
    drop(tx);
    report.print()?;
    ended
}

fn cannot_read() -> String {
    "cannot read the card's clock".to_owned()
}

/// What the card's clock shows, in ns.
fn now(clock: &Clock) -> Result<u64, Failure> {
    clock.nanoseconds().doing(cannot_read)
}

fn plan_ended(report: &Report, goal: Option<u64>) -> Result<(), Failure> {
    let unsent = report.frames() - report.sent;
    match goal {
        Some(goal) if report.frames() < goal => Err(Failure::Interrupted),
        _ if unsent > 0 => {
            Err(Failure::Found(format!("{unsent} of {} frames were not sent; the verdicts say why", report.frames())))
        }
        _ => Ok(()),
    }
}

/// Which frames leave when. Times in ns of the card's clock.
#[derive(Clone, Copy)]
struct Plan {
    first: u64,
    period: u64,
    goal: u64,
    /// How long before its time a frame is given to the card.
    ahead: u64,
}

struct Sending {
    pool: Pool,
    sizes: Sizes,
    plan: Plan,
    clock: Clock,
    random: fastrand::Rng,
    posted: u64,
}

impl Sending {
    fn run(&mut self, tx: &mut PoolTx, report: &mut Report) -> Result<(), Failure> {
        let (mut frames, mut verdicts) = (Vec::new(), Vec::new());
        while report.frames() < self.plan.goal && !stop::asked() {
            self.fill(&mut frames, tx.in_flight())?;
            tx.send(&mut frames).doing(|| "cannot send".to_owned())?;
            if tx.verdicts(&mut verdicts) == 0 {
                thread::sleep(PAUSE);
            }
            report.take(&mut verdicts)?;
        }
        // What could not be posted yet was not sent.
        self.posted -= frames.len() as u64;
        Ok(())
    }

    /// Makes the frames for which it is time, as many as there is room for.
    fn fill(&mut self, frames: &mut Vec<Buffer>, in_flight: usize) -> Result<(), Failure> {
        let until = now(&self.clock)?.saturating_add(self.plan.ahead);
        while self.posted < self.plan.goal && frames.len() + in_flight < RING as usize {
            let launch = self.plan.first.saturating_add(self.plan.period.saturating_mul(self.posted));
            if launch > until {
                break;
            }
            let Some(mut buffer) = self.pool.take() else { break };
            let mut len = [0];
            self.sizes.pick(&mut self.random, &mut len);
            buffer.set_len(len[0].into());
            structured::fill(&mut buffer, Sequence::ZERO.offset(self.posted as i64));
            buffer.set_launch(launch);
            frames.push(buffer);
            self.posted += 1;
        }
        Ok(())
    }
}

/// What became of the frames.
struct Report {
    output: Output,
    queue: QueueId,
    policy: LaunchPolicy,
    each: bool,
    reasons: [u64; Reason::ALL.len()],
    unfit: u64,
    sent: u64,
    early: u64,
    waiting: u64,
    late: Distribution,
}

/// A verdict as `--json` prints it.
#[derive(Serialize)]
struct Said {
    scheduled_ns: u64,
    actual_ns: u64,
    late_ns: u64,
    reason: &'static str,
}

impl Report {
    fn new(queue: QueueId) -> Self {
        Self {
            output: Output::new(false),
            queue,
            policy: LaunchPolicy::default(),
            each: false,
            reasons: [0; Reason::ALL.len()],
            unfit: 0,
            sent: 0,
            early: 0,
            waiting: 0,
            late: Distribution::new(),
        }
    }

    fn frames(&self) -> u64 {
        self.reasons.iter().sum::<u64>() + self.unfit
    }

    fn take(&mut self, verdicts: &mut Vec<Verdict>) -> Result<(), Failure> {
        for verdict in verdicts.drain(..) {
            let reason = verdict.reason(self.policy.slack);
            match reason {
                Some(reason) => self.reasons[reason as usize] += 1,
                None => self.unfit += 1,
            }
            if verdict.is_sent() {
                self.sent += 1;
                self.early += u64::from(verdict.actual < verdict.scheduled);
                self.late.record(verdict.lateness());
            }
            if self.each {
                self.say(&verdict, reason.map_or("too-short or too-long", Reason::name))?;
            }
        }
        Ok(())
    }

    fn say(&self, verdict: &Verdict, reason: &'static str) -> Result<(), Failure> {
        let &Verdict { scheduled: scheduled_ns, actual: actual_ns, .. } = verdict;
        let said = Said { scheduled_ns, actual_ns, late_ns: verdict.lateness(), reason };
        if self.output.is_json() {
            return Ok(self.output.object(&said)?);
        }
        let text = format!("{scheduled_ns} left or judged at {actual_ns}, {} ns late: {reason}\n", said.late_ns);
        Ok(self.output.text(&text)?)
    }

    fn print(&self) -> Result<(), Failure> {
        let row = Row::new().tag("command", "send").text("queue", self.queue).count("frames", self.frames());
        let row = row.count("sent", self.sent);
        let named = ["on_time", "late", "too_late", "too_far", "dropped"].into_iter().zip(self.reasons);
        let row = named.fold(row, |row, (name, count)| row.count(name, count));
        let row = row
            .count("unfit", self.unfit)
            .count("waiting", self.waiting)
            .count("early", self.early)
            .maybe_count("late_p50_ns", self.late.quantile(0.5))
            .maybe_count("late_p99_ns", self.late.quantile(0.99))
            .maybe_count("late_max_ns", self.late.max());
        Ok(self.output.rows("frames by their launch times", &[row])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_tool::host::Outcome;

    #[test]
    fn a_start_is_a_time_or_so_long_from_now_on() {
        assert_eq!((start("+5ms"), start("77")), (Ok(Start::In(5_000_000)), Ok(Start::At(77))));
        assert_eq!(start("+0"), Ok(Start::In(0)));
        assert!(["0", "-1", "-5ms", "5ms", "+5", ""].iter().all(|text| start(text).is_err()));
    }

    #[test]
    fn what_was_not_sent_is_a_failure_and_what_is_missing_an_interruption() {
        let mut report = Report::new(QueueId::tx(0));
        let verdict = |actual, outcome| Verdict { scheduled: 100, actual, outcome };
        report.take(&mut vec![verdict(100, Outcome::Passed), verdict(20_000, Outcome::Late)]).unwrap();
        assert!(plan_ended(&report, Some(2)).is_ok() && plan_ended(&report, None).is_ok());
        assert_eq!((report.reasons, report.early, report.late.max()), ([1, 1, 0, 0, 0], 0, Some(19_900)));
        assert!(matches!(plan_ended(&report, Some(3)), Err(Failure::Interrupted)));
        report.take(&mut vec![verdict(20_000, Outcome::TooLate)]).unwrap();
        assert!(matches!(plan_ended(&report, Some(3)), Err(Failure::Found(_))));
    }
}
