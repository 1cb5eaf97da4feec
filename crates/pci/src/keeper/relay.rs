//! A function in the keeper: its machine, the card, and what is between them.

use super::parts::{END, Given, Shared, TELL, ToldPart};
use crate::event;
use crate::handover::Talk;
use crate::server::{HUNG_UP, PATIENCE};
use crate::wire::message::Header;
use crate::wire::stream::{Came, Message, Stream};
use millrace_callers::{Call, Caller, Closer, Entrance, WAITS};
use millrace_port::notice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Cards that a message may be given to: one that kills them all is the machine's last.
const MOST_TRIES: u32 = 3;
/// How long a machine waits for a card that has hung up and not ended.
const LIMBO: Duration = Duration::from_secs(30);
/// Until a machine that no card has is given to one again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a card has to live before it gets a message that others may not have survived.
const PROVES: Duration = Duration::from_millis(500);
/// How long a card may take to listen to a machine that comes.
const COMES: Duration = Duration::from_secs(2);
/// Until it is looked again whether what a machine has handed over is closed.
const CHOKED: Duration = Duration::from_millis(1);
/// Machines that have gone, and have left what is still being closed: more are not let in.
const MOST_GRAVES: usize = 4;
/// Connections that are turned away at a look.
const STRANGERS: usize = 4;

/// How a function hears of the next card.
pub(super) struct Way {
    event: OwnedFd,
    link: Mutex<Option<OwnedFd>>,
    has_machine: AtomicBool,
}

impl Way {
    pub fn new() -> Result<Self, std::io::Error> {
        Ok(Self { event: event()?, link: Mutex::default(), has_machine: AtomicBool::new(false) })
    }

    /// There is another card, to which this leads.
    pub fn give(&self, link: OwnedFd) {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(link);
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Option<OwnedFd> {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.link.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether a machine is there.
    pub fn has_machine(&self) -> bool {
        // Relaxed: how many a card waits for at most, and no longer than it likes.
        self.has_machine.load(Ordering::Relaxed)
    }
}

/// A message that the card has not answered.
struct Asked {
    header: Header,
    bytes: Vec<u8>,
    fds: Vec<Shared>,
    tries: u32,
}

/// What the card has said of a thing.
struct Known {
    text: String,
    fd: Option<Arc<OwnedFd>>,
}

/// A machine that has the function.
struct Machine {
    who: String,
    caller: Caller,
    stream: Stream,
    card: Option<Stream>,
    // Since when there is none, and when the one that there is gets the message that is open.
    alone: Instant,
    gives: Option<Instant>,
    known: BTreeMap<String, Known>,
    // What is told and not answered yet.
    coming: Vec<ToldPart>,
    coming_fds: Vec<OwnedFd>,
    asked: Option<Asked>,
    // When it is hung up on, if it does not end what it has begun.
    deadline: Option<Instant>,
    // What it has handed over is closed elsewhere.
    closer: Closer,
}

/// What the thread of a function works on.
pub(super) struct Relay {
    entrance: Entrance,
    path: PathBuf,
    stop: Arc<OwnedFd>,
    way: Arc<Way>,
    link: Option<Talk>,
    machine: Option<Machine>,
    graves: Vec<Closer>,
}

/// What there is to do.
struct Ready {
    stream: bool,
    hung_up: bool,
    card: bool,
    link: bool,
    listener: bool,
}

impl Relay {
    pub fn new(entrance: Entrance, path: PathBuf, stop: Arc<OwnedFd>, way: Arc<Way>) -> Self {
        Self { entrance, path, stop, way, link: None, machine: None, graves: Vec::new() }
    }

    /// Until it is stopped.
    pub fn run(mut self) {
        while let Some(ready) = self.look() {
            if ready.card {
                self.hear_card();
            }
            if ready.link {
                // What the one before has said is heard to its end.
                self.hear_card();
                self.link = self.way.take().map(Talk::over);
                self.introduce();
            }
            if ready.stream || self.is_late() {
                self.hear_machine(ready.hung_up);
            }
            self.try_again();
            if ready.listener {
                self.accept();
            }
            // Relaxed: see there.
            self.way.has_machine.store(self.machine.is_some(), Ordering::Relaxed);
        }
        self.end("the card ends");
    }

    /// Waits until there is something to do; `None`: this is the end.
    fn look(&mut self) -> Option<Ready> {
        self.graves.retain_mut(|grave| !grave.try_again() || grave.count() > 0);
        let listener = if self.graves.len() < MOST_GRAVES { self.entrance.fd() } else { None };
        let (mut stream, mut card, mut until) = (None, None, None);
        if let Some(machine) = &mut self.machine {
            let is_choked = !machine.closer.try_again() || machine.closer.is_full();
            stream = match &machine.stream {
                // Nobody says when it is listened to again: whether it goes meanwhile is to be seen.
                stream if is_choked || machine.card.is_none() => Some((stream.as_fd(), PollFlags::RDHUP)),
                stream if stream.is_sending() => Some((stream.as_fd(), PollFlags::OUT)),
                // What it has hung up on is heard when the card has answered.
                _ if machine.asked.is_some() => None,
                stream => Some((stream.as_fd(), PollFlags::IN)),
            };
            let flags = |card: &Stream| if card.is_sending() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            card = machine.card.as_ref().map(|card| (card.as_fd(), flags(card)));
            let now = Instant::now();
            let soon = if is_choked { Some(now + CHOKED) } else { None };
            let alone = machine.card.is_none().then(|| (machine.alone + LIMBO).min(now + AGAIN));
            let gives = machine.gives.filter(|_| machine.card.is_some());
            until = [machine.deadline(), soon, alone, gives].into_iter().flatten().min();
        }
        let until = if listener.is_none() { Some(until.unwrap_or(Instant::now() + WAITS)) } else { until };
        let most = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let stop = self.stop.as_fd();
        let nothing = (stop, PollFlags::empty());
        let poll_fd = |(fd, flags)| PollFd::from_borrowed_fd(fd, flags);
        let mut fds = [
            PollFd::new(&*self.stop, PollFlags::IN),
            poll_fd(stream.unwrap_or(nothing)),
            poll_fd(card.unwrap_or(nothing)),
            PollFd::new(&self.way.event, PollFlags::IN),
            poll_fd(listener.map_or(nothing, |fd| (fd, PollFlags::IN))),
        ];
        // Interrupted, or out of memory: another look.
        let _ = poll(&mut fds, most.as_ref());
        let [stopped, said, answered, link, called] = fds.map(|fd| fd.revents());
        let ready = Ready {
            stream: stream.is_some() && !said.is_empty(),
            hung_up: said.intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR),
            card: card.is_some() && !answered.is_empty(),
            link: !link.is_empty(),
            listener: listener.is_some() && called.contains(PollFlags::IN),
        };
        stopped.is_empty().then_some(ready)
    }

    fn is_late(&self) -> bool {
        let now = Instant::now();
        self.machine.as_ref().is_some_and(|machine| {
            machine.deadline().is_some_and(|deadline| deadline <= now)
                || machine.card.is_none() && machine.alone + LIMBO <= now
        })
    }

    /// Takes what the machine asks, if nothing that it has asked is open.
    fn hear_machine(&mut self, hung_up: bool) {
        let is_late = self.is_late();
        let Some(machine) = &mut self.machine else { return };
        match machine.ask() {
            // What it has said last is not waited for, if nobody can say how long that takes.
            Ok(()) if hung_up && (machine.card.is_none() || machine.closer.is_full()) => self.end(HUNG_UP),
            Ok(()) if is_late && machine.card.is_none() => self.end("there was no card for it"),
            Ok(()) if self.is_late() => self.end("it began something and did not end it"),
            Ok(()) => {}
            Err(why) => self.end(why),
        }
    }

    /// Takes what the card says.
    fn hear_card(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        match machine.hear_card() {
            Ok(()) => {}
            Err(Ends::Machine(why)) => self.end(&why),
            // Another one comes, or this process ends.
            Err(Ends::Card) => machine.is_alone(),
        }
    }

    /// A machine that no card has is given to the one that there is, again if the system could not before; and a message that has waited goes.
    fn try_again(&mut self) {
        let now = Instant::now();
        let Some(machine) = &mut self.machine else { return };
        if machine.card.is_none() && self.link.is_some() && machine.alone + AGAIN <= now {
            return self.introduce();
        }
        if machine.gives.is_some_and(|at| at <= now) {
            machine.give_asked();
        }
    }

    /// Gives the machine that there is to the card that there is.
    fn introduce(&mut self) {
        let (Some(machine), Some(link)) = (&mut self.machine, &self.link) else { return };
        let is_known = !machine.known.is_empty();
        match machine.introduce(link) {
            Ok(()) if is_known => {
                let (who, path) = (&machine.who, self.path.display());
                notice::info(|| format!("{who} goes on in the next card, at the PCI function at {path}"));
            }
            Ok(()) => {}
            Err(Ends::Machine(why)) => self.end(&why),
            // It is tried again, until there is another card or the machine has waited for too long.
            Err(Ends::Card) => {}
        }
    }

    fn end(&mut self, why: &str) {
        let Some(Machine { who, stream, card, known, coming_fds, asked, mut closer, .. }) = self.machine.take() else {
            return;
        };
        // Of one that goes the card says the same.
        let is_said = card.is_some() && why == HUNG_UP;
        stream.shut();
        card.iter().for_each(Stream::shut);
        closer.close((stream, card, known, coming_fds));
        closer.close(asked.map(|asked| asked.fds));
        self.graves.push(closer);
        let path = self.path.display();
        if !is_said {
            notice::info(|| format!("{who} has left the keeper of the PCI function at {path}: {why}"));
        }
    }

    /// Lets one in, or turns some away.
    fn accept(&mut self) {
        for _ in 0..STRANGERS {
            match self.entrance.accept() {
                Some(Call::In(socket, _)) if self.machine.is_some() => {
                    self.entrance.turn_away(socket);
                    let path = self.path.display();
                    notice::info(|| format!("a second machine was turned away from the PCI function at {path}"));
                }
                Some(Call::In(socket, caller)) => {
                    self.machine = Some(Machine::new(socket, caller));
                    self.introduce();
                }
                Some(Call::Refused(caller)) => {
                    let path = self.path.display();
                    notice::info(|| {
                        let who = caller.map_or("somebody".to_owned(), |caller| format!("user {}", caller.uid));
                        format!("{who} was turned away from the PCI function at {path}")
                    });
                }
                Some(Call::Exhausted) | None => return,
            }
        }
    }
}

/// What has come to an end.
enum Ends {
    Machine(String),
    Card,
}

impl Machine {
    fn new(socket: OwnedFd, caller: Caller) -> Self {
        Self {
            who: format!("process {}", caller.pid),
            caller,
            stream: Stream::new(socket.into()),
            card: None,
            alone: Instant::now(),
            gives: None,
            known: BTreeMap::new(),
            coming: Vec::new(),
            coming_fds: Vec::new(),
            asked: None,
            deadline: Some(Instant::now() + PATIENCE),
            closer: Closer::default(),
        }
    }

    /// There is no card for it.
    fn is_alone(&mut self) {
        if let Some(card) = self.card.take() {
            self.alone = Instant::now();
            self.coming.clear();
            self.closer.close((card, core::mem::take(&mut self.coming_fds)));
        }
    }

    /// When it is hung up on, if it is listened to.
    fn deadline(&self) -> Option<Instant> {
        self.deadline.filter(|_| self.card.is_some() && !self.closer.is_full())
    }

    /// Takes a message of the machine, and gives it to the card.
    fn ask(&mut self) -> Result<(), &'static str> {
        self.stream.send_on().map_err(|_| HUNG_UP)?;
        let is_closing = !self.closer.try_again() || self.closer.is_full();
        if self.asked.is_some() || self.card.is_none() || self.stream.is_sending() || is_closing {
            return Ok(());
        }
        match self.stream.receive() {
            Came::Message(Message { header, body, fds }) => {
                let fds = fds.into_iter().map(|fd| Shared::File(Arc::new(fd))).collect();
                self.asked = Some(Asked { header, bytes: header.message(&body), fds, tries: 0 });
                self.deadline = None;
                self.give_asked();
            }
            Came::Nothing if self.stream.is_midway() => {
                self.deadline = self.deadline.or(Some(Instant::now() + PATIENCE));
            }
            Came::Nothing => {}
            Came::End(why) => return Err(why),
        }
        Ok(())
    }

    /// Gives the card what it has not answered.
    fn give_asked(&mut self) {
        self.gives = None;
        let (Some(asked), Some(card)) = (&mut self.asked, &mut self.card) else { return };
        match card.send(asked.bytes.clone(), asked.fds.clone()) {
            // That it has gone is noticed when what it has said is heard.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => asked.tries += 1,
            // The system has no room for it, or for its descriptors. The card has the machine as before.
            Err(_) => self.gives = Some(Instant::now() + AGAIN),
        }
    }

    /// Takes what the card says, up to the last that has come.
    fn hear_card(&mut self) -> Result<(), Ends> {
        loop {
            let Some(card) = &mut self.card else { return Ok(()) };
            match card.send_on() {
                // One that has gone has said something before.
                Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
                Err(_) => return Err(Ends::Card),
            }
            let Message { header, body, fds } = match card.receive() {
                Came::Message(message) => message,
                Came::Nothing => return Ok(()),
                Came::End(_) => return Err(Ends::Card),
            };
            match header.command {
                // What a machine asks for by such a number is refused by a reply.
                _ if !header.is_command() => {
                    self.answer(header, &body, fds).map_err(|why| Ends::Machine(why.to_owned()))?;
                }
                TELL => self.is_told(&body, fds).map_err(|error| Ends::Machine(error.to_string()))?,
                END => return Err(Ends::Machine(String::from_utf8_lossy(&body).into_owned())),
                _ => return Err(Ends::Card),
            }
        }
    }

    /// Parts that count when the answer has come, too.
    fn is_told(&mut self, body: &[u8], fds: Vec<OwnedFd>) -> Result<(), serde_json::Error> {
        self.coming.extend(serde_json::from_slice::<Vec<ToldPart>>(body)?);
        self.coming_fds.extend(fds);
        Ok(())
    }

    /// What was told counts, and the machine gets its answer.
    fn answer(&mut self, header: Header, body: &[u8], fds: Vec<OwnedFd>) -> Result<(), &'static str> {
        let Some(asked) = self.asked.take() else { return Err("an answer of the card to what was not asked") };
        let mut old = asked.fds;
        // All of them have come with the first byte, in order, and what is left over belongs to the answer.
        let mut fds = core::mem::take(&mut self.coming_fds).into_iter().chain(fds).map(Arc::new);
        for ToldPart { key, text, fd: has_fd } in self.coming.drain(..) {
            let fd = if has_fd { fds.next() } else { None };
            let before = match text {
                Some(text) => self.known.insert(key, Known { text, fd }),
                None => self.known.remove(&key),
            };
            old.extend(before.and_then(|known| known.fd).map(Shared::File));
        }
        let fds: Vec<_> = fds.collect();
        if !old.is_empty() {
            self.closer.run(old.len(), move || drop(old));
        }
        if asked.header.is_posted() {
            return Ok(());
        }
        self.stream.send(header.message(body), fds.into_iter().map(Shared::File).collect()).map_err(|_| HUNG_UP)
    }

    /// Gives the machine to a card, with everything that another one has told of it, and with what that one has not answered.
    fn introduce(&mut self, link: &Talk) -> Result<(), Ends> {
        self.is_alone();
        if let Some(Asked { header, tries: MOST_TRIES.., .. }) = self.asked {
            return Err(Ends::Machine(format!("{MOST_TRIES} cards did not survive its message {}", header.command)));
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(|_| Ends::Card)?;
        let mut fds = vec![theirs.as_fd()];
        let mut parts = Vec::new();
        for (key, Known { text, fd }) in &self.known {
            let number = fd.as_ref().map(|fd| {
                fds.push(fd.as_fd());
                fds.len() - 1
            });
            parts.push((key.clone(), text.clone(), number));
        }
        let Caller { pid, uid, .. } = self.caller;
        let given = Given { who: self.who.clone(), pid, uid, parts };
        let text = serde_json::to_vec(&given).map_err(|error| Ends::Machine(error.to_string()))?;
        link.send_state(&text, &fds, Instant::now() + COMES).map_err(|_| Ends::Card)?;
        self.card = Some(Stream::new(ours.into()));
        // It may be a ring of another machine that kills cards as soon as they go on: that is no fault of this message.
        if self.asked.as_ref().is_some_and(|asked| asked.tries > 1) {
            self.gives = Some(Instant::now() + PROVES);
            return Ok(());
        }
        self.give_asked();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::link::{Comes, Link};
    use crate::keeper::parts::{News, Part, Told};
    use crate::wire::message::{Command, Fields};
    use millrace_callers::{Carries, Listener, owner_only};
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// Longer than anything takes.
    const SOON: Duration = Duration::from_secs(20);

    /// A relay that runs, and where its machines and cards come from.
    struct Running {
        folder: tempfile::TempDir,
        way: Arc<Way>,
        stop: Arc<OwnedFd>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Running {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("pci");
            let (stop, way) = (Arc::new(event().unwrap()), Arc::new(Way::new().unwrap()));
            let entrance = Entrance::new(Listener::private(path.clone(), Carries::Streams).unwrap(), owner_only());
            let relay = Relay::new(entrance.unwrap(), path, stop.clone(), way.clone());
            let thread = Some(std::thread::spawn(move || relay.run()));
            Self { folder, way, stop, thread }
        }

        fn machine(&self) -> UnixStream {
            let machine = UnixStream::connect(self.folder.path().join("pci")).unwrap();
            machine.set_read_timeout(Some(SOON)).unwrap();
            machine
        }

        /// The next card: what comes by its link.
        fn card(&self) -> Link {
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            self.way.give(ours);
            Link::new(theirs)
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
            self.thread.take().unwrap().join().unwrap();
        }
    }

    fn receive(stream: &mut Stream) -> Option<Message> {
        let begin = Instant::now();
        loop {
            match stream.receive() {
                Came::Message(message) => return Some(message),
                Came::End(_) => return None,
                Came::Nothing => std::thread::sleep(Duration::from_micros(100)),
            }
            assert!(begin.elapsed() < SOON);
        }
    }

    fn message(id: u8, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
        Header { id: id.into(), ..Header { flags, ..Header::command(command) } }.message(body)
    }

    /// The number, the error and the body of the next answer that a machine gets; `None`: it was hung up on.
    fn answer(machine: &mut UnixStream) -> Option<(u16, u32, Vec<u8>)> {
        let mut head = [0; 16];
        machine.read_exact(&mut head).ok()?;
        let header = Header::decode(&head);
        let mut body = vec![0; header.body().unwrap()];
        machine.read_exact(&mut body).unwrap();
        Some((header.id, header.error, body))
    }

    /// What a card says that has done something, of which it tells this.
    fn told(parts: Vec<(&str, &str, Option<&OwnedFd>)>) -> (Vec<u8>, Vec<Shared>) {
        let mut news = News::default();
        for (key, text, fd) in parts {
            let fd = fd.map(|fd| Shared::File(Arc::new(fd.try_clone().unwrap())));
            let part = Part { text: text.to_owned(), whole: None, fd };
            Told::default().change(key, vec![(key.to_owned(), part)], &mut news, &mut Vec::new());
        }
        let bytes = news.bytes();
        (bytes, core::mem::take(&mut news.fds))
    }

    const READ: u16 = 9;
    const POSTED: u32 = 1 << 4;

    #[test]
    fn what_was_told_counts_when_the_answer_has_come_and_the_next_card_has_it() {
        let running = Running::new();
        let mut machine = running.machine();
        machine.write_all(&message(1, READ, 0, b"one")).unwrap();
        machine.write_all(&message(2, READ, POSTED, b"two")).unwrap();
        let card = running.card();
        let Comes { mut stream, given, .. } = card.accept().unwrap();
        assert!(given.parts.is_empty());
        assert_eq!((given.pid, Command::of(READ)), (std::process::id(), Some(Command::RegionRead)));
        let asked = receive(&mut stream).unwrap();
        assert_eq!((asked.header.id, &*asked.body), (1, &b"one"[..]));
        let event = eventfd(7, EventfdFlags::NONBLOCK).unwrap();
        let (mut bytes, fds) = told(vec![("a", "first", None), ("b", "with", Some(&event)), ("c", "", None)]);
        bytes.extend(asked.header.reply(b"done"));
        stream.send(bytes, fds).unwrap();
        assert_eq!(answer(&mut machine), Some((1, 0, b"done".to_vec())));
        // The second is told of and not answered before the card is killed.
        let asked = receive(&mut stream).unwrap();
        assert_eq!((asked.header.id, &*asked.body), (2, &b"two"[..]));
        stream.send(told(vec![("a", "second", None)]).0, Vec::new()).unwrap();
        drop((stream, card));
        let card = running.card();
        let Comes { mut stream, given, mut fds } = card.accept().unwrap();
        let parts: Vec<_> = given.parts.iter().map(|(key, text, fd)| (&**key, &**text, *fd)).collect();
        assert_eq!(parts, [("a", "first", None), ("b", "with", Some(1)), ("c", "", None)]);
        let mut count = [0; 8];
        rustix::io::read(fds.take(1).unwrap(), &mut count).unwrap();
        assert_eq!(Fields(&count).u64(), Some(7), "it is the same event");
        // The second again, which nobody waits for, and then nothing more.
        let asked = receive(&mut stream).unwrap();
        assert_eq!(asked.header.id, 2);
        stream.send([told(vec![("a", "second", None)]).0, asked.header.reply(&[])].concat(), Vec::new()).unwrap();
        machine.write_all(&message(3, READ, 0, b"three")).unwrap();
        let asked = receive(&mut stream).unwrap();
        stream.send(asked.header.refusal(22), Vec::new()).unwrap();
        assert_eq!(answer(&mut machine), Some((3, 22, Vec::new())), "posted ones are not answered");
    }

    #[test]
    fn a_message_that_no_card_survives_is_its_machines_last() {
        let running = Running::new();
        let (mut machine, mut tries) = (running.machine(), 0);
        machine.write_all(&message(1, READ, 0, &[])).unwrap();
        loop {
            let card = running.card();
            // Nobody comes any more when the machine has gone.
            if !poll_soon(&card) {
                break;
            }
            let Comes { mut stream, .. } = card.accept().unwrap();
            assert_eq!(receive(&mut stream).unwrap().header.id, 1);
            tries += 1;
        }
        assert_eq!((tries, answer(&mut machine)), (MOST_TRIES, None));
        // The next one is welcome.
        let mut machine = running.machine();
        machine.write_all(&message(2, READ, 0, &[])).unwrap();
        let card = running.card();
        let mut stream = card.accept().unwrap().stream;
        let asked = receive(&mut stream).unwrap();
        stream.send(asked.header.reply(b"x"), Vec::new()).unwrap();
        assert_eq!(answer(&mut machine), Some((2, 0, b"x".to_vec())));
    }

    fn poll_soon(card: &Link) -> bool {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(card.fd(), PollFlags::IN)], Some(&second)).unwrap() > 0
    }

    #[test]
    fn a_card_hangs_up_on_a_machine_and_a_second_one_is_turned_away() {
        let running = Running::new();
        let card = running.card();
        let mut machine = running.machine();
        let mut stream = card.accept().unwrap().stream;
        let mut second = running.machine();
        assert_eq!(answer(&mut second), None);
        stream.send(Header::command(END).message(b"enough"), Vec::new()).unwrap();
        assert_eq!(answer(&mut machine), None);
        let mut machine = running.machine();
        let mut stream = card.accept().unwrap().stream;
        drop(machine.write_all(&message(4, READ, 0, &[])));
        assert_eq!(receive(&mut stream).unwrap().header.id, 4);
    }

    #[test]
    fn descriptors_belong_to_their_message() {
        let running = Running::new();
        let card = running.card();
        let machine = running.machine();
        let mut stream = card.accept().unwrap().stream;
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let fds = [event.as_fd()];
        // Two that come at once, the descriptor with the second.
        (&machine).write_all(&message(1, READ, POSTED, &[])).unwrap();
        let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let second = message(2, READ, POSTED, &[]);
        let flags = rustix::net::SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&machine, &[std::io::IoSlice::new(&second)], &mut ancillary, flags).unwrap();
        for (id, count) in [(1, 0), (2, 1)] {
            let asked = receive(&mut stream).unwrap();
            assert_eq!((asked.header.id, asked.fds.len()), (id, count));
            stream.send(asked.header.reply(&[]), Vec::new()).unwrap();
        }
    }
}
