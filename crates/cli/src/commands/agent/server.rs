//! All connections, and the card: one thread, which gives each a bounded turn.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use millrace::Device;
use millrace_agent::crowd::patience::Patience;
use millrace_agent::crowd::places::{Caller, Network, Place, gives_way, place};
use millrace_agent::crowd::share::{Party, Shares};
use millrace_agent::switch::datapath::Datapath;
use millrace_agent::switch::tunnels::FirstTable;
use millrace_agent::switch::{Identity, Switch, Verdict};
use millrace_tool::failure::{Failure, While};
use millrace_tool::output::note;
use millrace_tool::stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::AgentArgs;
use super::address::Address;
use super::card::Card;
use super::link::Link;
use super::remarks::Remarks;
use super::state::State;
use super::status;
use super::stream::{Stream, is_later};
use super::tls::Tls;
use super::vxlan;

/// Messages of one connection before the others have their turn, and how long it may have it: one message can be much work.
const TURN: usize = 256;
const TURN_TIME: Duration = Duration::from_millis(2);
/// How long turns are given before it is looked again who wants something.
const ROUND: Duration = Duration::from_millis(5);
/// How long TLS may find out at a time who others are.
const HANDSHAKES: Duration = Duration::from_millis(5);
/// Entries that are looked at for the packets of one connection before the others have their turn.
const LOOKS: usize = 1 << 18;
/// Bytes for all controllers that wait to be written: above, the one who has most of them goes.
const UNREAD: usize = 256 << 20;
/// How long nobody is accepted when there are no fds left.
const PAUSE: Duration = Duration::from_millis(100);
/// Above so many answers that wait to be written nobody is heard: one question may have thousands of them.
const ANSWERS: usize = 1024;
/// How long is slept at most, and how often ports are looked at.
const NAP: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(500);
/// The same while packets for controllers are listened to: workers make no system call to say that they have something.
const LISTEN: Duration = Duration::from_millis(2);
/// How long until a controller is dialled again: from the first to the longest.
const SOON: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(8);

/// A controller that is dialled.
struct Dialled {
    to: Address,
    /// When it is dialled next, if there is no connection.
    next: Instant,
    wait: Duration,
}

/// What is to be looked at.
struct News {
    /// Somebody connects.
    callers: bool,
    /// Something has become of rules.
    rules: bool,
    /// Somebody asks for the status.
    status: bool,
}

/// All of it.
pub struct Server<'a> {
    args: &'a AgentArgs,
    card: Card<'a>,
    switch: Switch,
    tls: Option<Tls>,
    listeners: Vec<(TcpListener, bool)>,
    dialled: Vec<Dialled>,
    links: BTreeMap<u64, Link>,
    last: u64,
    state: State,
    control: Option<UnixListener>,
    begin: Instant,
    looked: Instant,
    /// Connections for which there was no room.
    turned_away: u64,
    /// Connections that could not begin TLS.
    untrusted: u64,
    /// What is said of them.
    remarks: Remarks,
    /// Nobody is accepted before.
    accepts_from: Instant,
    /// Packets for controllers are listened to.
    listens: bool,
    /// What each had of the time.
    shares: Shares,
    /// Who had the last turn: what was collected is his.
    turned: Option<(Party, u64)>,
    /// Whose handshake was looked at last: the next look begins behind.
    shaken: u64,
    /// The clock that stands while nobody could be heard, and what it says.
    patience: Patience,
    patient: Instant,
}

impl<'a> Server<'a> {
    /// Listens, and takes up what the last agent has left.
    pub fn new(args: &'a AgentArgs, device: &'a Device) -> Result<Self, Failure> {
        let tls = Tls::new(&args.tls)?;
        if let Some(address) = args.listen.iter().chain(&args.connect).find(|address| address.tls && tls.is_none()) {
            return Err(Failure::Usage(format!("{address} takes --tls-key, --tls-cert and --tls-ca")));
        }
        let doing = || "cannot serve the card's flow table".to_owned();
        let tunnels: Vec<_> = args.vxlan.iter().map(|vxlan| vxlan.port.clone()).collect();
        let first = FirstTable::new(&tunnels).map_err(Failure::Usage)?;
        let mut card = Card::new(device, first).doing(doing)?;
        let ports = card.ports().map_err(|why| Failure::Found(format!("{}: {why:?}", doing())))?.0;
        vxlan::check(&tunnels, ports.len() as u32)?;
        let now = Instant::now();
        let listeners = args.listen.iter().map(|address| {
            let listener = TcpListener::bind(address.socket);
            let listener = listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
            let listener = listener.map(|listener| (listener, address.tls));
            listener.map_err(|error| Failure::Found(format!("cannot listen at {address}: {error}")))
        });
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let dial = |to: &Address| Dialled { to: *to, next: now, wait: SOON };
        let dialled = args.connect.iter().map(dial).collect();
        let mut switch = Switch::new(identity(args, device)).with_tunnels(tunnels);
        let mut state = State::open(args.state.as_deref(), device)?;
        switch.look_at_ports(&mut card);
        let left = state.left()?;
        card.read_as(left.is_behind.filter(|_| left.is_of_this_card), left.had);
        let known = switch.restore(&left.messages, left.is_of_this_card, &mut card);
        let changes = known.map_err(|why| Failure::Found(format!("cannot take up {}: {why:?}", state.place())))?;
        let moved = card.take_over(&changes);
        let moved = moved.map_err(|why| Failure::Found(format!("the card takes no rules: {why:?}")))?;
        if moved {
            note(
                "entries are in other tables of the card than before (--vxlan): their counters go on, durations and timeouts begin anew",
            );
        }
        state.know(card.is_behind(), card.had().clone());
        let [flows, groups, meters] = switch.counts();
        if flows + groups + meters > 0 {
            note(format!("took up {flows} entries, {groups} groups, {meters} meters from {}", state.place()));
        }
        let over = switch.losses().untold;
        if over > 0 {
            note(format!("{over} entries have gone meanwhile, by their timeouts: it is not known what they had"));
        }
        let kept = switch.left_out();
        if kept > 0 {
            note(format!(
                "{kept} changes of {} cannot be now, such as entries of ports that are not there: they stay in it for the next agent",
                state.place()
            ));
        }
        state.write_all(&switch);
        let control = status::listen(device.name(), args.control.as_deref());
        for address in &args.listen {
            note(format!("controllers may connect to {address}"));
        }
        Ok(Self {
            args,
            card,
            switch,
            tls,
            listeners,
            dialled,
            links: BTreeMap::new(),
            last: 0,
            state,
            control,
            begin: now,
            looked: now,
            turned_away: 0,
            untrusted: 0,
            remarks: Remarks::new(now),
            accepts_from: now,
            listens: false,
            shares: Shares::default(),
            turned: None,
            shaken: 0,
            patience: Patience::new(now),
            patient: now,
        })
    }

    /// Serves, until Ctrl-C or the card ends.
    pub fn run(mut self) -> Result<(), Failure> {
        while !stop::asked() {
            let news = self.sleep();
            let now = Instant::now();
            self.patient = self.patience.look(now);
            self.switch.set_now(now - self.begin);
            if news.callers {
                self.accept(now);
            }
            self.dial(now);
            self.hear(now);
            self.settle();
            // Whoever waits for an answer has it before all else is looked after.
            self.state.write(&mut self.switch);
            self.tell(now);
            if news.rules {
                let gone = self.card.happened();
                self.switch.gone(&gone);
                if self.card.has_lost() || self.switch.waits_in_vain() {
                    note("more rules have gone than could be told: looking for them in the card");
                    self.switch.look_for_gone(&mut self.card);
                }
            }
            self.card.mend();
            let wanted = [self.switch.wants_packets(), self.switch.wants_expired()];
            self.listens = self.card.listen(wanted, self.args.packet_in_rate);
            for heard in self.card.heard() {
                self.switch.packet_in(heard, &mut self.card);
            }
            if now - self.looked >= LOOK {
                self.looked = now;
                self.switch.look_at_bundles();
                self.switch.look_at_ports(&mut self.card);
                if self.state.is_behind() {
                    self.state.write_all(&self.switch);
                }
            }
            self.state.write(&mut self.switch);
            self.tell(now);
            if news.status {
                self.answer_status(now);
            }
            if let Some(why) = self.card.gone.take() {
                return Err(Failure::Found(why));
            }
        }
        Ok(())
    }

    /// Waits for something to do.
    fn sleep(&self) -> News {
        let busy = self.links.values().any(Link::has_message);
        let nap = match self.listens {
            _ if busy || self.card.has_more() => Duration::ZERO,
            true => LISTEN,
            false => NAP,
        };
        let listeners = self.listeners.iter().filter(|_| Instant::now() >= self.accepts_from);
        let mut fds: Vec<_> = listeners.map(|(listener, _)| PollFd::new(listener, PollFlags::IN)).collect();
        let callers = fds.len();
        fds.push(PollFd::new(self.card.watched(), PollFlags::IN));
        fds.extend(self.control.iter().map(|control| PollFd::new(control, PollFlags::IN)));
        let own = fds.len();
        for link in self.links.values() {
            let (reads, writes) = link.interest();
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, reads);
            flags.set(PollFlags::OUT, writes);
            fds.push(PollFd::new(link.socket(), flags));
        }
        let nap = Timespec { tv_sec: 0, tv_nsec: i64::from(nap.subsec_nanos()) };
        // A signal is as good as the time.
        let _ = poll(&mut fds, Some(&nap));
        let any = |fds: &[PollFd<'_>]| fds.iter().any(|fd| !fd.revents().is_empty());
        News {
            callers: any(&fds[..callers]),
            rules: any(&fds[callers..=callers]) || self.card.has_more(),
            status: any(&fds[callers + 1..own]),
        }
    }

    fn accept(&mut self, now: Instant) {
        let mut came = Vec::new();
        for (listener, tls) in &self.listeners {
            // A bounded number, so that those who are there have their turn.
            for _ in 0..16 {
                match listener.accept() {
                    Ok((socket, peer)) => came.push((socket, peer, *tls)),
                    Err(error) if is_later(&error) => break,
                    Err(_) => {
                        // Without fds the same caller would be told of again and again.
                        self.accepts_from = now + PAUSE;
                        break;
                    }
                }
            }
        }
        for (socket, peer, tls) in came {
            let secret = self.tls.as_ref().filter(|_| tls).map(Tls::accept).transpose();
            let secret = match secret {
                Ok(secret) => secret,
                Err(error) => {
                    self.untrusted(peer, &error.to_string(), now);
                    continue;
                }
            };
            if let Ok(stream) = Stream::new(socket, secret) {
                self.last += 1;
                self.links.insert(self.last, Link::new(stream, peer, None, [now, self.patient]));
                self.switch.connected(self.last);
            }
            if let Some(number) = gives_way(&self.callers(false)) {
                self.turn_away(number);
            }
        }
    }

    /// Connections that others have begun: those that have a place, or those that have not.
    fn callers(&self, seated: bool) -> Vec<Caller> {
        let meant = self.links.iter().filter(|(_, link)| link.dialled.is_none() && link.seated == seated);
        meant.map(|(number, link)| caller(*number, link)).collect()
    }

    /// One that has said hello takes a place, if there is one for it.
    fn seat(&mut self, number: u64) {
        let waits = |link: &&Link| link.greeted && !link.seated && !link.ending;
        let Some(of) = self.links.get(&number).filter(waits).map(|link| caller(number, link)) else { return };
        match place(&of, &self.callers(true)) {
            Place::Free => {}
            Place::Of(other) => self.turn_away(other),
            Place::None => return self.turn_away(number),
        }
        self.links.entry(number).and_modify(|link| link.seated = true);
    }

    /// One that others have begun goes, since others need its place.
    fn turn_away(&mut self, number: u64) {
        self.turned_away += 1;
        self.forget(number);
    }

    /// A connection could not begin TLS. Who calls again and again does not fill the log.
    fn untrusted(&mut self, peer: SocketAddr, why: &str, now: Instant) {
        self.untrusted += 1;
        if let Some(remark) = self.remarks.made(format!("no TLS with {peer}: {why}"), now) {
            note(remark);
        }
    }

    /// Connects to those who are not connected, when it is time.
    fn dial(&mut self, now: Instant) {
        for at in 0..self.dialled.len() {
            let there = self.links.values().any(|link| link.dialled == Some(at));
            let dialled = &mut self.dialled[at];
            if there || dialled.next > now {
                continue;
            }
            dialled.next = now + dialled.wait;
            dialled.wait = (dialled.wait * 2).min(LATE);
            let to = dialled.to;
            let secret = self.tls.as_ref().filter(|_| to.tls).map(|tls| tls.connect(to.socket.ip())).transpose();
            let secret = match secret {
                Ok(secret) => secret,
                Err(error) => {
                    self.untrusted(to.socket, &error.to_string(), now);
                    continue;
                }
            };
            if let Ok(stream) = begin(to.socket).and_then(|socket| Stream::new(socket, secret)) {
                self.last += 1;
                self.links.insert(self.last, Link::new(stream, to.socket, Some(at), [now, self.patient]));
            }
        }
    }

    /// Reads what has been said, and gives turns to those who have.
    fn hear(&mut self, now: Instant) {
        let mut ended = self.read(now);
        self.take_turns();
        for (&number, link) in &mut self.links {
            // What has come before the end counts, all of it: that may take some turns.
            if link.is_over() {
                ended.push((number, link.closing.take().unwrap_or_default()));
            } else if let Some(why) = link.look(self.patient, self.args.probe()) {
                ended.push((number, why.to_owned()));
            }
        }
        for (number, why) in ended {
            self.end(number, &why, now);
        }
    }

    /// Reads once from each; who could not be reached.
    fn read(&mut self, now: Instant) -> Vec<(u64, String)> {
        let mut failed = Vec::new();
        let mut shaking = Duration::ZERO;
        let (behind, before): (Vec<_>, Vec<_>) = self.links.keys().copied().partition(|number| *number > self.shaken);
        for number in behind.into_iter().chain(before) {
            let Some(link) = self.links.get_mut(&number) else { continue };
            if !link.connected {
                match arrived(link) {
                    Ok(false) => {}
                    Ok(true) => {
                        link.arrived([now, self.patient]);
                        self.switch.connected(number);
                    }
                    Err(error) => failed.push((number, error.to_string())),
                }
                continue;
            }
            let shakes = link.is_handshaking();
            if !link.interest().0 || shakes && shaking > HANDSHAKES {
                continue;
            }
            let begin = Instant::now();
            if let Err(error) = link.read(self.patient) {
                link.closing = Some(error.to_string());
            }
            if shakes {
                shaking += begin.elapsed();
                self.shaken = number;
            }
        }
        failed
    }

    /// Turns for those who have said something, as they are due.
    fn take_turns(&mut self) {
        let begin = Instant::now();
        while begin.elapsed() < ROUND && self.switch.outgoing() <= ANSWERS {
            let wanting = self.links.iter().filter(|(_, link)| link.connected && link.has_message());
            let wanting = wanting.map(|(number, link)| (party(link), *number));
            let Some(next) = self.shares.next(wanting) else { return };
            if self.turned.is_some_and(|last| last != next) {
                self.settle();
            }
            self.turned = Some(next);
            let Some(link) = self.links.get_mut(&next.1) else { return };
            let clock = Instant::now();
            let spent = link.take_spent();
            turn(&mut self.switch, &mut self.card, next.1, link, self.patient);
            self.shares.had(next, spent + clock.elapsed());
            self.seat(next.1);
        }
    }

    /// Does what was collected, which whoever had the last turn pays for.
    fn settle(&mut self) {
        let clock = Instant::now();
        self.switch.settle(&mut self.card);
        if let Some(last) = self.turned {
            self.shares.had(last, clock.elapsed());
        }
    }

    /// Writes what is there for each.
    fn tell(&mut self, now: Instant) {
        for outgoing in self.switch.take_outgoing() {
            if let Some(link) = self.links.get_mut(&outgoing.controller) {
                link.say(outgoing.xid, &outgoing.message);
            }
        }
        let mut ended = Vec::new();
        for (&number, link) in self.links.iter_mut().filter(|(_, link)| link.connected) {
            match link.write(self.patient) {
                Ok(()) if link.ending && link.is_empty() => {
                    ended.push((number, "it speaks another protocol".to_owned()))
                }
                Ok(()) => {}
                // What it has said before counts all the same.
                Err(error) => link.close(error.to_string()),
            }
            if link.is_over() {
                ended.push((number, link.closing.take().unwrap_or_default()));
            }
        }
        let all: usize = self.links.values().map(Link::unwritten).sum();
        if all > UNREAD
            && let Some((number, _)) = self.links.iter().max_by_key(|(_, link)| link.unwritten())
        {
            ended.push((*number, "it does not read, and others need the room".to_owned()));
        }
        for (number, why) in ended {
            self.end(number, &why, now);
        }
    }

    fn forget(&mut self, number: u64) -> Option<Link> {
        let link = self.links.remove(&number)?;
        self.switch.disconnected(number);
        self.turned = self.turned.filter(|(_, last)| *last != number);
        self.shares.ended((party(&link), number));
        Some(link)
    }

    fn end(&mut self, number: u64, why: &str, now: Instant) {
        let Some(link) = self.forget(number) else { return };
        if let Some(dialled) = link.dialled.and_then(|at| self.dialled.get_mut(at)) {
            if link.messages[0] > 0 {
                // It was there: it is asked for soon again.
                dialled.wait = SOON;
                dialled.next = now + SOON;
            }
            note(format!("controller {} is gone: {why}", link.peer));
        } else if link.is_handshaking() {
            self.untrusted(link.peer, why, now);
        }
    }

    fn answer_status(&self, now: Instant) {
        let Some(control) = &self.control else { return };
        let Ok((stream, _)) = control.accept() else { return };
        let controllers = self.links.iter().map(|(&number, link)| status::Controller {
            peer: link.peer.to_string(),
            dialled: link.dialled.is_some(),
            role: self.switch.role_name(number).unwrap_or("-").to_owned(),
            seconds: (now - link.since).as_secs(),
            received: link.messages[0],
            sent: link.messages[1],
            lost: link.lost,
        });
        let [flows, groups, meters] = self.switch.counts().map(|count| count as u64);
        let behind = self.switch.behind() as u64;
        let (turned_away, untrusted) = (self.turned_away, self.untrusted);
        let (of_switch, of_card) = (self.switch.losses(), self.card.losses());
        let losses = status::Losses {
            unheard: of_card.unheard,
            unknown: of_switch.unknown,
            kept: of_switch.kept,
            unsent: of_card.unsent,
            untold: of_switch.untold,
        };
        let controllers = controllers.collect();
        let status = status::Status { flows, groups, meters, behind, turned_away, untrusted, losses, controllers };
        status::answer(stream, &status);
    }
}

fn caller(number: u64, link: &Link) -> Caller {
    Caller { number, network: Network::of(link.peer.ip()), is_certified: link.is_certified() }
}

fn party(link: &Link) -> Party {
    link.dialled.map_or_else(|| Party::Network(Network::of(link.peer.ip())), Party::Called)
}

fn turn(switch: &mut Switch, card: &mut Card<'_>, number: u64, link: &mut Link, now: Instant) {
    let begin = Instant::now();
    let mut looked_at = 0;
    for _ in 0..TURN {
        looked_at += switch.take_looked_at();
        if switch.outgoing() > ANSWERS || looked_at > LOOKS || begin.elapsed() > TURN_TIME {
            return;
        }
        let Some((header, bytes)) = link.next(now) else { return };
        if switch.handle(number, &header, &bytes, card) == Verdict::End {
            link.ending = true;
        }
        // Whether it has a place is asked before anything else that it says.
        if !link.seated && link.greeted {
            return;
        }
    }
}

/// Begins to connect.
fn begin(peer: SocketAddr) -> io::Result<TcpStream> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &peer) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the connection is there by now.
fn arrived(link: &Link) -> io::Result<bool> {
    let mut fds = [PollFd::new(link.socket(), PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut fds, Some(&now))? == 0 {
        return Ok(false);
    }
    sockopt::socket_error(link.socket())?.map_err(io::Error::from)?;
    Ok(true)
}

/// Who the switch is: unless told otherwise, by the names of host and card.
fn identity(args: &AgentArgs, device: &Device) -> Identity {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy().into_owned();
    let name = format!("{host} {}", device.name());
    // FNV-1a; the upper 16 bits stay 0, as with the bridges of Open vSwitch.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    Identity {
        datapath: args.datapath_id.unwrap_or((hash & 0xffff_ffff_ffff).max(1)),
        version: millrace_tool::VERSION.to_owned(),
        serial: device.card_pid().to_string(),
        description: name,
    }
}
