//! `millrace workers`: which worker of a card serves which queues, and changing it while the card runs.

use std::collections::BTreeMap;
use std::str::FromStr;

use clap::Args;
use millrace_abi::queue::{Direction, QueueId};
use millrace_abi::stats::{CardStats, WorkerStats};
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::session::Session;

use crate::commands::stats::worker_row;

/// Options of `workers`.
#[derive(Debug, Args)]
#[command(after_help = "\
A card has as many workers as queue pairs, but not more than there are cores;
`millrace card --workers N --cpu LIST` says otherwise. Queues that take turns
with nobody are chosen with `millrace card --priority QUEUES`.

What moves together: in loopback, the two queues of one index; otherwise a wire
of a port and the queues that it serves.

Examples:
  millrace workers --device unix:/tmp/card.sock
  millrace workers --move rx3=1 --move 4-7=0 --device unix:/tmp/card.sock")]
pub struct WorkersArgs {
    /// Have queues served by another worker: rx3=1, tx0-3=0 or 4-7=0
    #[arg(long = "move", value_name = "QUEUES=WORKER")]
    moves: Vec<Move>,
}

/// Queues and the worker that they go to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Move {
    direction: Option<Direction>,
    first: u32,
    last: u32,
    worker: u32,
}

impl FromStr for Move {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not QUEUES=WORKER, such as rx3=1 or 4-7=0");
        let (queues, worker) = text.split_once('=').ok_or_else(wrong)?;
        let (direction, range) = match queues.get(..2) {
            Some("rx") => (Some(Direction::Rx), &queues[2..]),
            Some("tx") => (Some(Direction::Tx), &queues[2..]),
            _ => (None, queues),
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let (first, last, worker) = (number(first)?, number(last)?, number(worker)?);
        if first > last {
            return Err(wrong());
        }
        Ok(Self { direction, first, last, worker })
    }
}

impl Move {
    fn queues(&self) -> impl Iterator<Item = QueueId> + '_ {
        (self.first..=self.last).map(|index| match self.direction {
            Some(Direction::Tx) => QueueId::tx(index),
            _ => QueueId::rx(index),
        })
    }
}

/// Runs the command.
pub fn run(shared: &Shared, args: &WorkersArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "nothing is left of a change")?;
    for wanted in &args.moves {
        for queue in wanted.queues() {
            session.device.move_queue(queue, wanted.worker).doing(|| "cannot move the queue".to_owned())?;
            // Without a direction both are meant; where one takes the other along, the second time changes nothing.
            if wanted.direction.is_none() && queue.index < session.device.tx_queues() {
                session
                    .device
                    .move_queue(QueueId::tx(queue.index), wanted.worker)
                    .doing(|| "cannot move the queue".to_owned())?;
            }
        }
    }
    let stats = session.device.stats().doing(|| "cannot read the counters".to_owned())?;
    let rows: Vec<Row> = stats.workers.iter().map(|worker| row(worker, &stats)).collect();
    Ok(Output::new(shared.json).rows("workers", &rows)?)
}

fn row(worker: &WorkerStats, stats: &CardStats) -> Row {
    let mut served: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for queue in stats.queues.iter().filter(|queue| queue.worker == worker.worker) {
        let direction = match queue.queue.direction {
            Direction::Rx => "rx",
            Direction::Tx => "tx",
        };
        served.entry(direction).or_default().push(queue.queue.index);
    }
    let ranges = served.iter().flat_map(|(direction, indices)| ranges(direction, indices)).collect();
    worker_row(worker).list("queues", ranges)
}

/// `rx0-3`, `rx7`.
fn ranges(direction: &str, indices: &[u32]) -> Vec<String> {
    let runs = indices.chunk_by(|one, next| one + 1 == *next);
    runs.map(|run| match run {
        [only] => format!("{direction}{only}"),
        run => format!("{direction}{}-{}", run[0], run[run.len() - 1]),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_understood() {
        let rx = Move { direction: Some(Direction::Rx), first: 3, last: 3, worker: 1 };
        assert_eq!("rx3=1".parse(), Ok(rx));
        let both = Move { direction: None, first: 4, last: 7, worker: 0 };
        assert_eq!("4-7=0".parse(), Ok(both.clone()));
        assert_eq!(both.queues().count(), 4);
        for wrong in ["", "rx3", "rx=1", "7-4=0", "tx1=", "1-2-3=0", "q1=0"] {
            assert!(wrong.parse::<Move>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn indices_in_a_row_are_one_range() {
        assert_eq!(ranges("rx", &[0, 1, 2, 5, 7, 8]), ["rx0-2", "rx5", "rx7-8"]);
    }
}
