//! `millrace info`: what the card is, its queues, and what users have of what is limited.

use millrace_abi::access::{RESOURCES, Resource};
use millrace_abi::control::QueueState;
use millrace_abi::stats::QueueStats;
use millrace_abi::tree::Tree;
use millrace_abi::visible::UserUse;
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Cell, Output, Row};
use millrace_tool::session::Session;

use crate::commands::tree;

/// Runs the command.
pub fn run(shared: &Shared) -> Result<(), Failure> {
    let session = Session::open(shared)?;
    let blob = tree::blob(&session)?;
    let output = Output::new(shared.json);
    output.rows("card", &[card(&session, &Tree::parse(&blob)?)])?;
    let queues: Vec<Row> = session.stats()?.queues.iter().map(queue).collect();
    output.rows("queues", &queues)?;
    let users = session.device.usage().doing(|| "cannot read who has how much".to_owned())?;
    let rows: Vec<Row> = users.iter().flat_map(|user| RESOURCES.map(|resource| quota(user, resource))).collect();
    Ok(output.rows("use", &rows)?)
}

fn quota(user: &UserUse, resource: Resource) -> Row {
    Row::new()
        .tag("kind", "use")
        .text("user", &user.user)
        .text("quota", resource)
        .count("used", user.used.of(resource))
        .count("limit", user.limits.of(resource))
}

fn card(session: &Session<'_>, tree: &Tree<'_>) -> Row {
    let text = |path: &str, name: &str| {
        let found = tree.node(path).and_then(|node| node.string(name).ok());
        found.map_or(Cell::Missing, |text| Cell::Text(text.to_owned()))
    };
    let number = |path: &str, name: &str| {
        let found = tree.node(path).and_then(|node| node.u32(name).ok());
        found.map_or(Cell::Missing, |number| Cell::Count(u64::from(number)))
    };
    Row::new()
        .tag("kind", "card")
        .text("device", &session.name)
        .cell("card", text("/firmware", "card-name"))
        .cell("version", text("/firmware", "project-version"))
        .cell("serial", number("/board", "serial-number"))
        .count("rx_queues", u64::from(session.device.rx_queues()))
        .count("tx_queues", u64::from(session.device.tx_queues()))
        .cell("frame_min", number("/firmware/dma_params_rx0", "frame_size_min"))
        .cell("frame_max", number("/firmware/dma_params_rx0", "frame_size_max"))
}

fn queue(queue: &QueueStats) -> Row {
    Row::new()
        .tag("kind", "queue")
        .text("queue", queue.queue)
        .text("engine", queue.engine)
        .text("state", state(queue.state))
        .both("holders", pids(&queue.holders), &queue.holders)
}

/// Process ids in words.
pub fn pids(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// A queue's state in words.
pub fn state(state: QueueState) -> String {
    match state {
        QueueState::Stopped => "stopped".to_owned(),
        QueueState::Running => "running".to_owned(),
        QueueState::Evicted => "evicted".to_owned(),
        QueueState::Faulted(kind) => format!("faulted: {kind}"),
    }
}
