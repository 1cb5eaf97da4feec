//! `millrace soak`, hidden: a card that has programs killed on it, and its memory scribbled on, for a long time.
//!
//! Bystanders ([`bystander`]) check every frame and never may fail. Victims ([`victim`]) are killed at random moments.
//! In the second half hostile programs write random words to everything that they share with the card. At the end the
//! card has to be back where it was ([`footprint`]). No time is asserted, so that it means the same on a busy machine.

mod bystander;
mod footprint;
mod pairs;
mod probe;
mod process;
mod victim;

use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use millrace_tool::failure::Failure;
use millrace_tool::list::Queues;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::stop;

use crate::rig::{Cores, Rig};
use footprint::Footprint;
use pairs::{ENGINES, engine_of};
use probe::Probe;
use process::Process;

/// Options of `soak`.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// For at least so long, the second half with hostile programs
    #[arg(long, env = "SOAK_SECONDS", default_value_t = 3600)]
    seconds: u64,
    /// Until so many programs were killed [default: 10000 for an hour]
    #[arg(long)]
    kills: Option<u64>,
    /// Programs at a time that wait to be killed
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    victims: u32,
    /// Seed of what is random [default: from the system]
    #[arg(long)]
    seed: Option<u64>,
    /// Which part this process plays; the command starts the others itself
    #[arg(long, value_enum, default_value_t = Role::Director, hide = true)]
    role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Director,
    Bystander,
    Victim,
}

/// Pairs of each kind of program: one for each engine, or two.
const VICTIM_PAIRS: u32 = 2 * ENGINES;
const PAIRS: u32 = ENGINES + VICTIM_PAIRS + ENGINES;

/// Kills, unless `--kills` says otherwise.
const KILLS_PER_HOUR: u64 = 10_000;
/// Lifetime of a victim in milliseconds.
const LIFETIME: std::ops::Range<u64> = 1..800;
/// How long one hostile program goes on before the next takes its place, in seconds.
const HOSTILE_TURN: &str = "5";
/// Kills before the card's footprint is taken: whatever is allocated once, is by then.
const WARM_UP: u64 = 24;
/// Between two looks at everybody.
const NAP: Duration = Duration::from_millis(5);
/// Between two lines that say how far it is.
const REPORT: Duration = Duration::from_secs(10);
/// How long programs may take to begin or end, and the card to clean up.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Runs the command.
pub fn run(shared: &Shared, args: &SoakArgs) -> Result<(), Failure> {
    match args.role {
        Role::Director => direct(shared, args),
        Role::Bystander => bystander::run(shared),
        Role::Victim => victim::run(shared, args.seed.unwrap_or(1)),
    }
}

fn direct(shared: &Shared, args: &SoakArgs) -> Result<(), Failure> {
    if shared.device.is_some() {
        return Err(Failure::Usage("soak has a card of its own: leave --device out".to_owned()));
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    note(format!("seed {seed}"));
    let card = start_card(shared)?;
    let mut soak = Soak::start(&card, args, seed)?;
    soak.warm_up()?;
    let outcome = soak.go();
    let row = soak.end(outcome?)?;
    Output::new(shared.json).rows("soak", &[row])?;
    let violations = std::mem::take(&mut soak.violations);
    drop(soak);
    violations.iter().for_each(note);
    match (violations.len(), stop::asked()) {
        (0, false) => card.end(),
        (0, true) => Err(Failure::Interrupted),
        (count, _) => Err(Failure::Found(format!("{count} violations; see above"))),
    }
}

/// Queue pair `n` is served by the engine `n` modulo their number.
fn start_card(shared: &Shared) -> Result<Rig, Failure> {
    let engines: Vec<String> = (0..PAIRS).map(|pair| format!("{}@{pair}", engine_of(pair))).collect();
    let mut options = vec!["--port", "loopback", "--workers", "2", "--spin", "20"];
    options.extend(["--buffers", "256", "--ring", "65536", "--descriptors", "256"]);
    options.extend(engines.iter().flat_map(|engine| ["--engine", engine]));
    let shared = Shared { queue: Some(Queues::first(PAIRS)), engine: Vec::new(), ..shared.clone() };
    Rig::start_with(&shared, Cores { app: None, card: None }, None, &options)
}

/// Everybody who takes part.
struct Soak<'a> {
    args: &'a SoakArgs,
    card: &'a Rig,
    random: fastrand::Rng,
    bystanders: Vec<Process>,
    victims: Vec<(Process, Instant)>,
    hostile: Option<Process>,
    probe: Probe,
    before: Footprint,
    kills: u64,
    hostile_writes: u64,
    hostile_turns: u64,
    violations: Vec<String>,
}

impl<'a> Soak<'a> {
    fn start(card: &'a Rig, args: &'a SoakArgs, seed: u64) -> Result<Self, Failure> {
        let bystander = |pair: u32| {
            let process =
                Process::start(card.device(), &["soak", "--role", "bystander", "--queue", &pair.to_string()])?;
            process.hear("ready", LONGEST_WAIT)?;
            Ok(process)
        };
        Ok(Self {
            args,
            card,
            random: fastrand::Rng::with_seed(seed),
            bystanders: (0..ENGINES).map(bystander).collect::<Result<_, Failure>>()?,
            victims: Vec::new(),
            hostile: None,
            probe: Probe::start(card.device())?,
            before: Footprint::default(),
            kills: 0,
            hostile_writes: 0,
            hostile_turns: 0,
            violations: Vec::new(),
        })
    }

    /// Some kills and some hostile writes that are not counted, and the footprint after them.
    fn warm_up(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        while (self.kills < WARM_UP || self.hostile_turns == 0) && self.goes_on() && start.elapsed() < LONGEST_WAIT {
            self.kill_and_replace()?;
            self.keep_hostile()?;
            thread::sleep(NAP);
        }
        self.clear()?;
        self.before = Footprint::settled(self.card, LONGEST_WAIT)?;
        (self.kills, self.hostile_writes, self.hostile_turns) = (0, 0, 0);
        Ok(())
    }

    /// Goes on until time and kills are reached, something is wrong, or Ctrl-C; how long that was.
    fn go(&mut self) -> Result<Duration, Failure> {
        let (start, mut said) = (Instant::now(), Instant::now());
        let seconds = Duration::from_secs(self.args.seconds);
        let kills = self.args.kills.unwrap_or(self.args.seconds * KILLS_PER_HOUR / 3600);
        while (start.elapsed() < seconds || self.kills < kills) && self.goes_on() {
            self.kill_and_replace()?;
            if start.elapsed() >= seconds / 2 {
                self.keep_hostile()?;
            }
            self.look_after();
            if said.elapsed() >= REPORT {
                said = Instant::now();
                self.report(start.elapsed());
            }
            thread::sleep(NAP);
        }
        Ok(start.elapsed())
    }

    fn goes_on(&self) -> bool {
        self.violations.is_empty() && !stop::asked()
    }

    fn report(&self, elapsed: Duration) {
        let Self { kills, hostile_writes, .. } = self;
        let p99 = self.probe.times().quantile(0.99).unwrap_or(0) as f64 * 1e-6;
        let seconds = elapsed.as_secs();
        note(format!("{seconds} s: {kills} kills, {hostile_writes} hostile writes, requests p99 {p99:.2} ms"));
    }

    /// Kills the victims whose time has come, and starts others.
    fn kill_and_replace(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        let (gone, left) = std::mem::take(&mut self.victims).into_iter().partition(|(_, end)| *end <= now);
        self.victims = left;
        let gone: Vec<(Process, Instant)> = gone;
        for (victim, _) in gone {
            // One that has ended by itself was not killed.
            self.kills += u64::from(victim.kill());
        }
        while self.victims.len() < self.args.victims as usize {
            let (first, last) = (ENGINES, ENGINES + VICTIM_PAIRS - 1);
            let (queues, seed) = (format!("{first}-{last}"), self.random.u64(..).to_string());
            let arguments = ["soak", "--role", "victim", "--seed", &seed, "--queue", &queues];
            let end = Instant::now() + Duration::from_millis(self.random.u64(LIFETIME));
            self.victims.push((Process::start(self.card.device(), &arguments)?, end));
        }
        Ok(())
    }

    /// Sees to it that a hostile program is at work.
    fn keep_hostile(&mut self) -> Result<(), Failure> {
        if let Some(hostile) = &mut self.hostile
            && !hostile.has_ended()
        {
            return Ok(());
        }
        if let Some(mut hostile) = self.hostile.take() {
            self.hostile_writes += hostile.last_count("operations").unwrap_or(0);
            self.hostile_turns += 1;
        }
        let (queues, seed) = (format!("{}-{}", PAIRS - ENGINES, PAIRS - 1), self.random.u64(..).to_string());
        let arguments = ["hostile", "memory", "--seconds", HOSTILE_TURN, "--seed", &seed, "--queue", &queues];
        self.hostile = Some(Process::start(self.card.device(), &arguments)?);
        Ok(())
    }

    /// Notices a bystander that has ended, and a card that does not answer.
    fn look_after(&mut self) {
        let ended = self.bystanders.iter_mut().enumerate().filter_map(|(at, one)| one.has_ended().then_some(at));
        let ended: Vec<String> =
            ended.map(|at| format!("the bystander on {} has ended", engine_of(at as u32))).collect();
        self.violations.extend(ended);
        self.violations.extend(self.probe.trouble());
    }

    /// Ends victims and hostile programs.
    fn clear(&mut self) -> Result<(), Failure> {
        for (victim, _) in self.victims.drain(..) {
            self.kills += u64::from(victim.kill());
        }
        if let Some(mut hostile) = self.hostile.take() {
            hostile.finish(LONGEST_WAIT)?;
            self.hostile_writes += hostile.last_count("operations").unwrap_or(0);
            self.hostile_turns += 1;
        }
        Ok(())
    }

    /// Ends everything, compares, and says what was found.
    fn end(&mut self, took: Duration) -> Result<Row, Failure> {
        self.clear()?;
        // A card that does not answer is a finding, and no reason to wait.
        let after = if self.violations.is_empty() {
            let (after, leaks) = Footprint::compared(self.card, &self.before, LONGEST_WAIT)?;
            self.violations.extend(leaks);
            after
        } else {
            Footprint::default()
        };
        let (mut frames, mut lost) = (0, 0);
        for (at, mut bystander) in std::mem::take(&mut self.bystanders).into_iter().enumerate() {
            let whole = bystander.finish(LONGEST_WAIT)?;
            frames += bystander.last_count("frames").unwrap_or(0);
            lost += bystander.last_count("bad").unwrap_or(0);
            if !whole {
                self.violations.push(format!("the bystander on {} has lost something", engine_of(at as u32)));
            }
        }
        if self.hostile_turns > 0 && self.hostile_writes == 0 {
            self.violations.push("the hostile programs wrote nothing; see above".to_owned());
        }
        let times = self.probe.times();
        let millis = |quantile| times.quantile(quantile).map(|nanos| nanos as f64 * 1e-6);
        let row = Row::new()
            .tag("event", "soak")
            .number("seconds", took.as_secs_f64(), 1)
            .count("kills", self.kills)
            .count("hostile_writes", self.hostile_writes)
            .count("bystander_frames", frames)
            .count("bystander_bad", lost)
            .count("requests", times.count())
            .maybe("request_p50_ms", millis(0.5), 3)
            .maybe("request_p99_ms", millis(0.99), 3);
        Ok(self.before.beside(&after, row).count("violations", self.violations.len() as u64))
    }
}
