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
    /// The same, and all that follows, by the clock that stands while nobody could be heard.
    begun: Instant,
    heard: Instant,
    partial: Option<Instant>,
    stalled: Option<Instant>,
    probed: Option<Instant>,
    /// It has said hello.
    pub greeted: bool,
    /// It has one of the places. One that is called has its own.
    pub seated: bool,
    /// Time that it has cost and that it has not been charged with.
    spent: Duration,
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
    /// A connection that is there, or on its way; by the clock, and by the one that stands while nobody could be heard. All others take the time of that one.
    pub fn new(stream: Stream, peer: SocketAddr, dialled: Option<usize>, [now, patient]: [Instant; 2]) -> Self {
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
            begun: patient,
            heard: patient,
            partial: None,
            stalled: None,
            probed: None,
            greeted: false,
            seated: dialled.is_some(),
            spent: Duration::ZERO,
            closing: None,
            mute: false,
            ending: false,
            lost: 0,
            messages: [0; 2],
        }
    }

    /// What was begun to be called is there.
    pub fn arrived(&mut self, [now, patient]: [Instant; 2]) {
        self.connected = true;
        (self.since, self.begun, self.heard) = (now, patient, patient);
    }

    /// It has shown a certificate.
    pub fn is_certified(&self) -> bool {
        self.stream.is_certified()
    }

    /// What it has cost since this was asked last, outside of its turns.
    pub fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
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
        let (begin, clock) = (self.input.len(), Instant::now());
        let goes_on = self.stream.read(&mut self.input);
        self.spent += clock.elapsed();
        let goes_on = goes_on?;
        if self.input.len() > begin {
            (self.heard, self.probed) = (now, None);
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
        let clock = Instant::now();
        // Nothing that the switch says is longer than a message; if it were, nothing behind it could be read.
        match message.encode(xid, &mut self.output) {
            true => self.messages[1] += 1,
            false => self.lost += 1,
        }
        self.spent += clock.elapsed();
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

    /// Asks whether it is still there, if it has been quiet for long; why it ends, if it has been too long. It has to be looked at behind reading.
    pub fn look(&mut self, now: Instant, probe: Duration) -> Option<&'static str> {
        let over = |since: Instant, most: Duration| now.saturating_duration_since(since) > most;
        if !self.connected {
            return over(self.begun, HELLO).then_some("it does not answer");
        }
        if self.stalled.is_some_and(|since| over(since, STALL)) {
            return Some("it does not read what it is told");
        }
        if self.has_message() || !self.is_read() {
            // It has said something, or may have: its turn has not come. Whether it reads is looked at above.
            (self.heard, self.probed, self.partial) = (now, None, None);
            return None;
        }
        if !self.greeted && over(self.begun, HELLO) {
            return Some("it says no hello");
        }
        if self.partial.is_some_and(|since| over(since, MESSAGE)) {
            return Some("the rest of a message does not come");
        }
        match self.probed {
            Some(since) if over(since, probe) => return Some("it does not answer"),
            None if over(self.heard, probe) => {
                self.probed = Some(now);
                self.say(0, &Message::EchoRequest(Vec::new()));
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    fn pair(now: Instant) -> (TcpStream, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, peer) = listener.accept().unwrap();
        (other, Link::new(Stream::new(socket, None).unwrap(), peer, None, [now; 2]))
    }

    /// Reads until so much is there that nobody has looked at.
    fn read(link: &mut Link, len: usize, now: Instant) {
        let begin = Instant::now();
        while link.input.len() - link.done < len {
            assert!(begin.elapsed() < Duration::from_secs(20), "it does not come");
            link.read(now).unwrap();
        }
    }

    #[test]
    fn nobody_ends_whose_turn_has_not_come() {
        let now = Instant::now();
        let (mut other, mut link) = pair(now);
        other.write_all(&[4, 0, 0, 8, 0, 0, 0, 1]).unwrap();
        read(&mut link, 8, now);
        let late = now + Duration::from_secs(100);
        assert_eq!(link.look(late, Duration::from_secs(15)), None);
        assert!(link.next(late).is_some());
        // Somebody else took all the time: it is asked before it ends.
        let later = late + Duration::from_secs(100);
        assert_eq!(link.look(later, Duration::from_secs(15)), None);
        assert!(link.unwritten() > 0, "it was not asked");
        assert_eq!(link.look(later + Duration::from_secs(15), Duration::from_secs(15)), None);
        let end = later + Duration::from_secs(16);
        assert_eq!(link.look(end, Duration::from_secs(15)), Some("it does not answer"));
    }

    #[test]
    fn the_rest_of_a_message_is_due_unless_it_is_there() {
        let now = Instant::now();
        let (mut other, mut link) = pair(now);
        other.write_all(&[4, 0, 0, 8, 0, 0, 0, 1, 4, 2, 0, 8]).unwrap();
        read(&mut link, 12, now);
        assert!(link.next(now).is_some() && link.next(now).is_none());
        let late = now + Duration::from_secs(31);
        other.write_all(&[0; 4]).unwrap();
        read(&mut link, 8, late);
        assert_eq!(link.look(late, Duration::from_secs(3600)), None);
        assert!(link.next(late).is_some());
        other.write_all(&[4]).unwrap();
        read(&mut link, 1, late);
        assert!(link.next(late).is_none());
        let end = late + Duration::from_secs(31);
        assert_eq!(link.look(end, Duration::from_secs(3600)), Some("the rest of a message does not come"));
    }
}
