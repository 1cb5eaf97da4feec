//! `millrace flow list` and `stats`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use clap::Args;
use millrace::flow::{FlowCounts, FlowEntry, FlowOwner};
use millrace_flow::language::{Item, parse_filter};
use millrace_tool::clock::Moment;
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, is_screen};
use millrace_tool::session::Session;
use millrace_tool::stop;

use super::change::open;
use crate::commands::stats::{pause, seconds, time_of_day};

/// Which rules are meant.
#[derive(Clone, Debug, Args)]
struct Which {
    /// Which rules, such as tcp,nw_dst=10.0.0.0/8 or cookie=0x10/0xf0
    #[arg(value_name = "FILTER", default_value = "", hide_default_value = true)]
    filter: String,
    /// Only rules of this table
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..64))]
    table: Option<u8>,
    /// Exactly the rule with this match and priority
    #[arg(long)]
    strict: bool,
}

impl Which {
    fn text(&self) -> Result<String, Failure> {
        let mut filter = self.filter.trim().to_owned();
        for word in
            self.table.map(|table| format!("table={table}")).into_iter().chain(self.strict.then(|| "strict".to_owned()))
        {
            if !filter.is_empty() {
                filter.push(',');
            }
            filter.push_str(&word);
        }
        parse_filter(&filter).map_err(|wrong| Failure::Usage(wrong.to_string()))?;
        Ok(filter)
    }
}

/// Options of `flow list`.
#[derive(Debug, Args)]
#[command(after_help = "\
What is printed is a file of rules: `millrace flow add` and `replace` take it. Rules
stand table after table, the one that wins first. Without a filter groups, meters and
miss come before them. Beside fields a filter has table=N, priority=N,
cookie=VALUE/MASK, out_port=N; it means rules that match nothing else than what it
matches.

Examples:
  millrace flow list
  millrace flow list tcp --table 0
  millrace flow list --json >rules.json
  millrace flow list --at 17        as it was in version 17")]
pub struct ListArgs {
    #[command(flatten)]
    which: Which,
    /// As of this version: the last 4,096 can be had
    #[arg(long, value_name = "VERSION")]
    at: Option<u64>,
}

/// Options of `flow stats`.
#[derive(Debug, Args)]
#[command(after_help = "\
For each rule: the frames that it has matched and their bytes, how many of them did
not get where the rules said (no room, no such queue, a meter), how long it is there
and how long no frame has met it, and whose it is: the card's, another user's for whom
the card keeps it, or a program's, with which it goes. With --watch again every SECONDS,
with rates since the look before; --count is how often. Without a filter, meters with
the frames that they did not admit, and frames that met no rule, come after the rules.

Examples:
  millrace flow stats
  millrace flow stats udp --watch 5
  millrace flow stats --watch --count 10 --json")]
pub struct StatsArgs {
    #[command(flatten)]
    which: Which,
    /// Look again every SECONDS, until Ctrl-C or --count looks
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
}

/// Runs `flow list`.
pub fn list(shared: &Shared, args: &ListArgs) -> Result<(), Failure> {
    let filter = args.which.text()?;
    let session = open(shared)?;
    let output = Output::new(shared.json);
    let (_, entries) = session.device.flows().list_at(&filter, args.at).doing(|| "cannot list the rules".to_owned())?;
    if shared.json {
        for entry in &entries {
            let item = Item::parse(&entry.line)
                .map_err(|wrong| Failure::Found(format!("the card answers nonsense: {wrong}")))?;
            output.object(&item)?;
        }
        return Ok(());
    }
    Ok(output.text(&entries.iter().fold(String::new(), |text, entry| text + &entry.line + "\n"))?)
}

/// Runs `flow stats`.
pub fn stats(shared: &Shared, args: &StatsArgs) -> Result<(), Failure> {
    if args.watch.is_none() && shared.count.is_some() {
        return Err(Failure::Usage("--count says how often to look, and so needs --watch".to_owned()));
    }
    let filter = args.which.text()?;
    let session = open(shared)?;
    let mut looks = args.watch.map_or(1, |_| shared.count.unwrap_or(u64::MAX));
    let mut before: Option<Look> = None;
    loop {
        let look = Look::new(&session, &filter)?;
        look.print(shared, before.as_ref(), args.watch.is_some())?;
        before = Some(look);
        looks -= 1;
        if looks == 0 {
            return Ok(());
        }
        if stop::asked() || !pause(args.watch.unwrap_or_default()) {
            return if shared.count.is_some() { Err(Failure::Interrupted) } else { Ok(()) };
        }
    }
}

/// What rules have had at a time.
struct Look {
    at: Moment,
    version: u64,
    rules: Vec<(FlowEntry, FlowCounts)>,
    /// Meters, and frames that they did not admit.
    meters: Vec<(FlowEntry, u64)>,
    /// Frames that met no rule; not asked for with a filter.
    unmatched: Option<u64>,
}

impl Look {
    fn new(session: &Session<'_>, filter: &str) -> Result<Self, Failure> {
        let listed = session.device.flows().list_at(filter, None).doing(|| "cannot list the rules".to_owned())?;
        let unmatched = match filter {
            "" => Some(session.device.flows().info().doing(|| "cannot ask for rules".to_owned())?.unmatched),
            _ => None,
        };
        let at = Moment::now();
        let (mut rules, mut meters) = (Vec::new(), Vec::new());
        for entry in listed.1 {
            match (entry.rule, entry.metered) {
                (Some(counts), _) => rules.push((entry, counts)),
                (_, Some(dropped)) => meters.push((entry, dropped)),
                _ => {}
            }
        }
        Ok(Self { at, version: listed.0, rules, meters, unmatched })
    }

    fn print(&self, shared: &Shared, before: Option<&Look>, watched: bool) -> Result<(), Failure> {
        let output = Output::new(shared.json);
        let mut title = String::new();
        if watched && !shared.json {
            let clear = if is_screen() { "\x1b[H\x1b[2J" } else { "" };
            let _ = writeln!(title, "{clear}{}\n", time_of_day(SystemTime::now()));
        }
        output.text(&title)?;
        let earlier: HashMap<u64, FlowCounts> =
            before.iter().flat_map(|look| look.rules.iter().map(|(_, counts)| (counts.number, *counts))).collect();
        let nanos = before.map(|look| self.at.nanos_since(look.at).max(1) as f64);
        let rows: Vec<Row> = self
            .rules
            .iter()
            .map(|(entry, counts)| {
                let rates = nanos.map(|nanos| {
                    // A rule that is new has had all of it since.
                    let had = earlier.get(&counts.number).copied().unwrap_or_default();
                    let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / nanos;
                    (rate(counts.packets, had.packets) * 1e3, rate(counts.bytes, had.bytes) * 8.0)
                });
                self.row(entry, counts, rates)
            })
            .collect();
        output.rows(&format!("rules of version {}", self.version), &rows)?;
        let meter = |(entry, dropped): &(FlowEntry, u64)| {
            Row::new()
                .tag("kind", "meter")
                .count("dropped", *dropped)
                .both("owner", owner(&entry.owner), entry.owner)
                .text("meter", &entry.line)
        };
        let meters: Vec<Row> = self.meters.iter().map(meter).collect();
        if !meters.is_empty() {
            output.rows("meters", &meters)?;
        }
        if let Some(unmatched) = self.unmatched {
            output
                .rows("frames that met no rule", &[Row::new().tag("kind", "unmatched").count("packets", unmatched)])?;
        }
        Ok(())
    }

    fn row(&self, entry: &FlowEntry, counts: &FlowCounts, rates: Option<(f64, f64)>) -> Row {
        Row::new()
            .tag("kind", "rule")
            .tag("version", self.version)
            .both("number", counts.number.to_string(), counts.number)
            .count("packets", counts.packets)
            .count("bytes", counts.bytes)
            .count("lost", counts.lost)
            .maybe("mpps", rates.map(|rates| rates.0), 6)
            .maybe("gbps", rates.map(|rates| rates.1), 6)
            .number("age_s", counts.age_ns as f64 / 1e9, 1)
            .number("idle_s", counts.idle_ns as f64 / 1e9, 1)
            .both("owner", owner(&entry.owner), entry.owner)
            .text("rule", &entry.line)
    }
}

/// An owner in words.
pub fn owner(owner: &FlowOwner) -> String {
    owner.to_string()
}
