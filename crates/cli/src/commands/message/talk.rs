//! What two of these commands say to each other: all by messages, each kind with a tag of its own.
//!
//! ```text
//! sender                                  listener
//! BEGIN: largest message, what -->
//!                             <--         READY
//! DATA ... -->
//! END: messages, bytes, sum -->
//!                             <--         SEEN: messages, bytes, sum
//! ```
//!
//! With `Pings` the data are pings, one after the other, and each is sent back; one of 0 bytes is the last.

use std::time::Duration;

use millrace_message::endpoint::{Peer, Users};
use millrace_message::engine::{Outcome, RequestError};
use millrace_message::{Request, Tag};
use millrace_tool::failure::Failure;
use millrace_tool::output::note;
use millrace_tool::stop;

use super::side::{CardArgs, Ended, Side, lost};

/// The longest message.
pub const LONGEST: u64 = 4 << 30;
/// How long whoever is called may take to be there.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How long one wait is at most: after it Ctrl-C is looked at.
pub const LOOK: Duration = Duration::from_millis(50);

/// Such waits before it is said what is waited for.
const BUSY: u32 = 20;

pub const BEGIN: Tag = Tag(1);
pub const READY: Tag = Tag(2);
pub const DATA: Tag = Tag(3);
pub const END: Tag = Tag(4);
pub const SEEN: Tag = Tag(5);
pub const PING: Tag = Tag(6);
/// All bits of a tag count.
pub const EXACT: u64 = u64::MAX;

/// Bytes of what is said beside data.
pub const WORDS: usize = 24;

/// What begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Data, of which nobody reads the bytes.
    Count = 0,
    /// Data with a sum.
    Check = 1,
    /// Pings.
    Pings = 2,
}

pub fn said(words: [u64; 3]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn heard(bytes: &[u8]) -> Option<[u64; 3]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: [[u8; 8]; 3] = words.try_into().ok().filter(|_| rest.is_empty())?;
    Some(words.map(u64::from_le_bytes))
}

/// What is sent at once: more than one message, unless they are very long.
pub fn depth(size: u64) -> usize {
    ((64 << 20) / size.max(1)).clamp(1, 8) as usize
}

/// What was sent or received.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub messages: u64,
    pub bytes: u64,
    sum: crc32fast::Hasher,
}

impl Tally {
    pub fn add(&mut self, bytes: &[u8], what: What) {
        self.messages += 1;
        self.bytes += bytes.len() as u64;
        if what == What::Check {
            self.sum.update(bytes);
        }
    }

    pub fn words(&self) -> [u64; 3] {
        [self.messages, self.bytes, self.sum.clone().finalize().into()]
    }
}

/// The other one has gone.
pub fn gone(_: RequestError) -> Failure {
    Failure::Found("the other side has ended before it had everything".to_owned())
}

/// Somebody who listens, and who was told what begins.
pub struct Call {
    pub endpoint: Side,
    pub peer: Peer,
}

impl Call {
    /// Calls an endpoint, and waits until it is ready.
    pub fn begin(
        name: &str,
        (rails, card): (&super::RailArgs, &CardArgs),
        size: u64,
        what: What,
    ) -> Result<Self, Failure> {
        let pool = (depth(size) as u64 + 2).saturating_mul(size).saturating_add(1 << 20);
        let endpoint = Side::open(None, Users::Own, rails, card, pool)?;
        let name = super::serve::named(name)?;
        let peer = stop::at_once(|| endpoint.connect(&name, PATIENCE))?;
        let call = Self { endpoint, peer };
        let ready = call.post(READY)?;
        call.endpoint.send(peer, BEGIN, said([size, what as u64, 0]), None)?;
        call.wait_for_answer(ready, &name)?;
        Ok(call)
    }

    /// Waits until the other end is ready. It may be busy with somebody else for as long as that one likes.
    fn wait_for_answer(&self, ready: Request, name: &str) -> Result<(), Failure> {
        for _ in 0..BUSY {
            if self.has_ended(ready)?.is_some() {
                return Ok(());
            }
            if stop::asked() {
                return Err(Failure::Interrupted);
            }
        }
        note(format!(
            "{name} has not answered for a second: it is stopped, or answers a `millrace message latency` (one at a time, and nothing else meanwhile); waiting for it, until Ctrl-C"
        ));
        self.wait(ready).map(drop)
    }

    /// Waits for words from now on.
    pub fn post(&self, tag: Tag) -> Result<Request, Failure> {
        self.endpoint.receive(Some(self.peer), tag, EXACT, vec![0; WORDS])
    }

    /// Waits until a message has ended, well, or until Ctrl-C.
    pub fn wait(&self, request: Request) -> Result<Ended, Failure> {
        loop {
            if let Some(ended) = self.has_ended(request)? {
                return Ok(ended);
            }
            if stop::asked() {
                return Err(Failure::Interrupted);
            }
        }
    }

    /// The same, after Ctrl-C, for a while.
    pub fn wait_a_while(&self, request: Request) -> Result<Ended, Failure> {
        for _ in 0..20 {
            if let Some(ended) = self.has_ended(request)? {
                return Ok(ended);
            }
        }
        Err(Failure::Interrupted)
    }

    fn has_ended(&self, request: Request) -> Result<Option<Ended>, Failure> {
        let Some(ended) = self.endpoint.wait(request, LOOK)? else { return Ok(None) };
        match ended.outcome {
            Outcome::Sent | Outcome::Received { .. } => Ok(Some(ended)),
            Outcome::TooLong { .. } => {
                Err(Failure::Found("the other side has no room for messages of that size".to_owned()))
            }
            _ => Err(lost()),
        }
    }
}
