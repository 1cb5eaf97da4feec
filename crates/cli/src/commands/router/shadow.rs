//! `millrace router shadow`: what comparing packets with Linux's has found.

use clap::Args;
use millrace_router::daemon::options::Share;
use millrace_router::daemon::protocol::{Answer, Request, Shadow};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};

use super::{Which, refused, strange};

/// Options of `router shadow`.
#[derive(Debug, Args)]
#[command(after_help = "\
A packet that is compared goes through Linux, and what comes out is compared byte
by byte with what its rule would have sent. One that differs ends the rule, and
both are kept in a capture.

Examples:
  millrace router shadow
  millrace router shadow --compare all
  millrace router shadow --compare 1/1024")]
pub struct ShadowArgs {
    /// Compare this share of packets from now on: off, all, or such as 1/1024
    #[arg(long, value_name = "SHARE")]
    compare: Option<Share>,
    #[command(flatten)]
    which: Which,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &ShadowArgs) -> Result<(), Failure> {
    let mut client = args.which.connect()?;
    if let Some(Share(share)) = args.compare {
        client.ask(Request::Compare(share)).map_err(|error| refused(&error))?;
    }
    let Answer::Shadow(shadow) = client.ask(Request::Shadow).map_err(|error| refused(&error))? else {
        return Err(strange());
    };
    let output = Output::new(shared.json);
    if output.is_json() {
        return Ok(output.object(&shadow)?);
    }
    output.rows("shadow", &[row(&shadow)])?;
    let lines: String = shadow.last.iter().chain(&shadow.captures).map(|line| format!("  {line}\n")).collect();
    Ok(output.text(&millrace_tool::output::printable(&lines, &['\n']))?)
}

fn row(shadow: &Shadow) -> Row {
    Row::new()
        .text("share", Share(shadow.compare))
        .count("compared", shadow.compared)
        .count("different", shadow.different)
        .count("unpaired", shadow.unpaired)
        .count("overtaken", shadow.overtaken)
}
