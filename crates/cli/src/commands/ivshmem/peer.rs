//! `millrace ivshmem peers`, `listen`, `ring`, `send`: a peer, in a virtual machine or on the host.

use clap::Args;
use millrace_ivshmem::{At, Endpoint, EndpointError, Event};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::stop;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// How long one sleep is at most: after it Ctrl-C is looked at.
const NAP: Duration = Duration::from_millis(100);
/// Between two attempts.
const AGAIN: Duration = Duration::from_micros(200);

/// The longest that somebody waits for a peer: a year.
const LONGEST: u64 = 365 * 86_400;

/// Where the memory is, as every one of these commands has it.
#[derive(Debug, Args)]
pub struct Place {
    /// On the host the socket of the server; in a machine pci, or pci:ADDRESS such as pci:00:04.0
    #[arg(value_name = "SOCKET|PCI")]
    at: At,
}

/// Options of `ivshmem peers`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace ivshmem peers /tmp/iv.sock
  millrace ivshmem peers pci --json")]
pub struct PeersArgs {
    #[command(flatten)]
    place: Place,
}

/// Options of `ivshmem listen`.
#[derive(Debug, Args)]
#[command(after_help = "\
On the host it is another peer, and comes again when the server does. In a machine
one program receives at a time.

Examples:
  millrace ivshmem listen /tmp/iv.sock
  millrace ivshmem listen pci --numbers 0-99 --count 3 --json")]
pub struct ListenArgs {
    #[command(flatten)]
    place: Place,
    /// Doorbells to listen for
    #[arg(long, value_name = "FIRST-LAST", default_value = "0-65535", value_parser = numbers)]
    numbers: Numbers,
}

/// Options of `ivshmem ring`.
#[derive(Debug, Args)]
#[command(after_help = "\
Numbers have 16 bits; a range rings each in its turn. None is lost: this waits while
the other one is not there, does not listen, or has no room, and until it has taken all.

Examples:
  millrace ivshmem ring pci 0 7
  millrace ivshmem ring /tmp/iv.sock 2 1 2 3 100-199")]
pub struct RingArgs {
    #[command(flatten)]
    place: Place,
    /// Whom to ring
    peer: u16,
    /// Doorbells: numbers, or ranges such as 100-199
    #[arg(required = true, value_name = "NUMBER", value_parser = numbers)]
    numbers: Vec<Numbers>,
    #[command(flatten)]
    patience: Patience,
}

/// Options of `ivshmem send`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each text is a message, of 1336 bytes at most. It ends when all were taken.

Examples:
  millrace ivshmem send pci 0 hello
  millrace ivshmem send /tmp/iv.sock 2 \"first message\" \"second message\"")]
pub struct SendArgs {
    #[command(flatten)]
    place: Place,
    /// Whom to send to
    peer: u16,
    /// What to send
    #[arg(required = true)]
    text: Vec<String>,
    #[command(flatten)]
    patience: Patience,
}

#[derive(Debug, Args)]
struct Patience {
    /// Seconds to wait for a peer that is not there, does not listen, or is slow
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=LONGEST))]
    wait: u64,
}

type Numbers = RangeInclusive<u16>;

fn numbers(text: &str) -> Result<Numbers, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err(format!("{text:?} is no doorbell; expected 0 to 65535, or a range such as 100-199")),
    }
}

fn open(place: &Place) -> Result<Endpoint, Failure> {
    Endpoint::open(&place.at).map_err(refused)
}

fn refused(error: EndpointError) -> Failure {
    Failure::Found(error.to_string())
}

/// Runs `ivshmem peers`.
pub fn peers(shared: &Shared, args: &PeersArgs) -> Result<(), Failure> {
    let endpoint = open(&args.place)?;
    let own = endpoint.id();
    let who = |id| if id == own { "this" } else { "other" };
    let rows: Vec<_> =
        endpoint.peers().iter().map(|id| Row::new().count("id", (*id).into()).text("who", who(*id))).collect();
    Ok(Output::new(shared.json).rows("peers", &rows)?)
}

/// Runs `ivshmem listen`.
pub fn listen(shared: &Shared, args: &ListenArgs) -> Result<(), Failure> {
    let output = Output::new(shared.json);
    let mut left = shared.count.unwrap_or(u64::MAX);
    let (mut endpoint, mut is_told) = (listening(args)?, false);
    while left > 0 && !stop::asked() {
        match endpoint.take() {
            Some((from, event)) => {
                left -= 1;
                tell(output, from, event)?;
            }
            None if endpoint.is_alone() || endpoint.is_cut_off() => {
                if !is_told {
                    let has_ended = "the server has ended; waiting for another";
                    note(if endpoint.is_cut_off() {
                        "the server has cut this peer off; calling again"
                    } else {
                        has_ended
                    });
                }
                is_told = true;
                match listening(args) {
                    Ok(again) => (endpoint, is_told) = (again, false),
                    // Those who are left go on meanwhile.
                    Err(_) => endpoint.wait(NAP),
                }
            }
            None => endpoint.wait(NAP),
        }
    }
    let refused = endpoint.refused();
    if refused.doorbells > 0 || refused.messages > 0 {
        note(format!(
            "others have written what is none: {} doorbells, and messages of {} peers, which are not read any more",
            refused.doorbells, refused.messages
        ));
    }
    if refused.vectors > 0 {
        note(format!(
            "{} descriptors of other peers were lost, for which there was no room: these are not woken (ulimit -n)",
            refused.vectors
        ));
    }
    if refused.unclaimed > 0 {
        note(format!("{} doorbells had numbers that nobody here listens for", refused.unclaimed));
    }
    if left > 0 && shared.count.is_some() { Err(Failure::Interrupted) } else { Ok(()) }
}

fn listening(args: &ListenArgs) -> Result<Endpoint, Failure> {
    let mut endpoint = open(&args.place)?;
    endpoint.listen(args.numbers.clone()).map_err(refused)?;
    note(format!("listening as peer {}", endpoint.id()));
    Ok(endpoint)
}

fn tell(output: Output, from: u16, event: Event) -> Result<(), Failure> {
    let row = Row::new().count("from", from.into());
    let (words, row) = match event {
        Event::Doorbell(number) => (format!("{from}: doorbell {number}"), row.count("doorbell", number.into())),
        Event::Message(bytes) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            (format!("{from}: {}", millrace_tool::output::printable(&text, &[])), row.text("message", text))
        }
    };
    if output.is_json() {
        return Ok(output.rows("", &[row])?);
    }
    Ok(output.text(&format!("{words}\n"))?)
}

/// Runs `ivshmem ring`.
pub fn ring(args: &RingArgs) -> Result<(), Failure> {
    let mut endpoint = open(&args.place)?;
    for number in args.numbers.iter().cloned().flatten() {
        insist(&args.patience, &mut endpoint, |endpoint| endpoint.ring(args.peer, number))?;
    }
    wait_until_taken(&args.patience, &mut endpoint, args.peer)
}

/// Runs `ivshmem send`.
pub fn send(args: &SendArgs) -> Result<(), Failure> {
    let mut endpoint = open(&args.place)?;
    for text in &args.text {
        insist(&args.patience, &mut endpoint, |endpoint| endpoint.send(args.peer, text.as_bytes()))?;
    }
    wait_until_taken(&args.patience, &mut endpoint, args.peer)
}

/// Waits until the peer has taken all.
fn wait_until_taken(patience: &Patience, endpoint: &mut Endpoint, peer: u16) -> Result<(), Failure> {
    let taken = |endpoint: &mut Endpoint| match endpoint.has_waiting(peer) {
        true => Err(EndpointError::Full(peer)),
        false => Ok(()),
    };
    insist(patience, endpoint, taken)
}

/// Tries until it succeeds, or there is no use, or no time left.
fn insist(
    patience: &Patience,
    endpoint: &mut Endpoint,
    mut attempt: impl FnMut(&mut Endpoint) -> Result<(), EndpointError>,
) -> Result<(), Failure> {
    let end = Instant::now() + Duration::from_secs(patience.wait);
    loop {
        match attempt(endpoint) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_retryable() && Instant::now() < end && !stop::asked() => endpoint.wait(AGAIN),
            Err(_) if stop::caught() => return Err(Failure::Interrupted),
            Err(error) => return Err(refused(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        patience: Patience,
    }

    #[test]
    fn nobody_waits_for_longer_than_there_is_time() {
        let wait =
            |seconds: &str| Command::try_parse_from(["ring", "--wait", seconds]).ok().map(|all| all.patience.wait);
        assert_eq!((wait("0"), wait("86400"), wait("18446744073709551615")), (Some(0), Some(86_400), None));
        assert!(Instant::now().checked_add(Duration::from_secs(LONGEST)).is_some());
    }
}
