//! `millrace clients`: who is connected to a card, and ending a connection.

use clap::Args;
use millrace_abi::access::Resource;
use millrace_abi::visible::ClientInfo;
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::session::Session;

/// Options of `clients`.
#[derive(Debug, Args)]
#[command(after_help = "\
Whoever asks is in the list too. Ending a connection takes the right `admin`: its
queues stop, its memory is unmapped, its locks end, and its program is told.

Examples:
  millrace clients --device unix:/tmp/card.sock
  millrace clients --end 7 --device unix:/tmp/card.sock
  millrace clients --json")]
pub struct ClientsArgs {
    /// End the connection with this number
    #[arg(long, value_name = "ID")]
    end: Option<u64>,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &ClientsArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "nobody else is connected")?;
    if let Some(id) = args.end {
        session.device.end_client(id).doing(|| format!("cannot end connection {id}"))?;
    }
    let clients = session.device.clients().doing(|| "cannot read who is connected".to_owned())?;
    let rows: Vec<Row> = clients.iter().map(row).collect();
    Ok(Output::new(shared.json).rows("clients", &rows)?)
}

fn row(client: &ClientInfo) -> Row {
    let more = (client.open_queues as usize).saturating_sub(client.queues.len());
    let queues = client.queues.iter().map(ToString::to_string).chain((more > 0).then(|| format!("and {more} more")));
    Row::new()
        .count("id", client.id)
        .count("pid", client.pid.into())
        .text("user", &client.user)
        .list("queues", queues.collect())
        .count("memory", client.used.of(Resource::Memory))
        .count("mapped", client.used.of(Resource::Mapped))
        .count("fds", client.used.of(Resource::Fds))
        .count("requests", client.requests)
        .text("rights", &client.rights)
}
