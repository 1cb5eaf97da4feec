//! `millrace message`: messages between programs by name, of this host, and of others.
//!
//! - here: what can be asked for; `file`: what is received into; `talk`: what two of these commands say to each other; `side`: by which endpoint; `serve`: listen and receive; `send`,
//!   `latency`: what they are called with; `ethernet`: an interface; `table`: what messages cost here.

mod ethernet;
mod file;
mod latency;
mod send;
mod serve;
mod side;
mod table;
mod talk;

use clap::{Args, Subcommand};
use millrace_message::endpoint::{Config, Error};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;

/// Options of `message`.
#[derive(Debug, Args)]
pub struct MessageArgs {
    #[command(subcommand)]
    command: MessageCommand,
}

#[derive(Debug, Subcommand)]
enum MessageCommand {
    /// Take messages from everybody who sends, count and check them, and answer latency
    Listen(serve::ListenArgs),
    /// Take what one sender sends, into a file
    Receive(serve::ReceiveArgs),
    /// Send messages, or a file
    Send(send::SendArgs),
    /// Measure how long a message takes to somebody who listens, and back
    Latency(latency::LatencyArgs),
    /// Be one end of an Ethernet cable between two interfaces of Linux
    Ethernet(ethernet::EthernetArgs),
    /// Print what registering, copying and moving costs on this host
    Table(table::TableArgs),
    /// Say which way a message of a size goes, why, and what the others would cost
    Explain(table::ExplainArgs),
}

/// Runs the command.
pub fn run(shared: &Shared, args: &MessageArgs) -> Result<(), Failure> {
    match &args.command {
        MessageCommand::Listen(args) => serve::listen(shared, args),
        MessageCommand::Receive(args) => serve::receive(shared, args),
        MessageCommand::Send(args) => send::run(shared, args),
        MessageCommand::Latency(args) => latency::run(shared, args),
        MessageCommand::Ethernet(args) => ethernet::run(shared, args),
        MessageCommand::Table(args) => table::run(shared, args),
        MessageCommand::Explain(args) => table::explain(shared, args),
    }
}

/// How other hosts are reached.
#[derive(Debug, Args)]
struct RailArgs {
    /// Reach other hosts, and be found by them, by this card or port, such as unix:PATH or
    /// virtio-user:PATH; may be repeated, and all are used together
    #[arg(long, value_name = "CARD|PORT", value_parser = rail)]
    rail: Vec<Rail>,
    /// What this host is called by others [default: its own name]
    #[arg(long, value_name = "NAME", requires = "rail")]
    host: Option<String>,
    /// Bytes in a packet: 256 to 4096, or 8192 [default: what fits into frames of the card, 1024 by a port]
    #[arg(long, value_name = "BYTES", requires = "rail")]
    rail_mtu: Option<u16>,
}

/// A rail that was named.
type Rail = millrace_slurpoe::Config;

fn rail(spec: &str) -> Result<Rail, std::convert::Infallible> {
    Ok(millrace_message::endpoint::rail(spec))
}

impl RailArgs {
    fn config(&self) -> Config {
        let rails = self.rail.iter().map(|rail| Rail { mtu: self.rail_mtu, ..rail.clone() }).collect();
        Config { rails, host: self.host.clone(), ..Config::default() }
    }
}

/// What the library refuses.
fn refused(error: Error) -> Failure {
    Failure::Found(error.to_string())
}

/// Bytes, such as 1000, 64k, 32KiB or 16MiB.
fn bytes(text: &str) -> Result<u64, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit))).unwrap_or((text, 1));
    let found = if number == "0" { Some(0) } else { millrace_port::spec::number(number) };
    let found = found.and_then(|number| number.checked_mul(unit)).filter(|bytes| *bytes <= talk::LONGEST);
    found.ok_or_else(|| "expected a number of bytes up to 4GiB, such as 64, 10k, 32KiB or 16MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_in_two_ways() {
        for (text, size) in [("0", 0), ("64", 64), ("10k", 10_000), ("32KiB", 32 << 10), ("4GiB", 4 << 30)] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in ["", "KiB", "-1", "5GiB", "1 MiB", "99999999999GiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
