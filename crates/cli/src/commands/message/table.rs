//! `millrace message table` and `explain`: what messages cost on this host, and which way they go.

use clap::Args;
use millrace_message::Scheme;
use millrace_message::cost::{SIZES, Table};
use millrace_message::engine::Limits;
use millrace_message::measure::{From, Kept, Wanted, keep};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Cell, Output, Row, note};

/// Options of `message table`.
#[derive(Debug, Args)]
#[command(after_help = "\
Registering memory with the RDMA engine and taking it back, copying it into shared memory, and
moving it from the memory of another process, in ns, for 4 KiB to 1 MiB; and from
which size on messages go which way. It is measured when a program of this host first opens an
endpoint, kept in $XDG_STATE_HOME/millrace/message-table (~/.local/state), and
measured again on another processor or kernel, or when copies or moves take a
quarter of the time, or four times as long.

Examples:
  millrace message table
  millrace message table --measure --json")]
pub struct TableArgs {
    /// Measure it again, whatever is kept
    #[arg(long)]
    measure: bool,
}

/// Options of `message explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
eager: in the ring, with its envelope. one-copy: through buffers of both sides, copied in and
out at the same time. zero-copy: the receiver reads the memory of the sender. The
estimates come from `millrace message table`.

Examples:
  millrace message explain 64KiB
  millrace message explain 16MiB --json")]
pub struct ExplainArgs {
    /// Bytes of the message
    #[arg(value_name = "BYTES", value_parser = super::bytes)]
    bytes: u64,
}

fn kept(wanted: Wanted) -> Result<Kept, Failure> {
    keep(&Limits::default(), wanted).map_err(|error| Failure::Found(error.to_string()))
}

/// Runs `table`.
pub fn run(shared: &Shared, args: &TableArgs) -> Result<(), Failure> {
    let Kept { table, from, path, unkept } = kept(if args.measure { Wanted::Anew } else { Wanted::All })?;
    let output = Output::new(shared.json);
    let rows: Vec<Row> = SIZES
        .iter()
        .zip(&table.rows)
        .map(|(size, row)| {
            Row::new()
                .tag("command", "message table")
                .count("size", *size)
                .number("register_ns", row.register, 0)
                .number("copy_ns", row.copy, 0)
                .number("move_ns", row.transfer, 0)
                .number("copy_gbps", *size as f64 * 8.0 / row.copy, 1)
                .number("move_gbps", *size as f64 * 8.0 / row.transfer, 1)
        })
        .collect();
    output.rows("costs of messages on this host", &rows)?;
    let ways: Vec<Row> = table
        .thresholds(&Scheme::ALL)
        .iter()
        .map(|(from, scheme)| {
            Row::new().tag("command", "message table").count("from_bytes", *from).text("way", scheme.name())
        })
        .collect();
    output.rows("ways", &ways)?;
    let small = Row::new()
        .tag("command", "message table")
        .number("doorbell_ns", table.doorbell, 1)
        .number("record_ns", table.record, 1)
        .number("eager_word_ns", table.eager_word, 3);
    output.rows("doorbell one way; what both ends do for a record; eight bytes of an eager message", &[small])?;
    let place = match (path, unkept) {
        (None, _) => "nowhere: set HOME or XDG_STATE_HOME".to_owned(),
        (Some(path), None) => path.display().to_string(),
        (Some(path), Some(error)) => format!(
            "nowhere, {} cannot be written ({error}): make its folder writable, or set XDG_STATE_HOME to another one",
            path.display()
        ),
    };
    note(match from {
        From::Measured => format!("measured now; kept: {place}"),
        From::Refreshed => {
            format!("measured again, because what was kept does not fit this host any more; kept: {place}")
        }
        From::Kept => format!("from {place}"),
    });
    Ok(())
}

/// Runs `explain`.
pub fn explain(shared: &Shared, args: &ExplainArgs) -> Result<(), Failure> {
    let table = kept(Wanted::Enough)?.table;
    let explained = table.explain(args.bytes, &Scheme::ALL);
    let chosen = explained.costs.iter().find(|cost| cost.0 == explained.chosen).and_then(|cost| cost.1);
    let rows: Vec<Row> = explained
        .costs
        .iter()
        .map(|(scheme, cost)| {
            Row::new()
                .tag("command", "message explain")
                .beside("size", Cell::Count(args.bytes))
                .text("way", scheme.name())
                .text("chosen", if *scheme == explained.chosen { "yes" } else { "no" })
                .maybe("ns", *cost, 0)
                .maybe("times", cost.zip(chosen).map(|(cost, chosen)| cost / chosen), 2)
                .text("why", why(&table, *scheme, args.bytes))
        })
        .collect();
    Ok(Output::new(shared.json).rows(&format!("a message of {} bytes", args.bytes), &rows)?)
}

fn why(table: &Table, scheme: Scheme, size: u64) -> String {
    match scheme {
        Scheme::Eager if size > table.most_eager => format!("has {} bytes at most", table.most_eager),
        Scheme::Eager => format!("a record, and {} words in the ring", size.div_ceil(8)),
        Scheme::OneCopy => {
            let parts = size.div_ceil(table.mtu).max(1);
            format!("3 records, {parts} times {} bytes in and out, which overlap", table.mtu.min(size))
        }
        Scheme::ZeroCopy => format!("a record, and system calls that read {size} bytes"),
    }
}
