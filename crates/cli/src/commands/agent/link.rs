//! One connection with a controller: bytes in, bytes out, and how long each may take.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use millrace_agent::wire::message::kind;
use millrace_agent::wire::{Header, LONGEST, Message, first};

use super::stream::{Stream, is_later};

/// Above so many bytes that a controller has not read, nothing is told that it has not asked for.
const ENOUGH: usize = 1 << 20;
/// Above so many, nothing is read from it.
const FULL: usize = 4 << 20;
/// How long a hello, a message of which the first byte is there, and bytes that are not read may take.
const HELLO: Duration = Duration::from_secs(10);
const MESSAGE: Duration = Duration::from_secs(30);
const STALL: Duration = Duration::from_secs(30);

/// A connection.
pub struct Link {
    stream: Stream,
    /// Who is at the other end.
    pub peer: SocketAddr,
    /// The `--connect` that it came of.
    pub dialled: Option<usize>,
    /// Whether the connection is there.
    pub connected: bool,
    input: Vec<u8>,
    /// Bytes of `input` that are done with.
    done: usize,
    output: Vec<u8>,
    written: usize,
    /// Since when.
    pub since: Instant,
    heard: Instant,
    partial: Option<Instant>,
    stalled: Option<Instant>,
    probed: bool,
    /// It has said hello.
    pub greeted: bool,
    /// Nothing more comes from it, and why: it ends when what has come is done with.
    pub closing: Option<String>,
    /// It takes nothing more.
    mute: bool,
    /// It ends when what is there for it is written.
    pub ending: bool,
    /// Messages that were left out since it does not read.
    pub lost: u64,
    /// Messages from it, and to it.
    pub messages: [u64; 2],
}

impl Link {
    /// A connection that is there, or on its way.
    pub fn new(stream: Stream, peer: SocketAddr, dialled: Option<usize>, now: Instant) -> Self {
        Self {
            stream,
            peer,
            dialled,
            connected: dialled.is_none(),
            input: Vec::new(),
            done: 0,
            output: Vec::new(),
            written: 0,
            since: now,
            heard: now,
            partial: None,
            stalled: None,
            probed: false,
            greeted: false,
            closing: None,
            mute: false,
            ending: false,
            lost: 0,
            messages: [0; 2],
        }
    }

    /// What to wait for.
    pub fn socket(&self) -> &TcpStream {
        self.stream.socket()
    }

    /// Whether TLS has not begun yet.
    pub fn is_handshaking(&self) -> bool {
        self.stream.is_handshaking()
    }

    /// Whether something can be read, and whether something is to be written.
    pub fn interest(&self) -> (bool, bool) {
        (self.connected && self.is_read(), !self.connected || self.unwritten() > 0 || self.stream.wants_write())
    }

    /// Bytes that it has not read yet.
    pub fn unwritten(&self) -> usize {
        self.output.len() - self.written
    }

    /// Whether something is read from it: not as long as it does not read, and not behind its end.
    fn is_read(&self) -> bool {
        self.closing.is_none() && !self.ending && self.unwritten() < FULL
    }

    /// It takes nothing more, and says nothing more; what has come counts.
    pub fn close(&mut self, why: String) {
        self.mute = true;
        self.output.clear();
        self.written = 0;
        self.closing.get_or_insert(why);
    }

    /// Whether it has ended, and all that came before is done with.
    pub fn is_over(&self) -> bool {
        self.closing.is_some() && (self.ending || self.unwritten() < FULL) && !self.has_message()
    }

    /// Whether a whole message waits.
    pub fn has_message(&self) -> bool {
        !self.ending && self.unwritten() < FULL && !matches!(first(&self.input[self.done..]), Ok(None))
    }

    /// Reads once. An error is the end.
    pub fn read(&mut self, now: Instant) -> io::Result<()> {
        if self.input.len() - self.done > LONGEST {
            return Ok(());
        }
        self.input.drain(..std::mem::take(&mut self.done));
        let begin = self.input.len();
        let goes_on = self.stream.read(&mut self.input)?;
        if self.input.len() > begin {
            (self.heard, self.probed) = (now, false);
        }
        if goes_on { Ok(()) } else { Err(io::Error::new(ErrorKind::UnexpectedEof, "it has closed the connection")) }
    }

    /// The next whole message.
    pub fn next(&mut self, now: Instant) -> Option<(Header, Vec<u8>)> {
        if self.ending || self.unwritten() >= FULL {
            return None;
        }
        match first(&self.input[self.done..]) {
            Ok(Some((header, bytes))) => {
                let bytes = bytes.to_vec();
                self.done += bytes.len();
                self.partial = None;
                self.messages[0] += 1;
                self.greeted |= header.kind == kind::HELLO;
                Some((header, bytes))
            }
            Ok(None) => {
                if self.input.len() > self.done && self.partial.is_none() {
                    self.partial = Some(now);
                }
                None
            }
            // Nobody knows where the next one begins.
            Err(_) => {
                self.ending = true;
                None
            }
        }
    }

    /// A message for it. What it has not asked for is left out while it does not read.
    pub fn say(&mut self, xid: u32, message: &Message) {
        if self.mute {
            return;
        }
        let unasked = matches!(message.kind(), kind::PACKET_IN | kind::PORT_STATUS | kind::FLOW_REMOVED);
        if unasked && self.unwritten() > ENOUGH {
            self.lost += 1;
            return;
        }
        // Nothing that the switch says is longer than a message; if it were, nothing behind it could be read.
        match message.encode(xid, &mut self.output) {
            true => self.messages[1] += 1,
            false => self.lost += 1,
        }
    }

    /// Writes what it takes.
    pub fn write(&mut self, now: Instant) -> io::Result<()> {
        if self.mute {
            return Ok(());
        }
        self.stream.flush()?;
        while self.unwritten() > 0 {
            match self.stream.write(&self.output[self.written..]) {
                Ok(len) => {
                    self.written += len;
                    self.stalled = None;
                }
                Err(error) if is_later(&error) => {
                    self.stalled.get_or_insert(now);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if self.unwritten() == 0 {
            self.output.clear();
            self.written = 0;
        } else if self.written > FULL {
            self.output.drain(..std::mem::take(&mut self.written));
        }
        Ok(())
    }

    /// Whether everything is written.
    pub fn is_empty(&self) -> bool {
        self.unwritten() == 0 && !self.stream.wants_write()
    }

    /// Asks whether it is still there, if it has been quiet for long; why it ends, if it has been too long.
    pub fn look(&mut self, now: Instant, probe: Duration) -> Option<&'static str> {
        let over = |since: Instant, most: Duration| now.saturating_duration_since(since) > most;
        if !self.connected {
            return over(self.since, HELLO).then_some("it does not answer");
        }
        if !self.greeted && over(self.since, HELLO) {
            return Some("it says no hello");
        }
        if self.stalled.is_some_and(|since| over(since, STALL)) {
            return Some("it does not read what it is told");
        }
        if self.connected && !self.is_read() {
            // It may have answered: nobody has looked. Whether it reads is looked at above.
            (self.heard, self.probed, self.partial) = (now, false, None);
            return None;
        }
        if over(self.heard, probe * 2) {
            return Some("it does not answer");
        }
        if self.partial.is_some_and(|since| over(since, MESSAGE)) {
            return Some("the rest of a message does not come");
        }
        if over(self.heard, probe) && !std::mem::replace(&mut self.probed, true) {
            self.say(0, &Message::EchoRequest(Vec::new()));
        }
        None
    }
}
