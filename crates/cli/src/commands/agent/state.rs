//! Entries, groups and meters that outlive the agent: a file of OpenFlow messages, one behind the other, as they were done. The first is an echo
//! that names the card.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use millrace::Device;
use millrace_agent::switch::Switch;
use millrace_agent::wire::error::request;
use millrace_agent::wire::{Message, first};
use millrace_tool::failure::Failure;
use millrace_tool::output::note;

use super::own::{Beside, beside_usual, open_own, open_regular};

/// The file is written anew when it is longer than this, and twice as long as it was then.
const LONG: u64 = 8 << 20;

/// What was left by an agent before.
#[derive(Default)]
pub struct Left {
    /// Messages, in order.
    pub messages: Vec<Message>,
    /// Whether they were for the card that runs now.
    pub is_of_this_card: bool,
    /// Whether that agent had a first table of its own, in front of those of controllers; older versions do not say so.
    pub is_behind: Option<bool>,
    /// What entries had before their rules in the card were others, by the numbers of these.
    pub had: Had,
}

/// Packets and bytes, by the number of a rule.
pub type Had = HashMap<u64, [u64; 2]>;

/// The file.
pub struct State {
    path: PathBuf,
    /// Whether it is for another card, too.
    lasts: bool,
    /// Where agents of older versions have left it, whoever ran them.
    before: [PathBuf; 2],
    card: Vec<u8>,
    file: Option<File>,
    len: u64,
    whole: u64,
    /// Of the agent now: see [`Left`].
    of_rules: (bool, Had),
    /// It was said that it cannot be written.
    has_failed: bool,
    /// Held as long as the agent lives.
    _locks: Vec<File>,
}

impl State {
    /// The file, or one beside the card's socket.
    pub fn open(asked: Option<&Path>, device: &Device) -> Result<Self, Failure> {
        // One agent for the rules that a card keeps for a user, and one for a file.
        let user = rustix::process::geteuid().as_raw();
        let of_both = format!("millrace-agent-{}-{user}", device.card_pid());
        let beside = Beside::of(device.name());
        let usual = || beside.file(&format!("{of_both}.state"));
        let path = asked.map_or_else(usual, Path::to_owned);
        let card = format!("{} {}", device.name(), started(device.card_pid())).into_bytes();
        let mut locked = path.clone().into_os_string();
        locked.push(".lock");
        let of_card = beside.file(&format!("{of_both}.lock"));
        let locks = [of_card, locked.into()].iter().map(|place| lock(place)).collect::<Result<Vec<_>, _>>()?;
        let locks = locks.into_iter().flatten().collect();
        let before = [of_both, format!("millrace-agent-{}", device.card_pid())];
        let before = before.map(|name| beside_usual(&format!("{name}.state")));
        let lasts = asked.is_some();
        Ok(Self {
            path,
            lasts,
            before,
            card,
            file: None,
            len: 0,
            whole: 0,
            of_rules: Default::default(),
            has_failed: false,
            _locks: locks,
        })
    }

    /// Where it is.
    pub fn place(&self) -> String {
        self.path.display().to_string()
    }

    /// What an agent before has left. What is cut off at the end was not done. What cannot be read is an error: it would be lost.
    pub fn left(&self) -> Result<Left, Failure> {
        let bytes = match self.read() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => match self.read_before() {
                Some(bytes) => bytes,
                None => return Ok(Left::default()),
            },
            Err(source) => return Err(Failure::File { doing: "cannot read", path: self.path.clone(), source }),
        };
        let mut left = Left::default();
        let mut rest = &bytes[..];
        let mut is_named = bytes.is_empty();
        loop {
            let at = bytes.len() - rest.len();
            let next = match first(rest) {
                Ok(None) if is_named => break,
                Ok(None) => Err(request::BAD_LEN),
                Ok(Some((header, message))) => {
                    rest = &rest[message.len()..];
                    Message::decode(&header, message)
                }
                Err(wrong) => Err(wrong),
            };
            match next {
                Ok(Message::EchoRequest(card)) => (is_named, left.is_of_this_card) = (true, card == self.card),
                Ok(Message::EchoReply(words)) => left.learn(&words),
                Ok(message) => left.messages.push(message),
                Err(wrong) => {
                    let place = self.place();
                    return Err(Failure::Found(format!(
                        "{place} is not what an agent has left, or damaged: byte {at}: {wrong}. Move it away to begin with no entries"
                    )));
                }
            }
        }
        if !left.is_of_this_card && !self.lasts {
            left.messages.clear();
        }
        Ok(left)
    }

    /// Who names a file knows whose it is; at the usual place anybody might have put one.
    fn read(&self) -> std::io::Result<Vec<u8>> {
        let open = if self.lasts { open_regular } else { open_own };
        let mut bytes = Vec::new();
        open(OpenOptions::new().read(true), &self.path)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// What an agent of an older version has left, which had its file beside the usual socket, or no user in the name: if it was this user's.
    fn read_before(&self) -> Option<Vec<u8>> {
        let read = |before: &PathBuf| {
            let mut file = open_own(OpenOptions::new().read(true), before).ok()?;
            let is_own = file.metadata().ok()?.uid() == rustix::process::geteuid().as_raw();
            let mut bytes = Vec::new();
            is_own.then(|| file.read_to_end(&mut bytes))?.ok()?;
            note(format!("{} is not there: reading {}", self.place(), before.display()));
            Some(bytes)
        };
        self.before.iter().filter(|_| !self.lasts).find_map(read)
    }

    /// What is to be known of the card's rules by the next agent.
    pub fn know(&mut self, is_behind: bool, had: Had) {
        self.of_rules = (is_behind, had);
    }

    /// Whether what was done is not in the file, since it could not be written.
    pub fn is_behind(&self) -> bool {
        self.file.is_none()
    }

    /// Writes what there is, and nothing else.
    pub fn write_all(&mut self, switch: &Switch) {
        let mut bytes = Vec::new();
        Message::EchoRequest(self.card.clone()).encode(0, &mut bytes);
        // Versions that do not know these leave them out.
        let (is_behind, had) = &self.of_rules;
        let had = had.iter().map(|(rule, [packets, bytes])| format!("had {rule} {packets} {bytes}"));
        for words in std::iter::once(format!("behind {}", u8::from(*is_behind))).chain(had) {
            Message::EchoReply(words.into_bytes()).encode(0, &mut bytes);
        }
        for message in switch.messages() {
            message.encode(0, &mut bytes);
        }
        // A name of this process alone, and never through a link of somebody's.
        let mut new = self.path.clone().into_os_string();
        new.push(format!(".{}.new", std::process::id()));
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_data()?;
            fs::rename(&new, &self.path)?;
            Ok(file)
        });
        match written {
            Ok(file) => {
                self.file = Some(file);
                if std::mem::take(&mut self.has_failed) {
                    note(format!("{} is written again: entries outlive the agent", self.place()));
                }
                (self.len, self.whole) = (bytes.len() as u64, bytes.len() as u64);
            }
            Err(error) => {
                // Tried again now and then: by its name it is to be free.
                let _ = fs::remove_file(&new);
                self.fail(&error);
            }
        }
    }

    fn fail(&mut self, error: &std::io::Error) {
        self.file = None;
        if !std::mem::replace(&mut self.has_failed, true) {
            let place = self.place();
            note(format!(
                "entries do not outlive the agent until {place} can be written, which is tried twice a second: {error}"
            ));
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
            self.fail(&error);
            return;
        }
        self.len += bytes.len() as u64;
        if self.len > LONG && self.len > 2 * self.whole {
            self.write_all(switch);
        }
    }
}

impl Left {
    /// What a line says that is no message of a controller.
    fn learn(&mut self, words: &[u8]) {
        let words = String::from_utf8_lossy(words);
        let mut words = words.split(' ');
        let kind = words.next();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        match (kind, &numbers[..]) {
            (Some("behind"), [is_behind]) => self.is_behind = Some(*is_behind > 0),
            (Some("had"), [rule, packets, bytes]) => drop(self.had.insert(*rule, [*packets, *bytes])),
            _ => {}
        }
    }
}

/// Takes a lock, which ends with the process. `None`: there is no place for it, or it is somebody else's, so that nobody can be kept out.
fn lock(place: &Path) -> Result<Option<File>, Failure> {
    let file = match open_own(OpenOptions::new().write(true).create(true).truncate(false).mode(0o600), place) {
        Ok(file) => file,
        Err(error) => {
            note(format!("a second agent would not be noticed: {}: {error}", place.display()));
            return Ok(None);
        }
    };
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(_) => Err(Failure::Found(format!(
            "an agent runs already for this card and user, or with this state: it holds {}",
            place.display()
        ))),
    }
}

/// When a process was started, in ticks of the kernel: with its number, no other is meant.
fn started(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    format!("{pid} {}", behind.split_whitespace().nth(19).unwrap_or("0"))
}
