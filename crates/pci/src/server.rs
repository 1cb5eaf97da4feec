//! The thread of a function: a socket, one machine at a time, and the calls of workers.
//!
//! Nothing that a client does makes it wait: messages come and go as far as they do, and one that hangs half-way is hung up
//! on. What a client hands over is closed by other threads: that takes as long as it likes.

use crate::counters::{Counting, count};
use crate::handover::{Asks, Fds, SavedMachine, TakenFds, ports};
use crate::keeper::{Comes, END, Link};
use crate::session::{Answer, Function, Session};
use crate::wire::message::Header;
use crate::wire::stream::{Came, Stream};
use millrace_abi::queue::Direction;
use millrace_callers::{Call, Caller, Closer, Entrance, WAITS};
use millrace_card::Card;
use millrace_port::notice;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client has to say which version it speaks, and to end a message that it has begun.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Messages that are taken at a look.
const MESSAGES: usize = 64;
/// Connections that are turned away at a look.
const STRANGERS: usize = 4;
/// Machines that have gone, and have left what is still being closed: more are not let in.
const MOST_GRAVES: usize = 4;
/// How long it may take until it is noticed that a machine's memory is gone, and that the system can send interrupts again.
const UNEASY: Duration = Duration::from_millis(100);
/// Until it is looked again whether what a machine has handed over is closed.
const CHOKED: Duration = Duration::from_millis(1);
/// Calls that are taken at a look.
const CALLS: usize = 64;

/// A machine, and the way to it.
struct Connection {
    stream: Stream,
    session: Session,
    /// When it is hung up on, if it is waited for.
    deadline: Option<Instant>,
    who: String,
    // Whether it comes by a keeper.
    is_kept: bool,
}

/// Where machines come from.
pub(crate) enum Door {
    /// From outside.
    Own(Entrance),
    /// From the keeper.
    Keeper(Link),
}

/// What the thread of a function works on.
pub(crate) struct Server {
    function: Arc<Function>,
    door: Door,
    path: PathBuf,
    stop: Arc<OwnedFd>,
    // Another card wants what this has.
    asks: Arc<Asks>,
    // Our ends of the sockets by which workers call, by vector.
    calls: Vec<OwnedFd>,
    called: OwnedFd,
    connection: Option<Connection>,
    graves: Vec<Closer>,
    // Until when nobody is let in.
    pause: Option<Instant>,
}

impl Server {
    pub fn new(
        function: Arc<Function>,
        door: Door,
        path: PathBuf,
        stop: Arc<OwnedFd>,
        asks: Arc<Asks>,
        calls: Vec<OwnedFd>,
    ) -> Result<Self, Errno> {
        let called = epoll::create(CreateFlags::CLOEXEC)?;
        for (vector, call) in calls.iter().enumerate() {
            epoll::add(&called, call, EventData::new_u64(vector as u64), EventFlags::IN)?;
        }
        let (connection, graves, pause) = (None, Vec::new(), None);
        Ok(Self { function, door, path, stop, asks, calls, called, connection, graves, pause })
    }

    pub fn card(&self) -> &Card {
        self.function.driver.card()
    }

    fn counting(&self) -> &Counting {
        &self.function.counting
    }

    /// Until it is stopped, or another card has everything.
    pub fn run(mut self: Box<Self>) {
        while let Some(ready) = self.look() {
            if ready.asked {
                let asks = self.asks.clone();
                match asks.lend(self) {
                    Some(back) => self = back,
                    None => return,
                }
                continue;
            }
            if let Some(connection) = &mut self.connection {
                connection.session.look();
            }
            if ready.stream || self.is_late() {
                self.talk(ready.hung_up);
            }
            if ready.called {
                self.take_calls();
            }
            if ready.listener {
                self.accept();
            }
        }
        self.end("the card ends");
    }

    /// Waits until there is something to do; `None`: this is the end.
    fn look(&mut self) -> Option<Ready> {
        let now = Instant::now();
        self.pause = self.pause.filter(|until| *until > now);
        let deadline = self.connection.as_ref().and_then(|connection| connection.deadline);
        self.graves.retain_mut(|grave| !grave.try_again() || grave.count() > 0);
        let (mut soon, mut choked) = (None, false);
        if let Some(Connection { session, .. }) = &mut self.connection {
            choked = session.is_choked();
            soon = if choked { Some(CHOKED) } else { session.is_uneasy().then_some(UNEASY) };
        }
        let is_open = self.pause.is_none() && self.graves.len() < MOST_GRAVES;
        let caller = match &mut self.door {
            _ if !is_open => None,
            Door::Own(entrance) => entrance.fd(),
            // It brings the next when this one has gone.
            Door::Keeper(_) if self.connection.is_some() => Some(self.asks.event.as_fd()),
            Door::Keeper(link) => Some(link.fd()),
        };
        // Something that nobody will tell of: descriptors, or what is being closed.
        soon = if caller.is_none() { Some(soon.unwrap_or(WAITS)) } else { soon };
        let until = [self.pause, deadline, soon.map(|soon| now + soon)].into_iter().flatten().min();
        let most = until.map(|until| {
            // Rounded up, or the last of it would be spent in a circle.
            let left = until.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let stop: &dyn AsFd = &*self.stop;
        let stream: (&dyn AsFd, PollFlags) = match &self.connection {
            Some(connection) if choked => (&connection.stream, PollFlags::RDHUP),
            // An answer goes before the next message comes.
            Some(connection) if connection.stream.is_sending() => (&connection.stream, PollFlags::OUT),
            Some(connection) => (&connection.stream, PollFlags::IN | PollFlags::RDHUP),
            None => (stop, PollFlags::empty()),
        };
        let mut fds = [
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::from_borrowed_fd(stream.0.as_fd(), stream.1),
            PollFd::new(&self.called, PollFlags::IN),
            PollFd::new(&self.asks.event, PollFlags::IN),
            match caller {
                Some(caller) => PollFd::from_borrowed_fd(caller, PollFlags::IN),
                None => PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::empty()),
            },
        ];
        // Interrupted, or out of memory: another look.
        let _ = poll(&mut fds, most.as_ref());
        let [stop, stream, called, asked, listener] = fds.map(|fd| fd.revents());
        let has_connection = self.connection.is_some();
        stop.is_empty().then_some(Ready {
            stream: has_connection && !stream.is_empty(),
            hung_up: stream.intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR),
            called: !called.is_empty(),
            asked: !asked.is_empty(),
            listener: listener.contains(PollFlags::IN),
        })
    }

    fn is_late(&self) -> bool {
        let deadline = self.connection.as_ref().and_then(|connection| connection.deadline);
        deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Goes on with the machine that there is. One that has hung up is heard to its end, so that the next can come.
    fn talk(&mut self, hung_up: bool) {
        let Some(connection) = &mut self.connection else { return };
        match connection.talk(if hung_up { usize::MAX } else { MESSAGES }) {
            // What it has said last is not waited for: that is read when something is closed, which may take as long as it has chosen.
            Ok(()) if hung_up && connection.session.is_choked() => self.end(HUNG_UP),
            Ok(()) if self.is_late() => self.throw_out("it began something and did not end it"),
            Ok(()) => {}
            Err(HUNG_UP) => self.end(HUNG_UP),
            Err(why) => self.throw_out(why),
        }
    }

    fn throw_out(&mut self, why: &str) {
        count(&self.counting().thrown_out);
        self.end(why);
    }

    fn end(&mut self, why: &str) {
        if let Some(Connection { mut stream, session, who, is_kept, .. }) = self.connection.take() {
            if is_kept && !stream.is_sending() {
                // Or the keeper would think that this card has died. It may have gone itself.
                let _ = stream.send(Header::command(END).message(why.as_bytes()), Vec::new());
            }
            let mut left = session.end();
            // The machine sees the end when its queues have stopped.
            stream.shut();
            left.close(stream);
            self.graves.push(left);
            let (path, counters) = (self.path.display(), self.function.counting.read());
            notice::info(|| {
                format!("{who} has left the PCI function at {path}: {why}; since the card started: {counters}")
            });
        }
    }

    /// Lets one in, or turns some away.
    fn accept(&mut self) {
        for _ in 0..STRANGERS {
            let Door::Own(entrance) = &mut self.door else { return self.take_from_keeper() };
            match entrance.accept() {
                Some(Call::In(socket, _)) if self.connection.is_some() => {
                    count(&self.counting().turned_away);
                    self.turn_away(socket);
                    let path = self.path.display();
                    notice::info(|| format!("a second machine was turned away from the PCI function at {path}"));
                }
                Some(Call::In(socket, caller)) => return self.let_in(socket, caller),
                Some(Call::Refused(caller)) => {
                    count(&self.counting().refused_users);
                    let path = self.path.display();
                    notice::info(|| {
                        let who = caller.map_or("somebody".to_owned(), |caller| format!("user {}", caller.uid));
                        format!(
                            "{who} was turned away from the PCI function at {path}, which is for its owner and root"
                        )
                    });
                }
                Some(Call::Exhausted) => return count(&self.counting().exhausted),
                None => return,
            }
        }
    }

    fn let_in(&mut self, socket: OwnedFd, caller: Caller) {
        let who = format!("process {}", caller.pid);
        match Session::new(self.function.clone(), caller) {
            Ok(session) => {
                count(&self.counting().connections);
                let path = self.path.display();
                notice::info(|| format!("{who} has connected to the PCI function at {path}"));
                let deadline = Some(Instant::now() + PATIENCE);
                let (stream, is_kept) = (Stream::new(socket.into()), false);
                self.connection = Some(Connection { stream, session, deadline, who, is_kept });
            }
            Err(error) => {
                notice::warn(format!("{who} cannot have the PCI function at {}: {error}", self.path.display()));
                self.turn_away(socket);
                self.pause = Some(Instant::now() + WAITS);
            }
        }
    }

    fn turn_away(&mut self, socket: OwnedFd) {
        if let Door::Own(entrance) = &mut self.door {
            entrance.turn_away(socket);
        }
    }

    /// Has the machine that the keeper brings.
    fn take_from_keeper(&mut self) {
        let Door::Keeper(link) = &self.door else { return };
        if self.connection.is_some() {
            return;
        }
        let mut comes = match link.accept() {
            Ok(comes) => comes,
            // Without a keeper this card ends soon.
            Err(why) => {
                notice::info(|| {
                    format!("no machine comes by the keeper of {}, which may be gone: {why}", self.path.display())
                });
                return self.pause = Some(Instant::now() + WAITS);
            }
        };
        let who = comes.given.who.clone();
        match self.session_of(&mut comes) {
            Ok((session, is_known)) => {
                if !is_known {
                    let path = self.path.display();
                    notice::info(|| format!("{who} has connected to the PCI function at {path}"));
                }
                count(if is_known { &self.counting().taken_over } else { &self.counting().connections });
                let deadline = (!session.is_introduced()).then(|| Instant::now() + PATIENCE);
                self.connection = Some(Connection { stream: comes.stream, session, deadline, who, is_kept: true });
                // Frames go from those that receive.
                [Direction::Rx, Direction::Tx].into_iter().for_each(|direction| self.go_on(direction));
            }
            Err(why) => {
                notice::warn(format!("{who} cannot have the PCI function at {}: {why}", self.path.display()));
                let _ = comes.stream.send(Header::command(END).message(why.as_bytes()), Vec::new());
                comes.stream.shut();
            }
        }
    }

    /// What a machine that comes from the keeper has here, and whether another card had it before.
    fn session_of(&self, comes: &mut Comes) -> Result<(Session, bool), String> {
        let known = comes.known(self.function.vectors() as usize)?;
        let Some((saved, registers)) = known else {
            let caller = Caller { pid: comes.given.pid, uid: comes.given.uid, is_limited: false };
            let mut session = Session::new(self.function.clone(), caller).map_err(|error| error.to_string())?;
            session.keep();
            return Ok((session, false));
        };
        ports::restore_some(self.card(), self.function.share.own_ports.clone(), &registers);
        let mut session = Session::restore(self.function.clone(), &saved, &mut comes.fds, true)?;
        session.is_known();
        // What is not used any more is closed as what the machine hands over.
        session.close(core::mem::take(&mut comes.fds));
        Ok((session, true))
    }

    /// The machine that there is, in words, for another card. Its queues are frozen.
    pub fn save<'s>(&'s self, fds: &mut Fds<'s>) -> Result<Option<SavedMachine>, String> {
        let Some(Connection { stream, session, who, .. }) = &self.connection else { return Ok(None) };
        let stream = stream.save(fds);
        session.save(who.clone(), stream, fds).map(Some)
    }

    /// Has the machine that another card has had.
    pub fn restore(&mut self, saved: Option<&SavedMachine>, fds: &mut TakenFds) -> Result<(), String> {
        let Some(saved) = saved else { return Ok(()) };
        let session = Session::restore(self.function.clone(), saved, fds, false)?;
        let stream = Stream::restore(&saved.stream, fds)?;
        let waits = stream.is_midway() || !session.is_introduced();
        let deadline = waits.then(|| Instant::now() + PATIENCE);
        self.connection = Some(Connection { stream, session, deadline, who: saved.who.clone(), is_kept: false });
        count(&self.counting().taken_over);
        Ok(())
    }

    /// Takes queues of one direction from their workers.
    pub fn freeze(&self, direction: Direction) -> Result<(), String> {
        self.connection.as_ref().map_or(Ok(()), |connection| connection.session.freeze(direction))
    }

    /// Whether nothing that frozen queues have sent is under way.
    pub fn is_drained(&self) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.session.is_drained())
    }

    /// Has frozen queues of one direction served: of all functions those first that receive.
    pub fn go_on(&self, direction: Direction) {
        if self.connection.as_ref().is_some_and(|connection| !connection.session.go_on(direction)) {
            notice::warn(format!(
                "{}: a worker does not answer, and queues of the machine stand still",
                self.path.display()
            ));
        }
    }

    /// Another card has the machine: this one lets go of it.
    pub fn leave(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            connection.session.leave();
        }
    }

    /// All that workers have said so far; of frozen queues they say nothing more.
    pub fn take_all_calls(&mut self) {
        for _ in 0..=self.calls.len() {
            if !self.take_calls() {
                return;
            }
        }
    }

    /// Workers say that something has come. `false`: nothing has.
    fn take_calls(&mut self) -> bool {
        let mut events = [const { MaybeUninit::uninit() }; CALLS];
        let Ok((events, _)) = epoll::wait(&self.called, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) else {
            return false;
        };
        let any = !events.is_empty();
        for event in events {
            let vector = { event.data }.u64() as u32;
            let Some(call) = self.calls.get(vector as usize) else { continue };
            // One interrupt for all of them; more than these are told at the next look.
            for _ in 0..CALLS {
                if recv(call, &mut [0; 8][..], RecvFlags::DONTWAIT).is_err() {
                    break;
                }
            }
            if let Some(connection) = &mut self.connection {
                connection.session.called(vector);
            }
        }
        any
    }
}

pub(crate) const HUNG_UP: &str = "it hung up";

struct Ready {
    stream: bool,
    hung_up: bool,
    called: bool,
    asked: bool,
    listener: bool,
}

impl Connection {
    /// Takes messages, as many as there are or so many.
    fn talk(&mut self, most: usize) -> Result<(), &'static str> {
        let mut taken = 0;
        self.stream.send_on().map_err(|_| HUNG_UP)?;
        while taken < most && !self.stream.is_sending() && !self.session.is_choked() {
            let message = match self.stream.receive() {
                Came::Message(message) => message,
                Came::Nothing => break,
                Came::End(why) => return Err(why),
            };
            if !message.header.is_command() {
                return Err("a reply to a question that was not asked");
            }
            taken += 1;
            let header = message.header;
            let mut answer = self.session.carry_out(message);
            if let Some(mut news) = self.session.tell() {
                // The keeper takes both or neither, and hears of the end of messages that nobody else does.
                let Answer { bytes, mut fds } =
                    answer.unwrap_or_else(|| Answer { bytes: header.reply(&[]), fds: Vec::new() });
                let told = news.bytes();
                fds.splice(0..0, news.fds);
                answer = Some(Answer { bytes: [told, bytes].concat(), fds });
            }
            if let Some(Answer { bytes, fds }) = answer {
                self.stream.send(bytes, fds).map_err(|_| HUNG_UP)?;
            }
        }
        if !self.session.is_introduced() && taken > 0 {
            return Err("it speaks another version, or does not say which");
        }
        let waits = self.stream.is_midway() || !self.session.is_introduced();
        // Whoever sends a byte at a time has as long as everybody for a message.
        if !waits {
            self.deadline = None;
        } else if taken > 0 || self.deadline.is_none() {
            self.deadline = Some(Instant::now() + PATIENCE);
        }
        Ok(())
    }
}
