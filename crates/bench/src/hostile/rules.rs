//! Rules without end, on several connections.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use millrace_abi::flow::{FlowChange, FlowOptions, FlowRequest};
use millrace_abi::message::Request;
use millrace_tool::failure::Failure;
use rustix::io::Errno;

use super::attack::{Attack, cannot};
use super::peer::Peer;

/// Connections at once.
const CONNECTIONS: usize = 8;
/// Rules of one message: what fits.
const RULES: u32 = 900;
/// After so many steps a connection is left as it is, in the middle of a transaction.
const STEPS: u32 = 20;
/// What it does when it is turned away: it comes again soon.
const AGAIN: Duration = Duration::from_millis(1);

/// Transactions of all sorts, and lists.
pub struct Rules {
    path: PathBuf,
    peers: Vec<(Option<Peer>, u32)>,
}

impl Rules {
    /// Connects.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        // The first has to work, or nobody is tormented.
        let first = Peer::introduced(path).map_err(|errno| cannot("connect", errno))?;
        let peers = (1..CONNECTIONS).map(|_| (None, 0)).chain([(Some(first), 0)]).collect();
        Ok(Self { path: path.to_owned(), peers })
    }
}

impl Attack for Rules {
    fn step(&mut self) -> Result<u64, Failure> {
        let mut sent = 0;
        for (number, (place, steps)) in self.peers.iter_mut().enumerate() {
            let Some(peer) = place else {
                (*place, *steps) = (Peer::introduced(&self.path).ok(), 0);
                continue;
            };
            match burst(peer, number as u32 * STEPS + *steps) {
                Ok(count) => sent += count,
                Err(_) => *steps = STEPS,
            }
            *steps += 1;
            if *steps > STEPS {
                *place = None;
            }
        }
        if sent == 0 {
            thread::sleep(AGAIN);
        }
        Ok(sent)
    }
}

/// Sends what the card takes, and reads what has been answered.
fn burst(peer: &Peer, step: u32) -> Result<u64, Errno> {
    let options = FlowOptions::default();
    let rule = |number: u32| {
        FlowChange::Add(format!("in_port={step},nw_src=10.0.{}.{},ip,actions=drop", number >> 8, number & 255))
    };
    let rules: Vec<FlowChange> = (0..RULES).map(rule).collect();
    let wrong = FlowChange::Add("priority=1,tcp,tcp_dst=8O,actions=drop".to_owned());
    let list = |filter: &str| FlowRequest::List { filter: filter.to_owned(), version: None };
    let requests = [
        FlowRequest::Once { options, changes: rules.clone(), dry_run: false },
        FlowRequest::Watch { removed: true },
        list(""),
        FlowRequest::List { filter: String::new(), version: Some(1) },
        FlowRequest::Once { options, changes: vec![FlowChange::Delete(String::new()); 100], dry_run: false },
        FlowRequest::Events { after: 0 },
        FlowRequest::Once { options, changes: vec![rule(1), wrong], dry_run: false },
        FlowRequest::Explain { version: Some(1), port: 0, frame: vec![0xff; 9000], better: 100 },
        FlowRequest::Begin(options),
        FlowRequest::Add(rules.clone()),
        FlowRequest::Add(rules),
    ];
    peer.drain()?;
    let mut sent = 0;
    for request in requests {
        match peer.send(&Request::Flow(request), &[]) {
            Ok(()) => sent += 1,
            Err(Errno::AGAIN | Errno::INTR) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(sent)
}
