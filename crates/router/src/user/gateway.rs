//! The gateway: one thread that has the associations, and takes from each of its sources a little at a time.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace_ipsec::association::{Association, Id, Parameters};
use millrace_ipsec::database::{Change, Database, Event};
use millrace_ipsec::lifetime::End;
use millrace_ipsec::refusal::Way;
use millrace_port::spec::InterfaceName;
use millrace_port::tun::{Address, Tun, TunError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::batch::Batch;
use super::drops::Drops;
#[cfg(feature = "bpf")]
use super::fast::Fast;
use super::guard::{Guard, GuardError};
use super::outward::Outward;
use super::own::Own;
use super::paths::Paths;
use super::sockets::{Port, Receiver, Sender};
use super::{inward, outward, requests};
use crate::daemon::control::{self, Control};
use crate::daemon::ipsec::{self, Request, Status};
use crate::daemon::protocol;
use crate::kernel::socket;

/// How often lifetimes and paths are looked at.
const TICK: Duration = Duration::from_secs(1);

/// How often translators hear of us (RFC 3948 §4).
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Events that are told in one turn.
const MOST_EVENTS: usize = 64;

/// Keepalives of one time.
const MOST_KEEPALIVES: usize = 256;

/// How a gateway is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tunnel interface, which it makes.
    pub interface: InterfaceName,
    /// The longest packet that Linux gives to it.
    pub mtu: u16,
    /// Addresses of the interface.
    pub addresses: Vec<IpAddr>,
    /// Associations and policies that it begins with.
    pub file: Option<PathBuf>,
    /// Whether it keeps packets in the clear out.
    pub guard: bool,
    /// Mark of the packets that it sends.
    pub mark: Option<u32>,
    /// The abstract name of its socket.
    pub socket: String,
}

/// Why there is no gateway.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file cannot be read, or is none.
    #[error("{0}: {1}")]
    File(PathBuf, String),
    /// No interface.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// No socket for clients, or somebody has its name.
    #[error(transparent)]
    Control(#[from] control::Error),
    /// No raw sockets.
    #[error("no sockets for ESP ({0}): that takes root, or CAP_NET_RAW and CAP_NET_ADMIN")]
    Sockets(std::io::Error),
    /// Packets in the clear cannot be kept out.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The kernel cannot be asked.
    #[error(transparent)]
    Kernel(#[from] socket::Error),
    /// The router's engine has no fast way.
    #[cfg(feature = "bpf")]
    #[error(transparent)]
    Engine(#[from] crate::engine::EngineError),
    /// The tunnel interface is gone, or the system is out of something.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// What has happened that somebody should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An association should be renewed, or is over.
    End {
        /// Where its packets go.
        destination: IpAddr,
        /// Its index.
        spi: u32,
        /// Its number.
        reqid: u32,
        /// Whether it is over.
        is_over: bool,
        /// Packets and bytes that it has protected.
        used: (u64, u64),
    },
    /// The other gateway comes from elsewhere.
    Moved {
        /// Where packets of the association go.
        destination: IpAddr,
        /// Its index.
        spi: u32,
        /// Where they come from now.
        source: IpAddr,
        /// And from which port.
        port: u16,
        /// Whether packets to there follow.
        is_followed: bool,
    },
}

/// A gateway.
pub struct Gateway {
    options: Options,
    started: Instant,
    tun: Tun,
    database: Database,
    receivers: Vec<Receiver>,
    batch: Batch,
    outward: Outward,
    sender: Sender,
    port: Port,
    #[cfg(feature = "bpf")]
    fast: Option<Fast>,
    paths: Paths,
    own: Own,
    drops: Drops,
    guard: Guard,
    control: Control,
    ticked: Instant,
    kept_alive: Instant,
    is_stopping: bool,
}

impl Gateway {
    /// Reads the file, keeps packets in the clear out, and makes the interface, in this order.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(options: Options) -> Result<Self, StartError> {
        let control = Control::listen(&options.socket, None)?;
        let mut database = Database::new();
        if let Some(path) = &options.file {
            let failed = |why: String| StartError::File(path.clone(), why);
            let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
            requests::add(&mut database, &text, seconds()).map_err(failed)?;
        }
        let receivers = Receiver::all().map_err(StartError::Sockets)?;
        let sender = Sender::open(options.mark).map_err(StartError::Sockets)?;
        let (paths, own) = (Paths::open(options.mark)?, Own::read()?);
        let mut guard = Guard::of(options.interface.as_str());
        // One that was there before is what a gateway has left that was killed: it stays whatever becomes of this one.
        let is_new = options.guard && !guard.is_there();
        if options.guard {
            guard.set(database.policies(), database.changes())?;
        }
        let (tun, index) = match interface(&options) {
            Ok(made) => made,
            Err(error) => {
                if is_new {
                    guard.remove()?;
                }
                return Err(error);
            }
        };
        let now = Instant::now();
        Ok(Self {
            started: now,
            tun,
            database,
            receivers,
            batch: Batch::new(),
            outward: Outward::new(index),
            sender,
            port: Port::hold(),
            #[cfg(feature = "bpf")]
            fast: None,
            paths,
            own,
            drops: Drops::default(),
            guard,
            control,
            ticked: now,
            kept_alive: now,
            is_stopping: false,
            options,
        })
    }

    /// Works until `is_over` says so, a client does, or nothing can go on. What happens is told to `tell`.
    ///
    /// # Errors
    /// The interface is gone, or the system is out of something.
    pub fn run(&mut self, is_over: impl Fn() -> bool, mut tell: impl FnMut(Notice)) -> Result<(), StartError> {
        let mut is_busy = false;
        while !is_over() && !self.is_stopping {
            let ready = self.wait(is_busy)?;
            let now = seconds();
            is_busy = self.carry(&ready, now)?;
            if ready.own {
                self.own.turn()?;
            }
            if ready.control || self.ticked.elapsed() >= TICK {
                self.answer(now);
            }
            if self.ticked.elapsed() >= TICK {
                self.tick(now);
            }
            for _ in 0..MOST_EVENTS {
                let Some(event) = self.database.next_event() else { break };
                tell(self.told(event, now));
            }
        }
        Ok(())
    }

    /// Takes frames of the router's interfaces, too, which `engine` gives to user space; the router was told of the tunnel interface.
    ///
    /// # Errors
    /// When the engine's tables cannot be looked at, or conntrack cannot be made to look at connections.
    #[cfg(feature = "bpf")]
    pub fn serve(&mut self, engine: std::sync::Arc<crate::engine::Engine>) -> Result<(), StartError> {
        if self.options.guard {
            self.guard.track();
            self.guard.set(self.database.policies(), self.database.changes())?;
        }
        let tunnel = requests::index_of(self.options.interface.as_str()).ok_or(std::io::Error::from(Errno::NODEV))?;
        let mut fast = Fast::new(engine, tunnel)?;
        fast.follow(&self.database, &self.own, &mut self.drops);
        self.fast = Some(fast);
        Ok(())
    }

    #[cfg(feature = "bpf")]
    fn fast_packets(&self) -> Option<(u64, u64)> {
        self.fast.as_ref().map(|fast| (fast.opened, fast.sealed))
    }

    #[cfg(not(feature = "bpf"))]
    const fn fast_packets(&self) -> Option<(u64, u64)> {
        None
    }

    /// The table of the rules that keep packets in the clear out, and stay unless it [ends](Self::end) as it should.
    pub fn guard(&self) -> Option<&str> {
        self.options.guard.then(|| self.guard.table())
    }

    /// Ends because somebody has asked for it: the rules that keep packets in the clear out go, too.
    pub fn end(mut self) -> Result<(), StartError> {
        if self.options.guard {
            self.guard.remove()?;
        }
        Ok(())
    }

    fn wait(&self, is_busy: bool) -> Result<Ready, StartError> {
        let mut fds = vec![PollFd::new(&self.tun, PollFlags::IN), PollFd::new(&self.own, PollFlags::IN)];
        fds.extend(self.receivers.iter().map(|receiver| PollFd::new(receiver, PollFlags::IN)));
        let own = fds.len();
        #[cfg(feature = "bpf")]
        fds.extend(self.fast.iter().flat_map(Fast::fds).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let controls = fds.len();
        fds.extend(self.control.poll_fds());
        let left = if is_busy { Duration::ZERO } else { TICK.saturating_sub(self.ticked.elapsed()).min(TICK / 5) };
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok(Ready {
            tun: is_ready(&fds[0]),
            own: is_ready(&fds[1]),
            receivers: fds[2..own].iter().map(is_ready).collect(),
            #[cfg(feature = "bpf")]
            fast: fds[own..controls].iter().any(is_ready),
            control: fds[controls..].iter().any(is_ready),
        })
    }

    /// One batch of each source; whether there may be more of one.
    fn carry(&mut self, ready: &Ready, now: u64) -> Result<bool, StartError> {
        let mut is_busy = false;
        #[cfg(feature = "bpf")]
        if ready.fast
            && let Some(fast) = &mut self.fast
        {
            let mut with = outward::With {
                tun: &self.tun,
                database: &mut self.database,
                sender: &mut self.sender,
                paths: &mut self.paths,
                drops: &mut self.drops,
                now,
            };
            is_busy |= fast.turn(&mut self.outward, &self.own, &mut with)?;
        }
        if ready.tun {
            let mut with = outward::With {
                tun: &self.tun,
                database: &mut self.database,
                sender: &mut self.sender,
                paths: &mut self.paths,
                drops: &mut self.drops,
                now,
            };
            is_busy |= self.outward.turn(&mut with)?;
        }
        for (receiver, is_ready) in self.receivers.iter_mut().zip(&ready.receivers) {
            if *is_ready {
                let mut with = inward::With {
                    tun: &self.tun,
                    database: &mut self.database,
                    own: &self.own,
                    drops: &mut self.drops,
                    now,
                };
                is_busy |= inward::turn(receiver, &mut self.batch, &mut with);
            }
        }
        Ok(is_busy)
    }

    fn tick(&mut self, now: u64) {
        self.ticked = Instant::now();
        self.database.tick(now);
        self.paths.forget();
        self.outward.look_at_paths(&mut self.database, &mut self.paths);
        if self.options.guard {
            // Again, if it has failed; the status says why.
            let _ = self.guard.set(self.database.policies(), self.database.changes());
        }
        #[cfg(feature = "bpf")]
        if let Some(fast) = &mut self.fast {
            fast.follow(&self.database, &self.own, &mut self.drops);
        }
        if self.kept_alive.elapsed() >= KEEPALIVE {
            self.kept_alive = self.ticked;
            let all = self.database.associations().map(Association::parameters);
            let of_us = all.filter(|parameters| self.own.has(parameters.source));
            let ports = of_us.filter_map(|parameters| {
                parameters.encapsulation.map(|ports| (parameters.id.destination, ports.destination_port))
            });
            ports.take(MOST_KEEPALIVES).for_each(|(destination, port)| self.port.keep_alive(destination, port));
        }
    }

    /// What an event means to others; and packets follow an end whose port has moved.
    fn told(&mut self, event: Event, now: u64) -> Notice {
        match event {
            Event::End { id, reqid, end, usage } => Notice::End {
                destination: id.destination,
                spi: id.spi,
                reqid,
                is_over: end == End::Hard,
                used: (usage.packets, usage.bytes),
            },
            Event::Moved { id, source, port } => {
                let is_followed = self.follow(id, source, port, now);
                Notice::Moved { destination: id.destination, spi: id.spi, source, port, is_followed }
            }
        }
    }

    /// Sends to another port what goes in UDP to the peer of an association, because genuine packets of it come from there (RFC 7296 §2.23). Other peers behind
    /// the same translator have other numbers (`reqid`), and ports of their own.
    fn follow(&mut self, id: Id, source: IpAddr, port: u16, now: u64) -> bool {
        let all = || self.database.associations();
        let Some(came) = all().map(Association::parameters).find(|parameters| parameters.id == id) else {
            return false;
        };
        let is_it = |parameters: &Parameters| {
            (parameters.source, parameters.id.destination) == (id.destination, source)
                && parameters.reqid == came.reqid
                && parameters.encapsulation.is_some()
        };
        let moved = |association: &Association| {
            let mut news = association.parameters().clone();
            news.progress = association.progress();
            if let Some(ports) = &mut news.encapsulation {
                if news.id == id { ports.source_port = port } else { ports.destination_port = port }
            }
            news
        };
        let leaving: Vec<_> = all().filter(|one| is_it(one.parameters())).map(moved).collect();
        let is_followed = !leaving.is_empty();
        // From now on it is expected from there.
        let arriving: Vec<_> = all().filter(|one| is_followed && one.parameters().id == id).map(moved).collect();
        for parameters in leaving.into_iter().chain(arriving) {
            // They were there a moment ago.
            let _ = self.database.apply(Change::Associate(Box::new(parameters)), now);
        }
        is_followed
    }

    fn answer(&mut self, now: u64) {
        let (mut stopping, status) = (self.is_stopping, self.status());
        let (database, guard, is_guarded) = (&mut self.database, &mut self.guard, self.options.guard);
        self.control.turn(|request| {
            let protocol::Request::Ipsec(request) = request else {
                return protocol::Answer::Refused(
                    "this is a gateway of IPsec alone; the router of this namespace has another socket".to_owned(),
                );
            };
            let mut changed = |result: Result<u64, String>, database: &Database| {
                let count = result?;
                if is_guarded {
                    guard
                        .set(database.policies(), database.changes())
                        .map_err(|error| format!("{error}: associations and policies are in force all the same"))?;
                }
                Ok(ipsec::Answer::Changed(count))
            };
            let said = match request {
                Request::Status => Ok(ipsec::Answer::Status(Box::new(status.clone()))),
                Request::List { from, with_keys } => Ok(requests::list(database, from, with_keys, now)),
                Request::Add(words) => changed(requests::add(database, &words, now), database),
                Request::Delete(words) => changed(requests::delete(database, &words, now), database),
                Request::Flush { associations, policies } => {
                    let count = flush(database, associations, policies, now);
                    changed(Ok(count), database)
                }
                Request::Stop => {
                    stopping = true;
                    Ok(ipsec::Answer::Changed(0))
                }
            };
            said.map_or_else(protocol::Answer::Refused, protocol::Answer::Ipsec)
        });
        self.is_stopping = stopping;
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let counters = self.database.counters();
        let mut drops: Vec<_> = counters
            .refusals()
            .map(|(way, refusal, count)| {
                let way = if way == Way::In { "in" } else { "out" };
                (way.to_owned(), refusal.name().to_owned(), count)
            })
            .collect();
        let here = self.drops.all().filter(|(_, count)| *count > 0);
        drops.extend(here.map(|(reason, count)| ("here".to_owned(), reason.name().to_owned(), count)));
        Status {
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            interface: self.options.interface.to_string(),
            guard: match self.options.guard {
                true => match self.guard.failed() {
                    None => format!("nft, table inet {}", self.guard.table()),
                    Some(why) => {
                        format!("nft, table inet {}, which is not what policies say: {why}", self.guard.table())
                    }
                },
                false => "off".to_owned(),
            },
            ike: self.port.said().to_owned(),
            associations: self.database.associations().count() as u64,
            policies: self.database.policies().len() as u64,
            sealed: Outward::packets(&self.database),
            opened: inward::packets(&self.database),
            drops,
            linux: counters.as_linux().into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
            lost_events: self.database.lost_events(),
            fast: self.fast_packets(),
        }
    }
}

/// What can be read.
struct Ready {
    tun: bool,
    own: bool,
    receivers: Vec<bool>,
    #[cfg(feature = "bpf")]
    fast: bool,
    control: bool,
}

/// The tunnel interface, and its number.
fn interface(options: &Options) -> Result<(Tun, u32), StartError> {
    let tun = Tun::open(&options.interface)?;
    of_no_xfrm(options.interface.as_str());
    tun.set_up(options.mtu)?;
    for own in &options.addresses {
        tun.add(&Address { own: *own, peer: None })?;
    }
    let index = requests::index_of(options.interface.as_str()).ok_or(std::io::Error::from(Errno::NODEV))?;
    Ok((tun, index))
}

fn flush(database: &mut Database, associations: bool, policies: bool, now: u64) -> u64 {
    let before = database.associations().count() + database.policies().len();
    let all = [(associations, Change::FlushAssociations), (policies, Change::FlushPolicies)];
    for (_, change) in all.into_iter().filter(|(wanted, _)| *wanted) {
        // Nothing is refused that makes nothing.
        let _ = database.apply(change, now);
    }
    (before - database.associations().count() - database.policies().len()) as u64
}

/// A kernel that has policies of its own does not ask them for what goes by our interface: we do.
fn of_no_xfrm(interface: &str) {
    for setting in ["ipv4/conf/NAME/disable_xfrm", "ipv4/conf/NAME/disable_policy", "ipv6/conf/NAME/disable_policy"] {
        // Where it is missing, there are no policies.
        let _ = std::fs::write(format!("/proc/sys/net/{}", setting.replace("NAME", interface)), "1");
    }
}

/// Seconds since 1970.
fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
