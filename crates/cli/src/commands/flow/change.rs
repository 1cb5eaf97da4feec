//! `millrace flow add`, `delete` and `replace`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use millrace::flow::{FlowChange, FlowCommitted, FlowKind};
use millrace::{ErrorCode, Transaction};
use millrace_flow::action::Action;
use millrace_flow::field::LOCAL;
use millrace_flow::language::{Item, ParseError, RuleFile, parse_filter, parse_modification};
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, note};
use millrace_tool::session::Session;
use millrace_tool::stop;
use serde::Serialize;

use crate::rules;

/// How often a command that waits looks whether it is to end.
const NAP: Duration = Duration::from_millis(50);

/// So many queues and ports that are not there are named.
const MOST_MISSING: usize = 10;

/// What all changes have in common.
#[derive(Clone, Debug, Args)]
struct Common {
    /// Change what belongs to programs and other users as well; takes the right admin
    #[arg(long)]
    everyone: bool,
    /// Only say what would change
    #[arg(long)]
    dry_run: bool,
}

/// Options of `flow add`.
#[derive(Debug, Args)]
#[command(after_help = "\
The card keeps what is added when the command ends, until somebody deletes it or
the card ends; with --while-running it goes with the command. All of it is added,
or nothing. A rule with the same table, priority and match as one that is there
takes its place. Rules are written as for `millrace flow check`; a line that begins
with { is JSON.

Examples:
  millrace flow add 'tcp,tcp_dst=80,actions=queue:1'
  millrace flow add 'group=1,rss,queues=0-3' 'ip,actions=rss:1'
  millrace flow add -f rules.txt --dry-run
  echo 'arp,actions=queue:0' | millrace flow add -
  millrace flow add 'in_port=1,actions=drop' --while-running")]
pub struct AddArgs {
    /// Rules, groups and meters; - is standard input
    #[arg(value_name = "RULE", required_unless_present = "file")]
    rules: Vec<String>,
    /// File of them; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "rules")]
    file: Option<PathBuf>,
    /// Delete them again when this command ends, which it does with Ctrl-C
    #[arg(long, conflicts_with = "dry_run")]
    while_running: bool,
    #[command(flatten)]
    common: Common,
}

/// Options of `flow delete`.
#[derive(Debug, Args)]
#[command(after_help = "\
Deletes the rules that match nothing else than what a filter matches; with --strict
the one rule with exactly this match and priority. Without any filter all. Of the
rules, those are meant that the card keeps for this user, or for root and the card's
user: with --everyone all. Groups and meters stay unless --group and --meter name
them, and miss stays: `millrace flow add miss=normal`.

Beside fields a filter has table=N, priority=N, cookie=VALUE/MASK, out_port=N.

Examples:
  millrace flow delete tcp
  millrace flow delete 'table=0,priority=100,tcp,tcp_dst=80' --strict
  millrace flow delete cookie=0x10/0xf0 out_port=2
  millrace flow delete --group 1 --meter 1")]
pub struct DeleteArgs {
    /// Which rules
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// Files of filters, one on a line; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "filters")]
    file: Option<PathBuf>,
    /// Exactly the rule with this match and priority
    #[arg(long)]
    strict: bool,
    /// Delete this RSS group too; may be repeated
    #[arg(long, value_name = "N")]
    group: Vec<u32>,
    /// Delete this meter too; may be repeated
    #[arg(long, value_name = "N")]
    meter: Vec<u32>,
    #[command(flatten)]
    common: Common,
}

/// Options of `flow modify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Gives the rules that match nothing else than what a filter matches other actions; with
--strict the one rule with exactly this match and priority. Counters and timeouts go
on, and a rule that is not there is not added. With cookie=N (without a mask) before
actions= the rules get this cookie too, as with `ovs-ofctl mod-flows`. Of the rules,
those are meant that the card keeps for this user, or for root and the card's user: with
--everyone all.

Examples:
  millrace flow modify 'tcp,actions=queue:2'
  millrace flow modify 'priority=100,tcp,tcp_dst=80,actions=drop' --strict
  millrace flow modify 'cookie=0x10/0xf0,actions=rss:1' --dry-run")]
pub struct ModifyArgs {
    /// Which rules, and their new actions
    #[arg(value_name = "FILTER,actions=...", required_unless_present = "file")]
    lines: Vec<String>,
    /// File of them, one on a line; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "lines")]
    file: Option<PathBuf>,
    /// Exactly the rule with this match and priority
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    common: Common,
}

/// Options of `flow replace`.
#[derive(Debug, Args)]
#[command(after_help = "\
Makes the file all that the card keeps for this user, or for root and the card's
user, in one transaction: rules that are there in the same words stay, with their
counters; those that have other actions are exchanged; all others go, and so do
groups and meters that nothing uses any more. What belongs to programs that run
stays. Printed is what was added (+), modified (~) and removed (-).

Examples:
  millrace flow replace rules.txt
  millrace flow replace rules.txt --dry-run
  millrace flow list | sed s/queue:1/queue:2/ | millrace flow replace -")]
pub struct ReplaceArgs {
    /// File of rules, groups and meters; - is standard input
    file: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// Runs `flow add`.
pub fn add(shared: &Shared, args: &AddArgs) -> Result<(), Failure> {
    let file = match (&args.file, &args.rules[..]) {
        (Some(path), _) => stop::at_once(|| rules::load_only(path))?,
        (None, [only]) if only == "-" => stop::at_once(|| rules::load_only("-".as_ref()))?,
        (None, lines) => {
            let wrong = |error: ParseError| Failure::Usage(ParseError { line: None, ..error }.to_string());
            RuleFile::parse(&lines.join("\n")).map_err(wrong)?
        }
    };
    let session = open(shared)?;
    say_what_is_missing(&session.device, &file)?;
    let transaction = session.device.flows().transaction();
    let transaction = if args.while_running { transaction } else { transaction.keep() };
    let lines: Vec<String> = file.items().map(ToString::to_string).collect();
    let transaction = transaction.changes(lines.iter().cloned().map(FlowChange::Add));
    carry_out(shared, &args.common, transaction, &lines)?;
    if args.while_running {
        note("until Ctrl-C");
        while !stop::asked() {
            if let Some(end) = session.device.wait_end(NAP) {
                return Err(end).doing(|| "the rules are gone".to_owned());
            }
        }
    }
    Ok(())
}

/// Runs `flow delete`.
pub fn delete(shared: &Shared, args: &DeleteArgs) -> Result<(), Failure> {
    let text = args.file.as_ref().map(|path| stop::at_once(|| rules::read(path))).transpose()?;
    let mut filters: Vec<String> = match &text {
        Some(text) => without_comments(text),
        None => args.filters.clone(),
    };
    if filters.is_empty() && text.is_none() && args.group.is_empty() && args.meter.is_empty() {
        if args.strict {
            return Err(Failure::Usage("--strict needs the rule that is meant".to_owned()));
        }
        filters.push(String::new());
    }
    for filter in &mut filters {
        if args.strict && !filter.is_empty() {
            filter.push_str(",strict");
        }
        parse_filter(filter).map_err(|wrong| Failure::Usage(wrong.to_string()))?;
    }
    let session = open(shared)?;
    let groups = args.group.iter().map(|group| FlowChange::DeleteGroup(*group));
    let meters = args.meter.iter().map(|meter| FlowChange::DeleteMeter(*meter));
    let rules = filters.iter().cloned().map(FlowChange::Delete);
    let transaction = session.device.flows().transaction().keep().changes(rules.chain(groups).chain(meters));
    let done = carry_out(shared, &args.common, transaction, &filters)?;
    let named =
        args.group.iter().map(|id| format!("group={id}")).chain(args.meter.iter().map(|id| format!("meter={id}")));
    for missing in named.filter(|name| done.omitted == 0 && !done.changed.iter().any(|changed| changed.line == *name)) {
        note(format!("there was no {}", missing.replace('=', " ")));
    }
    Ok(())
}

/// Runs `flow modify`.
pub fn modify(shared: &Shared, args: &ModifyArgs) -> Result<(), Failure> {
    let text = args.file.as_ref().map(|path| stop::at_once(|| rules::read(path))).transpose()?;
    let mut lines: Vec<String> = match &text {
        Some(text) => without_comments(text),
        None => args.lines.clone(),
    };
    for line in &mut lines {
        if args.strict {
            // It is a word of the filter, which may stand anywhere before the actions.
            *line = format!("strict,{line}");
        }
        parse_modification(line).map_err(|wrong| Failure::Usage(wrong.to_string()))?;
    }
    let session = open(shared)?;
    let changes = lines.iter().cloned().map(FlowChange::Modify);
    let transaction = session.device.flows().transaction().keep().changes(changes);
    carry_out(shared, &args.common, transaction, &lines).map(drop)
}

/// The lines of a file, without comments and empty ones.
fn without_comments(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Runs `flow replace`.
pub fn replace(shared: &Shared, args: &ReplaceArgs) -> Result<(), Failure> {
    let file = stop::at_once(|| rules::load_only(&args.file))?;
    let session = open(shared)?;
    say_what_is_missing(&session.device, &file)?;
    let lines: Vec<String> = file.items().map(ToString::to_string).collect();
    let changes = lines.iter().cloned().map(FlowChange::Add);
    let transaction = session.device.flows().transaction().keep().replace().changes(changes);
    carry_out(shared, &args.common, transaction, &lines).map(drop)
}

pub fn open(shared: &Shared) -> Result<Session<'_>, Failure> {
    Session::open_running(shared, "there are no rules to speak of")
}

/// Does a transaction, or tries it, and prints what came of it. `lines` are its changes, for what is said of them.
fn carry_out(
    shared: &Shared,
    common: &Common,
    transaction: Transaction,
    lines: &[String],
) -> Result<FlowCommitted, Failure> {
    let transaction = if common.everyone { transaction.everyone() } else { transaction };
    let done = if common.dry_run { transaction.try_out() } else { transaction.commit() };
    let done = done.map_err(|error| refused(error, lines))?;
    report(shared, &done, common.dry_run)?;
    Ok(done)
}

/// Says which queues and ports rules name that the card has not got. They may come: a rule may be there before.
fn say_what_is_missing(device: &millrace::Device, file: &RuleFile) -> Result<(), Failure> {
    let ports = device.stats().doing(|| "cannot ask for ports".to_owned())?.ports.len();
    let mut missing = BTreeSet::new();
    let actions = file.items().filter_map(|item| if let Item::Rule(rule) = item { Some(&rule.actions) } else { None });
    for action in actions.flatten() {
        match action {
            Action::Queue(queue) if u32::from(*queue) >= device.rx_queues() => {
                missing.insert(format!("queue {queue}"));
            }
            Action::Output(port) | Action::Mirror(port) | Action::Sample { port, .. }
                if *port != LOCAL && *port as usize >= ports =>
            {
                missing.insert(format!("port {port}"));
            }
            _ => {}
        }
        if missing.len() == MOST_MISSING {
            break;
        }
    }
    let actions = file.items().filter_map(|item| if let Item::Rule(rule) = item { Some(&rule.actions) } else { None });
    let (mut balances, mut spreads) = (BTreeSet::new(), BTreeSet::new());
    actions.flatten().for_each(|action| match action {
        Action::Balance(group) => _ = balances.insert(*group),
        Action::Rss(group) => _ = spreads.insert(*group),
        _ => {}
    });
    for item in file.items() {
        if let Item::Group { number, rss, .. } = item {
            if balances.contains(number) {
                let absent = rss.table.iter().filter(|port| usize::from(**port) >= ports);
                missing.extend(absent.take(MOST_MISSING).map(|port| format!("port {port}")));
            }
            // One that none of these rules uses may be for others of the card: mostly queues are meant.
            if balances.contains(number) && !spreads.contains(number) {
                continue;
            }
            let absent = rss.table.iter().filter(|queue| u32::from(**queue) >= device.rx_queues());
            missing.extend(absent.take(MOST_MISSING).map(|queue| format!("queue {queue}")));
        }
    }
    if !missing.is_empty() {
        let names: Vec<String> = missing.into_iter().collect();
        let has = format!("{} RX queues and {ports} ports", device.rx_queues());
        note(format!("the card has no {}: it has {has}, and drops what rules give to others", names.join(", ")));
    }
    Ok(())
}

/// A refusal, with the line that it is about.
fn refused(error: millrace::Error, lines: &[String]) -> Failure {
    let doing = "nothing was changed".to_owned();
    let code = if let millrace::Error::Client(refused) = &error { refused.code() } else { None };
    let text = error.to_string();
    let number = text.strip_prefix("change ").and_then(|rest| rest.split_once(": "));
    let about =
        number.and_then(|(number, rest)| Some((lines.get(number.parse::<usize>().ok()?.checked_sub(1)?)?, rest)));
    let hint = match code {
        Some(ErrorCode::Denied) if text.ends_with("somebody else's") => "; --everyone changes it all the same",
        _ => "",
    };
    match about {
        Some((line, rest)) => Failure::Found(format!("{doing}: {rest}{hint}\n    {line}")),
        None if !hint.is_empty() => Failure::Found(format!("{doing}: {text}{hint}")),
        None => Failure::Host { doing, source: Box::new(error) },
    }
}

/// What a transaction has done, as JSON.
#[derive(Serialize)]
struct Report<'a> {
    command: &'static str,
    dry_run: bool,
    #[serde(flatten)]
    done: &'a FlowCommitted,
}

fn report(shared: &Shared, done: &FlowCommitted, dry_run: bool) -> Result<(), Failure> {
    let output = Output::new(shared.json);
    output.object(&Report { command: "flow", dry_run, done })?;
    let mut text = String::new();
    for changed in &done.changed {
        let _ = writeln!(text, "{} {}", sign(changed.kind), changed.line);
    }
    if done.omitted > 0 {
        let _ = writeln!(text, "... and {} more", done.omitted);
    }
    let FlowCommitted { version, added, modified, removed, .. } = done;
    let would = if dry_run { "would be " } else { "" };
    let _ = writeln!(text, "{would}version {version}: rules added {added}, modified {modified}, removed {removed}");
    Ok(output.text(&text)?)
}

/// The sign of what has become of a rule.
pub fn sign(kind: FlowKind) -> char {
    match kind {
        FlowKind::Added => '+',
        FlowKind::Modified => '~',
        FlowKind::Removed => '-',
    }
}
