//! `millrace pppoe connect`: carries frames between the interface and the client, and packets between the session and Linux.

use std::time::{Duration, Instant};

use millrace_port::ether::{EtherInterface, EtherSocket};
use millrace_pppoe::data::{DataError, HEADER_LEN, put_on};
use millrace_pppoe::{Client, Event, MacAddress, Received, Session, clamp, frame};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ConnectArgs;
use super::network::Network;
use super::router::Told;
use super::state::{Content, StateFile};
use super::told::tell;

/// Frames of a socket, and packets of Linux, before the others have their turn.
const BURST: usize = 64;
/// How long is slept at most: Ctrl-C is not waited for longer.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of the longest frame: an MTU is at most 9000.
const LONGEST: usize = 9000 + HEADER_LEN + 4;

/// What was carried, and what was not.
#[derive(Debug, Default)]
struct Carried {
    sent: u64,
    sent_bytes: u64,
    received: u64,
    received_bytes: u64,
    clamped: u64,
    no_session: u64,
    /// By [`DataError::NAMES`].
    unsendable: [u64; DataError::NAMES.len()],
    /// What the interface, or Linux, did not take.
    refused: [u64; 2],
}

/// All of it.
struct Carrier<'a> {
    args: &'a ConnectArgs,
    output: Output,
    begin: Instant,
    client: Client,
    discovery: EtherSocket,
    session: EtherSocket,
    network: Network,
    state: StateFile,
    router: Told,
    carried: Carried,
    /// There has been a session.
    was_up: bool,
    /// There is nothing more to be done.
    over: bool,
    /// Why it ends, if that is an error.
    error: Option<Failure>,
}

/// Runs the command.
pub(super) fn run(shared: &Shared, args: &ConnectArgs) -> Result<(), Failure> {
    let config = args.config()?;
    let ether = EtherInterface::open(&args.interface).map_err(refused)?;
    if u32::from(args.mru) + 8 > ether.mtu {
        return Err(Failure::Usage(format!(
            "{name} has an MTU of {}, and packets of {} bytes take {needed}: ip link set {name} mtu {needed}, or --mru {}",
            ether.mtu,
            args.mru,
            ether.mtu.saturating_sub(8),
            name = args.interface,
            needed = u32::from(args.mru) + 8,
        )));
    }
    let (discovery, session) = (frames(&ether, frame::DISCOVERY)?, frames(&ether, frame::SESSION)?);
    // From here on, nobody else has the session that is in the file.
    let network = Network::new(&args.name, args.default_route)?;
    let state = StateFile::new(args.state.as_deref(), &args.name);
    let own = MacAddress(ether.mac);
    let mut client = Client::new(config, own, fastrand::u64(..), Duration::ZERO)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    if let Some(left) = state.left().filter(|left| left.interface == args.interface.as_str() && left.session.own == own)
    {
        note(format!("ends session {:#06x}, which process {} has left", left.session.session, left.pid));
        client.forget(left.session.ac, left.session.session);
        state.remove();
    }
    let router = Told::new(&args.router, args.interface.to_string(), args.name.to_string());
    let (output, begin, carried) = (Output::new(shared.json), Instant::now(), Carried::default());
    let carrier = Carrier {
        args,
        output,
        begin,
        client,
        discovery,
        session,
        network,
        state,
        router,
        carried,
        was_up: false,
        over: false,
        error: None,
    };
    carrier.run()
}

fn frames(ether: &EtherInterface, kind: u16) -> Result<EtherSocket, Failure> {
    ether.frames(kind).map_err(refused)
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::Found(error.to_string())
}

impl Carrier<'_> {
    fn run(mut self) -> Result<(), Failure> {
        let mut closing = false;
        loop {
            let now = self.begin.elapsed();
            if stop::asked() && !std::mem::replace(&mut closing, true) {
                self.client.close(now);
            }
            if self.client.next_tick().is_some_and(|next| next <= now) {
                self.client.tick(now);
            }
            self.settle(now)?;
            if self.over {
                break;
            }
            self.sleep(now);
            self.hear(true)?;
            self.hear(false)?;
            self.carry_out()?;
        }
        self.output.rows("pppoe connect", &[self.row()])?;
        self.error.take().map_or(Ok(()), Err)
    }

    /// Sends what the client has to send, and says what has happened.
    fn settle(&mut self, now: Duration) -> Result<(), Failure> {
        while let Some(event) = self.client.take_event() {
            tell(self.output, &event)?;
            match &event {
                Event::Up(session) | Event::Changed(session) => self.up(now, session),
                Event::Down(why) => {
                    self.network.leave();
                    self.router.session(None);
                    self.state.remove();
                    self.give_up(now, why, self.args.once);
                }
                // Nobody is to lock an account, or wait for what does not come.
                Event::Failed(why) => self.give_up(now, why, self.args.once || why.needs_somebody() && !self.was_up),
                Event::Closed => self.over = true,
                _ => {}
            }
        }
        while let Some(frame) = self.client.take_frame() {
            let kind = if frame[12..14] == frame::DISCOVERY.to_be_bytes() { &self.discovery } else { &self.session };
            if kind.send(&frame).is_err() {
                self.carried.refused[0] += 1;
            }
        }
        Ok(())
    }

    fn give_up(&mut self, now: Duration, why: &millrace_pppoe::Failure, really: bool) {
        if really && self.error.is_none() && *why != millrace_pppoe::Failure::Closed {
            self.error = Some(Failure::Found(why.to_string()));
            self.client.close(now);
        }
    }

    fn up(&mut self, now: Duration, session: &Session) {
        self.was_up = true;
        if let Err(error) = self.network.follow(session) {
            // The other side is told that the session ends.
            self.error.get_or_insert(error);
            self.client.close(now);
            return;
        }
        self.router.session(Some(session));
        let (interface, name) = (self.args.interface.to_string(), self.args.name.to_string());
        self.state.write(&Content { interface, name, pid: std::process::id(), session: session.clone() });
    }

    fn sleep(&self, now: Duration) {
        let next = self.client.next_tick().map_or(LOOK, |next| next.saturating_sub(now)).min(LOOK);
        let next = Timespec { tv_sec: 0, tv_nsec: i64::from(next.subsec_nanos()) };
        let mut fds = [
            PollFd::new(&self.discovery, PollFlags::IN),
            PollFd::new(&self.session, PollFlags::IN),
            PollFd::new(&self.network.tun, PollFlags::IN),
        ];
        // A signal is as good as the time.
        let _ = poll(&mut fds, Some(&next));
    }

    /// Frames from the interface.
    fn hear(&mut self, discovery: bool) -> Result<(), Failure> {
        let mut buffer = [0; LONGEST];
        for _ in 0..BURST {
            let socket = if discovery { &self.discovery } else { &self.session };
            // An interface that is down says so once, and may come back.
            let Ok(Some(len)) = socket.receive(&mut buffer) else { return Ok(()) };
            let now = self.begin.elapsed();
            let mtu = self.client.session().map_or(0, |session| session.mtu);
            if let Received::Packet(packet) = self.client.receive(now, &buffer[..len]) {
                let packet_len = packet.len();
                let at = packet.as_ptr().addr() - buffer.as_ptr().addr();
                self.carry_in(&mut buffer[at..at + packet_len], mtu);
            }
            self.settle(now)?;
        }
        Ok(())
    }

    fn carry_in(&mut self, packet: &mut [u8], mtu: u16) {
        self.carried.clamped += u64::from(clamp::clamp(packet, mtu));
        match self.network.tun.send(packet) {
            Ok(()) => {
                self.carried.received += 1;
                self.carried.received_bytes += packet.len() as u64;
            }
            Err(_) => self.carried.refused[1] += 1,
        }
    }

    /// Packets from Linux.
    fn carry_out(&mut self) -> Result<(), Failure> {
        let mut buffer = [0; LONGEST];
        for _ in 0..BURST {
            let got = self.network.tun.receive(&mut buffer[HEADER_LEN..]);
            let Some(len) = got.map_err(|error| Failure::Found(format!("{} is gone: {error}", self.args.name)))? else {
                return Ok(());
            };
            let Some(session) = self.client.session() else {
                self.carried.no_session += 1;
                continue;
            };
            let packet = &mut buffer[HEADER_LEN..HEADER_LEN + len];
            self.carried.clamped += u64::from(clamp::clamp(packet, session.mtu));
            match put_on(session, packet) {
                Ok(header) => buffer[..HEADER_LEN].copy_from_slice(&header),
                Err(error) => {
                    self.carried.unsendable[error.index()] += 1;
                    continue;
                }
            }
            match self.session.send(&buffer[..HEADER_LEN + len]) {
                Ok(()) => {
                    self.carried.sent += 1;
                    self.carried.sent_bytes += len as u64;
                }
                Err(_) => self.carried.refused[0] += 1,
            }
        }
        Ok(())
    }

    fn row(&self) -> Row {
        let Carried { sent, sent_bytes, received, received_bytes, clamped, no_session, unsendable, refused } =
            &self.carried;
        let mut received_not: Vec<_> = self.client.unheard().map(|(why, count)| (why.name(), count)).collect();
        received_not.push(("not-taken-by-linux", refused[1]));
        let mut sent_not: Vec<_> = DataError::NAMES.into_iter().zip(*unsendable).collect();
        sent_not.extend([("no-session", *no_session), ("not-taken-by-interface", refused[0])]);
        for counts in [&mut received_not, &mut sent_not] {
            counts.retain(|(_, count)| *count > 0);
        }
        Row::new()
            .tag("event", "carried")
            .text("interface", &self.args.interface)
            .text("name", &self.args.name)
            .count("sent", *sent)
            .count("sent_bytes", *sent_bytes)
            .count("received", *received)
            .count("received_bytes", *received_bytes)
            .count("clamped", *clamped)
            .both("rx_drops", in_words(&received_not), in_json(&received_not))
            .both("tx_drops", in_words(&sent_not), in_json(&sent_not))
    }
}

fn in_words(counts: &[(&str, u64)]) -> String {
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

fn in_json(counts: &[(&str, u64)]) -> Vec<serde_json::Value> {
    counts.iter().map(|(reason, count)| serde_json::json!({"reason": reason, "count": count})).collect()
}

impl Drop for Carrier<'_> {
    fn drop(&mut self) {
        // The session of a program that is no more carries nothing.
        self.state.remove();
    }
}
