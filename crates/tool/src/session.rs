//! Opening what the shared options ask for: the card, and its queues started.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use millrace_abi::name::{CardOptions, DeviceName};
use millrace_abi::queue::{Engine, QueueId};
use millrace_abi::stats::CardStats;
use millrace_driver::ClientError;
use rustix::io::Errno;

use crate::failure::{Failure, While};
use crate::host::{Device, Error, RxOptions, RxQueue, TxQueue};
use crate::options::Shared;
use crate::output::note;
use crate::sharing::SharingArgs;
use crate::{place, stop};

/// An open card and the options with which its queues are opened.
pub struct Session<'a> {
    /// The card.
    pub device: Device,
    /// Its name, completed.
    pub name: String,
    shared: &'a Shared,
    /// Which engine serves which queue: asked once, because a thousand queues are opened one by one.
    engines: OnceLock<HashMap<QueueId, Engine>>,
}

impl<'a> Session<'a> {
    /// Opens the card that `--device` names; without that the one that runs at the usual place, or one of one's own.
    pub fn open(shared: &'a Shared) -> Result<Self, Failure> {
        if shared.device.is_none() {
            match Self::find(shared)? {
                Search::Found(session) => return Ok(session),
                Search::Nobody(why) => {
                    note(format!("{why}; using one inside this program, which sends everything back"))
                }
            }
        }
        Self::open_named(shared, device_name(shared)?.to_string())
    }

    /// The same for a command that has nothing to do with a card that it has to itself, and says why.
    pub fn open_running(shared: &'a Shared, alone: &str) -> Result<Self, Failure> {
        if shared.device.is_some() {
            return Self::open(shared);
        }
        match Self::find(shared)? {
            Search::Found(session) => Ok(session),
            Search::Nobody(why) => Err(Failure::Found(format!(
                "{why}, and with one inside this program {alone}; start one with `millrace card`, or name it: --device \
                 unix:PATH, or --device embedded:OPTIONS for one inside this program all the same"
            ))),
        }
    }

    /// Looks for a card that runs at a usual place.
    fn find(shared: &'a Shared) -> Result<Search<'a>, Failure> {
        let mut denied = None;
        for path in place::candidates() {
            match Self::open_named(shared, format!("unix:{}", path.display())) {
                Ok(session) => {
                    note(format!("using the card at {} (another: --device)", session.name));
                    return Ok(Search::Found(session));
                }
                Err(failure) => match no_card(&failure) {
                    Some(NoCard::Nobody) => {}
                    Some(NoCard::Denied) => denied = Some(path),
                    None => return Err(failure),
                },
            }
        }
        Ok(Search::Nobody(match denied {
            Some(path) => format!("permission denied on the card at {} (docs/sharing.md)", path.display()),
            None => nobody(place::strangers()),
        }))
    }

    fn open_named(shared: &'a Shared, name: String) -> Result<Self, Failure> {
        let device = stop::at_once(|| Device::open(&name)).doing(|| format!("cannot open card {name}"))?;
        Ok(Self { device, name, shared, engines: OnceLock::new() })
    }

    /// Opens and starts receive queue `index` for this program alone.
    pub fn rx(&self, index: u32) -> Result<RxQueue, Failure> {
        self.rx_shared(index, SharingArgs::default())
    }

    /// Opens and starts receive queue `index`.
    pub fn rx_shared(&self, index: u32, sharing: SharingArgs) -> Result<RxQueue, Failure> {
        let queue = QueueId::rx(index);
        self.check_engine(queue)?;
        let options = self.device.rx(index).mode(self.shared.mode()).sharing(sharing.sharing());
        let options = sharing.joiners().into_iter().fold(options, RxOptions::joiners);
        options.open().and_then(|idle| idle.start()).doing(|| cannot_start(queue))
    }

    /// Opens and starts transmit queue `index`.
    pub fn tx(&self, index: u32) -> Result<TxQueue, Failure> {
        let queue = QueueId::tx(index);
        self.check_engine(queue)?;
        let options = self.device.tx(index).mode(self.shared.mode());
        let tx = options.open().and_then(|idle| idle.start()).doing(|| cannot_start(queue))?;
        self.check_size(&tx)?;
        Ok(tx)
    }

    /// What is shorter than the card sends would come back padded, and be taken for corrupt.
    fn check_size(&self, tx: &TxQueue) -> Result<(), Failure> {
        match &self.shared.size {
            Some(sizes) if (sizes.smallest() as usize) < tx.shortest() => Err(Failure::Usage(format!(
                "--size {sizes}: {} sends no frames shorter than {} bytes",
                self.name,
                tx.shortest()
            ))),
            _ => Ok(()),
        }
    }

    /// Which engine serves `queue`.
    pub fn engine(&self, queue: QueueId) -> Result<Engine, Failure> {
        if self.engines.get().is_none() {
            let engines = self.stats()?.queues.iter().map(|entry| (entry.queue, entry.engine)).collect();
            // Whoever was faster has asked the same card.
            let _ = self.engines.set(engines);
        }
        let engine = self.engines.get().and_then(|engines| engines.get(&queue)).copied();
        engine.ok_or_else(|| {
            Failure::Usage(format!("{} has no queue {queue}; `millrace info` lists its queues", self.name))
        })
    }

    /// What the card has counted.
    pub fn stats(&self) -> Result<CardStats, Failure> {
        self.device.stats().doing(|| format!("cannot read the statistics of {}", self.name))
    }

    /// The engine of a queue is the card's; a user who asks for another must not get numbers of the wrong one.
    fn check_engine(&self, queue: QueueId) -> Result<(), Failure> {
        let engine = self.engine(queue)?;
        match self.shared.engine_of(queue) {
            Some(wanted) if wanted != engine => Err(Failure::Usage(format!(
                "{queue} of {} is served by {engine}; start the card with --engine {wanted}, leave --engine out, or use a \
                 card inside this program with --device embedded",
                self.name
            ))),
            _ => Ok(()),
        }
    }
}

/// What came of looking for a card.
enum Search<'a> {
    Found(Session<'a>),
    /// In words.
    Nobody(String),
}

/// Why there is no card for us at a socket.
enum NoCard {
    Nobody,
    Denied,
}

/// There is no card at the usual places, but perhaps a socket of which one cannot tell whose card it is.
fn nobody(stranger: Option<(PathBuf, u32)>) -> String {
    match stranger {
        Some((path, uid)) => format!(
            "the socket {0} belongs to user {uid} and is not trusted (if it is to be: --device unix:{0})",
            path.display()
        ),
        None => format!("no card runs at {}", place::usual().display()),
    }
}

/// Whether a card could not be opened because there is none, or none for this user.
fn no_card(failure: &Failure) -> Option<NoCard> {
    let Failure::Host { source, .. } = failure else { return None };
    let Error::Client(ClientError::Connect { source, .. }) = &**source else { return None };
    match *source {
        Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR => Some(NoCard::Nobody),
        Errno::ACCESS | Errno::PERM => Some(NoCard::Denied),
        _ => None,
    }
}

fn cannot_start(queue: QueueId) -> String {
    format!("cannot start queue {queue}")
}

/// The name of the card to open. A card of one's own gets the engines and the queues that are asked for.
pub fn device_name(shared: &Shared) -> Result<DeviceName, Failure> {
    let bad = |error: &dyn std::error::Error| Failure::Usage(error.to_string());
    let name = match &shared.device {
        Some(name) => name.parse().map_err(|error| bad(&error))?,
        None => DeviceName::default(),
    };
    let DeviceName::Embedded(mut options) = name else { return Ok(name) };
    adapt(&mut options, shared);
    options.validate().map_err(|error| bad(&error))?;
    Ok(DeviceName::Embedded(options))
}

fn adapt(options: &mut CardOptions, shared: &Shared) {
    let needed = shared.queues().needed();
    options.rx_queues = options.rx_queues.max(needed);
    options.tx_queues = options.tx_queues.max(needed);
    options.engines.extend(shared.engine_rules());
    options.poll |= shared.poll;
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        shared: Shared,
    }

    #[test]
    fn a_socket_of_somebody_else_is_not_called_nothing() {
        let said = nobody(Some(("/tmp/card.sock".into(), 64_001)));
        assert!(said.contains("/tmp/card.sock belongs to user 64001 and is not trusted"), "{said}");
        assert!(nobody(None).contains("no card runs at"));
    }

    fn name(line: &str) -> Result<String, Failure> {
        let only = Only::try_parse_from(line.split(' ')).unwrap();
        device_name(&only.shared).map(|name| name.to_string())
    }

    #[test]
    fn a_card_of_ones_own_gets_what_is_asked_for() {
        assert_eq!(name("millrace --device embedded").unwrap(), "embedded");
        assert_eq!(
            name("millrace --device embedded:port=null --queue 0,3 --engine sze --poll").unwrap(),
            "embedded:rx=4,tx=4,engine=sze,port=null,poll"
        );
        assert_eq!(name("millrace --device unix:/x --queue 9").unwrap(), "unix:/x");
        assert!(matches!(name("millrace --device pci:1"), Err(Failure::Usage(_))));
    }
}
