//! `millrace bench launch`: how late frames with launch times leave.
//!
//! On one core, in turns: a worker of a card sends frames at their times; a thread spins on the time-stamp counter until times as
//! far apart; a thread sleeps until such times by `clock_nanosleep` and then calls `sendto`. The turns of the spin show what the
//! machine itself does to a program that only waits: on a shared one that is most of the higher percentiles. So figures are medians
//! over the turns, and beside them stands how much of its time the spin did not have.
//!
//! The worker polls while frames wait, as one that is to be exact does, and sleeps while the others have the core.
//!
//! Of the card, how late a frame is its own verdict says: what its clock showed right before the frame was handed to the port.
//! Of the sleeper, the moment at which `sendto` has returned counts.

use std::hint;
use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use clap::Args;
use millrace_tool::clock::Moment;
use millrace_tool::cores;
use millrace_tool::distribution::Distribution;
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{Buffer, Device, Pool, PoolTx, Verdict};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::progress::Steps;
use millrace_tool::stop;
use rustix::thread::ClockId;
use rustix::time::{Timespec, clock_gettime};

use crate::rig::Cores;

/// Numbers of queues whose frames wait at once.
const QUEUES: [u32; 2] = [1, 1000];
/// Frames of a turn: one of each queue where there are most.
const FRAMES: u32 = 1000;
/// From one launch time to the next, in ns.
const GAP: u64 = 20_000;
/// How long before the first launch time everything is armed, in ns.
const LEAD: u64 = 20_000_000;
/// How long the worker polls before it sleeps: longer than [`LEAD`], so that it does not while frames wait.
const POLLS: Duration = Duration::from_millis(30);
/// The spin was not running when it did not see the clock for so many ns.
const GONE: u64 = 1000;
/// Bytes of a frame.
const SIZE: usize = 64;

/// Options of `bench launch`.
#[derive(Debug, Args)]
#[command(after_help = "\
The card is one of this process and sends to nowhere (port null). Each turn is
1,000 frames, 20 us apart. Figures are medians over the turns; those with `all_`
are over all of them. `early` has to be 0. `spin_gone_percent` is how much of its
time the spin did not have: the machine took its core away.

Examples:
  millrace bench launch
  millrace bench launch --turns 100 --json")]
pub struct LaunchArgs {
    /// Turns of each kind
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    turns: u32,
}

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &LaunchArgs) -> Result<(), Failure> {
    let steps = Steps::new("launch", QUEUES.len() as u64);
    let mut rows = Vec::new();
    for queues in QUEUES {
        steps.next(format!("{queues} queues"));
        let figures = measure(cores, queues, args.turns)?;
        rows.push(figures.row(queues));
        if stop::asked() {
            return Err(Failure::Interrupted);
        }
    }
    Ok(Output::new(shared.json).rows("lateness of launches", &rows)?)
}

/// What was found for so many queues.
#[derive(Default)]
struct Figures {
    card: Turns,
    spin: Turns,
    sleep: Turns,
    early: u64,
    spun: Spun,
}

/// How late something was, turn by turn.
#[derive(Default)]
struct Turns(Vec<Distribution>);

impl Turns {
    fn count(&self) -> u64 {
        self.0.iter().map(Distribution::count).sum()
    }

    /// The median over the turns of something that each of them says.
    fn median(&self, of: impl Fn(&Distribution) -> Option<u64>) -> Option<u64> {
        let mut all: Vec<u64> = self.0.iter().filter_map(of).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    }

    /// The median of a quantile.
    fn quantile(&self, quantile: f64) -> Option<u64> {
        self.median(|turn| turn.quantile(quantile))
    }

    /// Jitter: from the 1st percentile to the 99th, in ns; the median.
    fn spread(&self) -> Option<u64> {
        self.median(|turn| Some(turn.quantile(0.99)? - turn.quantile(0.01)?))
    }

    /// A quantile over everything.
    fn overall(&self, quantile: f64) -> Option<u64> {
        let mut all = Distribution::new();
        self.0.iter().for_each(|turn| all.add(turn));
        all.quantile(quantile)
    }
}

/// How long was spun, and how long of that the spin was not running, in ns.
#[derive(Default)]
struct Spun {
    time: u64,
    gone: u64,
}

impl Figures {
    fn row(&self, queues: u32) -> Row {
        let jitter = |of: &Turns| Some(of.spread()? as f64 / self.sleep.spread()?.max(1) as f64);
        let gone = 100.0 * self.spun.gone as f64 / self.spun.time.max(1) as f64;
        Row::new()
            .tag("bench", "launch")
            .count("queues", queues.into())
            .count("frames", self.card.count())
            .maybe_count("late_p50_ns", self.card.quantile(0.5))
            .maybe_count("late_p99_ns", self.card.quantile(0.99))
            .maybe_count("spin_p50_ns", self.spin.quantile(0.5))
            .maybe_count("spin_p99_ns", self.spin.quantile(0.99))
            .count("early", self.early)
            .maybe("nanosleep_jitter_ratio", jitter(&self.card), 5)
            .maybe("spin_jitter_ratio", jitter(&self.spin), 5)
            .maybe_count("nanosleep_p50_ns", self.sleep.quantile(0.5))
            .maybe_count("nanosleep_p99_ns", self.sleep.quantile(0.99))
            .maybe_count("all_late_p99_ns", self.card.overall(0.99))
            .maybe_count("all_spin_p99_ns", self.spin.overall(0.99))
            .number("spin_gone_percent", gone, 3)
    }
}

fn measure(cores: Cores, queues: u32, turns: u32) -> Result<Figures, Failure> {
    let mut rig = Rig::new(cores, queues)?;
    let mut figures = Figures::default();
    for turn in 0..=turns {
        if stop::asked() {
            break;
        }
        // The first turn is to warm up.
        let late = rig.launch(&mut figures.early)?;
        if turn > 0 {
            figures.card.0.push(late);
        }
        // The worker sleeps soon.
        thread::sleep(POLLS + Duration::from_millis(5));
        figures.spin.0.push(on_core(cores.card, || spin(&mut figures.spun)));
        figures.sleep.0.push(on_core(cores.card, sleep).doing_io()?);
    }
    Ok(figures)
}

/// A card and queues of it, over one pool.
struct Rig {
    device: Device,
    pool: Pool,
    queues: Vec<PoolTx>,
    random: fastrand::Rng,
}

impl Rig {
    fn new(cores: Cores, queues: u32) -> Result<Self, Failure> {
        let cpu = cores.card.map_or_else(String::new, |core| format!(",cpu={core}"));
        let spin = POLLS.as_micros();
        let name = format!("embedded:rx=1,tx={queues},engine=dd,port=null,workers=1,tsu,spin={spin}{cpu}");
        let device = Device::open(&name).doing(|| format!("cannot open card {name}"))?;
        let failed = || "cannot start a queue".to_owned();
        let pool = device.pool(2 * FRAMES, SIZE).doing(failed)?;
        let ring = (2 * FRAMES / queues).next_power_of_two().max(8);
        let open = |index| {
            let mut queue = device.tx(index).open_on(&pool, ring)?;
            queue.keep_verdicts(2 * FRAMES as usize);
            Ok(queue)
        };
        let queues = (0..queues).map(open).collect::<Result<Vec<_>, _>>().doing(failed)?;
        Ok(Self { device, pool, queues, random: fastrand::Rng::with_seed(7) })
    }

    /// Arms all queues, waits until all frames have left, and says how late they were.
    fn launch(&mut self, early: &mut u64) -> Result<Distribution, Failure> {
        let failed = || "cannot send".to_owned();
        let cannot_read = || "cannot read the card's clock".to_owned();
        let clock = self.device.clock().doing(cannot_read)?;
        let begin = clock.nanoseconds().doing(cannot_read)? + LEAD;
        let mut order: Vec<usize> = (0..FRAMES as usize).map(|frame| frame % self.queues.len()).collect();
        self.random.shuffle(&mut order);
        let mut one: Vec<Buffer> = Vec::with_capacity(1);
        for (number, &queue) in (0..).zip(&order) {
            one.extend(self.pool.take());
            let Some(buffer) = one.first_mut() else { break };
            buffer.set_len(SIZE);
            // Not all at the same place within a microsecond.
            buffer.set_launch(begin + number * GAP + self.random.u64(0..GAP / 2));
            self.queues[queue].send(&mut one).doing(failed)?;
        }
        let end = begin + u64::from(FRAMES) * GAP;
        thread::sleep(Duration::from_nanos(end.saturating_sub(clock.nanoseconds().doing(cannot_read)?)));
        let (mut verdicts, waited) = (Vec::new(), Moment::now());
        while verdicts.len() < FRAMES as usize {
            self.queues.iter_mut().for_each(|queue| _ = queue.verdicts(&mut verdicts));
            if waited.seconds() > 5.0 {
                let text = format!("of {FRAMES} frames {} have a verdict", verdicts.len());
                return Err(Failure::Found(text));
            }
        }
        let mut late = Distribution::new();
        for verdict in verdicts.iter().filter(|verdict| verdict.is_sent()) {
            *early += u64::from(verdict.actual < verdict.scheduled);
            late.record(Verdict::lateness(verdict));
        }
        Ok(late)
    }
}

/// Runs something on a thread of the card's core.
fn on_core<T: Send>(core: Option<usize>, work: impl FnOnce() -> T + Send) -> T {
    let pinned = || {
        // Where that is denied, so was pinning the card.
        core.into_iter().for_each(|core| _ = cores::pin(core));
        work()
    };
    thread::scope(|scope| scope.spawn(pinned).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// A bare spin on the time-stamp counter.
fn spin(spun: &mut Spun) -> Distribution {
    let (mut late, begin, mut now) = (Distribution::new(), Moment::now(), 0);
    for number in 1..=u64::from(FRAMES) {
        let target = number * GAP;
        while now < target {
            hint::spin_loop();
            let before = now;
            now = Moment::now().nanos_since(begin);
            spun.gone += Some(now - before).filter(|&gap| gap > GONE).unwrap_or(0);
        }
        late.record(now - target);
    }
    spun.time += now;
    late
}

/// A sleep until the time, and a system call that sends.
fn sleep() -> std::io::Result<Distribution> {
    let mut late = Distribution::new();
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let to = socket.local_addr()?;
    let now = || {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    let (mut target, frame) = (now(), [0; SIZE]);
    for _ in 0..FRAMES / 10 {
        target += 10 * GAP;
        let until = Timespec { tv_sec: (target / 1_000_000_000) as i64, tv_nsec: (target % 1_000_000_000) as i64 };
        rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &until)?;
        socket.send_to(&frame, to)?;
        late.record(now().saturating_sub(target));
    }
    Ok(late)
}

/// What the system refuses, as a failure.
trait DoingIo<T> {
    fn doing_io(self) -> Result<T, Failure>;
}

impl<T> DoingIo<T> for std::io::Result<T> {
    fn doing_io(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Found(format!("cannot sleep and send: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_frame_is_early_and_all_have_verdicts() {
        let cores = Cores { app: None, card: None };
        let figures = measure(cores, 10, 1).unwrap();
        assert_eq!((figures.early, figures.card.count()), (0, u64::from(FRAMES)));
        assert_eq!((figures.spin.count(), figures.sleep.count()), (2 * u64::from(FRAMES), u64::from(FRAMES) / 5));
        assert!(figures.sleep.spread().is_some_and(|spread| spread > 0));
        assert!(figures.spun.gone <= figures.spun.time && figures.spun.time >= 2 * u64::from(FRAMES) * GAP);
    }

    #[test]
    fn a_turn_that_was_disturbed_moves_no_median() {
        let turn = |times: &[u64]| {
            let mut turn = Distribution::new();
            times.iter().for_each(|&time| turn.record(time));
            turn
        };
        let turns = Turns(vec![turn(&[100, 110]), turn(&[90, 100]), turn(&[500, 900])]);
        assert_eq!((turns.quantile(0.99), turns.spread(), turns.count()), (Some(110), Some(10), 6));
        assert_eq!((turns.overall(0.99), Turns::default().quantile(0.5)), (Some(900), None));
    }
}
