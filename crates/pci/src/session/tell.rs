//! What a keeper is told of a machine: what a message has changed, before it is answered (`keeper::parts`).

use super::Session;
use crate::handover::{hex, ports};
use crate::keeper::{MOST_TOLD, News, Part, PieceFile, PiecePart, Shared, Told, VectorPart};
use crate::memory::FileName;
use crate::wire::message::MOST_BODY;
use millrace_abi::handover::SavedQueue;
use millrace_abi::queue::QueueId;
use rustix::fd::OwnedFd;
use serde::Serialize;
use std::sync::Arc;

/// Registers of MACs that are told as one part, which has to fit into a message.
const SOME_REGISTERS: usize = 500;

/// Bytes of the MSI-X table, the same.
const SOME_BYTES: usize = 8192;
/// What stands around the text of a part.
const AROUND: usize = 256;
// With as many parts before it as there may be; a register is two numbers of ten digits.
const _: () =
    assert!(MOST_TOLD + AROUND + 2 * SOME_BYTES < MOST_BODY && MOST_TOLD + AROUND + 24 * SOME_REGISTERS < MOST_BODY);

/// What may have changed since it was told last.
#[derive(Clone, Copy, Default)]
pub(super) struct Changes {
    pub introduced: bool,
    pub configuration: bool,
    pub msix_table: bool,
    pub test_space: bool,
    pub clock: bool,
    pub ports: bool,
    pub vectors: bool,
    pub memory: bool,
    pub queues: bool,
    /// One alone.
    pub queue: Option<QueueId>,
}

impl Changes {
    /// Everything.
    pub const ALL: Self = Self { introduced: true, ports: true, vectors: true, memory: true, ..Self::RESET };

    /// Everything but the memory of the machine, the ways of its interrupts, and what is common to all machines.
    pub const RESET: Self = Self {
        introduced: false,
        configuration: true,
        msix_table: true,
        test_space: true,
        clock: true,
        ports: false,
        vectors: false,
        memory: false,
        queues: true,
        queue: None,
    };

    /// A queue may have changed.
    pub fn add_queue(&mut self, queue: QueueId) {
        match self.queue.replace(queue) {
            Some(other) if other != queue => self.queues = true,
            _ => {}
        }
    }

    /// These, and those of a reset.
    pub fn and_reset(self) -> Self {
        let Self { introduced, ports, vectors, memory, .. } = self;
        Self { introduced, ports, vectors, memory, ..Self::RESET }
    }
}

impl Session {
    /// From now on there is a keeper, which knows nothing of it yet.
    pub fn keep(&mut self) {
        self.told = Some(Told::default());
    }

    /// The keeper knows all that there is: another card has told it.
    pub fn is_known(&mut self) {
        self.changes = Changes::ALL;
        self.tell();
    }

    /// What the keeper has to be told. `None`: nothing, or there is none.
    pub fn tell(&mut self) -> Option<News> {
        let changes = core::mem::take(&mut self.changes);
        let (mut told, mut news, mut old) = (self.told.take()?, News::default(), Vec::new());
        for (has_changed, prefix, parts) in [
            (changes.introduced, "introduced", Self::introduced as fn(&Self) -> Vec<(String, Part)>),
            (changes.introduced, "doorbells", Self::doorbells_part),
            (changes.configuration, "configuration", |of| vec![bytes("configuration", of.configuration.bytes())]),
            (changes.msix_table, "msix_table.", Self::msix_table_parts),
            (changes.test_space, "test_space", |of| vec![bytes("test_space", &of.test_space)]),
            (changes.clock, "clock", |of| vec![("clock".to_owned(), Part::text(json(&of.clock)))]),
            (changes.ports, "ports.", Self::ports),
            (changes.vectors, "vector.", Self::vectors),
            (changes.memory, "file.", Self::files),
            (changes.memory, "piece.", Self::pieces),
            (changes.queues, "queue.", Self::queues),
        ] {
            if has_changed {
                told.change(prefix, parts(self), &mut news, &mut old);
            }
        }
        if let Some(queue) = changes.queue.filter(|queue| !changes.queues && self.locked.contains(queue)) {
            self.queue_part(queue).into_iter().for_each(|(key, part)| told.put(key, part, &mut news, &mut old));
        }
        // Whoever made them says how long closing takes.
        if !old.is_empty() {
            self.closer.close(old);
        }
        self.told = Some(told);
        Some(news)
    }

    fn introduced(&self) -> Vec<(String, Part)> {
        if self.introduced { vec![("introduced".to_owned(), Part::default())] } else { Vec::new() }
    }

    fn doorbells_part(&self) -> Vec<(String, Part)> {
        let fd = Some(Shared::File(self.doorbells_fd.clone()));
        vec![("doorbells".to_owned(), Part { fd, ..Part::default() })]
    }

    fn ports(&self) -> Vec<(String, Part)> {
        let registers = ports::save_some(self.function.driver.card(), self.function.share.own_ports.clone());
        let part = |(number, some): (usize, &[_])| (format!("ports.{number}"), Part::text(json(&some)));
        registers.chunks(SOME_REGISTERS).enumerate().map(part).collect()
    }

    fn vectors(&self) -> Vec<(String, Part)> {
        let part = |(number, (event, masked)): (usize, (Option<_>, bool))| {
            let fd = event.map(Shared::Event);
            let is_new = fd.is_none() && !masked;
            let part = Part { text: json(&VectorPart { masked }), whole: None, fd };
            (!is_new).then(|| (format!("vector.{number}"), part))
        };
        self.interrupts.vectors().enumerate().filter_map(part).collect()
    }

    fn files(&self) -> Vec<(String, Part)> {
        let part = |(name, file): (FileName, &Arc<OwnedFd>)| {
            (file_name(name), Part { fd: Some(Shared::File(file.clone())), ..Part::default() })
        };
        self.memory.files().map(part).collect()
    }

    fn pieces(&self) -> Vec<(String, Part)> {
        let part = |(at, last, writable, offset, file)| {
            let file = match file {
                None => PieceFile::Hole,
                Some(None) => PieceFile::NotKept,
                Some(Some(name)) => PieceFile::Named(file_name(name)),
            };
            (format!("piece.{at:x}"), Part::text(json(&PiecePart { last, writable, offset, file })))
        };
        self.memory.pieces().map(part).collect()
    }

    fn msix_table_parts(&self) -> Vec<(String, Part)> {
        let part = |(number, some): (usize, &[u8])| bytes(&format!("msix_table.{number:02}"), some);
        self.msix_table.chunks(SOME_BYTES).enumerate().map(part).collect()
    }

    fn queues(&self) -> Vec<(String, Part)> {
        self.locked.iter().filter_map(|id| self.queue_part(*id)).collect()
    }

    fn queue_part(&self, id: QueueId) -> Option<(String, Part)> {
        let whole = self.function.driver.card().describe(id)?;
        // What it counts changes all the time, and is told with what else has changed.
        let quiet = SavedQueue { counts: Vec::new(), ..whole.clone() };
        Some((format!("queue.{id}"), Part { text: json(&quiet), whole: Some(json(&whole)), fd: None }))
    }
}

fn file_name((device, inode, writable): FileName) -> String {
    format!("file.{device}.{inode}{}", if writable { ".w" } else { "" })
}

fn bytes(key: &str, bytes: &[u8]) -> (String, Part) {
    (key.to_owned(), Part::text(hex(bytes)))
}

/// None of these can fail to be text.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
