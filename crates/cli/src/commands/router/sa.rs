//! `millrace router sa`: associations and policies of a gateway of IPsec.

use std::io::Read;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use millrace_router::daemon::ipsec::{Answer, Request};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, printable};

use super::ipsec::{Gate, ask};
use super::strange;

/// Options of `router sa`.
#[derive(Debug, Args)]
pub struct SaArgs {
    #[command(subcommand)]
    command: SaCommand,
}

#[derive(Debug, Subcommand)]
enum SaCommand {
    /// List associations and policies, as `ip xfrm` prints them
    List(ListArgs),
    /// Add an association or a policy, or those of a file: all or none
    Add(AddArgs),
    /// Delete an association or a policy
    #[command(visible_alias = "delete")]
    Del(DelArgs),
    /// Delete all associations and policies, or all of one kind
    Flush(FlushArgs),
}

/// Options of `router sa list`.
#[derive(Debug, Args)]
#[command(after_help = "\
What it prints can be added again. With --keys it is a secret.

Examples:
  millrace router sa list
  millrace router sa list --keys >saved
  millrace router sa add --file saved")]
struct ListArgs {
    /// With the keys
    #[arg(long)]
    keys: bool,
    #[command(flatten)]
    gate: Gate,
}

/// Options of `router sa add`.
#[derive(Debug, Args)]
#[command(after_help = "\
The words are those behind `ip xfrm`. Everybody on this host can read the words of a
command: keys are better in a file, or on standard input.

Examples:
  millrace router sa add --file ipsec.conf
  generate-keys | millrace router sa add --file -
  millrace router sa add policy add dir out src 10.1.0.0/16 dst 10.2.0.0/16 \\
      tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel")]
struct AddArgs {
    /// File of entries in the words of `ip xfrm`; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "words", allow_hyphen_values = true)]
    file: Option<PathBuf>,
    /// An entry: state or policy, and so on
    #[arg(value_name = "WORDS", trailing_var_arg = true, allow_hyphen_values = true, required_unless_present = "file")]
    words: Vec<String>,
    #[command(flatten)]
    gate: Gate,
}

/// Options of `router sa del`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace router sa del state dst 192.0.2.2 spi 0x1000
  millrace router sa del policy dir out src 10.1.0.0/16 dst 10.2.0.0/16")]
struct DelArgs {
    /// What names it: state, dst, spi; or policy, dir, src, dst and what else there is in its selector
    #[arg(value_name = "WORDS", trailing_var_arg = true, required = true)]
    words: Vec<String>,
    #[command(flatten)]
    gate: Gate,
}

/// Options of `router sa flush`.
#[derive(Debug, Args)]
struct FlushArgs {
    /// Only associations
    #[arg(long, conflicts_with = "policies")]
    associations: bool,
    /// Only policies
    #[arg(long)]
    policies: bool,
    #[command(flatten)]
    gate: Gate,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &SaArgs) -> Result<(), Failure> {
    match &args.command {
        SaCommand::List(args) => list(shared, args),
        SaCommand::Add(args) => add(args),
        SaCommand::Del(args) => change(&args.gate, Request::Delete(args.words.join(" "))),
        SaCommand::Flush(FlushArgs { associations, policies, gate }) => {
            change(gate, Request::Flush { associations: !policies, policies: !associations })
        }
    }
}

fn change(gate: &Gate, request: Request) -> Result<(), Failure> {
    match ask(&mut gate.connect()?, request)? {
        Answer::Changed(_) => Ok(()),
        _ => Err(strange()),
    }
}

fn add(args: &AddArgs) -> Result<(), Failure> {
    /// What fits into a request of 64 KiB.
    const MOST: usize = 60_000;
    let words = match &args.file {
        None => args.words.join(" "),
        Some(path) if path.as_os_str() == "-" => {
            let mut text = String::new();
            let read = std::io::stdin().take(MOST as u64 + 1).read_to_string(&mut text);
            read.map_err(|error| Failure::Found(format!("standard input: {error}")))?;
            text
        }
        Some(path) => {
            std::fs::read_to_string(path).map_err(|error| Failure::Found(format!("{}: {error}", path.display())))?
        }
    };
    if words.len() > MOST {
        return Err(Failure::Usage(format!(
            "these are more than {MOST} bytes; add them in several files, or start the gateway with --file"
        )));
    }
    change(&args.gate, Request::Add(words))
}

fn list(shared: &Shared, args: &ListArgs) -> Result<(), Failure> {
    let (mut client, output) = (args.gate.connect()?, Output::new(shared.json));
    let mut from = Some(0);
    while let Some(at) = from {
        let Answer::List { entries, next } = ask(&mut client, Request::List { from: at, with_keys: args.keys })? else {
            return Err(strange());
        };
        for entry in &entries {
            match output.is_json() {
                true => output.object(entry)?,
                false => output.text(&printable(&entry.text, &['\n', '\t']))?,
            }
        }
        from = next.filter(|next| *next > at);
    }
    Ok(())
}
