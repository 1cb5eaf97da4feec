//! `millrace message listen` and `receive`: the side that is called.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use millrace_abi::access::Names;
use millrace_message::Request;
use millrace_message::channel::Taken;
use millrace_message::control::MOST_EAGER;
use millrace_message::endpoint::{Event, Peer, Users};
use millrace_message::engine::Outcome;
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Cell, Output, Row, note};
use millrace_tool::stop;

use super::file::Target;
use super::send::sum;
use super::side::{CardArgs, Ended, Side};
use super::talk::{BEGIN, DATA, END, EXACT, LONGEST, LOOK, PING, READY, SEEN, Tally, WORDS, What, depth, heard, said};

/// Messages between two looks at who has come and gone.
const LOOKS: u32 = 256;
/// How long who sends pings may think.
const THOUGHT: Duration = Duration::from_secs(1);

/// Options of `message listen`.
#[derive(Debug, Args)]
#[command(after_help = "\
Opens the endpoint NAME, takes what `millrace message send` sends, and prints a row for each
sender when it has everything; answers `millrace message latency`. Until Ctrl-C, or
--count senders.

Examples:
  millrace message listen solver
  millrace message listen solver --count 1 --json
  millrace message listen solver --user alice --user 1001
  millrace message listen solver --rail unix:/run/millrace/card.sock
  millrace message listen solver --card=/run/millrace/card.sock")]
pub struct ListenArgs {
    /// Name of the endpoint: letters, digits, '.', '_' and '-'
    name: String,
    #[command(flatten)]
    users: UserArgs,
    #[command(flatten)]
    rails: super::RailArgs,
    #[command(flatten)]
    card: CardArgs,
}

/// Options of `message receive`.
#[derive(Debug, Args)]
#[command(after_help = "\
Opens the endpoint NAME, and writes what one `millrace message send` sends to FILE,
or to standard output. A file that is there is replaced when all has come, and not
before.

Examples:
  millrace message receive solver results.bin
  millrace message receive solver | tar x")]
pub struct ReceiveArgs {
    /// Name of the endpoint: letters, digits, '.', '_' and '-'
    name: String,
    /// File to write; - is standard output
    #[arg(default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    users: UserArgs,
    #[command(flatten)]
    rails: super::RailArgs,
    #[command(flatten)]
    card: CardArgs,
}

/// Who may send.
#[derive(Debug, Args)]
pub struct UserArgs {
    /// Let this user send as well, by name or number; may be repeated
    #[arg(long, value_name = "USER")]
    user: Vec<String>,
    /// Let every user send
    #[arg(long)]
    anybody: bool,
}

fn names() -> Names {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    Names::new(&read("/etc/passwd"), &read("/etc/group"))
}

fn number_of(user: &str) -> Result<u32, Failure> {
    let wrong = || Failure::Usage(format!("/etc/passwd has no user {user}; a number needs no name"));
    names().user(user).ok_or_else(wrong)
}

/// The name of an endpoint, with the user by number: `alice/solver`, `b:alice/solver`.
pub fn named(name: &str) -> Result<String, Failure> {
    let (host, rest) = name.split_at(name.find(':').map_or(0, |at| at + 1));
    match rest.split_once('/') {
        Some((user, rest)) => Ok(format!("{host}{}/{rest}", number_of(user)?)),
        None => Ok(name.to_owned()),
    }
}

impl UserArgs {
    /// Those who may call.
    pub fn users(&self) -> Result<Users, Failure> {
        let also = self.user.iter().map(|user| number_of(user)).collect::<Result<Vec<u32>, Failure>>()?;
        Ok(if self.anybody { Users::Anybody } else { Users::Also(also) })
    }
}

/// Memory at a card: what is waited for of one sender.
const POOL: u64 = 80 << 20;

fn open(name: &str, args: &UserArgs, rails: &super::RailArgs, card: &CardArgs) -> Result<Side, Failure> {
    Side::open(Some(name), args.users()?, rails, card, POOL)
}

/// Somebody who sends.
struct Sender {
    name: String,
    what: What,
    begin: Moment,
    tally: Tally,
    /// Receives that were posted, in order, and what of it has come before its turn.
    posted: VecDeque<Request>,
    early: HashMap<Request, Vec<u8>>,
    /// What it says that it has sent.
    end: Option<[u64; 3]>,
}

impl Sender {
    fn is_complete(&self) -> bool {
        self.end.is_some_and(|[messages, ..]| messages <= self.tally.messages)
    }
}

/// All who send.
struct Service {
    endpoint: Side,
    senders: HashMap<Peer, Sender>,
    /// More of them are hung up on.
    most: usize,
    looks: u32,
}

/// What has happened.
enum Happened {
    /// Nothing that matters.
    Nothing,
    /// Somebody has sent all, or has gone.
    Ended(Sender, bool),
}

impl Service {
    fn new(endpoint: Side, most: usize) -> Result<Self, Failure> {
        let service = Self { endpoint, senders: HashMap::new(), most, looks: 0 };
        service.wait_for_begin()?;
        Ok(service)
    }

    fn wait_for_begin(&self) -> Result<(), Failure> {
        self.endpoint.receive(None, BEGIN, EXACT, vec![0; WORDS]).map(drop)
    }

    /// Doorbells that nobody wants: this program wants none. A card refuses them where they are rung.
    fn bells_unwanted(&self) -> Cell {
        self.endpoint.own().map_or(Cell::Missing, |own| Cell::Count(own.bells_unwanted()))
    }

    /// Waits for the next thing, a while. What is to be written is given to `write`.
    fn next(&mut self, write: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<Happened, Failure> {
        let ended = self.endpoint.next(LOOK)?;
        self.looks = self.looks.wrapping_add(1);
        if ended.is_none() || self.looks.is_multiple_of(LOOKS) {
            while let Some(event) = self.endpoint.event()? {
                // Its receives have ended, and what was left was not asked for.
                if let Event::Lost(peer, _) = event {
                    self.endpoint.leave(peer);
                }
            }
        }
        ended.map_or(Ok(Happened::Nothing), |ended| self.ended(ended, write))
    }

    fn ended(&mut self, ended: Ended, write: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<Happened, Failure> {
        let (Outcome::Received { tag, .. }, Some(peer)) = (ended.outcome, ended.from) else {
            // Who has gone: all that came of it was before this.
            let is_its = |sender: &Sender| ended.outcome == Outcome::Lost && sender.posted.contains(&ended.request);
            let gone = self.senders.iter().find(|(_, sender)| is_its(sender)).map(|(peer, _)| *peer);
            return Ok(gone.map_or(Happened::Nothing, |peer| self.end(peer, false)));
        };
        if tag == BEGIN {
            self.begin(peer, &ended.buffer);
            self.wait_for_begin()?;
            return Ok(Happened::Nothing);
        }
        let Some(sender) = self.senders.get_mut(&peer) else { return Ok(Happened::Nothing) };
        if tag == END {
            sender.end = heard(&ended.buffer);
            if sender.end.is_none() {
                return Ok(self.end(peer, false));
            }
        } else {
            sender.early.insert(ended.request, ended.buffer);
            while let Some(bytes) = sender.posted.front().and_then(|first| sender.early.remove(first)) {
                sender.posted.pop_front();
                sender.tally.add(&bytes, sender.what);
                write(&bytes).map_err(Failure::Output)?;
                let mut bytes = bytes;
                bytes.resize(bytes.capacity(), 0);
                sender.posted.extend(self.endpoint.receive(Some(peer), DATA, EXACT, bytes));
            }
        }
        if !sender.is_complete() {
            // Who has gone, and had sent less than it should.
            let is_gone = sender.posted.is_empty();
            return Ok(if is_gone { self.end(peer, false) } else { Happened::Nothing });
        }
        let words = sender.tally.words();
        let is_right = sender.end == Some(words);
        let answered = self.endpoint.send(peer, SEEN, said(words), None);
        Ok(self.end(peer, is_right && answered.is_ok()))
    }

    fn end(&mut self, peer: Peer, is_right: bool) -> Happened {
        let Some(sender) = self.senders.remove(&peer) else { return Happened::Nothing };
        for request in &sender.posted {
            self.endpoint.cancel(*request);
        }
        Happened::Ended(sender, is_right)
    }

    /// Somebody says what he will send.
    fn begin(&mut self, peer: Peer, words: &[u8]) {
        let Some([size @ ..=LONGEST, what @ 0..3, 0]) = heard(words) else {
            return self.endpoint.leave(peer);
        };
        if self.senders.len() >= self.most || self.senders.contains_key(&peer) {
            return self.endpoint.leave(peer);
        }
        if what == What::Pings as u64 {
            return self.answer(peer, size as usize);
        }
        let what = if what == 0 { What::Count } else { What::Check };
        let receive = |tag, len| self.endpoint.receive(Some(peer), tag, EXACT, vec![0; len]);
        let posted = (0..depth(size)).filter_map(|_| receive(DATA, size as usize).ok()).collect();
        let _ = receive(END, WORDS);
        let name = self.endpoint.who(peer).map_or_else(String::new, |who| match (who.host, who.pid) {
            (Some(host), _) => format!("host {host}"),
            (None, Some(pid)) => format!("process {pid}"),
            (None, None) => format!("user {}", who.user),
        });
        let (begin, tally, early) = (Moment::now(), Tally::default(), HashMap::new());
        self.senders.insert(peer, Sender { name, what, begin, tally, posted, early, end: None });
        let _ = self.endpoint.send(peer, READY, said([0; 3]), None);
    }

    /// Sends back what comes from one, until it has had enough. Nobody else is looked at meanwhile.
    fn answer(&self, peer: Peer, size: usize) {
        let Ok(ready) = self.endpoint.send(peer, READY, said([0; 3]), None) else { return };
        let _ = self.endpoint.wait(ready, THOUGHT);
        let Some(own) = self.endpoint.own().filter(|_| size <= MOST_EAGER) else {
            let mut buffer = vec![0; size];
            loop {
                let Ok(ping) = self.endpoint.receive(Some(peer), PING, EXACT, buffer) else { return };
                let Ok(Some(came)) = self.endpoint.wait(ping, THOUGHT) else { return self.endpoint.leave(peer) };
                if came.buffer.is_empty() || !matches!(came.outcome, Outcome::Received { .. }) || stop::asked() {
                    return;
                }
                let Ok(sent) = self.endpoint.send(peer, PING, came.buffer, None) else { return };
                let Ok(Some(sent)) = self.endpoint.wait(sent, THOUGHT) else { return self.endpoint.leave(peer) };
                buffer = sent.buffer;
                buffer.resize(size, 0);
            }
        };
        let (mut buffer, mut last, mut looks) = (vec![0; size], Instant::now(), 0_u32);
        loop {
            match own.receive_short(peer, PING, EXACT, &mut buffer) {
                Ok(Some(Taken::Message { len: 1.., .. })) => {
                    while !own.send_short(peer, PING, &buffer) {
                        own.progress();
                        if last.elapsed() > THOUGHT || stop::asked() {
                            return self.endpoint.leave(peer);
                        }
                    }
                    looks = 0;
                }
                Ok(Some(_)) | Err(_) => return,
                Ok(None) => core::hint::spin_loop(),
            }
            looks += 1;
            if looks == 1 {
                last = Instant::now();
            }
            if looks.is_multiple_of(1 << 12) && (last.elapsed() > THOUGHT || stop::asked()) {
                return self.endpoint.leave(peer);
            }
        }
    }
}

fn row(command: &str, sender: &Sender, is_right: bool) -> Row {
    let seconds = sender.begin.seconds();
    let [messages, bytes, found] = sender.tally.words();
    let row = Row::new()
        .tag("command", command)
        .text("from", &sender.name)
        .count("messages", messages)
        .count("bytes", bytes)
        .number("seconds", seconds, 6)
        .number("gbps", bytes as f64 * 8.0 / seconds / 1e9, 3);
    sum(row, sender.what, found).text("complete", if is_right { "yes" } else { "no" })
}

/// Runs `listen`.
pub fn listen(shared: &Shared, args: &ListenArgs) -> Result<(), Failure> {
    let mut service = Service::new(open(&args.name, &args.users, &args.rails, &args.card)?, usize::MAX)?;
    note(format!("{} is open; Ctrl-C ends it", args.name));
    let mut left = shared.count.unwrap_or(u64::MAX);
    while left > 0 && !stop::asked() {
        if let Happened::Ended(sender, is_right) = service.next(&mut |_| Ok(()))? {
            let row = row("message listen", &sender, is_right).beside("bells_unwanted", service.bells_unwanted());
            Output::new(shared.json).rows("message listen", &[row])?;
            left -= 1;
        }
    }
    if left > 0 && shared.count.is_some() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Runs `receive`.
pub fn receive(shared: &Shared, args: &ReceiveArgs) -> Result<(), Failure> {
    let is_standard = args.file == Path::new("-");
    if is_standard && shared.json {
        return Err(Failure::Usage(
            "what is received goes to standard output: name a file, or leave out --json".to_owned(),
        ));
    }
    let mut service = Service::new(open(&args.name, &args.users, &args.rails, &args.card)?, 1)?;
    let failed = |source| Failure::File { doing: "cannot write", path: args.file.clone(), source };
    let mut file = Target::open(&args.file).map_err(failed)?;
    note(format!("{} is open; Ctrl-C ends it", args.name));
    while !stop::asked() {
        let happened = service.next(&mut |bytes| file.write(bytes));
        // Of the file, if it was one.
        let happened = happened.map_err(|failure| match failure {
            Failure::Output(source) if !is_standard => failed(source),
            other => other,
        })?;
        let Happened::Ended(sender, is_right) = happened else { continue };
        if is_right {
            file.complete().map_err(failed)?;
        }
        if !is_standard {
            Output::new(shared.json).rows("message receive", &[row("message receive", &sender, is_right)])?;
        }
        let broken = || Failure::Found("the sender has ended before it had sent everything".to_owned());
        return if is_right { Ok(()) } else { Err(broken()) };
    }
    Err(Failure::Interrupted)
}
