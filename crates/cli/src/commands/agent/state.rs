//! Entries, groups and meters that outlive the agent: a file of OpenFlow messages, one behind the other, as they were done. The first is an echo
//! that names the card.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use millrace::Device;
use millrace_agent::switch::Switch;
use millrace_agent::wire::{Message, first};
use millrace_driver::place;
use millrace_tool::failure::Failure;
use millrace_tool::output::note;

/// The file is written anew when it is longer than this, and twice as long as it was then.
const LONG: u64 = 8 << 20;

/// What was left by an agent before.
#[derive(Default)]
pub struct Left {
    /// Messages, in order.
    pub messages: Vec<Message>,
    /// Whether they were for the card that runs now.
    pub is_of_this_card: bool,
}

/// The file.
pub struct State {
    path: PathBuf,
    /// Whether it is for another card, too.
    lasts: bool,
    card: Vec<u8>,
    file: Option<File>,
    len: u64,
    whole: u64,
}

impl State {
    /// The file, or one beside the card's socket.
    pub fn open(asked: Option<&Path>, device: &Device) -> Result<Self, Failure> {
        let usual = || beside(&format!("millrace-agent-{}.state", device.card_pid()));
        let path = asked.map_or_else(usual, Path::to_owned);
        let card = format!("{} {}", device.name(), started(device.card_pid())).into_bytes();
        Ok(Self { path, lasts: asked.is_some(), card, file: None, len: 0, whole: 0 })
    }

    /// Where it is.
    pub fn place(&self) -> String {
        self.path.display().to_string()
    }

    /// What an agent before has left. What is cut off at the end was not done.
    pub fn left(&self) -> Left {
        let bytes = fs::read(&self.path).unwrap_or_default();
        let mut left = Left::default();
        let mut rest = &bytes[..];
        while let Ok(Some((header, message))) = first(rest) {
            rest = &rest[message.len()..];
            match Message::decode(&header, message) {
                Ok(Message::EchoRequest(card)) => left.is_of_this_card = card == self.card,
                Ok(message) => left.messages.push(message),
                Err(_) => break,
            }
        }
        if !left.is_of_this_card && !self.lasts {
            left.messages.clear();
        }
        left
    }

    /// Writes what there is, and nothing else.
    pub fn write_all(&mut self, switch: &Switch) {
        let mut bytes = Vec::new();
        Message::EchoRequest(self.card.clone()).encode(0, &mut bytes);
        for message in switch.messages() {
            message.encode(0, &mut bytes);
        }
        // A name of this process alone, and never through a link of somebody's.
        let mut new = self.path.clone().into_os_string();
        new.push(format!(".{}.new", std::process::id()));
        let written = OpenOptions::new().write(true).create_new(true).open(&new).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_data()?;
            fs::rename(&new, &self.path)?;
            Ok(file)
        });
        match written {
            Ok(file) => {
                self.file = Some(file);
                (self.len, self.whole) = (bytes.len() as u64, bytes.len() as u64);
            }
            Err(error) => {
                note(format!("entries will not outlive the agent: cannot write {}: {error}", self.place()));
                self.file = None;
            }
        }
    }

    /// Writes what was done since.
    pub fn write(&mut self, switch: &mut Switch) {
        let done = switch.take_done();
        let Some(file) = &mut self.file else { return };
        if done.is_empty() {
            return;
        }
        let mut bytes = Vec::new();
        for message in &done {
            message.encode(0, &mut bytes);
        }
        if let Err(error) = file.write_all(&bytes) {
            note(format!("entries do not outlive the agent any more: cannot write {}: {error}", self.place()));
            self.file = None;
            return;
        }
        self.len += bytes.len() as u64;
        if self.len > LONG && self.len > 2 * self.whole {
            self.write_all(switch);
        }
    }
}

/// A file beside the card's socket.
pub fn beside(name: &str) -> PathBuf {
    place::usual().with_file_name(name)
}

/// When a process was started, in ticks of the kernel: with its number, no other is meant.
fn started(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    format!("{pid} {}", behind.split_whitespace().nth(19).unwrap_or("0"))
}
