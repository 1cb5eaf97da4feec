//! `millrace locks`: who holds which lock of a card, and ending locks.

use clap::Args;
use millrace_abi::message::Locked;
use millrace_abi::visible::LockInfo;
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Cell, Output, Row};
use millrace_tool::session::Session;

/// Options of `locks`.
#[derive(Debug, Args)]
#[command(after_help = "\
A lock is held by a connection (`client`, see `millrace clients`), or by the
driver for a queue that runs, which cannot be ended here. Ending locks takes the
right `admin`.

Examples:
  millrace locks --device unix:/tmp/card.sock
  millrace locks --end /firmware/mi_bus0/rxmac0     all locks of a component
  millrace locks --end 7                            all locks of a connection")]
pub struct LocksArgs {
    /// End the locks of the component with this path, or of the connection with this number
    #[arg(long, value_name = "PATH|ID")]
    end: Option<String>,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &LocksArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "nobody else has a lock")?;
    if let Some(text) = &args.end {
        let whose = text.parse().map_or_else(|_| Locked::Component(text.clone()), Locked::Client);
        session.device.end_locks(whose).doing(|| format!("cannot end the locks of {text}"))?;
    }
    let locks = session.device.locks().doing(|| "cannot read the locks".to_owned())?;
    let rows: Vec<Row> = locks.iter().map(row).collect();
    Ok(Output::new(shared.json).rows("locks", &rows)?)
}

fn row(lock: &LockInfo) -> Row {
    Row::new()
        .text("component", &lock.component)
        .text("features", format!("{:#x}", lock.bits))
        .count("pid", lock.pid.into())
        .maybe_count("client", lock.client)
        .cell("queue", lock.queue.map_or(Cell::Missing, |queue| Cell::Text(queue.to_string())))
}
