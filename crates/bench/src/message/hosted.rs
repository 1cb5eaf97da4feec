//! Overlap with the engine of messages in a card: a program that sends and computes on one core, and the thread of a card on the other one. The receiver
//! has said before where the message is to go, and makes no call until it is there.

use std::path::PathBuf;
use std::time::Duration;

use millrace_hosted::{Server, Start};
use millrace_message::Tag;
use millrace_message::block::Block;
use millrace_message::engine::Outcome;
use millrace_message::hosted::{Config, Ended, Endpoint, Memory, socket_of};
use millrace_tool::clock::Moment;
use millrace_tool::cores;
use rustix::time::{ClockId, clock_gettime};

use super::drive::Line;
use super::end::{PATIENCE, used};
use super::overlap::{Computing, middle, overlap};
use crate::median::median;
use crate::rig::Cores;

const TAG: Tag = Tag(1);

/// A card of this process that does nothing but messages, and two programs of it.
struct Card {
    sender: Endpoint,
    receiver: Endpoint,
    to: millrace_message::endpoint::Peer,
    _server: Server,
    folder: PathBuf,
}

impl Drop for Card {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Card {
    fn start(cores: Cores) -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("millrace-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|why| format!("cannot make {}: {why}", folder.display()))?;
        let path = folder.join("card.sock");
        let mut server = Server::listen(socket_of(&path)).map_err(|why| format!("no card: {why}"))?;
        let start = Start { cpu: cores.card, may: millrace_hosted::owner_only() };
        server.start(start).map_err(|why| format!("no card: {why}"))?;
        if let Some(app) = cores.app {
            let _ = cores::pin(app);
        }
        // It looks on, as the program of a benchmark does.
        let config = |name: Option<&str>| Config {
            name: name.map(str::to_owned),
            spin: Duration::from_millis(10),
            ..Config::default()
        };
        let open = |name| Endpoint::open(&path, config(name)).map_err(|why| why.to_string());
        let (mut sender, receiver) = (open(None)?, open(Some("receiver"))?);
        let to = sender.connect("receiver", PATIENCE).map_err(|why| why.to_string())?;
        Ok(Self { sender, receiver, to, _server: server, folder })
    }

    /// One message, with something that is computed meanwhile: how long it took, in ns, until its sender was told that it has ended.
    fn send(&mut self, [from, room]: [Block; 2], computing: Option<Computing>) -> Result<(f64, [Block; 2]), String> {
        let wanted = self.receiver.receive(None, TAG, u64::MAX, room).map_err(|why| why.to_string())?;
        // The card has heard of it.
        while self.receiver.progress().map_err(|why| why.to_string())? {}
        let begin = Moment::now();
        let sent = self.sender.send(self.to, TAG, from).map_err(|why| why.to_string())?;
        computing.iter().for_each(Computing::run);
        let sent = self.sender.wait(sent, PATIENCE).map_err(|why| why.to_string())?;
        let took = Moment::now().nanos_since(begin) as f64;
        let came = self.receiver.wait(wanted, PATIENCE).map_err(|why| why.to_string())?;
        Ok((took, [block(sent)?, block(came)?]))
    }
}

fn block(ended: Option<Ended>) -> Result<Block, String> {
    match ended {
        Some(Ended { outcome: Outcome::Sent | Outcome::Received { .. }, memory: Memory::Block(block), .. }) => {
            Ok(block)
        }
        other => Err(format!("a message ended as {:?}", other.map(|ended| ended.outcome))),
    }
}

fn own() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// How much of the transfer of a message of that size passes while its sender computes, and makes no call, in percent.
/// `None`: the cores were another's.
pub fn measure(cores: Cores, size: usize, seconds: f64) -> Result<Option<Line>, String> {
    let mut card = Card::start(cores)?;
    let room = |endpoint: &Endpoint| endpoint.allocate(size).ok_or("no block for a message");
    let mut blocks = [room(&card.sender)?, room(&card.receiver)?];
    blocks[0].write(0, &vec![5; size]).map_err(|why| why.to_string())?;
    let mut alone = Vec::new();
    for _ in 0..50 {
        let took;
        (took, blocks) = card.send(blocks, None)?;
        alone.push(took);
    }
    let alone = median(&alone).unwrap_or(f64::NAN);
    let computing = Computing::of(alone);
    let count = (seconds * 1e9 / alone / 3.0).clamp(5.0, 1e5) as u64;
    let (begin, begin_own, start, mut shares) = (used(), own(), Moment::now(), Vec::new());
    for _ in 0..count {
        let (transfer, both);
        (transfer, blocks) = card.send(blocks, None)?;
        let alone = computing.timed();
        (both, blocks) = card.send(blocks, Some(computing))?;
        shares.push(overlap(transfer, alone, both));
    }
    let (all, own, took) = ((used() - begin) as f64, (own() - begin_own) as f64, start.seconds());
    let cpu = [own / took / 1e9, (all - own) / took / 1e9];
    Ok(middle(&shares).map(|value| Line { value, cpu, copies: Some(1.0) }))
}
