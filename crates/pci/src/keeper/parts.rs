//! What a card tells its keeper of a machine: parts, each with a name, a text, and perhaps a descriptor. The keeper keeps the last of each and understands none.
//!
//! ```text
//! introduced                    versions are agreed on
//! configuration, test_space, clock
//! msix_table.NN, ports.N        the table, and registers of MACs that are the machine's alone, some in each
//! doorbells                     with the file of BAR 2
//! vector.N                      MSI-X, with its event
//! file.DEVICE.INODE[.w]         of the machine's memory, with it
//! piece.ADDRESS                 of the machine's memory: where in which file
//! queue.NAME                    those that are the machine's
//! ```

use crate::handover::{SavedMachine, SavedPiece, SavedStream, SavedVector, TakenFds};
use crate::wire::message::Header;
use millrace_abi::handover::SavedQueue;
use millrace_port::Bell;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// A message of the card to its keeper, before the answer that it belongs to: parts that are new, or gone.
pub(crate) const TELL: u16 = 0x7f01;
/// The machine is to be hung up on, for the reason in the body.
pub(crate) const END: u16 = 0x7f02;
/// Bytes of parts after which another message begins: each fits into one, and so do some.
pub(crate) const MOST_TOLD: usize = 40 << 10;

/// A descriptor that others use, too.
#[derive(Clone)]
pub(crate) enum Shared {
    File(Arc<OwnedFd>),
    Event(Arc<Bell>),
}

impl Shared {
    /// `None`: it has none any more.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::File(file) => Some(file.as_fd()),
            Self::Event(bell) => bell.fd(),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => Arc::ptr_eq(one, other),
            (Self::Event(one), Self::Event(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// What is known of one thing.
#[derive(Clone, Default)]
pub(crate) struct Part {
    pub text: String,
    /// What is told in its place, of which the rest is no reason to tell it.
    pub whole: Option<String>,
    pub fd: Option<Shared>,
}

impl Part {
    pub fn text(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    fn is(&self, other: &Self) -> bool {
        let fds = match (&self.fd, &other.fd) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is(other),
            _ => false,
        };
        fds && self.text == other.text
    }
}

/// A part in a message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ToldPart {
    pub key: String,
    /// `None`: there is none any more.
    pub text: Option<String>,
    /// Whether the next descriptor is its.
    pub fd: bool,
}

/// What a card has told its keeper so far.
#[derive(Default)]
pub(crate) struct Told(BTreeMap<String, Part>);

impl Told {
    /// What is new: all parts whose names begin with `prefix` are in `now`. What they replace goes to `old`.
    pub fn change(&mut self, prefix: &str, now: Vec<(String, Part)>, news: &mut News, old: &mut Vec<Shared>) {
        let there: HashSet<&str> = now.iter().map(|(key, _)| &**key).collect();
        let known = self.0.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let gone: Vec<String> = known.map(|(key, _)| key.clone()).filter(|key| !there.contains(&**key)).collect();
        for key in gone {
            old.extend(self.0.remove(&key).and_then(|part| part.fd));
            news.add(ToldPart { key, text: None, fd: false }, None);
        }
        now.into_iter().for_each(|(key, part)| self.put(key, part, news, old));
    }

    /// One part, if it is new.
    pub fn put(&mut self, key: String, part: Part, news: &mut News, old: &mut Vec<Shared>) {
        if self.0.get(&key).is_some_and(|known| known.is(&part)) {
            return;
        }
        let text = Some(part.whole.clone().unwrap_or_else(|| part.text.clone()));
        news.add(ToldPart { key: key.clone(), text, fd: part.fd.is_some() }, part.fd.clone());
        old.extend(self.0.insert(key, part).and_then(|part| part.fd));
    }
}

/// Messages to the keeper.
#[derive(Default)]
pub(crate) struct News {
    whole: Vec<Vec<u8>>,
    parts: Vec<ToldPart>,
    len: usize,
    /// Descriptors of all of them.
    pub fds: Vec<Shared>,
}

impl News {
    fn add(&mut self, part: ToldPart, fd: Option<Shared>) {
        let len = part.key.len() + part.text.as_ref().map_or(0, String::len) + 40;
        if self.len + len > MOST_TOLD {
            self.end();
        }
        self.len += len;
        self.parts.push(part);
        self.fds.extend(fd);
    }

    fn end(&mut self) {
        if !self.parts.is_empty() {
            let body = serde_json::to_vec(&self.parts).unwrap_or_default();
            self.whole.push(Header::command(TELL).message(&body));
        }
        (self.parts, self.len) = (Vec::new(), 0);
    }

    /// All messages, one behind the other.
    pub fn bytes(&mut self) -> Vec<u8> {
        self.end();
        self.whole.concat()
    }
}

/// A machine that is given to a card: who it is, and what is known of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Given {
    pub who: String,
    pub pid: u32,
    pub uid: u32,
    /// Names, texts, and descriptors by number. Number 0 is the connection.
    pub parts: Vec<(String, String, Option<usize>)>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct VectorPart {
    pub masked: bool,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct PiecePart {
    pub last: u64,
    pub writable: bool,
    pub offset: u64,
    pub file: PieceFile,
}

/// What a piece of memory lies in.
#[derive(Serialize, Deserialize)]
pub(crate) enum PieceFile {
    /// Nothing.
    Hole,
    /// A file by its name.
    Named(String),
    /// One of too many.
    NotKept,
}

fn read<T: DeserializeOwned>(key: &str, text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("{key} of the machine is not understood: {error}"))
}

/// A machine, and registers of MACs: addresses and values.
pub(crate) type KnownMachine = (SavedMachine, Vec<(u32, u32)>);

/// The machine that the parts describe; `None`: nothing is known of it yet.
pub(crate) fn machine(given: &Given, vectors: usize, fds: &TakenFds) -> Result<Option<KnownMachine>, String> {
    if given.parts.is_empty() {
        return Ok(None);
    }
    let (mut files, mut ports) = (BTreeMap::new(), Vec::new());
    // What was on its way when the card was killed may be lost: whoever waits for it, or arms it later, looks.
    let none = SavedVector { event: None, masked: false, pending: true };
    let mut machine = SavedMachine {
        who: given.who.clone(),
        pid: given.pid,
        uid: given.uid,
        introduced: false,
        stream: SavedStream {
            socket: 0,
            came: String::new(),
            came_fds: Vec::new(),
            rest: String::new(),
            rest_fd: None,
        },
        configuration: String::new(),
        msix_table: String::new(),
        test_space: String::new(),
        clock: [0; 3],
        vectors: vec![none; vectors],
        memory: Vec::new(),
        doorbells: 0,
        queues: Vec::new(),
    };
    for (key, text, fd) in &given.parts {
        let (kind, name) = key.split_once('.').unwrap_or((key, ""));
        match kind {
            "introduced" => machine.introduced = true,
            "configuration" => machine.configuration.clone_from(text),
            "msix_table" => machine.msix_table.push_str(text),
            "test_space" => machine.test_space.clone_from(text),
            "clock" => machine.clock = read(key, text)?,
            "ports" => ports.extend(read::<Vec<(u32, u32)>>(key, text)?),
            "doorbells" => machine.doorbells = fd.ok_or("BAR 2 without a file")?,
            "vector" => {
                let VectorPart { masked } = read(key, text)?;
                let vector = name.parse().ok().and_then(|number: usize| machine.vectors.get_mut(number));
                *vector.ok_or("a vector that the function has not got")? =
                    SavedVector { event: *fd, masked, pending: true };
            }
            "file" => drop(files.insert(key.as_str(), *fd)),
            "piece" => {}
            "queue" => machine.queues.push(read::<SavedQueue>(key, text)?),
            _ => return Err(format!("{key} of the machine is not known here")),
        }
    }
    for (key, text, _) in given.parts.iter().filter(|(key, _, _)| key.starts_with("piece.")) {
        let PiecePart { last, writable, offset, file } = read(key, text)?;
        let at = u64::from_str_radix(&key["piece.".len()..], 16).map_err(|error| error.to_string())?;
        let file = match file {
            PieceFile::Hole => None,
            PieceFile::Named(name) => {
                Some(files.get(&*name).copied().flatten().ok_or("memory of a file that is missing")?)
            }
            PieceFile::NotKept => return Err("the machine has its memory in too many files".to_owned()),
        };
        file.map(|file| fds.borrow(file)).transpose()?;
        machine.memory.push(SavedPiece { at, last, writable, offset, file });
    }
    Ok(Some((machine, ports)))
}
