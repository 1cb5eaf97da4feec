//! The daemon: one thread that waits for events of Linux, of the engine and of clients, and does first what makes rules stale.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

use super::advice;
use super::attach::{self, Interfaces};
use super::capabilities;
use super::changes::{self, After, Counts, report};
use super::compared::Compared;
use super::control::{self, Control};
use super::delays::Delays;
use super::devices::Forwarding;
use super::errors::Errors;
use super::flows::Flows;
use super::groups;
use super::options::{KEPT_SECONDS, OnDeath, Options};
use super::protocol::Status;
use super::quiet;
use super::reread::Reread;
use super::resets::Resets;
use super::sessions::Sessions;
use super::sight::{Ears, Sight};
use super::tell::Told;
use super::waited::Waited;
use crate::Reason;
use crate::engine::shadow::{Shadow, Tally};
use crate::engine::{self, Config, Engine, EngineError, Event, EventKind, Mode};
use crate::kernel::conntrack::{self, Tuple};
use crate::kernel::netfilter::{self, Family};
use crate::kernel::settings::{self, Timeouts};
use crate::kernel::socket::{self, Events, Received};
use crate::kernel::{policy, wire};

/// Datagrams of one socket that are taken in one turn; others, and clients, have their turn then.
const DATAGRAMS: usize = 64;

/// Connections that conntrack is told about in one turn.
const LIBERAL: usize = 64;

/// Those that may wait to be told about; others are found on trial by the next look at all rules, and are slow until then.
const LIBERAL_WAITING: usize = 1 << 16;

/// How often it is read how often errors are said.
const ERRORS: Duration = Duration::from_secs(1);

/// How often copies of packets are compared; what comes in between has room.
const COMPARE: Duration = Duration::from_millis(50);

/// How often the engine hears that somebody looks after it, and how long it waits for that.
const HEARTBEAT: Duration = Duration::from_millis(200);
const SILENCE: Duration = Duration::from_millis(1000);

/// When Linux is asked again what it has not said.
const AGAIN: Duration = Duration::from_millis(100);

/// Why a router does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The process may not do what it has to.
    #[error("these capabilities are missing: {}; run it as root, or `setcap cap_net_admin,cap_bpf,cap_perfmon+ep` the program", .0.join("; "))]
    Capabilities(Vec<String>),
    /// Another one runs.
    #[error(transparent)]
    Control(#[from] control::Error),
    /// The kernel cannot be asked.
    #[error("what Linux has cannot be read: {0}")]
    Kernel(#[from] socket::Error),
    /// The program cannot be loaded.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// No events, no loop.
    #[error("waiting for events failed: {0}")]
    Wait(#[from] Errno),
}

/// A router. Dropped, it takes its programs away.
pub struct Router {
    engine: Arc<Engine>,
    state: State,
    ears: Ears,
    control: Control,
}

/// Everything that changes.
pub(super) struct State {
    pub options: Options,
    pub sight: Sight,
    pub interfaces: Interfaces,
    pub flows: Flows,
    pub told: Told,
    pub sessions: Sessions,
    errors: Option<Errors>,
    errors_at: Instant,
    /// Places for rules of IPv4 and IPv6.
    pub room: [u32; 2],
    /// Jiffies of a second.
    pub hz: u32,
    /// Of IPv4 and of IPv6.
    pub modes: (Mode, Mode),
    pub compared: Compared,
    pub tally: Tally,
    /// Copies that the engine had no room for.
    uncopied: u64,
    liberal: VecDeque<Tuple>,
    not_liberal: u64,
    resets: Resets,
    pub after: After,
    /// Something could not be read, the last time at this moment.
    unread: Option<Instant>,
    reread: Reread,
    /// Events were lost, and everything is about to be read again, but not yet.
    is_behind: bool,
    pub counts: Counts,
    overruns: Counts,
    delays: Delays,
    events_lost: u32,
    /// Clients that were refused, let go or cut off.
    turned_away: u64,
    began: Instant,
    beat: Instant,
    looked: Instant,
    quiet_at: Instant,
    compared_at: Instant,
    pub is_stopping: bool,
}

impl Router {
    /// Loads the engine, attaches it, and listens.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(options: Options) -> Result<Self, StartError> {
        let missing = capabilities::missing();
        if !missing.is_empty() {
            return Err(StartError::Capabilities(missing));
        }
        let control = Control::listen(&options.socket, options.group)?;
        // First the ears, then the eyes: what changes in between is heard.
        let ears = Ears::open()?;
        let sight = Sight::open()?;
        let room = [options.rules, (options.rules / 4).max(1024)];
        // Of this namespace: interfaces of others have the same numbers.
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |found| found.ino());
        let pins = (options.on_death == OnDeath::Keep).then(|| folder_of(&options.socket, namespace));
        let namespace = Some(namespace);
        let engine = Engine::load(&Config { rules4: room[0], rules6: room[1], pins, namespace, ..Config::default() })?;
        let mut state = State::new(options, sight, room, engine.hz());
        state.begin(&engine)?;
        Ok(Self { engine: Arc::new(engine), state, ears, control })
    }

    /// The engine, for the one in user space.
    pub fn engine(&self) -> Arc<Engine> {
        self.engine.clone()
    }

    /// How it is, with what is said at the start alone.
    pub fn status(&self) -> Status {
        let mut status = self.state.status(&self.engine);
        status.advice.extend(self.state.interfaces.advice_at_start(&self.state.sight));
        status
    }

    /// Works until `is_over` says so, or a client.
    ///
    /// # Errors
    /// When the sockets of events are of no more use.
    pub fn run(&mut self, is_over: impl Fn() -> bool) -> Result<(), StartError> {
        let Self { engine, state, ears, control } = self;
        let engine = &**engine;
        let happened = RefCell::new(Vec::new());
        let ring = engine.events(|event| happened.borrow_mut().push(event))?;
        let shadow = Shadow::new(engine);
        let mut waited = Waited::of_this_thread();
        while !is_over() && !state.is_stopping {
            waited.begin();
            let woken = wait(ears, control, engine.events_fd(), state.pace())?;
            // It was woken before it ran.
            let woken = woken.checked_sub(waited.since()).unwrap_or(woken);
            state.hear(engine, ears, woken)?;
            ring.consume()
                .map_err(|source| EngineError::Update { what: "events of the engine cannot be read", source })?;
            state.happened(engine, &happened);
            state.hear_ends(engine, ears)?;
            state.later(engine);
            state.compare(&shadow)?;
            control.turn(|request| state.answer(engine, request));
            state.turned_away = control.turned_away;
            state.look_after(engine)?;
        }
        Ok(())
    }
}

impl Drop for Router {
    /// Its programs go first, also if somebody else has the engine still, and then its claims.
    fn drop(&mut self) {
        self.engine.detach_all();
    }
}

/// Where a router keeps its attachments: by the name of its socket, of which no two that live have the same in a network namespace. A file system of BPF
/// has no dots, so letters but those of host names are numbers there.
fn folder_of(socket: &str, namespace: u64) -> PathBuf {
    let is_plain = |letter: &u8| letter.is_ascii_alphanumeric() || *letter == b'-';
    let name: String = socket
        .bytes()
        .map(|letter| if is_plain(&letter) { char::from(letter).to_string() } else { format!("_{letter:02x}") })
        .collect();
    PathBuf::from(format!("/sys/fs/bpf/{name}-{namespace}"))
}

impl State {
    fn new(options: Options, sight: Sight, room: [u32; 2], hz: u32) -> Self {
        let now = Instant::now();
        Self {
            interfaces: Interfaces::new(options.interfaces.clone(), options.place),
            told: Told::new(options.tunnel.clone()),
            options,
            sight,
            flows: Flows::new(room),
            sessions: Sessions::default(),
            errors: None,
            errors_at: now,
            room,
            hz,
            modes: (Mode::Off, Mode::Off),
            compared: Compared::default(),
            tally: Tally::default(),
            uncopied: 0,
            liberal: VecDeque::new(),
            not_liberal: 0,
            resets: Resets::default(),
            after: After::default(),
            unread: None,
            reread: Reread::default(),
            is_behind: false,
            counts: Counts::new(),
            overruns: Counts::new(),
            delays: Delays::default(),
            events_lost: 0,
            turned_away: 0,
            began: now,
            beat: now,
            looked: now,
            quiet_at: now,
            compared_at: now,
            is_stopping: false,
        }
    }

    fn begin(&mut self, engine: &Engine) -> Result<(), StartError> {
        engine.set_parts(self.options.parts.0);
        engine.set_shadow(self.options.compare);
        let limit = match self.options.on_death {
            OnDeath::Flush => SILENCE,
            OnDeath::Keep => Duration::from_secs(KEPT_SECONDS.into()),
        };
        engine.set_heartbeat_limit(Some(limit));
        self.read_settings(engine);
        self.sessions.look(&self.sight.mirror);
        self.read_errors(engine);
        self.told.everything(&self.sight, &self.sessions, engine)?;
        self.set_mode(engine);
        self.interfaces.settle(&mut self.sight, engine);
        groups::tell(&mut self.sight, engine);
        engine.heartbeat()?.into_iter().for_each(|(_, error)| tracing::warn!("{error}"));
        let (interfaces, told) = (&self.interfaces, &self.told);
        attach::clear_away(&mut self.sight, engine, |index| interfaces.is_attached(index) || told.is_tunnel(index));
        Ok(())
    }

    /// Whether conntrack is asked: where something looks at forwarded packets.
    pub fn set_mode(&mut self, engine: &Engine) {
        let hooks = &self.sight.hooks;
        let of = |family| match hooks.look_at(family) {
            _ if !self.options.is_on || self.unread.is_some() || self.is_behind => Mode::Off,
            // Somebody looks at each packet, and says what becomes of it.
            _ if hooks.queue(family).is_some() => Mode::Off,
            true => Mode::Conntrack,
            false => Mode::Route,
        };
        let wanted = (of(Family::Ipv4), of(Family::Ipv6));
        if wanted != self.modes {
            engine.set_modes(wanted.0, wanted.1);
            self.modes = wanted;
        }
        let bare = (hooks.are_none(Family::Ipv4), hooks.are_none(Family::Ipv6));
        if self.told.bare != Some(bare) {
            engine.set_bare(bare.0, bare.1);
            self.told.bare = Some(bare);
        }
        let is_ruled = hooks.look_at(Family::Ipv4) || hooks.look_at(Family::Ipv6);
        let bridged = hooks.look_at(Family::Bridge) || is_ruled && bridges_call_iptables();
        if self.told.bridge_netfilter != Some(bridged) {
            engine.set_bridge_netfilter(bridged);
            self.told.bridge_netfilter = Some(bridged);
        }
        self.told.route_mtus(&self.sight, engine);
    }

    fn read_settings(&mut self, engine: &Engine) {
        self.sight.forwarding = Forwarding::read();
        let timeouts = Timeouts::read();
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        engine.set_timeouts(seconds(timeouts.tcp), seconds(timeouts.udp_stream));
    }

    /// How often errors are said may change without a word of the kernel.
    fn read_errors(&mut self, engine: &Engine) {
        let errors = Errors::read();
        if errors.tell(self.errors.replace(errors), engine) {
            engine.bump(engine::Change::Ruleset);
        }
        self.errors_at = Instant::now();
    }

    /// Takes in what has come from Linux since `woken`.
    fn hear(&mut self, engine: &Engine, ears: &mut Ears, woken: Instant) -> Result<(), StartError> {
        let overrun = each(&mut ears.route, |message| {
            if let Some(change) = self.sight.apply(message) {
                self.told.route_mtus(&self.sight, engine);
                changes::at_once(change, self.sight.mirror.has_choice, engine, &mut self.counts);
                self.delays.add(woken.elapsed());
                changes::then(change, &self.sight, &self.sessions, &mut self.told, engine, &mut self.after);
            }
        })?;
        self.overrun(engine, "route", overrun);
        let overrun = each_of(&mut ears.ruleset, |message| {
            self.sight.hear_rule(message);
            if netfilter::new_generation(message).is_some() {
                engine.bump(engine::Change::Ruleset);
                self.delays.add(woken.elapsed());
                *self.counts.entry("ruleset").or_default() += 1;
                self.after.ruleset = true;
            }
        })?;
        self.overrun(engine, "ruleset", overrun);
        let overrun = each_of(&mut ears.policies, |message| {
            if policy::is_change(message) {
                engine.bump(engine::Change::Ruleset);
                self.delays.add(woken.elapsed());
                *self.counts.entry("policies").or_default() += 1;
                self.after.policies = true;
            }
        })?;
        self.overrun(engine, "policies", overrun);
        Ok(())
    }

    /// Takes in which connections are gone: when it is known which rules they have, of which the engine tells without waking anybody.
    fn hear_ends(&mut self, engine: &Engine, ears: &mut Ears) -> Result<(), StartError> {
        let mut jiffies = None;
        let overrun = each_of(&mut ears.conntrack, |message| {
            if let Some(conntrack::Event::Gone(gone)) = conntrack::event(message) {
                // Asked once for many.
                let jiffies = *jiffies.get_or_insert_with(|| engine.jiffies().unwrap_or_default());
                self.flows.gone(engine, &[gone.original, gone.reply], jiffies);
            }
        })?;
        self.overrun(engine, "conntrack", overrun);
        Ok(())
    }

    /// What was lost may have been anything: every rule asks again, and everything is read again.
    fn overrun(&mut self, engine: &Engine, socket: &'static str, overrun: bool) {
        if overrun {
            engine.bump(engine::Change::Ruleset);
            *self.overruns.entry(socket).or_default() += 1;
            // Connections that are gone are found by the rules themselves, which ask for them now.
            self.after.everything |= socket != "conntrack";
        }
    }

    /// Takes in what the engine has told.
    fn happened(&mut self, engine: &Engine, happened: &RefCell<Vec<Event>>) {
        for event in happened.borrow_mut().drain(..) {
            let mode = if event.key.source.is_ipv4() { self.modes.0 } else { self.modes.1 };
            if let Some(tuple) = self.flows.event(&event).filter(|_| mode == Mode::Conntrack) {
                self.need_no_windows(tuple);
            }
            self.flows.end_other_direction(engine, &event);
            if mode == Mode::Conntrack && event.kind == EventKind::Ended && event.reason == Some(Reason::TcpFlags) {
                self.resets.add(super::flows::tuple(&event.key), Instant::now());
            }
        }
        let lost = engine.events_lost();
        if lost != self.events_lost {
            self.events_lost = lost;
            self.flows.start_again();
        }
        self.resets.turn(&mut self.sight, Instant::now());
        for _ in 0..LIBERAL {
            let Some(tuple) = self.liberal.pop_front() else { return };
            self.not_liberal += u64::from(!self.sight.be_liberal(&tuple));
        }
    }

    /// Conntrack is to be told of a connection, whose rule waits for that.
    fn need_no_windows(&mut self, tuple: Tuple) {
        if self.liberal.len() >= LIBERAL_WAITING {
            self.not_liberal += 1;
        } else {
            self.liberal.push_back(tuple);
        }
    }

    fn mode_of(&self, tuple: &Tuple) -> Mode {
        if tuple.source.is_ipv4() { self.modes.0 } else { self.modes.1 }
    }

    /// Compares what has been copied.
    fn compare(&mut self, shadow: &Shadow<'_>) -> Result<(), StartError> {
        if self.options.compare != 0 && self.compared_at.elapsed() >= COMPARE {
            self.compared_at = Instant::now();
            shadow.poll(Duration::ZERO, |mismatch| self.compared.keep(&mismatch))?;
            self.tally = shadow.tally();
            self.uncopied = shadow.lost().into();
        }
        Ok(())
    }

    /// Does what can wait until the epoch has moved, once for many events.
    fn later(&mut self, engine: &Engine) {
        let mut after = std::mem::take(&mut self.after);
        after.everything |= self.unread.is_some_and(|since| since.elapsed() >= AGAIN);
        let now = Instant::now();
        if after.everything && !self.reread.due(now).is_zero() {
            (after.everything, self.after.everything) = (false, true);
            if !std::mem::replace(&mut self.is_behind, true) {
                self.set_mode(engine);
            }
        }
        match self.read_what_changed(engine, &after) {
            Ok(()) if after.everything => self.unread = None,
            Ok(()) => {}
            Err(error) => {
                if self.unread.is_none() {
                    tracing::warn!("{error}; it is read again, and until then everything goes through Linux");
                }
                self.unread = Some(Instant::now());
                *self.overruns.entry("unread").or_default() += 1;
            }
        }
        if after.everything {
            self.reread.done(now, Instant::now());
            self.is_behind = false;
        }
        if after.settle || after.ruleset || after.everything || self.interfaces.has_failed() {
            self.set_mode(engine);
            self.interfaces.settle(&mut self.sight, engine);
            after.groups = true;
        }
        if after.groups {
            groups::tell(&mut self.sight, engine);
        }
    }

    fn read_what_changed(&mut self, engine: &Engine, after: &After) -> Result<(), socket::Error> {
        if after.everything {
            self.sight.read_again()?;
            self.sessions.look(&self.sight.mirror);
            report(self.told.everything(&self.sight, &self.sessions, engine));
            // What changed while it was read comes as events; but what was lost before may concern any rule.
            engine.bump(engine::Change::Ruleset);
        }
        if after.settings || after.everything {
            self.read_settings(engine);
            report(self.told.everything(&self.sight, &self.sessions, engine));
        }
        if after.sessions {
            for name in self.sessions.look(&self.sight.mirror) {
                self.session_told(engine, &name);
                // What lies on it may be another session now.
                engine.bump(engine::Change::Ruleset);
            }
        }
        if after.ruleset {
            self.sight.read_hooks()?;
        }
        if after.policies {
            self.sight.read_policies()?;
        }
        Ok(())
    }

    /// The heartbeat, and the next part of the table of rules.
    fn look_after(&mut self, engine: &Engine) -> Result<(), StartError> {
        if self.beat.elapsed() >= HEARTBEAT {
            engine.heartbeat()?.into_iter().for_each(|(_, error)| tracing::warn!("{error}"));
            self.beat = Instant::now();
            for name in self.sessions.forget(self.beat) {
                tracing::warn!("{name}: nobody has told of its session for too long");
                self.session_told(engine, &name);
            }
        }
        if self.errors_at.elapsed() >= ERRORS {
            self.read_errors(engine);
            // Nor does it tell who is a member of a group.
            self.sight.read_multicast();
            if let Err(error) = self.sight.read_looks() {
                tracing::debug!("what rules look at cannot be read: {error}");
            }
            self.interfaces.look_after_claims();
            groups::tell(&mut self.sight, engine);
        }
        if self.quiet_at.elapsed() >= quiet::EVERY {
            self.look_for_quiet_changes(engine);
            self.quiet_at = Instant::now();
        }
        if self.looked.elapsed() >= self.flows.pace() {
            self.looked = Instant::now();
            let is_last = self.flows.turn(engine, engine.jiffies()?, self.hz, super::requests::monotonic());
            for tuple in self.flows.on_trial() {
                if self.mode_of(&tuple) == Mode::Conntrack {
                    self.need_no_windows(tuple);
                }
            }
            for (tuple, old) in self.flows.old(LIBERAL) {
                if self.mode_of(&tuple) == Mode::Conntrack {
                    self.sight.forget_acknowledged(&tuple, old);
                }
            }
            if is_last {
                let used = self.flows.used(engine);
                self.sight.keep_neighbours(&used);
            }
        }
        Ok(())
    }

    fn pace(&self) -> Duration {
        let busy = !self.liberal.is_empty();
        let until = |last: Instant, every: Duration| every.saturating_sub(last.elapsed());
        let compares = if self.options.compare != 0 && self.flows.is_busy() { COMPARE } else { HEARTBEAT };
        if busy {
            Duration::ZERO
        } else {
            let resets = self.resets.due(Instant::now()).unwrap_or(HEARTBEAT);
            let reread = if self.after.everything { self.reread.due(Instant::now()) } else { HEARTBEAT };
            let looks = until(self.looked, self.flows.pace()).min(until(self.beat, HEARTBEAT));
            looks.min(compares).min(resets).min(reread)
        }
    }

    /// How it is.
    pub fn status(&self, engine: &Engine) -> Status {
        let named = |counts: &Counts| counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let mut counts = self.counts.clone();
        if self.interfaces.put_back > 0 {
            counts.insert("programs", self.interfaces.put_back);
        }
        let hooks = &self.sight.hooks;
        let chains = hooks.chains.iter().map(|chain| format!("nft {}", chain.name));
        let mut advice = advice::of_namespace(hooks, &self.sight.mirror);
        advice.extend(self.interfaces.advice(&self.sight));
        advice.extend(advice::of_pins(self.options.on_death));
        Status {
            pid: std::process::id(),
            uptime_s: self.began.elapsed().as_secs_f64(),
            is_on: self.options.is_on,
            mode: match (mode_name(self.modes.0), mode_name(self.modes.1)) {
                (ipv4, ipv6) if ipv4 == ipv6 => ipv4.to_owned(),
                (ipv4, ipv6) => format!("{ipv4}, IPv6 {ipv6}"),
            },
            hooks: chains.chain(hooks.queues()).chain(hooks.unannounced()).take(64).collect(),
            parts: Some(self.options.parts),
            interfaces: self.interfaces.status(engine),
            awaited: self.interfaces.awaited(),
            rules: self.flows.counts(),
            epoch: engine.epochs().0,
            changes: named(&counts),
            overruns: named(&self.overruns),
            lost_events: self.events_lost.into(),
            delay: self.delays.summary(),
            compare: self.options.compare,
            on_death: self.options.on_death.name().to_owned(),
            advice,
            missing: Vec::new(),
            aged: self.flows.aged + u64::from(engine.made_room()),
            ended: self.flows.ended,
            not_liberal: self.not_liberal + self.resets.left_out,
            sessions: self.sessions.all(),
            left_out: self.sight.mirror.left_out + self.told.refused,
            turned_away: self.turned_away,
            uncopied: self.uncopied,
            renewals: engine.renewals(),
        }
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Off => "off",
        Mode::Route => "route",
        Mode::Conntrack => "conntrack",
    }
}

/// Whether bridged packets pass the rules for routed ones.
fn bridges_call_iptables() -> bool {
    ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"]
        .iter()
        .any(|name| settings::number(name) == Some(1))
}

/// Waits for something to happen; the moment when it did.
fn wait(ears: &Ears, control: &Control, ring: BorrowedFd<'_>, time: Duration) -> Result<Instant, StartError> {
    let others = [&ears.ruleset, &ears.conntrack, &ears.policies];
    let of_linux = std::iter::once(&ears.route).chain(others.into_iter().flatten()).map(|events| events.as_fd());
    let mut fds: Vec<PollFd<'_>> =
        of_linux.chain([ring]).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    fds.extend(control.poll_fds());
    let time = Timespec::try_from(time).unwrap_or_default();
    match poll(&mut fds, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(Instant::now()),
        Err(error) => Err(error.into()),
    }
}

/// Hands over what has come, up to a limit; whether something was lost.
fn each(events: &mut Events, mut take: impl FnMut(&wire::Message<'_>)) -> Result<bool, StartError> {
    let mut overrun = false;
    for _ in 0..DATAGRAMS {
        match events.receive()? {
            Received::Nothing => break,
            Received::Overrun => overrun = true,
            Received::Bytes(bytes) => wire::messages(bytes).for_each(|message| take(&message)),
        }
    }
    Ok(overrun)
}

fn each_of(events: &mut Option<Events>, take: impl FnMut(&wire::Message<'_>)) -> Result<bool, StartError> {
    events.as_mut().map_or(Ok(false), |events| each(events, take))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_routers_keep_things_in_one_folder() {
        let names = ["a.b", "a_b", "a-b", "a_2eb", "millrace-router"].map(|name| folder_of(name, 7));
        assert_eq!(names[4], PathBuf::from("/sys/fs/bpf/millrace-router-7"));
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), names.len(), "{names:?}");
        assert!(names.iter().all(|name| !name.to_string_lossy().contains('.')));
    }
}
